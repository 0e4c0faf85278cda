use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use ccm_core::provider::{CloudError, ErrorKind};
use proptest::prelude::*;
use tokio::time::Instant;

use super::*;

pub(super) fn cloud(config: &str) -> MockCloud {
    MockCloud::new(&CloudConfig::parse("test", config).unwrap()).unwrap()
}

pub(super) fn by_name(node: &str) -> CloudInstanceQuery {
    CloudInstanceQuery { node: node.to_owned(), provider_id: None }
}

fn by_id(node: &str, id: &str) -> CloudInstanceQuery {
    CloudInstanceQuery { node: node.to_owned(), provider_id: Some(id.to_owned()) }
}

pub(super) fn fault(operation: Operation, error: FaultError) -> FaultSpec {
    FaultSpec {
        operation: Some(operation),
        error: Some(error),
        ..FaultSpec::default()
    }
}

pub(super) fn set_faults(cloud: &MockCloud, specs: Vec<FaultSpec>) {
    cloud.set_faults(
        specs
            .into_iter()
            .map(|spec| Fault::new(spec).unwrap())
            .collect(),
    );
}

async fn describe(
    cloud: &MockCloud,
    query: CloudInstanceQuery,
) -> Result<Option<Instance>, ErrorKind> {
    let mut answers = cloud.describe_instances(&[query]).await.unwrap();
    answers.remove(0).map_err(|error| error.kind())
}

pub(super) fn balancer(cluster: &str, name: &str) -> LoadBalancerSpec {
    LoadBalancerSpec {
        key: key(cluster, name),
        settings: LoadBalancerSettings {
            listeners: vec![Listener {
                protocol: Transport::Tcp,
                port: 80,
                node_port: Some(30080),
            }],
            ..LoadBalancerSettings::default()
        },
        members: Members::nodes(["n1"]),
        activation: None,
    }
}

pub(super) fn key(cluster: &str, name: &str) -> LoadBalancerKey {
    LoadBalancerKey {
        cluster: cluster.to_owned(),
        uid: format!("uid-{name}"),
        name: name.to_owned(),
        service: format!("ns/{name}"),
    }
}

#[tokio::test]
async fn every_name_is_an_instance_with_stable_values_when_auto_provisioned() {
    let config = "{autoProvision: true, zones: [a, b, c]}";
    let (one, two) = (cloud(config), cloud(config));
    let mut zones = BTreeSet::new();
    for index in 0..30 {
        let name = format!("node-{index}");
        let instance = one.instance(&name).unwrap();
        assert_eq!(two.instance(&name), Some(instance.clone()));
        assert_eq!(instance.provider_id, format!("mock://mock-region/{name}"));
        assert_eq!(describe(&one, by_name(&name)).await, Ok(Some(instance.clone())));
        assert_eq!(
            describe(&one, by_id(&name, &instance.provider_id)).await,
            Ok(Some(instance.clone()))
        );
        let ip: IpAddr = instance.addresses[0].address.parse().unwrap();
        assert!("10.0.0.0/8".parse::<ipnet::IpNet>().unwrap().contains(&ip));
        zones.insert(instance.zone);
    }
    assert_eq!(zones.len(), 3, "instances are spread over all zones");
    assert_eq!(one.instances().len(), 30, "those that were asked about are listed");
    // Fixed for good: a change would move every made-up node of every user.
    assert_eq!(one.instance("node-1").unwrap().addresses[0].address, "10.224.210.152");
}

#[tokio::test]
async fn a_deleted_instance_stays_deleted_until_it_is_put_again() {
    let cloud = cloud("autoProvision: true");
    let id = cloud.instance("n1").unwrap().provider_id;
    assert!(cloud.delete_instance("n1"));
    assert!(!cloud.delete_instance("n1"));
    assert_eq!(describe(&cloud, by_name("n1")).await, Ok(None));
    assert_eq!(describe(&cloud, by_id("n1", &id)).await, Ok(None));
    assert!(cloud.instances().is_empty());
    cloud.put_instance("n1", InstanceSpec::default()).unwrap();
    assert!(describe(&cloud, by_id("n1", &id)).await.unwrap().is_some());
}

#[test]
fn a_made_up_provider_id_is_of_the_clouds_region_whatever_the_instance_shows() {
    let shown = InstanceSpec { region: Some("moon".to_owned()), ..InstanceSpec::default() };
    let made = cloud("region: eu").put_instance("n1", shown).unwrap();
    assert_eq!((&*made.region, &*made.provider_id), ("moon", "mock://eu/n1"));
}

