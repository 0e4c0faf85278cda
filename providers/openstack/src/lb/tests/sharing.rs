//! Several Services on one balancer.

use ccm_core::{k8s::ServiceView, provider::ReadMode};

use super::fixture::{Fixture, annotation, service, shown, with};

fn tag(name: &str) -> String {
    format!("kube_service_c1_ns_{name}")
}

fn tags(rig: &Fixture) -> Vec<String> {
    let mut tags = rig.the_lb().tags;
    tags.sort();
    tags
}

fn ports(rig: &Fixture) -> Vec<u16> {
    rig.listeners()
        .iter()
        .map(|listener| listener.protocol_port)
        .collect()
}

// Q05 Q06 Q07
#[tokio::test(start_paused = true)]
async fn a_second_service_comes_changes_and_goes() {
    let rig = Fixture::new(1).await;
    let first = rig.settle(&service("one", &[80])).await;
    let id = annotation(&first, "load-balancer-id").unwrap().to_owned();
    let second = rig
        .settle(&with(service("two", &[443]), "load-balancer-id", &id))
        .await;
    assert_eq!(tags(&rig), [tag("one"), tag("two")]);
    assert_eq!((ports(&rig), shown(&second)), (vec![80, 443], shown(&first)));
    assert_eq!(rig.floating_ips().len(), 1);
    assert_eq!(
        (rig.plan(&first).await.unwrap(), rig.plan(&second).await.unwrap()),
        (vec![], vec![])
    );

    let mut moved = second.clone();
    moved.ports[0].port = 8443.try_into().unwrap();
    let moved = rig.settle(&moved).await;
    assert_eq!(ports(&rig), [80, 8443]);

    rig.remove(&moved).await;
    assert_eq!((tags(&rig), ports(&rig)), (vec![tag("one")], vec![80]));
    rig.remove(&first).await;
    assert!(rig.lbs().is_empty() && rig.floating_ips().is_empty());
}

