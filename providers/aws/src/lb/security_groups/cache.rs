//! A cache of the VPC's security groups. One request reads them for all load balancers, and our own
//! changes update them.
//!
//! Several Services may change the group of the same nodes at the same time. Each change is
//! computed and made under the lock of its group, from rules that include all our earlier changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::provider::{CloudError, ErrorKind, Op};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::plan::{self, RuleChange};
use crate::{
    api::{
        AwsError, AwsErrorCause, Filter, SecurityGroupId, Tags,
        ec2::{
            AuthorizeSecurityGroupIngress, CreateSecurityGroup, CreateTags, DeleteSecurityGroup,
            DeleteTags, DescribeSecurityGroups, RevokeSecurityGroupIngress, Rule, SecurityGroup,
        },
    },
    client::{wait_in_line, with_message},
    config::Settings,
    scope::Scope,
};

/// Maximum number of rules per request. AWS limits the rules of a group to a similar number.
const MAX_RULES: usize = 200;
/// Maximum number of values in a filter.
const MAX_FILTER_VALUES: usize = 200;

/// Time for which a read may not show a change of ours, because AWS is eventually consistent.
const EVENTUAL_CONSISTENCY_WINDOW: Duration = Duration::from_secs(20);

/// Number of times that a group is read again if it becomes uncertain during the read.
const MAX_REREADS: usize = 3;

/// Security groups by ID.
pub(crate) type GroupsById = BTreeMap<SecurityGroupId, Arc<SecurityGroup>>;

/// Caches the VPC's security groups.
pub(crate) struct SecurityGroupCache {
    scope: Scope,
    /// Held by the caller that reads; the others wait for its result.
    read_lock: tokio::sync::Mutex<()>,
    state: Mutex<CacheState>,
    /// One lock per group that we ever changed.
    locks: Mutex<HashMap<SecurityGroupId, Arc<tokio::sync::Mutex<()>>>>,
    /// Rules of callers that wait for a group's lock in order to grant them.
    waiting_grants: Mutex<WaitingGrants>,
}

/// Rules by the group that needs them, each set with the ticket number of the waiting caller.
type WaitingGrants = HashMap<SecurityGroupId, BTreeMap<u64, BTreeSet<Rule>>>;

#[derive(Default)]
struct CacheState {
    groups: Arc<GroupsById>,
    listed: Option<Instant>,
    /// Counts reads and changes, to detect that a response is older than a change.
    version: u64,
    /// The version at which each group was last changed.
    changed: HashMap<SecurityGroupId, u64>,
    /// Groups whose rules are unknown, because a change failed or its response was not awaited.
    uncertain: BTreeSet<SecurityGroupId>,
    /// Changes so recent that reads may not show them, in order.
    recent_changes: Vec<RecentChange>,
    /// Changes of tags so recent that reads may not show them, in order.
    recent_tags: Vec<RecentTags>,
    /// Groups that this process created, with the time. Reads may not show them for a while.
    created: HashMap<SecurityGroupId, (Instant, Arc<SecurityGroup>)>,
}

/// A rule that was granted or revoked.
struct RecentChange {
    at: Instant,
    group: SecurityGroupId,
    rule: Rule,
    kind: ChangeKind,
}

/// Tags that were set on a group, and keys of those that were removed.
struct RecentTags {
    at: Instant,
    group: SecurityGroupId,
    set: Tags,
    removed: Vec<Box<str>>,
}

#[derive(Clone, Copy)]
enum ChangeKind {
    Granted,
    Revoked,
}

impl RecentChange {
    fn may_be_invisible(&self) -> bool {
        self.at.elapsed() < EVENTUAL_CONSISTENCY_WINDOW
    }
}

impl CacheState {
    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Stores a group after a change of ours, or as it was read.
    fn store(&mut self, group: SecurityGroup) {
        let now = self.next_version();
        self.changed.insert(group.id.clone(), now);
        self.uncertain.remove(&group.id);
        Arc::make_mut(&mut self.groups).insert(group.id.clone(), Arc::new(group));
    }

    /// Records rules that were granted or revoked.
    fn record_rules(&mut self, id: &SecurityGroupId, rules: &[Rule], kind: ChangeKind) {
        self.recent_changes.retain(RecentChange::may_be_invisible);
        for rule in rules {
            self.recent_changes.push(RecentChange {
                at: Instant::now(),
                group: id.clone(),
                rule: rule.clone(),
                kind,
            });
        }
    }

