//! The checks of Nodes.

use std::{collections::BTreeMap, sync::Arc};

use ipnet::IpNet;

use super::{Area, ClusterFinding, Finding, list_names};
use crate::{
    error::chain,
    k8s::{AddressType, IpFamily, NodeView},
    provider::{CloudError, InstanceStatus, NodeOwnership},
};

/// A Node, with what the provider says of it.
#[derive(Debug)]
pub(crate) struct ObservedNode {
    pub(crate) node: Arc<NodeView>,
    pub(crate) ownership: NodeOwnership,
    /// The cloud's answer. `None` if the cloud was not asked.
    pub(crate) instance: Option<Result<InstanceStatus, CloudError>>,
}

/// Checks Nodes. `cluster_cidrs` are the networks of pods, if routes are created.
pub(crate) fn check_nodes(nodes: &[ObservedNode], cluster_cidrs: &[IpNet]) -> Vec<Finding> {
    let mut findings = vec![check_instances(nodes)];
    findings.extend(check_errors(nodes));
    let mut report = |kind: ClusterFinding, text: &str, filter: &dyn Fn(&ObservedNode) -> bool| {
        let names = names_of(nodes, filter);
        if !names.is_empty() {
            let names = list_names(&names);
            findings.push(kind.about(&names, format!("{text}: {names}")));
        }
    };
    let is_ours = |node: &ObservedNode| node.ownership == NodeOwnership::Ours;
    report(
        ClusterFinding::KubeletNotExternal,
        "without provider ID and without the uninitialized taint",
        &|node| is_ours(node) && node.node.provider_id.is_none() && !node.node.is_uninitialized(),
    );
    report(
        ClusterFinding::AddressesNotInCloud,
        "with addresses that the cloud does not know for their machines",
        &has_unknown_addresses,
    );
    report(ClusterFinding::ForeignNode, "of another provider", &|node| !is_ours(node));
    report(ClusterFinding::PodCidrOutside, "with a pod CIDR outside --cluster-cidr", &|node| {
        is_ours(node) && has_cidr_outside(&node.node, cluster_cidrs)
    });
    findings.extend(check_shared_ids(nodes));
    findings
}

fn names_of<'a>(nodes: &'a [ObservedNode], filter: &dyn Fn(&ObservedNode) -> bool) -> Vec<&'a str> {
    let selected = nodes.iter().filter(|node| filter(node));
    selected.map(|node| &*node.node.name).collect()
}

/// Counts the Nodes whose instance the cloud found, and names those that it did not find.
fn check_instances(nodes: &[ObservedNode]) -> Finding {
    let count = |filter: &dyn Fn(&ObservedNode) -> bool| names_of(nodes, filter).len();
    let found = count(&|node| matches!(node.instance, Some(Ok(InstanceStatus::Found { .. }))));
    let missing =
        names_of(nodes, &|node| matches!(node.instance, Some(Ok(InstanceStatus::NotFound))));
    if missing.is_empty() {
        let message = format!("{} nodes, {found} of them found in the cloud", nodes.len());
        return Finding::ok(Area::Nodes, message);
    }
    let names = list_names(&missing);
    if found == 0 {
        let message = format!("the cloud finds no node's instance: {names}");
        return ClusterFinding::NoInstanceFound.about(names, message);
    }
    let message = format!("the cloud does not find the instances of: {names}");
    ClusterFinding::InstanceNotFound.about(names, message)
}

/// Reports each kind of error of the cloud, with the Nodes that it concerns and its causes.
fn check_errors(nodes: &[ObservedNode]) -> Vec<Finding> {
    let mut by_kind: BTreeMap<_, Vec<(&NodeView, &CloudError)>> = BTreeMap::new();
    for node in nodes {
        if let Some(Err(error)) = &node.instance {
            by_kind
                .entry((error.kind().as_str(), error.reason()))
                .or_default()
                .push((&*node.node, error));
        }
    }
    let report = |failed: Vec<(&NodeView, &CloudError)>| {
        let names: Vec<_> = failed.iter().map(|(node, _)| &node.name).collect();
        let (names, causes) = (list_names(&names), causes(&failed));
        let message = format!("the cloud cannot say whether these exist: {names}{causes}");
        ClusterFinding::InstanceQueryFailed.about(names, message)
    };
    by_kind.into_values().map(report).collect()
}

