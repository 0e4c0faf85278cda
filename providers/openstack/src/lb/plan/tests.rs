//! Tests of the plan of a load balancer.

use std::collections::BTreeMap;

use ccm_core::k8s::ServiceView;
use serde_json::{Value, json};

use super::*;
use crate::{
    api::octavia::{HealthMonitor, LoadBalancer},
    lb::{
        features::Driver, model::ServiceKey, observed::ObservedMember,
        ownership::service_ownership, settings::LoadBalancerSettings, spec,
    },
};

const NAME: &str = "kube_service_c1_ns_web";
const OTHER: &str = "kube_service_c1_ns_other";

fn features() -> Features {
    Features::new((2, 30), &Driver::parse(""))
}

fn listener(id: &str, protocol: &str, port: u16, tags: &[&str]) -> Listener {
    let body = json!({
        "id": id, "name": format!("listener_0_{NAME}"), "provisioning_status": "ACTIVE", "operating_status": "ONLINE",
        "protocol": protocol, "protocol_port": port, "tags": tags, "default_pool_id": format!("pool-{id}"),
        "allowed_cidrs": ["0.0.0.0/0"], "insert_headers": {},
    });
    serde_json::from_value(body).unwrap()
}

fn pool(listener: &str, protocol: &str) -> Pool {
    let body = json!({
        "id": format!("pool-{listener}"), "name": format!("pool_0_{NAME}"), "provisioning_status": "ACTIVE",
        "operating_status": "ONLINE", "protocol": protocol, "lb_algorithm": "ROUND_ROBIN",
        "listeners": [{"id": listener}],
    });
    serde_json::from_value(body).unwrap()
}

fn balancer(name: &str, tags: &[&str]) -> LoadBalancer {
    let body = json!({
        "id": "lb", "name": name, "provisioning_status": "ACTIVE", "operating_status": "ONLINE", "tags": tags,
        "vip_address": "10.0.0.5", "vip_port_id": "vip", "vip_subnet_id": "subnet",
    });
    serde_json::from_value(body).unwrap()
}

/// A balancer of this Service with a listener for each port.
fn seen(ports: &[(&str, &str, u16)]) -> ObservedLoadBalancer {
    let mut seen = ObservedLoadBalancer::new(balancer(NAME, &[NAME]));
    for (id, protocol, port) in ports {
        seen.listeners.push(listener(id, protocol, *port, &[NAME]));
        let of_pool = if matches!(*protocol, "TERMINATED_HTTPS") {
            "HTTP"
        } else {
            protocol
        };
        seen.pools.push(pool(id, of_pool));
        seen.members
            .insert(format!("pool-{id}"), vec![member("10.0.0.11", 30000 + port)]);
    }
    seen
}

fn member(address: &str, port: u16) -> ObservedMember {
    let (id, subnet) = (Some(format!("m-{address}").into()), Some("subnet".into()));
    ObservedMember {
        id,
        address: address.into(),
        port,
        weight: 1,
        subnet,
        monitor_port: None,
    }
}

fn wanted_with(
    ports: &[u16],
    annotations: &[(&str, &str)],
    settings: &LoadBalancerSettings,
) -> DesiredLoadBalancer {
    let ports = ports.iter().map(|port| ccm_core::k8s::ServicePort {
        name: format!("p{port}").into(),
        protocol: ccm_core::k8s::Protocol::Tcp,
        port: std::num::NonZeroU16::new(*port).unwrap(),
        node_port: std::num::NonZeroU16::new(30000 + port),
        target_port: "80".into(),
        app_protocol: None,
    });
    let key = |key: &str| format!("{}{key}", crate::lb::annotations::PREFIX).into();
    let annotations: BTreeMap<_, _> = annotations
        .iter()
        .map(|(k, v)| (key(k), (*v).into()))
        .collect();
    let ports = ports.collect();
    let service = ServiceView {
        ports,
        annotations,
        uid: "uid".into(),
        ..ServiceView::named("ns", "web")
    };
    *spec::parse(&service, settings, features(), "c1")
        .desired
        .unwrap()
}

