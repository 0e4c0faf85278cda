//! What judges read of Nodes and Services, written apart from the framework's own code for the
//! same.

use ccm_testkit::kubelet::UNINITIALIZED_TAINT;
use serde_json::Value;

/// Finalizer of Services with a load balancer.
pub const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// Taint of nodes whose instance is shut down.
pub const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
/// Taint of nodes whose volumes are to move, and the value of those that the manager sets.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
const OUT_OF_SERVICE_VALUE: &str = "cloud-controller-manager";
/// Class of Services that the mock serves beside those without any, where a scenario has it.
pub const CLASS: &str = "mock.example/lb";
/// What the provider IDs of the cloud's nodes begin with.
const OURS: &str = "mock://r1/";
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
const LEAVING: &str = "ToBeDeletedByClusterAutoscaler";

/// The text, or nothing.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn texts(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Whether the finalizer holds a Service, or a patch puts it on one.
pub fn has_finalizer(service: &Value) -> bool {
    texts(&service["metadata"]["finalizers"]).contains(&FINALIZER)
}

/// Whether the manager has marked a node as out of service.
pub fn is_out_of_service(node: &Value) -> bool {
    node["spec"]["taints"].as_array().is_some_and(|taints| {
        taints
            .iter()
            .any(|taint| taint["key"] == OUT_OF_SERVICE && taint["value"] == OUT_OF_SERVICE_VALUE)
    })
}

/// Addresses that a Service shows.
pub fn ingress(service: &Value) -> Vec<String> {
    let list = service["status"]["loadBalancer"]["ingress"]
        .as_array()
        .into_iter()
        .flatten();
    list.map(|entry| text(&entry["ip"]).to_owned()).collect()
}

/// Whether the owner of a Service wants a load balancer of ours for it.
pub fn wants_balancer(service: &Value) -> bool {
    service["metadata"]["deletionTimestamp"].is_null()
        && service["spec"]["type"] == "LoadBalancer"
        && !is_of_another_class(service)
}

/// Whether a Service is the business of another controller.
pub fn is_of_another_class(service: &Value) -> bool {
    let class = text(&service["spec"]["loadBalancerClass"]);
    !class.is_empty() && class != CLASS
}

/// Address families that a Service asks for, as the API server has them.
pub fn families(service: &Value) -> Vec<&str> {
    texts(&service["spec"]["ipFamilies"])
}

/// Whether a Node is another provider's.
pub fn is_foreign(node: &Value) -> bool {
    let id = text(&node["spec"]["providerID"]);
    !id.is_empty() && !id.starts_with(OURS)
}

/// Whether a Node is nobody's: it has no provider ID, and does not wait for one.
pub fn is_nobodys(node: &Value) -> bool {
    text(&node["spec"]["providerID"]).is_empty() && !has_taint(node, UNINITIALIZED_TAINT)
}

/// Whether a Node has a taint with this key.
pub fn has_taint(node: &Value, key: &str) -> bool {
    node["spec"]["taints"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|taint| taint["key"] == key)
}

/// Addresses of a Node.
pub fn addresses(node: &Value) -> Vec<String> {
    let list = node["status"]["addresses"].as_array().into_iter().flatten();
    list.map(|address| format!("{}={}", text(&address["type"]), text(&address["address"])))
        .collect()
}

/// Pod networks of a Node.
pub fn pod_cidrs(node: &Value) -> Vec<String> {
    texts(&node["spec"]["podCIDRs"])
        .into_iter()
        .map(str::to_owned)
        .collect()
}

/// Whether load balancers send traffic to a Node, which they do by its address, whosever it is.
pub fn is_backend(node: &Value) -> bool {
    node["metadata"]["deletionTimestamp"].is_null()
        && node["metadata"]["labels"][EXCLUDED].is_null()
        && !has_taint(node, LEAVING)
}

/// Status of a condition of a Node, or nothing.
pub fn condition<'a>(node: &'a Value, kind: &str) -> &'a str {
    let mut list = node["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    list.find(|condition| condition["type"] == kind)
        .map_or("", |condition| text(&condition["status"]))
}