#[tokio::test]
async fn a_provider_id_finds_its_own_instance_and_no_other() {
    let cloud = cloud("region: eu");
    let spec =
        |id: &str| InstanceSpec { provider_id: Some(id.to_owned()), ..InstanceSpec::default() };
    cloud.put_instance("n1", spec("mock://eu/i-1")).unwrap();
    let cases = [
        (by_name("n1"), Ok(true)),
        (by_name("n2"), Ok(false)),
        (by_id("n1", "mock://eu/i-1"), Ok(true)),
        (by_id("renamed", "mock://eu/i-1"), Ok(true)),
        (by_id("n1", "mock://eu/n1"), Ok(false)),
        (by_id("n1", "mock://us/i-1"), Err(ErrorKind::InvalidInput)),
        (by_id("n1", "mock://eu"), Err(ErrorKind::InvalidInput)),
        (by_id("n1", "aws:///i-1"), Err(ErrorKind::InvalidInput)),
    ];
    for (query, want) in cases {
        assert_eq!(
            describe(&cloud, query.clone())
                .await
                .map(|found| found.is_some()),
            want,
            "{query:?}"
        );
    }
    cloud.put_instance("n1", spec("mock://eu/i-2")).unwrap();
    assert_eq!(
        describe(&cloud, by_id("n1", "mock://eu/i-1")).await,
        Ok(None),
        "replaced under its name"
    );
    assert!(cloud.put_instance("n2", spec("mock://eu/i-2")).is_err(), "an ID has one owner");
    cloud.delete_instance("n1");
    cloud.put_instance("n2", spec("mock://eu/i-2")).unwrap();
    assert!(
        describe(&cloud, by_id("n1", "mock://eu/i-2"))
            .await
            .unwrap()
            .is_some()
    );
}

/// Three routes to create, and one to delete that does not exist.
fn four_route_edits() -> RouteBatch {
    let mut edits = Vec::new();
    for i in 0..3 {
        edits.push(RouteEdit::Create {
            node: "n1".to_owned(),
            destination: format!("10.0.{i}.0/24").parse().unwrap(),
            node_addresses: None,
        });
    }
    edits.push(RouteEdit::Delete(Route {
        name: "none".to_owned(),
        node: String::new(),
        destination: "10.9.0.0/24".parse().unwrap(),
        blackhole: false,
        node_addresses: None,
    }));
    RouteBatch { cluster: "c".to_owned(), edits }
}

#[tokio::test(start_paused = true)]
async fn a_call_takes_its_time_once_and_counts_once() {
    let cloud = cloud(
        "{autoProvision: true, latency: {instances: 20ms, routes: 30ms, loadBalancers: 40ms}}",
    );
    let begin = Instant::now();
    let queries: Vec<_> = (0..50).map(|i| by_name(&format!("n{i}"))).collect();
    cloud.describe_instances(&queries).await.unwrap();
    assert_eq!(begin.elapsed(), Duration::from_millis(20));
    assert!(
        cloud
            .apply_routes(&four_route_edits())
            .await
            .unwrap()
            .iter()
            .all(Result::is_ok)
    );
    assert_eq!(begin.elapsed(), Duration::from_millis(50));
    cloud.list_routes("c").await.unwrap();
    cloud
        .create_load_balancer(&balancer("c", "a"))
        .await
        .unwrap();
    cloud
        .modify_load_balancer(&key("c", "a"), &balancer("c", "a").settings)
        .await
        .unwrap();
    cloud
        .update_load_balancer(&key("c", "a"), &Members::default())
        .await
        .unwrap();
    cloud.get_load_balancer(&key("c", "a")).await.unwrap();
    cloud.list_load_balancers("c").await.unwrap();
    let retained = cloud.retain_load_balancer(&key("c", "a")).await.unwrap();
    let id = retained.unwrap().id;
    cloud
        .adopt_load_balancer(&id, &key("c", "a"))
        .await
        .unwrap();
    cloud.delete_load_balancer(&key("c", "a")).await.unwrap();
    assert_eq!(begin.elapsed(), Duration::from_millis(80 + 8 * 40));
    let expected = Calls {
        describe_instances: 1,
        describe_instances_nodes: 50,
        list_routes: 1,
        create_route: 3,
        delete_route: 1,
        get_load_balancer: 1,
        ensure_load_balancer: 2,
        create_load_balancer: 1,
        modify_load_balancer: 1,
        update_load_balancer: 1,
        delete_load_balancer: 1,
        retain_load_balancer: 1,
        adopt_load_balancer: 1,
        list_load_balancers: 1,
        throttled: 0,
    };
    assert_eq!(cloud.calls(), expected);
    assert!(
        Operation::ALL
            .iter()
            .all(|operation| cloud.calls().of(*operation) > 0)
    );
}

