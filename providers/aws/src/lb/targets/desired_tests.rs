use ccm_core::k8s::{EndpointView, Protocol, SlicePort, Taint};

use crate::{
    api::elb::ElbProtocol,
    lb::{
        targets::desired::*,
        test_fixtures::{desired, listener},
    },
};

#[test]
fn only_a_node_that_karpenter_removes_gets_no_traffic() {
    let cases = [
        (vec![], true),
        (vec![(DISRUPTED_TAINT, "NoSchedule")], false),
        (vec![(DISRUPTED_TAINT, "PreferNoSchedule")], true),
        (vec![(DISRUPTED_TAINT, "NoExecute")], true),
        (vec![("node.kubernetes.io/unschedulable", "NoSchedule")], true),
        (
            vec![
                ("node.kubernetes.io/unschedulable", "NoSchedule"),
                (DISRUPTED_TAINT, "NoSchedule"),
            ],
            false,
        ),
    ];
    for (taints, expected) in cases {
        let taint = |(key, effect): &(&str, &str)| Taint {
            key: (*key).into(),
            value: "".into(),
            effect: (*effect).into(),
        };
        let node = NodeView {
            taints: taints.iter().map(taint).collect(),
            ..NodeView::named("n")
        };
        assert_eq!(accepts_traffic(&node), expected, "{taints:?}");
    }
}

#[test]
fn every_instance_is_a_target_of_every_listener_by_its_node_port() {
    let listeners =
        vec![listener(80, 30080, ElbProtocol::Tcp), listener(53, 30053, ElbProtocol::Udp)];
    let found = instance_targets(
        &DesiredLoadBalancer { listeners, ..desired() },
        &["i-2", "i-1"].map(InstanceId::from).into(),
    );
    let both = |port| {
        ["i-1", "i-2"]
            .map(|id| Target { id: id.into(), port, zone: None })
            .to_vec()
    };
    let place = |port: u16, protocol| (port.try_into().unwrap(), protocol);
    assert_eq!(
        found,
        [(place(80, ElbProtocol::Tcp), both(30080)), (place(53, ElbProtocol::Udp), both(30053))]
            .into()
    );
}

/// An endpoint: whether it is ready, whether it is about to end, and its addresses.
fn endpoint((ready, terminating, addresses): &(bool, bool, &[&str])) -> EndpointView {
    EndpointView {
        addresses: addresses
            .iter()
            .map(|address| address.parse().unwrap())
            .collect(),
        node: None,
        zone: None,
        ready: *ready,
        serving: true,
        terminating: *terminating,
    }
}

fn slice(
    ports: &[(&str, Protocol, u16)],
    endpoints: &[(bool, bool, &[&str])],
) -> Arc<EndpointSliceView> {
    let port = |(name, protocol, port): &(&str, Protocol, u16)| SlicePort {
        name: (*name).into(),
        protocol: *protocol,
        port: (*port).try_into().ok(),
    };
    Arc::new(EndpointSliceView {
        ports: ports.iter().map(port).collect(),
        endpoints: endpoints.iter().map(endpoint).collect(),
        ..EndpointSliceView::named("default", "web-1", "web")
    })
}

#[test]
fn ready_endpoints_of_the_port_and_the_family_are_targets() {
    let dns = [
        ("dns", Protocol::Udp, 5353),
        ("dns", Protocol::Tcp, 5354),
        ("metrics", Protocol::Udp, 9153),
    ];
    let slices = [
        slice(&dns, &[(true, false, &["10.0.0.2", "2001:db8::2"]), (false, false, &["10.0.0.3"])]),
        slice(
            &dns[..1],
            &[
                (true, true, &["10.0.0.4"]),
                (true, false, &["10.0.0.1"]),
                (true, false, &["192.168.0.1"]),
            ],
        ),
        slice(&[("dns", Protocol::Udp, 0)], &[(true, false, &["10.0.0.9"])]),
        // An endpoint may be in two slices while it moves from one to the other.
        slice(&dns[..1], &[(true, false, &["10.0.0.1"])]),
    ];
    let vpc = ["10.0.0.0/16", "2001:db8::/56"].map(|network| network.parse().unwrap());
    let of = |family: IpFamily| {
        let mut listener = listener(53, 1, ElbProtocol::Udp);
        listener.target_group.service_port = ("dns".into(), Protocol::Udp);
        listener.target_group.family = family;
        let found = ip_targets(
            &DesiredLoadBalancer { listeners: vec![listener], ..desired() },
            &slices,
            &vpc,
        );
        let line = |target: &Target| {
            format!("{} {} {}", target.id, target.port, target.zone.as_deref().unwrap_or("-"))
        };
        found.values().flatten().map(line).collect::<Vec<_>>()
    };
    assert_eq!(of(IpFamily::V4), ["10.0.0.1 5353 -", "10.0.0.2 5353 -", "192.168.0.1 5353 all"]);
    assert_eq!(of(IpFamily::V6), ["2001:db8::2 5353 -"]);
}
