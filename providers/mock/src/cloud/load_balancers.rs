//! The cloud's load balancers.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use ccm_core::provider::{CloudError, ErrorKind};
use tokio::time::Instant;

use super::{
    DeleteResult, FieldError, LoadBalancer, LoadBalancerEdit, LoadBalancerKey,
    LoadBalancerSettings, LoadBalancerSpec, LoadBalancerState, Members, pool::AddressPools,
};

/// Rules of the cloud for load balancers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoadBalancerRules {
    /// Time from the creation of a load balancer until it is active.
    pub(super) activation: Duration,
    /// Time from the delete request until a load balancer no longer exists.
    pub(super) deletion: Duration,
    /// Maximum number of load balancers of all clusters, including those that are being deleted.
    pub(super) quota: Option<usize>,
}

/// The cloud's load balancers and their addresses.
#[derive(Debug)]
pub(super) struct LoadBalancerTable {
    rules: LoadBalancerRules,
    pools: AddressPools,
    entries: BTreeMap<String, StoredLoadBalancer>,
    /// The members of the last request, for sharing.
    last_members: SharedMembers,
    /// Number of load balancers that were ever created, for their IDs.
    created_count: u64,
}

#[derive(Debug)]
struct StoredLoadBalancer {
    /// The load balancer without its members.
    shown: LoadBalancer,
    /// Its members. Many load balancers have the same members, so they are stored only once.
    members: SharedMembers,
    /// Time at which the state changes by itself; `None` for never.
    state_ends_at: Option<Instant>,
}

/// Members, and the names of the nodes among them.
#[derive(Clone, Debug, Default)]
struct SharedMembers {
    members: Members,
    names: Arc<[String]>,
}

impl From<Members> for SharedMembers {
    fn from(members: Members) -> Self {
        Self { names: members.node_names().into(), members }
    }
}

impl StoredLoadBalancer {
    fn show(&self) -> LoadBalancer {
        let SharedMembers { members, names } = self.members.clone();
        LoadBalancer { nodes: names, members, ..self.shown.clone() }
    }
}

impl LoadBalancerTable {
    pub(super) fn new(rules: LoadBalancerRules, pools: AddressPools) -> Self {
        Self {
            rules,
            pools,
            entries: BTreeMap::new(),
            last_members: SharedMembers::default(),
            created_count: 0,
        }
    }

    /// Returns the members as a copy that is shared with the last request if that has the same
    /// members, which is the case for most requests.
    fn share_members(&mut self, members: &Members) -> SharedMembers {
        let members = members.clone().sorted();
        if self.last_members.members != members {
            self.last_members = members.into();
        }
        self.last_members.clone()
    }

    pub(super) fn list(&mut self) -> Vec<LoadBalancer> {
        self.advance_states();
        self.entries
            .values()
            .map(StoredLoadBalancer::show)
            .collect()
    }

    pub(super) fn list_for(&mut self, cluster: &str) -> Vec<LoadBalancer> {
        self.advance_states();
        self.entries
            .values()
            .filter(|entry| entry.shown.cluster == cluster && !entry.shown.retained)
            .map(StoredLoadBalancer::show)
            .collect()
    }

    pub(super) fn get(&mut self, key: &LoadBalancerKey) -> Option<LoadBalancer> {
        self.find(key).map(|entry| entry.show())
    }

    /// Creates a load balancer. An existing one of the same owner is returned unchanged.
    pub(super) fn create(&mut self, spec: &LoadBalancerSpec) -> Result<LoadBalancer, CloudError> {
        let key = &spec.key;
        if key.uid.is_empty() {
            let reason = format!("service {} has no UID", key.service);
            return Err(create_error(key, ErrorKind::InvalidInput, &reason));
        }
        self.advance_states();
        if let Some(entry) = self.entries.get(&key.name) {
            let shown = &entry.shown;
            if !owns(key, shown) {
                let LoadBalancer { id, uid, cluster, .. } = shown;
                let reason = if shown.retained {
                    format!("the name is taken by load balancer {id}, which was let go")
                } else {
                    format!("the name is taken by service UID {uid} of cluster {cluster}")
                };
                return Err(create_error(key, ErrorKind::Conflict, &reason));
            }
            if shown.state == LoadBalancerState::Deleting {
                return Err(being_deleted_error("create", &key.name));
            }
            return Ok(entry.show());
        }
        if let Some(quota) = self.rules.quota
            && self.entries.len() >= quota
        {
            let reason = format!("the quota of {quota} load balancers is used up");
            return Err(create_error(key, ErrorKind::QuotaExceeded, &reason));
        }
        let addresses = self.pools.assign(&key.name, &spec.settings, &[])?;
        self.created_count += 1;
        let shown = self.new_load_balancer(spec, addresses);
        let members = self.share_members(&spec.members);
        let state_ends_at = Some(Instant::now() + spec.activation.unwrap_or(self.rules.activation));
        self.entries
            .insert(key.name.clone(), StoredLoadBalancer { shown, members, state_ends_at });
        self.get(key)
            .ok_or_else(|| create_error(key, ErrorKind::NotFound, "it was deleted at once"))
    }