/// Returns the text of each cause, with the first Node that it concerns and a count of the others.
fn causes(failed: &[(&NodeView, &CloudError)]) -> String {
    const SHOWN: usize = 3;
    // First, Nodes by cause.
    let mut causes: Vec<(String, Vec<(&str, String)>)> = Vec::new();
    for (node, error) in failed {
        let (cause, text) = (without_ids(node, error), chain(*error));
        let concerned = (&*node.name, text);
        match causes.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, nodes)) => nodes.push(concerned),
            None => causes.push((cause, vec![concerned])),
        }
    }

    // Next, their texts. All Nodes are named before them.
    let mut texts = String::new();
    for (_, nodes) in causes.iter().take(SHOWN) {
        let [(first, text), others @ ..] = &nodes[..] else {
            continue;
        };
        let is_same = causes.len() == 1 && others.iter().all(|(_, other)| other == text);
        let part = match others.len() {
            _ if is_same => format!(": {text}"),
            0 => format!("; of {first}: {text}"),
            more => format!("; of {first} and {more} more: {text}"),
        };
        texts.push_str(&part);
    }
    match causes.len().saturating_sub(SHOWN) {
        0 => texts,
        more => format!("{texts}; and {more} other texts"),
    }
}

/// Returns the text of an error without the IDs of its request and of its Node, by which texts differ
/// even if their cause is the same.
fn without_ids(node: &NodeView, error: &CloudError) -> String {
    let provider_id = node.provider_id.as_deref();
    let instance = provider_id.and_then(|id| id.rsplit('/').next());
    let ids = [error.request_id(), provider_id, instance, Some(&*node.name)];
    let ids = ids.into_iter().flatten().filter(|id| !id.is_empty());
    ids.fold(chain(error), |text, id| text.replace(id, "…"))
}

/// Returns true if an initialised Node of ours has internal addresses, and the cloud knows none of
/// them for its instance.
fn has_unknown_addresses(node: &ObservedNode) -> bool {
    let Some(Ok(InstanceStatus::Found { meta, .. })) = &node.instance else {
        return false;
    };
    if node.node.is_uninitialized() || meta.addresses.is_empty() {
        return false;
    }
    let mut internal = node
        .node
        .addresses
        .iter()
        .filter(|address| address.kind == AddressType::InternalIp)
        .peekable();
    internal.peek().is_some()
        && !internal.any(|address| {
            let mut known = meta.addresses.iter();
            known.any(|known| known.address == address.address)
        })
}

/// Reports provider IDs that several Nodes have.
fn check_shared_ids(nodes: &[ObservedNode]) -> Vec<Finding> {
    let mut by_id: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in nodes {
        if let Some(id) = &node.node.provider_id {
            by_id.entry(id).or_default().push(&node.node.name);
        }
    }
    by_id
        .into_iter()
        .filter(|(_, names)| names.len() > 1)
        .map(|(id, names)| {
            let names = list_names(&names);
            let message = format!("with the same provider ID {id}: {names}");
            ClusterFinding::SharedProviderId.about(names, message)
        })
        .collect()
}

