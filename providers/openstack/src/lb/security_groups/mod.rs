//! The security group of a Service, which admits its load balancer to the nodes.

pub mod listed;
pub mod plan;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ccm_core::provider::{CloudError, Digest, ErrorKind, PlannedChange, Progress};
use ipnet::IpNet;
use openstack_api::neutron::{Port, SecurityGroup};
use parking_lot::Mutex;

use self::{
    listed::ListedSecurityGroup,
    plan::{desired_rules, diff, ports_to_add, ports_to_remove},
};
use super::{api::Api, model::SecurityGroupSpec, names::GROUP_PREFIX, sync_state::pause};
use crate::{
    client::{ErrorClass, OpenStackError},
    lb::desired_members::NodeBackend,
};

/// Maximum number of attempts to change a port that others change at the same time.
const MAX_ATTEMPTS: usize = 3;
/// Delay before a retry when others have changed the same object.
const CONFLICT_DELAY: Duration = Duration::from_secs(1);

/// Creates, changes and deletes security groups. Keeps what does not depend on a single Service.
#[derive(Debug, Default)]
pub(super) struct SecurityGroupManager {
    /// CIDRs by subnet, which do not change.
    networks: Mutex<BTreeMap<Box<str>, IpNet>>,
    names: Mutex<GroupNames>,
    /// Held while the groups of a port are changed, because a node is a member for many Services at
    /// once.
    port_lock: tokio::sync::Mutex<()>,
}

/// Names of groups that may exist.
#[derive(Debug, Default)]
struct GroupNames {
    /// True when all groups were listed.
    listed: bool,
    /// Names found in that listing, and of groups that this process created.
    existing: BTreeSet<Box<str>>,
}

/// A desired group, the subnet of members, and the backends.
#[derive(Clone, Copy)]
pub(super) struct SecurityGroupTask<'a> {
    pub(super) group: &'a SecurityGroupSpec,
    pub(super) subnet: &'a str,
    pub(super) backends: &'a [NodeBackend],
}

impl SecurityGroupTask<'_> {
    /// Returns the digest of the task.
    pub(super) fn digest(&self) -> Digest {
        Digest::of(&(self.group, self.subnet, self.backends))
    }
}

/// Changes that a group needs.
struct SecurityGroupChanges {
    group: Option<SecurityGroup>,
    missing: Vec<plan::Rule>,
    surplus: Vec<String>,
    join: Vec<Port>,
    leave: Vec<Port>,
}

impl SecurityGroupManager {
    /// Creates the group if it does not exist, adds the rules that it lacks, sets it on the
    /// backends' ports, and removes it from ports of other servers. Returns the IDs of surplus
    /// rules.
    pub(super) async fn ensure_rules(
        &self,
        api: Api<'_>,
        task: SecurityGroupTask<'_>,
    ) -> Result<Vec<String>, CloudError> {
        let mut work = self.observe(api, task).await?;
        let group = match work.group.take() {
            Some(group) => group,
            None => {
                self.record_name(&task.group.name);
                let made = api
                    .create_group(&task.group.name, &task.group.description)
                    .await?;
                let rules = desired_rules(task.group, &self.network(api, task.subnet).await?);
                (work.missing, work.surplus) = diff(&rules, &made.security_group_rules);
                made
            }
        };
        if !work.missing.is_empty() {
            let rules: Vec<_> = work
                .missing
                .iter()
                .map(|rule| rule.body(&group.id))
                .collect();
            match api.create_rules(&rules).await {
                // Somebody else has created one of them meanwhile: the next sync compares again.
                Err(error) if error.class() == ErrorClass::Conflict => {
                    return Err(as_conflict(error));
                }
                made => drop(made?),
            }
        }
        for port in &work.join {
            self.set(api, port, &PortMembership::of(&group.id), "its node is a member")
                .await?;
        }
        for port in &work.leave {
            self.set(
                api,
                port,
                &PortMembership::not_of(&group.id),
                "its node is no member any more",
            )
            .await?;
        }
        Ok(work.surplus)
    }

    /// Deletes rules, those that [`ensure_rules`](Self::ensure_rules) returns.
    pub(super) async fn revoke(api: Api<'_>, rules: &[String]) -> Result<(), CloudError> {
        for rule in rules {
            api.delete_rule(rule).await?;
        }
        Ok(())
    }

