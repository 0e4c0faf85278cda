//! What the sketch answers.

use std::{net::IpAddr, sync::Arc, time::Duration};

use ccm_core::{
    k8s::{AddressType, LbIngress, NodeAddress, NodeView, Protocol, ServiceView},
    provider::{
        Backends, Claim, CloudError, CloudProvider, Depth, ErrorKind, Instances, Inventory, LabelRequirement,
        LoadBalancers, Owner, Power, Presence, Progress, RouteChange, Routes,
    },
};

use super::{
    OpenStack, ProviderId,
    api::{Fake, RouterRoute, Server},
    instances::label_value,
};
use crate::fixtures::{claimed, lb_ref, node, op, op_of_a_loser, query, service, service_port, spec};

fn server(id: &'static str, name: &'static str, status: &'static str) -> Server {
    Server {
        id,
        name: Some(name),
        status,
        zone: "nova",
        flavor: "m1.small",
        fixed_ips: vec![IpAddr::from([10, 0, 0, 1])],
        floating_ip: None,
        host_id: "h1",
    }
}

/// A row of a cell that does not answer.
fn down(id: &'static str) -> Server {
    Server { name: None, fixed_ips: Vec::new(), host_id: "", ..server(id, "", "UNKNOWN") }
}

async fn cloud(fake: Fake) -> (OpenStack, Arc<Fake>) {
    let fake = Arc::new(fake);
    (OpenStack::connect(fake.clone(), "RegionOne").await.unwrap(), fake)
}

fn node_at(name: &str, ip: &str) -> NodeView {
    NodeView { addresses: Box::new([NodeAddress::new(AddressType::InternalIp, ip)]), ..NodeView::named(name) }
}

fn verdict(answer: Result<Presence, CloudError>) -> Result<Option<Power>, ErrorKind> {
    match answer {
        Ok(Presence::NotFound) => Ok(None),
        Ok(Presence::Found { power, .. }) => Ok(Some(power)),
        Err(error) => Err(error.kind()),
    }
}

#[test]
fn provider_ids_need_a_region_part_and_one_id() {
    let parsed = |region, server| Some(ProviderId { region, server });
    let cases = [
        ("openstack:///1", parsed("", "1")),
        ("openstack://R/1", parsed("R", "1")),
        ("/1", parsed("", "1")),
        ("R/1", parsed("R", "1")),
        ("1", None),
        ("openstack://1", None),
        ("openstack:///1/2", None),
        ("openstack:///", None),
        ("aws:///z/i-1", None),
    ];
    for (text, want) in cases {
        assert_eq!(ProviderId::parse(text).ok(), want, "{text}");
    }
}

#[test]
fn zones_become_label_values() {
    for (zone, want) in [("nova", "nova"), (" az one! ", "az-one"), ("a::b", "a-b"), ("_x.", "x")] {
        assert_eq!(label_value(zone), want, "{zone:?}");
    }
}

#[tokio::test]
async fn a_batch_is_answered_in_order_and_a_down_cell_is_never_not_found() {
    let servers = vec![server("1", "a", "ACTIVE"), server("2", "b", "SHUTOFF"), server("3", "c", "DELETED"), down("4")];
    let (cloud, _) = cloud(Fake { servers, ..Fake::default() }).await;
    let ids = ["openstack:///4", "openstack:///2", "openstack:///9", "openstack://RegionTwo/1", "openstack:///3"];
    let mut queries: Vec<_> = ids.iter().map(|id| query(node("n", Some(id)))).collect();
    queries.push(query(node("a", None)));
    queries.push(query(node("unknown", None)));
    let answers = cloud.describe(&op(), &queries).await.unwrap();
    let want = [
        Err(ErrorKind::Transient),
        Ok(Some(Power::Stopped)),
        Ok(None),
        Err(ErrorKind::InvalidInput),
        Ok(Some(Power::Terminated)),
        Ok(Some(Power::Running)),
        // The row without a name may be this node's.
        Err(ErrorKind::Transient),
    ];
    assert_eq!(answers.into_iter().map(verdict).collect::<Vec<_>>(), want);
}

#[tokio::test]
async fn a_few_nodes_are_asked_by_id_with_the_same_verdicts() {
    let (cloud, _) = cloud(Fake { servers: vec![server("1", "a", "ACTIVE"), down("4")], ..Fake::default() }).await;
    let queries = ["openstack:///4", "openstack:///9", "openstack:///1"].map(|id| query(node("n", Some(id))));
    let answers = cloud.describe(&op(), &queries).await.unwrap();
    let want = [Err(ErrorKind::Transient), Ok(None), Ok(Some(Power::Running))];
    assert_eq!(answers.into_iter().map(verdict).collect::<Vec<_>>(), want);
}

