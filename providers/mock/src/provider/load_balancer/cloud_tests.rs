//! The provider against its cloud: how many calls of which kind, and what is left after each.

use std::sync::Arc;

use ccm_core::{
    k8s::{EndpointSliceView, EndpointView, IpFamily, NodeView, Protocol, SlicePort},
    provider::Backends,
    write_gate::WriteGate,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    annotations::{ACTIVATION_DELAY, LOAD_BALANCER_ID},
    tests::{UID, annotated, port, provider, service},
    *,
};
use crate::cloud::{
    Calls, CloudApi, EndpointMember, Fault, FaultError, FaultSpec, LoadBalancerEdit, Members,
    MockCloud, Operation, Transport,
};

fn op() -> Op {
    Op::new("c", CancellationToken::new(), WriteGate::always_open())
}

fn want(service: ServiceView, nodes: &[&str]) -> LbSpec {
    let sources = SourceRanges::of(&service).unwrap();
    let backends = Backends::Nodes(
        nodes
            .iter()
            .map(|name| Arc::new(NodeView::named(name)))
            .collect(),
    );
    LbSpec {
        cluster: "c".into(),
        service: Arc::new(service),
        sources,
        backends,
    }
}

fn lb_ref() -> LbRef {
    LbRef {
        uid: UID.into(),
        namespace: "default".into(),
        name: "web".into(),
        class: None,
        annotations: [].into(),
        status: LbStatus::default(),
        last_observed: None,
    }
}

fn cloud(provider: &MockProvider) -> &MockCloud {
    provider.cloud().unwrap()
}

fn fail_once(cloud: &MockCloud, operation: Operation, answer_lost: bool) {
    let spec = FaultSpec {
        operation: Some(operation),
        error: Some(FaultError::Transient),
        times: Some(1),
        object: Some("default/web".to_owned()),
        answer_lost,
        ..FaultSpec::default()
    };
    cloud.set_faults(vec![Fault::new(spec).unwrap()]);
}

/// Runs `call` and returns its answer with the calls that it took.
async fn counted<T>(cloud: &MockCloud, call: impl Future<Output = T>) -> (T, Calls) {
    let before = cloud.calls();
    let answer = call.await;
    (answer, cloud.calls().since(&before))
}

#[tokio::test]
async fn the_mode_of_the_addresses_is_as_annotated() {
    let provider = provider("");
    for (given, wanted) in [("VIP", Some("VIP")), ("Proxy", Some("Proxy")), ("unset", None)] {
        let want = want(annotated(&[(annotations::IP_MODE, given)]), &["n1"]);
        let status = provider
            .ensure(&op(), &want, ReadMode::Cached)
            .await
            .status
            .unwrap();
        assert_eq!(status.ingress[0].ip_mode.as_deref(), wanted, "{given}");
    }
    assert_eq!(cloud(&provider).calls().writes(), 1, "it is no business of the cloud");
}

#[tokio::test]
async fn a_new_balancer_takes_one_write_and_an_unchanged_one_none() {
    let provider = provider("");
    let want = want(service(), &["n1", "n2"]);
    let (made, calls) =
        counted(cloud(&provider), provider.ensure(&op(), &want, ReadMode::Cached)).await;
    assert_eq!(calls.to_string(), "1 get_load_balancer, 1 create_load_balancer");
    let seen = cloud(&provider).load_balancers().remove(0);
    assert_eq!(made.result.unwrap(), Progress::Done);
    let ingress = made.status.unwrap().ingress;
    assert_eq!((ingress[0].ip, ingress[0].ip_mode.as_deref()), (Some(seen.address), Some("VIP")));
    assert_eq!(made.annotations, [(LOAD_BALANCER_ID.into(), Some(seen.id.as_str().into()))].into());
    assert_eq!(provider.stale_annotations(&lb_ref()), [LOAD_BALANCER_ID.into()]);
    for depth in [ReadMode::Cached, ReadMode::Fresh] {
        let (again, calls) = counted(cloud(&provider), provider.ensure(&op(), &want, depth)).await;
        assert_eq!((again.result.unwrap(), calls.reads(), calls.writes()), (Progress::Done, 1, 0));
        assert!(again.status.is_some());
    }
    assert_eq!(cloud(&provider).load_balancers(), [seen]);
}