    /// Returns what [`ensure_rules`](Self::ensure_rules) and [`revoke`](Self::revoke) would change.
    pub(super) async fn plan_changes(
        &self,
        api: Api<'_>,
        task: SecurityGroupTask<'_>,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let work = self.observe(api, task).await?;
        let planned = |operation: &str, object: &str, reason: &str| PlannedChange {
            operation: operation.into(),
            object: object.into(),
            reason: reason.into(),
        };
        let mut changes = Vec::new();
        if work.group.is_none() {
            changes.push(planned("security_group_create", &task.group.name, "it is not there"));
        }
        for _ in &work.missing {
            changes.push(planned(
                "security_group_rules_create",
                &task.group.name,
                "a rule is missing",
            ));
        }
        changes.extend(
            work.surplus
                .iter()
                .map(|id| planned("security_group_rule_delete", id, "nothing wants it")),
        );
        changes.extend(
            work.join
                .iter()
                .map(|port| planned("port_update", &port.id, "its node is a member")),
        );
        changes.extend(
            work.leave
                .iter()
                .map(|port| planned("port_update", &port.id, "its node is no member any more")),
        );
        Ok(changes)
    }

    /// Returns whether a shared listing shows that nothing has to change.
    pub(super) async fn listing_shows_in_sync(
        &self,
        api: Api<'_>,
        task: SecurityGroupTask<'_>,
        listed: &ListedSecurityGroup,
    ) -> Result<bool, CloudError> {
        Ok(listed
            .is_in_sync(task, &desired_rules(task.group, &self.network(api, task.subnet).await?)))
    }

    async fn observe(
        &self,
        api: Api<'_>,
        task: SecurityGroupTask<'_>,
    ) -> Result<SecurityGroupChanges, CloudError> {
        let group = find(api, &task.group.name).await?;
        let rules = desired_rules(task.group, &self.network(api, task.subnet).await?);
        let observed = group
            .as_ref()
            .map_or(&[][..], |group| &group.security_group_rules);
        let (missing, surplus) = diff(&rules, observed);
        let servers: Vec<&str> = task
            .backends
            .iter()
            .filter_map(|backend| backend.server.as_deref())
            .collect();
        let ports = api.ports_of(&servers).await?;
        let id = group.as_ref().map_or("", |group| &group.id);
        let holders = if id.is_empty() {
            Vec::new()
        } else {
            api.ports(&[("security_groups", id)]).await?
        };
        let join = ports_to_add(id, task.subnet, task.backends, &ports)
            .into_iter()
            .cloned()
            .collect();
        let leave = ports_to_remove(task.backends, &holders)
            .into_iter()
            .cloned()
            .collect();
        Ok(SecurityGroupChanges { group, missing, surplus, join, leave })
    }

    async fn network(&self, api: Api<'_>, subnet: &str) -> Result<IpNet, CloudError> {
        if let Some(state) = self.networks.lock().get(subnet) {
            return Ok(*state);
        }
        let found = api.subnet(subnet).await?;
        let Some(found) = found else {
            return Err(CloudError::invalid_input(format!(
                "subnet {subnet} of members is not there"
            )));
        };
        let network: IpNet = found.cidr.parse().map_err(|error| {
            CloudError::transient(format!("subnet {subnet} has network {:?}: {error}", found.cidr))
        })?;
        self.networks.lock().insert(subnet.into(), network);
        Ok(network)
    }

    fn record_name(&self, name: &str) {
        self.names.lock().existing.insert(name.into());
    }

    /// Returns whether a group of this name may exist. All groups are listed once: most clouds have
    /// none for Services.
    pub(super) async fn may_exist(&self, api: Api<'_>, name: &str) -> Result<bool, OpenStackError> {
        {
            let names = self.names.lock();
            if names.listed || names.existing.contains(name) {
                return Ok(names.existing.contains(name));
            }
        }
        let found = api
            .groups(&[("fields", "id"), ("fields", "name"), ("fields", "description")])
            .await?;
        let found = found
            .into_iter()
            .filter(|group| group.name.starts_with(GROUP_PREFIX))
            .map(|group| group.name.into());
        let mut names = self.names.lock();
        names.existing.extend(found);
        names.listed = true;
        Ok(names.existing.contains(name))
    }