    /// Records tags that were set or removed, and changes the stored group.
    fn record_tags(&mut self, id: &SecurityGroupId, set: Tags, removed: Vec<Box<str>>) {
        self.recent_tags
            .retain(|change| change.at.elapsed() < EVENTUAL_CONSISTENCY_WINDOW);
        let at = Instant::now();
        self.recent_tags
            .push(RecentTags { at, group: id.clone(), set, removed });
        if let Some(cached) = self.groups.get(id).cloned() {
            let group = self.with_recent_changes((*cached).clone());
            self.store(group);
        }
    }

    /// Applies recent changes, which a read may not show yet, to a group that was read.
    fn with_recent_changes(&self, mut group: SecurityGroup) -> SecurityGroup {
        for change in &self.recent_tags {
            if change.group == group.id && change.at.elapsed() < EVENTUAL_CONSISTENCY_WINDOW {
                group.tags.extend(change.set.clone());
                group.tags.retain(|key, _| !change.removed.contains(key));
            }
        }
        for change in &self.recent_changes {
            if change.group != group.id || !change.may_be_invisible() {
                continue;
            }
            match change.kind {
                ChangeKind::Granted => {
                    let missing = plan::missing(&group.ingress, [&change.rule]);
                    group.ingress.extend(missing);
                }
                ChangeKind::Revoked => group.ingress.retain(|rule| *rule != change.rule),
            }
        }
        group
    }

    /// Records a group that was created.
    fn create(&mut self, group: SecurityGroup) {
        self.created
            .retain(|_, (at, _)| at.elapsed() < EVENTUAL_CONSISTENCY_WINDOW);
        self.created
            .insert(group.id.clone(), (Instant::now(), Arc::new(group.clone())));
        self.store(group);
    }

    /// Returns true if a group was created so recently that a read may not show it.
    fn is_new(&self, id: &SecurityGroupId) -> bool {
        self.created
            .get(id)
            .is_some_and(|(at, _)| at.elapsed() < EVENTUAL_CONSISTENCY_WINDOW)
    }

    fn remove(&mut self, id: &SecurityGroupId) {
        self.created.remove(id);
        let now = self.next_version();
        self.changed.insert(id.clone(), now);
        self.uncertain.remove(id);
        Arc::make_mut(&mut self.groups).remove(id);
    }

    fn mark_uncertain(&mut self, id: &SecurityGroupId) {
        let now = self.next_version();
        self.changed.insert(id.clone(), now);
        self.uncertain.insert(id.clone());
        // The unanswered change may have reverted earlier ones.
        self.recent_changes.retain(|change| change.group != *id);
    }
}

/// Marks a group as uncertain when dropped before the response of its change.
struct ChangeGuard<'a> {
    cache: &'a SecurityGroupCache,
    id: &'a SecurityGroupId,
    completed: bool,
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        if !self.completed {
            self.cache.state.lock().mark_uncertain(self.id);
        }
    }
}

/// Place in the queue of a caller that waits to grant rules. Other callers may grant them together
/// with their own.
struct GrantTicket<'a> {
    cache: &'a SecurityGroupCache,
    id: &'a SecurityGroupId,
    number: u64,
    /// True once the wait is over.
    over: bool,
}

impl<'a> GrantTicket<'a> {
    fn new(
        cache: &'a SecurityGroupCache,
        id: &'a SecurityGroupId,
        desired: &BTreeSet<Rule>,
    ) -> Self {
        let number = cache.state.lock().next_version();
        cache
            .waiting_grants
            .lock()
            .entry(id.clone())
            .or_default()
            .insert(number, desired.clone());
        Self { cache, id, number, over: false }
    }

    /// Takes the ticket back; `false` if another caller has taken it to grant its rules.
    fn claim(&self) -> bool {
        let mut waiting = self.cache.waiting_grants.lock();
        let Some(tickets) = waiting.get_mut(self.id) else {
            return false;
        };
        let taken = tickets.remove(&self.number).is_some();
        if tickets.is_empty() {
            waiting.remove(self.id);
        }
        taken
    }

    /// Ends the wait. The group's lock is held, so nobody else is about to grant the rules.
    fn end(mut self) {
        self.claim();
        self.over = true;
    }
}

impl Drop for GrantTicket<'_> {
    /// A cancelled caller no longer needs its rules. If another caller is granting them, the group
    /// becomes uncertain.
    fn drop(&mut self) {
        if !self.over && !self.claim() {
            self.cache.state.lock().mark_uncertain(self.id);
        }
    }
}

