//! The health of the process, as named checks that its parts add and remove.
//!
//! `docs/decisions/0008-health.md` explains the kinds of checks. Only a problem that a restart can
//! fix fails liveness, and a cloud outage does not make a process unready once its provider has
//! started.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use prometheus::{
    IntGaugeVec, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use crate::telemetry::metrics::register;

/// The kind of a check, which determines the effect of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckKind {
    /// The process cannot continue and should be restarted. A failure fails `/livez`, `/readyz` and
    /// `/healthz`. Only for the process itself and its lease.
    Live,
    /// The process does not do its work yet. A failure fails `/readyz`.
    Ready,
    /// The process makes no progress, for reasons that a restart would not fix. A failure is shown
    /// as degraded in verbose responses and in the metric `ccm_degraded`, and fails no endpoint.
    Progress,
}

/// The health checks of a process. Clones share them.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<Checks>>);

#[derive(Default)]
struct Checks {
    next: u64,
    /// In the order in which they were added.
    list: Vec<Check>,
}

/// One health check. Cheap to clone.
#[derive(Clone)]
pub struct Check {
    id: u64,
    kind: CheckKind,
    name: Arc<str>,
    run: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
}

/// The registration of a check. Dropping it removes the check.
#[must_use = "the check is removed when this is dropped"]
pub struct CheckRegistration {
    health: Health,
    id: u64,
}

impl Health {
    /// Adds a check. It is called from any task at any time, so it must be quick and must not
    /// block.
    ///
    /// The reason of a failure is shown to users who may read `/readyz/<name>`. The reason of a
    /// [`CheckKind::Progress`] is shown to everybody, so it must not contain text from a cloud.
    pub fn add(
        &self,
        kind: CheckKind,
        name: impl Into<Arc<str>>,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> CheckRegistration {
        let mut checks = self.0.lock();
        let id = checks.next;
        checks.next += 1;
        checks
            .list
            .push(Check { id, kind, name: name.into(), run: Arc::new(check) });
        CheckRegistration { health: self.clone(), id }
    }

    /// Returns the registered checks, in the order in which they were added.
    pub fn checks(&self) -> Vec<Check> {
        self.0.lock().list.clone()
    }

    /// Registers `ccm_degraded{name}`: 1 for each [`CheckKind::Progress`] that fails, 0 for each
    /// that passes. The checks run when metrics are read.
    ///
    /// # Errors
    /// Returns an error if a metric of this name is already registered.
    pub fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        let help =
            "Whether a controller gets no work done, cloud outages included: 1 degraded, 0 not.";
        let gauge = IntGaugeVec::new(Opts::new("ccm_degraded", help), &["name"])?;
        register(registry, Degraded { health: self.clone(), gauge, reading: Arc::default() })
            .map(drop)
    }
}

impl Check {
    /// Returns the kind of the check.
    pub fn kind(&self) -> CheckKind {
        self.kind
    }

    /// Returns the name of the check.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs the check. Its error is the reason of the failure.
    ///
    /// # Errors
    /// Returns what is wrong, as one line for `/readyz?verbose`.
    pub fn run(&self) -> Result<(), String> {
        (self.run)()
    }
}

impl Drop for CheckRegistration {
    fn drop(&mut self) {
        let mut checks = self.health.0.lock();
        let position = checks.list.iter().position(|check| check.id == self.id);
        let removed = position.map(|position| checks.list.remove(position));
        // The check may hold another registration, which is dropped with it. That needs the lock,
        // so release it first.
        drop(checks);
        drop(removed);
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.checks()).finish()
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check")
            .field("kind", &self.kind)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for CheckRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckRegistration")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Collector that runs the checks when metrics are read, so that no task has to run in between.
#[derive(Clone)]
struct Degraded {
    health: Health,
    gauge: IntGaugeVec,
    /// Locked by a scrape, so that another scrape does not read the gauge while it is being filled.
    reading: Arc<Mutex<()>>,
}

impl Collector for Degraded {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let checks = self.health.checks();
        let progress = checks
            .iter()
            .filter(|check| check.kind == CheckKind::Progress);
        let now: Vec<(&str, bool)> = progress
            .map(|check| (check.name(), check.run().is_err()))
            .collect();
        let _reading = self.reading.lock();
        self.gauge.reset();
        for (name, degraded) in now {
            self.gauge.with_label_values(&[name]).set(degraded.into());
        }
        self.gauge.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_check_is_in_force_until_its_registration_is_dropped() {
        let health = Health::default();
        let names = |health: &Health| {
            health
                .checks()
                .iter()
                .map(|check| check.name().to_owned())
                .collect::<Vec<_>>()
        };
        let first = health.add(CheckKind::Live, "first", || Ok(()));
        let second = health
            .clone()
            .add(CheckKind::Ready, "second", || Err("not yet".to_owned()));
        let namesake = health.add(CheckKind::Progress, "first", || Ok(()));
        assert_eq!(names(&health), ["first", "second", "first"]);
        assert_eq!(health.checks()[1].run(), Err("not yet".to_owned()));
        drop(first);
        assert_eq!(names(&health), ["second", "first"]);
        assert_eq!(health.checks()[1].kind(), CheckKind::Progress, "the namesake stays");
        drop((second, namesake));
        assert_eq!(names(&health), [""; 0]);
    }

    #[test]
    fn a_check_may_hold_a_registration() {
        let health = Health::default();
        let inner = health.add(CheckKind::Live, "inner", || Ok(()));
        let outer = health.add(CheckKind::Live, "outer", move || Err(format!("{inner:?}")));
        assert_eq!(health.checks().len(), 2);
        drop(outer);
        assert!(health.checks().is_empty());
    }

    #[test]
    fn scrapes_at_the_same_time_all_see_it() {
        let (health, registry) = (Health::default(), Registry::new());
        health.register(&registry).unwrap();
        let _checks: Vec<_> = ["a", "b", "c"]
            .map(|name| health.add(CheckKind::Progress, name, || Ok(())))
            .into();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let seen: usize = registry
                            .gather()
                            .iter()
                            .map(|family| family.get_metric().len())
                            .sum();
                        assert_eq!(seen, 3);
                    }
                });
            }
        });
    }

    #[test]
    fn the_metric_asks_when_it_is_read() {
        let (health, registry) = (Health::default(), Registry::new());
        health.register(&registry).unwrap();
        let wrong = Arc::new(AtomicBool::new(true));
        let _live =
            health.add(CheckKind::Live, "leaderElection", || Err("never shown here".to_owned()));
        let progress = health.add(CheckKind::Progress, "service-lb-controller", {
            let wrong = wrong.clone();
            move || {
                if wrong.load(Ordering::Relaxed) {
                    Err("no success".to_owned())
                } else {
                    Ok(())
                }
            }
        });
        let text = || {
            prometheus::TextEncoder::new()
                .encode_to_string(&registry.gather())
                .unwrap()
        };
        let lines = || {
            text()
                .lines()
                .filter(|line| !line.starts_with('#'))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(lines(), ["ccm_degraded{name=\"service-lb-controller\"} 1"]);
        wrong.store(false, Ordering::Relaxed);
        assert_eq!(lines(), ["ccm_degraded{name=\"service-lb-controller\"} 0"]);
        drop(progress);
        assert_eq!(lines(), [""; 0]);
    }
}
