//! A listing of all load balancers and target groups, shared by all Services that are synced for
//! the first time.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ccm_core::provider::{CloudError, ErrorKind, Op};
use tokio::{sync::Mutex, time::Instant};

use crate::{
    api::{
        AwsError, Tags,
        elb::{
            DescribeElbTags, DescribeLoadBalancers, DescribeTargetGroups, LoadBalancer, MAX_TAGGED,
            TargetGroup,
        },
    },
    client::ResponseCache,
    clock::ago,
    scope::Scope,
};

/// All network load balancers and target groups of the VPC, with their tags.
#[derive(Debug)]
pub(in crate::lb) struct Listing {
    /// The time when the listing began. It may not show later changes.
    pub(in crate::lb) begun: Instant,
    pub(in crate::lb) load_balancers: Vec<LoadBalancer>,
    pub(in crate::lb) target_groups: Vec<TargetGroup>,
    /// Tags of all of them, by ARN.
    pub(in crate::lb) tags: HashMap<Box<str>, Tags>,
}

/// Maximum age of an interrupted listing that is continued when a new one is requested.
const RESUME_WINDOW: Duration = Duration::from_secs(300);

/// The last listing. A caller that needs a newer one reads it, while others wait for the result.
pub(in crate::lb) struct ListingCache {
    scope: Scope,
    state: Mutex<ListingState>,
}

#[derive(Default)]
struct ListingState {
    last: Option<Arc<Listing>>,
    /// A listing that a rate limit interrupted. The next caller continues it.
    interrupted: Option<InterruptedListing>,
}

struct InterruptedListing {
    begun: Instant,
    /// The responses so far.
    responses: ResponseCache,
}

impl ListingCache {
    pub(in crate::lb) fn new(scope: Scope) -> Self {
        Self { scope, state: Mutex::default() }
    }

    /// Returns a listing that began after `oldest`.
    pub(in crate::lb) async fn newer_than(
        &self,
        op: &Op,
        oldest: Instant,
    ) -> Result<Arc<Listing>, AwsError> {
        let mut state = op.wait_shared(self.state.lock()).await;
        if let Some(listing) = &state.last
            && listing.begun > oldest
        {
            return Ok(listing.clone());
        }
        self.list_all(op, &mut state, oldest).await
    }

    /// Returns a listing that begins now, or that was interrupted a short time ago.
    pub(in crate::lb) async fn fresh(&self, op: &Op) -> Result<Arc<Listing>, AwsError> {
        let mut state = op.wait_shared(self.state.lock()).await;
        self.list_all(op, &mut state, ago(RESUME_WINDOW)).await
    }

    /// Continues an interrupted listing if it began after `oldest`, or begins a new one.
    async fn list_all(
        &self,
        op: &Op,
        state: &mut ListingState,
        oldest: Instant,
    ) -> Result<Arc<Listing>, AwsError> {
        let listing = match state.interrupted.take() {
            Some(interrupted) if interrupted.begun > oldest => interrupted,
            _ => InterruptedListing { begun: Instant::now(), responses: ResponseCache::default() },
        };
        let scope = Scope {
            client: self.scope.client.with_response_cache(&listing.responses),
            ..self.scope.clone()
        };
        match read(&scope, op, listing.begun).await {
            Ok(listing) => {
                let listing = Arc::new(listing);
                state.last = Some(listing.clone());
                Ok(listing)
            }
            Err(error) => {
                if CloudError::from(error.clone()).kind() == ErrorKind::Throttled {
                    state.interrupted = Some(listing);
                }
                Err(error)
            }
        }
    }
}

async fn read(scope: &Scope, op: &Op, begun: Instant) -> Result<Listing, AwsError> {
    let vpc = Some(&scope.vpc);
    let mut load_balancers = list_load_balancers(scope, op).await?;
    load_balancers.retain(|load_balancer| {
        &*load_balancer.kind == "network" && load_balancer.vpc.as_ref() == vpc
    });
    let mut target_groups = list_target_groups(scope, op).await?;
    target_groups.retain(|group| group.vpc.as_ref() == vpc);
    let arns = load_balancers
        .iter()
        .map(|load_balancer| load_balancer.arn.as_str())
        .chain(target_groups.iter().map(|group| group.arn.as_str()));
    let tags = list_tags(scope, op, arns.map(Into::into).collect()).await?;
    Ok(Listing { begun, load_balancers, target_groups, tags })
}

/// Reads all load balancers.
pub(in crate::lb) async fn list_load_balancers(
    scope: &Scope,
    op: &Op,
) -> Result<Vec<LoadBalancer>, AwsError> {
    scope
        .client
        .read_all(op, DescribeLoadBalancers::default(), |r, token| r.token = Some(token))
        .await
}

/// Reads all target groups.
pub(in crate::lb) async fn list_target_groups(
    scope: &Scope,
    op: &Op,
) -> Result<Vec<TargetGroup>, AwsError> {
    scope
        .client
        .read_all(op, DescribeTargetGroups::default(), |r, token| r.token = Some(token))
        .await
}

/// Reads the tags of objects by ARN. One deleted object makes the whole request fail. Each half is
/// then requested separately, until the deleted object is alone and is left out.
pub(in crate::lb) async fn list_tags(
    scope: &Scope,
    op: &Op,
    arns: Vec<Box<str>>,
) -> Result<HashMap<Box<str>, Tags>, AwsError> {
    let mut unread: Vec<Vec<Box<str>>> = arns.chunks(MAX_TAGGED).map(<[_]>::to_vec).rev().collect();
    let mut tags = HashMap::new();
    while let Some(chunk) = unread.pop() {
        match scope
            .client
            .read(op, DescribeElbTags { arns: chunk.clone() })
            .await
        {
            Ok(found) => tags.extend(found),
            Err(error) if is_not_found(&error) && chunk.len() > 1 => {
                let (left, right) = chunk.split_at(chunk.len() / 2);
                unread.extend([right.to_vec(), left.to_vec()]);
            }
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(tags)
}

/// Returns true if the error says that the object does not exist.
pub(in crate::lb) fn is_not_found(error: &AwsError) -> bool {
    matches!(error.code(), "LoadBalancerNotFound" | "TargetGroupNotFound" | "ListenerNotFound")
}
