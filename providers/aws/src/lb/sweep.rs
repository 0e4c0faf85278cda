//! One look at all load balancers and target groups, shared by all Services that are looked at for the first time.

use std::{collections::HashMap, sync::Arc};

use ccm_core::provider::Op;
use tokio::{sync::Mutex, time::Instant};

use crate::{
    api::{
        AwsError, Tags,
        elb::{DescribeElbTags, DescribeLoadBalancers, DescribeTargetGroups, LoadBalancer, TargetGroup},
    },
    scope::Scope,
};

/// Most objects of one request for tags.
const MOST_TAGGED: usize = 20;

/// All network load balancers and target groups of the VPC, with their tags.
#[derive(Debug)]
pub(super) struct Sweep {
    /// When it began: what changed since may be missing.
    pub(super) begun: Instant,
    pub(super) balancers: Vec<LoadBalancer>,
    pub(super) groups: Vec<TargetGroup>,
    pub(super) tags: HashMap<Box<str>, Tags>,
}

/// The last sweep. Whoever needs a newer one makes it, while others wait for that one.
pub(super) struct Sweeps {
    scope: Scope,
    last: Mutex<Option<Arc<Sweep>>>,
}

impl Sweeps {
    pub(super) fn new(scope: Scope) -> Self {
        Self { scope, last: Mutex::default() }
    }

    /// Returns a sweep that began after then.
    pub(super) async fn since(&self, op: &Op, then: Instant) -> Result<Arc<Sweep>, AwsError> {
        let mut last = self.last.lock().await;
        if let Some(sweep) = last.as_ref().filter(|sweep| sweep.begun > then) {
            return Ok(sweep.clone());
        }
        let begun = Instant::now();
        let vpc = Some(&self.scope.vpc);
        let mut balancers = balancers(&self.scope, op).await?;
        balancers.retain(|balancer| &*balancer.kind == "network" && balancer.vpc.as_ref() == vpc);
        let mut groups = groups(&self.scope, op).await?;
        groups.retain(|group| group.vpc.as_ref() == vpc);
        let arns = balancers.iter().map(|b| b.arn.as_str()).chain(groups.iter().map(|g| g.arn.as_str()));
        let tags = tags(&self.scope, op, arns.map(Into::into).collect()).await?;
        let sweep = Arc::new(Sweep { begun, balancers, groups, tags });
        *last = Some(sweep.clone());
        Ok(sweep)
    }
}

/// Reads all load balancers.
pub(super) async fn balancers(scope: &Scope, op: &Op) -> Result<Vec<LoadBalancer>, AwsError> {
    scope.client.read_all(op, DescribeLoadBalancers::default(), |r, token| r.token = Some(token)).await
}

/// Reads all target groups.
pub(super) async fn groups(scope: &Scope, op: &Op) -> Result<Vec<TargetGroup>, AwsError> {
    scope.client.read_all(op, DescribeTargetGroups::default(), |r, token| r.token = Some(token)).await
}

/// Reads tags. One that is gone fails the whole request: then each half is asked for by itself, and what is gone has none.
pub(super) async fn tags(scope: &Scope, op: &Op, arns: Vec<Box<str>>) -> Result<HashMap<Box<str>, Tags>, AwsError> {
    let mut open: Vec<Vec<Box<str>>> = arns.chunks(MOST_TAGGED).map(<[_]>::to_vec).rev().collect();
    let mut tags = HashMap::new();
    while let Some(chunk) = open.pop() {
        match scope.client.read(op, DescribeElbTags { arns: chunk.clone() }).await {
            Ok(found) => tags.extend(found),
            Err(error) if is_absent(&error) && chunk.len() > 1 => {
                let (left, right) = chunk.split_at(chunk.len() / 2);
                open.extend([right.to_vec(), left.to_vec()]);
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(tags)
}

/// Tells whether AWS says that there is no such thing.
pub(super) fn is_absent(error: &AwsError) -> bool {
    matches!(error.code(), "LoadBalancerNotFound" | "TargetGroupNotFound" | "ListenerNotFound")
}
