//! The annotations of Services that the mock reads and writes.

use std::time::Duration;

use ccm_core::{
    k8s::{ServiceView, well_known},
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

/// Time until the load balancer is active, as a Go duration (`5s`). Default:
/// `loadBalancerActivation` of the cloud. Used when the load balancer is created. Later changes
/// have no effect.
pub const ACTIVATION_DELAY: &str = "mock.cloud-provider.example/activation-delay";

/// Identifier of the load balancer in the cloud, written by the provider. Values that others write
/// have no effect.
pub const LOAD_BALANCER_ID: &str = "mock.cloud-provider.example/load-balancer-id";

const KNOWN: [&str; 6] =
    [BACKENDS, NODE_SELECTOR, SCHEME, IP_MODE, ACTIVATION_DELAY, LOAD_BALANCER_ID];

/// The parsed annotations of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceOptions {
    pub(super) backends: BackendKind,
    /// True for the scheme `internal`.
    pub(super) internal: bool,
    /// `ipMode` of the addresses; `None` to let the API server choose.
    pub(super) ip_mode: Option<&'static str>,
    /// Time until a new load balancer is active; `None` for the default of the cloud.
    pub(super) activation_delay: Option<Duration>,
}

impl ServiceOptions {
    /// Parses the annotations of a Service. Returns the options, and a validation error with key
    /// and value for each invalid annotation.
    ///
    /// In place of each invalid value, the options have a harmless one. An invalid scheme becomes
    /// `internal`, which exposes the Service the least, and an invalid IP mode `None`, which leaves
    /// the choice to the API server. Endpoints that the cloud does not support stay endpoints, so
    /// that a node selector beside them is an error too. All others get their default.
    pub(super) fn parse(service: &ServiceView, settings: &Settings) -> (Self, Vec<FieldError>) {
        let mut annotations = AnnotationReader { service, errors: Vec::new() };
        let uses_endpoints = match annotations.text(BACKENDS) {
            None | Some("nodes") => false,
            Some("endpoints") if settings.features.endpoints => true,
            Some("endpoints") => {
                annotations.add_error(BACKENDS, "the cloud does not support endpoints");
                true
            }
            Some(_) => {
                annotations.add_error(BACKENDS, "must be nodes or endpoints");
                false
            }
        };
        let internal = match annotations.text(SCHEME) {
            None | Some("internet-facing") => false,
            Some("internal") => true,
            Some(_) => {
                annotations.add_error(SCHEME, "must be internet-facing or internal");
                true
            }
        };
        let ip_mode = match annotations.text(IP_MODE) {
            None | Some("VIP") => Some("VIP"),
            Some("Proxy") => Some("Proxy"),
            Some("unset") => None,
            Some(_) => {
                annotations.add_error(IP_MODE, "must be VIP, Proxy or unset");
                None
            }
        };
        let activation_delay = match annotations.text(ACTIVATION_DELAY).map(parse_duration) {
            None => None,
            Some(Ok(delay)) => Some(delay),
            Some(Err(reason)) => {
                annotations.add_error(ACTIVATION_DELAY, &reason);
                None
            }
        };
        let backends = annotations.parse_backends(uses_endpoints, settings);
        (Self { backends, internal, ip_mode, activation_delay }, annotations.errors)
    }
}

/// Reads annotations and collects the errors of their values.
struct AnnotationReader<'a> {
    service: &'a ServiceView,
    errors: Vec<FieldError>,
}

impl<'a> AnnotationReader<'a> {
    fn text(&self, key: &str) -> Option<&'a str> {
        self.service.annotations.get(key).map(|text| text.trim())
    }

    fn add_error(&mut self, key: &str, message: &str) {
        let value = self.text(key).unwrap_or_default();
        let error = FieldError::new(key, format!("{value:?}: {message}"));
        self.errors.push(error);
    }

    /// Returns the kind of backends, with the requirements of the node selector.
    fn parse_backends(&mut self, uses_endpoints: bool, settings: &Settings) -> BackendKind {
        let Some(selector) = self.text(NODE_SELECTOR) else {
            return if uses_endpoints {
                BackendKind::Endpoints
            } else {
                BackendKind::Nodes(Vec::new())
            };
        };
        if uses_endpoints {
            self.add_error(NODE_SELECTOR, "selects nodes, but the backends are endpoints");
        }
        match parse_requirements(selector, settings) {
            Ok(_) if uses_endpoints => BackendKind::Endpoints,
            Ok(requirements) => BackendKind::Nodes(requirements),
            Err(reason) => {
                self.add_error(NODE_SELECTOR, &reason);
                BackendKind::Nodes(Vec::new())
            }
        }
    }
}

/// Parses a comma-separated list of `label` and `label=value`. The result is sorted, so that the
/// order in the annotation does not matter.
fn parse_requirements(text: &str, settings: &Settings) -> Result<Vec<LabelRequirement>, String> {
    let mut requirements = Vec::new();
    for part in text.split(',') {
        requirements.push(parse_requirement(part, settings)?);
    }
    requirements.sort_by_cached_key(|requirement| format!("{requirement:?}"));
    requirements.dedup();
    Ok(requirements)
}

fn parse_requirement(text: &str, settings: &Settings) -> Result<LabelRequirement, String> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key.trim(), Some(value.trim())),
        None => (text.trim(), None),
    };
    if key.is_empty() || key.contains(char::is_whitespace) {
        return Err(format!("{text:?} does not have the form label or label=value"));
    }
    if !well_known::FRAMEWORK_LABELS.contains(&key) && !settings.allows_selector_label(key) {
        return Err(format!("label {key} is not in nodeSelectorLabels of the cloud config"));
    }
    Ok(match value {
        Some(value) => LabelRequirement::Equals(key.into(), value.into()),
        None => LabelRequirement::Exists(key.into()),
    })
}

/// Returns a notice for every unknown annotation with the mock's prefix.
pub(super) fn unknown_annotation_notices(service: &ServiceView) -> Vec<ServiceNotice> {
    let mut notices = Vec::new();
    for key in service.annotations.keys() {
        if key.starts_with(PREFIX) && !KNOWN.contains(&&**key) {
            notices.push(ServiceNotice {
                kind: EventType::Warning,
                reason: "UnknownAnnotation",
                note: format!("annotation {key} is unknown and has no effect").into(),
            });
        }
    }
    notices
}
