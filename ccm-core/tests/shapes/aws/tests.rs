//! What the sketch answers.

use std::{net::IpAddr, sync::Arc, time::Duration};

use ccm_core::{
    k8s::{Protocol, ServiceView},
    provider::{
        Backends, Claim, CloudProvider, Depth, ErrorKind, Instances, Inventory, LabelRequirement, LoadBalancers,
        NodeClaim, Owner, Power, Presence, Progress, RouteChange, Routes,
    },
};

use super::{
    Aws, ProviderId,
    api::{CloudRoute, Fake, Instance, Interface},
};
use crate::fixtures::{claimed, lb_ref, node, op, op_of_a_loser, query, service, service_port, spec};

fn instance(id: &'static str, state: &'static str) -> Instance {
    Instance {
        id,
        state,
        kind: "m7i.large",
        zone: "us-west-2a",
        private_ips: vec![IpAddr::from([10, 0, 0, 1])],
        public_ip: None,
        private_dns: "",
    }
}

fn aws(fake: Fake) -> (Aws, Arc<Fake>) {
    let fake = Arc::new(fake);
    (Aws::new(fake.clone()), fake)
}

fn power(answer: &Result<Presence, ccm_core::provider::CloudError>) -> Option<Power> {
    match answer {
        Ok(Presence::Found { power, .. }) => Some(*power),
        _ => None,
    }
}

#[test]
fn provider_ids_parse_to_their_own_id_space() {
    let instance = |id: &str| Some(ProviderId::Instance(id.into()));
    let cases = [
        ("aws:///us-west-2a/i-1", instance("i-1")),
        ("aws:///i-1", instance("i-1")),
        ("aws:////i-1", instance("i-1")),
        ("i-1", instance("i-1")),
        ("aws:///us-west-2a/x/i-1", instance("i-1")),
        ("aws://account/us-west-2a/i-1", instance("i-1")),
        ("aws:///us-west-2a/fargate-192.168.164.88", Some(ProviderId::Fargate("fargate-192.168.164.88".into()))),
        ("aws:///us-west-2a/vol-1", None),
        ("aws:///us-west-2a/i-1/more/path", None),
        ("openstack:///i-1", None),
        ("", None),
    ];
    for (text, want) in cases {
        assert_eq!(ProviderId::parse(text).ok(), want, "{text}");
    }
}

#[test]
fn fargate_nodes_are_claimed_and_nodes_of_other_clouds_are_not() {
    let (aws, _) = aws(Fake::default());
    let fargate = "aws:///us-west-2a/1f2e/fargate-ip-10-0-55-27.us-west-2.compute.internal";
    assert_eq!(aws.claims_node(&node("fargate-ip-10-0-55-27", Some(fargate))), NodeClaim::Ours);
    assert_eq!(aws.claims_node(&node("n", None)), NodeClaim::Ours);
    assert_eq!(aws.claims_node(&node("n", Some("openstack:///1"))), NodeClaim::Foreign);
}

