//! Leader migration (KEP-2436): which controllers run under which lock while they move from one
//! controller manager to another.
//!
//! The file of `--leader-migration-config` is that of Go's controller managers, and one file may
//! serve all of them. Controller names are compared after aliases are resolved: the built-in list
//! of Go's framework uses the names `service-controller` and `route-controller`, which its own
//! cloud-controller-manager does not use, and which it therefore does not protect.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Config, ControllerInfo,
    yaml_file::{self, FileError},
};
use crate::{config::controller_names, k8s::well_known};

const GROUP: &str = "controllermanager.config.k8s.io";
const KIND: &str = "LeaderMigrationConfiguration";
/// The only supported resource of a lock.
const LOCK: &str = "leases";
/// Component that means any controller manager.
const ANY: &str = "*";
/// The name of the built-in list's Lease, and the controllers in that list: those that used to run
/// in kube-controller-manager.
const DEFAULT_LEADER_NAME: &str = "cloud-provider-extraction-migration";
const DEFAULT_CONTROLLERS: [&str; 3] =
    ["route-controller", "service-controller", "cloud-node-lifecycle-controller"];
/// kube-controller-manager's names of controllers that have another name here.
const KUBE_CONTROLLER_MANAGER_NAMES: [(&str, &str); 2] = [
    ("service-controller", controller_names::SERVICE_LB),
    ("route-controller", controller_names::NODE_ROUTE),
];

/// The lock under which a controller runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerLock {
    /// The main Lease, which every controller needs without migration.
    Main,
    /// The Lease that the participants of the migration share; needed in addition to the main one.
    Migration,
    /// It runs in another controller manager.
    OtherManager,
}

/// A migration that this process takes part in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderMigration {
    /// The name of the Lease that the participants share, in the namespace of the main Lease.
    pub leader_name: String,
    /// The controllers by their names in the file, and the components that run them.
    leaders: Vec<Leader>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Leader {
    name: String,
    component: String,
}

impl Default for LeaderMigration {
    /// The built-in list of Go's framework.
    fn default() -> Self {
        let leaders = DEFAULT_CONTROLLERS
            .map(|name| Leader { name: name.to_owned(), component: ANY.to_owned() })
            .to_vec();
        Self { leader_name: DEFAULT_LEADER_NAME.to_owned(), leaders }
    }
}

impl LeaderMigration {
    /// Loads the migration that the flags configure; `None` without migration, and without leader
    /// election, which it requires.
    ///
    /// # Errors
    /// Names the file, and each invalid field.
    pub fn load(config: &Config, known: &[ControllerInfo]) -> Result<Option<Self>, FileError> {
        if config.leader_election.enabled {
            Self::read(config, known)
        } else {
            Ok(None)
        }
    }

    /// Loads the migration that the flags configure, whether leader election is enabled or not.
    fn read(config: &Config, known: &[ControllerInfo]) -> Result<Option<Self>, FileError> {
        if !config.leader_migration.enabled {
            return Ok(None);
        }
        let Some(path) = &config.leader_migration.config_file else {
            return Ok(Some(Self::default()));
        };
        yaml_file::load("leader-migration-config", path, |text| {
            let migration = Self::parse(text, known)?;
            if migration.leader_name == config.leader_election.resource_name {
                return Err(vec![format!(
                    "leaderName: {:?} is the main lock's name (--leader-elect-resource-name)",
                    migration.leader_name
                )]);
            }
            Ok(migration)
        })
        .map(Some)
    }

    pub(crate) fn parse(text: &str, known: &[ControllerInfo]) -> Result<Self, Vec<String>> {
        yaml_file::decode::<ConfigFile>(text)?.check(known)
    }

    /// Returns what `/configz` shows, in version `v1alpha1`. All fields are empty without
    /// migration, and also if the file cannot be used, because the process does not start its
    /// controllers then.
    pub(super) fn configz(config: &Config, known: &[ControllerInfo]) -> Value {
        let Ok(Some(migration)) = Self::read(config, known) else {
            return json!({"leaderName": "", "resourceLock": "", "controllerLeaders": null});
        };
        let leaders: Vec<_> = migration
            .leaders
            .iter()
            .map(|leader| json!({"name": leader.name, "component": leader.component}))
            .collect();
        json!({
            "leaderName": migration.leader_name,
            "resourceLock": LOCK,
            "controllerLeaders": if leaders.is_empty() { Value::Null } else { leaders.into() },
        })
    }

    /// Returns the lock under which the cloud-controller-manager runs a controller, given its
    /// canonical name.
    pub fn lock(&self, controller: &str, known: &[ControllerInfo]) -> ControllerLock {
        self.lock_in(well_known::COMPONENT_MANAGER, controller, known)
    }

