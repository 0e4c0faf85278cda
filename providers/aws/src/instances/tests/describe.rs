//! What is answered for a Node.

use ccm_core::k8s::{AddressType, IpFamily};

use super::*;
use crate::api::ec2::InstanceState;

/// Every code that the provider knows, and some that it does not.
const CODES: &[&str] = &[
    "RequestLimitExceeded",
    "UnauthorizedOperation",
    "AuthFailure",
    "ExpiredToken",
    "InternalError",
    "ServiceUnavailable",
    "InvalidParameterValue",
    "InvalidInstanceID",
    "InvalidInstanceID.Malformed",
    "InvalidGroup.NotFound",
    "InvalidRoute.NotFound",
    "LoadBalancerNotFound",
    "NotFound",
    "Unheard.Of",
];

// IN4, IN14
#[tokio::test(start_paused = true)]
async fn a_provider_id_that_is_there_stays_and_a_missing_one_is_made() {
    let rig = Fixture::new(0);
    let id = rig
        .instance()
        .instance_type("c3.large")
        .public("1.2.3.4", "ec2-1-2-3-4.compute.amazonaws.com")
        .launch();
    let wrong_zone = format!("aws:///us-east-9z/{id}");
    let meta = rig.meta(query(node(&wrong_zone), MetadataScope::All)).await;
    assert_eq!(meta.provider_id.as_deref(), Some(&*wrong_zone));
    assert_eq!(meta.instance_type.as_deref(), Some("c3.large"));
    assert_eq!(
        (meta.zone.as_deref(), meta.region.as_deref()),
        (Some("us-west-2a"), Some("us-west-2"))
    );
    assert_eq!(
        kinds(&meta.addresses),
        ["InternalIP", "ExternalIP", "InternalDNS", "Hostname", "ExternalDNS"]
    );
    assert_eq!(rig.calls(Action::DescribeInstances), 1);
    let meta = rig.meta(query(named(&id), MetadataScope::PowerState)).await;
    assert_eq!(meta.provider_id.as_deref(), Some(&*format!("aws:///us-west-2a/{id}")));
}

// IN2
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_an_error_of_its_own_and_costs_no_call() {
    let rig = Fixture::new(1);
    let good = query(node_of(&rig.world.nodes[0]), MetadataScope::PowerState);
    let answers = rig
        .ask(&[
            query(node("aws:///a/vol-1"), MetadataScope::PowerState),
            good,
            query(named(""), MetadataScope::PowerState),
        ])
        .await;
    assert_eq!(kind(&answers[0]), Some(ErrorKind::InvalidInput));
    assert_eq!(power(&answers[1]), Some(PowerState::Running));
    assert_eq!(kind(&answers[2]), Some(ErrorKind::InvalidInput), "IN5");
    assert_eq!(rig.calls(Action::DescribeInstances), 1);
}

// IN9, IN10
#[tokio::test(start_paused = true)]
async fn only_stopped_is_shut_down_and_only_terminated_is_gone() {
    let rig = Fixture::new(0);
    let table = [
        (InstanceState::Pending, PowerState::Transitional),
        (InstanceState::Running, PowerState::Running),
        (InstanceState::ShuttingDown, PowerState::Transitional),
        (InstanceState::Stopping, PowerState::Transitional),
        (InstanceState::Stopped, PowerState::Stopped),
        (InstanceState::Terminated, PowerState::Terminated),
        (InstanceState::Unknown, PowerState::Unknown),
    ];
    for (state, expected) in table {
        let id = rig.instance().state(state).launch();
        let answer = rig
            .ask_one(query(node_of(&id), MetadataScope::PowerState))
            .await;
        assert_eq!(power(&answer), Some(expected), "{state:?}");
    }
}

// IN9, IN10, IN11, IN16
#[tokio::test(start_paused = true)]
async fn an_instance_that_aws_does_not_know_is_not_found() {
    let rig = Fixture::new(1);
    rig.world.aws.forget_instance(&rig.world.nodes[0]);
    let answer = rig
        .ask_one(query(node_of(&rig.world.nodes[0]), MetadataScope::PowerState))
        .await;
    assert_eq!(answer.unwrap(), InstanceStatus::NotFound);
}

