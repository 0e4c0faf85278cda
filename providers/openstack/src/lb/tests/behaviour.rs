//! What one Service gets, and what becomes of it when it changes.

use std::num::NonZeroU16;

use ccm_core::provider::{LoadBalancers as _, Progress, ReadMode, ServiceInterpretation};

use super::fixture::{
    Fixture, address, annotation, internal, node, reference, service, shown, with,
};

fn protocols(rig: &Fixture) -> Vec<String> {
    rig.listeners()
        .iter()
        .map(|listener| format!("{}/{}", listener.protocol, listener.protocol_port))
        .collect()
}

fn ends(rig: &Fixture, port: u16) -> Vec<String> {
    rig.members(port)
        .iter()
        .map(|member| format!("{}:{}", member.address, member.protocol_port))
        .collect()
}

// Q04 A18
#[tokio::test(start_paused = true)]
async fn a_service_gets_a_balancer_under_upstreams_names() {
    let rig = Fixture::new(2).await;
    let web = rig.settle(&service("web", &[80, 443])).await;
    let lb = rig.the_lb();
    let name = "kube_service_c1_ns_web";
    assert_eq!((lb.name.as_str(), &*lb.tags), (name, &[name.to_owned()][..]));
    assert_eq!(lb.description, "Kubernetes external service ns/web from cluster c1");
    assert_eq!(protocols(&rig), ["TCP/80", "TCP/443"]);
    let names: Vec<_> = rig
        .listeners()
        .into_iter()
        .map(|listener| listener.name)
        .collect();
    assert_eq!(names, [format!("listener_0_{name}"), format!("listener_1_{name}")]);
    assert!(
        rig.listeners()
            .iter()
            .all(|listener| listener.tags == [name])
    );
    assert_eq!(ends(&rig, 80), [format!("{}:30080", address(0)), format!("{}:30080", address(1))]);
    let [floating] = &*rig.floating_ips() else {
        panic!("one floating IP")
    };
    assert_eq!(
        floating.standard.description,
        "Floating IP for Kubernetes external service ns/web from cluster c1"
    );
    assert_eq!(shown(&web), floating.floating_ip_address.unwrap().to_string());
    assert_eq!(annotation(&web, "load-balancer-id"), Some(&*lb.id));
    assert_eq!(annotation(&web, "load-balancer-address"), Some(&*shown(&web)));
    let digest = |service| match rig.balancers.interpret(service) {
        ServiceInterpretation::Valid { digest, .. } => digest,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        digest(&web),
        digest(&service("web", &[80, 443])),
        "what is written changes nothing"
    );
    assert_eq!(rig.plan(&web).await.unwrap(), []);
}

// Q03
#[tokio::test(start_paused = true)]
async fn ports_of_an_internal_service_come_and_go() {
    let rig = Fixture::new(2).await;
    let web = rig.settle(&internal(service("web", &[80, 443]))).await;
    assert_eq!((protocols(&rig).len(), rig.floating_ips().len()), (2, 0));
    assert_eq!(shown(&web), rig.the_lb().vip_address.unwrap());
    assert_eq!(ends(&rig, 443)[0], format!("{}:30443", address(0)));
    let mut less = web.clone();
    less.ports = [less.ports[0].clone()].into();
    less.ports[0].node_port = NonZeroU16::new(31111);
    let less = rig.settle(&less).await;
    assert_eq!(protocols(&rig), ["TCP/80"]);
    assert_eq!(ends(&rig, 80), [format!("{}:31111", address(0)), format!("{}:31111", address(1))]);
    rig.remove(&less).await;
    assert!(rig.lbs().is_empty());
}