fn wanted(ports: &[u16], annotations: &[(&str, &str)]) -> DesiredLoadBalancer {
    wanted_with(ports, annotations, &LoadBalancerSettings::default())
}

fn backends(addresses: &[&str]) -> Vec<crate::lb::desired_members::NodeBackend> {
    let backend = |address: &&str| crate::lb::desired_members::NodeBackend {
        node: format!("node-{address}").into(),
        address: address.parse().unwrap(),
        server: None,
    };
    addresses.iter().map(backend).collect()
}

struct Case<'a> {
    seen: &'a ObservedLoadBalancer,
    wanted: &'a DesiredLoadBalancer,
    addresses: &'a [&'a str],
    serial: bool,
    exact: Option<&'a str>,
    shown: bool,
}

impl<'a> Case<'a> {
    fn new(seen: &'a ObservedLoadBalancer, wanted: &'a DesiredLoadBalancer) -> Self {
        Self {
            seen,
            wanted,
            addresses: &["10.0.0.11"],
            serial: false,
            exact: None,
            shown: true,
        }
    }

    fn side<T>(&self, then: impl FnOnce(&PlanInput<'_>) -> T) -> T {
        let standing =
            service_ownership("c1", &self.wanted.owner, self.shown, &self.seen.load_balancer);
        then(&PlanInput {
            observed: self.seen,
            ownership: &standing,
            features: features(),
            serial_api_calls: self.serial,
            name: &self.wanted.name,
            subnet: self.exact.or(Some("subnet")),
            exact_subnet: self.exact,
        })
    }

    fn plan(&self) -> Result<Vec<PlannedAction>, CloudError> {
        let backends = backends(self.addresses);
        let members: Vec<_> = self
            .wanted
            .listeners
            .iter()
            .map(|l| crate::lb::desired_members::build_members(&l.pool, &backends))
            .collect();
        self.side(|side| plan_load_balancer(side, self.wanted, &members, 2))
    }

    fn steps(&self) -> Vec<String> {
        self.plan().unwrap().iter().map(short).collect()
    }
}

fn plan_of(seen: &ObservedLoadBalancer, wanted: &DesiredLoadBalancer) -> Vec<String> {
    Case::new(seen, wanted).steps()
}

/// Operation and object, in short.
fn short(step: &PlannedAction) -> String {
    let object = match &step.kind {
        ActionKind::UpdateLoadBalancer(_) => "lb".to_owned(),
        ActionKind::CreateListener(body) => {
            format!("{}/{}", body.protocol.as_ref().unwrap(), body.protocol_port)
        }
        ActionKind::UpdateListener(id, _)
        | ActionKind::DeleteListener(id)
        | ActionKind::UpdatePool(id, _)
        | ActionKind::DeletePool(id)
        | ActionKind::UpdateMonitor(id, _)
        | ActionKind::DeleteMonitor(id) => id.clone(),
        ActionKind::CreatePool(listener, body) => {
            format!(
                "{} on {}",
                body.protocol.as_ref().unwrap(),
                listener.as_deref().unwrap_or("new")
            )
        }
        ActionKind::SetMembers(pool, members) => {
            let list: Vec<_> = members
                .iter()
                .map(|m| format!("{}:{}", m.address, m.protocol_port))
                .collect();
            format!("{} {}", pool.as_deref().unwrap_or("new"), list.join(" "))
        }
        ActionKind::CreateMember(_, body) => body.address.clone(),
        ActionKind::UpdateMember(_, id, _) | ActionKind::DeleteMember(_, id) => id.to_string(),
        ActionKind::CreateMonitor(pool, body) => {
            format!("{} on {}", body.kind.as_ref().unwrap(), pool.as_deref().unwrap_or("new"))
        }
    };
    let call = step.kind.call().name().trim_start_matches("loadbalancer_");
    format!("{call} {object}")
}

fn body(step: &PlannedAction) -> Value {
    match &step.kind {
        ActionKind::UpdateLoadBalancer(update) => serde_json::to_value(update),
        ActionKind::UpdateListener(_, update) => serde_json::to_value(update),
        ActionKind::UpdatePool(_, update) => serde_json::to_value(update),
        ActionKind::UpdateMonitor(_, update) => serde_json::to_value(update),
        ActionKind::SetMembers(_, members) => serde_json::to_value(members),
        other => panic!("{other:?}"),
    }
    .unwrap()
}

#[test]
fn what_upstream_left_needs_nothing() {
    assert_eq!(
        plan_of(&seen(&[("a", "TCP", 80), ("b", "TCP", 443)]), &wanted(&[80, 443], &[])),
        [""; 0]
    );
    let mut open = seen(&[("a", "TCP", 80)]);
    open.listeners[0].allowed_cidrs = None;
    open.listeners[0].tags = Vec::new();
    let steps = Case::new(&open, &wanted(&[80], &[])).plan().unwrap();
    assert_eq!(steps.iter().map(body).collect::<Vec<_>>(), [json!({"tags": [NAME]})]);
}

// L01 L02 L03 L04 L05 L06 L07
#[test]
fn listeners_that_no_port_wants_go_and_no_others() {
    let web = wanted(&[80], &[]);
    let create =
        ["listener_create TCP/80", "pool_create TCP on new", "members_update new 10.0.0.11:30080"];
    assert_eq!(plan_of(&seen(&[]), &web), create);
    let gone = |id: &str| [format!("pool_delete pool-{id}"), format!("listener_delete {id}")];
    let other = seen(&[("b", "TCP", 81)]);
    let expected: Vec<String> = create
        .iter()
        .map(ToString::to_string)
        .chain(gone("b"))
        .collect();
    assert_eq!(plan_of(&other, &web), expected);
    assert_eq!(plan_of(&seen(&[("a", "TCP", 80)]), &web), [""; 0]);
    let four = seen(&[("a", "TCP", 80), ("b", "TCP", 81), ("c", "TCP", 82), ("d", "TCP", 83)]);
    for (kept, id) in [(80, "a"), (81, "b"), (82, "c"), (83, "d")] {
        let others = ["a", "b", "c", "d"]
            .into_iter()
            .filter(|other| *other != id)
            .flat_map(gone)
            .collect::<Vec<_>>();
        assert_eq!(plan_of(&four, &wanted(&[kept], &[])), others);
    }
}

// L14 L15 L16 L17 L18
#[test]
fn a_port_of_somebody_else_is_a_conflict() {
    let shared = |tags: &[&str], protocol: &str, owner: bool| {
        let name = if owner { NAME } else { OTHER };
        let mut seen = ObservedLoadBalancer::new(balancer(name, &[OTHER]));
        seen.listeners.push(listener("a", protocol, 9090, tags));
        seen
    };
    let conflicts = |tags: &[&str], owner: bool, protocol: &str, port: u16| {
        let (seen, wanted) = (shared(tags, protocol, owner), wanted(&[port], &[]));
        let result =
            Case::new(&seen, &wanted).side(|side| check_port_conflict(side, &wanted.listeners[0]));
        result.is_err_and(|error| error.to_string().contains("already exists"))
    };
    assert!(!conflicts(&[NAME], false, "TCP", 9090));
    assert!(conflicts(&[OTHER], false, "TCP", 9090));
    assert!(!conflicts(&[], true, "TCP", 9090));
    assert!(!conflicts(&[], true, "TCP", 9091));
    assert!(!conflicts(&[OTHER], false, "TCP", 9091));
    assert!(conflicts(&[], false, "TCP", 9090), "without a tag it is the owner's");
    assert!(conflicts(&[OTHER], true, "TCP", 9090), "the tag counts on an own balancer too");
    for protocol in ["HTTP", "TERMINATED_HTTPS", "HTTPS", "PROMETHEUS"] {
        assert!(conflicts(&[OTHER], false, protocol, 9090), "{protocol} is on TCP's port");
    }
    assert!(!conflicts(&[OTHER], false, "UDP", 9090));
}

#[test]
fn another_protocol_on_the_same_port_needs_the_old_listener_gone_first() {
    let switched = plan_of(
        &seen(&[("a", "TCP", 80), ("b", "TCP", 81)]),
        &wanted(&[80, 81], &[("x-forwarded-for", "true")]),
    );
    let deletions = switched
        .iter()
        .position(|step| step == "listener_delete b")
        .unwrap();
    let creations = switched
        .iter()
        .position(|step| step == "listener_create HTTP/80")
        .unwrap();
    assert!(deletions < creations, "{switched:#?}");
    assert_eq!(switched[..2], ["pool_delete pool-a", "listener_delete a"]);
}

#[test]
fn tags_and_headers_of_others_stay_on_a_listener() {
    let mut there = seen(&[("a", "HTTP", 80)]);
    there.listeners[0].tags = vec!["team".into(), NAME.into()];
    there.listeners[0].insert_headers = Some([("X-Forwarded-Port".into(), "true".into())].into());
    let steps = Case::new(&there, &wanted(&[80], &[("x-forwarded-for", "true")]))
        .plan()
        .unwrap();
    let headers =
        json!({"insert_headers": {"X-Forwarded-For": "true", "X-Forwarded-Port": "true"}});
    assert_eq!(steps.iter().map(body).collect::<Vec<_>>(), [headers]);
    // Headers that are not shown may be others', too.
    there.listeners[0].insert_headers = None;
    let web = wanted(&[80], &[("x-forwarded-for", "true")]);
    assert_eq!(plan_of(&there, &web), [""; 0]);
    let mut shared = seen(&[("a", "TCP", 80)]);
    shared.listeners[0].tags = vec!["team".into()];
    let error = Case::new(&shared, &wanted(&[80], &[])).plan().unwrap_err();
    assert!(
        error.to_string().contains("already exists"),
        "one with tags of others alone is not ours: {error}"
    );
}

#[test]
fn each_difference_of_a_listener_is_one_change_of_it() {
    let updates = |there: &ObservedLoadBalancer, annotations: &[(&str, &str)]| {
        let steps = Case::new(there, &wanted(&[80], annotations))
            .plan()
            .unwrap();
        steps.iter().map(body).collect::<Vec<_>>()
    };
    let plain = seen(&[("a", "TCP", 80)]);
    assert_eq!(updates(&plain, &[("connection-limit", "7")]), [json!({"connection_limit": 7})]);
    assert_eq!(
        updates(&plain, &[("timeout-member-data", "1000")]),
        [json!({"timeout_member_data": 1000})]
    );
    let ranges = wanted_ranges(&["10.0.0.0/8"]);
    let steps = Case::new(&plain, &ranges).plan().unwrap();
    assert_eq!(
        steps.iter().map(body).collect::<Vec<_>>(),
        [json!({"allowed_cidrs": ["10.0.0.0/8"]})]
    );
    let mut other = plain.clone();
    other.listeners[0].allowed_cidrs = Some(vec!["10.0.0.0/8".into(), "192.168.0.0/16".into()]);
    let same = wanted_ranges(&["192.168.0.0/16", "10.1.2.3/8"]);
    assert_eq!(plan_of(&other, &same), [""; 0]);
}

fn wanted_ranges(ranges: &[&str]) -> DesiredLoadBalancer {
    let mut wanted = wanted(&[80], &[]);
    wanted.listeners[0].allowed = Some(
        ranges
            .iter()
            .map(|range| range.parse::<ipnet::IpNet>().unwrap().trunc())
            .collect(),
    );
    wanted
}

#[test]
fn affinity_and_algorithm_of_a_pool_are_repaired() {
    let mut there = seen(&[("a", "TCP", 80)]);
    let mut sticky = wanted(&[80], &[("lb-method", "SOURCE_IP")]);
    sticky.listeners[0].pool.session_persistence = true;
    let steps = Case::new(&there, &sticky).plan().unwrap();
    let both = json!({"lb_algorithm": "SOURCE_IP", "session_persistence": {"type": "SOURCE_IP"}});
    assert_eq!(steps.iter().map(body).collect::<Vec<_>>(), [both]);
    there.pools[0].session_persistence =
        Some(crate::api::octavia::Persistence { kind: "SOURCE_IP".into() });
    let steps = Case::new(&there, &wanted(&[80], &[])).plan().unwrap();
    assert_eq!(steps.iter().map(body).collect::<Vec<_>>(), [json!({"session_persistence": null})]);
}

#[test]
fn a_pool_of_another_protocol_is_made_anew() {
    let steps = plan_of(&seen(&[("a", "TCP", 80)]), &wanted(&[80], &[("proxy-protocol", "v2")]));
    let expected =
        ["pool_delete pool-a", "pool_create PROXYV2 on a", "members_update new 10.0.0.11:30080"];
    assert_eq!(steps, expected);
}

#[test]
fn a_batch_holds_all_members_and_is_sent_only_when_one_differs() {
    let (there, web) = (seen(&[("a", "TCP", 80)]), wanted(&[80], &[]));
    let two = Case {
        addresses: &["10.0.0.11", "10.0.0.12"],
        ..Case::new(&there, &web)
    };
    assert_eq!(two.steps(), ["members_update pool-a 10.0.0.11:30080 10.0.0.12:30080"]);
    let none = Case { addresses: &[], ..Case::new(&there, &web) };
    assert_eq!(none.steps(), ["members_update pool-a "]);
    let mut empty = there.clone();
    empty.members.clear();
    let none = Case { addresses: &[], ..Case::new(&empty, &web) };
    assert_eq!(none.steps(), [""; 0], "a batch of nothing on nothing would change nothing");
    let mut drained = there.clone();
    drained.members.get_mut("pool-a").unwrap()[0].weight = 0;
    let steps = Case::new(&drained, &web).plan().unwrap();
    assert_eq!(body(&steps[0])[0]["weight"], 1);
    let mut checked = there.clone();
    checked.members.get_mut("pool-a").unwrap()[0].monitor_port = Some(1);
    assert_eq!(plan_of(&checked, &web).len(), 1);
}

#[test]
fn members_elsewhere_are_moved_half_at_a_time_and_only_to_a_named_subnet() {
    let (mut there, web) = (seen(&[("a", "TCP", 80)]), wanted(&[80], &[]));
    let members: Vec<_> = ["10.0.0.11", "10.0.0.12", "10.0.0.13"]
        .map(|address| member(address, 30080))
        .into();
    there.members.insert("pool-a".into(), members);
    fn case<'a>(
        there: &'a ObservedLoadBalancer,
        web: &'a DesiredLoadBalancer,
        exact: Option<&'a str>,
    ) -> Case<'a> {
        let addresses = &["10.0.0.11", "10.0.0.12", "10.0.0.13"];
        Case { addresses, exact, ..Case::new(there, web) }
    }
    assert_eq!(case(&there, &web, None).steps(), [""; 0], "nobody names a subnet");
    let mut subnets = Vec::new();
    for _ in 0..6 {
        let steps = case(&there, &web, Some("new")).plan().unwrap();
        let Some(PlannedAction { kind: ActionKind::SetMembers(_, members), .. }) = steps.first()
        else {
            break;
        };
        assert!(!members.is_empty(), "somebody always serves");
        there
            .members
            .insert("pool-a".into(), members.iter().map(ObservedMember::from).collect());
        subnets.push(
            members
                .iter()
                .filter(|member| member.subnet_id.as_deref() == Some("new"))
                .count(),
        );
    }
    assert_eq!(subnets, [0, 2, 2, 3]);
    assert_eq!(case(&there, &web, Some("new")).steps(), [""; 0]);
}

