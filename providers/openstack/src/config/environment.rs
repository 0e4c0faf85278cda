//! The process's environment.

use std::{collections::BTreeMap, path::PathBuf};

/// Variables and folders that affect the configuration. Credentials in `OS_*` variables do not, as
/// in upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// Variables, of those in [`Self::NAMES`].
    pub variables: BTreeMap<&'static str, String>,
    /// The working directory, which is searched first for `clouds.yaml`.
    pub folder: Option<PathBuf>,
}

impl Environment {
    /// Variables that are read.
    pub const NAMES: [&str; 5] = [
        "OS_CCM_REGIONAL",
        "OCCM_WAIT_LB_ACTIVE_STEPS",
        "OS_CLOUD",
        "OS_CLIENT_CONFIG_FILE",
        "HOME",
    ];

    /// Reads the environment of the process.
    pub fn of_process() -> Self {
        let variables = Self::NAMES
            .into_iter()
            .filter_map(|name| Some((name, std::env::var(name).ok()?)))
            .collect();
        Self { variables, folder: std::env::current_dir().ok() }
    }

    /// Returns a variable, unless it is empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }
}
