use std::collections::BTreeMap;

use ccm_core::provider::{CloudError, ErrorKind};

use super::{LoadBalancer, LoadBalancerKey, LoadBalancerSpec, OwnedLoadBalancer, pool::AddressPool};

/// The cloud's load balancers and their addresses.
#[derive(Debug)]
pub(super) struct LoadBalancerTable {
    pool: AddressPool,
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    cluster: String,
    uid: String,
    shown: LoadBalancer,
}

impl LoadBalancerTable {
    pub(super) fn new(pool: AddressPool) -> Self {
        Self { pool, entries: BTreeMap::new() }
    }

    pub(super) fn list(&self) -> Vec<LoadBalancer> {
        self.entries.values().map(|entry| entry.shown.clone()).collect()
    }

    pub(super) fn list_owned(&self, cluster: &str) -> Vec<OwnedLoadBalancer> {
        let owned = self.entries.values().filter(|entry| entry.cluster == cluster);
        owned.map(|e| OwnedLoadBalancer { uid: e.uid.clone(), load_balancer: e.shown.clone() }).collect()
    }

    pub(super) fn get(&self, key: &LoadBalancerKey) -> Option<LoadBalancer> {
        self.entries.get(&key.name).filter(|entry| entry.cluster == key.cluster).map(|entry| entry.shown.clone())
    }

    /// Creates the balancer or brings it in line; keeps its address.
    pub(super) fn ensure(&mut self, want: &LoadBalancerSpec) -> Result<LoadBalancer, CloudError> {
        if let Some(entry) = self.entries.get_mut(&want.name) {
            if entry.cluster != want.cluster {
                let message = format!("load balancer {} belongs to cluster {}", want.name, entry.cluster);
                return Err(CloudError::new(ErrorKind::Conflict, message));
            }
            entry.uid.clone_from(&want.uid);
            entry.shown = shown(want, entry.shown.address);
            return Ok(entry.shown.clone());
        }
        let Some(address) = self.pool.allocate() else {
            let message = format!("create load balancer {}: no free address in the pool", want.name);
            return Err(CloudError::new(ErrorKind::QuotaExceeded, message));
        };
        let shown = shown(want, address);
        let entry = Entry { cluster: want.cluster.clone(), uid: want.uid.clone(), shown: shown.clone() };
        self.entries.insert(want.name.clone(), entry);
        Ok(shown)
    }

    /// Replaces the nodes behind a balancer, and nothing else.
    pub(super) fn update(&mut self, key: &LoadBalancerKey, nodes: &[String]) -> Result<LoadBalancer, CloudError> {
        match self.entries.get_mut(&key.name).filter(|entry| entry.cluster == key.cluster) {
            Some(entry) => {
                entry.shown.nodes = sorted(nodes);
                Ok(entry.shown.clone())
            }
            None => Err(CloudError::new(ErrorKind::NotFound, format!("there is no load balancer {}", key.name))),
        }
    }

    /// Deletes a balancer of this cluster and frees its address; does nothing if there is none.
    pub(super) fn delete(&mut self, key: &LoadBalancerKey) {
        if self.get(key).is_some()
            && let Some(entry) = self.entries.remove(&key.name)
        {
            self.pool.release(entry.shown.address);
        }
    }
}

fn shown(want: &LoadBalancerSpec, address: std::net::IpAddr) -> LoadBalancer {
    LoadBalancer {
        name: want.name.clone(),
        service: want.service.clone(),
        ports: want.ports.clone(),
        nodes: sorted(&want.nodes),
        source_ranges: want.source_ranges.clone(),
        address,
    }
}

fn sorted(nodes: &[String]) -> Vec<String> {
    let mut nodes = nodes.to_vec();
    nodes.sort();
    nodes.dedup();
    nodes
}