#[test]
fn serial_drivers_get_members_one_by_one() {
    let (mut there, web) = (seen(&[("a", "TCP", 80)]), wanted(&[80], &[]));
    there
        .members
        .get_mut("pool-a")
        .unwrap()
        .push(member("10.0.0.19", 30080));
    there.members.get_mut("pool-a").unwrap()[0].weight = 0;
    let case = Case {
        addresses: &["10.0.0.11", "10.0.0.12"],
        serial: true,
        ..Case::new(&there, &web)
    };
    assert_eq!(
        case.steps(),
        ["member_create 10.0.0.12", "member_update m-10.0.0.11", "member_delete m-10.0.0.19"]
    );
}

#[test]
fn members_that_upstream_made_one_by_one_without_a_subnet_stay() {
    let (mut there, web) = (seen(&[("a", "TCP", 80)]), wanted(&[80], &[]));
    let steps = |there: &ObservedLoadBalancer, serial| {
        Case { serial, exact: Some("new"), ..Case::new(there, &web) }.steps()
    };
    assert_eq!(steps(&there, true).len(), 1, "one in another subnet is moved");
    there.members.get_mut("pool-a").unwrap()[0].subnet = None;
    assert_eq!(steps(&there, true), [""; 0]);
    assert_eq!(steps(&there, false).len(), 1, "in batches upstream names the subnet");
}

