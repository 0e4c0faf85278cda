//! Reads the observed state of a Service, with as few requests as possible.

pub(in crate::lb) mod access_denied;
mod capacity;
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
            Attributes, DescribeListenerAttributes, DescribeListenerCertificates,
            DescribeListeners, DescribeLoadBalancerAttributes, DescribeLoadBalancers,
            DescribeTargetGroupAttributes, DescribeTargetGroups, DescribeTargetHealth, ElbProtocol,
            LoadBalancer, TargetGroup, TargetHealth,
        },
    },
    client::{ResponseCache, reason},
    clock::ago,
    lb::{
        model::{DesiredLoadBalancer, ServiceKey},
        names,
        observe::{
            access_denied::{AccessDeniedCache, is_denied_by_policy},
            listing::{Listing, ListingCache, is_not_found},
            observed::{
                ObservedListener, ObservedLoadBalancer, ObservedState, ObservedTargetGroup,
                RegisteredTargets,
            },
        },
        ownership::{FoundBy, check_owner, check_owner_by_name, handed_over, is_let_go},
    },
    ownership_tags::RETAINED_TAG,
    scope::Scope,
};

/// Maximum age of a listing for Services that this process has not changed. The first sync of
/// hundreds of Services after a restart takes minutes, because requests are rate-limited.
const MAX_LISTING_AGE: Duration = Duration::from_secs(300);

/// Maximum age of a listing in which a load balancer with another name is searched.
pub(in crate::lb) const RECENT_LISTING_AGE: Duration = Duration::from_secs(30);

/// Reads the observed state. Cheap to clone: all clones share the listings and the cache of denied
/// requests.
#[derive(Clone)]
pub(in crate::lb) struct Observer {
    pub(in crate::lb) scope: Scope,
    pub(in crate::lb) listings: Arc<ListingCache>,
    denials: Arc<AccessDeniedCache>,
}

/// Identifies the Service whose objects are read.
pub(in crate::lb) struct LoadBalancerQuery<'a> {
    pub(in crate::lb) owner: &'a ServiceKey,
    /// Names that the load balancer may have, likeliest first.
    pub(in crate::lb) names: &'a [Box<str>],
    /// The host name in the status of the Service.
    pub(in crate::lb) hostname: Option<&'a str>,
    /// False if nothing can exist, because the Service has no finalizer yet. The finalizer is added
    /// before the first request.
    pub(in crate::lb) may_exist: bool,
    /// The time at which this process last changed an object of the Service.
    pub(in crate::lb) changed_at: Option<Instant>,
    /// The ARN of the load balancer that the Service adopts. Until that is done, it is not found.
    pub(in crate::lb) adopts: Option<&'a str>,
}

/// A target group that was found by its generated name.
pub(in crate::lb) enum NamedTargetGroup {
    /// The Service's own.
    Owned(Box<ObservedTargetGroup>),
    /// One that is no longer the Service's, for this reason: it was kept with its load balancer, or
    /// another Service adopted it.
    HandedOver(String),
    /// None.
    Absent,
}