#[tokio::test]
async fn answers_come_in_the_order_of_the_questions_and_only_the_named_id_is_not_found() {
    let (aws, _) = aws(Fake {
        instances: vec![
            instance("i-running", "running"),
            instance("i-stopped", "stopped"),
            instance("i-terminated", "terminated"),
            instance("i-stopping", "stopping"),
            Instance { private_dns: "ip-10-0-0-9.ec2.internal", ..instance("i-named", "running") },
        ],
        interfaces: vec![Interface { ip: IpAddr::from([10, 0, 55, 27]), zone: "us-west-2b" }],
        ..Fake::default()
    });
    let queries = [
        query(node("a", Some("aws:///us-west-2a/i-stopped"))),
        query(node("b", Some("aws:///us-west-2a/i-gone"))),
        query(node("c", Some("aws:///us-west-2a/i-running"))),
        query(node("d", Some("aws:///us-west-2a/i-terminated"))),
        query(node("ip-10-0-0-9.ec2.internal", None)),
        query(node("i-stopping.ec2.internal", None)),
        query(node("e", Some("aws:///us-west-2b/fargate-ip-10-0-55-27.us-west-2.compute.internal"))),
        query(node("f", Some("aws:///us-west-2a/vol-1"))),
        query(node("unknown.example.com", None)),
    ];
    let answers = aws.describe(&op(), &queries).await.unwrap();
    let powers: Vec<_> = answers.iter().map(power).collect();
    assert_eq!(powers[0], Some(Power::Stopped));
    assert_eq!(answers[1].as_ref().ok(), Some(&Presence::NotFound));
    assert_eq!(powers[2..4], [Some(Power::Running), Some(Power::Terminated)]);
    assert_eq!(powers[4..7], [Some(Power::Running), Some(Power::Transitional), Some(Power::Running)]);
    assert_eq!(answers[7].as_ref().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(answers[8].as_ref().ok(), Some(&Presence::NotFound));
}

#[test]
fn annotations_decide_claim_and_backends() {
    let (aws, _) = aws(Fake::default());
    let key = "service.beta.kubernetes.io/aws-load-balancer-type";
    assert_eq!(aws.interpret(&service(&[(key, "external")])), Claim::Elsewhere);
    let Claim::Refused(invalid) = aws.interpret(&service(&[(key, "clb")])) else { panic!("a classic balancer") };
    assert_eq!(&*invalid[0].field, key);
    assert_eq!(claimed(&aws, &service(&[(key, "nlb")])), Backends::Nodes(Vec::new()));
    let target = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type";
    assert_eq!(claimed(&aws, &service(&[(target, "ip")])), Backends::Endpoints);
    let labels = "service.beta.kubernetes.io/aws-load-balancer-target-node-labels";
    let want = vec![LabelRequirement::Equals("a".into(), "1".into()), LabelRequirement::Exists("b".into())];
    assert_eq!(claimed(&aws, &service(&[(labels, "a=1, b")])), Backends::Nodes(want));
}

#[test]
fn a_setting_without_effect_is_a_remark_and_changes_no_digest() {
    let (aws, _) = aws(Fake::default());
    let idle = service(&[("service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout", "60")]);
    assert_eq!(aws.remarks(&idle).len(), 1);
    assert_eq!(aws.interpret(&idle), aws.interpret(&service(&[])));
    let other = ServiceView { ports: Box::new([service_port(Protocol::Tcp, 81)]), ..service(&[]) };
    assert_ne!(aws.interpret(&other), aws.interpret(&service(&[])));
}

#[tokio::test]
async fn ensure_converges_and_then_plans_nothing() {
    let (aws, fake) = aws(Fake::default());
    let ports = Box::new([service_port(Protocol::Tcp, 80), service_port(Protocol::Udp, 53)]);
    let nodes = vec![node("a", Some("aws:///z/i-a")), node("f", Some("aws:///z/fargate-10.0.0.1"))];
    let want = spec(ServiceView { ports, ..service(&[]) }, nodes);
    assert!(aws.supports().refuse(&want.service).is_empty());

    let operations: Vec<_> = aws.plan(&op(), &want).await.unwrap().into_iter().map(|c| c.operation).collect();
    let expected = ["CreateLoadBalancer", "RegisterTargets", "CreateListener", "CreateListener"];
    assert_eq!(operations.iter().map(|o| &**o).collect::<Vec<_>>(), expected);
    assert!(fake.balancers.lock().is_empty(), "a plan changes nothing");

    let outcome = aws.ensure(&op(), &want, Depth::Verify).await;
    assert_eq!(outcome.result.unwrap(), Progress::Done);
    assert!(outcome.status.unwrap().ingress[0].hostname.is_some());
    assert!(aws.plan(&op(), &want).await.unwrap().is_empty());

    let fewer = spec(service(&[]), vec![node("b", Some("aws:///z/i-b"))]);
    assert!(aws.update_backends(&op(), &fewer).await.result.is_ok());
    assert_eq!(fake.balancers.lock()[0].targets.iter().map(|t| &*t.id).collect::<Vec<_>>(), ["i-b"]);
    assert_eq!(fake.balancers.lock()[0].listeners.len(), 2, "only backends were touched");
}

#[tokio::test]
async fn backends_of_a_missing_balancer_are_not_found_so_that_it_is_ensured() {
    let (aws, _) = aws(Fake::default());
    let outcome = aws.update_backends(&op(), &spec(service(&[]), Vec::new())).await;
    assert_eq!(outcome.result.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn deletion_waits_longer_the_longer_it_has_waited() {
    let (aws, _) = aws(Fake { group_in_use: 2.into(), ..Fake::default() });
    let lb = lb_ref(&service(&[]));
    for (waited, want) in [(0, 5), (40, 20)] {
        let op = op().with_pending_for(Duration::from_secs(waited));
        let Progress::Pending { after, .. } = aws.delete(&op, &lb).await.unwrap() else { panic!("still in use") };
        assert_eq!(after, Duration::from_secs(want));
    }
    assert_eq!(aws.delete(&op(), &lb).await.unwrap(), Progress::Done);
}

#[tokio::test]
async fn a_process_that_lost_its_lease_writes_nothing() {
    let (aws, fake) = aws(Fake::default());
    let outcome = aws.ensure(&op_of_a_loser(), &spec(service(&[]), Vec::new()), Depth::Verify).await;
    assert_eq!(outcome.result.unwrap_err().kind(), ErrorKind::NotLeader);
    assert!(fake.balancers.lock().is_empty());
}

#[tokio::test]
async fn the_inventory_names_the_service_of_each_balancer() {
    let (aws, fake) = aws(Fake::default());
    assert!(aws.ensure(&op(), &spec(service(&[]), Vec::new()), Depth::Verify).await.result.is_ok());
    let owned = aws.list_owned(&op()).await.unwrap();
    assert_eq!(owned[0].owner, Owner::Service { namespace: "shop".into(), name: "web".into(), uid: None });
    assert_eq!(aws.delete_owned(&op(), &owned[0]).await.unwrap(), Progress::Done);
    assert!(fake.balancers.lock().is_empty());
    assert_eq!(aws.delete_owned(&op(), &owned[0]).await.unwrap(), Progress::Done, "deleting nothing succeeds");
}

#[tokio::test]
async fn routes_of_vanished_nodes_are_listed_without_a_node_and_deleting_twice_succeeds() {
    let net = |text: &str| text.parse().unwrap();
    let lost = CloudRoute { destination: net("10.244.9.0/24"), instance: Some("i-gone".into()), blackhole: true };
    let (aws, _) = aws(Fake { routes: vec![lost].into(), ..Fake::default() });
    let nodes = [Arc::new(node("a", Some("aws:///z/i-a")))];
    let create = RouteChange::Create { node: nodes[0].clone(), destination: net("10.244.1.0/24") };
    let foreign = Arc::new(node("f", Some("aws:///z/fargate-10.0.0.1")));
    let wrong = RouteChange::Create { node: foreign, destination: net("10.244.2.0/24") };
    let answers = aws.apply(&op(), &[wrong, create]).await;
    assert_eq!(answers[0].as_ref().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(answers[1].is_ok(), "one bad change does not hold up the others");

    let routes = aws.list(&op(), &nodes).await.unwrap();
    assert_eq!(routes.iter().map(|r| r.node.as_deref()).collect::<Vec<_>>(), [None, Some("a")]);
    for _ in 0..2 {
        assert!(aws.apply(&op(), &[RouteChange::Delete(routes[0].clone())]).await[0].is_ok());
    }
}
