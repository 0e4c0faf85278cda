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
use parking_lot::Mutex;

use self::{
    listed::ListedSecurityGroup,
    plan::{RuleDiff, desired_rules, diff_rules, ports_to_add, ports_to_remove},
};
use super::{api::Api, model::SecurityGroupSpec, names::GROUP_PREFIX, sync_state::retry_delay};
use crate::{
    api::neutron::{Port, SecurityGroup},
    client::{ErrorClass, OpenStackError},
    lb::desired_members::NodeBackend,
};

/// Maximum number of attempts to change a port that others change concurrently.
const MAX_ATTEMPTS: usize = 3;
/// Delay before a retry when others have changed the same object.
const CONFLICT_DELAY: Duration = Duration::from_secs(1);

/// Creates, changes and deletes security groups, and caches data that all Services share.
#[derive(Debug, Default)]
pub(super) struct SecurityGroupManager {
    /// CIDRs by subnet ID. They never change.
    subnet_cidrs: Mutex<BTreeMap<Box<str>, IpNet>>,
    names: Mutex<GroupNames>,
    /// Held while the groups of a port are changed. Many Services may add their groups to the port
    /// of the same node.
    port_lock: tokio::sync::Mutex<()>,
}

/// Names of groups that may exist.
#[derive(Debug, Default)]
struct GroupNames {
    /// True when all groups were listed.
    listed: bool,
    /// Names that the listing contained, and names of groups that this process created.
    existing: BTreeSet<Box<str>>,
}

/// A desired group, the UID of its Service, the subnet of members, and the backends.
#[derive(Clone, Copy)]
pub(super) struct SecurityGroupTask<'a> {
    pub(super) group: &'a SecurityGroupSpec,
    pub(super) owner_uid: &'a str,
    pub(super) subnet: &'a str,
    pub(super) backends: &'a [NodeBackend],
}

impl SecurityGroupTask<'_> {
    /// Returns the digest of the task.
    pub(super) fn digest(&self) -> Digest {
        Digest::of(&(self.group, self.subnet, self.backends))
    }
}

/// What a group has and its Service does not need.
#[derive(Default)]
pub(super) struct Surplus {
    /// ID of the group.
    group: String,
    /// True if the group was just created.
    is_new: bool,
    /// IDs of rules.
    pub(super) rules: Vec<String>,
    /// Ports of servers that are no members.
    ports: Vec<Port>,
}

impl Surplus {
    /// Returns true if there is anything that somebody else may need. Nobody needs the rules that a
    /// group has from the start.
    pub(super) fn may_be_needed(&self) -> bool {
        let has_surplus = !self.rules.is_empty() || !self.ports.is_empty();
        !self.is_new && has_surplus
    }
}

/// Changes that a group needs.
struct SecurityGroupChanges {
    /// The group; `None` if it has to be created.
    group: Option<SecurityGroup>,
    rules: RuleDiff,
    ports_to_add: Vec<Port>,
    ports_to_remove: Vec<Port>,
}

impl SecurityGroupManager {
    /// Creates the group if it does not exist, creates missing rules, and adds the group to the
    /// backends' ports. Returns the surplus rules and ports.
    pub(super) async fn ensure_rules(
        &self,
        api: Api<'_>,
        task: SecurityGroupTask<'_>,
    ) -> Result<Surplus, CloudError> {
        let mut changes = self.find_changes(api, task).await?;
        let is_new = changes.group.is_none();
        let group = match changes.group.take() {
            Some(group) => group,
            None => {
                self.record_name(&task.group.name);
                let created = api
                    .create_group(&task.group.name, &task.group.description)
                    .await?;
                let rules = desired_rules(task.group, &self.subnet_cidr(api, task.subnet).await?);
                changes.rules = diff_rules(&rules, &created.security_group_rules);
                created
            }
        };
        Self::create_rules(api, &group.id, &changes.rules.missing).await?;
        for port in &changes.ports_to_add {
            self.set_membership(api, port, &PortMembership::of(&group.id), "its node is a member")
                .await?;
        }
        Ok(Surplus {
            group: group.id,
            is_new,
            rules: changes.rules.surplus,
            ports: changes.ports_to_remove,
        })
    }

    /// Removes the group from surplus ports.
    pub(super) async fn leave_ports(
        &self,
        api: Api<'_>,
        surplus: &Surplus,
    ) -> Result<(), CloudError> {
        let membership = PortMembership::not_of(&surplus.group);
        for port in &surplus.ports {
            self.set_membership(api, port, &membership, "its node is no longer a member")
                .await?;
        }
        Ok(())
    }

