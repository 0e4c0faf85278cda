//! What is logged and served at `/flagz` about the flags: their values, and warnings about flags
//! without effect.
//!
//! Nothing is hidden: values of flags are file names, addresses and numbers, never secrets.

use std::collections::BTreeSet;

use super::{
    Config, FlagValue, Product, ReportFormat, controller_names, feature_gates,
    flags::{self, FlagSupport},
    leader_migration, validate,
};

/// Name prefixes of flags that are ignored in shadow mode.
const FLAGS_IGNORED_IN_SHADOW: [&str; 2] = ["leader-elect", "use-service-account-credentials"];

/// Prefix of the flags that name the Lease. An adoption report reads it, to say who leads.
const LEASE_FLAGS: &str = "leader-elect-resource-";

/// Sets the list of flags and the warnings.
pub(super) fn fill(product: &Product, config: &mut Config, used: &BTreeSet<&'static str>) {
    let mut values = Vec::new();
    let mut warnings = feature_gates::warnings(&config.raw.feature_gates);
    warnings.extend(validate::tls_warnings(config));
    for flag in flags::all(product) {
        let value = flag.target.render(config, flag.name);
        let changed = value != flag.default;
        if changed && let FlagSupport::NoEffect(reason) = flag.support {
            warnings.push(format!("--{}={value} has no effect: {reason}", flag.name));
        }
        if config.shadow.is_on()
            && used.contains(flag.name)
            && FLAGS_IGNORED_IN_SHADOW
                .iter()
                .any(|prefix| flag.name.starts_with(prefix))
            && !(config.shadow.report != ReportFormat::None && flag.name.starts_with(LEASE_FLAGS))
        {
            warnings.push(format!(
                "--{}={value} has no effect in shadow mode, which takes no lease and writes nothing",
                flag.name
            ));
        }
        if let Some(advice) = flag.deprecated
            && used.contains(flag.name)
        {
            warnings.push(format!("--{} is deprecated: {advice}", flag.name));
        }
        values.push(FlagValue { name: flag.name, value, changed });
    }
    warnings.extend(leader_migration::ignored_file_flag(config).map(str::to_owned));
    let ipam = controller_names::NODE_IPAM;
    if config.node_ipam.allocate_node_cidrs && !config.generic.controllers.is_enabled(ipam) {
        warnings.push(format!(
            "--allocate-node-cidrs=true allocates nothing here, because the controller {ipam} does not run: leave the \
             allocation to kube-controller-manager, or name the controller with --controllers=*,{ipam}"
        ));
    }
    values.sort_by_key(|value| value.name);
    config.flags = values;
    config.warnings = warnings;
}
