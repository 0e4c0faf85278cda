//! Builds and parses the names, descriptions and tags by which objects are found again. They are
//! byte for byte those of kubernetes/cloud-provider-openstack, so that either can take over from
//! the other.

/// Prefix of the name of every load balancer, and of its tag.
pub const PREFIX: &str = "kube_service_";
/// Prefix of the description of every floating IP that was created for a Service. Such a floating
/// IP may be deleted together with the load balancer.
pub const FLOATING_IP_PREFIX: &str = "Floating IP for Kubernetes external service ";
/// Maximum length of a name in bytes.
const MAX_NAME_BYTES: usize = 255;
/// Maximum length of a legacy name in characters.
const MAX_LEGACY_NAME: usize = 32;

/// Truncates a text to 255 bytes, but never inside a character.
pub fn truncate(text: &str) -> Box<str> {
    text[..text.floor_char_boundary(MAX_NAME_BYTES)].into()
}

/// Names the load balancer of a Service. This is also the tag of the load balancer and of its
/// listeners.
pub fn load_balancer(cluster: &str, namespace: &str, service: &str) -> Box<str> {
    truncate(&format!("{PREFIX}{cluster}_{namespace}_{service}"))
}

/// Returns the prefix of the names and tags of all load balancers of a cluster.
pub fn load_balancer_prefix(cluster: &str) -> Box<str> {
    truncate(&format!("{PREFIX}{cluster}_"))
}

/// Names the load balancer like upstream before 2018: `a` and the UID without dashes, at most 32
/// characters.
pub fn legacy_load_balancer(uid: &str) -> Box<str> {
    std::iter::once('a')
        .chain(uid.chars().filter(|c| *c != '-'))
        .take(MAX_LEGACY_NAME)
        .collect::<String>()
        .into()
}

/// Names the listener of the port with this index.
pub fn listener(index: usize, load_balancer: &str) -> Box<str> {
    truncate(&format!("listener_{index}_{load_balancer}"))
}

/// Names the pool of the port with this index.
pub fn pool(index: usize, load_balancer: &str) -> Box<str> {
    truncate(&format!("pool_{index}_{load_balancer}"))
}

/// Names the health monitor of the port with this index.
pub fn monitor(index: usize, load_balancer: &str) -> Box<str> {
    truncate(&format!("monitor_{index}_{load_balancer}"))
}

/// Returns true if a pool is named like those of this load balancer, whatever its index.
pub fn is_pool_of(name: &str, load_balancer: &str) -> bool {
    let Some((index, _)) = name
        .strip_prefix("pool_")
        .and_then(|rest| rest.split_once('_'))
    else {
        return false;
    };
    index
        .parse()
        .is_ok_and(|index| *pool(index, load_balancer) == *name)
}

/// Names a member that is created alone. Members of a batch are named after their node.
pub fn member(node: &str, address: &str, port: u16) -> Box<str> {
    truncate(&format!("member_{node}_{address}_{port}"))
}

/// Describes the load balancer of a Service.
pub fn description(cluster: &str, namespace: &str, service: &str) -> Box<str> {
    truncate(&format!("Kubernetes external service {namespace}/{service} from cluster {cluster}"))
}

/// Describes the floating IP of a Service.
pub fn floating_ip_description(cluster: &str, namespace: &str, service: &str) -> Box<str> {
    truncate(&format!("{FLOATING_IP_PREFIX}{namespace}/{service} from cluster {cluster}"))
}

/// Prefix of the name of every Service's security group.
pub const GROUP_PREFIX: &str = "lb-sg-";

/// Names the security group of a Service.
pub fn security_group(uid: &str, namespace: &str, service: &str) -> Box<str> {
    truncate(&format!("{GROUP_PREFIX}{uid}-{namespace}-{service}"))
}

