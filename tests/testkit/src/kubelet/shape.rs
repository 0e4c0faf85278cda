//! What a simulated kubelet writes: Node objects, conditions and leases, as pure functions.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use serde_json::{Value, json};

/// Taint that a kubelet started with `--cloud-provider=external` registers with
/// (`k8s.io/cloud-provider`, `api/well_known_taints.go`).
pub const UNINITIALIZED_TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Annotation with the addresses given by `--node-ip` (`k8s.io/cloud-provider`,
/// `api/well_known_annotations.go`).
pub const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// Version that simulated kubelets report.
const VERSION: &str = "v1.36.3";

/// One node to register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSpec {
    /// Name of the Node and its host name.
    pub name: String,
    /// Addresses given by `--node-ip`, in order; they go into the annotation and, until a
    /// cloud-controller-manager replaces them, into the status.
    pub provided_ips: Vec<IpAddr>,
    /// Provider ID given by `--provider-id`.
    pub provider_id: Option<String>,
    /// Labels given by `--node-labels`.
    pub labels: BTreeMap<String, String>,
    /// Networks of the node's pods, as an allocator would have written them by now. A kubelet never
    /// does.
    pub pod_cidrs: Vec<String>,
    /// True if the node has the taint that a cloud-controller-manager removes. On by default.
    pub uninitialized: bool,
}

impl NodeSpec {
    /// Returns a node with nothing but its name and the taint.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            provided_ips: Vec::new(),
            provider_id: None,
            labels: BTreeMap::new(),
            pod_cidrs: Vec::new(),
            uninitialized: true,
        }
    }

    /// Adds an address given by `--node-ip`.
    #[must_use]
    pub fn provided_ip(mut self, address: IpAddr) -> Self {
        self.provided_ips.push(address);
        self
    }

    /// Sets the provider ID given by `--provider-id`.
    #[must_use]
    pub fn provider_id(mut self, provider_id: impl Into<String>) -> Self {
        self.provider_id = Some(provider_id.into());
        self
    }

    /// Adds a label given by `--node-labels`.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Adds a network for pods.
    #[must_use]
    pub fn pod_cidr(mut self, cidr: impl Into<String>) -> Self {
        self.pod_cidrs.push(cidr.into());
        self
    }

    /// Registers without the taint, as a kubelet without an external cloud provider does.
    #[must_use]
    pub fn initialized(mut self) -> Self {
        self.uninitialized = false;
        self
    }
}

/// Size of a Node object, besides the fields that controllers read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NodeShape {
    /// Five labels and no images: less than 3 KB.
    #[default]
    Light,
    /// 25 labels and 50 images, about 15 KB as JSON: a node that has worked for a while.
    Full,
}

/// Status of the Ready condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ready {
    /// The kubelet reports that it is ready.
    #[default]
    True,
    /// The kubelet reports that it is not ready.
    False,
    /// The kubelet is silent, and the control plane's node-lifecycle controller has noticed.
    Unknown,
}

impl From<bool> for Ready {
    fn from(ready: bool) -> Self {
        if ready { Self::True } else { Self::False }
    }
}

