use std::{collections::BTreeSet, time::Duration};

use crate::api::Secret;

use super::TimeSource;
use crate::{octavia, state::CloudState};

/// Format of URLs in the catalog. Deployments differ, and clients must support all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CatalogForm {
    /// The usual format: with a version for compute, without one for the others.
    #[default]
    Usual,
    /// All with their version.
    Versioned,
    /// None with its version.
    Unversioned,
}

/// Settings of a local cloud. Tests change them while the cloud runs, except those that are fixed
/// or set at the start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Region of all endpoints. Default `RegionOne`. Fixed when the state is created.
    pub region: String,
    /// Password of `admin` when the state is created. Default: a random one.
    pub admin_password: Option<Secret>,
    /// Password of `demo` when the state is created. Default: a random one.
    pub member_password: Option<Secret>,
    /// Lifetime of tokens. Default an hour, as Keystone's.
    pub token_lifetime: Duration,
    /// Where the time comes from. Fixed at the start.
    pub time: TimeSource,
    /// Format of URLs in the catalog.
    pub catalog: CatalogForm,
    /// Kinds of services that this cloud lacks, such as `load-balancer`: they are not in the
    /// catalog, and nothing is at their paths.
    pub without: BTreeSet<String>,
    /// Maximum number of rows on a page. The default is that of each service: 1,000 for Nova and
    /// Octavia, no limit for Neutron.
    pub page_size: Option<usize>,
    /// Highest minor version of Nova's API 2, between 1 and 96. Default 96.
    pub nova_minor: u16,
    /// Highest minor version of Octavia's API 2. Default 30. Set at the start, and changed later in
    /// `octavia::settings`.
    pub octavia_minor: u16,
    /// How long load balancers stay in a PENDING state, in whole milliseconds. Default 500. Set at
    /// the start, and changed later in `octavia::settings`.
    pub pending: Duration,
    /// Aliases of Neutron's extensions to hide.
    pub hidden_extensions: BTreeSet<String>,
    /// Serves `/admin`: request log, faults and clock over HTTP. Default no.
    pub admin_endpoint: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            region: "RegionOne".to_owned(),
            admin_password: None,
            member_password: None,
            token_lifetime: Duration::from_secs(3600),
            time: TimeSource::default(),
            catalog: CatalogForm::default(),
            without: BTreeSet::new(),
            page_size: None,
            nova_minor: 96,
            octavia_minor: 30,
            pending: Duration::from_millis(500),
            hidden_extensions: BTreeSet::new(),
            admin_endpoint: false,
        }
    }
}

impl Settings {
    /// Applies the settings that are part of the state.
    pub(super) fn apply(&self, state: &mut CloudState) {
        octavia::settings::Settings::change(state, |octavia| {
            octavia.newest_minor = u8::try_from(self.octavia_minor).unwrap_or(u8::MAX);
            octavia.page_max = self.page_size.unwrap_or(1000);
            octavia.pending_ms = u64::try_from(self.pending.as_millis()).unwrap_or(u64::MAX);
        });
    }
}