/// The amount of state to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lb) enum ReadScope {
    /// Everything that a change of the Service may need.
    Full,
    /// Only what registration and deregistration of targets need: no attributes, no certificates
    /// and no tags of listeners.
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

    /// Returns an observer that takes responses from the cache instead of repeating requests.
    pub(in crate::lb) fn with_response_cache(&self, responses: &ResponseCache) -> Self {
        Self {
            scope: Scope {
                client: self.scope.client.with_response_cache(responses),
                ..self.scope.clone()
            },
            ..self.clone()
        }
    }

    /// Reads the observed state for the first sync of a Service. Takes load balancers, target
    /// groups and tags from the shared listing, and requests only listeners and targets. Without a
    /// load balancer of the Service in the listing, reads everything as [`observe`](Self::observe)
    /// does.
    pub(in crate::lb) async fn observe_from_listing(
        &self,
        op: &Op,
        query: &LoadBalancerQuery<'_>,
    ) -> Result<ObservedState, CloudError> {
        let oldest = query
            .changed_at
            .map_or(ago(MAX_LISTING_AGE), |changed| changed.max(ago(MAX_LISTING_AGE)));
        let listing = match self.listings.newer_than(op, oldest).await {
            Err(error) if are_tags_denied(&error) => {
                return self.observe(op, query, ReadScope::Full).await;
            }
            result => result?,
        };
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
        let reserved_group_names =
            reserved_names(query.owner, &listing.target_groups, |arn| listing.tags.get(arn));
        let target_groups = self
            .keep_owned_groups(op, Some(&load_balancer.arn), groups, query)
            .await?;
        let observed = ObservedLoadBalancer {
            tags: listing.tags.get(load_balancer.arn.as_str()).cloned(),
            listeners: self.read_listeners(op, &load_balancer.arn).await?,
            ..ObservedLoadBalancer::bare(load_balancer.clone())
        };
        Ok(ObservedState {
            load_balancer: Some(observed),
            target_groups,
            reserved_group_names,
            ..ObservedState::default()
        })
    }

    /// Reads the current state from AWS.
    pub(in crate::lb) async fn observe(
        &self,
        op: &Op,
        query: &LoadBalancerQuery<'_>,
        read_scope: ReadScope,
    ) -> Result<ObservedState, CloudError> {
        // Read the objects that may belong to the Service.
        let found = self.find_load_balancer(op, query).await?;
        let arn = found
            .as_ref()
            .map(|load_balancer| load_balancer.arn.clone());
        let groups = self.list_candidate_groups(op, query, arn.as_ref()).await?;
        let listeners = match &arn {
            Some(arn) => self.read_listeners(op, arn).await?,
            None => Vec::new(),
        };
        // Read the tags of all these objects together, and drop objects of other owners.
        let mut arns: Vec<Box<str>> = Vec::new();
        arns.extend(arn.iter().map(|arn| arn.as_str().into()));
        arns.extend(groups.iter().map(|group| group.arn.as_str().into()));
        if read_scope == ReadScope::Full {
            arns.extend(
                listeners
                    .iter()
                    .map(|listener| listener.resource.arn.as_str().into()),
            );
        }
        let tags = self.read_tags(op, query.owner, arns).await?;
        let reserved_group_names = match &tags {
            Some(tags) => reserved_names(query.owner, &groups, |arn| tags.get(arn)),
            None => BTreeSet::new(),
        };
        let target_groups = match &tags {
            Some(tags) => {
                let mut listed = Vec::new();
                for group in groups {
                    let group_tags = tags.get(group.arn.as_str()).cloned();
                    listed.push((group, group_tags));
                }
                self.keep_owned_groups(op, arn.as_ref(), listed, query)
                    .await?
            }
            None => {
                self.keep_attached_groups(op, query.owner, arn.as_ref(), groups)
                    .await?
            }
        };
        let load_balancer = match found {
            Some(found) => {
                let is_adopted = query.adopts == Some(found.arn.as_str());
                match self.owned_load_balancer(query.owner, found, listeners, tags) {
                    Ok(owned) => Some(owned),
                    // The caller reads it again, and rejects it if it cannot be adopted.
                    Err(_) if is_adopted => None,
                    Err(error) => return Err(error),
                }
            }
            None => None,
        };
        // Read attributes and certificates, which each take a request.
        let mut observed = ObservedState {
            load_balancer,
            target_groups,
            reserved_group_names,
            ..ObservedState::default()
        };
        if read_scope == ReadScope::Full {
            self.read_missing(op, query.owner, &mut observed).await?;
        }
        Ok(observed)
    }

    /// Lists the target groups that the load balancer uses, and those with the name prefix of the
    /// Service.
    async fn list_candidate_groups(
        &self,
        op: &Op,
        query: &LoadBalancerQuery<'_>,
        load_balancer: Option<&LoadBalancerArn>,
    ) -> Result<Vec<TargetGroup>, CloudError> {
        // Nothing was ever created for the Service, so that it has no target groups either.
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

    /// Returns the reads that IAM denies.
    pub(in crate::lb) fn denials(&self) -> &AccessDeniedCache {
        &self.denials
    }

    /// Returns true if the permission to read tags is known to be missing.
    pub(in crate::lb) fn are_tags_unreadable(&self, op: &Op, owner: &ServiceKey) -> bool {
        self.denials.is_denied(op, owner, Action::DescribeElbTags)
    }

    /// Reads the tags of objects; `None` without the permission for that. Upstream does not need
    /// it, so that roles made for upstream may lack it.
    async fn read_tags(
        &self,
        op: &Op,
        owner: &ServiceKey,
        arns: Vec<Box<str>>,
    ) -> Result<Option<HashMap<Box<str>, Tags>>, CloudError> {
        if arns.is_empty() {
            return Ok(Some(HashMap::new()));
        }
        let read = listing::list_tags(&self.scope, op, arns);
        self.denials
            .read(op, owner, Action::DescribeElbTags, read)
            .await
    }

    /// Checks that a load balancer belongs to the Service, and adds its listeners and all tags,
    /// which are `None` if they cannot be read.
    fn owned_load_balancer(
        &self,
        owner: &ServiceKey,
        load_balancer: LoadBalancer,
        listeners: Vec<ObservedListener>,
        tags: Option<HashMap<Box<str>, Tags>>,
    ) -> Result<ObservedLoadBalancer, CloudError> {
        let Some(mut tags) = tags else {
            self.check_load_balancer(owner, &load_balancer, None)?;
            return Ok(ObservedLoadBalancer {
                listeners,
                ..ObservedLoadBalancer::bare(load_balancer)
            });
        };
        let own_tags = tags.remove(load_balancer.arn.as_str()).unwrap_or_default();
        self.check_load_balancer(owner, &load_balancer, Some(&own_tags))?;
        let mut observed = ObservedLoadBalancer {
            tags: Some(own_tags),
            listeners,
            ..ObservedLoadBalancer::bare(load_balancer)
        };
        for listener in &mut observed.listeners {
            listener.tags = tags.remove(listener.resource.arn.as_str());
        }
        Ok(observed)
    }

    /// Finds the load balancer by name or, if one may exist, by its tags among all load balancers.
    async fn find_load_balancer(
        &self,
        op: &Op,
        query: &LoadBalancerQuery<'_>,
    ) -> Result<Option<LoadBalancer>, CloudError> {
        // One to be adopted may have such a name. It hides none of the Service's own.
        let mut to_adopt = None;
        for name in query.names {
            match self.get_by_name(op, name).await? {
                Some(found) if query.adopts == Some(found.arn.as_str()) => to_adopt = Some(found),
                Some(found) => return Ok(Some(found)),
                None => {}
            }
        }
        if query.hostname.is_none() && !query.may_exist {
            return Ok(to_adopt);
        }
        // An existing load balancer may have another name than a new one would get.
        let oldest = query.changed_at.unwrap_or_else(|| ago(RECENT_LISTING_AGE));
        let listing = match self.listings.newer_than(op, oldest).await {
            // Without tags, a load balancer with another name cannot be told from somebody else's.
            // There is none if the Service neither requests nor shows one.
            Err(error) if are_tags_denied(&error) => {
                let computed_name = names::load_balancer(&query.owner.uid);
                let may_have_another = query.hostname.is_some() || query.adopts.is_some();
                return if !may_have_another && query.names == [computed_name] {
                    Ok(None)
                } else {
                    Err(error.into())
                };
            }
            result => result?,
        };
        let owned = listing
            .load_balancers
            .iter()
            .find(|load_balancer| self.is_listed_as_owned(&listing, &load_balancer.arn, query));
        Ok(owned.cloned().or(to_adopt))
    }

    /// Reads a load balancer by name; `None` if it does not exist.
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

    /// Reads a target group by its generated name, with all details.
    ///
    /// # Errors
    /// The target group belongs to another Service or cluster, and errors of AWS.
    pub(in crate::lb) async fn target_group_by_name(
        &self,
        op: &Op,
        owner: &ServiceKey,
        name: &str,
    ) -> Result<NamedTargetGroup, CloudError> {
        let request =
            DescribeTargetGroups { names: vec![name.into()], ..DescribeTargetGroups::default() };
        let group = match self.scope.client.read(op, request).await {
            Ok(page) => page.items.into_iter().find(|group| &*group.name == name),
            Err(error) if is_not_found(&error) => None,
            Err(error) => return Err(error.into()),
        };
        let Some(group) = group else {
            return Ok(NamedTargetGroup::Absent);
        };
        let tags = self
            .read_tags(op, owner, vec![group.arn.as_str().into()])
            .await?
            .map(|tags| tags.into_values().next().unwrap_or_default());
        match &tags {
            Some(tags) => {
                let check = check_owner(&self.scope.cluster, owner, tags, FoundBy::GeneratedName);
                match check {
                    Ok(()) => {}
                    Err(reason) if is_handed_over(owner, tags) => {
                        return Ok(NamedTargetGroup::HandedOver(reason));
                    }
                    Err(reason) => return Err(name_taken("target group", name, &reason)),
                }
            }
            // The name has a hash of cluster and Service.
            None if group.load_balancers.is_empty() => {}
            None => return Err(owner_unknown("target group", name, "a load balancer uses it")),
        }
        let targets = self.read_targets(op, &group.arn).await?;
        let attributes = self.read_group_attributes(op, owner, &group.arn).await?;
        let observed = ObservedTargetGroup { resource: group, tags, attributes, targets };
        Ok(NamedTargetGroup::Owned(Box::new(observed)))
    }

    /// Reads a load balancer by its ARN, whoever owns it, with its listeners, the marked target
    /// groups on it, and the tags of all of them; `None` if it does not exist.
    ///
    /// # Errors
    /// Tags that are not shown, and errors of AWS.
    pub(in crate::lb) async fn observe_kept(
        &self,
        op: &Op,
        arn: &LoadBalancerArn,
    ) -> Result<Option<ObservedState>, CloudError> {
        let request =
            DescribeLoadBalancers { arns: vec![arn.clone()], ..DescribeLoadBalancers::default() };
        let found = match self.scope.client.read(op, request).await {
            Ok(page) => page.items.into_iter().find(|found| found.arn == *arn),
            Err(error) if error.has_code("LoadBalancerNotFound") => None,
            Err(error) => return Err(error.into()),
        };
        let Some(resource) = found else {
            return Ok(None);
        };
        let listeners = self.read_listeners(op, arn).await?;
        let mut groups = listing::list_target_groups(&self.scope, op).await?;
        groups.retain(|group| group.load_balancers.contains(arn));
        // Whose they are, and whether they were kept, only the tags say.
        let mut arns: Vec<Box<str>> = vec![arn.as_str().into()];
        arns.extend(groups.iter().map(|group| group.arn.as_str().into()));
        let mut tags = listing::list_tags(&self.scope, op, arns).await?;
        let mut tags_of = |arn: &str| {
            let found = tags.remove(arn);
            found.ok_or_else(|| {
                CloudError::transient(format!("AWS does not show the tags of {arn}"))
            })
        };
        let load_balancer = ObservedLoadBalancer {
            tags: Some(tags_of(arn)?),
            listeners,
            ..ObservedLoadBalancer::bare(resource)
        };
        let mut target_groups = Vec::new();
        for group in groups {
            let tags = tags_of(&group.arn)?;
            if tags.contains_key(RETAINED_TAG) {
                target_groups.push(self.read_group(op, group, Some(tags)).await?);
            }
        }
        Ok(Some(ObservedState {
            load_balancer: Some(load_balancer),
            target_groups,
            ..ObservedState::default()
        }))
    }

    /// Reads the parts that the observed state lacks: attributes, certificates, tags and targets.
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
                    DescribeLoadBalancerAttributes { arn: load_balancer.resource.arn.clone() };
                let action = Action::DescribeLoadBalancerAttributes;
                load_balancer.attributes = self
                    .denials
                    .read(op, owner, action, client.read(op, request))
                    .await?;
            }
            for listener in &mut load_balancer.listeners {
                self.read_missing_details(op, owner, listener).await?;
            }
        }
        for group in &mut observed.target_groups {
            if group.attributes.is_none() {
                group.attributes = self
                    .read_group_attributes(op, owner, &group.resource.arn)
                    .await?;
            }
            if group.targets.is_none() {
                group.targets = self.read_targets(op, &group.resource.arn).await?;
            }
        }
        self.read_missing_tags(op, owner, observed).await
    }

    /// Reads the attributes and certificates that a listener lacks.
    async fn read_missing_details(
        &self,
        op: &Op,
        owner: &ServiceKey,
        listener: &mut ObservedListener,
    ) -> Result<(), CloudError> {
        let client = &self.scope.client;
        let arn = &listener.resource.arn;
        if listener.attributes.is_none() {
            let request = DescribeListenerAttributes { arn: arn.clone() };
            let action = Action::DescribeListenerAttributes;
            listener.attributes = self
                .denials
                .read(op, owner, action, client.read(op, request))
                .await?;
        }
        if listener.certificates.is_some() {
            return Ok(());
        }
        // Only TLS listeners have certificates.
        if listener.resource.protocol != Some(ElbProtocol::Tls) {
            listener.certificates = Some(BTreeSet::new());
            return Ok(());
        }
        let request = DescribeListenerCertificates { arn: arn.clone() };
        let action = Action::DescribeListenerCertificates;
        let page = self
            .denials
            .read(op, owner, action, client.read(op, request))
            .await?;
        listener.certificates = page.map(|page| {
            page.items
                .into_iter()
                .filter(|certificate| !certificate.default)
                .map(|certificate| certificate.arn)
                .collect()
        });
        Ok(())
    }

    /// Reads the tags of the listeners that lack them.
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
                untagged.insert(listener.resource.arn.as_str().into(), listener);
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
        let Some(found) = found else {
            return Ok(());
        };
        for (arn, tags) in found {
            if let Some(listener) = untagged.remove(&arn) {
                listener.tags = Some(tags);
            }
        }
        match untagged.into_keys().next() {
            // The listener was listed a moment ago. Either this response is older, or the listener
            // was deleted since.
            Some(arn) => {
                Err(CloudError::transient(format!("tags of listener {arn} are not visible yet")))
            }
            None => Ok(()),
        }
    }

    async fn read_group_attributes(
        &self,
        op: &Op,
        owner: &ServiceKey,
        arn: &TargetGroupArn,
    ) -> Result<Option<Attributes>, CloudError> {
        let read = self
            .scope
            .client
            .read(op, DescribeTargetGroupAttributes { arn: arn.clone() });
        self.denials
            .read(op, owner, Action::DescribeTargetGroupAttributes, read)
            .await
    }

    /// Reads the listeners of a load balancer, without their details.
    pub(in crate::lb) async fn read_listeners(
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
    /// the Service's load balancer uses needs no tag of the Service if the cluster owns it. An
    /// unused group must have the tags of both cluster and Service.
    async fn keep_owned_groups(
        &self,
        op: &Op,
        load_balancer: Option<&LoadBalancerArn>,
        listed: Vec<(TargetGroup, Option<Tags>)>,
        query: &LoadBalancerQuery<'_>,
    ) -> Result<Vec<ObservedTargetGroup>, CloudError> {
        let mut groups = Vec::new();
        for (group, tags) in listed {
            let serves_another = group
                .load_balancers
                .iter()
                .any(|arn| Some(arn) != load_balancer);
            if serves_another {
                continue;
            }
            let found_by = if group.load_balancers.is_empty() {
                FoundBy::Listing
            } else {
                FoundBy::GeneratedName
            };
            let Some(tags) = tags.filter(|tags| self.is_owned(query, tags, found_by)) else {
                continue;
            };
            groups.push(self.read_group(op, group, Some(tags)).await?);
        }
        Ok(groups)
    }

    /// Keeps the target groups that only the Service's load balancer uses and that have the
    /// Service's name prefix, and reads their targets. Their tags cannot be read, so that unused
    /// groups are left alone.
    async fn keep_attached_groups(
        &self,
        op: &Op,
        owner: &ServiceKey,
        load_balancer: Option<&LoadBalancerArn>,
        listed: Vec<TargetGroup>,
    ) -> Result<Vec<ObservedTargetGroup>, CloudError> {
        let mut groups = Vec::new();
        let Some(load_balancer) = load_balancer else {
            return Ok(groups);
        };
        let prefix = names::prefix(owner);
        for group in listed {
            let is_attached = *group.load_balancers == [load_balancer.clone()];
            if is_attached && group.name.starts_with(&prefix) {
                groups.push(self.read_group(op, group, None).await?);
            }
        }
        Ok(groups)
    }

    /// Reads the targets of a listed target group.
    pub(in crate::lb) async fn read_group(
        &self,
        op: &Op,
        group: TargetGroup,
        tags: Option<Tags>,
    ) -> Result<ObservedTargetGroup, CloudError> {
        let Some(targets) = self.read_targets(op, &group.arn).await? else {
            // One of the two responses is outdated. If the group were treated as deleted, it could
            // be left behind.
            return Err(CloudError::transient(format!(
                "target group {} is listed but was not found",
                group.name
            )));
        };
        Ok(ObservedTargetGroup {
            resource: group,
            tags,
            attributes: None,
            targets: Some(targets),
        })
    }

    /// Reads the targets of a group; `None` if the group does not exist.
    async fn read_targets(
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

    /// Returns true if a listed load balancer belongs to the Service, by its name and tags.
    fn is_listed_load_balancer(
        &self,
        listing: &Listing,
        load_balancer: &LoadBalancer,
        query: &LoadBalancerQuery<'_>,
    ) -> bool {
        let Some(tags) = listing.tags.get(load_balancer.arn.as_str()) else {
            return false;
        };
        let found_by = if query.names.contains(&load_balancer.name) {
            FoundBy::by_name(&self.scope.cluster, query.owner, &load_balancer.name)
        } else {
            FoundBy::Listing
        };
        self.is_owned(query, tags, found_by)
    }

    /// Returns true if a listed object belongs to the Service, by its tags alone.
    fn is_listed_as_owned(
        &self,
        listing: &Listing,
        arn: &str,
        query: &LoadBalancerQuery<'_>,
    ) -> bool {
        let tags = listing.tags.get(arn);
        tags.is_some_and(|tags| self.is_owned(query, tags, FoundBy::Listing))
    }

    fn is_owned(&self, query: &LoadBalancerQuery<'_>, tags: &Tags, found_by: FoundBy) -> bool {
        check_owner(&self.scope.cluster, query.owner, tags, found_by).is_ok()
    }

    /// Checks that the load balancer is a network load balancer of this VPC and Service. The tags
    /// are `None` if they cannot be read.
    fn check_load_balancer(
        &self,
        owner: &ServiceKey,
        load_balancer: &LoadBalancer,
        tags: Option<&Tags>,
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
        let found_by = FoundBy::by_name(&self.scope.cluster, owner, name);
        match tags {
            Some(tags) => check_owner(&self.scope.cluster, owner, tags, found_by)
                .map_err(|reason| name_taken("load balancer", name, &reason)),
            None => check_owner_by_name(owner, name)
                .map_err(|reason| owner_unknown("load balancer", name, &reason)),
        }
    }
}

/// Returns true if an object is no longer the Service's: it was let go, or another Service adopted it.
fn is_handed_over(owner: &ServiceKey, tags: &Tags) -> bool {
    handed_over(owner, tags).is_some() || is_let_go(owner, tags)
}

/// Returns the names of target groups that look like the Service's and were handed over.
fn reserved_names<'a>(
    owner: &ServiceKey,
    groups: &[TargetGroup],
    tags_of: impl Fn(&str) -> Option<&'a Tags>,
) -> BTreeSet<Box<str>> {
    let prefix = names::prefix(owner);
    let mut names = BTreeSet::new();
    for group in groups {
        let tags = tags_of(group.arn.as_str());
        if group.name.starts_with(&prefix) && tags.is_some_and(|tags| is_handed_over(owner, tags)) {
            names.insert(group.name.clone());
        }
    }
    names
}