fn monitor(kind: &str, delay: u32) -> HealthMonitor {
    let body = json!({
        "id": "hm", "name": "monitor", "type": kind, "delay": delay, "timeout": 3, "max_retries": 1,
        "max_retries_down": 3, "provisioning_status": "ACTIVE", "operating_status": "ONLINE",
    });
    serde_json::from_value(body).unwrap()
}

#[test]
fn monitors_are_made_changed_made_anew_and_deleted() {
    let checked = |kind: &str, delay: u32| {
        let mut there = seen(&[("a", "TCP", 80)]);
        there.pools[0].healthmonitor_id = Some("hm".into());
        there.monitors.insert("hm".into(), monitor(kind, delay));
        there
    };
    let on = wanted(&[80], &[("enable-health-monitor", "true")]);
    assert_eq!(plan_of(&seen(&[("a", "TCP", 80)]), &on), ["healthmonitor_create TCP on pool-a"]);
    assert_eq!(plan_of(&checked("TCP", 5), &on), [""; 0]);
    assert_eq!(plan_of(&checked("TCP", 6), &on), ["healthmonitor_update hm"]);
    let anew = ["healthmonitor_delete hm", "healthmonitor_create TCP on pool-a"];
    assert_eq!(plan_of(&checked("PING", 5), &on), anew);
    assert_eq!(plan_of(&checked("TCP", 5), &wanted(&[80], &[])), ["healthmonitor_delete hm"]);
}