// IN16
#[tokio::test(start_paused = true)]
async fn an_absence_proves_nothing_about_another_region() {
    let rig = Fixture::new(0);
    let gone = "i-0123456789abcdef0";
    let found = rig.instance().launch();
    for need in [MetadataScope::PowerState, MetadataScope::Addresses, MetadataScope::All] {
        for zone in ["eu-west-1a", "us-west-1a", "us-gov-west-1a", "us-east-1-bos-1a"] {
            for id in [gone, "x/fargate-10.0.99.98"] {
                let error = rig
                    .error(query(node(format!("aws:///{zone}/{id}")), need))
                    .await;
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{zone}: {error}");
                assert!(error.to_string().contains("us-west-2"), "{error}");
            }
            // The zone decides about nothing else.
            let answer = rig
                .ask_one(query(node(format!("aws:///{zone}/{found}")), need))
                .await;
            assert!(matches!(answer, Ok(InstanceStatus::Found { .. })), "{answer:?}");
        }
        for zone in
            ["/us-west-2b", "/us-west-2-lax-1a", "account/us-west-2-wl1-las-wlz-1", "/", "/zone"]
        {
            let answer = rig
                .ask_one(query(node(format!("aws://{zone}/{gone}")), need))
                .await;
            assert_eq!(answer.unwrap(), InstanceStatus::NotFound, "{zone}");
        }
        assert_eq!(rig.ask_one(query(node(gone), need)).await.unwrap(), InstanceStatus::NotFound);
    }
}

// IN16
#[tokio::test(start_paused = true)]
async fn doubt_is_never_absence_whatever_aws_answers() {
    for code in CODES {
        let rig = Fixture::new(1);
        for action in [Action::DescribeInstances, Action::DescribeNetworkInterfaces] {
            rig.world.aws.fail_always(action, code);
        }
        let queries = [
            node_of(&rig.world.nodes[0]),
            node("aws:///a/i-0123456789abcdef0"),
            named("i-0123456789abcdef1"),
            named("ip-10-0-99-99.us-west-2.compute.internal"),
            named("worker-1"),
            node("aws:///a/b/fargate-10.0.99.98"),
        ];
        for need in [MetadataScope::PowerState, MetadataScope::Addresses, MetadataScope::All] {
            let answers = rig
                .ask(&queries.clone().map(|node| query(node, need)))
                .await;
            assert!(answers.iter().all(Result::is_err), "{code}: {answers:?}");
        }
        for node in queries {
            assert!(
                rig.ask_one(query(node, MetadataScope::PowerState))
                    .await
                    .is_err(),
                "{code}"
            );
        }
    }
}

// IN16
#[tokio::test(start_paused = true)]
async fn a_text_about_not_found_proves_nothing() {
    let rig = Fixture::new(2);
    // The batch is refused, but each alone is there.
    rig.world
        .aws
        .fail_next(Action::DescribeInstances, "InvalidInstanceID.NotFound");
    let queries = [0, 1].map(|n| query(node_of(&rig.world.nodes[n]), MetadataScope::PowerState));
    let answers = rig.ask(&queries).await;
    assert_eq!(answers.iter().map(power).collect::<Vec<_>>(), [Some(PowerState::Running); 2]);
}

// IN7
#[tokio::test(start_paused = true)]
async fn a_name_finds_every_instance_that_is_there_and_none_that_was() {
    let rig = Fixture::new(0);
    for state in [
        InstanceState::Pending,
        InstanceState::Running,
        InstanceState::ShuttingDown,
        InstanceState::Stopping,
        InstanceState::Stopped,
        InstanceState::Terminated,
    ] {
        let name = format!("ip-10-0-128-{}.us-west-2.compute.internal", state as u8 + 50);
        rig.instance()
            .private_dns_name(&name)
            .private_ip(format!("10.0.128.{}", state as u8 + 50))
            .state(state)
            .launch();
        let answer = rig
            .ask_one(query(named(&name), MetadataScope::PowerState))
            .await
            .unwrap();
        assert_eq!(
            matches!(answer, InstanceStatus::Found { .. }),
            state != InstanceState::Terminated,
            "{state:?}"
        );
    }
}

