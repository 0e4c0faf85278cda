//! IPv6 prefixes for source NAT, which UDP uses on dual-stack load balancers.

use ccm_core::{
    k8s::{IpFamily, Protocol, ServiceView},
    provider::{ErrorKind, ReadMode},
};

use super::fixture::{Fixture, published, service, with};
use crate::{
    api::{
        Action,
        elb::{IpAddressType, LoadBalancerZone},
    },
    fake::Crash,
    lb::spec::annotations::PREFIX,
};

const NAME: &str = "source-nat-ipv6-prefixes";
const FIRST: &str = "2001:db8:0:0:1::/80";
const OTHER: &str = "2001:db8:0:0:2::/80";

/// A cluster whose public subnets have IPv6 networks, and a dual-stack Service in two of them.
fn dual(protocol: Protocol) -> (Fixture, ServiceView) {
    let rig = Fixture::new(1);
    for (n, subnet) in rig.world.public.iter().enumerate() {
        rig.aws.add_ipv6(subnet, &format!("2001:db8:0:{n}::/64"));
    }
    let mut web = service("web", &[53]);
    web.ports[0].protocol = protocol;
    web.ip_families = [IpFamily::V6].into();
    let web = with(web, "nlb-target-type", "ip");
    let web = with(web, "ip-address-type", "dualstack");
    let web = in_subnets(&rig, with(web, "enable-prefix-for-ipv6-source-nat", "on"), 2);
    (rig, web)
}

fn in_subnets(rig: &Fixture, web: ServiceView, count: usize) -> ServiceView {
    let ids: Vec<_> = rig.world.public[..count]
        .iter()
        .map(ToString::to_string)
        .collect();
    with(web, "subnets", &ids.join(","))
}

/// The prefixes of the load balancer, in the order of the subnets.
fn prefixes(rig: &Fixture) -> Vec<String> {
    let zones = &rig.aws.load_balancers()[0].zones;
    let mut found = Vec::new();
    for subnet in &rig.world.public {
        let zone = LoadBalancerZone::find(zones, subnet);
        found.extend(zone.map(|zone| zone.source_nat_prefixes.join(",")));
    }
    found
}

const AUTO: [&str; 3] = ["2001:db8::/80", "2001:db8:0:1::/80", "2001:db8:0:2::/80"];

