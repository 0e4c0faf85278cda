//! Services, routes and pod CIDRs.
//!
//! A cloud-controller-manager serves the Services of the whole cluster. So each scenario has an
//! embedded server of its own, and a real one for itself while it runs.

mod crash;
mod finalizers;
mod ipam;
mod lifecycle;
mod routes;
mod rules;
mod scale;

use crate::run::Case;

/// Flags of most scenarios: the periodic update of nodes is another subject.
const FLAGS: [&str; 1] = ["--node-status-update-frequency=10m"];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = crash::cases();
    cases.extend(scale::cases());
    cases.extend(lifecycle::cases());
    cases.extend(finalizers::cases());
    cases.extend(rules::cases());
    cases.extend(routes::cases());
    cases.extend(ipam::cases());
    cases
        .into_iter()
        .map(|case| Case { alone: true, ..case })
        .collect()
}
