//! The annotations of Services that the mock reads and writes.

use std::time::Duration;

use ccm_core::{
    k8s::{ServiceView, well_known as wk},
    provider::{BackendKind, EventType, FieldError, LabelRequirement, ServiceNotice},
};

use super::super::Settings;
use crate::cloud::config::parse_duration;

/// Prefix of all annotations of the mock.
pub const PREFIX: &str = "mock.cloud-provider.example/";

/// Kind of backends: `nodes` (default), or `endpoints` if the configuration's `features.endpoints`
/// is on.
pub const BACKENDS: &str = "mock.cloud-provider.example/backends";

/// Nodes to use as backends: comma-separated `label` or `label=value`, all of which must match. The
/// labels must be the framework's own or listed in the configuration's `nodeSelectorLabels`.
/// Default: all nodes.
pub const NODE_SELECTOR: &str = "mock.cloud-provider.example/node-selector";

/// Scheme of the load balancer: `internet-facing` (default) or `internal`.
pub const SCHEME: &str = "mock.cloud-provider.example/scheme";

/// `ipMode` of the addresses in the status: `VIP` (default), `Proxy`, or `unset` to let the API
/// server choose.
pub const IP_MODE: &str = "mock.cloud-provider.example/ip-mode";

/// How long the load balancer takes to become active, as a Go duration (`5s`). Default:
/// `loadBalancerActivation` of the cloud. Used when the load balancer is created; later changes
/// have no effect.
pub const ACTIVATION_DELAY: &str = "mock.cloud-provider.example/activation-delay";

/// Identifier of the load balancer in the cloud, written by the provider. Values that others write
/// have no effect.
pub const LOAD_BALANCER_ID: &str = "mock.cloud-provider.example/load-balancer-id";

const KNOWN: [&str; 6] =
    [BACKENDS, NODE_SELECTOR, SCHEME, IP_MODE, ACTIVATION_DELAY, LOAD_BALANCER_ID];

/// The parsed annotations of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) backends: BackendKind,
    pub(super) internal: bool,
    /// `None` leaves the choice to the API server.
    pub(super) ip_mode: Option<&'static str>,
    pub(super) activation: Option<Duration>,
}

impl Options {
    /// Parses the annotations of a Service. Returns the options, and a validation error with key
    /// and value for each invalid annotation. Invalid values are replaced by harmless ones, so that
    /// all errors are found.
    pub(super) fn parse(service: &ServiceView, settings: &Settings) -> (Self, Vec<FieldError>) {
        let mut mistakes = Vec::new();
        let text = |key: &str| service.annotations.get(key).map(|text| text.trim());
        let mut add_error = |key: &str, why: &str| {
            let value = text(key).unwrap_or_default();
            mistakes.push(FieldError::new(key, format!("{value:?}: {why}")));
        };
        let endpoints = match text(BACKENDS) {
            None | Some("nodes") => false,
            Some("endpoints") if settings.features.endpoints => true,
            Some("endpoints") => {
                add_error(BACKENDS, "the cloud takes no endpoints");
                true
            }
            Some(_) => {
                add_error(BACKENDS, "must be nodes or endpoints");
                false
            }
        };
        let internal = match text(SCHEME) {
            None | Some("internet-facing") => false,
            Some("internal") => true,
            Some(_) => {
                add_error(SCHEME, "must be internet-facing or internal");
                true
            }
        };
        let ip_mode = match text(IP_MODE) {
            None | Some("VIP") => Some("VIP"),
            Some("Proxy") => Some("Proxy"),
            Some("unset") => None,
            Some(_) => {
                add_error(IP_MODE, "must be VIP, Proxy or unset");
                None
            }
        };
        let activation = match text(ACTIVATION_DELAY).map(parse_duration) {
            None => None,
            Some(Ok(delay)) => Some(delay),
            Some(Err(why)) => {
                add_error(ACTIVATION_DELAY, &why);
                None
            }
        };
        // Then combine the kind of backends with the node selector.
        let selector = text(NODE_SELECTOR).map(|text| requirements(text, settings));
        if endpoints && selector.is_some() {
            add_error(NODE_SELECTOR, "selects nodes, but the backends are endpoints");
        }
        let backends = match selector {
            Some(Err(why)) => {
                add_error(NODE_SELECTOR, &why);
                BackendKind::Nodes(Vec::new())
            }
            _ if endpoints => BackendKind::Endpoints,
            Some(Ok(requirements)) => BackendKind::Nodes(requirements),
            None => BackendKind::Nodes(Vec::new()),
        };
        (Self { backends, internal, ip_mode, activation }, mistakes)
    }
}

/// Parses `label`, `label=value`, … The result is sorted, so that the order in the annotation does
/// not matter.
fn requirements(text: &str, settings: &Settings) -> Result<Vec<LabelRequirement>, String> {
    let one = |part: &str| {
        let (key, value) = match part.split_once('=') {
            Some((key, value)) => (key.trim(), Some(value.trim())),
            None => (part.trim(), None),
        };
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(format!("{part:?} is neither label nor label=value"));
        }
        if !wk::FRAMEWORK_LABELS.contains(&key) && !settings.selects_by(key) {
            return Err(format!("label {key} is not in nodeSelectorLabels of the cloud config"));
        }
        Ok(match value {
            Some(value) => LabelRequirement::Equals(key.into(), value.into()),
            None => LabelRequirement::Exists(key.into()),
        })
    };
    let mut requirements = text.split(',').map(one).collect::<Result<Vec<_>, _>>()?;
    requirements.sort_by_cached_key(|requirement| format!("{requirement:?}"));
    requirements.dedup();
    Ok(requirements)
}

/// Returns a notice for every unknown annotation with the mock's prefix.
pub(super) fn unknown(service: &ServiceView) -> Vec<ServiceNotice> {
    let ours = service
        .annotations
        .keys()
        .filter(|key| key.starts_with(PREFIX) && !KNOWN.contains(&&***key));
    let remark = |key: &std::sync::Arc<str>| ServiceNotice {
        kind: EventType::Warning,
        reason: "UnknownAnnotation",
        note: format!("annotation {key} is unknown and has no effect").into(),
    };
    ours.map(remark).collect()
}
