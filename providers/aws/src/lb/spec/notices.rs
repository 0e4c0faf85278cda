//! Notices for the owner of a valid Service about settings that have no effect, or another one than
//! expected.

use ccm_core::provider::{EventType, ServiceNotice, SourceRanges};

use super::{SpecReader, TargetAttributes};
use crate::{
    api::elb::{HealthPort, HealthProtocol},
    lb::{
        model::{DesiredLoadBalancer, SecurityGroupChoice},
        spec::annotations,
    },
};

/// Maximum length of the list in a note, which has at most 1 kB.
const MAX_LIST_LENGTH: usize = 800;

/// Reports annotations without effect, in one notice.
pub(super) fn ignored_annotations(reader: &mut SpecReader<'_>) {
    let mut list = String::new();
    for (key, reason) in annotations::ignored_annotations(reader.service) {
        let entry = format!("{}{key} ({reason})", if list.is_empty() { "" } else { ", " });
        if list.len() + entry.len() > MAX_LIST_LENGTH {
            list.push_str(", …");
            break;
        }
        list.push_str(&entry);
    }
    if !list.is_empty() {
        let note = format!("annotations without effect: {list}").into();
        reader.notices.push(ServiceNotice {
            kind: EventType::Normal,
            reason: "AnnotationsWithoutEffect",
            note,
        });
    }
}

/// Warns if source ranges cannot be enforced, for instance because client addresses do not reach
/// the nodes.
pub(super) fn unenforced_source_ranges(reader: &mut SpecReader<'_>, desired: &DesiredLoadBalancer) {
    let Ok(sources) = SourceRanges::of(reader.service) else {
        return;
    };
    if !sources.restricts(&[]) {
        return;
    }
    let hidden_clients = desired.listeners.iter().find(|listener| {
        let group = &listener.target_group;
        !group.preserves_client_ip || TargetAttributes::hide_clients(&group.attributes)
    });
    let reason = match (&desired.security.groups, hidden_clients) {
        (SecurityGroupChoice::Given(_), _) => {
            "the load balancer has security groups of its own, whose rules are left alone".to_owned()
        }
        (SecurityGroupChoice::Keep | SecurityGroupChoice::None, Some(listener)) => format!(
            "port {} does not preserve client addresses and the load balancer has no security group",
            listener.port
        ),
        (SecurityGroupChoice::Keep | SecurityGroupChoice::None, None)
            if reader.settings.disable_security_group_ingress || !desired.security.manage_backend_rules =>
        {
            "the rules of nodes' security groups are not managed and the load balancer has no security group"
                .to_owned()
        }
        (SecurityGroupChoice::Managed, _) | (SecurityGroupChoice::Keep | SecurityGroupChoice::None, None) => return,
    };
    reader.warn("SourceRangesNotEnforced", format!("source ranges cannot be enforced: {reason}"));
}

/// Warns if proxy protocol may add its header to health checks of kube-proxy, which does not expect
/// it.
pub(super) fn proxy_protocol_on_health_checks(
    reader: &mut SpecReader<'_>,
    desired: &DesiredLoadBalancer,
) {
    let affected = desired.listeners.iter().find(|listener| {
        let group = &listener.target_group;
        TargetAttributes::has_proxy_protocol(&group.attributes)
            && group.health_check.protocol != HealthProtocol::Tcp
            && is_kube_proxy_port(reader, group.health_check.port)
    });
    if let Some(listener) = affected {
        let note = format!(
            "port {}: with proxy protocol v2, health checks on port {} may carry its header, which kube-proxy does not \
             accept",
            listener.port, listener.target_group.health_check.port
        );
        reader.warn("ProxyProtocolHealthCheck", note);
    }
}

/// Returns true if a health check on this port reaches kube-proxy.
fn is_kube_proxy_port(reader: &SpecReader<'_>, port: HealthPort) -> bool {
    let HealthPort::Number(port) = port else {
        return false;
    };
    let shared_port = reader
        .settings
        .shared_health_probe
        .as_ref()
        .map(|probe| probe.port);
    [reader.service.health_check_node_port, shared_port].contains(&Some(port))
}