// IN12
#[tokio::test(start_paused = true)]
async fn a_name_leads_to_addresses() {
    let rig =
        Fixture::with(0, Settings { node_ip_families: vec![IpFamily::V4], ..Settings::default() });
    let public = ("1.2.3.4", "ec2-1-2-3-4.compute.amazonaws.com");
    rig.instance()
        .private_ip("10.0.128.100")
        .public(public.0, public.1)
        .launch();
    let meta = rig
        .meta(query(named("ip-10-0-128-100.us-west-2.compute.internal"), MetadataScope::Addresses))
        .await;
    assert_eq!(meta.addresses.len(), 5);
    let id = rig
        .instance()
        .resource_name()
        .public("1.2.3.5", "")
        .launch();
    for name in [format!("{id}.ec2.internal"), id.to_string()] {
        let meta = rig
            .meta(query(named(&name), MetadataScope::Addresses))
            .await;
        assert_eq!(kinds(&meta.addresses), ["InternalIP", "ExternalIP", "InternalDNS", "Hostname"]);
    }
}

// IN12
#[tokio::test(start_paused = true)]
async fn an_ipv6_cluster_gets_one_address_and_no_names() {
    let rig =
        Fixture::with(0, Settings { node_ip_families: vec![IpFamily::V6], ..Settings::default() });
    let id = rig
        .instance()
        .ipv6("2001:db8::1")
        .ipv6("2001:db8::2")
        .launch();
    let meta = rig.meta(query(named(&id), MetadataScope::Addresses)).await;
    assert_eq!(meta.addresses, [NodeAddress::new(AddressType::InternalIp, "2001:db8::1")]);
}

