//! How the service behaves: what a cloud's operator would decide, and what a test wants to happen.

use std::{collections::BTreeMap, time::Duration};

use openstack_api::octavia::Quota;
use serde::{Deserialize, Serialize};

use super::rows::Outcome;
use crate::state::{CloudState, Row};

/// Settings: one row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// How long a change takes, in milliseconds; 0 is over at the next request. Default 500.
    pub pending_ms: u64,
    /// How the next changes end, for as many as `failures` says.
    pub failure: Outcome,
    /// How many changes end as `failure` says. Default 0.
    pub failures: u32,
    /// Newest minor version that is offered, 0 to 30. What is newer is an unknown attribute. Default 30.
    pub newest_minor: u8,
    /// Provider drivers by name.
    pub providers: BTreeMap<String, Driver>,
    /// Provider driver of a load balancer that names none. Default `amphora`.
    pub default_provider: String,
    /// Limits of a project that has none of its own; none is no limit.
    pub default_quota: Quota,
    /// Most resources on a page. Default 1,000, as Octavia's.
    pub page_max: usize,
    /// Sockets carry the traffic, and report. When false, all that is switched on is taken to work.
    pub reported: bool,
}

/// What a provider driver can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Driver {
    /// As `amphora`: a proxy with HTTP and TLS.
    Amphora,
    /// As `ovn`: forwards packets.
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
    /// Returns the settings in force.
    pub fn of(state: &CloudState) -> Self {
        state.octavia.settings.get("settings").map_or_else(Self::default, |row| Self::clone(row))
    }

    /// Changes the settings.
    pub fn change(state: &mut CloudState, change: impl FnOnce(&mut Self)) {
        let mut settings = Self::of(state);
        change(&mut settings);
        state.octavia.settings.put(settings);
    }

    /// How long a change takes.
    pub fn pending(&self) -> Duration {
        Duration::from_millis(self.pending_ms)
    }
}