/// Describes the security group of a Service.
pub fn security_group_description(cluster: &str, namespace: &str, service: &str) -> Box<str> {
    truncate(&format!(
        "Security Group for {namespace}/{service} Service LoadBalancer in cluster {cluster}"
    ))
}

/// Parses the description of a security group. Returns `namespace/name` of the Service, and the
/// cluster.
pub fn parse_security_group_description(description: &str) -> Option<(&str, &str)> {
    description
        .strip_prefix("Security Group for ")?
        .split_once(" Service LoadBalancer in cluster ")
}

/// Returns the cluster in the name of a load balancer or of one of its children, or an empty text
/// if the name belongs to no Service.
///
/// After the cluster come the namespace and the name of the Service, which contain no underscore.
/// If the name was truncated, the Service's name may be missing.
pub fn cluster_of(name: &str) -> &str {
    let Some(start) = name.find(PREFIX).map(|at| at + PREFIX.len()) else {
        return "";
    };
    let owner = &name[start..];
    match owner.rsplitn(3, '_').collect::<Vec<_>>()[..] {
        [_service, _namespace, cluster] if !cluster.is_empty() => cluster,
        // Either the name was truncated before the Service, or the cluster's name is empty.
        [.., _] => owner.rsplit_once('_').map_or("", |(cluster, _)| cluster),
        [] => "",
    }
}

/// Parses the name or tag of a load balancer. Returns cluster, namespace and Service, or `None` if
/// the text is incomplete, for example because it was truncated.
pub fn owner_of(name: &str) -> Option<(&str, &str, &str)> {
    let rest = name
        .strip_prefix(PREFIX)
        .filter(|_| name.len() < MAX_NAME_BYTES)?;
    let mut parts = rest.rsplitn(3, '_');
    let service = parts.next()?;
    let namespace = parts.next()?;
    let cluster = parts.next()?;
    (!service.is_empty() && !namespace.is_empty() && !cluster.is_empty())
        .then_some((cluster, namespace, service))
}

