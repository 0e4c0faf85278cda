//! Reads the observed state of a Service: as much as is needed, and no more.

pub(in crate::lb) mod access_denied;
pub(in crate::lb) mod cached;
pub(in crate::lb) mod inventory;
pub(in crate::lb) mod listing;
pub(super) mod observed;
pub(super) mod vpc;
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::provider::{CloudError, ErrorKind, Op};
use tokio::time::Instant;

use crate::{
    api::{
        Action, AwsError, LoadBalancerArn, Tags, TargetGroupArn,
        elb::{
            DescribeListenerAttributes, DescribeListenerCertificates, DescribeListeners,
            DescribeLoadBalancerAttributes, DescribeLoadBalancers, DescribeTargetGroupAttributes,
            DescribeTargetGroups, DescribeTargetHealth, ElbProtocol, LoadBalancer, TargetGroup,
            TargetHealth,
        },
    },
    client::ResponseCache,
    clock::ago,
    lb::{
        model::{DesiredLoadBalancer, ServiceKey},
        names,
        observe::{
            access_denied::AccessDeniedCache,
            listing::{ListingCache, is_absent},
            observed::{
                ObservedListener, ObservedLoadBalancer, ObservedState, ObservedTargetGroup,
                RegisteredTargets,
            },
        },
        ownership::{FoundBy, check_owner},
    },
    scope::Scope,
};

/// Maximum age of a listing for Services that this process has not changed. A restart with hundreds
/// of Services takes minutes, because requests are rate-limited.
const MAX_LISTING_AGE: Duration = Duration::from_secs(300);

/// Maximum age of a listing that shows whether a load balancer exists under another name.
pub(in crate::lb) const RECENT_LISTING_AGE: Duration = Duration::from_secs(30);

/// Reads the observed state. Cheap to clone; all clones share listings and the access-denied cache.
#[derive(Clone)]
pub(in crate::lb) struct Observer {
    pub(in crate::lb) scope: Scope,
    pub(in crate::lb) listings: Arc<ListingCache>,
    denials: Arc<AccessDeniedCache>,
}

/// Identifies the Service whose objects are read.
pub(in crate::lb) struct LoadBalancerQuery<'a> {
    pub(in crate::lb) owner: &'a ServiceKey,
    /// Names that its load balancer may have, likeliest first.
    pub(in crate::lb) names: &'a [Box<str>],
    /// DNS name in the status of the Service.
    pub(in crate::lb) hostname: Option<&'a str>,
    /// Whether anything may exist at all: the finalizer is set before the first request.
    pub(in crate::lb) may_exist: bool,
    /// When this process last changed an object of the Service.
    pub(in crate::lb) changed_at: Option<Instant>,
}

impl Observer {
    pub(in crate::lb) fn new(scope: Scope) -> Self {
        Self {
            listings: Arc::new(ListingCache::new(scope.clone())),
            denials: Arc::default(),
            scope,
        }
    }

    /// Returns an observer that repeats no request whose response is in the cache.
    pub(in crate::lb) fn with_response_cache(&self, answers: &ResponseCache) -> Self {
        Self {
            scope: Scope {
                client: self.scope.client.with_response_cache(answers),
                ..self.scope.clone()
            },
            ..self.clone()
        }
    }

