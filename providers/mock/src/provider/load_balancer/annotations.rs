//! The annotations of Services that the mock reads and writes.

use std::time::Duration;

use ccm_core::{
    k8s::{ServiceView, well_known as wk},
    provider::{BackendKind, EventType, FieldError, LabelRequirement, ServiceNotice},
};

use super::super::Settings;
use crate::config::parse_duration;

/// What all annotations of the mock begin with.
pub const PREFIX: &str = "mock.cloud-provider.example/";

/// What is behind the balancer: `nodes` (default), or `endpoints` where the configuration's `features.endpoints` is on.
pub const BACKENDS: &str = "mock.cloud-provider.example/backends";

/// Which nodes are behind the balancer: comma-separated `label` or `label=value`, all of which a node must have. The
/// labels are the framework's own or in the configuration's `nodeSelectorLabels`. Default: every node.
pub const NODE_SELECTOR: &str = "mock.cloud-provider.example/node-selector";

/// Who reaches the balancer: `internet-facing` (default) or `internal`.
pub const SCHEME: &str = "mock.cloud-provider.example/scheme";

/// `ipMode` of the addresses in the status: `VIP` (default), `Proxy`, or `unset`, so that the API server chooses.
pub const IP_MODE: &str = "mock.cloud-provider.example/ip-mode";

/// How long the balancer takes to become active, as a Go duration (`5s`). Default: `loadBalancerActivation` of the
/// cloud. Counts when the balancer is created and has no effect later.
pub const ACTIVATION_DELAY: &str = "mock.cloud-provider.example/activation-delay";

/// Written by the provider: identifier of the balancer in the cloud. What others write there has no effect.
pub const LOAD_BALANCER_ID: &str = "mock.cloud-provider.example/load-balancer-id";

const KNOWN: [&str; 6] = [BACKENDS, NODE_SELECTOR, SCHEME, IP_MODE, ACTIVATION_DELAY, LOAD_BALANCER_ID];

/// What a Service says in annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) backends: BackendKind,
    pub(super) internal: bool,
    /// `None` leaves the choice to the API server.
    pub(super) ip_mode: Option<&'static str>,
    pub(super) activation: Option<Duration>,
}

impl Options {
    /// Reads the annotations of a Service: what they say, and every mistake with key and value. What is wrong is replaced
    /// by something harmless, so that whatever else is wrong can be found too.
    pub(super) fn parse(service: &ServiceView, settings: &Settings) -> (Self, Vec<FieldError>) {
        let mut mistakes = Vec::new();
        let text = |key: &str| service.annotations.get(key).map(|text| text.trim());
        let mut wrong = |key: &str, why: &str| {
            let value = text(key).unwrap_or_default();
            mistakes.push(FieldError::new(key, format!("{value:?}: {why}")));
        };
        let endpoints = match text(BACKENDS) {
            None | Some("nodes") => false,
            Some("endpoints") if settings.features.endpoints => true,
            Some("endpoints") => {
                wrong(BACKENDS, "the cloud takes no endpoints");
                true
            }
            Some(_) => {
                wrong(BACKENDS, "must be nodes or endpoints");
                false
            }
        };
        let internal = match text(SCHEME) {
            None | Some("internet-facing") => false,
            Some("internal") => true,
            Some(_) => {
                wrong(SCHEME, "must be internet-facing or internal");
                true
            }
        };
        let ip_mode = match text(IP_MODE) {
            None | Some("VIP") => Some("VIP"),
            Some("Proxy") => Some("Proxy"),
            Some("unset") => None,
            Some(_) => {
                wrong(IP_MODE, "must be VIP, Proxy or unset");
                None
            }
        };
        let activation = match text(ACTIVATION_DELAY).map(parse_duration) {
            None => None,
            Some(Ok(delay)) => Some(delay),
            Some(Err(why)) => {
                wrong(ACTIVATION_DELAY, &why);
                None
            }
        };
        let selector = text(NODE_SELECTOR).map(|text| requirements(text, settings));
        if endpoints && selector.is_some() {
            wrong(NODE_SELECTOR, "selects nodes, but the backends are endpoints");
        }
        let backends = match selector {
            Some(Err(why)) => {
                wrong(NODE_SELECTOR, &why);
                BackendKind::Nodes(Vec::new())
            }
            _ if endpoints => BackendKind::Endpoints,
            Some(Ok(requirements)) => BackendKind::Nodes(requirements),
            None => BackendKind::Nodes(Vec::new()),
        };
        (Self { backends, internal, ip_mode, activation }, mistakes)
    }
}

/// Parses `label`, `label=value`, … Sorted, so that the order in which they are written does not matter.
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

/// Returns a remark for every annotation that begins as the mock's do and is none of them.
pub(super) fn unknown(service: &ServiceView) -> Vec<ServiceNotice> {
    let ours = service.annotations.keys().filter(|key| key.starts_with(PREFIX) && !KNOWN.contains(&&***key));
    let remark = |key: &std::sync::Arc<str>| ServiceNotice {
        kind: EventType::Warning,
        reason: "UnknownAnnotation",
        note: format!("annotation {key} is unknown and has no effect").into(),
    };
    ours.map(remark).collect()
}