#[tokio::test]
async fn only_what_differs_is_written() {
    let provider = provider("");
    provider
        .ensure(&op(), &want(service(), &["n1"]), ReadMode::Cached)
        .await
        .result
        .unwrap();
    let internal = annotated(&[(annotations::SCHEME, "internal")]);
    let cases = [
        (want(internal.clone(), &["n1"]), "1 get_load_balancer, 1 modify_load_balancer"),
        (want(internal, &["n1", "n2"]), "1 get_load_balancer, 1 update_load_balancer"),
        (
            want(service(), &["n2"]),
            "1 get_load_balancer, 1 modify_load_balancer, 1 update_load_balancer",
        ),
    ];
    for (want, calls) in cases {
        let planned = provider.plan(&op(), &want).await.unwrap();
        let (done, seen) =
            counted(cloud(&provider), provider.ensure(&op(), &want, ReadMode::Cached)).await;
        done.result.unwrap();
        assert_eq!(seen.to_string(), calls);
        let planned: Vec<_> = planned
            .iter()
            .map(|change| format!("1 {}", change.operation))
            .collect();
        assert_eq!(
            format!("1 get_load_balancer, {}", planned.join(", ")),
            calls,
            "the plan said so"
        );
        assert_eq!(provider.plan(&op(), &want).await.unwrap(), []);
    }
}

#[tokio::test]
async fn members_are_set_in_one_write_and_nothing_else() {
    let provider = provider("");
    let first = want(service(), &["n1", "n2"]);
    let absent = provider
        .update_backends(&op(), &first)
        .await
        .result
        .unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
    provider
        .ensure(&op(), &first, ReadMode::Cached)
        .await
        .result
        .unwrap();
    let before = cloud(&provider).load_balancers().remove(0);
    let internal = annotated(&[(annotations::SCHEME, "internal")]);
    let (set, calls) =
        counted(cloud(&provider), provider.update_backends(&op(), &want(internal, &["n2"]))).await;
    assert_eq!((set.result.unwrap(), set.status), (Progress::Done, None));
    assert_eq!(calls.to_string(), "1 update_load_balancer");
    let after = cloud(&provider).load_balancers().remove(0);
    assert_eq!((&after.settings, after.nodes), (&before.settings, ["n2".to_owned()].into()));
}

#[tokio::test]
async fn a_call_that_broke_off_anywhere_is_taken_up_by_the_next() {
    let write = [
        Operation::CreateLoadBalancer,
        Operation::ModifyLoadBalancer,
        Operation::UpdateLoadBalancer,
    ];
    for lost in [false, true] {
        for operation in [Operation::GetLoadBalancer].into_iter().chain(write) {
            let provider = provider("");
            if operation != Operation::CreateLoadBalancer {
                provider
                    .ensure(&op(), &want(service(), &["n1"]), ReadMode::Cached)
                    .await
                    .result
                    .unwrap();
            }
            let last = want(annotated(&[(annotations::SCHEME, "internal")]), &["n2", "n3"]);
            fail_once(cloud(&provider), operation, lost);
            let failed = provider.ensure(&op(), &last, ReadMode::Cached).await;
            assert_eq!(failed.result.unwrap_err().kind(), ErrorKind::Transient, "{operation:?}");
            assert_eq!((failed.status, failed.annotations.len()), (None, 0));
            provider
                .ensure(&op(), &last, ReadMode::Cached)
                .await
                .result
                .unwrap();
            let seen = cloud(&provider).load_balancers();
            assert_eq!(seen.len(), 1, "{operation:?}, lost {lost}");
            assert_eq!(
                (&*seen[0].nodes, seen[0].settings.internal),
                (&["n2".to_owned(), "n3".to_owned()][..], true)
            );
            assert_eq!(provider.plan(&op(), &last).await.unwrap(), []);
        }
        for operation in [Operation::GetLoadBalancer, Operation::DeleteLoadBalancer] {
            let provider = provider("");
            provider
                .ensure(&op(), &want(service(), &["n1"]), ReadMode::Cached)
                .await
                .result
                .unwrap();
            fail_once(cloud(&provider), operation, lost);
            let failed = provider.delete(&op(), &lb_ref()).await.unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::Transient, "{operation:?}");
            assert_eq!(provider.delete(&op(), &lb_ref()).await.unwrap(), Progress::Done);
            assert_eq!(cloud(&provider).load_balancers(), [], "{operation:?}, lost {lost}");
        }
    }
}

