//! Flags of the node-IPAM controller: when they are looked at, and what is wrong with them then.

use super::*;
use crate::config::PodNetwork;

const STARTED: &str = "--controllers=*,nodeipam --allocate-node-cidrs=true";

/// The networks and masks that the flags choose.
fn networks(flags: &str) -> Vec<(String, u8)> {
    let pools = run(&format!("{STARTED} {flags}"))
        .node_ipam
        .pools
        .expect("the controller is started");
    let pair = |network: PodNetwork| (network.cluster.to_string(), network.node_mask);
    pools.networks.into_iter().map(pair).collect()
}

#[test]
fn the_flags_are_not_looked_at_unless_the_controller_is_named_and_told_to_allocate() {
    let wrong = "--cidr-allocator-type=CloudAllocator --service-cluster-ip-range=nonsense --node-cidr-mask-size=-1 \
                 --node-cidr-mask-size-ipv6=200 --cluster-cidr=10.0.0.0/16";
    for controllers in [
        "--controllers=* --allocate-node-cidrs=true",
        "--controllers=*,-nodeipam --allocate-node-cidrs=true",
        "--controllers=*,nodeipam --allocate-node-cidrs=false",
        "--controllers=node-ipam-controller",
        "",
    ] {
        assert_eq!(run(&format!("{controllers} {wrong}")).node_ipam.pools, None, "{controllers}");
    }
    assert_eq!(refused(&format!("{STARTED} {wrong}")).len(), 4);
}

#[test]
fn masks_are_upstreams_unless_given() {
    let of = |list: &[(&str, u8)]| {
        list.iter()
            .map(|(net, mask)| ((*net).to_owned(), *mask))
            .collect::<Vec<_>>()
    };
    for (flags, expected) in [
        ("--cluster-cidr=10.244.0.0/16", of(&[("10.244.0.0/16", 24)])),
        ("--cluster-cidr=fd00::/48", of(&[("fd00::/48", 64)])),
        ("--cluster-cidr=10.0.0.0/8 --node-cidr-mask-size=26", of(&[("10.0.0.0/8", 26)])),
        ("--cluster-cidr=10.0.0.0/8 --node-cidr-mask-size-ipv4=26", of(&[("10.0.0.0/8", 26)])),
        ("--cluster-cidr=fd00::/48 --node-cidr-mask-size=60", of(&[("fd00::/48", 60)])),
        ("--cluster-cidr=fd00::/48 --node-cidr-mask-size-ipv6=60", of(&[("fd00::/48", 60)])),
        ("--cluster-cidr=fd00::/48,10.0.0.0/16", of(&[("fd00::/48", 64), ("10.0.0.0/16", 24)])),
        (
            "--cluster-cidr=10.0.0.0/16,fd00::/48 --node-cidr-mask-size-ipv4=25 --node-cidr-mask-size-ipv6=61",
            of(&[("10.0.0.0/16", 25), ("fd00::/48", 61)]),
        ),
        ("--cluster-cidr=10.0.0.0/24", of(&[("10.0.0.0/24", 24)])),
        ("--cluster-cidr=10.0.0.0/8 --node-cidr-mask-size=32", of(&[("10.0.0.0/8", 32)])),
    ] {
        assert_eq!(networks(flags), expected, "{flags}");
    }
    let pools = run(&format!(
        "{STARTED} --cluster-cidr=10.0.0.0/8 --service-cluster-ip-range=10.96.0.0/12,fd01::/108"
    ));
    let services = pools.node_ipam.pools.expect("started").services;
    assert_eq!(services, ["10.96.0.0/12".parse().unwrap(), "fd01::/108".parse().unwrap()]);
}

