//! What must be so in the end: the cluster has what it asks for, the cloud holds that and nothing
//! else.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use ccm_mock::cloud::{LoadBalancer, LoadBalancerState, PowerState};
use ccm_testkit::kubelet::UNINITIALIZED_TAINT;
use serde_json::{Value, json};

use crate::{
    cluster::SimulatedCluster,
    objects::{
        SHUTDOWN, addresses, condition, families, has_finalizer, has_taint, ingress, is_backend,
        is_foreign, is_nobodys, is_of_another_class, is_out_of_service, pod_cidrs, text,
        wants_balancer,
    },
    scenario::Controller,
};

/// The first thing that is not yet as the cluster asks for, or none.
pub fn not_converged(world: &SimulatedCluster) -> Option<String> {
    let (nodes, services) = (world.objects("nodes"), world.objects("services"));
    // Where nodes are initialised, those without ID are ours and not finished.
    let is_nobodys = |node: &Value| !world.scenario.runs(Controller::Node) && is_nobodys(node);
    let mut ours = nodes
        .iter()
        .filter(|node| !is_foreign(node) && !is_nobodys(node));
    let of_nodes = ours.find_map(|node| unsettled_node(world, node));
    let of_services = || {
        let runs = world.scenario.runs(Controller::Service);
        runs.then(|| {
            services
                .iter()
                .find_map(|service| unsettled_service(world, service, &nodes))
        })
        .flatten()
    };
    of_nodes
        .or_else(of_services)
        .or_else(|| leftover_objects(world, &nodes, &services))
}

fn unsettled_node(world: &SimulatedCluster, node: &Value) -> Option<String> {
    let name = text(&node["metadata"]["name"]);
    let instance = world.cloud.instance(name);
    let runs = |controller| world.scenario.runs(controller);
    let is_down = instance
        .as_ref()
        .is_some_and(|instance| instance.power_state == PowerState::Stopped);
    if runs(Controller::Lifecycle) && instance.is_none() {
        return Some(format!("Node {name} is there and its instance is not"));
    }
    if runs(Controller::Lifecycle) && has_taint(node, SHUTDOWN) != is_down {
        return Some(format!("Node {name}: shut down is {is_down}, and its taint says otherwise"));
    }
    if runs(Controller::Lifecycle) {
        // A process that has not seen the node Ready does not mark it, however long it is down.
        let may_be = is_down && world.scenario.marks_out_of_service();
        if is_out_of_service(node) && !may_be {
            return Some(format!("Node {name} is marked out of service"));
        }
    }
    if runs(Controller::Node) {
        if has_taint(node, UNINITIALIZED_TAINT) {
            return Some(format!("Node {name} is not initialised"));
        }
        if text(&node["spec"]["providerID"]).is_empty() || addresses(node).is_empty() {
            return Some(format!("Node {name} has no provider ID or no addresses"));
        }
    }
    if runs(Controller::Ipam) && pod_cidrs(node).is_empty() {
        return Some(format!("Node {name} has no pod network"));
    }
    if runs(Controller::Route) {
        let routes = world.cloud.routes();
        let routed = |cidr: &String| {
            let leads = |route: &&ccm_mock::cloud::Route| {
                route.destination.to_string() == *cidr && route.node == name
            };
            routes
                .iter()
                .filter(leads)
                .filter(|route| !route.blackhole)
                .count()
                == 1
        };
        if !pod_cidrs(node).iter().all(routed) {
            return Some(format!("Node {name} has no route for {:?}", pod_cidrs(node)));
        }
        if condition(node, "NetworkUnavailable") != "False" {
            return Some(format!("Node {name} does not say that its network is there"));
        }
    }
    None
}