    fn lock_in(
        &self,
        component: &str,
        controller: &str,
        known: &[ControllerInfo],
    ) -> ControllerLock {
        match self
            .leaders
            .iter()
            .find(|leader| canonical_name(&leader.name, known) == controller)
        {
            None => ControllerLock::Main,
            Some(leader) if leader.component == component || leader.component == ANY => {
                ControllerLock::Migration
            }
            Some(_) => ControllerLock::OtherManager,
        }
    }

    /// Returns names, for this manager or for any manager, that match none of its controllers. They
    /// may be another manager's controllers.
    pub fn unknown<'a>(&'a self, known: &'a [ControllerInfo]) -> impl Iterator<Item = &'a str> {
        let ours = |leader: &&Leader| {
            leader.component == ANY || leader.component == well_known::COMPONENT_MANAGER
        };
        let names = self
            .leaders
            .iter()
            .filter(ours)
            .map(|leader| leader.name.as_str());
        names.filter(|name| {
            !known
                .iter()
                .any(|info| info.name == canonical_name(name, known))
        })
    }
}

/// Returns the canonical name of the controller `name` in the file.
fn canonical_name<'a>(name: &'a str, known: &[ControllerInfo]) -> &'a str {
    let old = KUBE_CONTROLLER_MANAGER_NAMES
        .iter()
        .find(|(old, _)| *old == name)
        .map(|(_, new)| *new);
    old.or_else(|| {
        known
            .iter()
            .find(|info| info.aliases.contains(&name))
            .map(|info| info.name)
    })
    .unwrap_or(name)
}

/// The file. Its fields depend on the version, so all of them are read and checked afterwards.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ConfigFile {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    leader_name: String,
    resource_lock: Option<String>,
    controller_leaders: Option<Vec<LeaderEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaderEntry {
    #[serde(default)]
    name: String,
    #[serde(default)]
    component: String,
}

impl ConfigFile {
    fn check(self, known: &[ControllerInfo]) -> Result<LeaderMigration, Vec<String>> {
        let mut problems = Vec::new();
        let version = self
            .api_version
            .strip_prefix(GROUP)
            .and_then(|rest| rest.strip_prefix('/'));
        if !matches!(version, Some("v1" | "v1beta1" | "v1alpha1")) {
            problems.push(format!(
                "apiVersion: {:?} is none of {GROUP}/v1, /v1beta1 and /v1alpha1",
                self.api_version
            ));
        }
        if self.kind != KIND {
            problems.push(format!("kind: {:?} is not {KIND:?}", self.kind));
        }
        if self.leader_name.is_empty() {
            problems.push("leaderName: must be set".to_owned());
        }
        if let Some(lock) = &self.resource_lock {
            if version == Some("v1") {
                problems.push("resourceLock: there is no such field in v1".to_owned());
            } else if lock != LOCK {
                problems
                    .push(format!("resourceLock: {lock:?} is not supported, only \"leases\" is"));
            }
        }
        let entries = self.controller_leaders.unwrap_or_default();
        for (index, entry) in entries.iter().enumerate() {
            for (field, value) in [("name", &entry.name), ("component", &entry.component)] {
                if value.is_empty() {
                    problems.push(format!("controllerLeaders[{index}].{field}: must be set"));
                }
            }
            // Two entries for one controller must not contradict each other.
            let name = canonical_name(&entry.name, known);
            let conflicting = entries[..index].iter().position(|earlier| {
                canonical_name(&earlier.name, known) == name && earlier.component != entry.component
            });
            if let Some(earlier) = conflicting {
                problems.push(format!(
                    "controllerLeaders[{index}].component: {:?} is for the controller of controllerLeaders[{earlier}], \
                     which has {:?}",
                    entry.component, entries[earlier].component
                ));
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let leaders = entries
            .into_iter()
            .map(|LeaderEntry { name, component }| Leader { name, component })
            .collect();
        Ok(LeaderMigration { leader_name: self.leader_name, leaders })
    }
}

/// Returns a warning if flags of the migration are set that have no effect.
pub(super) fn ignored_file_flag(config: &Config) -> Option<&'static str> {
    let migration = &config.leader_migration;
    if migration.enabled && !config.leader_election.enabled {
        return Some("--enable-leader-migration has no effect without --leader-elect");
    }
    if !migration.enabled && migration.config_file.is_some() {
        return Some("--leader-migration-config has no effect without --enable-leader-migration");
    }
    None
}

#[cfg(test)]
mod tests;
