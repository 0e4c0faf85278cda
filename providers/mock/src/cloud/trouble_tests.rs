//! Rate limits, outages, lost answers, and routes that lead nowhere.

use std::time::Duration;

use ccm_core::provider::ErrorKind;
use tokio::time::{Instant, sleep};

use super::{
    tests::{balancer, by_name, cloud, fault, key, set_faults},
    *,
};

fn create(node: &str, destination: &str) -> RouteEdit {
    RouteEdit::Create {
        node: node.to_owned(),
        destination: destination.parse().unwrap(),
        node_addresses: None,
    }
}

async fn apply(cloud: &MockCloud, edits: Vec<RouteEdit>) -> Vec<Result<(), ErrorKind>> {
    let batch = RouteBatch { cluster: "c".to_owned(), edits };
    let answers = cloud.apply_routes(&batch).await.unwrap();
    answers
        .into_iter()
        .map(|answer| answer.map_err(|error| error.kind()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn calls_over_the_rate_limit_are_told_when_to_come_again() {
    let cloud = cloud(
        "{autoProvision: true, latency: {loadBalancers: 100ms}, \
         rateLimits: {loadBalancers: {perSecond: 4, burst: 3}, routes: {perSecond: 0.5}}}",
    );
    let begin = Instant::now();
    for _ in 0..3 {
        cloud.get_load_balancer(&key("c", "a")).await.unwrap();
    }
    // 300 ms of latency filled the bucket by 1.2 calls.
    cloud.get_load_balancer(&key("c", "a")).await.unwrap();
    let asked = Instant::now();
    let refused = cloud
        .create_load_balancer(&balancer("c", "a"))
        .await
        .unwrap_err();
    assert_eq!(asked.elapsed(), Duration::ZERO, "a refusal takes no time");
    assert_eq!(refused.kind(), ErrorKind::Throttled);
    // After 400 ms there is 3 + 1.6 - 4 = 0.6 of a call.
    let after = refused.retry_after().unwrap();
    assert!((99..=101).contains(&after.as_millis()), "{after:?}");
    assert!(cloud.load_balancers().is_empty(), "a refused call changes nothing");
    sleep(after).await;
    cloud
        .create_load_balancer(&balancer("c", "a"))
        .await
        .unwrap();
    assert!(
        cloud
            .create_load_balancer(&balancer("c", "b"))
            .await
            .is_err()
    );
    assert_eq!(
        (cloud.calls().throttled, cloud.calls().create_load_balancer),
        (2, 3),
        "refused calls count"
    );
    // Other parts of the cloud have limits of their own, or none.
    for _ in 0..50 {
        cloud.describe_instances(&[by_name("n")]).await.unwrap();
    }
    let batch = (0..20)
        .map(|i| create("n", &format!("10.0.{i}.0/24")))
        .collect();
    assert!(apply(&cloud, batch).await.iter().all(Result::is_ok), "a batch is one call");
    let error = cloud.list_routes("c").await.unwrap_err();
    assert_eq!(
        (error.kind(), error.retry_after().unwrap().as_secs() < 3),
        (ErrorKind::Throttled, true)
    );
    assert!(begin.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_as_told_is_let_in_and_the_rate_holds() {
    let cloud = cloud("rateLimits: {loadBalancers: {perSecond: 20, burst: 40}}");
    let (begin, mut refused) = (Instant::now(), 0);
    for _ in 0..240 {
        while let Err(error) = cloud.get_load_balancer(&key("c", "a")).await {
            refused += 1;
            sleep(error.retry_after().unwrap()).await;
        }
    }
    let took = begin.elapsed();
    assert!(
        (9_900..=10_300).contains(&took.as_millis()),
        "40 at once and 200 at 20 a second: {took:?}"
    );
    assert!((200..=210).contains(&refused), "no waiting in vain: {refused}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_begins_and_ends_in_its_time() {
    let cloud = cloud("autoProvision: true");
    let outage = |after, lasts| FaultSpec {
        after_seconds: after,
        for_seconds: lasts,
        ..fault(Operation::Any, FaultError::Transient)
    };
    let fails = async || {
        let described = cloud
            .describe_instances(&[by_name("n")])
            .await
            .unwrap()
            .remove(0)
            .is_err();
        let others = [
            cloud.list_routes("c").await.is_err(),
            cloud.list_load_balancers("c").await.is_err(),
            cloud
                .create_load_balancer(&balancer("c", "a"))
                .await
                .is_err(),
            apply(&cloud, vec![create("n", "10.0.0.0/24")]).await[0].is_err(),
        ];
        assert!(
            others.iter().all(|other| *other == described),
            "all or nothing: {described} {others:?}"
        );
        described
    };
    set_faults(&cloud, vec![outage(Some(10.0), Some(300.0))]);
    let mut seen = Vec::new();
    for pause in [0, 9, 1, 299, 1] {
        sleep(Duration::from_secs(pause)).await;
        seen.push(fails().await);
    }
    assert_eq!(seen, [false, false, true, true, false]);
    set_faults(&cloud, vec![outage(None, None)]);
    sleep(Duration::from_secs(86400)).await;
    assert!(fails().await, "until it is cleared");
    cloud.set_faults(Vec::new());
    assert!(!fails().await);
}

#[tokio::test]
async fn an_outage_proves_nobody_absent() {
    let refused = Fault::new(fault(Operation::Any, FaultError::NotFound)).unwrap_err();
    assert_eq!(refused.field, "error");
    for (field, spec) in [
        ("afterSeconds", FaultSpec { after_seconds: Some(-1.0), ..FaultSpec::default() }),
        ("forSeconds", FaultSpec { for_seconds: Some(f64::NAN), ..FaultSpec::default() }),
        ("forSeconds", FaultSpec { for_seconds: Some(1e15), ..FaultSpec::default() }),
    ] {
        let error = Some(FaultError::Transient);
        let spec = FaultSpec { operation: Some(Operation::Any), error, ..spec };
        assert_eq!(Fault::new(spec).unwrap_err().field, field);
    }
}

#[tokio::test]
async fn a_lost_answer_has_its_effect() {
    let cloud = cloud("autoProvision: true");
    let lost = |operation| FaultSpec {
        answer_lost: true,
        times: Some(1),
        ..fault(operation, FaultError::Transient)
    };
    set_faults(&cloud, vec![lost(Operation::CreateLoadBalancer), lost(Operation::CreateRoute)]);
    let failed = cloud
        .create_load_balancer(&balancer("c", "a"))
        .await
        .unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Transient);
    assert_eq!(apply(&cloud, vec![create("n", "10.0.0.0/24")]).await, [Err(ErrorKind::Transient)]);
    assert_eq!((cloud.load_balancers().len(), cloud.routes().len()), (1, 1));
    cloud
        .create_load_balancer(&balancer("c", "a"))
        .await
        .unwrap();
    assert_eq!(cloud.load_balancers().len(), 1);
    set_faults(&cloud, vec![lost(Operation::DeleteLoadBalancer)]);
    assert!(cloud.delete_load_balancer(&key("c", "a")).await.is_err());
    assert!(cloud.load_balancers().is_empty());
}

#[tokio::test]
async fn one_service_fails_and_others_do_not() {
    let cloud = cloud("");
    let only = |object: &str| FaultSpec {
        object: Some(object.to_owned()),
        ..fault(Operation::EnsureLoadBalancer, FaultError::QuotaExceeded)
    };
    for object in ["bad", "ns/bad"] {
        set_faults(&cloud, vec![only(object)]);
        let failed = cloud
            .create_load_balancer(&balancer("c", "bad"))
            .await
            .unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::QuotaExceeded);
        cloud
            .create_load_balancer(&balancer("c", "good"))
            .await
            .unwrap();
        let settings = LoadBalancerSettings::default();
        assert!(
            cloud
                .modify_load_balancer(&key("c", "bad"), &settings)
                .await
                .is_err_and(|e| e.kind() == failed.kind())
        );
        assert!(cloud.get_load_balancer(&key("c", "bad")).await.is_ok(), "another operation");
    }
    set_faults(&cloud, vec![only("other/bad")]);
    assert!(
        cloud
            .create_load_balancer(&balancer("c", "bad"))
            .await
            .is_ok(),
        "another namespace"
    );
}

#[tokio::test]
async fn each_change_of_a_batch_fails_alone() {
    let cloud = cloud("instances: [{name: n1}, {name: n2}, {name: n3}]");
    let one = FaultSpec {
        object: Some("n2".to_owned()),
        ..fault(Operation::CreateRoute, FaultError::Conflict)
    };
    set_faults(&cloud, vec![one]);
    let edits = vec![
        create("n1", "10.0.1.0/24"),
        create("n2", "10.0.2.0/24"),
        create("gone", "10.0.3.0/24"),
        create("n1", "2001:db8:1::/64"),
        create("n3", "10.0.1.0/24"),
    ];
    let conflict = Err(ErrorKind::Conflict);
    assert_eq!(
        apply(&cloud, edits).await,
        [Ok(()), conflict, Err(ErrorKind::NotFound), Ok(()), conflict]
    );
    let left: Vec<_> = cloud
        .routes()
        .into_iter()
        .map(|route| (route.node, route.destination.to_string()))
        .collect();
    assert_eq!(
        left,
        [("n1", "10.0.1.0/24"), ("n1", "2001:db8:1::/64")]
            .map(|(n, d)| (n.to_owned(), d.to_owned()))
    );
}

#[tokio::test]
async fn a_route_is_a_black_hole_when_its_instance_is_gone() {
    let cloud = cloud("instances: [{name: n1}, {name: n2}, {name: n3}]");
    let edits = (1..4)
        .map(|i| create(&format!("n{i}"), &format!("10.0.{i}.0/24")))
        .collect();
    assert!(apply(&cloud, edits).await.iter().all(Result::is_ok));
    let holes = async || {
        let routes = cloud.list_routes("c").await.unwrap();
        assert_eq!(
            routes
                .iter()
                .map(|owned| owned.route.clone())
                .collect::<Vec<_>>(),
            cloud.routes()
        );
        routes
            .into_iter()
            .filter(|owned| owned.route.blackhole)
            .map(|owned| owned.route.node)
            .collect::<Vec<_>>()
    };
    assert!(holes().await.is_empty());
    cloud.delete_instance("n1");
    let power = |power| InstanceSpec { power_state: Some(power), ..InstanceSpec::default() };
    cloud
        .put_instance("n2", power(PowerState::Terminated))
        .unwrap();
    cloud
        .put_instance("n3", power(PowerState::Stopped))
        .unwrap();
    assert_eq!(holes().await, ["n1", "n2"]);
    // Another instance under the same name is not where the route leads.
    let other = InstanceSpec {
        provider_id: Some("mock://mock-region/i-1".to_owned()),
        ..InstanceSpec::default()
    };
    cloud.put_instance("n1", other).unwrap();
    cloud.put_instance("n2", InstanceSpec::default()).unwrap();
    assert_eq!(holes().await, ["n1"]);
    assert_eq!(apply(&cloud, vec![create("n1", "10.0.1.0/24")]).await, [Ok(())], "made anew");
    assert!(holes().await.is_empty());
    let by_hand =
        serde_json::from_str(r#"{"node":"nobody","destinationCIDR":"10.9.0.0/24"}"#).unwrap();
    cloud.put_route("by-hand", by_hand).unwrap();
    assert!(holes().await.is_empty(), "one made by hand is as it was put");
}

#[tokio::test]
async fn a_route_remembers_the_addresses_that_it_was_made_for() {
    let cloud = cloud("autoProvision: true");
    let addresses = |ip: &str| Some(vec![Address::new(ccm_core::k8s::AddressType::InternalIp, ip)]);
    for ip in ["10.0.0.1", "10.0.0.2"] {
        let edit = RouteEdit::Create {
            node: "n".to_owned(),
            destination: "10.1.0.0/24".parse().unwrap(),
            node_addresses: addresses(ip),
        };
        assert_eq!(apply(&cloud, vec![edit]).await, [Ok(())]);
        assert_eq!(cloud.routes()[0].node_addresses, addresses(ip));
    }
}

#[test]
fn counts_know_reads_writes_and_differences() {
    let mut calls = Calls::default();
    for (index, operation) in Operation::ALL.into_iter().enumerate() {
        calls.add(operation, 1 << index);
        assert_eq!(calls.of(operation), 1 << index, "{operation:?}");
    }
    assert_eq!(calls.reads() + calls.writes(), 4095);
    let reads = ["describe_instances", "list_routes", "get_load_balancer", "list_load_balancers"];
    let is_read = |operation: &Operation| reads.contains(&operation.as_str());
    let want: u64 = Operation::ALL
        .iter()
        .filter(|operation| is_read(operation))
        .map(|o| calls.of(*o))
        .sum();
    assert_eq!(calls.reads(), want);
    let both = calls.of(Operation::CreateLoadBalancer) + calls.of(Operation::ModifyLoadBalancer);
    assert_eq!((calls.of(Operation::EnsureLoadBalancer), calls.ensure_load_balancer), (both, both));
    assert_eq!(calls.of(Operation::Any), 4095);
    assert_eq!(calls.since(&calls), Calls::default());
    assert_eq!(calls.since(&Calls::default()), calls);
    assert_eq!(Calls::default().to_string(), "none");
    for operation in Operation::ALL
        .into_iter()
        .chain([Operation::EnsureLoadBalancer, Operation::Any])
    {
        let spelled = serde_json::to_value(operation).unwrap();
        assert_eq!(spelled, operation.as_str());
    }
}
