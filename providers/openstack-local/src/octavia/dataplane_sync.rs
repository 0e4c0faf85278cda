//! Keeps the sockets in line with the rows, and the rows with what the sockets report.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::api::octavia::ProvisioningStatus;
use jiff::Timestamp;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::{
    dataplane_config,
    health::{Report, forget_reports, report},
    rows::LoadBalancerRow,
    settings::Settings,
    transactions::finish_due_changes,
};
use crate::{
    dataplane::{DataPlane, ListenerState, LoadBalancerConfig},
    server::Cloud,
    state::{ApiError, CloudState, RequestContext},
};

/// Interval between two reads of the counters, and the longest delay of a due change after the
/// clock was moved.
const LOOK: Duration = Duration::from_secs(1);
/// Number of intervals until a port that could not be opened is tried again.
const RETRY: u32 = 5;

/// Ends changes when they are due, and carries traffic with `plane` if there is one. Without one,
/// everything that is enabled counts as working.
///
/// # Cancellation
/// Ends when it is cancelled or the store is closed. The sockets stay open until the plane is shut
/// down.
pub async fn run(cloud: &Cloud, plane: Option<&DataPlane>, cancel: CancellationToken) {
    let mut carrier = DataPlaneSync {
        cloud,
        plane,
        running: BTreeMap::new(),
        failed: BTreeSet::new(),
    };
    let mut changes = cloud.store.changes();
    let mut reports = plane.map(DataPlane::changes);
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut started = false;
    let mut count = 0_u32;
    loop {
        // An error loses nothing: the next pass tries again.
        let next = carrier.diff(&mut started).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "load balancers could not be brought up to date");
            None
        });
        let due = carrier.until_due(next);
        let wait_for_reports = async {
            match &mut reports {
                Some(reports) => reports.changed().await.is_ok(),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = cancel.cancelled() => return,
            there = changes.next() => if !there { return },
            _ = wait_for_reports => {}
            () = tokio::time::sleep(due), if due < LOOK => {}
            _ = looks.tick() => {
                count += 1;
                if count.is_multiple_of(RETRY) {
                    carrier.running.retain(|id, _| !carrier.failed.contains(id));
                }
            }
        }
    }
}

/// Forgets what an earlier process reported about its sockets, before the first request is
/// answered: they are closed now.
pub(crate) async fn begin(cloud: &Cloud, reported: bool) -> Result<(), ApiError> {
    let start = |state: &mut CloudState| {
        if Settings::of(state).reported != reported {
            Settings::change(state, |settings| settings.reported = reported);
        }
        forget_reports(state);
        Ok(())
    };
    cloud.store.change(start).await
}

struct DataPlaneSync<'a> {
    cloud: &'a Cloud,
    plane: Option<&'a DataPlane>,
    /// The row that each load balancer was last applied from. A row changes with everything below
    /// it.
    running: BTreeMap<String, Arc<LoadBalancerRow>>,
    /// Load balancers with a listener that could not be opened.
    failed: BTreeSet<String>,
}

/// Changes to apply to the sockets.
#[derive(Debug, Default)]
struct DataPlaneChanges {
    apply: Vec<(Arc<LoadBalancerRow>, LoadBalancerConfig)>,
    remove: Vec<String>,
}

impl DataPlaneSync<'_> {
    async fn diff(&mut self, started: &mut bool) -> Result<Option<Timestamp>, ApiError> {
        if !*started {
            begin(self.cloud, self.plane.is_some()).await?;
            *started = true;
        }
        let next = finish_due_changes(self.cloud).await?;
        let Some(plane) = self.plane else {
            return Ok(next);
        };
        let ctx = RequestContext {
            now: self.cloud.clock.now(),
            project: "".into(),
            user: "octavia".into(),
            admin: true,
        };
        let difference = self.cloud.store.peek(|state| self.difference(state, &ctx));
        for id in difference.remove {
            plane.remove(&id.as_str().into()).await;
            self.running.remove(&id);
            self.failed.remove(&id);
        }
        for (row, config) in difference.apply {
            self.apply(plane, row, &config).await;
        }
        self.store_reports(plane).await?;
        Ok(next)
    }

    fn difference(&self, state: &CloudState, ctx: &RequestContext) -> DataPlaneChanges {
        let mut difference = DataPlaneChanges::default();
        for row in state.octavia.load_balancers.iter() {
            // While a change is in progress, and after one that failed, the sockets stay as they
            // are.
            let at_rest = row.body.provisioning_status == ProvisioningStatus::Active;
            if !at_rest
                || self
                    .running
                    .get(&row.body.id)
                    .is_some_and(|old| Arc::ptr_eq(old, row))
            {
                continue;
            }
            if let Some(config) = dataplane_config::load_balancer(state, ctx, row) {
                difference.apply.push((row.clone(), config));
            }
        }
        let gone = self
            .running
            .keys()
            .filter(|id| state.octavia.load_balancers.get(id).is_none());
        difference.remove = gone.cloned().collect();
        difference
    }

    async fn apply(
        &mut self,
        plane: &DataPlane,
        row: Arc<LoadBalancerRow>,
        config: &LoadBalancerConfig,
    ) {
        let id = row.body.id.clone();
        let report = plane.apply(config).await;
        let mut failed = false;
        for listener in &report.listeners {
            if let ListenerState::Failed(error) = &listener.state {
                tracing::warn!(load_balancer = %id, listener = %listener.id, %error, "a listener cannot be opened");
                failed = true;
            }
        }
        if failed {
            self.failed.insert(id.clone())
        } else {
            self.failed.remove(&id)
        };
        self.running.insert(id, row);
    }

    /// Stores what the sockets report in the rows, if it differs.
    async fn store_reports(&self, plane: &DataPlane) -> Result<(), ApiError> {
        let mut said = Report::default();
        let balancers: Vec<_> = plane
            .balancers()
            .iter()
            .filter_map(|id| plane.report(id))
            .collect();
        let fits = self.cloud.store.peek(|state| {
            let limit = |id: &str| {
                let row = state.octavia.listeners.get(id)?;
                u64::try_from(row.body.connection_limit).ok()
            };
            for balancer in &balancers {
                dataplane_config::add_report(&mut said, balancer, limit);
            }
            said.is_known(state)
        });
        if fits {
            return Ok(());
        }
        self.cloud
            .store
            .change(|state| {
                report(state, &said);
                Ok(())
            })
            .await
    }

    /// Returns the time until the next change is due.
    fn until_due(&self, next: Option<Timestamp>) -> Duration {
        let until = |due: Timestamp| {
            Duration::try_from(due.duration_since(self.cloud.clock.now())).unwrap_or_default()
        };
        next.map_or(LOOK, |due| until(due).min(LOOK))
    }
}