// IN12
#[tokio::test(start_paused = true)]
async fn a_name_that_is_not_ec2s_own_proves_no_absence() {
    let rig = Fixture::new(1);
    for name in [
        "worker-1",
        "ip-10-0-99-1",
        "ip-10-0-99-1.example.org",
        "ip-10-0-99-1.eu-west-1.compute.internal",
    ] {
        let error = rig
            .error(query(named(name), MetadataScope::PowerState))
            .await;
        assert_eq!(error.kind(), ErrorKind::NotFound, "{name}");
    }
    let gone = named("ip-10-0-99-1.us-west-2.compute.internal");
    assert_eq!(
        rig.ask_one(query(gone, MetadataScope::PowerState))
            .await
            .unwrap(),
        InstanceStatus::NotFound
    );
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_the_clusters_tag_is_there_and_reported() {
    let rig = Fixture::new(0);
    let id = rig
        .world
        .aws
        .instance(&rig.world.private[0])
        .private_ip("10.0.128.100")
        .launch();
    for name in ["ip-10-0-128-100.us-west-2.compute.internal", "ip-10-0-128-100.example.org"] {
        let error = rig
            .error(query(named(name), MetadataScope::PowerState))
            .await;
        assert!(error.to_string().contains(&*id), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn another_domain_does_not_hide_an_instance() {
    let rig = Fixture::new(0);
    rig.instance()
        .private_ip("10.0.128.100")
        .private_dns_name("ip-10-0-128-100.us-west-2.compute.internal")
        .launch();
    for name in ["ip-10-0-128-100.example.org", "ip-10-0-128-100"] {
        let meta = rig
            .meta(query(named(name), MetadataScope::PowerState))
            .await;
        assert!(meta.provider_id.is_some(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_instances_of_one_name_are_an_error() {
    let rig = Fixture::new(0);
    for ip in ["10.0.128.100", "10.0.128.101"] {
        rig.instance()
            .private_ip(ip)
            .private_dns_name("twin.example.org")
            .launch();
    }
    let error = rig
        .error(query(named("twin.example.org"), MetadataScope::PowerState))
        .await;
    assert_eq!(error.to_string(), "multiple instances found for name: twin.example.org");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_another_cluster_uses_too_is_ours() {
    let rig = Fixture::new(0);
    let name = "ip-10-0-128-100.us-west-2.compute.internal";
    rig.instance().private_ip("10.0.128.100").launch();
    rig.world
        .aws
        .instance(&rig.world.private[0])
        .private_dns_name(name)
        .tag("kubernetes.io/cluster/other", "owned")
        .launch();
    assert_eq!(
        power(
            &rig.ask_one(query(named(name), MetadataScope::PowerState))
                .await
        ),
        Some(PowerState::Running)
    );
}

// IN15
#[tokio::test(start_paused = true)]
async fn fargate_nodes_are_interfaces_and_are_never_shut_down() {
    let rig = Fixture::new(0);
    let dns = "ip-10-0-128-88.us-west-2.compute.internal";
    rig.world
        .aws
        .fargate(&rig.world.private[0], "10.0.128.88", dns);
    rig.world
        .aws
        .fargate(&rig.world.private[1], "10.0.144.89", "");
    let by_name =
        node("aws:///us-west-2a/1abc-2def/fargate-ip-10-0-128-88.us-west-2.compute.internal");
    let by_ip = node("aws:///us-west-2b/1abc-2def/fargate-10.0.144.89");
    let gone = node("aws:///us-west-2b/1abc-2def/fargate-10.0.144.90");
    let queries = [&by_name, &by_ip, &gone].map(|node| query(node.clone(), MetadataScope::All));
    let answers = rig.ask(&queries).await;
    assert_eq!(rig.calls(Action::DescribeNetworkInterfaces), 1);
    assert_eq!(
        answers.iter().map(power).collect::<Vec<_>>(),
        [Some(PowerState::Running), Some(PowerState::Running), None]
    );
    let meta = rig.meta(query(by_name, MetadataScope::All)).await;
    assert_eq!(kinds(&meta.addresses), ["InternalIP", "InternalDNS"]);
    assert_eq!((meta.instance_type, meta.zone.as_deref()), (None, Some("us-west-2a")));
    let meta = rig.meta(query(by_ip, MetadataScope::All)).await;
    assert_eq!(
        (kinds(&meta.addresses), meta.zone.as_deref()),
        (vec!["InternalIP"], Some("us-west-2b"))
    );
    assert_eq!(
        (rig.calls(Action::DescribeInstances), rig.calls(Action::DescribeInstanceTopology)),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_repeated_without_a_call_as_long_as_it_may_be_old() {
    let rig = Fixture::new(1);
    let node = node_of(&rig.world.nodes[0]);
    for need in [MetadataScope::PowerState, MetadataScope::Addresses, MetadataScope::PowerState] {
        rig.ask_one(aged(node.clone(), need, 60)).await.unwrap();
    }
    rig.ask_one(aged(
        named(&format!("{}.ec2.internal", rig.world.nodes[0])),
        MetadataScope::PowerState,
        60,
    ))
    .await
    .unwrap();
    assert_eq!(rig.calls(Action::DescribeInstances), 1);
    tokio::time::advance(Duration::from_secs(11)).await;
    rig.ask_one(aged(node.clone(), MetadataScope::Addresses, 60))
        .await
        .unwrap();
    assert_eq!(rig.calls(Action::DescribeInstances), 1, "addresses may be a minute old");
    rig.ask_one(aged(node.clone(), MetadataScope::PowerState, 60))
        .await
        .unwrap();
    assert_eq!(rig.calls(Action::DescribeInstances), 2, "existence is ten seconds old at most");
    rig.ask_one(query(node, MetadataScope::Addresses))
        .await
        .unwrap();
    assert_eq!(rig.calls(Action::DescribeInstances), 3);
}

#[tokio::test(start_paused = true)]
async fn names_are_answered_from_the_snapshot_as_well() {
    let rig = Fixture::new(0);
    rig.instance().private_ip("10.0.128.100").launch();
    let node = named("ip-10-0-128-100.us-west-2.compute.internal");
    for _ in 0..2 {
        rig.ask_one(aged(node.clone(), MetadataScope::Addresses, 60))
            .await
            .unwrap();
    }
    assert_eq!(rig.calls(Action::DescribeInstances), 1);
}

#[tokio::test(start_paused = true)]
async fn an_interface_of_another_vpc_with_the_same_address_is_no_fargate_node_of_ours() {
    let rig = Fixture::new(0);
    let other = rig.world.aws.vpc("10.0.0.0/16");
    let subnet = rig
        .world
        .aws
        .subnet(&other, "us-west-2a", "10.0.128.0/20", &[]);
    rig.world.aws.fargate(&subnet, "10.0.128.88", "");
    let answer = rig
        .ask_one(query(node("aws:///us-west-2a/x/fargate-10.0.128.88"), MetadataScope::PowerState))
        .await;
    assert_eq!(power(&answer), None);
}