#[test]
fn a_secondary_marks_the_balancer_before_it_puts_anything_on_it() {
    let mut shared = ObservedLoadBalancer::new(balancer(OTHER, &[OTHER, "team"]));
    shared.listeners.push(listener("o", "TCP", 443, &[OTHER]));
    let web = wanted(&[80], &[]);
    let steps = Case::new(&shared, &web).plan().unwrap();
    assert_eq!(body(&steps[0]), json!({"tags": [OTHER, "team", NAME]}));
    assert_eq!(short(&steps[1]), "listener_create TCP/80");
    assert!(steps.iter().all(|step| !short(step).contains("delete")), "the owner's listener stays");
}

#[test]
fn a_balancer_is_shared_within_limits() {
    let third = "kube_service_c1_ns_third";
    let refused = |tags: &[&str], settings: &LoadBalancerSettings| {
        let shared = ObservedLoadBalancer::new(balancer(OTHER, tags));
        Case::new(&shared, &wanted_with(&[80], &[], settings))
            .plan()
            .map_err(|error| error.to_string())
    };
    assert!(refused(&[OTHER], &LoadBalancerSettings::default()).is_ok());
    assert!(
        refused(&[OTHER, third], &LoadBalancerSettings::default())
            .unwrap_err()
            .contains("max-shared-lb is 2")
    );
    assert!(
        refused(&[OTHER, third, NAME], &LoadBalancerSettings::default()).is_ok(),
        "it is on it already"
    );
    let internal = LoadBalancerSettings { internal: true, ..LoadBalancerSettings::default() };
    assert!(
        refused(&[OTHER], &internal)
            .unwrap_err()
            .contains("internal")
    );
    let shared = ObservedLoadBalancer::new(balancer(OTHER, &[OTHER]));
    let web = wanted(&[80], &[]);
    let error = Case::new(&shared, &web).side(|side| {
        let side = PlanInput { features: Features::new((2, 4), &Driver::parse("")), ..*side };
        plan_load_balancer(&side, &web, &[Vec::new()], 2).unwrap_err()
    });
    assert!(error.to_string().contains("no tags"), "{error}");
}

