//! The process in its surroundings: health and metrics, elections beside Go's client, credentials,
//! shadow mode, takeover.
//!
//! Most need a cluster for themselves, because a cloud-controller-manager serves the whole cluster.

mod auth;
mod credentials;
mod election;
mod explain;
mod metrics;
mod migration;
mod rights;
mod serving;
mod shadow;
mod takeover;

use crate::run::Case;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = takeover::cases();
    cases.extend(shadow::cases());
    cases.extend(election::cases());
    cases.extend(migration::cases());
    cases.extend(rights::cases());
    cases.extend(credentials::cases());
    cases.extend(serving::cases());
    cases.extend(auth::cases());
    cases.extend(explain::cases());
    cases.extend(metrics::cases());
    cases
        .into_iter()
        .map(|case| Case { alone: true, ..case })
        .collect()
}