/// Replaces the old cluster name by the new one. It is expected after the prefix, or else replaced
/// at its first occurrence.
pub fn rename(old: &str, new: &str, name: &str) -> Box<str> {
    if old.is_empty() {
        return name.into();
    }
    let from = match name.find(PREFIX).map(|at| at + PREFIX.len()) {
        Some(start) if name[start..].starts_with(&format!("{old}_")) => Some(start),
        Some(start) => name[start..].find(old).map(|at| start + at),
        None => name.find(old),
    };
    match from {
        None => truncate(name),
        Some(at) => truncate(&format!("{}{new}{}", &name[..at], &name[at + old.len()..])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0b7f2a3c-9c1d-4c3e-8f00-aabbccddeeff";

    // A05 A06 A07
    #[test]
    fn balancers_are_named_after_cluster_namespace_and_service() {
        assert_eq!(
            &*load_balancer("my-valid-cluster", "ns", "web"),
            "kube_service_my-valid-cluster_ns_web"
        );
        let long = load_balancer("my-valid-cluster", "ns", &"x".repeat(400));
        assert_eq!(long.len(), 255);
        assert!(long.starts_with("kube_service_my-valid-cluster_ns_xxx"));
        assert_eq!(&*load_balancer("", "", ""), "kube_service___");
    }

    // A08 A09 A10
    #[test]
    fn security_groups_are_named_after_uid_namespace_and_service() {
        assert_eq!(&*security_group("12345", "ns", "web"), "lb-sg-12345-ns-web");
        assert_eq!(security_group("12345", "ns", &"x".repeat(400)).len(), 255);
        assert_eq!(&*security_group("", "", ""), "lb-sg---");
    }

    #[test]
    fn children_and_descriptions_follow_the_name() {
        assert_eq!(&*listener(0, "lb"), "listener_0_lb");
        assert_eq!(&*pool(3, "lb"), "pool_3_lb");
        assert_eq!(&*monitor(12, "lb"), "monitor_12_lb");
        assert_eq!(pool(3, &"x".repeat(255)).len(), 255);
        assert_eq!(&*member("n1", "10.0.0.4", 30080), "member_n1_10.0.0.4_30080");
        assert_eq!(
            &*description("c", "ns", "web"),
            "Kubernetes external service ns/web from cluster c"
        );
        let fip = floating_ip_description("c", "ns", "web");
        assert_eq!(&*fip, "Floating IP for Kubernetes external service ns/web from cluster c");
        assert_eq!(
            &*security_group_description("c", "ns", "web"),
            "Security Group for ns/web Service LoadBalancer in cluster c"
        );
        assert_eq!(&*legacy_load_balancer(UID), "a0b7f2a3c9c1d4c3e8f00aabbccddeef");
        assert_eq!(legacy_load_balancer(UID).len(), 32);
    }

    #[test]
    fn a_name_is_never_cut_amid_a_character() {
        let name = truncate(&"ä".repeat(200));
        assert_eq!(name.len(), 254);
    }

    #[test]
    fn pools_of_a_balancer_are_known_by_their_names() {
        assert!(is_pool_of("pool_0_kube_service_c_ns_web", "kube_service_c_ns_web"));
        assert!(is_pool_of("pool_17_kube_service_c_ns_web", "kube_service_c_ns_web"));
        for name in [
            "pool_x_kube_service_c_ns_web",
            "pool_0_kube_service_c_ns_web2",
            "pool_0",
            "my_pool",
            "pool_00_lb",
        ] {
            assert!(!is_pool_of(name, "kube_service_c_ns_web"), "{name}");
        }
    }

    // E01 E02 E03 E04 E05
    #[test]
    fn renaming_changes_the_cluster_component_once() {
        let cases = [
            (
                "kubernetes",
                "cluster123",
                "kube_service_kubernetes_namespace_name",
                "kube_service_cluster123_namespace_name",
            ),
            (
                "kube",
                "cluster123",
                "kube_service_kube_namespace_name",
                "kube_service_cluster123_namespace_name",
            ),
            ("web", "c2", "pool_0_kube_service_web_ns_web", "pool_0_kube_service_c2_ns_web"),
            ("kubernetes", "c2", "foo_kubernetes_kubernetes", "foo_c2_kubernetes"),
            ("other", "c2", "kube_service_kubernetes_ns_web", "kube_service_kubernetes_ns_web"),
        ];
        for (old, new, name, wanted) in cases {
            assert_eq!(&*rename(old, new, name), wanted, "{name}");
        }
        let long = rename("c", &"d".repeat(300), "kube_service_c_ns_web");
        assert_eq!(long.len(), 255);
        assert!(long.starts_with("kube_service_ddd"));
    }

    // E06 E07 E08 E09 E10
    #[test]
    fn the_cluster_is_read_from_a_name() {
        let cases = [
            ("kube_service_kubernetes_namespace_name", "kubernetes"),
            ("listener_0_kube_service_kubernetes_namespace_name", "kubernetes"),
            ("kube_service_kubernetes_123_namespace_name", "kubernetes_123"),
            ("FOOBAR", ""),
            ("", ""),
        ];
        for (name, wanted) in cases {
            assert_eq!(cluster_of(name), wanted, "{name}");
        }
        assert_eq!(
            cluster_of(&format!("kube_service_kubernetes_{}", "n".repeat(300))),
            "kubernetes"
        );
    }

    #[test]
    fn a_complete_name_says_whose_a_balancer_is() {
        assert_eq!(owner_of("kube_service_my_cluster_ns_web"), Some(("my_cluster", "ns", "web")));
        for name in ["kube_service_ns_web", "kube_service___", "web", "kube_service_c__web"] {
            assert_eq!(owner_of(name), None, "{name}");
        }
        assert_eq!(owner_of(&load_balancer("c", "ns", &"x".repeat(400))), None);
    }
}
