//! The search for other cloud-controller-managers, by the pods of a namespace.

use serde_json::Value;

use super::{ClusterFinding, Finding};

/// Images whose name ends so are cloud-controller-managers, whatever the cloud.
pub(super) const IMAGE_SUFFIX: &str = "cloud-controller-manager";
/// The manager that has clouds built in up to Kubernetes 1.30, and uses the one of `--cloud-provider`.
/// Other programs have that flag, too, such as the cluster autoscaler, and manage no cloud.
const BUILT_IN: &str = "kube-controller-manager";

/// A pod of another manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManagerPod {
    /// The name.
    pub(crate) name: String,
    /// The node that it runs on if it has `hostNetwork`, and with it the node's host name. Otherwise
    /// empty.
    pub(crate) node: String,
    /// The image that was recognised.
    image: String,
}

/// Returns the pods that run a manager other than `product`, the name of our image.
pub(crate) fn other_managers(pods: &[Value], product: &str) -> Vec<ManagerPod> {
    let mut found = Vec::new();
    for pod in pods {
        if matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) {
            continue;
        }
        let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
        let image = containers
            .filter(|c| is_other_manager(c, product))
            .find_map(image_of);
        if let Some(image) = image {
            let has_host_network = pod["spec"]["hostNetwork"] == true;
            let node = &pod["spec"]["nodeName"];
            found.push(ManagerPod {
                name: text(&pod["metadata"]["name"]),
                node: text(if has_host_network { node } else { &Value::Null }),
                image: image.to_owned(),
            });
        }
    }
    found
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn image_of(container: &Value) -> Option<&str> {
    container["image"].as_str()
}

/// Returns the last part of an image's name, without tag and digest.
fn base_name(image: &str) -> &str {
    let name = image.rsplit('/').next().unwrap_or_default();
    name.split(['@', ':']).next().unwrap_or_default()
}

/// Returns true if a container runs a manager of a cloud that is not ours. A
/// kube-controller-manager is one if it still has a cloud built in.
fn is_other_manager(container: &Value, product: &str) -> bool {
    let name = base_name(image_of(container).unwrap_or_default());
    if name != BUILT_IN {
        return name != product && name.ends_with(IMAGE_SUFFIX);
    }
    let words = ["command", "args"].into_iter().flat_map(|key| {
        let words = container[key].as_array().into_iter().flatten();
        words.filter_map(Value::as_str)
    });
    let mut clouds = words.filter_map(|word| word.strip_prefix("--cloud-provider="));
    clouds.any(|cloud| !matches!(cloud, "" | "external"))
}

/// Reports the pods of other managers.
pub(crate) fn check_pods(pods: &[ManagerPod]) -> Vec<Finding> {
    let report = |pod: &ManagerPod| {
        let message = format!("pod {} runs another manager: {}", pod.name, pod.image);
        ClusterFinding::OtherManager.about(&pod.name, message)
    };
    pods.iter().map(report).collect()
}

/// Returns the host name in an identity, which is `<hostname>_<uuid>` as upstream.
fn host_of(identity: &str) -> &str {
    identity.rsplit_once('_').map_or(identity, |(host, _)| host)
}

/// Returns the pod of another manager that holds a Lease, by the host name in the identity.
pub(crate) fn pod_of<'a>(holder: &str, pods: &'a [ManagerPod]) -> Option<&'a ManagerPod> {
    let host = host_of(holder);
    let is_of = |pod: &&ManagerPod| !host.is_empty() && (pod.name == host || pod.node == host);
    pods.iter().find(is_of)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(image: &str, args: &[&str]) -> Value {
        json!({
            "metadata": {"name": "p"},
            "spec": {"nodeName": "n1", "containers": [{"image": image, "args": args}]},
        })
    }

    #[test]
    fn managers_are_recognised_by_image_and_flag() {
        let cases: [(&str, &[&str], bool); 9] = [
            ("registry.k8s.io/provider-os/openstack-cloud-controller-manager:v1.33", &[], true),
            ("registry.k8s.io/provider-aws/cloud-controller-manager@sha256:ab", &[], true),
            ("x/kube-controller-manager:v1.20", &["--cloud-provider=aws"], true),
            ("x/kube-controller-manager:v1.33", &["--cloud-provider=external"], false),
            ("x/kube-apiserver:v1.20", &["--cloud-provider=aws"], false),
            ("localhost:5000/ccm-mock@sha256:ab", &["--cloud-provider=mock"], false),
            ("ccm-mock", &["--cloud-provider=mock"], false),
            ("example.org/cluster-autoscaler", &["--cloud-provider=aws"], false),
            ("coredns:1.12", &["-conf"], false),
        ];
        for (image, args, expected) in cases {
            let found = other_managers(&[pod(image, args)], "ccm-mock");
            assert_eq!(!found.is_empty(), expected, "{image}");
        }
        let mut done = pod("x/cloud-controller-manager", &[]);
        done["status"] = json!({"phase": "Succeeded"});
        assert_eq!(other_managers(&[done], "ccm-mock"), []);
    }

    #[test]
    fn the_holder_of_a_lease_is_found_by_pod_or_node() {
        let mut on_host = pod("x/cloud-controller-manager", &[]);
        on_host["spec"]["hostNetwork"] = true.into();
        let cases = [
            (on_host, [("p_1-2", true), ("n1_1-2", true), ("n2_1", false), ("", false)]),
            // Another pod of that node holds the Lease.
            (
                pod("x/cloud-controller-manager", &[]),
                [("p_1-2", true), ("n1_1-2", false), ("n2_1", false), ("", false)],
            ),
        ];
        for (pod, holders) in cases {
            let pods = other_managers(&[pod], "ccm-mock");
            for (holder, found) in holders {
                assert_eq!(pod_of(holder, &pods).is_some(), found, "{holder}");
            }
        }
    }
}