#[test]
fn pools_that_serve_nothing_go_if_they_are_called_as_ours() {
    let mut there = seen(&[("a", "TCP", 80)]);
    let mut orphan = pool("x", "TCP");
    (orphan.id, orphan.listeners) = ("orphan".into(), Some(Vec::new()));
    let foreign = Pool { name: "mine".into(), id: "foreign".into(), ..orphan.clone() };
    there.pools.extend([orphan, foreign]);
    assert_eq!(plan_of(&there, &wanted(&[80], &[])), ["pool_delete orphan"]);
    // One that does not show its listeners may serve any.
    there.pools[1].listeners = None;
    assert_eq!(plan_of(&there, &wanted(&[80], &[])), [""; 0]);
}

#[test]
fn a_pool_that_another_listener_forwards_to_stays_when_its_listeners_are_not_shown() {
    for (shared, deletions) in [(false, 2), (true, 1)] {
        let mut there = seen(&[("a", "TCP", 80), ("b", "TCP", 81)]);
        there.pools.remove(1);
        there.pools[0].listeners = None;
        if shared {
            there.listeners[1].default_pool_id = Some("pool-a".into());
            there.listeners[1].tags = vec![OTHER.into()];
        } else {
            there.listeners.remove(1);
        }
        let ownership = Case::new(&there, &wanted(&[80], &[])).side(|side| side.ownership.clone());
        let steps = plan_removal_from_shared(&there, &ownership, true, |_| true);
        let deleted = steps.iter().filter(|step| short(step).contains("delete"));
        assert_eq!(deleted.count(), deletions, "{steps:?}");
    }
}

