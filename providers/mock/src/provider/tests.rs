use std::{num::NonZeroU16, time::Duration};

use ccm_core::{
    k8s::{AddressType, LbStatus, NodeAddress, Protocol, ServicePort, ServiceView},
    provider::{
        Backends, ErrorKind, InstanceQuery, InstanceStatus, LbRef, LbSpec, MetadataScope, Op,
        Owner, PowerState, Progress, ReadMode, RouteChange, ServiceInterpretation, SourceRanges,
    },
    write_gate::WriteGate,
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    admin::{bind_admin, serve_admin},
    cloud::{
        Calls, Fault, FaultError, FaultSpec, InstanceSpec, Operation, PowerState as CloudPowerState,
    },
};

fn op_with(gate: WriteGate) -> Op {
    Op::new("kubernetes", CancellationToken::new(), gate)
}

fn op() -> Op {
    op_with(WriteGate::always_open())
}

/// The provider in both of its forms over clouds of one configuration; the second reaches its cloud
/// through a socket.
struct Both {
    providers: Vec<(MockCloud, MockProvider)>,
    cancel: CancellationToken,
    server: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Both {
    async fn start(config: &str) -> Self {
        let config = CloudConfig::parse("test", config).unwrap();
        let local = MockCloud::new(&config).unwrap();
        let served = MockCloud::new(&config).unwrap();
        let listener = bind_admin(&":0".parse().unwrap()).await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
        let cancel = CancellationToken::new();
        let server = tokio::spawn(serve_admin(served.clone(), listener, cancel.clone()));
        let remote = CloudConfig { endpoint: Some(endpoint), ..CloudConfig::default() };
        let remote = MockProvider::new(&remote).await.unwrap();
        assert!(remote.cloud().is_none());
        Self {
            providers: vec![(local.clone(), MockProvider::new_in_process(local)), (served, remote)],
            cancel,
            server,
        }
    }

    async fn stop(self) {
        drop(self.providers);
        self.cancel.cancel();
        self.server.await.unwrap().unwrap();
    }
}

fn node(name: &str, provider_id: Option<&str>) -> Arc<NodeView> {
    Arc::new(NodeView {
        provider_id: provider_id.map(Arc::from),
        ..NodeView::named(name)
    })
}

fn query(node: Arc<NodeView>) -> InstanceQuery {
    InstanceQuery { node, scope: MetadataScope::All, max_age: Duration::ZERO }
}

fn service(name: &str) -> ServiceView {
    let port = ServicePort {
        name: "".into(),
        protocol: Protocol::Tcp,
        port: NonZeroU16::new(80).unwrap(),
        node_port: NonZeroU16::new(30080),
        target_port: "8080".into(),
        app_protocol: None,
    };
    ServiceView {
        uid: "0a1b2c3d-0000-1111-2222-333344445555".into(),
        ports: [port].into(),
        ..ServiceView::named("default", name)
    }
}

fn spec(service: ServiceView, nodes: &[&str], sources: SourceRanges) -> LbSpec {
    let backends = Backends::Nodes(nodes.iter().map(|name| node(name, None)).collect());
    LbSpec {
        cluster: "kubernetes".into(),
        service: Arc::new(service),
        sources,
        backends,
    }
}

fn lb_ref(service: &ServiceView) -> LbRef {
    LbRef {
        uid: service.uid.clone(),
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        class: None,
        annotations: [].into(),
        status: LbStatus::default(),
        last_observed: None,
    }
}

#[test]
fn a_node_is_claimed_by_provider_id_then_by_region_label() {
    let config = CloudConfig::parse("test", "region: eu").unwrap();
    let provider = MockProvider::new_in_process(MockCloud::new(&config).unwrap());
    let labelled = |key: &str, region: &str| NodeView {
        labels: [(key, region)].into_iter().collect(),
        ..NodeView::named("n")
    };
    let with_id = |id: &str| NodeView {
        provider_id: Some(id.into()),
        ..labelled(well_known::LABEL_REGION, "us")
    };
    let cases = [
        (NodeView::named("n"), NodeOwnership::Ours),
        (labelled(well_known::LABEL_REGION, "eu"), NodeOwnership::Ours),
        (labelled(well_known::LABEL_REGION, "us"), NodeOwnership::Foreign),
        (labelled(well_known::LABEL_REGION_BETA, "eu"), NodeOwnership::Ours),
        (labelled(well_known::LABEL_REGION_BETA, "us"), NodeOwnership::Foreign),
        (with_id("mock://eu/n"), NodeOwnership::Ours),
        (with_id("mock://us/n"), NodeOwnership::Foreign),
        (with_id("mock://"), NodeOwnership::Ours),
        (with_id("mock:///n"), NodeOwnership::Ours),
        (with_id("aws:///eu/i-1"), NodeOwnership::Foreign),
        (with_id("n"), NodeOwnership::Foreign),
        (with_id("mocking://eu/n"), NodeOwnership::Foreign),
    ];
    for (node, claim) in cases {
        assert_eq!(provider.node_ownership(&node), claim, "{node:?}");
    }
    assert_eq!(provider.cloud().unwrap().calls(), Calls::default(), "claiming asks no cloud");
}

#[tokio::test]
async fn each_query_has_its_own_answer_in_both_forms() {
    let both = Both::start(
        "{region: eu, instances: [{name: n1, zone: eu-1, additionalLabels: {a: b}}, {name: n2}]}",
    )
    .await;
    for (cloud, provider) in &both.providers {
        assert_eq!(provider.region(), "eu");
        cloud
            .put_instance(
                "n2",
                InstanceSpec {
                    power_state: Some(CloudPowerState::Stopped),
                    ..Default::default()
                },
            )
            .unwrap();
        let queries = [
            query(node("gone", None)),
            query(node("x", Some("aws:///i-1"))),
            query(node("n2", Some("mock://eu/n2"))),
            query(node("y", Some("mock://what"))),
            query(node("n1", None)),
        ];
        let closed = op_with(WriteGate::closed().0);
        let answers = provider
            .instances()
            .unwrap()
            .describe(&closed, &queries)
            .await
            .unwrap();
        assert_eq!(answers.len(), 5);
        assert_eq!(answers[0].as_ref().unwrap(), &InstanceStatus::NotFound);
        for (index, words) in [(1, ["node x", "aws:///i-1"]), (3, ["node y", "mock://what"])] {
            let error = answers[index].as_ref().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(words.iter().all(|word| error.chain().contains(word)), "{error}");
        }
        let Ok(InstanceStatus::Found { power_state: PowerState::Stopped, .. }) = &answers[2] else {
            panic!("{:?}", answers[2])
        };
        let Ok(InstanceStatus::Found { power_state: PowerState::Running, meta }) = &answers[4]
        else {
            panic!("{:?}", answers[4])
        };
        assert_eq!(meta.provider_id.as_deref(), Some("mock://eu/n1"));
        assert_eq!(meta.zone.as_deref(), Some("eu-1"));
        assert_eq!(meta.additional_labels.get("a").map(|v| &**v), Some("b"));
        let calls = cloud.calls();
        assert_eq!((calls.describe_instances, calls.describe_instances_nodes), (1, 4));
    }
    both.stop().await;
}

#[tokio::test]
async fn a_balancer_is_made_kept_changed_and_deleted_in_both_forms() {
    let both = Both::start("loadBalancerAddressPool: 192.0.2.0/30").await;
    for (cloud, provider) in &both.providers {
        let (op, lbs) = (op(), provider.load_balancers().unwrap());
        let sources =
            SourceRanges::Only(vec!["10.0.0.0/8".parse().unwrap(), "::/0".parse().unwrap()]);
        let want = spec(service("web"), &["n2", "n1"], sources);
        let plan = lbs.plan(&op, &want).await.unwrap();
        assert_eq!(
            plan.iter()
                .map(|change| &*change.operation)
                .collect::<Vec<_>>(),
            ["create_load_balancer"]
        );
        assert!(cloud.load_balancers().is_empty(), "a plan changes nothing");
        for depth in [ReadMode::Cached, ReadMode::Fresh] {
            let outcome = lbs.ensure(&op, &want, depth).await;
            assert_eq!(outcome.result.unwrap(), Progress::Done);
            assert_eq!(outcome.status.unwrap().ingress[0].ip, Some("192.0.2.1".parse().unwrap()));
        }
        assert_eq!(lbs.plan(&op, &want).await.unwrap(), [], "its own result needs no change");
        let seen = cloud.load_balancers().remove(0);
        assert_eq!(seen.name, "a0a1b2c3d00001111222233334444555");
        assert_eq!(
            (&*seen.service, seen.ports, seen.nodes),
            ("default/web", vec![80], ["n1".to_owned(), "n2".to_owned()].into())
        );
        assert_eq!(
            seen.settings.source_ranges,
            ["10.0.0.0/8".parse().unwrap(), "::/0".parse().unwrap()]
        );
        let changed = LbSpec {
            sources: SourceRanges::Unset,
            ..spec(service("web"), &["n3"], SourceRanges::Unset)
        };
        let plan = lbs.plan(&op, &changed).await.unwrap();
        assert_eq!(plan.len(), 2, "{plan:?}");
        assert_eq!(lbs.update_backends(&op, &changed).await.result.unwrap(), Progress::Done);
        let seen = cloud.load_balancers().remove(0);
        assert_eq!(
            (seen.nodes, seen.settings.source_ranges.len()),
            (["n3".to_owned()].into(), 2),
            "only the nodes changed"
        );
        let other = Op::new("other", CancellationToken::new(), WriteGate::always_open());
        assert_eq!(lbs.delete(&other, &lb_ref(&want.service)).await.unwrap(), Progress::Done);
        assert_eq!(cloud.load_balancers().len(), 1, "another cluster's balancer stays");
        for _ in 0..2 {
            assert_eq!(lbs.delete(&op, &lb_ref(&want.service)).await.unwrap(), Progress::Done);
        }
        assert!(cloud.load_balancers().is_empty());
        let gone = lbs.update_backends(&op, &changed).await.result.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
        assert_eq!(cloud.calls().list_routes, 0);
    }
    both.stop().await;
}

#[tokio::test]
async fn a_closed_gate_lets_no_change_through() {
    let both = Both::start("autoProvision: true").await;
    for (cloud, provider) in &both.providers {
        let closed = op_with(WriteGate::closed().0);
        let want = spec(service("web"), &["n1"], SourceRanges::Unset);
        let lbs = provider.load_balancers().unwrap();
        lbs.ensure(&op(), &want, ReadMode::Cached)
            .await
            .result
            .unwrap();
        let (before, want) = (cloud.calls(), spec(service("web"), &["n2"], SourceRanges::Unset));
        let create = RouteChange::Create {
            node: node("n1", None),
            destination: "10.0.0.0/24".parse().unwrap(),
        };
        let mut errors = vec![
            lbs.ensure(&closed, &want, ReadMode::Cached)
                .await
                .result
                .unwrap_err(),
            lbs.update_backends(&closed, &want)
                .await
                .result
                .unwrap_err(),
            lbs.delete(&closed, &lb_ref(&want.service))
                .await
                .unwrap_err(),
        ];
        errors.extend(
            provider
                .routes()
                .unwrap()
                .apply(&closed, &[create])
                .await
                .into_iter()
                .map(Result::unwrap_err),
        );
        assert!(
            errors
                .iter()
                .all(|error| error.kind() == ErrorKind::NotLeader),
            "{errors:?}"
        );
        assert_eq!(cloud.calls().since(&before).writes(), 0, "not even a request was sent");
    }
    both.stop().await;
}

#[tokio::test]
async fn what_cannot_be_served_is_refused() {
    let provider = MockProvider::new_in_process(MockCloud::new(&CloudConfig::default()).unwrap());
    let lbs = provider.load_balancers().unwrap();
    let ServiceInterpretation::Valid { digest, .. } = lbs.interpret(&service("web")) else {
        panic!("not ours")
    };
    let ServiceInterpretation::Valid { digest: same, .. } = lbs.interpret(&service("web")) else {
        panic!("not ours")
    };
    let restricted = ServiceView {
        source_ranges: ["10.0.0.0/8".into()].into(),
        ..service("web")
    };
    let ServiceInterpretation::Valid { digest: other, .. } = lbs.interpret(&restricted) else {
        panic!("not ours")
    };
    assert_eq!(digest, same);
    assert_ne!(digest, other);
    let bad = ServiceView {
        ports: [].into(),
        source_ranges: ["10.0.0.0/99".into(), "x".into()].into(),
        ..service("web")
    };
    let ServiceInterpretation::Invalid(mistakes) = lbs.interpret(&bad) else {
        panic!("not refused")
    };
    assert_eq!(mistakes.len(), 3, "{mistakes:?}");
    let annotated = ServiceView {
        annotations: [(well_known::ANNOTATION_SOURCE_RANGES.into(), "10.0.0.0/8, nonsense".into())]
            .into(),
        ..service("web")
    };
    let ServiceInterpretation::Invalid(mistakes) = lbs.interpret(&annotated) else {
        panic!("not refused")
    };
    assert_eq!(&*mistakes[0].field, well_known::ANNOTATION_SOURCE_RANGES);
    let nobody = spec(service("web"), &[], SourceRanges::Only(Vec::new()));
    let refused = lbs
        .ensure(&op(), &nobody, ReadMode::Cached)
        .await
        .result
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(provider.cloud().unwrap().load_balancers().is_empty());
}

#[tokio::test]
async fn routes_and_the_inventory_know_what_is_owned_in_both_forms() {
    let both = Both::start("autoProvision: true").await;
    for (cloud, provider) in &both.providers {
        let (op, routes, inventory) =
            (op(), provider.routes().unwrap(), provider.inventory().unwrap());
        let by_hand = serde_json::from_str(
            r#"{"node":"n9","destinationCIDR":"10.9.0.0/24","blackhole":true}"#,
        )
        .unwrap();
        cloud.put_route("by-hand", by_hand).unwrap();
        let create = |i: u8| RouteChange::Create {
            node: node(&format!("n{i}"), None),
            destination: format!("10.0.{i}.0/24").parse().unwrap(),
        };
        let answers = routes.apply(&op, &[create(1), create(2), create(1)]).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        let listed = routes.list(&op, &[]).await.unwrap();
        assert_eq!(listed.len(), 3);
        assert_eq!(listed.iter().filter(|route| route.blackhole).count(), 1);
        let want = spec(service("web"), &["n1"], SourceRanges::Unset);
        provider
            .load_balancers()
            .unwrap()
            .ensure(&op, &want, ReadMode::Cached)
            .await
            .result
            .unwrap();
        let owned = inventory.list_owned(&op).await.unwrap();
        let owners: Vec<_> = owned.iter().map(|object| object.owner.clone()).collect();
        let service = Owner::Service {
            namespace: "default".into(),
            name: "web".into(),
            uid: Some(want.service.uid.clone()),
        };
        let of_node = |name: &str| Owner::Node { name: name.into() };
        assert_eq!(owners, [service, of_node("n1"), of_node("n2")]);
        let other = Op::new("other", CancellationToken::new(), WriteGate::always_open());
        assert_eq!(inventory.list_owned(&other).await.unwrap(), []);
        for object in &owned {
            assert_eq!(inventory.delete_owned(&other, object).await.unwrap(), Progress::Done);
        }
        assert_eq!(
            inventory.list_owned(&op).await.unwrap(),
            owned,
            "another cluster deletes nothing of ours"
        );
        for object in owned.iter().chain(&owned) {
            assert_eq!(inventory.delete_owned(&op, object).await.unwrap(), Progress::Done);
        }
        assert_eq!(inventory.list_owned(&op).await.unwrap(), []);
        let left = routes.list(&op, &[]).await.unwrap();
        assert_eq!(left.iter().map(|route| &*route.name).collect::<Vec<_>>(), ["by-hand"]);
        assert!(
            routes
                .apply(&op, &[RouteChange::Delete(left[0].clone())])
                .await[0]
                .is_ok()
        );
        assert!(cloud.routes().is_empty());
    }
    both.stop().await;
}

#[tokio::test]
async fn routes_show_what_the_framework_must_know_in_both_forms() {
    for (config, compares) in
        [("autoProvision: true", false), ("{features: {routeNodeAddresses: true}}", true)]
    {
        let parsed = CloudConfig::parse("test", config).unwrap();
        let both = Both::start("autoProvision: true").await;
        for (cloud, provider) in &both.providers {
            let provider = provider.clone().with_config(&parsed);
            let routes = provider.routes().unwrap();
            let address = NodeAddress::new(AddressType::InternalIp, "10.1.2.3");
            let node =
                Arc::new(NodeView { addresses: [address.clone()].into(), ..NodeView::named("n1") });
            let create = |destination: &str| RouteChange::Create {
                node: node.clone(),
                destination: destination.parse().unwrap(),
            };
            let answers = routes
                .apply(&op(), &[create("10.0.1.0/24"), create("2001:db8:1::/64")])
                .await;
            assert!(answers.iter().all(Result::is_ok), "{answers:?}");
            assert_eq!(cloud.calls().create_route, 2);
            cloud.delete_instance("n1");
            let listed = routes.list(&op(), &[]).await.unwrap();
            assert_eq!(listed.len(), 2);
            for route in &listed {
                assert_eq!((route.node.as_deref(), route.blackhole), (Some("n1"), true));
                assert_eq!(route.node_addresses, compares.then(|| vec![address.clone()]));
            }
            let deletes: Vec<_> = listed.into_iter().map(RouteChange::Delete).collect();
            assert!(
                routes
                    .apply(&op(), &deletes)
                    .await
                    .iter()
                    .all(Result::is_ok)
            );
            assert_eq!(routes.list(&op(), &[]).await.unwrap(), []);
        }
        both.stop().await;
    }
}

#[tokio::test]
async fn deleting_what_the_cloud_says_is_gone_is_a_success() {
    let both = Both::start("autoProvision: true").await;
    for (cloud, provider) in &both.providers {
        let fault = |operation| {
            let spec = FaultSpec {
                operation: Some(operation),
                error: Some(FaultError::NotFound),
                ..Default::default()
            };
            Fault::new(spec).unwrap()
        };
        cloud.set_faults(vec![fault(Operation::DeleteLoadBalancer), fault(Operation::DeleteRoute)]);
        let lbs = provider.load_balancers().unwrap();
        assert_eq!(lbs.delete(&op(), &lb_ref(&service("web"))).await.unwrap(), Progress::Done);
        let route = ccm_core::provider::Route {
            name: "r".into(),
            node: None,
            node_addresses: None,
            destination: "10.0.0.0/24".parse().unwrap(),
            blackhole: false,
        };
        assert!(
            provider
                .routes()
                .unwrap()
                .apply(&op(), &[RouteChange::Delete(route)])
                .await[0]
                .is_ok()
        );
    }
    both.stop().await;
}

#[tokio::test]
async fn a_cloud_that_cannot_be_reached_is_an_error_and_never_an_absence() {
    // A port that was free a moment ago; nobody listens there.
    let listener = bind_admin(&":0".parse().unwrap()).await.unwrap();
    let endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
    drop(listener);
    let config = CloudConfig {
        endpoint: Some(endpoint),
        region: Some("eu".to_owned()),
        ..CloudConfig::default()
    };
    let provider = MockProvider::new(&config).await.unwrap();
    let error = provider
        .instances()
        .unwrap()
        .describe(&op(), &[query(node("n", None))])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient);
    assert!(error.chain().contains("refused"), "{}", error.chain());
}