impl Ready {
    fn status(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Labels a full node has beside the five every kubelet sets.
const FULL_LABELS: usize = 20;
/// Images a full node lists: the kubelet's own limit (`--node-status-max-images`).
const FULL_IMAGES: usize = 50;

/// Returns the Node as the kubelet creates it, status included.
pub(super) fn node(spec: &NodeSpec, shape: NodeShape, now: Timestamp) -> Value {
    let mut annotations = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
    if !spec.provided_ips.is_empty() {
        let list: Vec<_> = spec.provided_ips.iter().map(IpAddr::to_string).collect();
        annotations[PROVIDED_NODE_IP] = list.join(",").into();
    }
    let mut node_spec = json!({});
    if spec.uninitialized {
        node_spec["taints"] =
            json!([{"key": UNINITIALIZED_TAINT, "value": "true", "effect": "NoSchedule"}]);
    }
    if let Some(provider_id) = &spec.provider_id {
        node_spec["providerID"] = provider_id.as_str().into();
    }
    if let Some(first) = spec.pod_cidrs.first() {
        // The API server wants the old field to repeat the first entry of the new one.
        node_spec["podCIDR"] = first.as_str().into();
        node_spec["podCIDRs"] = json!(spec.pod_cidrs);
    }
    let mut status = json!({
        "capacity": resources("8", "16266944Ki"),
        "allocatable": resources("7910m", "15164096Ki"),
        "conditions": conditions(Ready::True, now, now),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": node_info(&spec.name),
    });
    if let Some(addresses) = addresses(spec) {
        status["addresses"] = addresses;
    }
    if shape == NodeShape::Full {
        status["images"] = (0..FULL_IMAGES).map(image).collect();
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": spec.name, "labels": labels(spec, shape), "annotations": annotations},
        "spec": node_spec,
        "status": status,
    })
}

/// Returns the addresses that a kubelet reports before the cloud reports any: those of `--node-ip`
/// and the host name, or none at all (`pkg/kubelet/nodestatus/setters.go`).
pub(super) fn addresses(spec: &NodeSpec) -> Option<Value> {
    if spec.provided_ips.is_empty() {
        return None;
    }
    let internal = spec
        .provided_ips
        .iter()
        .map(|ip| json!({"type": "InternalIP", "address": ip.to_string()}));
    Some(
        internal
            .chain([json!({"type": "Hostname", "address": spec.name})])
            .collect(),
    )
}

/// Returns the conditions that a kubelet owns. Those of a silent kubelet are all unknown, as the
/// node-lifecycle controller writes them.
pub(super) fn conditions(ready: Ready, heartbeat: Timestamp, transition: Timestamp) -> Value {
    let own = [
        (
            "MemoryPressure",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ];
    let silent = ("NodeStatusUnknown", "Kubelet stopped posting node status.");
    let condition = |kind: &str, status: &str, (reason, message): (&str, &str)| {
        json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": seconds(heartbeat),
            "lastTransitionTime": seconds(transition),
        })
    };
    let pressure = own.iter().map(|(kind, reason, message)| match ready {
        Ready::Unknown => condition(kind, "Unknown", silent),
        Ready::True | Ready::False => condition(kind, "False", (reason, message)),
    });
    let reason = match ready {
        Ready::True => ("KubeletReady", "kubelet is posting ready status"),
        Ready::False => ("KubeletNotReady", "container runtime is down"),
        Ready::Unknown => silent,
    };
    pressure
        .chain([condition("Ready", ready.status(), reason)])
        .collect()
}

/// Returns a kubelet's Lease in `kube-node-lease`.
pub(super) fn lease(name: &str, node_uid: &str, now: Timestamp) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": "kube-node-lease",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}],
        },
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": microseconds(now)},
    })
}

/// Formats `metav1.Time`: whole seconds.
pub(super) fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Formats `metav1.MicroTime`.
pub(super) fn microseconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

fn labels(spec: &NodeSpec, shape: NodeShape) -> BTreeMap<String, String> {
    let own = [
        ("beta.kubernetes.io/arch", "amd64"),
        ("beta.kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/hostname", &spec.name),
    ];
    let mut labels: BTreeMap<_, _> = own
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    if shape == NodeShape::Full {
        labels.extend(
            (0..FULL_LABELS)
                .map(|n| (format!("pool.example.com/label-{n:02}"), format!("value-{n:02}"))),
        );
    }
    labels.extend(spec.labels.clone());
    labels
}