/// Flags beside those that start the controller, and the one message.
const REFUSALS: &[(&str, &str)] = &[
    ("", "--cluster-cidr=: node-ipam-controller needs the networks of the cluster's pods"),
    (
        "--cluster-cidr=10.0.0.0/16 --cidr-allocator-type=CloudAllocator",
        "--cidr-allocator-type=CloudAllocator: invalid CIDR allocator type; node-ipam-controller has RangeAllocator only",
    ),
    (
        "--cluster-cidr=10.0.0.0/16 --cidr-allocator-type=IPAMFromCluster",
        "--cidr-allocator-type=IPAMFromCluster: invalid CIDR allocator type; node-ipam-controller has RangeAllocator only",
    ),
    (
        "--cluster-cidr=10.0.0.0/16 --service-cluster-ip-range=10.96.0.0",
        "--service-cluster-ip-range=10.96.0.0: invalid CIDR address: 10.96.0.0",
    ),
    (
        "--cluster-cidr=10.0.0.0/16 --service-cluster-ip-range=10.1.0.0/16,10.2.0.0/16",
        "--service-cluster-ip-range=10.1.0.0/16,10.2.0.0/16: two networks must be of different families, one IPv4 and one IPv6",
    ),
    (
        "--cluster-cidr=10.0.0.0/16 --service-cluster-ip-range=10.1.0.0/16,fd00::/64,10.2.0.0/16",
        "--service-cluster-ip-range=10.1.0.0/16,fd00::/64,10.2.0.0/16: at most two networks are possible, one IPv4 and one IPv6",
    ),
    (
        "--cluster-cidr=10.0.0.0/16 --service-cluster-ip-range=10.0.0.0/12",
        "--service-cluster-ip-range=10.0.0.0/12: leaves nothing of --cluster-cidr=10.0.0.0/16 for nodes",
    ),
    (
        "--cluster-cidr=10.0.0.0/16,fd00::/48 --node-cidr-mask-size=26",
        "--node-cidr-mask-size=26: not in a dual-stack cluster; use --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6",
    ),
    (
        "--cluster-cidr=10.0.0.0/16 --node-cidr-mask-size=26 --node-cidr-mask-size-ipv4=26",
        "--node-cidr-mask-size=26: not together with --node-cidr-mask-size-ipv4 or --node-cidr-mask-size-ipv6",
    ),
    (
        "--cluster-cidr=fd00::/48 --node-cidr-mask-size-ipv4=26",
        "--node-cidr-mask-size-ipv4=26: not in a cluster without an IPv4 network",
    ),
    (
        "--cluster-cidr=10.0.0.0/16 --node-cidr-mask-size-ipv6=64",
        "--node-cidr-mask-size-ipv6=64: not in a cluster without an IPv6 network",
    ),
    (
        "--cluster-cidr=10.0.0.0/16 --node-cidr-mask-size=15",
        "--node-cidr-mask-size=15: a node's network would be larger than the cluster's network 10.0.0.0/16; its mask must be at least 16",
    ),
    (
        "--cluster-cidr=10.0.0.0/25",
        "--node-cidr-mask-size-ipv4=24: a node's network would be larger than the cluster's network 10.0.0.0/25; its mask must be at least 25",
    ),
    (
        "--cluster-cidr=10.0.0.0/16 --node-cidr-mask-size-ipv4=33",
        "--node-cidr-mask-size-ipv4=33: the mask of a network like 10.0.0.0/16 can be at most 32",
    ),
    (
        "--cluster-cidr=10.0.0.0/16 --node-cidr-mask-size=-1",
        "--node-cidr-mask-size=-1: is no prefix length",
    ),
    (
        "--cluster-cidr=fd00::/32 --node-cidr-mask-size-ipv6=49",
        "--node-cidr-mask-size-ipv6=49: the node CIDR size is too big: an IPv6 network can hold at most 2^16 blocks, so the mask for fd00::/32 can be at most 48",
    ),
];

#[test]
fn networks_and_masks_that_cannot_be_used_are_refused_by_name() {
    for (flags, message) in REFUSALS {
        assert_eq!(refused(&format!("{STARTED} {flags}")), [*message], "{flags}");
    }
}

#[test]
fn its_mistakes_are_reported_together_with_the_others() {
    let wrong = refused(&format!(
        "{STARTED} --cluster-cidr=10.0.0.0/16,10.1.0.0/16 --cidr-allocator-type=CloudAllocator --concurrent-node-syncs=0 \
         --service-cluster-ip-range=x --node-cidr-mask-size=24 --node-cidr-mask-size-ipv6=64"
    ));
    assert_eq!(wrong.len(), 6, "{wrong:#?}");
}

#[test]
fn allocation_that_nobody_does_is_one_warning_that_says_what_to_do() {
    let warnings = |flags: &str| run(flags).warnings().to_vec();
    let warned = warnings("--allocate-node-cidrs=true");
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains("--controllers=*,node-ipam-controller"), "{warned:?}");
    assert_eq!(warnings("--allocate-node-cidrs=true --controllers=*,-nodeipam").len(), 1);
    assert_eq!(warnings("--allocate-node-cidrs=false"), [""; 0]);
    assert_eq!(warnings(&format!("{STARTED} --cluster-cidr=10.0.0.0/16")), [""; 0]);
}