impl SecurityGroupCache {
    pub(crate) fn new(scope: Scope) -> Self {
        let read_lock = tokio::sync::Mutex::default();
        let state = Mutex::default();
        Self {
            scope,
            read_lock,
            state,
            locks: Mutex::default(),
            waiting_grants: Mutex::default(),
        }
    }

    /// Returns the groups of the VPC, read at most `max_age` ago. They always include our own
    /// changes.
    pub(crate) async fn groups(
        &self,
        op: &Op,
        max_age: Duration,
    ) -> Result<Arc<GroupsById>, CloudError> {
        let requested_at = Instant::now();
        if let Some(groups) = self.cached(requested_at, max_age) {
            return Ok(groups);
        }
        let _read_lock = op.wait_shared(self.read_lock.lock()).await;
        // Another caller may have read the groups while this one waited for the lock.
        if let Some(groups) = self.cached(requested_at, max_age) {
            return Ok(groups);
        }
        if self.is_listed_within(requested_at, max_age) {
            let uncertain: Vec<_> = self.state.lock().uncertain.iter().cloned().collect();
            self.read(op, &uncertain).await?;
        } else {
            self.list_groups(op).await?;
        }
        Ok(self.state.lock().groups.clone())
    }

    /// Returns the groups, after reading the ones of `ids` that are missing in `groups`.
    pub(crate) async fn read_missing(
        &self,
        op: &Op,
        groups: Arc<GroupsById>,
        ids: impl IntoIterator<Item = &SecurityGroupId>,
    ) -> Result<Arc<GroupsById>, CloudError> {
        let unknown: BTreeSet<_> = ids
            .into_iter()
            .filter(|id| !groups.contains_key(*id))
            .cloned()
            .collect();
        if unknown.is_empty() {
            return Ok(groups);
        }
        self.read(op, &unknown.into_iter().collect::<Vec<_>>())
            .await?;
        Ok(self.state.lock().groups.clone())
    }

    /// Reads the current state of groups by ID.
    pub(crate) async fn read(&self, op: &Op, ids: &[SecurityGroupId]) -> Result<(), CloudError> {
        for chunk in ids.chunks(MAX_FILTER_VALUES) {
            // Use a filter, because one unknown ID would make the whole request fail.
            let begun = self.state.lock().next_version();
            let found = self
                .describe(op, "group-id", chunk.iter().map(|id| &**id))
                .await?;
            let mut state = self.state.lock();
            for id in chunk {
                // A later change is newer than this response.
                if state.changed.get(id).is_some_and(|at| *at > begun) {
                    continue;
                }
                match found.iter().find(|group| group.id == *id) {
                    Some(group) => {
                        let group = state.with_recent_changes(group.clone());
                        state.store(group);
                    }
                    None if state.is_new(id) => {}
                    None => state.remove(id),
                }
            }
        }
        Ok(())
    }

    /// Reads the current state of a group by name.
    pub(crate) async fn read_by_name(
        &self,
        op: &Op,
        name: &str,
    ) -> Result<Option<Arc<SecurityGroup>>, CloudError> {
        let begun = self.state.lock().next_version();
        let found = self.describe(op, "group-name", [name]).await?;
        let Some(group) = found.into_iter().find(|group| *group.name == *name) else {
            return Ok(None);
        };
        let mut state = self.state.lock();
        let group = state.with_recent_changes(group);
        if state.changed.get(&group.id).is_none_or(|at| *at <= begun) {
            state.store(group.clone());
        }
        Ok(Some(Arc::new(group)))
    }

    /// Changes the rules of a group. `change` computes the change from the current rules. If AWS
    /// reports that the group differs, or if the change depends on the absence of rules, reads the
    /// group and calls `change` again.
    pub(crate) async fn update_rules(
        &self,
        op: &Op,
        id: &SecurityGroupId,
        reason: &str,
        change: impl Fn(&SecurityGroup) -> RuleChange,
    ) -> Result<(), CloudError> {
        let lock = self.locks.lock().entry(id.clone()).or_default().clone();
        let _group_lock = wait_in_line(op, lock.lock()).await?;
        self.update_rules_locked(op, id, reason, change).await
    }

