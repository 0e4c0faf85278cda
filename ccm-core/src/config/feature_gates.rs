//! Feature gates: those of a Go cloud-controller-manager 1.37, so that a manifest that sets one
//! still works.

use std::collections::BTreeMap;

use super::ConfigError;

/// Maturity of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureStage {
    /// May change or be removed; off by default.
    Alpha,
    /// Complete.
    Beta,
    /// Permanent.
    GeneralAvailability,
    /// To be removed.
    Deprecated,
}

/// A feature gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeatureGate {
    /// Name, as in `--feature-gates`.
    pub name: &'static str,
    /// Maturity of the feature.
    pub stage: FeatureStage,
    /// Value when the gate is not set.
    pub default: bool,
    /// True if it can only be set to its default.
    pub locked: bool,
    /// True if the gate changes anything in this framework. The others are known because the Go
    /// program links the API server's library, which registers them.
    pub has_effect: bool,
}

/// Routes are reconciled after node changes instead of by a timer.
pub const WATCH_BASED_ROUTES: &str = "CloudControllerManagerWatchBasedRoutesReconciliation";
/// Additional labels from the cloud are updated together with the addresses of a node. Proposed
/// upstream for 1.38 (kubernetes/kubernetes#141616).
pub const ADDITIONAL_LABELS_RECONCILIATION: &str = "CloudNodeAdditionalLabelsReconciliation";
/// Allows logging flags of alpha quality.
pub const LOGGING_ALPHA_OPTIONS: &str = "LoggingAlphaOptions";

const ALL_ALPHA: &str = "AllAlpha";
const ALL_BETA: &str = "AllBeta";

const fn gate(name: &'static str, stage: FeatureStage, default: bool) -> FeatureGate {
    FeatureGate { name, stage, default, locked: false, has_effect: false }
}

const fn alpha(name: &'static str) -> FeatureGate {
    gate(name, FeatureStage::Alpha, false)
}

const fn beta(name: &'static str) -> FeatureGate {
    gate(name, FeatureStage::Beta, true)
}

impl FeatureGate {
    const fn locked(mut self) -> Self {
        self.locked = true;
        self
    }

    const fn with_effect(mut self) -> Self {
        self.has_effect = true;
        self
    }
}

/// All gates, sorted by name within their group. After implementing a gate, add `.with_effect()`.
pub static GATES: &[FeatureGate] = &[
    // The cloud-controller-manager's own.
    alpha(WATCH_BASED_ROUTES).with_effect(),
    alpha("CloudControllerManagerWebhook"),
    alpha(ADDITIONAL_LABELS_RECONCILIATION).with_effect(),
    alpha("ControllerManagerReleaseLeaderElectionLockOnExit"),
    // Logging and metrics.
    beta("ContextualLogging"),
    alpha(LOGGING_ALPHA_OPTIONS).with_effect(),
    beta("LoggingBetaOptions"),
    beta("NativeHistograms"),
    // Groups of gates.
    alpha(ALL_ALPHA).with_effect(),
    gate(ALL_BETA, FeatureStage::Beta, false).with_effect(),
    // The API server's.
    alpha("APIServerWebhookAuthenticationToken"),
    alpha("APIServingWithRoutine"),
    alpha("CBORServingAndStorage"),
    alpha("ConsistentListFromCacheSkipTimeoutFallback"),
    alpha("ShardedListAndWatch"),
    alpha("StorageVersionAPI"),
    gate("CoordinatedLeaderElection", FeatureStage::Beta, false),
    beta("APIResponseCompression"),
    beta("APIServerIdentity"),
    beta("AllowParsingUserUIDFromCertAuth"),
    beta("AllowUnsafeMalformedObjectDeletion"),
    beta("ComponentFlagz"),
    beta("ComponentStatusz"),
    beta("ConcurrentWatchObjectDecode"),
    beta("ConstrainedImpersonation"),
    beta("DeclarativeValidationBeta"),
    beta("DetectCacheInconsistency"),
    beta("EtcdRangeStream"),
    beta("ExcludeAdmissionWebhookVirtualResources"),
    beta("ListFromCacheSnapshot"),
    beta("ManifestBasedAdmissionControlConfig"),
    beta("OpenAPIEnums"),
    beta("RemoteRequestHeaderUID"),
    beta("SizeBasedListCostEstimate"),
    beta("StorageVersionHash"),
    beta("StructuredAuthenticationConfigurationEgressSelector"),
    beta("StructuredAuthenticationConfigurationJWKSMetrics"),
    beta("TokenRequestServiceAccountUIDValidation"),
    beta("UnauthenticatedHTTP2DOSMitigation"),
    beta("UnknownVersionInteroperabilityProxy"),
    beta("WatchList"),
    beta("WatchListCompression"),
    beta("WebhookRoundTripLoadBalancing"),
    gate("DeclarativeValidation", FeatureStage::GeneralAvailability, true).locked(),
    gate("MutatingAdmissionPolicy", FeatureStage::GeneralAvailability, true),
    gate("WatchCacheInitializationPostStartHook", FeatureStage::GeneralAvailability, true).locked(),
    gate("AggregatedDiscoveryRemoveBetaType", FeatureStage::Deprecated, true).locked(),
    gate("DeclarativeValidationTakeover", FeatureStage::Deprecated, false).locked(),
    gate("KMSv1", FeatureStage::Deprecated, false),
    gate("SeparateCacheWatchRPC", FeatureStage::Deprecated, false).locked(),
];

