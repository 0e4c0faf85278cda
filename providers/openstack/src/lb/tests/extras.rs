//! Tags, second addresses, other providers, minimum delays of health checks, and namesakes in other
//! projects.

use std::{num::NonZeroU16, time::Duration};

use ccm_core::{
    k8s::{IpFamily, LbStatus, Protocol, ServiceView},
    provider::{ErrorKind, ReadMode},
};
use openstack_local::{
    api::{
        neutron::{FloatingIpCreate, SubnetCreate},
        octavia::Pool,
    },
    neutron,
};

use super::fixture::{Fixture, address, internal, service, with};
use crate::lb::features::Driver;

fn dual(service: ServiceView) -> ServiceView {
    ServiceView { ip_families: [IpFamily::V4, IpFamily::V6].into(), ..service }
}

async fn add_subnet(rig: &Fixture, cidr: &'static str) {
    let network = rig.net.network.clone();
    rig.change(move |state, ctx| {
        let subnet = SubnetCreate {
            network_id: network,
            ip_version: 6,
            cidr: Some(cidr.into()),
            ..SubnetCreate::default()
        };
        neutron::subnets::create(state, ctx, subnet).unwrap();
    })
    .await;
}

fn addresses(service: &ServiceView) -> Vec<String> {
    let ingress = service.status.ingress.iter();
    ingress
        .map(|ingress| ingress.ip.unwrap().to_string())
        .collect()
}

fn pools(rig: &Fixture) -> Vec<Pool> {
    rig.peek(|state| {
        let rows = state.octavia.pools.iter();
        rows.map(|row| row.body.clone()).collect()
    })
}

#[tokio::test(start_paused = true)]
async fn requested_tags_are_set_at_once_and_later_and_others_stay() {
    let rig = Fixture::new(2).await;
    let own = "kube_service_c1_ns_web";
    let tagged = with(service("web", &[80]), "load-balancer-tags", "a");
    let web = rig.settle(&with(tagged, "pool-tags", "p")).await;
    let requests = rig.requests();
    assert!(requests.iter().all(|request| !request.starts_with("PUT")), "{requests:?}");
    assert_eq!(rig.the_lb().tags, [own, "a"]);
    assert_eq!(
        (&*rig.listeners()[0].tags, &*pools(&rig)[0].tags),
        (&[own.into()][..], &["p".into()][..])
    );
    assert_eq!(rig.plan(&web).await.unwrap(), [], "nothing is left to do");
    // Somebody else adds a tag, and the Service requests others.
    let id = rig.the_lb().id;
    rig.change(|state, _| {
        let mut row = (**state.octavia.load_balancers.get(&id).unwrap()).clone();
        row.body.tags.push("theirs".into());
        state.octavia.load_balancers.put(row);
    })
    .await;
    let web = with(with(web, "load-balancer-tags", "b"), "listener-tags", "l");
    let web = rig.settle(&with(web, "pool-tags", "q")).await;
    assert_eq!(rig.the_lb().tags, [own, "a", "theirs", "b"]);
    assert_eq!(rig.listeners()[0].tags, [own, "l"]);
    assert_eq!(pools(&rig)[0].tags, ["p", "q"]);
    assert_eq!(rig.plan(&web).await.unwrap(), [], "nothing is left to do");
    rig.remove(&web).await;
    assert_eq!(rig.lbs(), []);
}