#[tokio::test]
async fn a_service_that_asks_for_more_than_the_cloud_has_is_refused() {
    let ports = Box::new([service_port(Protocol::Udp, 53)]);
    let ranges = Box::new(["10.0.0.0/8".into()]);
    let restricted = ServiceView { ports, source_ranges: ranges, ..service(&[]) };
    let (old, _) = cloud(Fake { old_octavia: true, ..Fake::default() }).await;
    let refused = old.supports().refuse(&restricted);
    assert_eq!(refused.iter().map(|r| &*r.field).collect::<Vec<_>>(), ["spec.loadBalancerSourceRanges"]);
    let open = ServiceView { source_ranges: Box::new(["0.0.0.0/0".into()]), ..restricted.clone() };
    assert!(old.supports().refuse(&open).is_empty(), "open to everybody is no restriction");
    let (new, _) = cloud(Fake::default()).await;
    assert!(new.supports().refuse(&restricted).is_empty());
}

#[tokio::test]
async fn annotations_decide_backends_and_what_we_write_changes_no_digest() {
    let (cloud, _) = cloud(Fake::default()).await;
    let selector = "loadbalancer.openstack.org/node-selector";
    let want = vec![LabelRequirement::Equals("a".into(), "1=2".into()), LabelRequirement::Exists("b".into())];
    assert_eq!(claimed(&cloud, &service(&[(selector, "a=1=2,b")])), Backends::Nodes(want));
    let written = service(&[("loadbalancer.openstack.org/load-balancer-id", "lb-0")]);
    assert_eq!(cloud.interpret(&written), cloud.interpret(&service(&[])));
    let both = ["proxy-protocol", "x-forwarded-for"].map(|s| format!("loadbalancer.openstack.org/{s}"));
    let both = service(&[(&both[0], "true"), (&both[1], "true")]);
    assert!(matches!(cloud.interpret(&both), Claim::Refused(_)));
}

#[tokio::test]
async fn provisioning_is_pending_then_done_and_the_id_is_kept_from_the_start() {
    let (cloud, fake) = cloud(Fake::default()).await;
    let want = spec(service(&[]), vec![node_at("a", "10.0.0.1")]);
    let first = cloud.ensure(&op(), &want, Depth::Verify).await;
    assert!(matches!(first.result, Ok(Progress::Pending { after, .. }) if after == Duration::from_secs(1)));
    assert!(first.status.is_none(), "nothing serves yet");
    let id = first.annotations["loadbalancer.openstack.org/load-balancer-id"].clone().unwrap();

    let op_later = op().with_pending_for(Duration::from_secs(60));
    let later = cloud.ensure(&op_later, &want, Depth::Verify).await;
    assert!(matches!(later.result, Ok(Progress::Pending { after, .. }) if after == Duration::from_secs(15)));
    assert_eq!(fake.balancers.lock().len(), 1, "waiting creates nothing");

    fake.settle();
    let done = cloud.ensure(&op(), &want, Depth::Verify).await;
    assert_eq!(done.result.unwrap(), Progress::Done);
    assert_eq!(done.status.unwrap().ingress[0].ip_mode.as_deref(), Some("VIP"));
    assert!(cloud.plan(&op(), &want).await.unwrap().is_empty());

    let known = service(&[("loadbalancer.openstack.org/load-balancer-id", &id)]);
    let grown = spec(known, vec![node_at("a", "10.0.0.1"), node_at("b", "10.0.0.2")]);
    assert_eq!(cloud.update_backends(&op(), &grown).await.result.unwrap(), Progress::Done);
    assert_eq!(fake.balancers.lock()[0].members.len(), 2);
    let locked = cloud.update_backends(&op(), &want).await;
    assert!(matches!(locked.result, Ok(Progress::Pending { .. })), "a locked balancer is waited for");
}

