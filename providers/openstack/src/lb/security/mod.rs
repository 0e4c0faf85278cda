//! The security group of a Service, which admits its balancer to the nodes.

pub mod plan;

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::provider::{CloudError, Digest, ErrorKind, PlannedChange, Progress};
use ipnet::IpNet;
use openstack_api::neutron::{Port, SecurityGroup};
use parking_lot::Mutex;

use self::plan::{diff, joining, leaving, wanted};
use super::{api::Api, memory::pause, model::Group, nodes::Backend};
use crate::client::{Meaning, OsError};

/// Begins the name of every group.
const PREFIX: &str = "lb-sg-";

/// What is known of groups and subnets in general.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Networks of subnets, which do not change.
    networks: Mutex<BTreeMap<Box<str>, IpNet>>,
    /// Names of groups that there were when this process began to look, and of those that it made since.
    names: Mutex<Option<BTreeSet<Box<str>>>>,
}

/// What a group is to be, and for whom.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) group: &'a Group,
    pub(super) subnet: &'a str,
    pub(super) backends: &'a [Backend],
}

impl Task<'_> {
    /// Digests it.
    pub(super) fn digest(&self) -> Digest {
        Digest::of(&(self.group, self.subnet, self.backends))
    }
}

/// What is to be done with a group.
struct Work {
    group: Option<SecurityGroup>,
    missing: Vec<plan::Rule>,
    surplus: Vec<String>,
    join: Vec<Port>,
    leave: Vec<Port>,
}

impl Groups {
    /// Brings a group and the ports of nodes in line.
    pub(super) async fn bring(&self, api: Api<'_>, task: Task<'_>) -> Result<(), CloudError> {
        let mut work = self.look(api, task).await?;
        let group = match work.group.take() {
            Some(group) => group,
            None => {
                self.note(&task.group.name);
                let made = api.create_group(&task.group.name, &task.group.description).await?;
                let rules = wanted(task.group, &self.network(api, task.subnet).await?);
                (work.missing, work.surplus) = diff(&rules, &made.security_group_rules);
                made
            }
        };
        if !work.missing.is_empty() {
            let rules: Vec<_> = work.missing.iter().map(|rule| rule.body(&group.id)).collect();
            match api.create_rules(&rules).await {
                // One of them is there already, made by somebody else meanwhile: what is there is compared next time.
                Err(error) if error.meaning() == Meaning::Conflict => return Err(again(error)),
                made => drop(made?),
            }
        }
        for rule in &work.surplus {
            api.delete_rule(rule).await?;
        }
        for port in &work.join {
            let groups = port.security_groups.iter().cloned().chain([group.id.clone()]).collect();
            set(api, port, groups, "its node is a member").await?;
        }
        for port in &work.leave {
            set(api, port, without(port, &group.id), "its node is no member any more").await?;
        }
        Ok(())
    }

