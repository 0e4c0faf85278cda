//! Looks for cloud objects of this cluster that no Service or Node asks for: what a crash, a lost write or a cluster that
//! was taken apart left behind.
//!
//! Upstream has nothing of the kind. What is found is told by a log line and an event when it is new, and by a metric;
//! nothing is deleted unless the operator asked for it (`--collect-orphans`), and then only what is old enough, what the
//! API server itself says nobody asks for, and only while the cluster looks like itself. The same look is made once by the
//! subcommand `orphans`.

pub(crate) mod metrics;
mod plan;
pub(crate) mod report;
pub(crate) mod survey;

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::{
    metrics::{Collected, OrphanMetrics},
    survey::{Survey, object_ref},
};
pub use self::{
    plan::{Cause, Orphan, Standing, doubt, orphans},
    report::{Report, Treatment},
    survey::{Fate, Look, SurveyError},
};
use crate::{
    config::OrphansConfig,
    error::chain,
    provider::{EventKind, OwnedObject},
    runtime::events::WallClock,
};

/// When the first look is made, unless the period is shorter: what the last leader began is ended by then.
const FIRST_LOOK: Duration = Duration::from_secs(600);
/// Pause after a look that failed, unless the period is shorter.
const AGAIN: Duration = Duration::from_secs(600);
/// How long the cloud is given to delete one object; what takes longer is looked at again next time.
const PATIENCE: Duration = Duration::from_secs(600);

/// An object by kind and ID.
type Key = (Arc<str>, Box<str>);

/// Looks for orphans once per period.
pub(crate) struct OrphanController {
    survey: Survey,
    settings: OrphansConfig,
    metrics: OrphanMetrics,
    clock: WallClock,
}

/// What is remembered between two looks.
#[derive(Default)]
struct Memory {
    /// Since when each orphan has been seen.
    seen: HashMap<Key, Instant>,
}

impl OrphanController {
    /// Makes it.
    ///
    /// # Errors
    /// When its metrics are registered already.
    pub(crate) fn new(
        survey: Survey,
        settings: OrphansConfig,
        registry: &prometheus::Registry,
        clock: WallClock,
    ) -> prometheus::Result<Self> {
        Ok(Self { survey, settings, metrics: OrphanMetrics::register(registry)?, clock })
    }

    /// Runs until `cancel`; then ends when the changes that were requested have their answers.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let synced = async {
            self.survey.services.synced().await;
            self.survey.nodes.synced().await;
        };
        cancel.run_until_cancelled(synced).await;
        let mut memory = Memory::default();
        let mut pause = self.settings.report_period.min(FIRST_LOOK);
        while cancel.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
            let period = self.settings.report_period;
            pause = if self.pass(&mut memory).await { period } else { period.min(AGAIN) };
        }
    }

    /// Looks once, and deletes if that is asked for. Returns whether the look succeeded.
    async fn pass(&self, memory: &mut Memory) -> bool {
        let look = match self.survey.look().await {
            Ok(look) => look,
            Err(error) => {
                self.metrics.failed();
                tracing::warn!(error = chain(&error), "orphans could not be looked for");
                return false;
            }
        };
        self.tell(memory, &look);
        if self.settings.collect {
            self.collect(memory, look).await;
        }
        true
    }

    /// Tells what is new.
    fn tell(&self, memory: &mut Memory, look: &Look) {
        self.metrics.found(look.orphans.len());
        let now = Instant::now();
        let current: HashSet<Key> = look.orphans.iter().map(|orphan| key(&orphan.object)).collect();
        memory.seen.retain(|key, _| current.contains(key));
        for orphan in &look.orphans {
            if let Entry::Vacant(place) = memory.seen.entry(key(&orphan.object)) {
                place.insert(now);
                self.tell_of(orphan);
            }
        }
        tracing::debug!(owned = look.owned, orphans = look.orphans.len(), "looked for orphans");
    }

    fn tell_of(&self, orphan: &Orphan) {
        let Orphan { object, cause } = orphan;
        let owner = report::owner(&object.owner);
        tracing::warn!(kind = %object.kind, id = %object.id, owner, %cause, "cloud object is an orphan");
        if let Some(about) = object_ref(&object.owner) {
            let note = format!("{} {} was made for this object, but {cause}", object.kind, object.id);
            self.survey.events.event(&about, EventKind::Warning, "OrphanedCloudObject", &note);
        }
    }

    /// Deletes what is old enough, one after the other.
    async fn collect(&self, memory: &Memory, look: Look) {
        let old_enough = |orphan: &&Orphan| {
            let seen_for = memory.seen.get(&key(&orphan.object)).map(Instant::elapsed).unwrap_or_default();
            orphan.age(self.clock.now(), seen_for) >= self.settings.minimum_age
        };
        let due: Vec<&Orphan> = look.orphans.iter().filter(old_enough).collect();
        if due.is_empty() {
            return;
        }
        if let Some(why) = doubt(look.orphans.len(), look.made_for_somebody, &look.standing) {
            for _ in &due {
                self.metrics.collected(Collected::Doubted);
            }
            tracing::error!(
                orphans = look.orphans.len(),
                why,
                "orphans are not deleted; if they should be, use the subcommand orphans"
            );
            return;
        }
        for orphan in due {
            if self.survey.op.is_cancelled() {
                return;
            }
            self.collect_one(orphan).await;
        }
    }

    async fn collect_one(&self, orphan: &Orphan) {
        let OwnedObject { kind, id, owner, .. } = &orphan.object;
        let owner = report::owner(owner);
        let outcome = match self.survey.collect(orphan, Instant::now() + PATIENCE).await {
            Ok(Fate::Deleted) => {
                tracing::warn!(%kind, %id, owner, "orphan was deleted");
                Collected::Deleted
            }
            Ok(Fate::Waits(why)) => {
                tracing::info!(%kind, %id, owner, %why, "orphan is not deleted yet");
                Collected::Pending
            }
            Ok(Fate::Wanted) => {
                tracing::info!(%kind, %id, owner, "is no orphan any more");
                Collected::Wanted
            }
            Err(error) => {
                tracing::warn!(%kind, %id, owner, error = chain(&error), "orphan could not be deleted");
                Collected::Failed
            }
        };
        self.metrics.collected(outcome);
    }
}

fn key(object: &OwnedObject) -> Key {
    (object.kind.clone(), object.id.clone())
}
