//! Runs the controllers under the main lock and, during a leader migration, also under the
//! migration lock that all participating managers share.
//!
//! The main lock is acquired first. The migration lock is requested only while the main lock is
//! held, and only if a controller needs it. Controllers under the migration lock may write only
//! while both locks are held. Losing either lock ends the process.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{DRAIN_LIMIT, Manager, ManagerError, ManagerExit, health, telemetry::Telemetry};
use crate::{
    config::leader_migration::ControllerLock,
    k8s::well_known,
    manager::named_task::NamedTask,
    runtime::{
        events::{EventRecorder, EventWriter},
        leader_election::{
            self, ElectionConfig, LeaderElectionMetrics, LeaderElector, LeadershipOutcome, Leading,
        },
        tasks::{self, TaskError, Tasks},
    },
    write_gate::WriteGate,
};

/// The leader electors of this process, and the writer of their events.
pub(super) struct Electors {
    pub(super) main: LeaderElector,
    pub(super) migration: Option<LeaderElector>,
    pub(super) events: EventWriter,
}

/// The write gates of the controllers, one for the controllers under each lock.
#[derive(Clone)]
pub(super) struct WriteGates {
    main: WriteGate,
    /// Open while both locks are held.
    migration: WriteGate,
}

impl WriteGates {
    /// Creates the gates of a process that runs without leader election.
    pub(super) fn always_open() -> Self {
        Self {
            main: WriteGate::always_open(),
            migration: WriteGate::always_open(),
        }
    }

    /// Creates the gates of a process that must not write.
    pub(super) fn always_closed() -> Self {
        Self {
            main: WriteGate::always_closed(),
            migration: WriteGate::always_closed(),
        }
    }

    fn for_electors(electors: &Electors) -> Self {
        let main = electors.main.gate();
        // Without a migration lock no controller uses the second gate.
        let migration = electors
            .migration
            .as_ref()
            .map_or_else(|| main.clone(), LeaderElector::gate);
        Self { migration: WriteGate::both(main.clone(), migration), main }
    }

    /// Returns the gate of the controllers that run under this lock.
    pub(super) fn for_lock(&self, lock: ControllerLock) -> &WriteGate {
        match lock {
            ControllerLock::Migration => &self.migration,
            ControllerLock::Main | ControllerLock::OtherManager => &self.main,
        }
    }
}

impl Manager {
    /// Waits for the main lock, runs the controllers under it, and releases it.
    pub(super) async fn elect_and_lead(
        &self,
        stop: &CancellationToken,
        metrics: &Telemetry,
    ) -> Result<ManagerExit, ManagerError> {
        let electors = self.build_electors(metrics)?;
        let gates = WriteGates::for_electors(&electors);
        // Each lock has its own health check. Upstream checks only the last lock.
        let _main_check =
            health::leader_election(&self.health, "leaderElection", electors.main.health());
        let _migration_check = electors.migration.as_ref().map(|elector| {
            health::leader_election(&self.health, "leaderElectionMigration", elector.health())
        });
        let Electors { main, migration, events } = electors;
        let mut background = Tasks::new(CancellationToken::new());
        let stop_events = background.stop().clone();
        background
            .spawn("leader-election-events", super::infallible(events.run(stop_events.clone())));

        // While this process is a standby, it is ready only if it can access the lease. A leader
        // without access ends anyway.
        let access_check = health::lease_access(&self.health, main.health());
        let leading = main.acquire(stop).await;
        drop(access_check);

        let result = match leading {
            Some(leading) => {
                // The lease is also released if a task fails. The process is about to end, and a
                // standby should not have to wait for the lease to expire.
                let (outcome, result) = Box::pin(run_while_leading(leading, stop, |work_token| {
                    self.lead(work_token, gates, migration, metrics)
                }))
                .await;
                result.map(|exit| match outcome {
                    LeadershipOutcome::Lost { reason } => {
                        ManagerExit::LeadershipLost(reason.to_string())
                    }
                    LeadershipOutcome::Released | LeadershipOutcome::NotReleased { .. } => exit,
                })
            }
            None => Ok(ManagerExit::Stopped),
        };

        // The event writer stops last, because it still has to write "stopped leading".
        stop_events.cancel();
        background.run(DRAIN_LIMIT).await;
        result
    }