#[test]
fn a_renamed_cluster_takes_its_balancer_along() {
    let old = "kube_service_before_ns_web";
    let mut there = seen(&[("a", "TCP", 80)]);
    there.load_balancer = balancer(old, &[old, "team"]);
    there.listeners[0].tags = vec![old.into(), "team".into()];
    (there.listeners[0].name, there.pools[0].name) =
        (format!("listener_0_{old}"), format!("pool_0_{old}"));
    let web = wanted(&[80], &[]);
    let steps = Case::new(&there, &web).plan().unwrap();
    let bodies: Vec<_> = steps.iter().map(body).collect();
    let expected = [
        json!({"name": format!("pool_0_{NAME}")}),
        json!({"name": format!("listener_0_{NAME}"), "tags": ["team", NAME]}),
        json!({"tags": ["team", NAME]}),
        json!({"name": NAME, "tags": ["team", NAME]}),
    ];
    assert_eq!(bodies, expected);
    let copied = Case { shown: false, ..Case::new(&there, &web) };
    assert!(copied.plan().is_err(), "of a Service that shows nothing it is another cluster's");
}

#[test]
fn a_service_that_goes_takes_its_part_and_nothing_else() {
    let mut shared = seen(&[("a", "TCP", 80)]);
    shared.load_balancer = balancer(OTHER, &[OTHER, NAME]);
    shared.listeners.push(listener("o", "TCP", 443, &[OTHER]));
    let who = ServiceKey {
        namespace: "ns".into(),
        name: "web".into(),
        uid: "uid".into(),
    };
    let standing = service_ownership("c1", &who, true, &shared.load_balancer);
    let steps = plan_removal_from_shared(&shared, &standing, true, |_| true);
    assert_eq!(
        steps.iter().map(short).collect::<Vec<_>>(),
        ["pool_delete pool-a", "listener_delete a", "update lb"]
    );
    assert_eq!(body(&steps[2]), json!({"tags": [OTHER]}));
    // What stays keeps its tag.
    assert_eq!(plan_removal_from_shared(&shared, &standing, true, |_| false), []);
}

