//! Finds ports on the networks of the router, and changes their address pairs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ccm_core::provider::Op;
use ipnet::IpNet;
use openstack_api::neutron::{AddressPair, PortUpdate};

use super::{NeutronRoutes, plan};
use crate::{
    api::neutron::{Port, PortNetwork},
    client::{Call, ErrorCause, OpenStackError, Request},
};

/// Maximum number of addresses in one request. With 50 IPv6 addresses the URL has 4 kB.
const MAX_ADDRESSES: usize = 50;
/// Maximum number of times that a port is read again because somebody changed it.
const MAX_ATTEMPTS: usize = 3;

impl NeutronRoutes {
    /// Finds the ports with each address on the router's networks. Several ports may have the same
    /// address, which Neutron allows on networks with overlapping subnets.
    pub(super) async fn ports(
        &self,
        op: &Op,
        ips: &BTreeSet<IpAddr>,
    ) -> Result<BTreeMap<IpAddr, Vec<Port>>, OpenStackError> {
        let router_ports =
            [("device_id", &*self.router), ("fields", "id"), ("fields", "network_id")];
        let rows: Vec<PortNetwork> = self
            .client
            .get_all(op, &Request::new(Call::PortList, &["ports"]).query(&router_ports))
            .await?;
        let networks: BTreeSet<String> = rows.into_iter().map(|port| port.network_id).collect();
        let filters: Vec<String> = ips.iter().map(|ip| format!("ip_address={ip}")).collect();
        let mut found: BTreeMap<IpAddr, Vec<Port>> = BTreeMap::new();
        for chunk in filters.chunks(MAX_ADDRESSES) {
            let query: Vec<_> = chunk
                .iter()
                .map(|filter| ("fixed_ips", filter.as_str()))
                .collect();
            let rows: Vec<Port> = self
                .client
                .get_all(op, &Request::new(Call::PortList, &["ports"]).query(&query))
                .await?;
            for port in rows {
                if !networks.contains(&port.network_id) {
                    continue;
                }
                let port_ips: BTreeSet<IpAddr> =
                    port.fixed_ips.iter().map(|ip| ip.ip_address).collect();
                for ip in port_ips.intersection(ips) {
                    let ports = found.entry(*ip).or_default();
                    // A port with several of the addresses may be in several responses.
                    if !ports.iter().any(|listed| listed.id == port.id) {
                        ports.push(port.clone());
                    }
                }
            }
        }
        Ok(found)
    }

    /// Finds the port of each address that exactly one port has.
    pub(super) async fn unique_ports(
        &self,
        op: &Op,
        ips: &BTreeSet<IpAddr>,
    ) -> Result<BTreeMap<IpAddr, Port>, OpenStackError> {
        let mut unique = BTreeMap::new();
        for (ip, mut ports) in self.ports(op, ips).await? {
            if ports.len() == 1
                && let Some(port) = ports.pop()
            {
                unique.insert(ip, port);
            }
        }
        Ok(unique)
    }

    /// Lets a port accept packets from the networks in `add`, and no longer from those in `remove`.
    pub(super) async fn set_address_pairs(
        &self,
        op: &Op,
        mut port: Port,
        add: &BTreeSet<IpNet>,
        remove: &BTreeSet<IpNet>,
    ) -> Result<(), OpenStackError> {
        let id = port.id.clone();
        let path = ["ports", id.as_str()];
        let mut tries = 0;
        loop {
            // Without port security every packet passes, and Neutron rejects address pairs.
            if port.port_security_enabled == Some(false) {
                return Ok(());
            }
            let Some(observed) = port.allowed_address_pairs.as_deref() else {
                return missing_pairs(&port, add);
            };
            let mut pairs: Option<Vec<AddressPair>> = None;
            for network in remove.difference(add) {
                let current = pairs.as_deref().unwrap_or(observed);
                pairs = plan::without_pair(current, *network).or(pairs);
            }
            for network in add {
                let current = pairs.as_deref().unwrap_or(observed);
                pairs = plan::with_pair(current, *network).or(pairs);
            }
            let Some(pairs) = pairs else { return Ok(()) };
            let body = PortUpdate { allowed_address_pairs: Some(pairs), ..PortUpdate::default() };
            let mut request =
                Request::new(Call::PortUpdate, &path).with_detail("pod networks of the node");
            if self.extensions.if_match {
                request = request.if_revision(port.revision_number);
            }
            match self.client.put::<Port>(op, &request, &body).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_changed() && tries < MAX_ATTEMPTS => tries += 1,
                Err(error) => return Err(error),
            }
            port = self
                .client
                .get(op, &Request::new(Call::PortGet, &path))
                .await?;
        }
    }
}

/// Result for a port that does not show its address pairs: whatever it has would be lost if pairs
/// were added. Nothing can be removed.
fn missing_pairs(port: &Port, add: &BTreeSet<IpNet>) -> Result<(), OpenStackError> {
    if add.is_empty() {
        return Ok(());
    }
    let message = format!("Neutron does not show the allowed address pairs of port {}", port.id);
    Err(OpenStackError::new(Call::PortGet, ErrorCause::Input(message.into())))
}
