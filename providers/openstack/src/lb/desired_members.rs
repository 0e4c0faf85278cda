//! Chooses the address of each node that a load balancer sends to, and builds the members.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use ccm_core::k8s::{AddressType, IpFamily, NodeView};

use super::model::DesiredPool;
use crate::{node_address::first_address, provider_id::ProviderId};

/// A node as a backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeBackend {
    /// Name of the node.
    pub node: Arc<str>,
    /// Address that the load balancer sends to.
    pub address: IpAddr,
    /// ID of the node's server, or `None` if the node has no valid provider ID.
    pub server: Option<Box<str>>,
}

/// A desired member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredMember {
    /// Name of the node.
    pub node: Arc<str>,
    /// Address of the node.
    pub address: IpAddr,
    /// Node port that the member listens on.
    pub port: u16,
    /// Port for health checks, or `None` to check `port`.
    pub monitor_port: Option<u16>,
}

/// Chooses the node address that a load balancer sends to: the first internal address of the
/// family, or else the first external one.
pub fn choose_address(node: &NodeView, family: Option<IpFamily>) -> Option<IpAddr> {
    first_address(node, AddressType::InternalIp, family)
        .or_else(|| first_address(node, AddressType::ExternalIp, family))
}

/// Chooses the nodes that have an address of the family, sorted by address. If two nodes share an
/// address, only the first is used.
pub fn choose_backends(nodes: &[Arc<NodeView>], family: Option<IpFamily>) -> Vec<NodeBackend> {
    let mut by_address = BTreeMap::new();
    for node in nodes {
        if let Some(address) = choose_address(node, family) {
            let server = node
                .provider_id
                .as_deref()
                .and_then(|id| ProviderId::parse(id).ok())
                .map(|id| id.server);
            let backend = NodeBackend { node: node.name.clone(), address, server };
            by_address.entry(address).or_insert(backend);
        }
    }
    by_address.into_values().collect()
}

/// Builds the members of a pool. A pool without a node port has none.
pub fn build_members(pool: &DesiredPool, backends: &[NodeBackend]) -> Vec<DesiredMember> {
    let Some(port) = pool.node_port else {
        return Vec::new();
    };
    backends
        .iter()
        .map(|backend| DesiredMember {
            node: backend.node.clone(),
            address: backend.address,
            port,
            monitor_port: pool.monitor_port,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use ccm_core::k8s::NodeAddress;

    use super::*;
    use crate::lb::model::PoolProtocol;

    const V4: &str = "192.168.0.1";
    const V6: &str = "2001:db8::1";

    fn node(addresses: &[(AddressType, &str)]) -> NodeView {
        let addresses = addresses
            .iter()
            .map(|(kind, text)| NodeAddress::new(*kind, *text))
            .collect();
        NodeView { addresses, ..NodeView::named("n1") }
    }

    // D01 D02 D03 D04 D05 D06 D07 D08 D09 D10 D11 D12 D13 D14 D15
    #[test]
    fn internal_addresses_of_the_family_go_first() {
        use AddressType::{ExternalDns, ExternalIp, InternalIp};
        let (four, six) = (Some(IpFamily::V4), Some(IpFamily::V6));
        type Case<'a> = (&'a [(AddressType, &'a str)], Option<IpFamily>, Option<&'a str>);
        let cases: [Case<'_>; 15] = [
            (&[], four, None),
            (&[], six, None),
            (&[(InternalIp, V4)], four, Some(V4)),
            (&[(InternalIp, V6)], six, Some(V6)),
            (&[(ExternalIp, "1.2.3.4"), (InternalIp, V4)], four, Some(V4)),
            (&[(ExternalIp, "2001:db8::2"), (InternalIp, V6)], six, Some(V6)),
            (&[(InternalIp, V4), (InternalIp, V6)], six, Some(V6)),
            (
                &[
                    (InternalIp, V6),
                    (ExternalIp, "1.2.3.4"),
                    (ExternalIp, "2001:db8::2"),
                    (InternalIp, V4),
                ],
                four,
                Some(V4),
            ),
            (&[(InternalIp, V4)], None, Some(V4)),
            (&[(InternalIp, V6)], None, Some(V6)),
            (&[(InternalIp, V6), (InternalIp, V4), (InternalIp, "2001:db8::3")], None, Some(V6)),
            (&[(InternalIp, V6), (ExternalIp, "2001:db8::2")], four, None),
            (&[(InternalIp, V4), (ExternalIp, "1.2.3.4")], six, None),
            (&[(ExternalDns, "n1.example.org")], four, None),
            (&[(ExternalDns, "n1.example.org")], six, None),
        ];
        for (addresses, family, wanted) in cases {
            let found = choose_address(&node(addresses), family).map(|ip| ip.to_string());
            assert_eq!(found.as_deref(), wanted, "{addresses:?} {family:?}");
        }
        assert_eq!(
            choose_address(&node(&[(ExternalIp, "1.2.3.4")]), four)
                .unwrap()
                .to_string(),
            "1.2.3.4"
        );
    }

    fn pool(node_port: Option<u16>, monitor_port: Option<u16>) -> DesiredPool {
        let (protocol, method) = (PoolProtocol::Tcp, "ROUND_ROBIN".into());
        DesiredPool {
            protocol,
            method,
            session_persistence: false,
            node_port,
            monitor_port,
            monitor: None,
            tags: Vec::new(),
        }
    }

    fn named(name: &str, address: &str) -> Arc<NodeView> {
        let provider_id = Some(format!("openstack:///{name}-id").into());
        Arc::new(NodeView {
            name: name.into(),
            provider_id,
            ..node(&[(AddressType::InternalIp, address)])
        })
    }

    // B01 B02 B03 B04 B05
    #[test]
    fn every_node_with_an_address_is_a_member_where_there_is_a_node_port() {
        let nodes =
            [named("b", "10.0.0.2"), named("a", "10.0.0.1"), Arc::new(NodeView::named("none"))];
        let found = choose_backends(&nodes, Some(IpFamily::V4));
        assert_eq!(build_members(&pool(None, None), &found), []);
        assert_eq!(build_members(&pool(None, None), &choose_backends(&nodes, None)), []);
        let plain = build_members(&pool(Some(8080), None), &found);
        let plain: Vec<_> = plain
            .iter()
            .map(|m| (&*m.node, m.address.to_string(), m.port, m.monitor_port))
            .collect();
        assert_eq!(
            plain,
            [("a", "10.0.0.1".into(), 8080, None), ("b", "10.0.0.2".into(), 8080, None)]
        );
        let checked = build_members(&pool(Some(8080), Some(32100)), &found);
        assert_eq!(
            checked.iter().map(|m| m.monitor_port).collect::<Vec<_>>(),
            [Some(32100), Some(32100)]
        );
    }

    #[test]
    fn two_nodes_with_one_address_are_one_member() {
        let found = choose_backends(&[named("a", "10.0.0.1"), named("b", "10.0.0.1")], None);
        assert_eq!(found.iter().map(|b| &*b.node).collect::<Vec<_>>(), ["a"]);
        assert_eq!(found[0].server.as_deref(), Some("a-id"));
    }
}