    /// Grants the missing rules of a group, together with the rules of all callers that wait for
    /// its lock. Hundreds of load balancers that are created at the same time thus take a few
    /// requests instead of one each.
    pub(crate) async fn grant_missing(
        &self,
        op: &Op,
        id: &SecurityGroupId,
        reason: &str,
        desired: &BTreeSet<Rule>,
    ) -> Result<(), CloudError> {
        let ticket = GrantTicket::new(self, id, desired);
        let lock = self.locks.lock().entry(id.clone()).or_default().clone();
        let _group_lock = wait_in_line(op, lock.lock()).await?;
        ticket.end();
        let mut group = self.read_if_uncertain(op, id).await?;
        if plan::missing(&group.ingress, desired).is_empty() {
            return Ok(());
        }
        // Take the others out of the queue. If the request fails, each of them sends its own.
        let others = self.waiting_grants.lock().remove(id).unwrap_or_default();
        if !others.is_empty() {
            let all_rules = others.values().flatten().chain(desired);
            let missing = plan::missing(&group.ingress, all_rules);
            let reason = format!("{reason}, and {} more with it", others.len());
            match self.grant(op, &mut group, &missing, &reason).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::QuotaExceeded | ErrorKind::InvalidInput
                    ) =>
                {
                    tracing::debug!(group = %id, error = error.chain(), "granting the rules together failed, each caller grants its own");
                }
                Err(error) => return Err(error),
            }
        }
        self.update_rules_locked(op, id, reason, |group| RuleChange {
            grant: plan::missing(&group.ingress, desired),
            ..RuleChange::default()
        })
        .await
    }

    /// Does the work of [`update_rules`](Self::update_rules). The caller holds the group's lock.
    async fn update_rules_locked(
        &self,
        op: &Op,
        id: &SecurityGroupId,
        reason: &str,
        change: impl Fn(&SecurityGroup) -> RuleChange,
    ) -> Result<(), CloudError> {
        let mut group = self.read_if_uncertain(op, id).await?;
        let mut rules = change(&group);
        if rules.by_absence {
            self.read(op, &[id.clone()]).await?;
            group = self.read_if_uncertain(op, id).await?;
            rules = change(&group);
        }
        if !self.grant(op, &mut group, &rules.grant, reason).await? {
            // One of the rules exists already. AWS does not say which one, and reads of the group
            // may be outdated, so each rule is granted alone.
            self.read(op, &[id.clone()]).await?;
            group = self.read_if_uncertain(op, id).await?;
            rules = change(&group);
            for rule in &rules.grant {
                let is_granted = self
                    .grant(op, &mut group, std::slice::from_ref(rule), reason)
                    .await?;
                if !is_granted {
                    // Its description is unknown and may not be ours. Without a description, the
                    // cached rule is never removed.
                    group
                        .ingress
                        .push(Rule { description: Box::default(), ..rule.clone() });
                    self.state.lock().store(group.clone());
                }
            }
        }
        self.revoke(op, &mut group, &rules.revoke, reason).await
    }

    /// Creates a group. Returns `None` if a group with that name exists.
    pub(crate) async fn create(
        &self,
        op: &Op,
        request: CreateSecurityGroup,
        reason: &str,
    ) -> Result<Option<SecurityGroup>, AwsError> {
        let CreateSecurityGroup { name, description, vpc, tags } = request.clone();
        match self.scope.client.write(op, request, reason).await {
            Ok(id) => {
                let group = SecurityGroup {
                    id,
                    name,
                    description,
                    vpc: Some(vpc),
                    ingress: Vec::new(),
                    tags,
                };
                self.state.lock().create(group.clone());
                Ok(Some(group))
            }
            Err(error) if error.has_code("InvalidGroup.Duplicate") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds tags to a group.
    pub(crate) async fn tag(
        &self,
        op: &Op,
        group: &SecurityGroup,
        tags: Tags,
        reason: &str,
    ) -> Result<(), CloudError> {
        let request = CreateTags { resources: vec![(&*group.id).into()], tags: tags.clone() };
        let mut guard = ChangeGuard { cache: self, id: &group.id, completed: false };
        self.scope
            .client
            .write(op, request, reason)
            .await
            .map_err(|error| group_error(error, &group.id))?;
        guard.completed = true;
        self.state.lock().record_tags(&group.id, tags, Vec::new());
        Ok(())
    }

    /// Removes tags with these values from a group.
    pub(crate) async fn untag(
        &self,
        op: &Op,
        group: &SecurityGroup,
        tags: Tags,
        reason: &str,
    ) -> Result<(), CloudError> {
        if tags.is_empty() {
            return Ok(());
        }
        let request = DeleteTags { resources: vec![(&*group.id).into()], tags: tags.clone() };
        let mut guard = ChangeGuard { cache: self, id: &group.id, completed: false };
        self.scope
            .client
            .write(op, request, reason)
            .await
            .map_err(|error| group_error(error, &group.id))?;
        guard.completed = true;
        let removed = tags.into_keys().collect();
        self.state
            .lock()
            .record_tags(&group.id, Tags::new(), removed);
        Ok(())
    }

    /// Deletes a group. Returns false while another object uses it.
    pub(crate) async fn delete(
        &self,
        op: &Op,
        id: &SecurityGroupId,
        reason: &str,
    ) -> Result<bool, CloudError> {
        let lock = self.locks.lock().entry(id.clone()).or_default().clone();
        let _group_lock = wait_in_line(op, lock.lock()).await?;
        match self
            .scope
            .client
            .write(op, DeleteSecurityGroup { id: id.clone() }, reason)
            .await
        {
            Ok(()) => {}
            Err(error) if error.has_code("InvalidGroup.NotFound") => {}
            Err(error) if error.has_code("DependencyViolation") => return Ok(false),
            Err(error) => return Err(group_error(error, id)),
        }
        self.state.lock().remove(id);
        self.locks.lock().remove(id);
        Ok(true)
    }

    /// Grants rules. Returns false if one of them exists already: AWS then grants none of its
    /// request.
    async fn grant(
        &self,
        op: &Op,
        group: &mut SecurityGroup,
        rules: &[Rule],
        reason: &str,
    ) -> Result<bool, CloudError> {
        let id = group.id.clone();
        for chunk in rules.chunks(MAX_RULES) {
            let mut guard = ChangeGuard { cache: self, id: &id, completed: false };
            let request = AuthorizeSecurityGroupIngress { id: id.clone(), rules: chunk.to_vec() };
            match self.scope.client.write(op, request, reason).await {
                Ok(()) => {}
                Err(error) if error.has_code("InvalidPermission.Duplicate") => return Ok(false),
                Err(error) if error.has_code("RulesPerSecurityGroupLimitExceeded") => {
                    let settings = &self.scope.settings;
                    return Err(rule_limit_error(error, group, chunk, settings));
                }
                Err(error) => return Err(group_error(error, &id)),
            }
            guard.completed = true;
            group.ingress.extend(chunk.iter().cloned());
            let mut state = self.state.lock();
            state.record_rules(&id, chunk, ChangeKind::Granted);
            state.store(group.clone());
        }
        Ok(true)
    }

    /// Revokes rules. Rules that do not exist count as revoked.
    async fn revoke(
        &self,
        op: &Op,
        group: &mut SecurityGroup,
        rules: &[Rule],
        reason: &str,
    ) -> Result<(), CloudError> {
        let id = group.id.clone();
        for chunk in rules.chunks(MAX_RULES) {
            let mut guard = ChangeGuard { cache: self, id: &id, completed: false };
            let request = RevokeSecurityGroupIngress { id: id.clone(), rules: chunk.to_vec() };
            match self.scope.client.write(op, request, reason).await {
                Ok(()) => {}
                Err(error) if error.has_code("InvalidPermission.NotFound") && chunk.len() == 1 => {}
                Err(error) if error.has_code("InvalidPermission.NotFound") => {
                    // One of the rules did not exist, and the others may not have been revoked.
                    for rule in chunk {
                        Box::pin(self.revoke(op, group, std::slice::from_ref(rule), reason))
                            .await?;
                    }
                }
                Err(error) => return Err(group_error(error, &id)),
            }
            guard.completed = true;
            group.ingress.retain(|rule| !chunk.contains(rule));
            let mut state = self.state.lock();
            state.record_rules(&id, chunk, ChangeKind::Revoked);
            state.store(group.clone());
        }
        Ok(())
    }

    /// Returns a group whose rules are certain, and reads it if necessary.
    async fn read_if_uncertain(
        &self,
        op: &Op,
        id: &SecurityGroupId,
    ) -> Result<SecurityGroup, CloudError> {
        if let Some(group) = self.cached_if_certain(id) {
            return Ok(group);
        }
        for _ in 0..MAX_REREADS {
            self.read(op, &[id.clone()]).await?;
            if let Some(group) = self.cached_if_certain(id) {
                return Ok(group);
            }
            // If another caller made the group uncertain during the read, read it again.
            if !self.state.lock().uncertain.contains(id) {
                return Err(CloudError::new(
                    ErrorKind::Conflict,
                    format!("security group {id} is not listed"),
                ));
            }
        }
        Err(CloudError::transient(format!("security group {id} changes while it is read")))
    }

    /// Returns a cached group whose rules are certain.
    fn cached_if_certain(&self, id: &SecurityGroupId) -> Option<SecurityGroup> {
        let state = self.state.lock();
        if state.uncertain.contains(id) {
            return None;
        }
        let group = state.groups.get(id)?;
        Some((**group).clone())
    }

    /// Returns true if all groups were listed at most `max_age` before `requested_at`.
    fn is_listed_within(&self, requested_at: Instant, max_age: Duration) -> bool {
        let listed = self.state.lock().listed;
        listed.is_some_and(|at| requested_at.saturating_duration_since(at) < max_age)
    }

    /// Returns the cached groups if all are certain and recent enough.
    fn cached(&self, requested_at: Instant, max_age: Duration) -> Option<Arc<GroupsById>> {
        let state = self.state.lock();
        let listed = state.listed?;
        let is_recent =
            listed > requested_at || requested_at.saturating_duration_since(listed) < max_age;
        if !is_recent || !state.uncertain.is_empty() {
            return None;
        }
        Some(state.groups.clone())
    }

    /// Reads all groups of the VPC. Keeps newer changes of ours that the response may not show.
    async fn list_groups(&self, op: &Op) -> Result<(), CloudError> {
        let begun = self.state.lock().next_version();
        let at = Instant::now();
        let request =
            DescribeSecurityGroups { filters: vec![self.vpc_filter()], ..Default::default() };
        let found = self
            .scope
            .client
            .read_all(op, request, |r, token| r.token = Some(token))
            .await?;
        let mut state = self.state.lock();
        let mut groups = GroupsById::new();
        for group in found {
            let group = state.with_recent_changes(group);
            groups.insert(group.id.clone(), Arc::new(group));
        }
        // A new group may be missing in the response.
        for (id, (at, created)) in &state.created {
            if at.elapsed() < EVENTUAL_CONSISTENCY_WINDOW && !groups.contains_key(id) {
                groups.insert(id.clone(), state.groups.get(id).unwrap_or(created).clone());
            }
        }
        // A later change is newer than this response.
        state.changed.retain(|_, version| *version > begun);
        for id in state.changed.keys() {
            match state.groups.get(id) {
                Some(group) => groups.insert(id.clone(), group.clone()),
                None => groups.remove(id),
            };
        }
        let CacheState { uncertain, changed, .. } = &mut *state;
        uncertain.retain(|id| changed.contains_key(id));
        state.groups = Arc::new(groups);
        state.listed = Some(at);
        Ok(())
    }

    /// Reads the groups of the VPC that match a filter.
    async fn describe<'a>(
        &self,
        op: &Op,
        filter: &str,
        values: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<SecurityGroup>, CloudError> {
        let filters = vec![self.vpc_filter(), Filter::new(filter, values)];
        let request = DescribeSecurityGroups { filters, ..Default::default() };
        Ok(self
            .scope
            .client
            .read_all(op, request, |r, token| r.token = Some(token))
            .await?)
    }

    fn vpc_filter(&self) -> Filter {
        Filter::new("vpc-id", [&*self.scope.vpc])
    }
}

/// Returns the error of a request for a group. NotFound becomes a conflict, because the caller must
/// not conclude that the load balancer does not exist.
pub(crate) fn group_error(error: AwsError, id: &SecurityGroupId) -> CloudError {
    let was_not_sent =
        matches!(error.cause, AwsErrorCause::RateLimited(_) | AwsErrorCause::NotSent(_));
    let error = CloudError::from(error);
    // The text of the converted error names the permissions that an IAM policy must grant.
    let text = format!("security group {id}: {error}");
    match error.kind() {
        ErrorKind::NotFound => CloudError::new(ErrorKind::Conflict, text),
        _ if was_not_sent => error,
        _ => with_message(&error, text),
    }
}

fn rule_limit_error(
    error: AwsError,
    group: &SecurityGroup,
    rules: &[Rule],
    settings: &Settings,
) -> CloudError {
    let hint = if settings.shared_backend_security_group {
        ""
    } else {
        "; EnableSharedBackendSecurityGroup in cloud.conf needs one rule per protocol for all load balancers with \
         security groups"
    };
    let text = format!(
        "security group {} ({}) has {} ingress rules and no room for {} more: {}; {error}{hint}",
        group.id,
        group.name,
        group.ingress.len(),
        rules.len(),
        plan::summary(rules),
    );
    with_message(&CloudError::from(error), text)
}