#[test]
fn members_alone_are_compared_when_only_nodes_changed() {
    let there = seen(&[("a", "TCP", 80)]);
    let web = wanted(&[80, 443], &[("connection-limit", "7")]);
    let members: Vec<_> = web
        .listeners
        .iter()
        .map(|l| crate::lb::desired_members::build_members(&l.pool, &backends(&["10.0.0.12"])))
        .collect();
    let steps = Case::new(&there, &web).side(|side| plan_members_only(side, &web, &members));
    assert_eq!(
        steps.iter().map(short).collect::<Vec<_>>(),
        ["members_update pool-a 10.0.0.12:30080"]
    );
}

/// Another protocol of a listener or a pool takes new ones, and these may be refused.
#[test]
fn members_follow_nodes_whatever_else_is_wanted_of_their_listener() {
    let there = seen(&[("a", "TCP", 80)]);
    for (annotation, value) in
        [("proxy-protocol", "true"), ("x-forwarded-for", "true"), ("lb-method", "SOURCE_IP")]
    {
        let web = wanted(&[80], &[(annotation, value)]);
        let members = crate::lb::desired_members::build_members(
            &web.listeners[0].pool,
            &backends(&["10.0.0.12"]),
        );
        let steps = Case::new(&there, &web).side(|side| plan_members_only(side, &web, &[members]));
        assert_eq!(
            steps.iter().map(short).collect::<Vec<_>>(),
            ["members_update pool-a 10.0.0.12:30080"],
            "{annotation}"
        );
    }
}

#[test]
fn requested_tags_are_added_by_the_owner_alone() {
    let asks = [("load-balancer-tags", "a"), ("listener-tags", "l"), ("pool-tags", "p")];
    let tagged = wanted(&[80], &asks);
    let expected = [
        "loadbalancer_update kube_service_c1_ns_web",
        "loadbalancer_listener_update listener_0_kube_service_c1_ns_web",
        "loadbalancer_pool_update pool_0_kube_service_c1_ns_web",
    ];
    let mut own = seen(&[("l", "TCP", 80)]);
    let plan = Case::new(&own, &tagged).plan().unwrap();
    let calls: Vec<_> = plan
        .iter()
        .map(|action| format!("{} {}", action.kind.call().name(), action.object))
        .collect();
    assert_eq!(calls, expected);
    assert_eq!(body(&plan[0])["tags"], json!([NAME, "a"]));
    // Together with the tags, an algorithm that the cloud rejects is no reason to skip the rest.
    assert_eq!(plan[2].method_change(), None);
    own.load_balancer.tags.push("a".into());
    own.listeners[0].tags.push("l".into());
    own.pools[0].tags.push("p".into());
    assert_eq!(plan_of(&own, &tagged), [""; 0]);
    // On another Service's load balancer only the listener and the pool are this Service's.
    own.load_balancer.name = OTHER.into();
    own.load_balancer.tags = vec![OTHER.into(), NAME.into()];
    assert_eq!(plan_of(&own, &tagged), [""; 0]);
}

#[test]
fn a_provider_cannot_change() {
    let mut own = seen(&[("l", "TCP", 80)]);
    let requested = wanted(&[80], &[("lb-provider", "amphora")]);
    for (provider, is_good) in [("", true), ("amphora", true), ("octavia", true), ("ovn", false)] {
        own.load_balancer.provider = provider.into();
        let plan = Case::new(&own, &requested).plan();
        assert_eq!(plan.is_ok(), is_good, "{provider}");
        // The configured provider may change without any effect on what exists.
        assert!(Case::new(&own, &wanted(&[80], &[])).plan().is_ok(), "{provider}");
    }
}
