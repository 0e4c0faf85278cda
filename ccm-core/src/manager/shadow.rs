use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    DRAIN_LIMIT, Manager, ManagerError, ManagerExit,
    election::{self, WriteGates},
    telemetry::Telemetry,
    wiring::{ControllerBuilder, RunMode},
};
use crate::{
    manager::named_task::NamedTask,
    runtime::{
        shadow::{Shadow, Verdict},
        tasks::Tasks,
    },
};

impl Manager {
    /// Compares what is with what the controllers would make of it, until `stop`; or once, if that was asked for. Takes
    /// no lease.
    pub(super) async fn run_shadow(
        &self,
        stop: CancellationToken,
        metrics: &Telemetry,
    ) -> Result<ManagerExit, ManagerError> {
        let mut tasks = Tasks::new(stop.child_token());
        let mut shadow = match stop.run_until_cancelled(self.prepare_shadow(&mut tasks, metrics)).await {
            Some(shadow) => shadow?,
            None => return Ok(self.stopped()),
        };
        let verdict: Arc<Mutex<Option<Verdict>>> = Arc::default();
        let (outcome, token) = (verdict.clone(), tasks.stop().clone());
        tasks.spawn("shadow", async move {
            *outcome.lock() = shadow.run(token.clone()).await?;
            // When that is all that was asked for, everything else ends with it; but helpers of the controllers would end
            // before, and early, if those were dropped first.
            token.cancel();
            drop(shadow);
            Ok(())
        });
        election::task_result(tasks.run(DRAIN_LIMIT).await)?;
        let verdict = *verdict.lock();
        Ok(verdict.map_or_else(|| self.stopped(), ManagerExit::Compared))
    }

    /// How it ends when it is asked to stop: whoever wanted one comparison did not get it.
    pub(super) fn stopped(&self) -> ManagerExit {
        if self.config.shadow.once { ManagerExit::Compared(Verdict::Incomplete) } else { ManagerExit::Stopped }
    }

    async fn prepare_shadow(&self, tasks: &mut Tasks, metrics: &Telemetry) -> Result<Shadow, ManagerError> {
        let (gates, settle) = (WriteGates::closed(), self.config.shadow.settle);
        let mut wiring = ControllerBuilder::new(self, &gates, metrics, tasks.stop(), RunMode::DryRun { settle });
        wiring.add_all()?;
        let ControllerBuilder { controllers, dry_runs: previews, caches, context, .. } = wiring;
        metrics.caches_syncing();
        caches.start(tasks).await?;
        self.start_provider(&context, metrics).await?;
        for extra in self.provider.controllers().into_iter().filter(|extra| self.is_enabled(extra.name)) {
            tracing::info!(
                controller = extra.name,
                "loop of the provider is not started: what it would do is not compared"
            );
        }
        for (_, NamedTask { name, run }) in controllers {
            tasks.spawn(name, run);
        }
        tracing::info!("shadow: nothing is written, and no lease is taken");
        Ok(Shadow::new(previews, self.shadow_report.clone(), self.output.clone(), self.config.shadow.once))
    }
}