// Q08
#[tokio::test(start_paused = true)]
async fn a_port_that_is_taken_leaves_everything_as_it_was() {
    let rig = Fixture::with(1, |settings, _| settings.max_shared = 3).await;
    let first = rig.settle(&service("one", &[80])).await;
    let id = annotation(&first, "load-balancer-id").unwrap().to_owned();
    let share = |name: &str, port: u16| with(service(name, &[port]), "load-balancer-id", &id);
    let two = rig.settle(&share("two", 443)).await;
    let before = rig.everything();
    let error = rig
        .ensure(&share("four", 80), ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    assert!(error.to_string().contains("already exists"), "{error}");
    assert_eq!(rig.everything(), before);
    rig.remove(&share("four", 80)).await;
    assert_eq!(rig.everything(), before);
    rig.settle(&share("three", 8080)).await;
    let error = rig
        .ensure(&share("five", 8081), ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    assert!(error.to_string().contains("max-shared-lb"), "{error}");
    rig.remove(&two).await;
    assert_eq!(ports(&rig), [80, 8080]);
}

// Q09
#[tokio::test(start_paused = true)]
async fn a_balancer_outlives_the_service_that_it_was_made_for() {
    let rig = Fixture::new(1).await;
    let first = rig.settle(&service("one", &[80])).await;
    let id = annotation(&first, "load-balancer-id").unwrap().to_owned();
    let third = rig
        .settle(&with(service("three", &[443]), "load-balancer-id", &id))
        .await;
    rig.remove(&first).await;
    assert_eq!((tags(&rig), ports(&rig)), (vec![tag("three")], vec![443]));
    assert_eq!(rig.plan(&third).await.unwrap(), []);
    rig.remove(&third).await;
    assert!(rig.lbs().is_empty() && rig.floating_ips().is_empty());
}

// Q10
#[tokio::test(start_paused = true)]
async fn a_balancer_of_a_person_is_used_and_left() {
    let rig = Fixture::new(1).await;
    let subnet = rig.net.subnet.clone();
    let (id, port) = rig
        .change(move |state, ctx| {
            use openstack_local::api::octavia::{
                ListenerCreate, ListenerProtocol, LoadBalancerCreate,
            };
            let listener = ListenerCreate {
                protocol: Some(ListenerProtocol::Http),
                protocol_port: 8080,
                ..ListenerCreate::default()
            };
            let create = LoadBalancerCreate {
                name: Some("mine".into()),
                vip_subnet_id: Some(subnet),
                listeners: vec![listener],
                ..LoadBalancerCreate::default()
            };
            let made =
                openstack_local::octavia::load_balancers::create(state, ctx, create).unwrap();
            openstack_local::octavia::finish_due(
                state,
                ctx.now + jiff::SignedDuration::from_secs(60),
            );
            (made.id, made.vip_port_id.unwrap())
        })
        .await;
    let external = rig.net.external.clone();
    rig.change(move |state, ctx| {
        let request = openstack_local::api::neutron::FloatingIpCreate {
            floating_network_id: external,
            port_id: Some(port),
            ..Default::default()
        };
        openstack_local::neutron::floating_ips::create(state, ctx, request).unwrap();
    })
    .await;
    let before = rig.everything();
    let taken = with(service("taken", &[8080]), "load-balancer-id", &id);
    assert!(rig.ensure(&taken, ReadMode::Fresh).await.result.is_err(), "HTTP is on the same port");
    let web = rig
        .settle(&with(service("web", &[80]), "load-balancer-id", &id))
        .await;
    assert_eq!((tags(&rig), ports(&rig)), (vec![tag("web")], vec![80, 8080]));
    assert_eq!(
        shown(&web),
        rig.floating_ips()[0]
            .floating_ip_address
            .unwrap()
            .to_string()
    );
    rig.remove(&web).await;
    assert_eq!(rig.everything(), before);
}

#[tokio::test(start_paused = true)]
async fn a_balancer_that_is_to_be_shared_and_is_not_there_is_a_mistake() {
    let rig = Fixture::new(1).await;
    let id = "6a2a8ec6-2d2b-4b43-9b71-4e9b0a3f0e55";
    let error = rig
        .ensure(&with(service("web", &[80]), "load-balancer-id", id), ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
    assert!(rig.lbs().is_empty());
}

/// The owner's tag was taken off by hand, and another Service is the last that the tags know of.
#[tokio::test(start_paused = true)]
async fn a_balancer_with_listeners_of_others_is_not_deleted_although_tags_say_nothing_of_them() {
    let rig = Fixture::new(1).await;
    let first = rig.settle(&service("one", &[80])).await;
    let id = annotation(&first, "load-balancer-id").unwrap().to_owned();
    let second = rig
        .settle(&with(service("two", &[443]), "load-balancer-id", &id))
        .await;
    rig.change(|state, _| {
        state
            .octavia
            .load_balancers
            .update(&id, |row| row.body.tags = vec![tag("two")])
    })
    .await;
    let rig = rig.restart().await;
    rig.remove(&second).await;
    assert_eq!(ports(&rig), [80]);
}

#[tokio::test(start_paused = true)]
async fn what_is_owned_is_listed_and_deleted_on_proof() {
    use ccm_core::provider::{Inventory as _, Owner, Progress};
    let rig = Fixture::with(1, |settings, _| settings.manage_security_groups = true).await;
    let web = rig.settle(&service("web", &[80])).await;
    let mut owned = rig.balancers.list_owned(&rig.op()).await.unwrap();
    owned.sort_by(|a, b| a.kind.cmp(&b.kind));
    let kinds: Vec<_> = owned.iter().map(|object| &*object.kind).collect();
    assert_eq!(kinds, ["load balancer", "security group"]);
    // Whether that can be read is known from one row of each kind.
    rig.requests();
    rig.balancers.check_readable(&rig.op()).await.unwrap();
    let asked = rig.requests();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked.iter().all(|request| request.contains("limit=1")), "{asked:?}");
    for object in &owned {
        let Owner::Service { namespace, name, .. } = &object.owner else {
            panic!("{object:?}")
        };
        assert_eq!((&**namespace, &**name), ("ns", "web"));
    }
    let mut stranger = owned[0].clone();
    stranger.owner = Owner::Service { namespace: "ns".into(), name: "other".into(), uid: None };
    assert!(
        rig.balancers
            .delete_owned(&rig.op(), &stranger)
            .await
            .is_err()
    );
    for object in &owned {
        for _ in 0..20 {
            match rig.balancers.delete_owned(&rig.op(), object).await.unwrap() {
                Progress::Done => break,
                Progress::Pending { after, .. } => tokio::time::sleep(after).await,
            }
        }
    }
    assert!(rig.lbs().is_empty() && rig.floating_ips().is_empty() && rig.rules().is_empty());
    rig.remove(&web).await;
}

/// Two Services that write tags at the same time may take each other's off.
#[tokio::test(start_paused = true)]
async fn an_owner_leaves_a_balancer_with_listeners_of_others_although_their_tags_are_gone() {
    use ccm_core::provider::{Inventory as _, OwnedObject, Owner};
    let rig = Fixture::new(1).await;
    let first = rig.settle(&service("one", &[80])).await;
    let id = annotation(&first, "load-balancer-id").unwrap().to_owned();
    let second = rig
        .settle(&with(service("two", &[443]), "load-balancer-id", &id))
        .await;
    rig.change(|state, _| {
        state
            .octavia
            .load_balancers
            .update(&id, |row| row.body.tags = vec![tag("one")])
    })
    .await;
    let rig = rig.restart().await;
    let owner = Owner::Service { namespace: "ns".into(), name: "one".into(), uid: None };
    let object = OwnedObject {
        kind: "load balancer".into(),
        id: id.as_str().into(),
        owner,
        created: None,
    };
    let error = rig
        .balancers
        .delete_owned(&rig.op(), &object)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("other Services"), "{error}");
    rig.remove(&first).await;
    assert_eq!((ports(&rig), rig.floating_ips().len()), (vec![443], 1));
    rig.settle(&second).await;
    assert_eq!(tags(&rig), [tag("two")]);
    rig.remove(&second).await;
    assert!(rig.lbs().is_empty() && rig.floating_ips().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_tag_that_another_wrote_meanwhile_stays() {
    use openstack_local::server::{Fault, FaultKind};
    let rig = Fixture::with(1, |settings, _| settings.max_shared = 3).await;
    let first = rig.settle(&service("one", &[80])).await;
    let id = annotation(&first, "load-balancer-id").unwrap().to_owned();
    rig.local.cloud().faults.add(
        Fault::new("/load-balancer/v2.0/lbaas/pools", FaultKind::Latency { ms: 100 }).times(1),
    );
    let two = with(service("two", &[443]), "load-balancer-id", &id);
    let theirs = async {
        // Between reading and writing.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        rig.change(|state, _| {
            state
                .octavia
                .load_balancers
                .update(&id, |row| row.body.tags.push(tag("three")))
        })
        .await;
    };
    tokio::join!(rig.settle(&two), theirs);
    assert_eq!(tags(&rig), [tag("one"), tag("three"), tag("two")]);
}

#[tokio::test(start_paused = true)]
async fn members_follow_the_nodes_also_while_a_change_is_refused() {
    let mut rig = Fixture::new(1).await;
    let first = rig.settle(&service("one", &[80])).await;
    let id = annotation(&first, "load-balancer-id").unwrap().to_owned();
    let second = rig
        .settle(&with(service("two", &[443]), "load-balancer-id", &id))
        .await;
    let refused = ServiceView { ports: service("two", &[80, 443]).ports, ..second };
    assert!(rig.ensure(&refused, ReadMode::Fresh).await.result.is_err());
    rig.add_node().await;
    rig.update(&refused).await.unwrap();
    assert_eq!(rig.members(443).len(), 2);
}

/// Then Octavia is not known to support tags, and the load balancer has lost the other Service's.
#[tokio::test(start_paused = true)]
async fn an_owner_leaves_a_shared_balancer_also_when_octavia_hides_its_versions() {
    use openstack_local::server::{Fault, FaultKind};
    let rig = Fixture::new(1).await;
    let first = rig.settle(&service("one", &[80])).await;
    let id = annotation(&first, "load-balancer-id").unwrap().to_owned();
    rig.settle(&with(service("two", &[443]), "load-balancer-id", &id))
        .await;
    rig.change(|state, _| {
        state
            .octavia
            .load_balancers
            .update(&id, |row| row.body.tags = vec![tag("one")])
    })
    .await;
    let hidden = FaultKind::Status { code: 403, retry_after: None, message: None };
    let versions = Fault::new("/load-balancer", hidden).times(3);
    rig.local.cloud().faults.add(versions);
    let rig = rig.restart().await;
    rig.local.cloud().faults.clear();
    rig.remove(&first).await;
    assert_eq!((ports(&rig), rig.floating_ips().len()), (vec![443], 1));
}