    fn build_electors(&self, metrics: &Telemetry) -> Result<Electors, ManagerError> {
        let flags = &self.config.leader_election;
        // As upstream, both locks have the same identity.
        let config = ElectionConfig {
            namespace: flags.resource_namespace.clone(),
            name: flags.resource_name.clone(),
            identity: leader_election::identity(&hostname()),
            lease_duration: flags.lease_duration,
            renew_deadline: flags.renew_deadline,
            retry_period: flags.retry_period,
        };
        let (recorder, events) = EventRecorder::new(
            metrics.election_client(self, "events"),
            well_known::COMPONENT_MANAGER,
            WriteGate::always_open(),
            metrics.events.clone(),
            self.clock.clone(),
        );
        let telemetry = metrics;
        let metrics = LeaderElectionMetrics::register(&self.registry)?;
        let elector = |config| {
            let client = telemetry.election_client(self, super::LEADER_ELECTION_CLIENT);
            LeaderElector::new(
                client,
                config,
                metrics.clone(),
                recorder.clone(),
                self.clock.clone(),
            )
        };
        let migration = match &self.migration {
            Some(migration) => {
                let name = migration.leader_name.clone();
                Some(elector(ElectionConfig { name, ..config.clone() })?)
            }
            None => None,
        };
        Ok(Electors { main: elector(config)?, migration, events })
    }
}

/// Runs `work` while the lease is held. `work` gets a token that is cancelled when `stop` is
/// cancelled or the lease is lost. When `work` ends, for any reason, the lease is released, unless
/// a write is unanswered.
async fn run_while_leading<T, F: Future<Output = T>>(
    leading: Leading,
    stop: &CancellationToken,
    work: impl FnOnce(CancellationToken) -> F,
) -> (LeadershipOutcome, T) {
    let work_token = stop.child_token();
    let work_ended = CancellationToken::new();
    let keep_lease = async {
        let outcome = leading
            .run(&work_ended, std::future::ready(()), Duration::ZERO)
            .await;
        // If the lease was lost, this stops the controllers.
        work_token.cancel();
        outcome
    };
    let work = work(work_token.clone());
    let run_work = async {
        // After `stop` is cancelled, the lease is kept until `work` has ended: until writes in
        // flight are answered or given up, and the last events are written.
        let result = work.await;
        work_ended.cancel();
        result
    };
    tokio::join!(keep_lease, run_work)
}

/// Waits for the migration lock and runs the `migrated` tasks under it. Cancels `stop` when they
/// end, for whatever reason, because the process is about to end.
pub(super) async fn run_migrated_controllers(
    elector: LeaderElector,
    migrated: Vec<NamedTask>,
    stop: &CancellationToken,
) -> Result<ManagerExit, ManagerError> {
    let Some(leading) = elector.acquire(stop).await else {
        return Ok(ManagerExit::Stopped);
    };
    let (outcome, exit) = run_while_leading(leading, stop, |work_token| async {
        let mut tasks = Tasks::new(work_token);
        for NamedTask { name, run } in migrated {
            tasks.spawn(name, run);
        }
        let exit = tasks.run(DRAIN_LIMIT).await;
        stop.cancel();
        exit
    })
    .await;
    task_result(exit)?;
    Ok(match outcome {
        LeadershipOutcome::Lost { reason } => {
            ManagerExit::LeadershipLost(format!("migration lock: {reason}"))
        }
        LeadershipOutcome::Released | LeadershipOutcome::NotReleased { .. } => ManagerExit::Stopped,
    })
}

/// Returns the error of a failed task. Tasks that did not end in time are not an error.
pub(super) fn task_result(exit: tasks::TasksExit) -> Result<(), ManagerError> {
    match exit {
        // Tasks that hung at shutdown were aborted. The process is stopping anyway.
        tasks::TasksExit::Failed(TaskError::ShutdownTimeout { .. }) | tasks::TasksExit::Stopped => {
            Ok(())
        }
        tasks::TasksExit::Failed(error) => Err(error.into()),
    }
}

/// Returns the name of this host, which inside a cluster is the name of the pod.
fn hostname() -> String {
    std::env::var("HOSTNAME")
        .ok()
        .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}