#[tokio::test(start_paused = true)]
async fn a_service_with_two_families_has_two_addresses() {
    let rig = Fixture::new(2).await;
    add_subnet(&rig, "2001:db8::/64").await;
    let web = rig.settle(&dual(service("web", &[80]))).await;
    let lb = rig.the_lb();
    let six = lb.additional_vips[0].ip_address.clone().unwrap();
    let shown = addresses(&web);
    assert_eq!((shown.len(), &shown[1]), (2, &six));
    assert!(shown[0].starts_with("203.0.113."), "the floating IP: {shown:?}");
    let open = ["0.0.0.0/0", "::/0"].map(String::from).to_vec();
    assert_eq!(rig.listeners()[0].allowed_cidrs, Some(open));
    assert_eq!(rig.reasons(), [""; 0]);
    assert_eq!(rig.plan(&web).await.unwrap(), [], "nothing is left to do");
    // The addresses are the same after a restart, and without any request.
    let rig = rig.restart().await;
    let again = rig.settle(&web).await;
    assert_eq!(addresses(&again), shown);
    let known = rig.ensure(&again, ReadMode::Cached).await;
    assert_eq!(known.status.map(|status| status.ingress.len()), Some(2));
    // Ranges of either family are enforced together.
    let mut narrow = again.clone();
    narrow.source_ranges = ["10.0.0.0/8".into(), "2001:db8:1::/48".into()].into();
    let narrow = rig.settle(&narrow).await;
    let ranges = ["10.0.0.0/8", "2001:db8:1::/48"].map(String::from).to_vec();
    assert_eq!(rig.listeners()[0].allowed_cidrs, Some(ranges));
    // With one family the second address is no longer shown.
    let single = ServiceView { ip_families: [IpFamily::V4].into(), ..narrow };
    assert_eq!(addresses(&rig.settle(&single).await), shown[..1]);
    rig.remove(&single).await;
    assert_eq!(rig.lbs(), []);
}

/// Octavia adds no address to an existing load balancer, and rejects ranges of a family that it has no
/// address of.
#[tokio::test(start_paused = true)]
async fn a_load_balancer_with_one_address_keeps_serving_it() {
    let rig = Fixture::new(2).await;
    let web = rig.settle(&service("web", &[80])).await;
    add_subnet(&rig, "2001:db8::/64").await;
    let mut both = dual(web.clone());
    both.source_ranges = ["10.0.0.0/8".into(), "2001:db8:1::/48".into()].into();
    let both = rig.settle(&both).await;
    assert_eq!(addresses(&both), addresses(&web));
    assert_eq!(rig.listeners()[0].allowed_cidrs, Some(vec!["10.0.0.0/8".into()]));
    assert_eq!(rig.reasons(), ["LoadBalancerSingleFamily"]);
    assert_eq!(rig.plan(&both).await.unwrap(), [], "nothing is left to do");
}

#[tokio::test(start_paused = true)]
async fn no_or_several_subnets_of_the_second_family_give_one_address() {
    let rig = Fixture::new(1).await;
    let first = rig.settle(&internal(dual(service("a", &[80])))).await;
    assert_eq!((addresses(&first).len(), rig.reasons()), (1, vec!["LoadBalancerSingleFamily"]));
    add_subnet(&rig, "2001:db8:1::/64").await;
    add_subnet(&rig, "2001:db8:2::/64").await;
    let second = rig.settle(&internal(dual(service("b", &[80])))).await;
    assert_eq!(addresses(&second).len(), 1);
    let subnet = rig.peek(|state| {
        let mut subnets = state.neutron.subnets.iter();
        subnets
            .find(|subnet| subnet.cidr == "2001:db8:2::/64")
            .map(|subnet| subnet.id.clone())
            .unwrap()
    });
    let named = with(dual(service("c", &[80])), "additional-subnet-id", &subnet);
    let third = rig.settle(&internal(named)).await;
    assert!(addresses(&third)[1].starts_with("2001:db8:2::"), "{third:?}");
}

#[tokio::test(start_paused = true)]
async fn a_service_may_have_its_own_provider_but_not_change_it() {
    let rig = Fixture::new(2).await;
    let own = with(service("web", &[80]), "lb-provider", "ovn");
    let web = rig.settle(&with(own, "lb-method", "SOURCE_IP_PORT")).await;
    assert_eq!(rig.the_lb().provider, "ovn");
    assert_eq!(rig.plan(&web).await.unwrap(), [], "nothing is left to do");
    let changed = with(with(web, "lb-provider", "amphora"), "lb-method", "ROUND_ROBIN");
    let error = rig
        .ensure(&changed, ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("has the provider ovn"), "{error}");
    // Members follow the nodes all the same.
    let mut rig = rig;
    rig.add_node().await;
    rig.update(&changed).await.unwrap();
    assert_eq!(rig.members(80).len(), 3);
    rig.remove(&changed).await;
    assert_eq!(rig.lbs(), []);
}