    /// Says what [`bring`](Self::bring) would change.
    pub(super) async fn compare(&self, api: Api<'_>, task: Task<'_>) -> Result<Vec<PlannedChange>, CloudError> {
        let work = self.look(api, task).await?;
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
            changes.push(planned("security_group_rules_create", &task.group.name, "a rule is missing"));
        }
        changes.extend(work.surplus.iter().map(|id| planned("security_group_rule_delete", id, "nothing wants it")));
        changes.extend(work.join.iter().map(|port| planned("port_update", &port.id, "its node is a member")));
        changes
            .extend(work.leave.iter().map(|port| planned("port_update", &port.id, "its node is no member any more")));
        Ok(changes)
    }

    async fn look(&self, api: Api<'_>, task: Task<'_>) -> Result<Work, CloudError> {
        let group = find(api, &task.group.name).await?;
        let rules = wanted(task.group, &self.network(api, task.subnet).await?);
        let seen = group.as_ref().map_or(&[][..], |group| &group.security_group_rules);
        let (missing, surplus) = diff(&rules, seen);
        let servers: Vec<&str> = task.backends.iter().filter_map(|backend| backend.server.as_deref()).collect();
        let ports = api.ports_of(&servers).await?;
        let id = group.as_ref().map_or("", |group| &group.id);
        let holders = if id.is_empty() { Vec::new() } else { api.ports(&[("security_groups", id)]).await? };
        let join = joining(id, task.subnet, task.backends, &ports).into_iter().cloned().collect();
        let leave = leaving(task.backends, &holders).into_iter().cloned().collect();
        Ok(Work { group, missing, surplus, join, leave })
    }

    async fn network(&self, api: Api<'_>, subnet: &str) -> Result<IpNet, CloudError> {
        if let Some(known) = self.networks.lock().get(subnet) {
            return Ok(*known);
        }
        let found = api.subnet(subnet).await?;
        let Some(found) = found else {
            return Err(CloudError::invalid_input(format!("subnet {subnet} of members is not there")));
        };
        let network: IpNet = found
            .cidr
            .parse()
            .map_err(|error| CloudError::transient(format!("subnet {subnet} has network {:?}: {error}", found.cidr)))?;
        self.networks.lock().insert(subnet.into(), network);
        Ok(network)
    }

    fn note(&self, name: &str) {
        if let Some(names) = &mut *self.names.lock() {
            names.insert(name.into());
        }
    }

    /// Tells whether there may be a group of this name. All groups are asked for once: most clouds have none.
    pub(super) async fn may_exist(&self, api: Api<'_>, name: &str) -> Result<bool, OsError> {
        if let Some(names) = &*self.names.lock() {
            return Ok(names.contains(name));
        }
        let found = api.groups(&[("fields", "id"), ("fields", "name"), ("fields", "description")]).await?;
        let found: BTreeSet<Box<str>> =
            found.into_iter().filter(|group| group.name.starts_with(PREFIX)).map(|group| group.name.into()).collect();
        let may = found.contains(name);
        *self.names.lock() = Some(found);
        Ok(may)
    }

    /// Takes a group off all ports and deletes it.
    pub(super) async fn remove(&self, api: Api<'_>, name: &str) -> Result<Progress, CloudError> {
        if !self.may_exist(api, name).await? {
            return Ok(Progress::Done);
        }
        let progress = match find(api, name).await? {
            Some(group) => remove(api, &group).await?,
            None => Progress::Done,
        };
        if progress == Progress::Done
            && let Some(names) = &mut *self.names.lock()
        {
            names.remove(name);
        }
        Ok(progress)
    }
}

/// Takes a group off all ports and deletes it.
pub(super) async fn remove(api: Api<'_>, group: &SecurityGroup) -> Result<Progress, CloudError> {
    let why = "its Service is gone";
    for port in &api.ports(&[("security_groups", &group.id)]).await? {
        set(api, port, without(port, &group.id), why).await?;
        // Upstream's releases of long ago put such a tag on.
        if port.standard.tags.contains(&group.id) {
            api.delete_port_tag(&port.id, &group.id).await?;
        }
    }
    match api.delete_group(&group.id, why).await {
        Ok(()) => Ok(Progress::Done),
        Err(error) if error.meaning() == Meaning::Conflict => {
            let why = format!("security group {} is in use: {error}", group.name).into();
            Ok(Progress::Pending { after: pause(api.op), why })
        }
        Err(error) => Err(error.into()),
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

fn without(port: &Port, group: &str) -> Vec<String> {
    port.security_groups.iter().filter(|id| *id != group).cloned().collect()
}

/// Changes a port that nobody changed since it was read. One that is gone needs nothing.
async fn set(api: Api<'_>, port: &Port, groups: Vec<String>, why: &str) -> Result<(), CloudError> {
    match api.set_groups(port, groups, why).await {
        Ok(_) => Ok(()),
        Err(error) if error.meaning() == Meaning::Changed => Err(again(error)),
        Err(error) => Err(error.into()),
    }
}

/// Somebody else was faster: looked at again shortly.
fn again(error: OsError) -> CloudError {
    let after = std::time::Duration::from_secs(1);
    CloudError::new(ErrorKind::Conflict, error.to_string()).with_retry_after(after).with_source(error)
}