    async fn create_rules(
        api: Api<'_>,
        group: &str,
        rules: &[plan::Rule],
    ) -> Result<(), CloudError> {
        if rules.is_empty() {
            return Ok(());
        }
        let bodies: Vec<_> = rules.iter().map(|rule| rule.body(group)).collect();
        match api.create_rules(&bodies).await {
            Ok(_) => Ok(()),
            // Somebody else has just created one of the rules. The next sync compares again.
            Err(error) if error.class() == ErrorClass::Conflict => Err(as_conflict(error)),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes the surplus rules that [`ensure_rules`](Self::ensure_rules) returned.
    pub(super) async fn revoke(api: Api<'_>, rules: &[String]) -> Result<(), CloudError> {
        for rule in rules {
            api.delete_rule(rule).await?;
        }
        Ok(())
    }

    /// Returns the changes that [`ensure_rules`](Self::ensure_rules) and [`revoke`](Self::revoke)
    /// would make.
    pub(super) async fn plan_changes(
        &self,
        api: Api<'_>,
        task: SecurityGroupTask<'_>,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let changes = self.find_changes(api, task).await?;
        let group = &task.group.name;
        let mut planned = Vec::new();
        if changes.group.is_none() {
            planned.push(planned_change("security_group_create", group, "it does not exist"));
        }
        for _ in &changes.rules.missing {
            planned.push(planned_change("security_group_rules_create", group, "a rule is missing"));
        }
        for rule in &changes.rules.surplus {
            planned.push(planned_change(
                "security_group_rule_delete",
                rule,
                "no Service port needs it",
            ));
        }
        for port in &changes.ports_to_add {
            planned.push(planned_change("port_update", &port.id, "its node is a member"));
        }
        for port in &changes.ports_to_remove {
            planned.push(planned_change("port_update", &port.id, "its node is no longer a member"));
        }
        Ok(planned)
    }

    /// Returns true if a shared listing shows that nothing has to change.
    pub(super) async fn listing_shows_in_sync(
        &self,
        api: Api<'_>,
        task: SecurityGroupTask<'_>,
        listed: &ListedSecurityGroup,
    ) -> Result<bool, CloudError> {
        Ok(listed.is_in_sync(
            task,
            &desired_rules(task.group, &self.subnet_cidr(api, task.subnet).await?),
        ))
    }

    /// Reads the group, its rules and ports, and compares them with the desired state.
    async fn find_changes(
        &self,
        api: Api<'_>,
        task: SecurityGroupTask<'_>,
    ) -> Result<SecurityGroupChanges, CloudError> {
        let group = find_group(api, &task.group.name).await?;
        let rules = desired_rules(task.group, &self.subnet_cidr(api, task.subnet).await?);
        let observed = group
            .as_ref()
            .map_or(&[][..], |group| &group.security_group_rules);
        let rules = diff_rules(&rules, observed);
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
        Ok(SecurityGroupChanges {
            ports_to_add: ports_to_add(id, task.subnet, task.backends, &ports)
                .into_iter()
                .cloned()
                .collect(),
            ports_to_remove: ports_to_remove(task.backends, &holders)
                .into_iter()
                .cloned()
                .collect(),
            group,
            rules,
        })
    }

    /// Returns the CIDR of a subnet, from the cache or from Neutron.
    async fn subnet_cidr(&self, api: Api<'_>, subnet: &str) -> Result<IpNet, CloudError> {
        if let Some(cidr) = self.subnet_cidrs.lock().get(subnet) {
            return Ok(*cidr);
        }
        let Some(found) = api.subnet(subnet).await? else {
            return Err(CloudError::invalid_input(format!(
                "subnet {subnet} of members does not exist"
            )));
        };
        let cidr: IpNet = found.cidr.parse().map_err(|error| {
            CloudError::transient(format!("subnet {subnet} has network {:?}: {error}", found.cidr))
        })?;
        self.subnet_cidrs.lock().insert(subnet.into(), cidr);
        Ok(cidr)
    }

    fn record_name(&self, name: &str) {
        self.names.lock().existing.insert(name.into());
    }

    /// Returns true if a group of this name may exist. The first call lists all groups. Most clouds
    /// have none for Services, so later calls need no request.
    pub(super) async fn may_exist(&self, api: Api<'_>, name: &str) -> Result<bool, OpenStackError> {
        {
            let names = self.names.lock();
            if names.listed || names.existing.contains(name) {
                return Ok(names.existing.contains(name));
            }
        }
        let groups = api
            .all_groups(&[("fields", "id"), ("fields", "name"), ("fields", "description")])
            .await?;
        // A group that cannot be read may be the one. Reading it by its name will show that.
        if groups
            .unreadable
            .iter()
            .any(|row| row.may_have("name", name))
        {
            return Ok(true);
        }
        let mut names = self.names.lock();
        for group in groups.rows {
            if group.name.starts_with(GROUP_PREFIX) {
                names.existing.insert(group.name.into());
            }
        }
        names.listed = groups.unreadable.is_empty();
        Ok(names.existing.contains(name))
    }

    /// Removes a Service's group from all ports and deletes it, if `is_ours` accepts it. The group
    /// may belong to a copy of the Service in another cluster, since its name does not contain the
    /// cluster.
    pub(super) async fn remove(
        &self,
        api: Api<'_>,
        name: &str,
        is_ours: impl FnOnce(&SecurityGroup) -> bool,
    ) -> Result<Progress, CloudError> {
        if !self.may_exist(api, name).await? {
            return Ok(Progress::Done);
        }
        let progress = match find_group(api, name).await? {
            Some(group) if is_ours(&group) => self.delete(api, &group).await?,
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
        let reason = "its Service is deleted";
        for port in &api.ports(&[("security_groups", &group.id)]).await? {
            self.set_membership(api, port, &PortMembership::not_of(&group.id), reason)
                .await?;
            // Old upstream releases set such a tag.
            if port.tags.contains(&group.id) {
                api.delete_port_tag(&port.id, &group.id).await?;
            }
        }
        match api.delete_group(&group.id, reason).await {
            Ok(()) => Ok(Progress::Done),
            Err(error) if error.class() == ErrorClass::Conflict => {
                let reason = format!("security group {} is in use: {error}", group.name).into();
                Ok(Progress::Pending { after: retry_delay(api.op), reason })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Adds or removes a group of a port. If somebody changed the port since it was read, reads it
    /// and tries again. Does nothing if the port does not exist.
    async fn set_membership(
        &self,
        api: Api<'_>,
        port: &Port,
        desired: &PortMembership<'_>,
        reason: &str,
    ) -> Result<(), CloudError> {
        let _guard = api.op.wait_shared(self.port_lock.lock()).await;
        let mut port = Cow::Borrowed(port);
        for _ in 0..MAX_ATTEMPTS {
            let Some(groups) = desired.groups_to_set(&port)? else {
                return Ok(());
            };
            match api.set_groups(&port, groups, reason).await {
                Err(error) if error.class() == ErrorClass::Changed => {
                    match api.port(&port.id).await? {
                        Some(current) => port = Cow::Owned(current),
                        None => return Ok(()),
                    }
                }
                result => return Ok(result.map(drop)?),
            }
        }
        let message = format!("port {} keeps being changed by others", port.id);
        Err(CloudError::new(ErrorKind::Conflict, message).with_retry_after(CONFLICT_DELAY))
    }
}

fn planned_change(operation: &str, object: &str, reason: &str) -> PlannedChange {
    PlannedChange {
        operation: operation.into(),
        object: object.into(),
        reason: reason.into(),
    }
}

/// Desired membership of a port in a group.
struct PortMembership<'a> {
    group: &'a str,
    is_member: bool,
}

impl<'a> PortMembership<'a> {
    fn of(group: &'a str) -> Self {
        Self { group, is_member: true }
    }

    fn not_of(group: &'a str) -> Self {
        Self { group, is_member: false }
    }

    /// Returns the groups that a port should have, or `None` if it has them already.
    ///
    /// # Errors
    /// The port does not show its groups, which would be lost.
    fn groups_to_set(&self, port: &Port) -> Result<Option<Vec<String>>, CloudError> {
        let Some(mut groups) = port.security_groups.clone() else {
            let message = format!("Neutron does not show the security groups of port {}", port.id);
            return Err(CloudError::transient(message));
        };
        match groups.iter().position(|id| id == self.group) {
            None if self.is_member => groups.push(self.group.to_owned()),
            Some(index) if !self.is_member => drop(groups.remove(index)),
            _ => return Ok(None),
        }
        Ok(Some(groups))
    }
}

async fn find_group(api: Api<'_>, name: &str) -> Result<Option<SecurityGroup>, CloudError> {
    let mut found = api.groups(&[("name", name)]).await?;
    found.retain(|group| group.name == name);
    if found.len() > 1 {
        let message = format!("there are {} security groups {name}", found.len());
        return Err(CloudError::new(ErrorKind::Conflict, message));
    }
    Ok(found.pop())
}

/// Converts the error of a request that lost a race to a conflict, which is retried shortly.
fn as_conflict(error: OpenStackError) -> CloudError {
    CloudError::new(ErrorKind::Conflict, error.to_string())
        .with_retry_after(CONFLICT_DELAY)
        .with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_a_port_does_not_show_are_not_replaced() {
        let port = |groups: Option<&[&str]>| Port {
            security_groups: groups.map(|ids| ids.iter().map(ToString::to_string).collect()),
            ..Port::default()
        };
        let joined = PortMembership::of("g").groups_to_set(&port(Some(&["other"])));
        assert_eq!(joined.unwrap().unwrap(), ["other", "g"]);
        assert!(PortMembership::of("g").groups_to_set(&port(None)).is_err());
        assert!(
            PortMembership::not_of("g")
                .groups_to_set(&port(None))
                .is_err()
        );
    }
}