fn unsettled_service(world: &SimulatedCluster, service: &Value, nodes: &[Value]) -> Option<String> {
    let name = text(&service["metadata"]["name"]);
    let is_guarded = has_finalizer(service);
    if !service["metadata"]["deletionTimestamp"].is_null() && is_guarded {
        return Some(format!("Service {name} is still being deleted"));
    }
    if is_of_another_class(service) {
        return is_guarded
            .then(|| format!("Service {name} of another controller's class has a finalizer"));
    }
    if !wants_balancer(service) {
        let clean = !is_guarded && ingress(service).is_empty();
        return (!clean)
            .then(|| format!("Service {name} still has a finalizer or shows an address"));
    }
    let uid = text(&service["metadata"]["uid"]);
    let all = world.cloud.load_balancers();
    let balancers: Vec<&LoadBalancer> = all.iter().filter(|balancer| balancer.uid == uid).collect();
    let [balancer] = *balancers else {
        return Some(format!("Service {name} has {} load balancers", balancers.len()));
    };
    if balancer.state != LoadBalancerState::Active || !is_guarded {
        return Some(format!(
            "Service {name}: finalizer {is_guarded}, load balancer {:?}",
            balancer.state
        ));
    }
    let real: Vec<String> = balancer.addresses.iter().map(ToString::to_string).collect();
    if ingress(service) != real {
        return Some(format!(
            "Service {name} shows {:?}, its load balancer has {real:?}",
            ingress(service)
        ));
    }
    let of_family = |address: &std::net::IpAddr| if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let real: BTreeSet<&str> = balancer.addresses.iter().map(of_family).collect();
    if real != families(service).into_iter().collect() {
        return Some(format!(
            "Service {name} asks for {:?}, its load balancer has {real:?}",
            families(service)
        ));
    }
    let ports: Vec<u64> = service["spec"]["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|p| p["port"].as_u64())
        .collect();
    if balancer
        .ports
        .iter()
        .map(|port| u64::from(*port))
        .collect::<Vec<_>>()
        != ports
    {
        return Some(format!(
            "Service {name} asks for ports {ports:?}, its load balancer has {:?}",
            balancer.ports
        ));
    }
    if source_ranges(service)
        != balancer
            .settings
            .source_ranges
            .iter()
            .map(ToString::to_string)
            .collect()
    {
        return Some(format!(
            "Service {name} asks for other source ranges than its load balancer has"
        ));
    }
    let wanted: BTreeSet<&str> = nodes
        .iter()
        .filter(|node| is_backend(node))
        .map(|node| text(&node["metadata"]["name"]))
        .collect();
    let members = balancer.members.node_names();
    let members: BTreeSet<&str> = members.iter().map(String::as_str).collect();
    (members != wanted)
        .then(|| format!("Service {name} should have nodes {wanted:?} and has {members:?}"))
}

fn source_ranges(service: &Value) -> BTreeSet<String> {
    let list = service["spec"]["loadBalancerSourceRanges"]
        .as_array()
        .into_iter()
        .flatten();
    list.map(|range| text(range).to_owned()).collect()
}

/// What the cloud holds and nobody asks for.
fn leftover_objects(
    world: &SimulatedCluster,
    nodes: &[Value],
    services: &[Value],
) -> Option<String> {
    let wanted = |uid: &str| {
        services
            .iter()
            .any(|s| text(&s["metadata"]["uid"]) == uid && wants_balancer(s))
    };
    if let Some(extra) = world
        .cloud
        .load_balancers()
        .into_iter()
        .find(|balancer| !balancer.retained && !wanted(&balancer.uid))
    {
        return Some(format!(
            "load balancer {} of Service {} is there and nobody asks for it",
            extra.id, extra.service
        ));
    }
    let asked: BTreeSet<(String, String)> = nodes
        .iter()
        .filter(|node| !is_foreign(node))
        .flat_map(|node| {
            pod_cidrs(node)
                .into_iter()
                .map(|cidr| (text(&node["metadata"]["name"]).to_owned(), cidr))
        })
        .collect();
    let runs = world.scenario.runs(Controller::Route);
    let mut routes = world.cloud.routes().into_iter();
    let extra = routes.find(|route| {
        runs && !asked.contains(&(route.node.clone(), route.destination.to_string()))
    });
    extra.map(|route| format!("route {} is there and nobody asks for it", route.name))
}

/// The state of cluster and cloud, without what differs from one run to the next: versions, times,
/// identifiers, and which address of a pool an object has.
pub fn state(world: &SimulatedCluster) -> String {
    let balancers = world.cloud.load_balancers();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for balancer in &balancers {
        let name = &balancer.service;
        names.insert(balancer.id.clone(), format!("<id of {name}>"));
        names.insert(balancer.name.clone(), format!("<name of {name}>"));
        names.extend(
            balancer
                .addresses
                .iter()
                .map(|a| (a.to_string(), format!("<address of {name}>"))),
        );
    }
    for object in world
        .objects("nodes")
        .iter()
        .chain(&world.objects("services"))
    {
        let name = text(&object["metadata"]["name"]);
        names.insert(text(&object["metadata"]["uid"]).to_owned(), format!("<uid of {name}>"));
        names.extend(
            pod_cidrs(object)
                .into_iter()
                .map(|cidr| (cidr, format!("<pods of {name}>"))),
        );
        names.extend(
            cluster_ips(object)
                .into_iter()
                .map(|ip| (ip, format!("<cluster IP of {name}>"))),
        );
    }
    let mut objects = Vec::new();
    for kind in ["nodes", "services"] {
        objects.extend(
            world
                .objects(kind)
                .iter()
                .map(|object| normal(object, &names)),
        );
    }
    objects.extend(balancers.iter().map(|b| normal(&json!(b), &names)));
    objects.extend(
        world
            .cloud
            .routes()
            .iter()
            .map(|r| normal(&json!(r), &names)),
    );
    let mut lines: Vec<String> = objects.iter().flat_map(lines).collect();
    lines.sort();
    lines.join("\n")
}

fn cluster_ips(object: &Value) -> Vec<String> {
    let list = object["spec"]["clusterIPs"]
        .as_array()
        .into_iter()
        .flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Keys of values that differ from one run to the next.
const VOLATILE: [&str; 10] = [
    "resourceVersion",
    "uid",
    "creationTimestamp",
    "managedFields",
    "lastHeartbeatTime",
    "lastTransitionTime",
    "generation",
    "nodePort",
    "healthCheckNodePort",
    "name",
];

fn normal(value: &Value, names: &BTreeMap<String, String>) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, value)| {
                // A name that is made from identifiers.
                let made_up = *key == "name"
                    && !names.contains_key(text(value))
                    && map.contains_key("destinationCIDR");
                (*key == "name" || !VOLATILE.contains(&key.as_str())) && !made_up
            });
            kept.map(|(key, value)| (key.clone(), normal(value, names)))
                .collect()
        }
        Value::Array(list) => list.iter().map(|value| normal(value, names)).collect(),
        Value::String(text) => json!(names.get(text).unwrap_or(text)),
        other => other.clone(),
    }
}