#[tokio::test(start_paused = true)]
async fn a_new_load_balancer_gets_its_prefixes() {
    let (rig, web) = dual(Protocol::Udp);
    let web = with(web, NAME, &format!("{FIRST},auto_assigned"));
    let web = published(&web, &rig.settle(&web).await);
    assert_eq!(prefixes(&rig), ["2001:db8:0:0:1::/80", AUTO[1]]);
    assert_eq!(rig.aws.calls(Action::SetSubnets), 0);
    let rig = rig.restart();
    rig.aws.reset_calls();
    assert_eq!(rig.plan_in_shadow(&web).await, []);
    rig.settle(&web).await;
    assert_eq!(rig.aws.writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn prefixes_follow_their_annotation_without_udp_and_stay_when_it_goes() {
    let (rig, plain) = dual(Protocol::Tcp);
    let plain = published(&plain, &rig.settle(&plain).await);
    let second = "2001:db8:0:1:2::/80";
    for (value, expected, calls) in [
        (format!("{FIRST},auto_assigned"), [FIRST, AUTO[1]], 1),
        (format!("auto_assigned,{second}"), [FIRST, second], 1),
        (format!("{OTHER},{second}"), [OTHER, second], 1),
        // The host part of a network is no difference.
        (format!("2001:db8:0:0:2::7/80,{second}"), [OTHER, second], 0),
        ("auto_assigned,auto_assigned".to_owned(), [OTHER, second], 0),
        (String::new(), [OTHER, second], 0),
    ] {
        let web = with(plain.clone(), NAME, &value);
        rig.aws.reset_calls();
        let planned = rig.plan_in_shadow(&web).await;
        assert_eq!(planned.len(), calls, "{value}: {planned:?}");
        assert_eq!(rig.aws.writes(), 0, "{value}");
        rig.settle(&web).await;
        assert_eq!(rig.aws.calls(Action::SetSubnets), calls, "{value}");
        assert_eq!(rig.aws.writes(), calls, "{value}");
        assert_eq!(networks(&prefixes(&rig)), networks(&expected), "{value}");
        rig.ensure(&web, ReadMode::Cached).await.result.unwrap();
        assert_eq!(rig.aws.writes(), calls, "{value}: again");
    }
}

fn networks(texts: &[impl AsRef<str>]) -> Vec<ipnet::Ipv6Net> {
    texts
        .iter()
        .map(|text| text.as_ref().parse().unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn while_udp_uses_a_prefix_another_one_is_refused_and_nothing_is_changed() {
    let (rig, web) = dual(Protocol::Udp);
    let web = with(web, NAME, &format!("{FIRST},auto_assigned"));
    let web = published(&web, &rig.settle(&web).await);
    let before = rig.aws.snapshot();
    rig.aws.reset_calls();
    let changed = with(web.clone(), NAME, &format!("{OTHER},auto_assigned"));
    for mode in [ReadMode::Cached, ReadMode::Fresh] {
        let error = rig.ensure(&changed, mode).await.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(NAME), "{error}");
    }
    assert_eq!(rig.aws.writes(), 0);
    let there = rig.aws.snapshot();
    assert!(there == before, "{}", before.diff(&there));
    rig.settle(&web).await;
    assert_eq!(rig.aws.writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_prefix_is_changed_once_udp_is_gone_in_the_same_edit() {
    let (rig, web) = dual(Protocol::Udp);
    let web = with(web, NAME, &format!("{FIRST},auto_assigned"));
    let mut web = published(&web, &rig.settle(&web).await);
    web.ports = dual(Protocol::Tcp).1.ports;
    let web = with(web, NAME, &format!("{OTHER},auto_assigned"));
    rig.settle(&web).await;
    assert_eq!(networks(&prefixes(&rig)), networks(&[OTHER, AUTO[1]]));
    assert_eq!(rig.aws.calls(Action::SetSubnets), 1);
}

#[tokio::test(start_paused = true)]
async fn dual_stack_and_source_nat_go_in_one_request() {
    let (rig, mut web) = dual(Protocol::Tcp);
    web.ip_families = [IpFamily::V4].into();
    let web = published(&web, &rig.settle(&web).await);
    let mut v4 = web.clone();
    for suffix in ["ip-address-type", "enable-prefix-for-ipv6-source-nat"] {
        v4.annotations.remove(&*format!("{PREFIX}{suffix}"));
    }
    rig.aws.reset_calls();
    rig.settle(&v4).await;
    let load_balancer = rig.aws.load_balancers().remove(0);
    assert_eq!(load_balancer.ip_address_type, Some(IpAddressType::Ipv4));
    assert_eq!(load_balancer.ipv6_source_nat, Some(false));
    assert_eq!((rig.aws.calls(Action::SetSubnets), rig.aws.writes()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn another_subnet_changes_neither_prefixes_nor_source_nat() {
    // Whether or not the Service says anything about source NAT, and about prefixes, any more.
    for (prefixes_after, source_nat_after) in [
        (format!("{FIRST},auto_assigned,auto_assigned"), "on"),
        ("auto_assigned,auto_assigned,auto_assigned".to_owned(), "on"),
        (String::new(), "on"),
    ] {
        let (rig, web) = dual(Protocol::Udp);
        let web = with(web, NAME, &format!("{FIRST},auto_assigned"));
        let web = published(&web, &rig.settle(&web).await);
        let more = with(in_subnets(&rig, web, 3), NAME, &prefixes_after);
        let more = with(more, "enable-prefix-for-ipv6-source-nat", source_nat_after);
        rig.settle(&more).await;
        let load_balancer = rig.aws.load_balancers().remove(0);
        assert_eq!(load_balancer.ipv6_source_nat, Some(true), "{prefixes_after}");
        assert_eq!(networks(&prefixes(&rig)), networks(&[FIRST, AUTO[1], AUTO[2]]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_prefix_outside_of_its_subnet_is_refused() {
    let (rig, web) = dual(Protocol::Udp);
    let there = published(&web, &rig.settle(&web).await);
    let before = rig.aws.snapshot();
    let swapped = with(there.clone(), NAME, &format!("auto_assigned,{FIRST}"));
    let error = rig
        .ensure(&swapped, ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let text = error.to_string();
    assert!(text.contains(NAME) && text.contains("[2001:db8:0:1::/64]"), "{text}");
    let now = rig.aws.snapshot();
    assert!(now == before, "{}", before.diff(&now));
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_interrupted_is_continued() {
    for crash in [Crash::Before, Crash::After] {
        let (rig, web) = dual(Protocol::Tcp);
        let web = published(&web, &rig.settle(&web).await);
        let web = with(web, NAME, &format!("{OTHER},auto_assigned"));
        rig.aws.crash_at_write(1, crash);
        rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
        let rig = rig.restart();
        rig.settle(&web).await;
        assert_eq!(networks(&prefixes(&rig)), networks(&[OTHER, AUTO[1]]), "{crash:?}");
    }
}