/// Errors of creating and deleting a route, both of which must fail.
async fn route_errors(cloud: &MockCloud) -> Vec<CloudError> {
    let route = Route {
        name: "r".to_owned(),
        node: "n1".to_owned(),
        destination: "10.0.0.0/24".parse().unwrap(),
        blackhole: false,
        node_addresses: None,
    };
    let create = RouteEdit::Create {
        node: "n1".to_owned(),
        destination: route.destination,
        node_addresses: None,
    };
    let batch = RouteBatch {
        cluster: "c".to_owned(),
        edits: vec![create, RouteEdit::Delete(route)],
    };
    let results = cloud.apply_routes(&batch).await.unwrap();
    results.into_iter().map(Result::unwrap_err).collect()
}

#[tokio::test]
async fn each_fault_has_its_kind_on_every_operation() {
    for error in FaultError::ALL {
        let cloud = cloud("autoProvision: true");
        cloud
            .create_load_balancer(&balancer("c", "a"))
            .await
            .unwrap();
        set_faults(
            &cloud,
            Operation::ALL
                .map(|operation| fault(operation, error))
                .to_vec(),
        );
        let described = describe(&cloud, by_name("n1")).await;
        match error {
            FaultError::NotFound => assert_eq!(described, Ok(None), "proved absent"),
            _ => assert_eq!(described, Err(error.kind())),
        }
        let mut failed = route_errors(&cloud).await;
        failed.push(cloud.list_routes("c").await.unwrap_err());
        failed.push(cloud.get_load_balancer(&key("c", "a")).await.unwrap_err());
        failed.push(
            cloud
                .create_load_balancer(&balancer("c", "a"))
                .await
                .unwrap_err(),
        );
        let settings = LoadBalancerSettings::default();
        failed.push(
            cloud
                .modify_load_balancer(&key("c", "a"), &settings)
                .await
                .unwrap_err(),
        );
        failed.push(
            cloud
                .update_load_balancer(&key("c", "a"), &Members::default())
                .await
                .unwrap_err(),
        );
        failed.push(
            cloud
                .delete_load_balancer(&key("c", "a"))
                .await
                .unwrap_err(),
        );
        failed.push(
            cloud
                .retain_load_balancer(&key("c", "a"))
                .await
                .unwrap_err(),
        );
        failed.push(
            cloud
                .adopt_load_balancer("lb-00000001", &key("c", "a"))
                .await
                .unwrap_err(),
        );
        failed.push(cloud.list_load_balancers("c").await.unwrap_err());
        assert!(failed.iter().all(|e| e.kind() == error.kind()), "{error:?}: {failed:?}");
        let wants_pause = error == FaultError::RetryAfter;
        assert!(
            failed
                .iter()
                .all(|e| e.retry_after().is_some() == wants_pause),
            "{failed:?}"
        );
        assert_eq!(cloud.load_balancers().len(), 1, "a failed call changed nothing");
        assert_eq!(cloud.routes(), []);
    }
}