#[tokio::test]
async fn a_balancer_born_broken_is_replaced_and_one_that_served_is_not_touched() {
    let (cloud, fake) = cloud(Fake::default()).await;
    let want = spec(service(&[]), Vec::new());
    cloud.ensure(&op(), &want, Depth::Verify).await;
    fake.balancers.lock()[0].status = "ERROR";
    let mut served = service(&[]);
    served.status.ingress.push(LbIngress { ip: Some(IpAddr::from([192, 0, 2, 10])), ..LbIngress::default() });
    let refused = cloud.ensure(&op(), &spec(served, Vec::new()), Depth::Verify).await;
    assert_eq!(refused.result.unwrap_err().reason(), Some("LoadBalancerBroken"));
    assert_eq!(fake.balancers.lock()[0].status, "ERROR");
    assert!(matches!(cloud.ensure(&op(), &want, Depth::Verify).await.result, Ok(Progress::Pending { .. })));
    fake.settle();
    assert!(fake.balancers.lock().is_empty());
}

#[tokio::test]
async fn deletion_is_pending_until_the_cloud_confirms_and_a_borrowed_balancer_stays() {
    let (cloud, fake) = cloud(Fake::default()).await;
    assert_eq!(cloud.delete(&op(), &lb_ref(&service(&[]))).await.unwrap(), Progress::Done, "nothing to delete");
    cloud.ensure(&op(), &spec(service(&[]), Vec::new()), Depth::Verify).await;
    fake.settle();
    let address = ("loadbalancer.openstack.org/load-balancer-address", "192.0.2.10");
    let id = ("loadbalancer.openstack.org/load-balancer-id", "lb-0");
    let borrower = ServiceView { name: Arc::from("other"), ..service(&[id]) };
    assert_eq!(cloud.delete(&op(), &lb_ref(&borrower)).await.unwrap(), Progress::Done);
    assert_eq!(fake.balancers.lock().len(), 1);
    let own = lb_ref(&service(&[id, address]));
    assert!(matches!(cloud.delete(&op(), &own).await, Ok(Progress::Pending { .. })));
    fake.settle();
    assert_eq!(cloud.delete(&op(), &own).await.unwrap(), Progress::Done);
    assert_eq!(cloud.stale_annotations(&own), [address.0.into()], "the id may be the user's own choice");
}

#[tokio::test]
async fn routes_are_applied_in_two_requests_and_bad_ones_fail_alone() {
    let net = |text: &str| text.parse().unwrap();
    let stale = RouterRoute { destination: net("10.244.1.0/24"), nexthop: IpAddr::from([10, 0, 0, 9]) };
    let (cloud, fake) = cloud(Fake { routes: vec![stale].into(), ..Fake::default() }).await;
    let nodes = ["10.0.0.1", "10.0.0.2"].map(|ip| Arc::new(node_at(ip, ip)));
    let listed = cloud.list(&op(), &nodes).await.unwrap();
    assert!(listed[0].blackhole && listed[0].node.is_none());
    let create = |node: &Arc<NodeView>, to: &str| RouteChange::Create { node: node.clone(), destination: net(to) };
    let changes = [
        create(&nodes[0], "10.244.1.0/24"),
        RouteChange::Delete(listed[0].clone()),
        create(&nodes[1], "fd00::/64"),
        create(&nodes[1], "10.244.2.0/24"),
    ];
    let answers = cloud.apply(&op(), &changes).await;
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false, true]);
    assert_eq!(*fake.router_writes.lock(), 2);
    let listed = cloud.list(&op(), &nodes).await.unwrap();
    assert_eq!(listed.iter().map(|r| r.node.as_deref()).collect::<Vec<_>>(), [Some("10.0.0.1"), Some("10.0.0.2")]);

    let refused = cloud.apply(&op_of_a_loser(), &changes[..1]).await;
    assert_eq!(refused[0].as_ref().unwrap_err().kind(), ErrorKind::NotLeader);
}

#[tokio::test]
async fn a_cloud_without_the_extension_offers_no_routes() {
    let (cloud, _) = cloud(Fake { no_extra_routes: true, ..Fake::default() }).await;
    assert!(cloud.routes().is_none());
}

#[tokio::test]
async fn the_inventory_leaves_balancers_of_other_clusters_out() {
    let (cloud, fake) = cloud(Fake::default()).await;
    cloud.ensure(&op(), &spec(service(&[]), Vec::new()), Depth::Verify).await;
    let mut foreign = fake.balancers.lock()[0].clone();
    foreign.name = "kube_service_other_shop_web".to_owned();
    fake.balancers.lock().push(foreign);
    fake.settle();
    let owned = cloud.list_owned(&op()).await.unwrap();
    assert_eq!(owned.len(), 1);
    assert_eq!(owned[0].owner, Owner::Service { namespace: "shop".into(), name: "web".into(), uid: None });
    assert!(matches!(cloud.delete_owned(&op(), &owned[0]).await, Ok(Progress::Pending { .. })));
}
