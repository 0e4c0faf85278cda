//! Reads the observed state of a Service: as much as is needed, and no more.

pub(in crate::lb) mod access_denied;
pub(in crate::lb) mod cached;
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
            listing::{Listing, ListingCache, is_absent},
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

/// How much of the observed state is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lb) enum ReadScope {
    /// Everything that a change of the Service may need.
    Full,
    /// Enough to register and deregister targets: no attributes, no certificates, and no tags of
    /// listeners.
    Targets,
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
    pub(in crate::lb) fn with_response_cache(&self, responses: &ResponseCache) -> Self {
        Self {
            scope: Scope {
                client: self.scope.client.with_response_cache(responses),
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
        let owned = listing
            .load_balancers
            .iter()
            .find(|load_balancer| self.is_listed_load_balancer(&listing, load_balancer, query));
        let Some(load_balancer) = owned else {
            return self.observe(op, query, ReadScope::Full).await;
        };
        let mut groups = Vec::new();
        for group in &listing.target_groups {
            let arn = group.arn.as_str();
            let is_candidate = if group.load_balancers.is_empty() {
                self.is_listed_as_owned(&listing, arn, query)
            } else {
                group.load_balancers.contains(&load_balancer.arn)
            };
            if is_candidate {
                groups.push((group.clone(), listing.tags.get(arn).cloned()));
            }
        }
        let target_groups = self
            .owned_target_groups(op, Some(&load_balancer.arn), groups, query)
            .await?;
        let observed = ObservedLoadBalancer {
            tags: listing.tags.get(load_balancer.arn.as_str()).cloned(),
            listeners: self.listeners(op, &load_balancer.arn).await?,
            ..ObservedLoadBalancer::bare(load_balancer.clone())
        };
        Ok(ObservedState {
            load_balancer: Some(observed),
            target_groups,
            ..ObservedState::default()
        })
    }

    /// Reads the current state.
    pub(in crate::lb) async fn observe(
        &self,
        op: &Op,
        query: &LoadBalancerQuery<'_>,
        read_scope: ReadScope,
    ) -> Result<ObservedState, CloudError> {
        // First, read the objects: load balancer, target groups, listeners.
        let found = self.find(op, query).await?;
        let arn = found
            .as_ref()
            .map(|load_balancer| load_balancer.arn.clone());
        let groups = self.candidate_groups(op, query, arn.as_ref()).await?;
        let listeners = match &arn {
            Some(arn) => self.listeners(op, arn).await?,
            None => Vec::new(),
        };
        // Then read their tags, and keep only what the Service owns.
        let mut arns: Vec<Box<str>> = Vec::new();
        arns.extend(arn.iter().map(|arn| arn.as_str().into()));
        arns.extend(groups.iter().map(|group| group.arn.as_str().into()));
        if read_scope == ReadScope::Full {
            arns.extend(
                listeners
                    .iter()
                    .map(|listener| listener.listener.arn.as_str().into()),
            );
        }
        let mut tags = listing::list_tags(&self.scope, op, arns).await?;
        let mut groups_with_tags = Vec::new();
        for group in groups {
            let group_tags = tags.remove(group.arn.as_str());
            groups_with_tags.push((group, group_tags));
        }
        let target_groups = self
            .owned_target_groups(op, arn.as_ref(), groups_with_tags, query)
            .await?;
        let load_balancer = match found {
            Some(found) => Some(self.owned_load_balancer(query.owner, found, listeners, tags)?),
            None => None,
        };
        // Finally, read the details.
        let mut observed =
            ObservedState { load_balancer, target_groups, ..ObservedState::default() };
        if read_scope == ReadScope::Full {
            self.read_missing(op, query.owner, &mut observed).await?;
        }
        Ok(observed)
    }

    /// Returns the target groups that the load balancer uses, and those with the name prefix of the
    /// Service.
    async fn candidate_groups(
        &self,
        op: &Op,
        query: &LoadBalancerQuery<'_>,
        load_balancer: Option<&LoadBalancerArn>,
    ) -> Result<Vec<TargetGroup>, CloudError> {
        // A Service for which nothing was ever created has no target groups.
        if load_balancer.is_none() && !query.may_exist {
            return Ok(Vec::new());
        }
        let prefix = names::prefix(query.owner);
        let mut groups = listing::list_target_groups(&self.scope, op).await?;
        groups.retain(|group| {
            let is_attached = load_balancer.is_some_and(|arn| group.load_balancers.contains(arn));
            is_attached || group.name.starts_with(&prefix)
        });
        Ok(groups)
    }

    /// Checks that a load balancer belongs to the Service, and adds its listeners and all tags.
    fn owned_load_balancer(
        &self,
        owner: &ServiceKey,
        load_balancer: LoadBalancer,
        listeners: Vec<ObservedListener>,
        mut tags: HashMap<Box<str>, Tags>,
    ) -> Result<ObservedLoadBalancer, CloudError> {
        let own_tags = tags.remove(load_balancer.arn.as_str()).unwrap_or_default();
        self.check(owner, &load_balancer, &own_tags)?;
        let mut observed = ObservedLoadBalancer {
            tags: Some(own_tags),
            listeners,
            ..ObservedLoadBalancer::bare(load_balancer)
        };
        for listener in &mut observed.listeners {
            listener.tags = tags.remove(listener.listener.arn.as_str());
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
        let owned = listing
            .load_balancers
            .iter()
            .find(|load_balancer| self.is_listed_as_owned(&listing, &load_balancer.arn, query));
        Ok(owned.cloned())
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
            for listener in &mut load_balancer.listeners {
                self.read_missing_listener(op, owner, listener).await?;
            }
        }
        for group in &mut observed.target_groups {
            if group.attributes.is_none() {
                group.attributes = self.group_attributes(op, owner, &group.group.arn).await?;
            }
            if group.targets.is_none() {
                group.targets = self.targets(op, &group.group.arn).await?;
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
        if observed.certificates.is_some() {
            return Ok(());
        }
        if observed.listener.protocol != Some(ElbProtocol::Tls) {
            observed.certificates = Some(BTreeSet::new());
            return Ok(());
        }
        let request = DescribeListenerCertificates { arn: arn.clone() };
        let action = Action::DescribeListenerCertificates;
        let page = self
            .denials
            .read(op, owner, action, client.read(op, request))
            .await?;
        observed.certificates = page.map(|page| {
            page.items
                .into_iter()
                .filter(|certificate| !certificate.default)
                .map(|certificate| certificate.arn)
                .collect()
        });
        Ok(())
    }

    async fn read_missing_tags(
        &self,
        op: &Op,
        owner: &ServiceKey,
        observed: &mut ObservedState,
    ) -> Result<(), CloudError> {
        let Some(load_balancer) = &mut observed.load_balancer else {
            return Ok(());
        };
        let mut untagged: HashMap<Box<str>, &mut ObservedListener> = HashMap::new();
        for listener in &mut load_balancer.listeners {
            if listener.tags.is_none() {
                untagged.insert(listener.listener.arn.as_str().into(), listener);
            }
        }
        if untagged.is_empty() {
            return Ok(());
        }
        let read = listing::list_tags(&self.scope, op, untagged.keys().cloned().collect());
        let found = self
            .denials
            .read(op, owner, Action::DescribeElbTags, read)
            .await?;
        // Without permission to read them, tags are not changed.
        let Some(found) = found else { return Ok(()) };
        for (arn, tags) in found {
            if let Some(listener) = untagged.remove(&arn) {
                listener.tags = Some(tags);
            }
        }
        match untagged.into_keys().next() {
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

    /// Tells whether a listed load balancer belongs to the Service, by its name and tags.
    fn is_listed_load_balancer(
        &self,
        listing: &Listing,
        load_balancer: &LoadBalancer,
        query: &LoadBalancerQuery<'_>,
    ) -> bool {
        let Some(tags) = listing.tags.get(load_balancer.arn.as_str()) else {
            return false;
        };
        let found = if query.names.contains(&load_balancer.name) {
            FoundBy::by_name(&self.scope.cluster, query.owner, &load_balancer.name)
        } else {
            FoundBy::Listing
        };
        self.is_owned(query, tags, found)
    }

    /// Tells whether a listed object belongs to the Service, by its tags alone.
    fn is_listed_as_owned(
        &self,
        listing: &Listing,
        arn: &str,
        query: &LoadBalancerQuery<'_>,
    ) -> bool {
        let tags = listing.tags.get(arn);
        tags.is_some_and(|tags| self.is_owned(query, tags, FoundBy::Listing))
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
    let mut registered = RegisteredTargets::new();
    for TargetHealth { target, state, reason, .. } in health {
        if *state != *"draining" && *reason != *"Target.DeregistrationInProgress" {
            registered.insert((target.id.clone(), target.port), target);
        }
    }
    registered
}
