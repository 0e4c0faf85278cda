//! Flags of leader election and leader migration.

use super::Group::LeaderMigration;
use super::{Flag, generic};
use crate::config::value::FlagTarget::{Bool, Duration, Path, Text};

/// Leader election and leader migration.
pub(super) static LEADER_ELECTION: &[Flag] = &[
    generic(
        "leader-elect",
        Bool(|c| &mut c.leader_election.enabled),
        "true",
        "Acquire leadership in a leader election before starting the controllers. Required when running more than one replica.",
    ),
    generic(
        "leader-elect-lease-duration",
        Duration(|c| &mut c.leader_election.lease_duration),
        "15s",
        "The duration after which other candidates may acquire a lease that is not renewed.",
    ),
    generic(
        "leader-elect-renew-deadline",
        Duration(|c| &mut c.leader_election.renew_deadline),
        "10s",
        "The duration for which the leader retries to renew the lease before it gives up leadership. Must be less than the lease duration.",
    ),
    generic(
        "leader-elect-retry-period",
        Duration(|c| &mut c.leader_election.retry_period),
        "2s",
        "The duration between attempts to acquire or renew leadership.",
    ),
    generic(
        "leader-elect-resource-lock",
        Text(|c| &mut c.raw.resource_lock),
        "leases",
        "The type of resource that is used for locking during leader election. Only `leases` is supported.",
    ),
    generic(
        "leader-elect-resource-name",
        Text(|c| &mut c.leader_election.resource_name),
        "cloud-controller-manager",
        "The name of the resource that is used for locking during leader election.",
    ),
    generic(
        "leader-elect-resource-namespace",
        Text(|c| &mut c.leader_election.resource_namespace),
        "kube-system",
        "The namespace of the resource that is used for locking during leader election.",
    ),
    Flag::new(
        "enable-leader-migration",
        LeaderMigration,
        Bool(|c| &mut c.leader_migration.enabled),
        "false",
        "Enable leader migration, which moves controllers from one controller manager to another while both run.",
    ),
    Flag::new(
        "leader-migration-config",
        LeaderMigration,
        Path(|c| &mut c.leader_migration.config_file),
        "",
        "Path to the configuration file for leader migration. Without it, the built-in configuration is used.",
    ),
];