/// The values of the feature gates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeatureGates {
    set: BTreeMap<&'static str, bool>,
}

impl FeatureGates {
    /// Applies `--feature-gates` to the defaults. `AllAlpha` and `AllBeta` set each gate of their
    /// stage that is not set by name.
    ///
    /// # Errors
    ///
    /// One for each gate that does not exist, and one for each locked gate that would differ from
    /// its default.
    pub(super) fn new(flag: &BTreeMap<String, bool>) -> Result<Self, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut set = BTreeMap::new();
        for (name, &value) in flag {
            let reason = match GATES.iter().find(|gate| gate.name == name) {
                None => "unrecognized feature gate".to_owned(),
                Some(gate) if gate.locked && gate.default != value => {
                    format!("cannot be set, the gate is locked to {}", gate.default)
                }
                Some(gate) => {
                    set.insert(gate.name, value);
                    continue;
                }
            };
            errors.push(ConfigError::FeatureGate { name: name.clone(), value, reason });
        }
        for (group, stage) in [(ALL_ALPHA, FeatureStage::Alpha), (ALL_BETA, FeatureStage::Beta)] {
            if let Some(&value) = set.get(group) {
                for gate in GATES.iter().filter(|gate| gate.stage == stage) {
                    set.entry(gate.name).or_insert(value);
                }
            }
        }
        if errors.is_empty() {
            Ok(Self { set })
        } else {
            Err(errors)
        }
    }

    /// Returns true if a gate is on; a gate that does not exist is off.
    pub fn is_enabled(&self, name: &str) -> bool {
        if let Some(&enabled) = self.set.get(name) {
            return enabled;
        }
        GATES.iter().any(|gate| gate.name == name && gate.default)
    }
}

/// Lists the gates that can be set, as upstream does: name, values, stage and default. Gates of the
/// API server's library, which have no effect here, are marked as such.
pub(super) fn options() -> impl Iterator<Item = String> {
    let mut gates: Vec<&FeatureGate> = GATES
        .iter()
        .filter(|gate| matches!(gate.stage, FeatureStage::Alpha | FeatureStage::Beta))
        .filter(|gate| !gate.locked)
        .collect();
    gates.sort_by_key(|gate| (!gate.has_effect, gate.name));
    gates.into_iter().map(|gate| {
        let stage = if gate.stage == FeatureStage::Alpha {
            "ALPHA"
        } else {
            "BETA"
        };
        let effect = if gate.has_effect {
            ""
        } else {
            ", no effect here"
        };
        format!("{}=true|false ({stage} - default={}{effect})", gate.name, gate.default)
    })
}