/// Returns an image entry of about 250 bytes, like that of a real image: a name by digest, a name
/// by tag and a size.
fn image(n: usize) -> Value {
    let repository = format!("images.example.com/platform/team-{:02}/component-{n:02}", n % 7);
    // A made-up digest: any 64 hexadecimal digits.
    let digest = format!("{:016x}", 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(n as u64 + 1)).repeat(4);
    json!({
        "names": [format!("{repository}@sha256:{digest}"), format!("{repository}:v1.{n}.0")],
        "sizeBytes": 10_000_000 + n * 1_234_567,
    })
}

fn resources(cpu: &str, memory: &str) -> Value {
    json!({
        "cpu": cpu,
        "memory": memory,
        "ephemeral-storage": "101430960Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "pods": "110",
    })
}

fn node_info(name: &str) -> Value {
    // Ids that differ by node and stay over a restart.
    let id = uuid::Uuid::from_bytes(std::array::from_fn(|n| {
        name.bytes().cycle().nth(n).unwrap_or_default()
    }));
    json!({
        "architecture": "amd64",
        "bootID": id.to_string(),
        "containerRuntimeVersion": "containerd://2.1.4",
        "kernelVersion": "6.12.0",
        "kubeProxyVersion": "",
        "kubeletVersion": VERSION,
        "machineID": id.simple().to_string(),
        "operatingSystem": "linux",
        "osImage": "Linux",
        "systemUUID": id.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-01-02T03:04:05.678901Z".parse().unwrap()
    }

    #[test]
    fn a_full_node_has_the_promised_size() {
        let node = node(&NodeSpec::new("node-0001"), NodeShape::Full, now());
        assert_eq!(node["metadata"]["labels"].as_object().unwrap().len(), 25);
        assert_eq!(node["status"]["images"].as_array().unwrap().len(), 50);
        let size = node.to_string().len();
        assert!(
            (12_500..15_500).contains(&size),
            "{size} bytes before the server adds its own fields"
        );
    }

    #[test]
    fn a_light_node_is_small() {
        let size = node(&NodeSpec::new("n"), NodeShape::Light, now())
            .to_string()
            .len();
        assert!(size < 3_000, "{size} bytes");
    }

    #[test]
    fn without_a_given_address_the_cloud_is_left_to_find_them() {
        let node = node(&NodeSpec::new("n"), NodeShape::Light, now());
        assert_eq!(node["status"].get("addresses"), None);
        assert_eq!(node["metadata"]["annotations"].get(PROVIDED_NODE_IP), None);
        assert_eq!(node["spec"]["taints"][0]["key"], UNINITIALIZED_TAINT);
    }

    #[test]
    fn given_addresses_are_annotated_in_order_and_reported() {
        let spec = NodeSpec::new("n")
            .provided_ip("10.0.0.7".parse().unwrap())
            .provided_ip("2001:db8::7".parse().unwrap())
            .provider_id("mock:///n")
            .initialized();
        let node = node(&spec, NodeShape::Light, now());
        assert_eq!(node["metadata"]["annotations"][PROVIDED_NODE_IP], "10.0.0.7,2001:db8::7");
        assert_eq!(node["spec"], json!({"providerID": "mock:///n"}));
        let addresses = json!([
            {"type": "InternalIP", "address": "10.0.0.7"},
            {"type": "InternalIP", "address": "2001:db8::7"},
            {"type": "Hostname", "address": "n"},
        ]);
        assert_eq!(node["status"]["addresses"], addresses);
    }

    #[test]
    fn pod_networks_are_written_in_both_forms() {
        let spec = NodeSpec::new("n")
            .initialized()
            .pod_cidr("10.1.0.0/24")
            .pod_cidr("2001:db8::/64");
        let node = node(&spec, NodeShape::Light, now());
        let both = json!({"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "2001:db8::/64"]});
        assert_eq!(node["spec"], both);
    }

    #[test]
    fn times_have_the_form_of_the_api() {
        assert_eq!(seconds(now()), "2026-01-02T03:04:05Z");
        assert_eq!(microseconds(now()), "2026-01-02T03:04:05.678901Z");
    }
}