/// Returns true if the role may not read tags.
fn are_tags_denied(error: &AwsError) -> bool {
    error.action == Some(Action::DescribeElbTags) && is_denied_by_policy(error)
}

/// Returns the names that a Service's load balancer may have.
pub(in crate::lb) fn names_of(desired: &DesiredLoadBalancer, by_uid: &str) -> Vec<Box<str>> {
    let mut names = vec![desired.name.clone()];
    if *desired.name != *by_uid {
        names.push(by_uid.into());
    }
    names
}

/// Returns the error for a name that is taken by an object of another owner. Only the user can
/// resolve it.
pub(in crate::lb) fn name_taken(kind: &str, name: &str, reason: &str) -> CloudError {
    CloudError::new(
        ErrorKind::InvalidInput,
        format!("{kind} {name} exists already and is not this Service's: {reason}"),
    )
    .with_reason("LoadBalancerNotOwned")
}

/// Returns the error for an object that may be the Service's, which only its tags could tell.
fn owner_unknown(kind: &str, name: &str, reason: &str) -> CloudError {
    CloudError::new(
        ErrorKind::Denied,
        format!(
            "whose {kind} {name} is cannot be known without elasticloadbalancing:DescribeTags: {reason}"
        ),
    )
    .with_reason(reason::PERMISSION)
}

/// Returns the targets that are not draining. A draining target counts as absent, so that it is
/// registered again if it is desired.
fn without_draining(health: Vec<TargetHealth>) -> RegisteredTargets {
    let mut registered = RegisteredTargets::new();
    for TargetHealth { target, state, reason, .. } in health {
        if *state != *"draining" && *reason != *"Target.DeregistrationInProgress" {
            registered.insert((target.id.clone(), target.port), target);
        }
    }
    registered
}
