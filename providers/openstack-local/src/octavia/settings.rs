//! Settings of the service: those of a cloud's operator, and those with which a test controls what
//! happens.

use std::{collections::BTreeMap, time::Duration};

use crate::api::octavia::Quota;
use serde::{Deserialize, Serialize};

use super::rows::Outcome;
use crate::state::{CloudState, Row};

/// Settings: one row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// How long a change takes, in milliseconds; with 0 it ends at the next request. Default 500.
    pub pending_ms: u64,
    /// How the next `failures` changes end.
    pub failure: Outcome,
    /// How many changes end in `failure`. Default 0.
    pub failures: u32,
    /// Newest minor API version that is offered, 0 to 30. Attributes of newer versions are unknown.
    /// Default 30.
    pub newest_minor: u8,
    /// Provider drivers by name.
    pub providers: BTreeMap<String, Driver>,
    /// Provider driver of load balancers that name none. Default `amphora`.
    pub default_provider: String,
    /// Limits of projects that have none of their own; an absent limit is no limit.
    pub default_quota: Quota,
    /// Maximum number of resources on a page. Default 1,000, as in Octavia.
    pub page_max: usize,
    /// True when only an administrator may fail over a load balancer, as by Octavia's default
    /// policy. Default true.
    pub failover_needs_admin: bool,
    /// True when sockets carry the traffic and report. Otherwise everything that is enabled counts
    /// as working.
    pub reported: bool,
}

/// Capabilities of a provider driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Driver {
    /// Like `amphora`: a proxy with HTTP and TLS.
    Amphora,
    /// Like `ovn`: forwards packets.
    Ovn,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pending_ms: 500,
            failure: Outcome::Good,
            failures: 0,
            newest_minor: 30,
            providers: BTreeMap::from([
                ("amphora".to_owned(), Driver::Amphora),
                ("octavia".to_owned(), Driver::Amphora),
                ("ovn".to_owned(), Driver::Ovn),
            ]),
            default_provider: "amphora".to_owned(),
            default_quota: Quota::default(),
            page_max: 1000,
            failover_needs_admin: true,
            reported: false,
        }
    }
}

impl Row for Settings {
    const TABLE: &'static str = "octavia_settings";

    fn key(&self) -> &'static str {
        "settings"
    }
}

impl Settings {
    /// Returns the current settings.
    pub fn of(state: &CloudState) -> Self {
        state
            .octavia
            .settings
            .get("settings")
            .map_or_else(Self::default, |row| Self::clone(row))
    }

    /// Changes the settings.
    pub fn change(state: &mut CloudState, change: impl FnOnce(&mut Self)) {
        let mut settings = Self::of(state);
        change(&mut settings);
        state.octavia.settings.put(settings);
    }

    /// Returns how long a change takes.
    pub fn pending(&self) -> Duration {
        Duration::from_millis(self.pending_ms)
    }
}