/// Returns true if a Node has a pod CIDR that lies in none of the networks of its address family.
/// Another component may create the routes of a family that has no network.
fn has_cidr_outside(node: &NodeView, cluster_cidrs: &[IpNet]) -> bool {
    node.pod_cidrs
        .iter()
        .filter_map(|cidr| cidr.parse::<IpNet>().ok())
        .any(|cidr| {
            let mut networks = cluster_cidrs
                .iter()
                .filter(|network| IpFamily::of(network) == IpFamily::of(&cidr))
                .peekable();
            networks.peek().is_some() && !networks.any(|network| network.contains(&cidr))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        check::Severity,
        k8s::{NodeAddress, Taint, TaintEffect, well_known},
        provider::{ErrorKind, InstanceMetadata, PowerState},
    };

    fn found() -> InstanceStatus {
        let meta = InstanceMetadata::default();
        InstanceStatus::Found { power_state: PowerState::Running, meta }
    }

    fn observed(name: &str, id: Option<&str>) -> ObservedNode {
        let node = NodeView { provider_id: id.map(Arc::from), ..NodeView::named(name) };
        ObservedNode {
            node: Arc::new(node),
            ownership: NodeOwnership::Ours,
            instance: Some(Ok(found())),
        }
    }

    fn problems(nodes: &[ObservedNode], cidrs: &[IpNet]) -> Vec<(Severity, String)> {
        check_nodes(nodes, cidrs)
            .into_iter()
            .filter(|finding| finding.severity > Severity::Ok)
            .inspect(|finding| assert!(!finding.advice.is_empty(), "{finding:?}"))
            .map(|finding| (finding.severity, finding.message))
            .collect()
    }

    #[test]
    fn a_healthy_cluster_has_no_problems() {
        let mut joining = observed("new", None);
        let taint = Taint {
            key: well_known::TAINT_UNINITIALIZED.into(),
            effect: TaintEffect::NoSchedule,
            value: "".into(),
        };
        Arc::make_mut(&mut joining.node).taints = [taint].into();
        let nodes = [observed("a", Some("x://a")), observed("b", Some("x://b")), joining];
        assert_eq!(problems(&nodes, &[]), []);
        assert_eq!(check_nodes(&nodes, &[])[0].message, "3 nodes, 3 of them found in the cloud");
        assert_eq!(problems(&[], &[]), []);
    }

    #[test]
    fn errors_of_one_kind_are_one_finding_with_all_causes() {
        let begin = "the cloud cannot say whether these exist";
        let texts = |failed: &[(&str, ErrorKind, &str, &str)]| -> Vec<String> {
            let failed = failed
                .iter()
                .map(|(name, kind, text, request)| ObservedNode {
                    instance: Some(Err(CloudError::new(*kind, *text).with_request_id(*request))),
                    ..observed(name, Some(&format!("x://i-{name}")))
                });
            let found = problems(&failed.collect::<Vec<_>>(), &[]);
            found.into_iter().map(|(_, text)| text).collect()
        };
        let (outage, denied) = (ErrorKind::Transient, ErrorKind::Denied);
        assert_eq!(
            texts(&[
                ("n1", outage, "GET i-n1: outage (request r-7)", "r-7"),
                ("n2", denied, "bad token", "r-8"),
                ("n3", outage, "GET i-n3: outage (request r-9)", "r-9"),
                ("n4", denied, "bad token", "r-10"),
            ]),
            [
                format!("{begin}: n2, n4: bad token"),
                format!("{begin}: n1, n3; of n1 and 1 more: GET i-n1: outage (request r-7)"),
            ]
        );
        // Two causes of one kind.
        assert_eq!(
            texts(&[
                ("n1", denied, "bad token", "r-1"),
                ("n2", denied, "i-n2 is in another project", "r-2"),
                ("n3", denied, "i-n3 is in another project", "r-3"),
            ]),
            [format!(
                "{begin}: n1, n2, n3; of n1: bad token; of n2 and 1 more: i-n2 is in another project"
            )]
        );
        // More than anyone wants to read.
        let many = [("n1", "full"), ("n2", "gone"), ("n3", "off"), ("n4", "slow"), ("n5", "old")];
        let found = texts(&many.map(|(name, text)| (name, denied, text, "r-1"))).concat();
        assert!(found.ends_with("; of n3: off; and 2 other texts"), "{found}");
    }

    #[test]
    fn each_problem_of_nodes_is_named() {
        let healthy = || observed("ok", Some("x://ok"));
        let not_found = |name: &str| ObservedNode {
            instance: Some(Ok(InstanceStatus::NotFound)),
            ..observed(name, Some("x://1"))
        };
        let failed = ObservedNode {
            instance: Some(Err(CloudError::new(ErrorKind::Denied, "bad token"))),
            ..observed("a", Some("x://a"))
        };
        let foreign = ObservedNode {
            ownership: NodeOwnership::Foreign,
            instance: None,
            ..observed("a", Some("y://a"))
        };
        let mut outside = observed("a", Some("x://a"));
        Arc::make_mut(&mut outside.node).pod_cidrs = ["10.9.0.0/24".into()].into();
        let address = |ip: &str| NodeAddress::new(AddressType::InternalIp, ip);
        let at = |node_ip: &str, cloud_ip: &str| {
            let addresses = vec![address(cloud_ip)];
            let meta = InstanceMetadata { addresses, ..InstanceMetadata::default() };
            let power_state = PowerState::Running;
            let mut node = observed("a", Some("x://a"));
            Arc::make_mut(&mut node.node).addresses = [address(node_ip)].into();
            node.instance = Some(Ok(InstanceStatus::Found { power_state, meta }));
            node
        };
        assert_eq!(problems(&[at("10.0.0.1", "10.0.0.1")], &[]), []);
        let cases = [
            (vec![not_found("a")], Severity::Error, "finds no node's instance: a"),
            (
                vec![healthy(), not_found("a")],
                Severity::Warning,
                "does not find the instances of: a",
            ),
            (vec![healthy(), failed], Severity::Error, "whether these exist: a: bad token"),
            (vec![healthy(), observed("a", None)], Severity::Warning, "without provider ID"),
            (vec![healthy(), foreign], Severity::Warning, "of another provider: a"),
            (
                vec![observed("a", Some("x://1")), observed("b", Some("x://1"))],
                Severity::Error,
                "same provider ID x://1: a, b",
            ),
            (vec![outside], Severity::Error, "outside --cluster-cidr: a"),
            (
                vec![at("10.0.0.1", "10.0.0.2")],
                Severity::Warning,
                "does not know for their machines: a",
            ),
        ];
        let cidrs = ["10.0.0.0/14".parse().unwrap()];
        let mut other_family = observed("a", Some("x://a"));
        Arc::make_mut(&mut other_family.node).pod_cidrs = ["fd00::/64".into()].into();
        assert_eq!(problems(&[other_family], &cidrs), []);
        for (nodes, severity, expected) in cases {
            let found = problems(&nodes, &cidrs);
            assert_eq!(found.len(), 1, "{expected}: {found:?}");
            assert_eq!(found[0].0, severity, "{expected}");
            assert!(found[0].1.contains(expected), "{expected}: {}", found[0].1);
        }
    }
}