#[tokio::test]
async fn a_fault_fires_on_its_object_so_often_and_no_more() {
    let cloud = cloud("autoProvision: true");
    let named = |name: &str, times| FaultSpec {
        object: Some(name.to_owned()),
        times,
        retry_after_seconds: Some(2.5),
        ..fault(Operation::DescribeInstances, FaultError::Throttled)
    };
    set_faults(&cloud, vec![named("n2", Some(2))]);
    let queries = [by_name("n1"), by_name("n2"), by_name("n22")];
    for round in 0..4 {
        let answers = cloud.describe_instances(&queries).await.unwrap();
        let failed: Vec<bool> = answers.iter().map(Result::is_err).collect();
        assert_eq!(failed, [false, round < 2, false], "round {round}");
        if round < 2 {
            assert_eq!(
                answers[1].as_ref().unwrap_err().retry_after(),
                Some(Duration::from_millis(2500))
            );
        }
    }
    // Without a name, `times` counts entries, not calls.
    let any = FaultSpec {
        times: Some(4),
        ..fault(Operation::DescribeInstances, FaultError::Transient)
    };
    set_faults(&cloud, vec![any]);
    let mut failed = 0;
    for _ in 0..3 {
        let answers = cloud.describe_instances(&queries).await.unwrap();
        failed += answers.iter().filter(|answer| answer.is_err()).count();
    }
    assert_eq!(failed, 4);
    assert_eq!(cloud.calls().describe_instances_nodes, 21, "failed entries were asked about too");
    set_faults(
        &cloud,
        vec![FaultSpec {
            object: Some("svc".to_owned()),
            ..fault(Operation::EnsureLoadBalancer, FaultError::Invalid)
        }],
    );
    assert!(
        cloud
            .create_load_balancer(&balancer("c", "svc"))
            .await
            .is_err(),
        "the namespace does not count"
    );
    assert!(
        cloud
            .create_load_balancer(&balancer("c", "svc2"))
            .await
            .is_ok()
    );
    let nobody = LoadBalancerKey { uid: String::new(), ..key("c", "svc3") };
    let uid = LoadBalancerSpec { key: nobody, ..balancer("c", "svc3") };
    assert_eq!(cloud.create_load_balancer(&uid).await.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn a_balancer_of_another_cluster_is_never_touched() {
    let cloud = cloud("");
    let made = cloud
        .create_load_balancer(&balancer("one", "a"))
        .await
        .unwrap();
    assert_eq!(
        cloud
            .create_load_balancer(&balancer("two", "a"))
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Conflict
    );
    assert_eq!(
        cloud
            .update_load_balancer(&key("two", "a"), &Members::default())
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::NotFound
    );
    assert_eq!(cloud.get_load_balancer(&key("two", "a")).await.unwrap(), None);
    cloud.delete_load_balancer(&key("two", "a")).await.unwrap();
    assert_eq!(cloud.list_load_balancers("two").await.unwrap(), []);
    assert_eq!(cloud.load_balancers(), [made]);
}

#[tokio::test]
async fn the_pool_runs_out_and_frees_what_is_deleted() {
    let cloud = cloud("loadBalancerAddressPool: 192.0.2.0/30");
    let first = cloud
        .create_load_balancer(&balancer("c", "a"))
        .await
        .unwrap();
    cloud
        .create_load_balancer(&balancer("c", "b"))
        .await
        .unwrap();
    let full = cloud
        .create_load_balancer(&balancer("c", "x"))
        .await
        .unwrap_err();
    assert_eq!(full.kind(), ErrorKind::QuotaExceeded);
    assert_eq!(
        cloud
            .create_load_balancer(&balancer("c", "a"))
            .await
            .unwrap(),
        first,
        "has its address already"
    );
    cloud.delete_load_balancer(&key("c", "a")).await.unwrap();
    cloud.delete_load_balancer(&key("c", "a")).await.unwrap();
    assert_eq!(
        cloud
            .create_load_balancer(&balancer("c", "x"))
            .await
            .unwrap()
            .address,
        first.address
    );
}

#[tokio::test]
async fn routes_are_idempotent_owned_and_lead_to_instances_only() {
    let cloud = cloud("instances: [{name: n1}, {name: n2}]");
    let create = |cluster: &str, node: &str| RouteBatch {
        cluster: cluster.to_owned(),
        edits: vec![RouteEdit::Create {
            node: node.to_owned(),
            destination: "10.0.0.0/24".parse().unwrap(),
            node_addresses: None,
        }],
    };
    let kind = |answers: Vec<Result<(), CloudError>>| {
        answers.into_iter().next().unwrap().map_err(|e| e.kind())
    };
    assert_eq!(kind(cloud.apply_routes(&create("c", "n1")).await.unwrap()), Ok(()));
    assert_eq!(kind(cloud.apply_routes(&create("c", "n1")).await.unwrap()), Ok(()));
    assert_eq!(
        kind(cloud.apply_routes(&create("c", "n2")).await.unwrap()),
        Err(ErrorKind::Conflict)
    );
    assert_eq!(
        kind(cloud.apply_routes(&create("c", "gone")).await.unwrap()),
        Err(ErrorKind::NotFound)
    );
    let route = cloud.list_routes("c").await.unwrap().remove(0).route;
    assert_eq!(route.name, "n1-10-0-0-0-24");
    assert_eq!(cloud.list_routes("other").await.unwrap(), []);
    let delete = |cluster: &str| RouteBatch {
        cluster: cluster.to_owned(),
        edits: vec![RouteEdit::Delete(route.clone())],
    };
    assert_eq!(kind(cloud.apply_routes(&delete("other")).await.unwrap()), Ok(()));
    assert_eq!(cloud.routes(), std::slice::from_ref(&route));
    assert_eq!(kind(cloud.apply_routes(&delete("c")).await.unwrap()), Ok(()));
    assert_eq!(kind(cloud.apply_routes(&delete("c")).await.unwrap()), Ok(()));
    assert_eq!(cloud.routes(), []);
}

#[tokio::test]
async fn a_hook_runs_before_and_after_each_call() {
    struct Hook(MockCloud, Mutex<Vec<(u64, Operation, usize)>>);
    #[async_trait]
    impl CallHook for Hook {
        async fn before(&self, number: u64, operation: Operation) {
            self.1
                .lock()
                .push((number, operation, self.0.load_balancers().len()));
        }
        async fn after(&self, number: u64, operation: Operation) {
            self.before(number, operation).await;
        }
    }
    let cloud = cloud("autoProvision: true");
    let hook = Arc::new(Hook(cloud.clone(), Mutex::default()));
    cloud.set_hook(Some(hook.clone()));
    describe(&cloud, by_name("n")).await.unwrap();
    cloud
        .create_load_balancer(&balancer("c", "a"))
        .await
        .unwrap();
    cloud.set_hook(None);
    cloud.delete_load_balancer(&key("c", "a")).await.unwrap();
    let (describe, ensure) = (Operation::DescribeInstances, Operation::CreateLoadBalancer);
    assert_eq!(
        *hook.1.lock(),
        [(1, describe, 0), (1, describe, 0), (2, ensure, 0), (2, ensure, 1)]
    );
}

#[derive(Clone, Debug)]
enum Step {
    Ensure(u8, bool),
    Delete(u8, bool),
    Update(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..8u8, any::<bool>()).prop_map(|(i, c)| Step::Ensure(i, c)),
        (0..8u8, any::<bool>()).prop_map(|(i, c)| Step::Delete(i, c)),
        (0..8u8).prop_map(Step::Update),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    /// A model of who owns what, beside the cloud: six addresses for eight names in two clusters.
    #[test]
    fn addresses_have_one_owner_and_are_freed(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let cloud = cloud("loadBalancerAddressPool: 192.0.2.0/29");
            let mut model: BTreeMap<String, (bool, IpAddr)> = BTreeMap::new();
            for step in steps {
                let cluster = |c: bool| if c { "one" } else { "two" };
                match step {
                    Step::Ensure(i, c) => {
                        let name = format!("lb{i}");
                        let answer = cloud.create_load_balancer(&balancer(cluster(c), &name)).await;
                        let again = cloud.create_load_balancer(&balancer(cluster(c), &name)).await;
                        assert_eq!(answer.as_ref().ok(), again.as_ref().ok(), "ensure is idempotent");
                        match (answer, model.get(&name)) {
                            (Ok(made), Some((owner, address))) => assert_eq!((*owner, *address), (c, made.address)),
                            (Ok(made), None) => drop(model.insert(name, (c, made.address))),
                            (Err(e), Some((owner, _))) => assert_eq!((*owner, e.kind()), (!c, ErrorKind::Conflict)),
                            (Err(e), None) => assert_eq!((model.len(), e.kind()), (6, ErrorKind::QuotaExceeded)),
                        }
                    }
                    Step::Delete(i, c) => {
                        let name = format!("lb{i}");
                        cloud.delete_load_balancer(&key(cluster(c), &name)).await.unwrap();
                        if model.get(&name).is_some_and(|(owner, _)| *owner == c) {
                            model.remove(&name);
                        }
                    }
                    Step::Update(i) => {
                        let name = format!("lb{i}");
                        let answer = cloud.update_load_balancer(&key("one", &name), &Members::nodes(["n9"])).await;
                        assert_eq!(answer.is_ok(), model.get(&name).is_some_and(|(owner, _)| *owner));
                    }
                }
                let seen: BTreeMap<_, _> = cloud.load_balancers().into_iter().map(|b| (b.name, b.address)).collect();
                let want: BTreeMap<_, _> = model.iter().map(|(n, (_, a))| (n.clone(), *a)).collect();
                assert_eq!(seen, want);
                let distinct: BTreeSet<_> = seen.values().collect();
                assert_eq!(distinct.len(), seen.len(), "no address is given twice");
            }
        });
    }
}