/// As after a change from upstream, which only warns.
#[tokio::test(start_paused = true)]
async fn a_service_that_is_served_follows_its_nodes_in_spite_of_ranges() {
    let mut rig = Fixture::with(2, |settings, _| {
        settings.driver = Driver::Ovn;
        settings.method = "SOURCE_IP_PORT".into();
    })
    .await;
    let mut web = rig.settle(&service("web", &[80])).await;
    web.source_ranges = ["10.0.0.0/8".into()].into();
    rig = rig.restart().await;
    rig.add_node().await;
    let web = rig.settle(&web).await;
    assert_eq!(rig.members(80).len(), 3);
    rig.nodes.remove(0);
    rig.update(&web).await.unwrap();
    let kept: Vec<_> = rig
        .members(80)
        .into_iter()
        .map(|member| member.address)
        .collect();
    assert_eq!(kept, [address(1), address(2)]);
}

#[tokio::test(start_paused = true)]
async fn a_delay_below_octavias_minimum_is_raised_to_it() {
    let rig = Fixture::with(2, |settings, _| {
        settings.monitor = true;
        settings.checks.delay = Duration::from_secs(1);
        settings.checks.timeout = Duration::from_secs(1);
    })
    .await;
    let delays = |rig: &Fixture| -> Vec<(String, u32)> {
        let mut found: Vec<_> = rig.peek(|state| {
            let rows = state.octavia.monitors.iter();
            rows.map(|row| (row.body.kind.to_string(), row.body.delay))
                .collect()
        });
        found.sort();
        found
    };
    let mut dns = service("dns", &[53, 80]);
    dns.ports[0].protocol = Protocol::Udp;
    let dns = rig.settle(&dns).await;
    assert_eq!(delays(&rig), [("TCP".into(), 1), ("UDP-CONNECT".into(), 3)]);
    assert_eq!(rig.reasons(), ["LoadBalancerMonitorDelayRaised"]);
    assert_eq!(rig.plan(&dns).await.unwrap(), [], "nothing is left to do");
    // A new process learns it again, from the rejection of a change.
    let rig = rig.restart().await;
    let dns = rig.settle(&dns).await;
    assert_eq!(delays(&rig), [("TCP".into(), 1), ("UDP-CONNECT".into(), 3)]);
    // And from the rejection of a new monitor.
    rig.remove(&dns).await;
    let mut plain = rig.restart_with(|settings| settings.monitor = false).await;
    let dns = plain.settle(&dns).await;
    plain = plain.restart_with(|settings| settings.monitor = true).await;
    let mut dns = plain.settle(&dns).await;
    assert_eq!(delays(&plain), [("TCP".into(), 1), ("UDP-CONNECT".into(), 3)]);
    dns.ports[0].port = NonZeroU16::new(5353).unwrap();
    plain.requests();
    plain.settle(&dns).await;
    let rejected = plain.reasons();
    assert_eq!(rejected, ["LoadBalancerMonitorDelayRaised"], "once for a process");
}