/// A line for each value of an object, with the object's name and the way to it.
fn lines(object: &Value) -> Vec<String> {
    let kind = ["kind", "service", "destinationCIDR"]
        .iter()
        .map(|key| text(&object[*key]))
        .collect::<String>();
    let name = text(&object["metadata"]["name"]);
    let mut found = Vec::new();
    descend(object, &mut format!("{kind} {name} "), &mut found);
    found
}

fn descend(value: &Value, path: &mut String, found: &mut Vec<String>) {
    let length = path.len();
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                // A string takes everything.
                let _ = write!(path, ".{key}");
                descend(value, path, found);
                path.truncate(length);
            }
        }
        // Sets, as far as they are compared here.
        Value::Array(list) if !list.is_empty() => {
            path.push_str("[]");
            for value in list {
                descend(value, path, found);
            }
            path.truncate(length);
        }
        other => found.push(format!("{path} = {other}")),
    }
}

/// The lines that are in one state and not in the other, or none.
pub fn difference(wanted: &str, actual: &str) -> Option<String> {
    let (wanted, actual): (BTreeSet<&str>, BTreeSet<&str>) =
        (wanted.lines().collect(), actual.lines().collect());
    let missing = wanted
        .difference(&actual)
        .map(|line| format!("missing: {line}"));
    let surplus = actual
        .difference(&wanted)
        .map(|line| format!("surplus: {line}"));
    let all: Vec<String> = missing.chain(surplus).collect();
    (!all.is_empty())
        .then(|| format!("the end differs from that without faults: {}", all.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_that_differ_in_made_up_values_alone_are_equal() {
        let names = |id: &str| BTreeMap::from([(id.to_owned(), "<id>".to_owned())]);
        let object = |id: &str, version: u64| json!({"kind": "Service", "metadata": {"name": "web", "resourceVersion": version, "annotations": {"id": id}}});
        let text = |id: &str, version| lines(&normal(&object(id, version), &names(id))).join("\n");
        assert_eq!(difference(&text("x", 1), &text("y", 2)), None);
        assert!(text("x", 1).contains("annotations.id = \"<id>\""), "{}", text("x", 1));
    }

    #[test]
    fn a_difference_names_what_is_missing_and_what_is_too_much() {
        let difference = difference("a = 1\nb = 2", "a = 1\nb = 3");
        assert_eq!(
            difference.as_deref(),
            Some("the end differs from that without faults: missing: b = 2; surplus: b = 3")
        );
    }
}