// Q01
#[tokio::test(start_paused = true)]
async fn an_address_that_is_asked_for_is_used_and_left() {
    let rig = Fixture::new(1).await;
    let request = openstack_local::api::neutron::FloatingIpCreate {
        floating_network_id: rig.net.external.clone(),
        ..Default::default()
    };
    let made = rig
        .change(|state, ctx| {
            openstack_local::neutron::floating_ips::create(state, ctx, request).unwrap()
        })
        .await;
    let asked = made.floating_ip_address.unwrap().to_string();
    let mut web = service("web", &[80]);
    web.load_balancer_ip = Some(asked.clone().into());
    let web = rig.settle(&web).await;
    assert_eq!(shown(&web), asked);
    assert_eq!(rig.floating_ips()[0].port_id, rig.the_lb().vip_port_id);
    rig.remove(&web).await;
    assert_eq!(rig.floating_ips().len(), 1, "it was there before");
    assert_eq!((rig.floating_ips()[0].port_id.clone(), rig.lbs().len()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn an_address_of_somebody_else_is_an_error() {
    let rig = Fixture::new(1).await;
    let first = rig.settle(&service("first", &[80])).await;
    let mut web = service("web", &[80]);
    web.load_balancer_ip = Some(shown(&first).into());
    assert!(
        rig.try_settle(&web, 10)
            .await
            .unwrap_err()
            .contains("in use")
    );
}

// Q02
#[tokio::test(start_paused = true)]
async fn a_protocol_switch_takes_the_old_listener_away_first() {
    let rig = Fixture::new(1).await;
    let web = rig.settle(&service("web", &[80])).await;
    let switched = rig.settle(&with(web, "x-forwarded-for", "true")).await;
    assert_eq!(protocols(&rig), ["HTTP/80"]);
    assert_eq!(rig.listeners()[0].insert_headers["X-Forwarded-For"], "true");
    assert_eq!(ends(&rig, 80).len(), 1);
    assert_eq!(rig.plan(&switched).await.unwrap(), []);
    let back = rig
        .settle(&with(switched, "x-forwarded-for", "false"))
        .await;
    assert_eq!(protocols(&rig), ["TCP/80"]);
    let proxied = rig.settle(&with(back, "proxy-protocol", "v2")).await;
    let pools = rig.peek(|state| {
        state
            .octavia
            .pools
            .iter()
            .map(|row| row.body.protocol.to_string())
            .collect::<Vec<_>>()
    });
    assert_eq!(pools, ["PROXYV2"]);
    assert_eq!(proxied.status.ingress[0].ip_mode.as_deref(), Some("Proxy"));
}

// Q11
#[tokio::test(start_paused = true)]
async fn what_was_never_there_is_deleted_at_once() {
    let rig = Fixture::new(1).await;
    assert_eq!(rig.delete(&service("web", &[80])).await.unwrap(), Progress::Done);
    let unknown = rig
        .balancers
        .update_backends(&rig.op(), &rig.spec(&service("web", &[80])))
        .await;
    assert_eq!(unknown.result.unwrap_err().kind(), ccm_core::provider::ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_listener_gets_a_certificate_that_the_key_manager_has_and_no_other() {
    let rig = Fixture::new(1).await;
    let put = |kind: &'static str| {
        rig.local
            .put_secret(&rig.net.project, kind, kind, "PEM".into())
    };
    let (certificate, key) = (put("certificate").await.unwrap(), put("private").await.unwrap());
    let parts = [("certificate", &*certificate), ("private_key", &*key)];
    let container = rig
        .local
        .put_container(&rig.net.project, "site", &parts)
        .await
        .unwrap();
    let reference = |id: &str| format!("http://keys.test/v1/containers/{id}");
    let tls = |id: &str| with(service("web", &[443]), "default-tls-container-ref", &reference(id));
    let missing = "6a2a8ec6-2d2b-4b43-9b71-4e9b0a3f0e55";
    let error = rig
        .ensure(&tls(missing), ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    assert!(error.to_string().contains(missing), "{error}");
    assert!(rig.lbs().is_empty());
    let web = rig.settle(&tls(&container)).await;
    assert_eq!(protocols(&rig), ["TERMINATED_HTTPS/443"]);
    assert_eq!(
        rig.listeners()[0].default_tls_container_ref.as_deref(),
        Some(&*reference(&container))
    );
    assert_eq!(rig.plan(&web).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn monitors_come_change_and_go() {
    let rig = Fixture::new(1).await;
    let monitors = || {
        rig.peek(|state| {
            let of = state
                .octavia
                .monitors
                .iter()
                .map(|row| (row.body.kind.to_string(), row.body.delay));
            of.collect::<Vec<_>>()
        })
    };
    let web = rig
        .settle(&with(service("web", &[80]), "enable-health-monitor", "true"))
        .await;
    assert_eq!(monitors(), [("TCP".to_owned(), 5)]);
    let web = rig.settle(&with(web, "health-monitor-delay", "9")).await;
    assert_eq!(monitors(), [("TCP".to_owned(), 9)]);
    let mut local = web.clone();
    local.external_traffic_policy = ccm_core::k8s::TrafficPolicy::Local;
    local.health_check_node_port = NonZeroU16::new(32100);
    let local = rig.settle(&local).await;
    assert_eq!(monitors(), [("HTTP".to_owned(), 9)]);
    assert_eq!(rig.members(80)[0].monitor_port, Some(32100));
    assert_eq!(rig.plan(&local).await.unwrap(), []);
    rig.settle(&with(local, "enable-health-monitor", "false"))
        .await;
    assert_eq!(monitors(), []);
}

#[tokio::test(start_paused = true)]
async fn an_internal_service_gives_its_floating_ip_back_and_gets_another() {
    let rig = Fixture::new(1).await;
    let web = rig.settle(&service("web", &[80])).await;
    let inside = rig.settle(&internal(web)).await;
    assert_eq!((rig.floating_ips().len(), shown(&inside)), (0, rig.the_lb().vip_address.unwrap()));
    let mut outside = inside.clone();
    outside
        .annotations
        .retain(|key, _| !key.contains("internal"));
    let outside = rig.settle(&outside).await;
    assert_eq!(rig.floating_ips().len(), 1);
    let kept = rig.settle(&with(outside, "keep-floatingip", "true")).await;
    let inside = rig.settle(&internal(kept)).await;
    assert_eq!((rig.floating_ips().len(), rig.floating_ips()[0].port_id.clone()), (1, None));
    rig.remove(&inside).await;
    assert_eq!(rig.floating_ips().len(), 1, "it is kept");
}

#[tokio::test(start_paused = true)]
async fn without_a_network_to_go_out_a_service_is_internal_with_a_warning() {
    let rig = Fixture::with(1, |settings, _| settings.networks.floating_network = "".into()).await;
    let found = rig.settle(&service("web", &[80])).await;
    assert_eq!(rig.floating_ips().len(), 1, "the external network is found");
    rig.remove(&found).await;
    let external = rig.net.external.clone();
    rig.change(|state, _| {
        state
            .neutron
            .networks
            .update(&external, |network| network.external = false)
    })
    .await;
    let rig = rig.restart().await;
    let web = rig.settle(&service("web", &[80])).await;
    assert_eq!(rig.reasons(), ["LoadBalancerForcedInternal"]);
    assert_eq!(shown(&web), rig.the_lb().vip_address.unwrap());
}

#[tokio::test(start_paused = true)]
async fn the_vips_subnet_is_that_of_the_first_node_where_nobody_names_one() {
    let rig = Fixture::with(2, |settings, _| settings.networks.subnet = "".into()).await;
    let web = rig.settle(&service("web", &[80])).await;
    assert_eq!(rig.the_lb().vip_subnet_id.as_deref(), Some(&*rig.net.subnet));
    assert_eq!(rig.members(80)[0].subnet_id.as_deref(), Some(&*rig.net.subnet));
    assert_eq!(rig.plan(&web).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn serial_drivers_are_given_one_object_at_a_time() {
    let mut rig = Fixture::with(2, |settings, _| settings.serial_api_calls = true).await;
    let web = rig
        .settle(&with(service("web", &[80]), "enable-health-monitor", "true"))
        .await;
    let requests = rig.requests();
    assert!(
        !requests
            .iter()
            .any(|request| request.starts_with("PUT") && request.ends_with("/members")),
        "{requests:#?}"
    );
    assert_eq!(ends(&rig, 80).len(), 2);
    let name = format!("member_node-0_{}_30080", address(0));
    assert!(rig.members(80).iter().any(|member| member.name == name));
    rig.add_node().await;
    rig.nodes.remove(0);
    rig.update(&web).await.unwrap();
    assert_eq!(ends(&rig, 80), [format!("{}:30080", address(1)), format!("{}:30080", address(2))]);
    rig.remove(&web).await;
}

#[tokio::test(start_paused = true)]
async fn ovn_is_served_within_its_means() {
    let driver = crate::lb::features::Driver::Ovn;
    let rig = Fixture::with(2, |settings, _| {
        settings.driver = driver;
        settings.method = "SOURCE_IP_PORT".into();
        settings.monitor = true;
    })
    .await;
    let mut web = service("web", &[80]);
    web.external_traffic_policy = ccm_core::k8s::TrafficPolicy::Local;
    web.health_check_node_port = NonZeroU16::new(32100);
    let web = rig.settle(&web).await;
    assert_eq!((rig.the_lb().provider.as_str(), ends(&rig, 80).len()), ("ovn", 2));
    assert_eq!(rig.plan(&web).await.unwrap(), [], "and at rest nothing is written");
    let ranges = with(service("web", &[80]), "x-forwarded-for", "true");
    assert!(matches!(rig.balancers.interpret(&ranges), ServiceInterpretation::Invalid(_)));
    let mut ranges = service("api", &[81]);
    ranges.source_ranges = ["10.0.0.0/8".into()].into();
    assert!(
        matches!(rig.balancers.interpret(&ranges), ServiceInterpretation::Invalid(_)),
        "nobody would enforce them"
    );
}

#[tokio::test(start_paused = true)]
async fn drift_is_found_and_repaired() {
    let rig = Fixture::new(2).await;
    let web = rig.settle(&service("web", &[80])).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let id = rig.the_lb().id;
    rig.change(|state, ctx| {
        let pool = state.octavia.pools.iter().next().unwrap().body.id.clone();
        let member = state.octavia.members.iter().next().unwrap().body.id.clone();
        let update =
            openstack_local::api::octavia::MemberUpdate { weight: 0.into(), ..Default::default() };
        openstack_local::octavia::members::update(state, ctx, &pool, &member, update).unwrap();
        octavia_settle(state, ctx);
    })
    .await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let planned = rig.plan(&web).await.unwrap();
    assert_eq!(planned.len(), 1, "{planned:?}");
    rig.settle(&web).await;
    assert!(rig.members(80).iter().all(|member| member.weight == 1));
    assert_eq!(rig.the_lb().id, id);
}

fn octavia_settle(
    state: &mut openstack_local::state::CloudState,
    ctx: &openstack_local::state::RequestContext,
) {
    openstack_local::octavia::finish_due(state, ctx.now + jiff::SignedDuration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn without_cascade_everything_goes_one_by_one() {
    let rig = Fixture::with(1, |settings, _| settings.cascade_delete = false).await;
    let web = rig
        .settle(&with(service("web", &[80, 443]), "enable-health-monitor", "true"))
        .await;
    rig.requests();
    rig.remove(&web).await;
    let requests = rig.requests();
    assert!(!requests.iter().any(|request| request.contains("cascade")), "{requests:#?}");
    assert!(rig.lbs().is_empty() && rig.listeners().is_empty() && rig.floating_ips().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_a_vanished_balancer_left_is_cleaned_up() {
    let rig = Fixture::with(1, |settings, _| settings.manage_security_groups = true).await;
    let web = rig.settle(&service("web", &[80])).await;
    let id = rig.the_lb().id;
    rig.change(|state, ctx| {
        openstack_local::octavia::load_balancers::delete(state, ctx, &id, true).unwrap();
        octavia_settle(state, ctx);
    })
    .await;
    assert_eq!((rig.lbs().len(), rig.floating_ips().len(), rig.rules().len()), (0, 1, 1));
    let rig = rig.restart().await;
    rig.remove(&web).await;
    assert_eq!((rig.floating_ips().len(), rig.rules().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_balancer_that_vanished_is_made_anew() {
    let rig = Fixture::new(1).await;
    let web = rig.settle(&service("web", &[80])).await;
    let id = rig.the_lb().id;
    rig.change(|state, ctx| {
        openstack_local::octavia::load_balancers::delete(state, ctx, &id, true).unwrap();
        octavia_settle(state, ctx);
    })
    .await;
    assert_eq!(rig.plan(&web).await.unwrap().len(), 1);
    let web = rig.settle(&web).await;
    assert_ne!(rig.the_lb().id, id);
    assert_eq!(annotation(&web, "load-balancer-id"), Some(&*rig.the_lb().id));
}

#[tokio::test(start_paused = true)]
async fn what_upstream_made_is_taken_over_without_a_write() {
    let rig = Fixture::new(2).await;
    let web = rig
        .settle(&with(service("web", &[80, 443]), "enable-health-monitor", "true"))
        .await;
    let rig = rig.restart().await;
    rig.requests();
    assert_eq!(rig.plan(&web).await.unwrap(), []);
    let outcome = rig.ensure(&web, ReadMode::Fresh).await;
    assert!(
        matches!(outcome.result, Ok(Progress::Done)) && outcome.annotations.is_empty(),
        "{outcome:?}"
    );
    let requests = rig.requests();
    assert!(requests.iter().all(|request| request.starts_with("GET")), "{requests:#?}");
    let before = reference(&web);
    assert!(
        rig.balancers.stale_annotations(&before).len() == 2 && node(0).name == rig.nodes[0].name
    );
}