/// Calls again whenever the answer says so; returns what came at the end and how often it was
/// pending.
async fn until_done(provider: &MockProvider, want: &LbSpec) -> (LbOutcome, usize) {
    let (begin, mut pending) = (Instant::now(), 0);
    loop {
        let op = op().with_pending_for(if pending == 0 {
            Duration::ZERO
        } else {
            begin.elapsed()
        });
        let outcome = provider.ensure(&op, want, ReadMode::Cached).await;
        match &outcome.result {
            Ok(Progress::Pending { after, .. }) => {
                assert!(
                    outcome.status.is_none() && outcome.annotations.is_empty(),
                    "nothing before it serves"
                );
                pending += 1;
                tokio::time::sleep(*after).await;
            }
            _ => return (outcome, pending),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_balancer_that_is_provisioned_is_pending_until_it_serves() {
    let provider = provider("loadBalancerActivation: 30s");
    let begin = Instant::now();
    let (done, pending) = until_done(&provider, &want(service(), &["n1"])).await;
    assert!(done.status.is_some() && !done.annotations.is_empty(), "{done:?}");
    let waited = begin.elapsed();
    assert!((30..=46).contains(&waited.as_secs()), "{waited:?}");
    assert!((4..=8).contains(&pending), "looks are few: {pending}");
    assert_eq!(cloud(&provider).calls().writes(), 1);

    let quick = annotated(&[(ACTIVATION_DELAY, "3s")]);
    let quick = ServiceView { uid: "other".into(), ..quick };
    let begin = Instant::now();
    until_done(&provider, &want(quick, &["n1"]))
        .await
        .0
        .result
        .unwrap();
    assert!((3..=4).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_change_while_it_is_provisioned_is_not_lost() {
    let provider = provider("loadBalancerActivation: 30s");
    provider
        .ensure(&op(), &want(service(), &["n1"]), ReadMode::Cached)
        .await
        .result
        .unwrap();
    let set = provider
        .update_backends(&op(), &want(service(), &["n2"]))
        .await;
    assert!(
        matches!(set.result, Ok(Progress::Pending { .. })),
        "the balancer still has to be looked at: {set:?}"
    );
    until_done(&provider, &want(service(), &["n2"]))
        .await
        .0
        .result
        .unwrap();
    let seen = cloud(&provider).load_balancers().remove(0);
    assert_eq!((seen.nodes, seen.state), (["n2".to_owned()].into(), LoadBalancerState::Active));
    assert_eq!(cloud(&provider).calls().writes(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_slow_deletion_is_pending_until_nothing_is_left() {
    let provider = provider("loadBalancerDeletion: 10s");
    let (gone, calls) = counted(cloud(&provider), provider.delete(&op(), &lb_ref())).await;
    assert_eq!((gone.unwrap(), calls.writes()), (Progress::Done, 0), "nothing there");
    let want = want(service(), &["n1"]);
    provider
        .ensure(&op(), &want, ReadMode::Cached)
        .await
        .result
        .unwrap();
    for writes in [1, 0] {
        let (pending, calls) = counted(cloud(&provider), provider.delete(&op(), &lb_ref())).await;
        assert!(matches!(pending.unwrap(), Progress::Pending { .. }));
        assert_eq!(calls.writes(), writes);
    }
    assert_eq!(
        provider
            .update_backends(&op(), &want)
            .await
            .result
            .unwrap_err()
            .kind(),
        ErrorKind::Conflict
    );
    let (again, calls) =
        counted(cloud(&provider), provider.ensure(&op(), &want, ReadMode::Cached)).await;
    assert!(
        matches!(again.result, Ok(Progress::Pending { .. })),
        "its name is not free yet: {again:?}"
    );
    assert_eq!((calls.writes(), again.status), (0, None));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(provider.delete(&op(), &lb_ref()).await.unwrap(), Progress::Done);
    assert!(cloud(&provider).load_balancers().is_empty());
}

#[tokio::test]
async fn what_is_not_owned_is_never_touched() {
    let other_uid = "0a1b2c3d-0000-1111-2222-333344445556";
    let edits = [
        LoadBalancerEdit {
            cluster: Some("other".to_owned()),
            ..LoadBalancerEdit::default()
        },
        // The name holds 31 digits of 32, so that this Service's balancer has the same one.
        LoadBalancerEdit {
            uid: Some(other_uid.to_owned()),
            ..LoadBalancerEdit::default()
        },
    ];
    for edit in edits {
        let provider = provider("");
        let want = want(service(), &["n1"]);
        provider
            .ensure(&op(), &want, ReadMode::Cached)
            .await
            .result
            .unwrap();
        let name = cloud(&provider).load_balancers().remove(0).name;
        let foreign = cloud(&provider)
            .edit_load_balancer(&name, edit)
            .unwrap()
            .unwrap();
        let taken = provider
            .ensure(&op(), &want, ReadMode::Fresh)
            .await
            .result
            .unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::Conflict);
        assert!(
            taken.chain().contains(&foreign.uid) && taken.chain().contains(&foreign.cluster),
            "{taken}"
        );
        let set = provider
            .update_backends(&op(), &want)
            .await
            .result
            .unwrap_err();
        assert_eq!(set.kind(), ErrorKind::NotFound);
        assert_eq!(provider.delete(&op(), &lb_ref()).await.unwrap(), Progress::Done);
        assert_eq!(cloud(&provider).load_balancers(), [foreign]);
    }
}

#[tokio::test]
async fn drift_is_repaired() {
    let provider = provider("");
    let want = want(service(), &["n1", "n2"]);
    provider
        .ensure(&op(), &want, ReadMode::Cached)
        .await
        .result
        .unwrap();
    let good = cloud(&provider).load_balancers().remove(0);
    let edit = LoadBalancerEdit {
        nodes: Some(vec!["n9".to_owned()]),
        source_ranges: Some(vec!["10.0.0.0/8".parse().unwrap()]),
        listeners: Some(Vec::new()),
        ..LoadBalancerEdit::default()
    };
    let drifted = cloud(&provider)
        .edit_load_balancer(&good.name, edit)
        .unwrap()
        .unwrap();
    assert_ne!(drifted, good);
    provider
        .ensure(&op(), &want, ReadMode::Fresh)
        .await
        .result
        .unwrap();
    let repaired = cloud(&provider).load_balancers().remove(0);
    assert_eq!(
        (&repaired.settings, &repaired.nodes, &repaired.ports),
        (&good.settings, &good.nodes, &good.ports)
    );
    assert!(cloud(&provider).remove_load_balancer(&good.name));
    provider
        .ensure(&op(), &want, ReadMode::Fresh)
        .await
        .result
        .unwrap();
    let anew = cloud(&provider).load_balancers().remove(0);
    assert_eq!(anew.settings, good.settings);
    assert_ne!(anew.id, good.id);
}

/// The framework asks for the plan after a restart, and ensures nothing when there is none.
#[tokio::test(start_paused = true)]
async fn a_plan_names_what_a_restart_must_not_miss() {
    let provider = provider("loadBalancerDeletion: 10s");
    let first = want(service(), &["n1"]);
    let made = provider.ensure(&op(), &first, ReadMode::Cached).await;
    let written = made
        .annotations
        .into_iter()
        .filter_map(|(key, value)| Some((Arc::from(key), Arc::from(value?))));
    let (status, annotations) = (made.status.unwrap(), written.collect());
    let published = want(ServiceView { status: status.clone(), annotations, ..service() }, &["n1"]);
    assert_eq!(provider.plan(&op(), &published).await.unwrap(), []);
    // The process before died between making the balancer and saying which.
    let unnamed = want(ServiceView { status, ..service() }, &["n1"]);
    let planned = provider.plan(&op(), &unnamed).await.unwrap();
    assert_eq!(
        planned
            .iter()
            .map(|change| &*change.operation)
            .collect::<Vec<_>>(),
        ["annotate"]
    );
    // Made anew behind our back, with another address.
    let name = cloud(&provider).load_balancers().remove(0).name;
    cloud(&provider).remove_load_balancer(&name);
    let other = ServiceView { uid: "other".into(), ..service() };
    provider
        .ensure(&op(), &want(other, &["n1"]), ReadMode::Cached)
        .await
        .result
        .unwrap();
    provider
        .ensure(&op(), &first, ReadMode::Cached)
        .await
        .result
        .unwrap();
    let planned = provider.plan(&op(), &published).await.unwrap();
    let operations: Vec<_> = planned.iter().map(|change| &*change.operation).collect();
    assert_eq!(operations, ["publish_status", "annotate"]);
    provider.delete(&op(), &lb_ref()).await.unwrap();
    let planned = provider.plan(&op(), &published).await.unwrap();
    assert_eq!(
        planned
            .iter()
            .map(|change| &*change.operation)
            .collect::<Vec<_>>(),
        ["create_load_balancer"]
    );
}

#[tokio::test]
async fn each_family_has_its_address() {
    let provider = provider(
        "{loadBalancerAddressPool: 192.0.2.0/28, loadBalancerIPv6AddressPool: '2001:db8::/64'}",
    );
    let dual = |families: &[IpFamily], ip: Option<&str>| {
        let service = ServiceView {
            ip_families: families.into(),
            load_balancer_ip: ip.map(Into::into),
            ..service()
        };
        want(service, &["n1"])
    };
    let cases = [
        (dual(&[IpFamily::V4], None), vec!["192.0.2.1"]),
        (dual(&[IpFamily::V4, IpFamily::V6], None), vec!["192.0.2.1", "2001:db8::1"]),
        (
            dual(&[IpFamily::V4, IpFamily::V6], Some("2001:db8::9")),
            vec!["192.0.2.1", "2001:db8::9"],
        ),
        (dual(&[IpFamily::V6, IpFamily::V4], None), vec!["2001:db8::9", "192.0.2.1"]),
        (dual(&[IpFamily::V6], None), vec!["2001:db8::9"]),
        (dual(&[IpFamily::V4], Some("192.0.2.7")), vec!["192.0.2.7"]),
    ];
    for (want, addresses) in cases {
        let done = provider.ensure(&op(), &want, ReadMode::Cached).await;
        let ingress = done.status.unwrap().ingress;
        let seen: Vec<_> = ingress
            .iter()
            .map(|ingress| ingress.ip.unwrap().to_string())
            .collect();
        assert_eq!(seen, addresses);
        assert!(
            ingress
                .iter()
                .all(|ingress| ingress.ip_mode.as_deref() == Some("VIP"))
        );
    }
    let outside = dual(&[IpFamily::V4], Some("203.0.113.1"));
    let refused = provider
        .ensure(&op(), &outside, ReadMode::Cached)
        .await
        .result
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.chain().contains("203.0.113.1"), "{refused}");
}

#[tokio::test]
async fn ready_endpoints_become_members() {
    let provider = provider("features: {endpoints: true}");
    let endpoint = |ip: &str, ready| EndpointView {
        addresses: [ip.parse().unwrap()].into(),
        node: None,
        zone: None,
        ready,
        serving: true,
        terminating: !ready,
    };
    let slice_port = |name: &str, protocol, port| SlicePort {
        name: name.into(),
        protocol,
        port: std::num::NonZeroU16::new(port),
    };
    let slice = EndpointSliceView {
        namespace: "default".into(),
        name: "web-1".into(),
        uid: "slice".into(),
        resource_version: "1".into(),
        service: "web".into(),
        ports: [
            slice_port("http", Protocol::Tcp, 8080),
            slice_port("dns", Protocol::Udp, 5353),
            slice_port("other", Protocol::Tcp, 1),
            slice_port("dns", Protocol::Tcp, 2),
        ]
        .into(),
        endpoints: [
            endpoint("10.0.0.2", true),
            endpoint("10.0.0.1", true),
            endpoint("10.0.0.3", false),
        ]
        .into(),
    };
    let ports = [port("http", Protocol::Tcp, 80, 0), port("dns", Protocol::Udp, 53, 0)].into();
    let service = ServiceView { ports, ..annotated(&[(annotations::BACKENDS, "endpoints")]) };
    // The same endpoints in two slices, as while the API server moves them.
    let backends = Backends::Endpoints(vec![Arc::new(slice.clone()), Arc::new(slice)]);
    let want = LbSpec {
        cluster: "c".into(),
        service: Arc::new(service),
        sources: SourceRanges::Unset,
        backends,
    };
    provider
        .ensure(&op(), &want, ReadMode::Cached)
        .await
        .result
        .unwrap();
    let member = |address: &str, protocol, listener| EndpointMember {
        address: address.parse().unwrap(),
        protocol,
        listener,
    };
    let members = [
        member("10.0.0.1:5353", Transport::Udp, 53),
        member("10.0.0.1:8080", Transport::Tcp, 80),
        member("10.0.0.2:5353", Transport::Udp, 53),
        member("10.0.0.2:8080", Transport::Tcp, 80),
    ];
    let seen = cloud(&provider).load_balancers().remove(0);
    assert_eq!((seen.members, seen.nodes.len()), (Members::Endpoints(members.into()), 0));
    assert_eq!(provider.plan(&op(), &want).await.unwrap(), []);
}

#[tokio::test]
async fn a_quota_and_a_missing_right_reach_the_framework() {
    let provider = provider("loadBalancerQuota: 1");
    provider
        .ensure(&op(), &want(service(), &["n1"]), ReadMode::Cached)
        .await
        .result
        .unwrap();
    let second = ServiceView { uid: "second".into(), ..service() };
    let full = provider
        .ensure(&op(), &want(second, &["n1"]), ReadMode::Cached)
        .await
        .result
        .unwrap_err();
    assert_eq!(full.kind(), ErrorKind::QuotaExceeded);
    let keys = cloud(&provider).list_load_balancers("c").await.unwrap();
    assert_eq!(keys.len(), 1);
}