    /// Reads the observed state for the first sync of a Service. Load balancers, target groups and
    /// tags come from the shared listing; listeners and targets take requests of their own. If the
    /// listing shows no load balancer of the Service, everything is read as in
    /// [`observe`](Self::observe).
    pub(in crate::lb) async fn observe_from_listing(
        &self,
        op: &Op,
        query: &LoadBalancerQuery<'_>,
    ) -> Result<ObservedState, CloudError> {
        let oldest = query
            .changed_at
            .map_or(ago(MAX_LISTING_AGE), |changed| changed.max(ago(MAX_LISTING_AGE)));
        let listing = self.listings.newer_than(op, oldest).await?;
        let ours = |load_balancer: &&LoadBalancer| {
            let found = if query.names.contains(&load_balancer.name) {
                FoundBy::by_name(&self.scope.cluster, query.owner, &load_balancer.name)
            } else {
                FoundBy::Listing
            };
            listing
                .tags
                .get(load_balancer.arn.as_str())
                .is_some_and(|tags| self.is_owned(query, tags, found))
        };
        let mut load_balancers = listing.balancers.iter().filter(ours);
        let Some(balancer) = load_balancers.next() else {
            return self.observe(op, query, true).await;
        };
        let tags = listing.tags.get(balancer.arn.as_str()).cloned();
        let mine = |group: &&TargetGroup| match &*group.load_balancers {
            [] => listing
                .tags
                .get(group.arn.as_str())
                .is_some_and(|tags| self.is_owned(query, tags, FoundBy::Listing)),
            users => users.contains(&balancer.arn),
        };
        let groups = listing
            .groups
            .iter()
            .filter(mine)
            .map(|group| (group.clone(), listing.tags.get(group.arn.as_str()).cloned()))
            .collect();
        let groups = self
            .owned_target_groups(op, Some(&balancer.arn), groups, query)
            .await?;
        let listeners = self.listeners(op, &balancer.arn).await?;
        let balancer = ObservedLoadBalancer {
            tags,
            listeners,
            ..ObservedLoadBalancer::bare(balancer.clone())
        };
        Ok(ObservedState {
            load_balancer: Some(balancer),
            target_groups: groups,
            ..ObservedState::default()
        })
    }

    /// Reads the current state; with `all`, also attributes, certificates and tags of listeners.
    pub(in crate::lb) async fn observe(
        &self,
        op: &Op,
        query: &LoadBalancerQuery<'_>,
        all: bool,
    ) -> Result<ObservedState, CloudError> {
        // First, read the objects: load balancer, target groups, listeners.
        let found = self.find(op, query).await?;
        let arn = found
            .as_ref()
            .map(|load_balancer| load_balancer.arn.clone());
        // A Service for which nothing was ever created has no target groups.
        let listed = if found.is_some() || query.may_exist {
            listing::list_target_groups(&self.scope, op).await?
        } else {
            Vec::new()
        };
        let prefix = names::prefix(query.owner);
        let attached = |group: &TargetGroup| {
            arn.as_ref()
                .is_some_and(|arn| group.load_balancers.contains(arn))
        };
        let listed: Vec<_> = listed
            .into_iter()
            .filter(|group| attached(group) || group.name.starts_with(&prefix))
            .collect();
        let listeners = match &arn {
            Some(arn) => self.listeners(op, arn).await?,
            None => Vec::new(),
        };
        // Then read their tags, and keep only what the Service owns.
        let arns = arn
            .iter()
            .map(LoadBalancerArn::as_str)
            .chain(listed.iter().map(|group| group.arn.as_str()));
        let of_listeners = listeners
            .iter()
            .filter(|_| all)
            .map(|seen| seen.listener.arn.as_str());
        let mut tags =
            listing::list_tags(&self.scope, op, arns.chain(of_listeners).map(Into::into).collect())
                .await?;
        let groups = listed.into_iter().map(|group| {
            let tags = tags.remove(group.arn.as_str());
            (group, tags)
        });
        let groups = self
            .owned_target_groups(op, arn.as_ref(), groups.collect(), query)
            .await?;
        let balancer = match found {
            None => None,
            Some(balancer) => {
                let of_balancer = tags.remove(balancer.arn.as_str()).unwrap_or_default();
                self.check(query.owner, &balancer, &of_balancer)?;
                Some(ObservedLoadBalancer {
                    tags: Some(of_balancer),
                    listeners,
                    ..ObservedLoadBalancer::bare(balancer)
                })
            }
        };
        // Finally, put it together, and read the details if they are requested.
        let mut observed = ObservedState {
            load_balancer: balancer,
            target_groups: groups,
            ..ObservedState::default()
        };
        for seen in observed
            .load_balancer
            .iter_mut()
            .flat_map(|balancer| &mut balancer.listeners)
        {
            seen.tags = tags.remove(seen.listener.arn.as_str());
        }
        if all {
            self.read_missing(op, query.owner, &mut observed).await?;
        }
        Ok(observed)
    }

