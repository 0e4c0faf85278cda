//! What an operator installs: the manifests of `rbac/` and the Helm chart, on a real control plane.

mod chart;
mod commands;
pub(crate) mod rbac;

use crate::run::Case;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = rbac::cases();
    cases.extend(chart::cases());
    cases.extend(commands::cases());
    cases
        .into_iter()
        .map(|case| Case { alone: true, ..case })
        .collect()
}