    /// Changes the settings, and assigns other addresses if the current ones no longer fit.
    pub(super) fn modify(
        &mut self,
        key: &LoadBalancerKey,
        settings: &LoadBalancerSettings,
    ) -> Result<LoadBalancer, CloudError> {
        let current = self.find_changeable(key, "modify")?.shown.addresses.clone();
        let addresses = self.pools.assign(&key.name, settings, &current)?;
        let entry = self.find_changeable(key, "modify")?;
        let shown = &mut entry.shown;
        if shown.settings != *settings || shown.addresses != addresses {
            shown.ports = ports(settings);
            shown.settings = settings.clone();
            shown.address = addresses[0];
            shown.addresses = addresses;
            shown.generation += 1;
        }
        Ok(entry.show())
    }

    /// Replaces only the members.
    pub(super) fn update(
        &mut self,
        key: &LoadBalancerKey,
        members: &Members,
    ) -> Result<LoadBalancer, CloudError> {
        self.find_changeable(key, "update")?;
        let members = self.share_members(members);
        let entry = self.find_changeable(key, "update")?;
        if entry.members.members != members.members {
            entry.members = members;
            entry.shown.generation += 1;
        }
        Ok(entry.show())
    }

    /// Deletes a load balancer, if this owner has it.
    pub(super) fn delete(&mut self, key: &LoadBalancerKey) -> DeleteResult {
        let deletion = self.rules.deletion;
        let Some(entry) = self.find(key) else {
            return DeleteResult::Gone;
        };
        if deletion.is_zero() {
            self.remove(&key.name);
            return DeleteResult::Gone;
        }
        if entry.shown.state != LoadBalancerState::Deleting {
            entry.shown.state = LoadBalancerState::Deleting;
            entry.state_ends_at = Some(Instant::now() + deletion);
        }
        DeleteResult::InProgress
    }

    /// Marks a load balancer of this owner, so that it belongs to nobody. Returns `None` if this owner
    /// never had it.
    pub(super) fn retain(
        &mut self,
        key: &LoadBalancerKey,
    ) -> Result<Option<LoadBalancer>, CloudError> {
        self.advance_states();
        let Some(entry) = self.entries.get_mut(&key.name) else {
            return Ok(None);
        };
        let shown = &mut entry.shown;
        if !is_last_owner(key, shown) {
            return Ok(None);
        }
        if shown.state == LoadBalancerState::Deleting {
            return Err(being_deleted_error("retain", &key.name));
        }
        if !shown.retained {
            shown.retained = true;
            shown.generation += 1;
        }
        Ok(Some(entry.show()))
    }

    /// Gives a marked load balancer to a new owner, in one step. One that the owner has adopted before
    /// is returned unchanged.
    pub(super) fn adopt(
        &mut self,
        id: &str,
        key: &LoadBalancerKey,
    ) -> Result<LoadBalancer, CloudError> {
        self.advance_states();
        let reject = |reason: &str| {
            Err(CloudError::invalid_input(format!("adopt load balancer {id}: {reason}")))
        };
        let found = self.entries.values().find(|entry| entry.shown.id == id);
        let Some(shown) = found.map(|entry| entry.shown.clone()) else {
            return reject("it does not exist");
        };
        if owns(key, &shown) {
            return self.find_changeable(key, "adopt").map(|entry| entry.show());
        }
        if !shown.retained {
            let LoadBalancer { cluster, service, .. } = &shown;
            return reject(&format!("service {service} of cluster {cluster} has not let go of it"));
        }
        if shown.name != key.name && self.entries.contains_key(&key.name) {
            return reject(&format!("the name {} is taken", key.name));
        }
        let Some(mut entry) = self.entries.remove(&shown.name) else {
            return reject("it does not exist");
        };
        let adopted = &mut entry.shown;
        adopted.name.clone_from(&key.name);
        adopted.cluster.clone_from(&key.cluster);
        adopted.uid.clone_from(&key.uid);
        adopted.service.clone_from(&key.service);
        adopted.retained = false;
        adopted.generation += 1;
        let answer = entry.show();
        self.entries.insert(key.name.clone(), entry);
        Ok(answer)
    }