/// Returns warnings about gates that differ from their default and have no effect here.
pub(super) fn warnings(flag: &BTreeMap<String, bool>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (name, &value) in flag {
        let without_effect = GATES
            .iter()
            .any(|gate| gate.name == name && gate.default != value && !gate.has_effect);
        if without_effect {
            warnings.push(format!("--feature-gates={name}={value} has no effect in this program"));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEBHOOK: &str = "CloudControllerManagerWebhook";

    fn gates(wanted: &[(&str, bool)]) -> Result<FeatureGates, Vec<ConfigError>> {
        FeatureGates::new(
            &wanted
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
        )
    }

    #[test]
    fn defaults_hold_until_set() {
        let none = gates(&[]).unwrap();
        for gate in GATES {
            assert_eq!(none.is_enabled(gate.name), gate.default, "{}", gate.name);
        }
        assert!(!none.is_enabled("NoSuchGate"));
        assert!(gates(&[(WEBHOOK, true)]).unwrap().is_enabled(WEBHOOK));
        assert!(
            !gates(&[("WatchList", false)])
                .unwrap()
                .is_enabled("WatchList")
        );
    }

    #[test]
    fn groups_set_what_is_not_set_by_name() {
        let set =
            gates(&[("AllAlpha", true), (WEBHOOK, false), ("AllBeta", false), ("WatchList", true)])
                .unwrap();
        assert!(set.is_enabled(WATCH_BASED_ROUTES));
        assert!(set.is_enabled(LOGGING_ALPHA_OPTIONS));
        assert!(!set.is_enabled(WEBHOOK));
        assert!(!set.is_enabled("ContextualLogging"));
        assert!(set.is_enabled("WatchList"));
        assert!(set.is_enabled("DeclarativeValidation"), "neither alpha nor beta");
    }

    #[test]
    fn locked_and_unknown_gates_are_errors() {
        for gate in GATES.iter().filter(|gate| gate.locked) {
            assert!(gates(&[(gate.name, gate.default)]).is_ok(), "{}", gate.name);
            let errors = gates(&[(gate.name, !gate.default)]).unwrap_err();
            assert!(errors[0].to_string().contains(gate.name), "{errors:?}");
        }
        let errors = gates(&[("NoSuchGate", true), ("NorThis", false)]).unwrap_err();
        assert_eq!(errors.len(), 2);
        assert_eq!(
            errors[1].to_string(),
            "--feature-gates=NorThis=false: unrecognized feature gate"
        );
    }

    #[test]
    fn options_have_stage_and_default_and_those_with_effect_come_first() {
        let options: Vec<String> = options().collect();
        assert_eq!(options[0], "AllAlpha=true|false (ALPHA - default=false)");
        assert!(
            options.contains(&format!("{WATCH_BASED_ROUTES}=true|false (ALPHA - default=false)")),
            "{options:?}"
        );
        let idle = |option: &&String| option.ends_with(", no effect here)");
        assert_eq!(
            options.iter().find(idle).unwrap(),
            "APIResponseCompression=true|false (BETA - default=true, no effect here)"
        );
        assert!(
            options
                .iter()
                .skip_while(|option| !idle(option))
                .all(|option| idle(&option))
        );
        assert!(!options.iter().any(|option| option.starts_with("KMSv1")), "deprecated");
    }

    #[test]
    fn names_are_unique() {
        for gate in GATES {
            assert_eq!(
                GATES.iter().filter(|other| other.name == gate.name).count(),
                1,
                "{}",
                gate.name
            );
        }
    }

    #[test]
    fn gates_without_effect_are_named_in_a_warning() {
        let wanted = BTreeMap::from([("WatchList".to_owned(), false), ("KMSv1".to_owned(), false)]);
        assert_eq!(
            warnings(&wanted),
            ["--feature-gates=WatchList=false has no effect in this program"]
        );
    }
}
