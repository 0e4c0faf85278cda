//! Flags of leader election and leader migration.

use super::Flag;
use super::Group::{Generic, LeaderMigration};
use crate::config::value::FlagTarget::{self, Bool, Duration, Path, Text};

const fn generic(
    name: &'static str,
    target: FlagTarget,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag::new(name, Generic, target, default, help)
}

/// Leader election and leader migration.
pub(super) static LEADER_ELECTION: &[Flag] = &[
    generic(
        "leader-elect",
        Bool(|c| &mut c.leader_election.enabled),
        "true",
        "Elect a leader before the controllers start. Needed when there is more than one replica.",
    ),
    generic(
        "leader-elect-lease-duration",
        Duration(|c| &mut c.leader_election.lease_duration),
        "15s",
        "Time after which others may take over a lease that is not renewed.",
    ),
    generic(
        "leader-elect-renew-deadline",
        Duration(|c| &mut c.leader_election.renew_deadline),
        "10s",
        "Time after which a leader that cannot renew gives up. Less than the lease duration.",
    ),
    generic(
        "leader-elect-retry-period",
        Duration(|c| &mut c.leader_election.retry_period),
        "2s",
        "Pause between two tries to get or renew the lease.",
    ),
    generic(
        "leader-elect-resource-lock",
        Text(|c| &mut c.raw.resource_lock),
        "leases",
        "Kind of object that holds the lock; only `leases`.",
    ),
    generic(
        "leader-elect-resource-name",
        Text(|c| &mut c.leader_election.resource_name),
        "cloud-controller-manager",
        "Name of that object.",
    ),
    generic(
        "leader-elect-resource-namespace",
        Text(|c| &mut c.leader_election.resource_namespace),
        "kube-system",
        "Namespace of that object.",
    ),
    Flag::new(
        "enable-leader-migration",
        LeaderMigration,
        Bool(|c| &mut c.leader_migration.enabled),
        "false",
        "Let controllers move from one controller manager to another while both run.",
    ),
    Flag::new(
        "leader-migration-config",
        LeaderMigration,
        Path(|c| &mut c.leader_migration.config_file),
        "",
        "File that says which; without it the built-in list holds.",
    ),
];