    /// Finds the load balancer: by name or, if one may exist, among all load balancers by its tags.
    async fn find(
        &self,
        op: &Op,
        query: &LoadBalancerQuery<'_>,
    ) -> Result<Option<LoadBalancer>, CloudError> {
        for name in query.names {
            if let Some(load_balancer) = self.get_by_name(op, name).await? {
                return Ok(Some(load_balancer));
            }
        }
        if query.hostname.is_none() && !query.may_exist {
            return Ok(None);
        }
        // It may have another name than a new one would get.
        let oldest = query.changed_at.unwrap_or_else(|| ago(RECENT_LISTING_AGE));
        let listing = self.listings.newer_than(op, oldest).await?;
        let ours = |balancer: &&LoadBalancer| {
            listing
                .tags
                .get(balancer.arn.as_str())
                .is_some_and(|tags| self.is_owned(query, tags, FoundBy::Listing))
        };
        Ok(listing.balancers.iter().find(ours).cloned())
    }

    /// Finds a load balancer by name. AWS answers an unknown name with an error.
    pub(in crate::lb) async fn get_by_name(
        &self,
        op: &Op,
        name: &str,
    ) -> Result<Option<LoadBalancer>, AwsError> {
        let request =
            DescribeLoadBalancers { names: vec![name.into()], ..DescribeLoadBalancers::default() };
        match self.scope.client.read(op, request).await {
            Ok(page) => Ok(page
                .items
                .into_iter()
                .find(|load_balancer| &*load_balancer.name == name)),
            Err(error) if error.has_code("LoadBalancerNotFound") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Finds a target group by its generated name, with tags and targets. Fails if it belongs to
    /// somebody else.
    pub(in crate::lb) async fn target_group_by_name(
        &self,
        op: &Op,
        owner: &ServiceKey,
        name: &str,
    ) -> Result<Option<ObservedTargetGroup>, CloudError> {
        let request =
            DescribeTargetGroups { names: vec![name.into()], ..DescribeTargetGroups::default() };
        let group = match self.scope.client.read(op, request).await {
            Ok(page) => page.items.into_iter().find(|group| &*group.name == name),
            Err(error) if is_absent(&error) => None,
            Err(error) => return Err(error.into()),
        };
        let Some(group) = group else { return Ok(None) };
        let tags = listing::list_tags(&self.scope, op, vec![group.arn.as_str().into()]).await?;
        let tags = tags.into_values().next().unwrap_or_default();
        check_owner(&self.scope.cluster, owner, &tags, FoundBy::GeneratedName)
            .map_err(|why| name_taken("target group", name, &why))?;
        let targets = self.targets(op, &group.arn).await?;
        let attributes = self.group_attributes(op, owner, &group.arn).await?;
        Ok(Some(ObservedTargetGroup { group, tags: Some(tags), attributes, targets }))
    }

    /// Reads what is missing in the observed state: attributes, certificates, tags and targets.
    pub(in crate::lb) async fn read_missing(
        &self,
        op: &Op,
        owner: &ServiceKey,
        observed: &mut ObservedState,
    ) -> Result<(), CloudError> {
        let client = &self.scope.client;
        if let Some(load_balancer) = &mut observed.load_balancer {
            if load_balancer.attributes.is_none() {
                let request =
                    DescribeLoadBalancerAttributes { arn: load_balancer.load_balancer.arn.clone() };
                let action = Action::DescribeLoadBalancerAttributes;
                load_balancer.attributes = self
                    .denials
                    .read(op, owner, action, client.read(op, request))
                    .await?;
            }
            for seen in &mut load_balancer.listeners {
                self.read_missing_listener(op, owner, seen).await?;
            }
        }
        for seen in &mut observed.target_groups {
            if seen.attributes.is_none() {
                seen.attributes = self.group_attributes(op, owner, &seen.group.arn).await?;
            }
            if seen.targets.is_none() {
                seen.targets = self.targets(op, &seen.group.arn).await?;
            }
        }
        self.read_missing_tags(op, owner, observed).await
    }

    async fn read_missing_listener(
        &self,
        op: &Op,
        owner: &ServiceKey,
        observed: &mut ObservedListener,
    ) -> Result<(), CloudError> {
        let client = &self.scope.client;
        let arn = &observed.listener.arn;
        if observed.attributes.is_none() {
            let request = DescribeListenerAttributes { arn: arn.clone() };
            let action = Action::DescribeListenerAttributes;
            observed.attributes = self
                .denials
                .read(op, owner, action, client.read(op, request))
                .await?;
        }
        if observed.certificates.is_none() {
            let is_tls = observed.listener.protocol == Some(ElbProtocol::Tls);
            observed.certificates = if is_tls {
                let request = DescribeListenerCertificates { arn: arn.clone() };
                let action = Action::DescribeListenerCertificates;
                let found = self
                    .denials
                    .read(op, owner, action, client.read(op, request))
                    .await?;
                found.map(|page| {
                    page.items
                        .into_iter()
                        .filter(|c| !c.default)
                        .map(|c| c.arn)
                        .collect()
                })
            } else {
                Some(BTreeSet::new())
            };
        }
        Ok(())
    }

    async fn read_missing_tags(
        &self,
        op: &Op,
        owner: &ServiceKey,
        observed: &mut ObservedState,
    ) -> Result<(), CloudError> {
        let Some(balancer) = &mut observed.load_balancer else {
            return Ok(());
        };
        let unread = balancer
            .listeners
            .iter_mut()
            .filter(|seen| seen.tags.is_none());
        let mut unread: HashMap<Box<str>, &mut ObservedListener> = unread
            .map(|seen| (seen.listener.arn.as_str().into(), seen))
            .collect();
        if unread.is_empty() {
            return Ok(());
        }
        let read = listing::list_tags(&self.scope, op, unread.keys().cloned().collect());
        let found = self
            .denials
            .read(op, owner, Action::DescribeElbTags, read)
            .await?;
        // Without permission to read them, tags are not changed.
        let Some(found) = found else { return Ok(()) };
        for (arn, tags) in found {
            if let Some(seen) = unread.remove(&arn) {
                seen.tags = Some(tags);
            }
        }
        match unread.into_keys().next() {
            // It was listed a moment ago: either this response is older, or the listener was
            // deleted since.
            Some(arn) => {
                Err(CloudError::transient(format!("tags of listener {arn} do not show yet")))
            }
            None => Ok(()),
        }
    }

    async fn group_attributes(
        &self,
        op: &Op,
        owner: &ServiceKey,
        arn: &TargetGroupArn,
    ) -> Result<Option<crate::api::elb::Attributes>, CloudError> {
        let read = self
            .scope
            .client
            .read(op, DescribeTargetGroupAttributes { arn: arn.clone() });
        self.denials
            .read(op, owner, Action::DescribeTargetGroupAttributes, read)
            .await
    }

    /// Reads the listeners of a load balancer.
    pub(in crate::lb) async fn listeners(
        &self,
        op: &Op,
        arn: &LoadBalancerArn,
    ) -> Result<Vec<ObservedListener>, AwsError> {
        let request = DescribeListeners { load_balancer: arn.clone(), token: None };
        let listeners = self
            .scope
            .client
            .read_all(op, request, |r, token| r.token = Some(token))
            .await?;
        Ok(listeners.into_iter().map(ObservedListener::bare).collect())
    }

    /// Keeps the target groups that belong to the Service, and reads their targets. A group that
    /// only the Service's load balancer uses needs no tag of the Service if the cluster owns it; an
    /// unused group must have the tags of cluster and Service.
    async fn owned_target_groups(
        &self,
        op: &Op,
        load_balancer: Option<&LoadBalancerArn>,
        listed: Vec<(TargetGroup, Option<Tags>)>,
        query: &LoadBalancerQuery<'_>,
    ) -> Result<Vec<ObservedTargetGroup>, CloudError> {
        let mut groups = Vec::new();
        for (group, tags) in listed {
            // A group that serves another load balancer is in use by somebody else.
            if group
                .load_balancers
                .iter()
                .any(|arn| Some(arn) != load_balancer)
            {
                continue;
            }
            let found = if group.load_balancers.is_empty() {
                FoundBy::Listing
            } else {
                FoundBy::GeneratedName
            };
            let Some(tags) = tags.filter(|tags| self.is_owned(query, tags, found)) else {
                continue;
            };
            let Some(targets) = self.targets(op, &group.arn).await? else {
                // One of the two responses is outdated. Treating the group as deleted could leave
                // it behind.
                return Err(CloudError::transient(format!(
                    "target group {} is listed and not found",
                    group.name
                )));
            };
            groups.push(ObservedTargetGroup {
                group,
                tags: Some(tags),
                attributes: None,
                targets: Some(targets),
            });
        }
        Ok(groups)
    }

    /// Reads the targets of a group; `None` if the group does not exist.
    pub(in crate::lb) async fn targets(
        &self,
        op: &Op,
        arn: &TargetGroupArn,
    ) -> Result<Option<RegisteredTargets>, AwsError> {
        match self
            .scope
            .client
            .read(op, DescribeTargetHealth { arn: arn.clone() })
            .await
        {
            Ok(health) => Ok(Some(without_draining(health))),
            Err(error) if error.has_code("TargetGroupNotFound") => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_owned(&self, query: &LoadBalancerQuery<'_>, tags: &Tags, found: FoundBy) -> bool {
        check_owner(&self.scope.cluster, query.owner, tags, found).is_ok()
    }

    fn check(
        &self,
        owner: &ServiceKey,
        load_balancer: &LoadBalancer,
        tags: &Tags,
    ) -> Result<(), CloudError> {
        let name = &load_balancer.name;
        if &*load_balancer.kind != "network" {
            return Err(name_taken(
                "load balancer",
                name,
                &format!("it is of type {}", load_balancer.kind),
            ));
        }
        if load_balancer
            .vpc
            .as_ref()
            .is_some_and(|vpc| *vpc != self.scope.vpc)
        {
            return Err(name_taken("load balancer", name, "it is in another VPC"));
        }
        let found = FoundBy::by_name(&self.scope.cluster, owner, name);
        check_owner(&self.scope.cluster, owner, tags, found)
            .map_err(|why| name_taken("load balancer", name, &why))
    }
}

/// Returns the names that a Service's load balancer may have.
pub(in crate::lb) fn names_of(desired: &DesiredLoadBalancer, by_uid: &str) -> Vec<Box<str>> {
    let mut names = vec![desired.name.clone()];
    if *desired.name != *by_uid {
        names.push(by_uid.into());
    }
    names
}

/// The error for a name that is taken: only the user can resolve it.
pub(in crate::lb) fn name_taken(kind: &str, name: &str, why: &str) -> CloudError {
    CloudError::new(
        ErrorKind::InvalidInput,
        format!("{kind} {name} exists already and is not this Service's: {why}"),
    )
    .with_reason("LoadBalancerNotOwned")
}

/// A draining target counts as absent: it is registered again if it is desired.
fn without_draining(health: Vec<TargetHealth>) -> RegisteredTargets {
    let living = health.into_iter().filter(|health| {
        &*health.state != "draining" && &*health.reason != "Target.DeregistrationInProgress"
    });
    living
        .map(|health| ((health.target.id.clone(), health.target.port), health.target))
        .collect()
}