    /// Removes a Service's group from all ports and deletes it, if `ours` accepts it. A copy of the
    /// Service may be in another cluster: either the load balancer was this Service's, or the
    /// group's description must name this cluster.
    pub(super) async fn remove(
        &self,
        api: Api<'_>,
        name: &str,
        ours: impl FnOnce(&SecurityGroup) -> bool,
    ) -> Result<Progress, CloudError> {
        if !self.may_exist(api, name).await? {
            return Ok(Progress::Done);
        }
        let progress = match find(api, name).await? {
            Some(group) if ours(&group) => self.delete(api, &group).await?,
            _ => Progress::Done,
        };
        if progress == Progress::Done {
            self.names.lock().existing.remove(name);
        }
        Ok(progress)
    }

    /// Removes a group from all ports and deletes it.
    pub(super) async fn delete(
        &self,
        api: Api<'_>,
        group: &SecurityGroup,
    ) -> Result<Progress, CloudError> {
        let why = "its Service is gone";
        for port in &api.ports(&[("security_groups", &group.id)]).await? {
            self.set(api, port, &PortMembership::not_of(&group.id), why)
                .await?;
            // Old upstream releases set such a tag.
            if port.standard.tags.contains(&group.id) {
                api.delete_port_tag(&port.id, &group.id).await?;
            }
        }
        match api.delete_group(&group.id, why).await {
            Ok(()) => Ok(Progress::Done),
            Err(error) if error.class() == ErrorClass::Conflict => {
                let why = format!("security group {} is in use: {error}", group.name).into();
                Ok(Progress::Pending { after: pause(api.op), why })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Changes the groups of a port, unless somebody changed it since it was read; then it is read
    /// again. A port that does not exist needs nothing.
    async fn set(
        &self,
        api: Api<'_>,
        port: &Port,
        desired: &PortMembership<'_>,
        why: &str,
    ) -> Result<(), CloudError> {
        let _turn = api.op.wait_shared(self.port_lock.lock()).await;
        let mut port = Cow::Borrowed(port);
        for _ in 0..MAX_ATTEMPTS {
            let Some(groups) = desired.missing(&port) else {
                return Ok(());
            };
            match api.set_groups(&port, groups, why).await {
                Err(error) if error.class() == ErrorClass::Changed => {
                    match api.port(&port.id).await? {
                        Some(now) => port = Cow::Owned(now),
                        None => return Ok(()),
                    }
                }
                set => return Ok(set.map(drop)?),
            }
        }
        let message = format!("port {} is changed by others all the time", port.id);
        Err(CloudError::new(ErrorKind::Conflict, message).with_retry_after(CONFLICT_DELAY))
    }
}

/// Whether a port should have a group.
struct PortMembership<'a> {
    group: &'a str,
    is: bool,
}

impl<'a> PortMembership<'a> {
    fn of(group: &'a str) -> Self {
        Self { group, is: true }
    }

    fn not_of(group: &'a str) -> Self {
        Self { group, is: false }
    }

    /// Returns the groups that a port should have; `None` when it has them.
    fn missing(&self, port: &Port) -> Option<Vec<String>> {
        let mut groups = port.security_groups.clone();
        match groups.iter().position(|id| id == self.group) {
            None if self.is => groups.push(self.group.to_owned()),
            Some(at) if !self.is => drop(groups.remove(at)),
            _ => return None,
        }
        Some(groups)
    }
}

async fn find(api: Api<'_>, name: &str) -> Result<Option<SecurityGroup>, CloudError> {
    let mut found = api.groups(&[("name", name)]).await?;
    found.retain(|group| group.name == name);
    if found.len() > 1 {
        let message = format!("there are {} security groups {name}", found.len());
        return Err(CloudError::new(ErrorKind::Conflict, message));
    }
    Ok(found.pop())
}

/// Somebody else was faster: retried shortly.
fn as_conflict(error: OpenStackError) -> CloudError {
    CloudError::new(ErrorKind::Conflict, error.to_string())
        .with_retry_after(CONFLICT_DELAY)
        .with_source(error)
}