    /// Removes a load balancer at once, regardless of its owner. Returns `false` if it does not
    /// exist.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        let Some(entry) = self.entries.remove(name) else {
            return false;
        };
        for address in &entry.shown.addresses {
            self.pools.release(*address);
        }
        true
    }

    /// Changes a load balancer without the provider.
    pub(super) fn edit(
        &mut self,
        name: &str,
        edit: LoadBalancerEdit,
    ) -> Result<Option<LoadBalancer>, FieldError> {
        if edit.state == Some(LoadBalancerState::Deleting) {
            return Err(FieldError::new(
                "state",
                "cannot be set to deleting; delete the load balancer instead",
            ));
        }
        self.advance_states();
        let Some(entry) = self.entries.get_mut(name) else {
            return Ok(None);
        };
        let shown = &mut entry.shown;
        if let Some(state) = edit.state {
            shown.state = state;
            entry.state_ends_at = None;
        }
        if let Some(cluster) = edit.cluster {
            shown.cluster = cluster;
        }
        if let Some(uid) = edit.uid {
            shown.uid = uid;
        }
        if let Some(listeners) = edit.listeners {
            shown.settings.listeners = listeners;
            shown.ports = ports(&shown.settings);
        }
        if let Some(ranges) = edit.source_ranges {
            shown.settings.source_ranges = ranges;
        }
        if let Some(nodes) = edit.nodes {
            entry.members = Members::nodes(nodes).into();
        }
        Ok(Some(entry.show()))
    }

    /// Returns a load balancer of this owner, or an error if it does not exist or is being deleted.
    fn find_changeable(
        &mut self,
        key: &LoadBalancerKey,
        verb: &str,
    ) -> Result<&mut StoredLoadBalancer, CloudError> {
        match self.find(key) {
            Some(entry) if entry.shown.state == LoadBalancerState::Deleting => {
                Err(being_deleted_error(verb, &key.name))
            }
            Some(entry) => Ok(entry),
            None => Err(CloudError::new(
                ErrorKind::NotFound,
                format!("there is no load balancer {}", key.name),
            )),
        }
    }

    /// Returns a load balancer if this owner has it.
    fn find(&mut self, key: &LoadBalancerKey) -> Option<&mut StoredLoadBalancer> {
        self.advance_states();
        self.entries
            .get_mut(&key.name)
            .filter(|entry| owns(key, &entry.shown))
    }

    /// Activates and removes the load balancers whose state ends.
    fn advance_states(&mut self) {
        let now = Instant::now();
        let mut deleted = Vec::new();
        for (name, entry) in &mut self.entries {
            if entry.state_ends_at.is_some_and(|at| at <= now) {
                match entry.shown.state {
                    LoadBalancerState::Deleting => deleted.push(name.clone()),
                    _ => entry.shown.state = LoadBalancerState::Active,
                }
                entry.state_ends_at = None;
            }
        }
        for name in deleted {
            self.remove(&name);
        }
    }

    /// Creates the load balancer for a request.
    fn new_load_balancer(&self, spec: &LoadBalancerSpec, addresses: Vec<IpAddr>) -> LoadBalancer {
        LoadBalancer {
            id: format!("lb-{:08}", self.created_count),
            name: spec.key.name.clone(),
            cluster: spec.key.cluster.clone(),
            uid: spec.key.uid.clone(),
            service: spec.key.service.clone(),
            retained: false,
            state: LoadBalancerState::Provisioning,
            ports: ports(&spec.settings),
            nodes: Arc::default(),
            address: addresses[0],
            addresses,
            settings: spec.settings.clone(),
            members: Members::default(),
            generation: 1,
        }
    }
}

/// Returns true if the owner in a request's key is the owner of a load balancer. One that was let go
/// has none.
fn owns(key: &LoadBalancerKey, shown: &LoadBalancer) -> bool {
    is_last_owner(key, shown) && !shown.retained
}

/// Returns true if the owner in a request's key owns a load balancer, or did when it let go of it.
fn is_last_owner(key: &LoadBalancerKey, shown: &LoadBalancer) -> bool {
    key.cluster == shown.cluster && key.uid == shown.uid
}

fn create_error(key: &LoadBalancerKey, kind: ErrorKind, reason: &str) -> CloudError {
    CloudError::new(kind, format!("create load balancer {}: {reason}", key.name))
}

fn being_deleted_error(verb: &str, name: &str) -> CloudError {
    CloudError::new(
        ErrorKind::Conflict,
        format!("{verb} load balancer {name}: it is being deleted"),
    )
}

fn ports(settings: &LoadBalancerSettings) -> Vec<u16> {
    settings
        .listeners
        .iter()
        .map(|listener| listener.port)
        .collect()
}
