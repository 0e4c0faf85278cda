//! The checks of Nodes and Services.

use std::{collections::BTreeMap, sync::Arc};

use ipnet::IpNet;

use super::{Area, Finding, list_names};
use crate::{
    error::chain,
    k8s::{IpFamily, NodeView, ServiceView},
    provider::{CloudError, InstanceStatus, NodeOwnership, ServiceInterpretation},
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
    let select = |filter: &dyn Fn(&ObservedNode) -> bool| -> Vec<&str> {
        nodes
            .iter()
            .filter(|node| filter(node))
            .map(|node| &*node.node.name)
            .collect()
    };
    let is_ours = |node: &ObservedNode| node.ownership == NodeOwnership::Ours;
    let unmanaged = select(&|node| {
        is_ours(node) && node.node.provider_id.is_none() && !node.node.is_uninitialized()
    });
    if !unmanaged.is_empty() {
        findings.push(Finding::warning(
            Area::Nodes,
            format!("without provider ID and without the uninitialized taint: {}", list_names(&unmanaged)),
            "no cloud-controller-manager initialises these nodes: start their kubelets with --cloud-provider=external, delete \
             the Nodes, and let them register again",
        ));
    }
    let foreign = select(&|node| !is_ours(node));
    if !foreign.is_empty() {
        findings.push(Finding::warning(
            Area::Nodes,
            format!("of another provider: {}", list_names(&foreign)),
            "they are left alone; if they belong to this cloud, their provider ID is wrong",
        ));
    }
    findings.extend(check_shared_ids(nodes));
    let outside = select(&|node| is_ours(node) && has_cidr_outside(&node.node, cluster_cidrs));
    if !outside.is_empty() {
        findings.push(Finding::error(
            Area::Nodes,
            format!("with a pod CIDR outside --cluster-cidr: {}", list_names(&outside)),
            "no routes are created for them: --cluster-cidr must be the value that assigns pod CIDRs",
        ));
    }
    findings
}

/// Counts the Nodes whose instance the cloud found, and names those that it did not find.
fn check_instances(nodes: &[ObservedNode]) -> Finding {
    let found = nodes
        .iter()
        .filter(|node| matches!(node.instance, Some(Ok(InstanceStatus::Found { .. }))))
        .count();
    let missing: Vec<&str> = nodes
        .iter()
        .filter(|node| matches!(node.instance, Some(Ok(InstanceStatus::NotFound))))
        .map(|node| &*node.node.name)
        .collect();
    if missing.is_empty() {
        return Finding::ok(
            Area::Nodes,
            format!("{} nodes, {found} of them found in the cloud", nodes.len()),
        );
    }
    let names = list_names(&missing);
    if found == 0 {
        return Finding::error(
            Area::Nodes,
            format!("the cloud finds no node's instance: {names}"),
            "region, project or account of the cloud config are probably wrong, or the names of the Nodes are not those that \
             the cloud knows",
        );
    }
    Finding::warning(
        Area::Nodes,
        format!("the cloud does not find the instances of: {names}"),
        "a Node without provider ID stays uninitialised until its instance is found; any other is deleted if it is not Ready",
    )
}

/// Reports the errors of the cloud, each with the Nodes that it concerns.
fn check_errors(nodes: &[ObservedNode]) -> Vec<Finding> {
    let mut by_error: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for node in nodes {
        if let Some(Err(error)) = &node.instance {
            by_error
                .entry(chain(error))
                .or_default()
                .push(&node.node.name);
        }
    }
    by_error
        .into_iter()
        .map(|(error, names)| {
            Finding::error(
                Area::Nodes,
                format!("the cloud cannot say whether these exist: {}: {error}", list_names(&names)),
                "check the credentials and the endpoint in the cloud config, and the provider ID of the Node",
            )
        })
        .collect()
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
            Finding::error(
                Area::Nodes,
                format!("with the same provider ID {id}: {}", list_names(&names)),
                "one machine registered under several names: delete the Nodes that no kubelet updates any more",
            )
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

/// Checks Services of type LoadBalancer, given how the provider reads them.
pub(crate) fn check_services(
    services: &[(Arc<ServiceView>, ServiceInterpretation)],
) -> Vec<Finding> {
    let served = services
        .iter()
        .filter(|(_, read)| matches!(read, ServiceInterpretation::Valid { .. }))
        .count();
    let message = format!("Services of type LoadBalancer: {served} for this provider");
    let mut findings = vec![Finding::ok(Area::Services, message)];
    for (service, read) in services {
        let ServiceInterpretation::Invalid(errors) = read else {
            continue;
        };
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        findings.push(Finding::error(
            Area::Services,
            format!("{}/{}: {}", service.namespace, service.name, errors.join("; ")),
            "the Service is not served, or keeps the load balancer that it has, until this is corrected",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        check::Severity,
        k8s::{Taint, TaintEffect, well_known},
        provider::{ErrorKind, FieldError, InstanceMetadata, PowerState},
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

    #[test]
    fn invalid_services_are_named_with_their_fields() {
        let service = |name: &str| Arc::new(ServiceView::named("shop", name));
        let invalid = vec![FieldError::new("spec.ports", "UDP is not supported")];
        let services = [
            (service("a"), ServiceInterpretation::ImplementedElsewhere),
            (service("b"), ServiceInterpretation::Invalid(invalid)),
        ];
        let findings = check_services(&services);
        assert_eq!(findings.len(), 2);
        assert_eq!(findings[1].severity, Severity::Error);
        let message = &findings[1].message;
        assert!(message.contains("shop/b") && message.contains("spec.ports"), "{message}");
    }
}
