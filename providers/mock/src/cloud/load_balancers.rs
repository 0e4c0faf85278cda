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
    /// The members of the last request.
    members: SharedMembers,
    /// Number of load balancers ever created.
    created: u64,
}

#[derive(Debug)]
struct StoredLoadBalancer {
    /// The load balancer without its members.
    shown: LoadBalancer,
    /// Its members. Many load balancers have the same members, so they are stored only once.
    members: SharedMembers,
    /// When its state changes by itself; `None` for never.
    ends: Option<Instant>,
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
            members: SharedMembers::default(),
            created: 0,
        }
    }

    /// Returns a shared copy of the members. Only the last members are shared: the next request
    /// mostly has the same.
    fn share(&mut self, members: &Members) -> SharedMembers {
        let members = members.clone().sorted();
        if self.members.members != members {
            self.members = members.into();
        }
        self.members.clone()
    }

    pub(super) fn list(&mut self) -> Vec<LoadBalancer> {
        self.advance();
        self.entries
            .values()
            .map(StoredLoadBalancer::show)
            .collect()
    }

    pub(super) fn list_for(&mut self, cluster: &str) -> Vec<LoadBalancer> {
        self.advance();
        self.entries
            .values()
            .filter(|entry| entry.shown.cluster == cluster)
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
            let why = format!("service {} has no UID", key.service);
            return Err(create_error(key, ErrorKind::InvalidInput, &why));
        }
        self.advance();
        if let Some(entry) = self.entries.get(&key.name) {
            let shown = &entry.shown;
            if !owns(key, shown) {
                let LoadBalancer { uid, cluster, .. } = shown;
                let why = format!("the name is taken by service UID {uid} of cluster {cluster}");
                return Err(create_error(key, ErrorKind::Conflict, &why));
            }
            if shown.state == LoadBalancerState::Deleting {
                return Err(being_deleted("create", &key.name));
            }
            return Ok(entry.show());
        }
        if let Some(quota) = self.rules.quota
            && self.entries.len() >= quota
        {
            let why = format!("the quota of {quota} load balancers is used up");
            return Err(create_error(key, ErrorKind::QuotaExceeded, &why));
        }
        let addresses = self.pools.assign(&key.name, &spec.settings, &[])?;
        self.created += 1;
        let shown = self.shown(spec, addresses);
        let members = self.share(&spec.members);
        let ends = Some(Instant::now() + spec.activation.unwrap_or(self.rules.activation));
        self.entries
            .insert(key.name.clone(), StoredLoadBalancer { shown, members, ends });
        self.get(key)
            .ok_or_else(|| create_error(key, ErrorKind::NotFound, "it is gone at once"))
    }

    /// Changes the settings, and the addresses if they no longer fit.
    pub(super) fn modify(
        &mut self,
        key: &LoadBalancerKey,
        settings: &LoadBalancerSettings,
    ) -> Result<LoadBalancer, CloudError> {
        let current = self.changeable(key, "modify")?.shown.addresses.clone();
        let addresses = self.pools.assign(&key.name, settings, &current)?;
        let entry = self.changeable(key, "modify")?;
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
        self.changeable(key, "update")?;
        let members = self.share(members);
        let entry = self.changeable(key, "update")?;
        if entry.members.members != members.members {
            entry.members = members;
            entry.shown.generation += 1;
        }
        Ok(entry.show())
    }

    /// Deletes the load balancer of this owner, if there is one.
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
            entry.ends = Some(Instant::now() + deletion);
        }
        DeleteResult::InProgress
    }

    /// Removes a load balancer at once, whatever its owner; `false` if there is none.
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
                "cannot be put to deleting; delete the load balancer",
            ));
        }
        self.advance();
        let Some(entry) = self.entries.get_mut(name) else {
            return Ok(None);
        };
        let shown = &mut entry.shown;
        if let Some(state) = edit.state {
            shown.state = state;
            entry.ends = None;
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

    fn changeable(
        &mut self,
        key: &LoadBalancerKey,
        verb: &str,
    ) -> Result<&mut StoredLoadBalancer, CloudError> {
        match self.find(key) {
            Some(entry) if entry.shown.state == LoadBalancerState::Deleting => {
                Err(being_deleted(verb, &key.name))
            }
            Some(entry) => Ok(entry),
            None => Err(CloudError::new(
                ErrorKind::NotFound,
                format!("there is no load balancer {}", key.name),
            )),
        }
    }

    fn find(&mut self, key: &LoadBalancerKey) -> Option<&mut StoredLoadBalancer> {
        self.advance();
        self.entries
            .get_mut(&key.name)
            .filter(|entry| owns(key, &entry.shown))
    }

    /// Applies the state changes that are due: activation and removal.
    fn advance(&mut self) {
        let now = Instant::now();
        let mut deleted = Vec::new();
        for (name, entry) in &mut self.entries {
            if entry.ends.is_some_and(|ends| ends <= now) {
                match entry.shown.state {
                    LoadBalancerState::Deleting => deleted.push(name.clone()),
                    _ => entry.shown.state = LoadBalancerState::Active,
                }
                entry.ends = None;
            }
        }
        for name in deleted {
            self.remove(&name);
        }
    }

    fn shown(&self, spec: &LoadBalancerSpec, addresses: Vec<IpAddr>) -> LoadBalancer {
        LoadBalancer {
            id: format!("lb-{:08}", self.created),
            name: spec.key.name.clone(),
            cluster: spec.key.cluster.clone(),
            uid: spec.key.uid.clone(),
            service: spec.key.service.clone(),
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

fn owns(key: &LoadBalancerKey, shown: &LoadBalancer) -> bool {
    key.cluster == shown.cluster && key.uid == shown.uid
}

fn create_error(key: &LoadBalancerKey, kind: ErrorKind, why: &str) -> CloudError {
    CloudError::new(kind, format!("create load balancer {}: {why}", key.name))
}

fn being_deleted(verb: &str, name: &str) -> CloudError {
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