/// Administrators see the load balancers of every project.
#[tokio::test(start_paused = true)]
async fn a_namesake_in_another_project_is_not_ours() {
    let rig = Fixture::new(2).await;
    let theirs = rig.settle(&service("web", &[80])).await;
    let before = rig.the_lb();
    let rig = rig.restart_as("admin").await;
    // Named by the annotation, as after a change of the credentials or of a restored backup.
    let copy = internal(theirs);
    for service in [copy.clone(), ServiceView { status: LbStatus::default(), ..copy.clone() }] {
        let error = rig
            .ensure(&service, ReadMode::Fresh)
            .await
            .result
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("belongs to project"), "{error}");
        assert_eq!(rig.the_lb(), before, "no second one");
    }
    rig.remove(&copy).await;
    assert_eq!(rig.the_lb(), before);
    // By name alone, and in the inventory.
    let fresh = rig.settle(&internal(service("web", &[80]))).await;
    assert_eq!(rig.lbs().len(), 2);
    let owned = ccm_core::provider::Inventory::list_owned(&rig.balancers, &rig.op())
        .await
        .unwrap();
    assert_eq!(owned.len(), 1, "{owned:?}");
    // Nor is one that has the name in the own project meant by the ID.
    let both = rig.everything();
    rig.remove(&copy).await;
    assert_eq!(rig.everything(), both);
    assert_eq!(rig.reasons(), ["LoadBalancerOfOtherProject"; 2]);
    rig.remove(&fresh).await;
    assert_eq!(rig.the_lb(), before);
}

/// Administrators may attach the floating IPs of every project.
#[tokio::test(start_paused = true)]
async fn a_floating_ip_of_another_project_is_not_taken() {
    let rig = Fixture::new(1).await;
    let network = rig.net.external.clone();
    rig.change(move |state, ctx| {
        let request =
            FloatingIpCreate { floating_network_id: network, ..FloatingIpCreate::default() };
        neutron::floating_ips::create(state, ctx, request).unwrap();
    })
    .await;
    let theirs = rig.floating_ips();
    let rig = rig.restart_as("admin").await;
    let mut web = service("web", &[80]);
    web.load_balancer_ip = theirs[0]
        .floating_ip_address
        .map(|address| address.to_string().into());
    let error = rig.try_settle(&web, 20).await.unwrap_err();
    assert!(error.contains("already allocated"), "{error}");
    assert_eq!(rig.floating_ips(), theirs);
}

/// Octavia allows one address in each subnet.
#[tokio::test(start_paused = true)]
async fn a_second_address_is_not_requested_in_the_subnet_of_the_first() {
    let rig = Fixture::with(1, |settings, _| settings.networks.subnet = "".into()).await;
    add_subnet(&rig, "2001:db8::/64").await;
    let (four, network) = (rig.net.subnet.clone(), rig.net.network.clone());
    let six = rig.peek(|state| {
        let mut subnets = state.neutron.subnets.iter();
        subnets
            .find(|subnet| subnet.ip_version == 6)
            .map(|subnet| subnet.id.clone())
            .unwrap()
    });
    let reversed = |service: ServiceView| ServiceView {
        ip_families: [IpFamily::V6, IpFamily::V4].into(),
        ..service
    };
    let at_address = |service: ServiceView| ServiceView {
        load_balancer_ip: Some("10.0.77.7".into()),
        ..service
    };
    let cases = [
        // The annotation names the subnet of the first address.
        (dual(with(service("a", &[80]), "additional-subnet-id", &four)), "subnet-id", &four, 1),
        // Octavia would put the first address into the IPv4 subnet of the network.
        (reversed(service("c", &[80])), "network-id", &network, 2),
        (reversed(service("d", &[80])), "subnet-id", &six, 2),
        (dual(service("e", &[80])), "network-id", &network, 2),
        (at_address(dual(service("f", &[80]))), "network-id", &network, 2),
    ];
    for (service, key, value, count) in cases {
        let name = service.name.clone();
        let service = internal(with(service, key, value));
        let outcome = rig.ensure(&service, ReadMode::Fresh).await;
        assert!(outcome.result.is_ok(), "{name}: {outcome:?}");
        let end = format!("_{name}");
        let made = rig.lbs().into_iter().find(|lb| lb.name.ends_with(&end));
        let made = made.unwrap_or_else(|| panic!("{name}: {outcome:?}"));
        assert_eq!(1 + made.additional_vips.len(), count, "{name}");
    }
}
