//! Flags of the node-IPAM controller. They are checked only if it runs: manifests set them, with
//! values for other allocators, while kube-controller-manager allocates.

use ipnet::IpNet;

use super::{at_most_one_of_each_family, rejected};
use crate::config::{
    ConfigError, NodeIpamOptions, PodNetwork, controller_names::NODE_IPAM, types::Config,
    value::parse_networks,
};

const ALLOCATOR: &str = "RangeAllocator";
const MASK: &str = "node-cidr-mask-size";
const MASK_IPV4: &str = "node-cidr-mask-size-ipv4";
const MASK_IPV6: &str = "node-cidr-mask-size-ipv6";

pub(super) fn check(config: &mut Config, errors: &mut Vec<ConfigError>) {
    if !config.generic.controllers.is_enabled(NODE_IPAM) || !config.node_ipam.allocate_node_cidrs {
        return;
    }
    let allocator = &config.node_ipam.allocator_type;
    if allocator != ALLOCATOR {
        let reason = format!("invalid CIDR allocator type; {NODE_IPAM} has {ALLOCATOR} only");
        errors.push(rejected("cidr-allocator-type", allocator, reason));
    }
    let clusters = config.generic.cluster_cidrs.clone();
    if clusters.is_empty() {
        let reason = format!("{NODE_IPAM} needs the networks of the cluster's pods");
        errors.push(rejected("cluster-cidr", "", reason));
    }
    let services = services(config, &clusters, errors);
    let networks = networks(config, &clusters, errors);
    config.node_ipam.pools = Some(NodeIpamOptions { networks, services });
}

/// Returns the networks of Services.
fn services(config: &Config, clusters: &[IpNet], errors: &mut Vec<ConfigError>) -> Vec<IpNet> {
    let value = &config.raw.service_cluster_ip_range;
    let mut reject =
        |reason: &str| errors.push(rejected("service-cluster-ip-range", value, reason));
    let services = match parse_networks(value) {
        Ok(services) => services,
        Err(reason) => {
            reject(&reason);
            return Vec::new();
        }
    };
    if let Err(reason) = at_most_one_of_each_family(&services) {
        reject(reason);
    }
    for cluster in clusters
        .iter()
        .filter(|cluster| services.iter().any(|service| service.contains(*cluster)))
    {
        reject(&format!("leaves nothing of --cluster-cidr={cluster} for nodes"));
    }
    services
}

/// Returns the cluster's networks with the mask size of each node's part.
fn networks(config: &Config, clusters: &[IpNet], errors: &mut Vec<ConfigError>) -> Vec<PodNetwork> {
    let raw = &config.raw;
    let mut both = raw.node_cidr_mask_size;
    let ipv4 = raw.node_cidr_mask_size_ipv4;
    let ipv6 = raw.node_cidr_mask_size_ipv6;
    let has_ipv4 = clusters.iter().any(|cluster| cluster.addr().is_ipv4());
    let has_ipv6 = clusters.iter().any(|cluster| cluster.addr().is_ipv6());
    let mut reject = |flag, value: i32, reason: &str| errors.push(rejected(flag, &value, reason));
    // Each mask flag must fit the address families of the cluster.
    let misplaced = if clusters.len() > 1 {
        Some(
            "not in a dual-stack cluster; use --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6",
        )
    } else if ipv4 != 0 || ipv6 != 0 {
        Some("not together with --node-cidr-mask-size-ipv4 or --node-cidr-mask-size-ipv6")
    } else {
        None
    };
    if let Some(reason) = misplaced
        && both != 0
    {
        reject(MASK, both, reason);
        both = 0;
    }
    if ipv4 != 0 && !clusters.is_empty() && !has_ipv4 {
        reject(MASK_IPV4, ipv4, "not in a cluster without an IPv4 network");
    }
    if ipv6 != 0 && !clusters.is_empty() && !has_ipv6 {
        reject(MASK_IPV6, ipv6, "not in a cluster without an IPv6 network");
    }
    let mut networks = Vec::new();
    for &cluster in clusters {
        let (flag, own, default) = if cluster.addr().is_ipv4() {
            (MASK_IPV4, ipv4, 24)
        } else {
            (MASK_IPV6, ipv6, 64)
        };
        let (flag, mask) = if own != 0 {
            (flag, own)
        } else if both != 0 {
            (MASK, both)
        } else {
            (flag, default)
        };
        let Ok(node_mask) = u8::try_from(mask) else {
            reject(flag, mask, "is no prefix length");
            continue;
        };
        let network = PodNetwork { cluster, node_mask };
        match network.block_count() {
            Ok(_) => networks.push(network),
            Err(error) => reject(flag, mask, &error.to_string()),
        }
    }
    networks
}
