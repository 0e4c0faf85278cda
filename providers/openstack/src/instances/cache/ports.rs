//! The ports of servers.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::provider::{CloudError, Op};

use super::{Cached, RequestMoment, ServerCache};
use crate::{
    api::neutron::Port,
    client::{OpenStackError, Rows, UnreadableRow},
    instances::{
        fetch::{Fetch, SubPortAddresses},
        lookup_strategy::{PortStrategy, choose_port_strategy},
        server::{self, NetworkAddress, ServerPort},
    },
};

/// The ports of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerPorts {
    /// The ports with their fixed addresses.
    pub ports: Vec<ServerPort>,
    /// Addresses of trunks' sub-ports.
    pub sub_ports: Vec<NetworkAddress>,
}

/// Result for the ports of one server: an error if one of them cannot be read, because the server
/// would lose its addresses.
pub type PortLookup = Result<Arc<ServerPorts>, CloudError>;

impl ServerCache {
    /// Finds the ports of servers, and returns an answer for each server ID.
    ///
    /// # Errors
    /// Returns Neutron's error, even if some answers are cached.
    pub async fn find_ports(
        &self,
        op: &Op,
        max_ages: &BTreeMap<Arc<str>, Duration>,
    ) -> Result<HashMap<Arc<str>, PortLookup>, OpenStackError> {
        let arrived_at = self.now();
        let mut found = HashMap::with_capacity(max_ages.len());
        if self
            .add_cached_ports(max_ages, arrived_at, &mut found)
            .is_empty()
        {
            return Ok(found);
        }
        let _guard = self.request_lock.lock().await;
        // Another request may have answered while this one waited for the lock.
        let missing = self.add_cached_ports(max_ages, arrived_at, &mut found);
        if missing.is_empty() {
            return Ok(found);
        }
        // First, request the ports, and the sub-ports of their trunks.
        let began = self.begin();
        let fetch = self.fetch(op);
        let Rows { rows, unreadable } = self.request_ports(&fetch, &missing).await?;
        let mut ports = server::group_by_server(rows);
        let sub_port_ids: BTreeSet<&str> = missing
            .iter()
            .filter_map(|id| ports.get(&**id))
            .flatten()
            .flat_map(|port| &port.sub_ports)
            .map(|id| &**id)
            .collect();
        let sub_ports = fetch.find_sub_port_addresses(&sub_port_ids).await?;
        // Then answer for each server. An error is not cached.
        let mut state = self.state.lock();
        state.ports.retain(|_, cached| !cached.is_expired(began));
        for id in missing {
            let ports = ports.remove(&*id).unwrap_or_default();
            let answer = answer_for(&id, ports, &sub_ports, &unreadable);
            if let Ok(answer) = &answer {
                let answer = answer.clone();
                state
                    .ports
                    .insert(id.clone(), Cached { answer, fetched_at: began });
            }
            found.insert(id, answer);
        }
        Ok(found)
    }

    /// Requests the ports of servers, with the strategy that reads the fewest rows.
    async fn request_ports(
        &self,
        fetch: &Fetch<'_>,
        servers: &[Arc<str>],
    ) -> Result<Rows<Port>, OpenStackError> {
        let sees_all_projects = self.client.session().is_admin().await?;
        let strategy = {
            let state = self.state.lock();
            let (server_list, port_list) =
                (state.server_lists.history(), state.port_lists.history());
            choose_port_strategy(servers.len(), server_list, port_list, sees_all_projects)
        };
        match fetch.list_ports(servers, strategy).await {
            Ok(ports) => {
                if strategy == PortStrategy::ListAll {
                    self.state.lock().port_lists.record_rows(ports.count());
                }
                Ok(ports)
            }
            Err(error) if strategy == PortStrategy::ListAll && error.is_too_slow() => {
                tracing::warn!(%error, "the list of ports is too slow, requesting them server by server");
                let ports = fetch.list_ports(servers, PortStrategy::ByServers).await?;
                self.state.lock().port_lists.record_too_slow();
                Ok(ports)
            }
            Err(error) => Err(error),
        }
    }

    /// Adds cached ports to `found` if they are recent enough, and returns the IDs of the servers
    /// that are still missing.
    fn add_cached_ports(
        &self,
        max_ages: &BTreeMap<Arc<str>, Duration>,
        arrived_at: RequestMoment,
        found: &mut HashMap<Arc<str>, PortLookup>,
    ) -> Vec<Arc<str>> {
        let state = self.state.lock();
        for (id, age) in max_ages {
            if let Some(cached) = state.ports.get(id)
                && cached.satisfies(arrived_at, *age)
            {
                found.insert(id.clone(), Ok(cached.answer.clone()));
            }
        }
        max_ages
            .keys()
            .filter(|id| !found.contains_key(*id))
            .cloned()
            .collect()
    }
}

/// Builds the answer for one server, or an error if one of its ports or sub-ports cannot be read. A
/// row that does not even show its server may be a port of any server.
fn answer_for(
    id: &str,
    ports: Vec<ServerPort>,
    sub_ports: &SubPortAddresses,
    unreadable: &[UnreadableRow],
) -> PortLookup {
    if let Some(row) = unreadable.iter().find(|row| row.may_have("device_id", id)) {
        let error = row.error();
        return Err(CloudError::transient(format!(
            "a port that may be one of server {id} cannot be read: {error}"
        )));
    }
    let ids = ports.iter().flat_map(|port| &port.sub_ports);
    let mut addresses = Vec::new();
    for sub_port in ids {
        if sub_ports.unreadable.contains(&**sub_port) {
            return Err(CloudError::transient(format!(
                "port {sub_port}, a sub-port of server {id}, or its network cannot be read"
            )));
        }
        let on_port = sub_ports.by_port.get(&**sub_port);
        addresses.extend(on_port.into_iter().flatten().cloned());
    }
    Ok(Arc::new(ServerPorts { ports, sub_ports: addresses }))
}
