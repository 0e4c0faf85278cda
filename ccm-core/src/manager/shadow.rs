//! Runs the controllers in shadow mode.

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
    /// Runs the controllers' dry runs and reports what they would change, until `stop` is
    /// cancelled, or once if `shadow.once` is set. Needs no lease.
    pub(super) async fn run_shadow(
        &self,
        stop: CancellationToken,
        metrics: &Telemetry,
    ) -> Result<ManagerExit, ManagerError> {
        let mut tasks = Tasks::new(stop.child_token());
        let mut shadow = match stop
            .run_until_cancelled(self.prepare_shadow(&mut tasks, metrics))
            .await
        {
            Some(shadow) => shadow?,
            None => return Ok(self.stopped()),
        };
        let verdict: Arc<Mutex<Option<Verdict>>> = Arc::default();
        let outcome = verdict.clone();
        let token = tasks.stop().clone();
        tasks.spawn("shadow", async move {
            *outcome.lock() = shadow.run(token.clone()).await?;
            // Stop all other tasks after a single comparison. Cancel the token before dropping the
            // controllers: their helper tasks end then, and a task that ends before the token is
            // cancelled is an error.
            token.cancel();
            drop(shadow);
            Ok(())
        });
        election::task_result(tasks.run(DRAIN_LIMIT).await)?;
        let verdict = *verdict.lock();
        Ok(verdict.map_or_else(|| self.stopped(), ManagerExit::Compared))
    }

    /// Returns the exit of a manager that was told to stop. A single comparison is then incomplete.
    pub(super) fn stopped(&self) -> ManagerExit {
        if self.config.shadow.once {
            ManagerExit::Compared(Verdict::Incomplete)
        } else {
            ManagerExit::Stopped
        }
    }

    /// Fills the caches, starts the provider and builds the dry runs.
    async fn prepare_shadow(
        &self,
        tasks: &mut Tasks,
        metrics: &Telemetry,
    ) -> Result<Shadow, ManagerError> {
        let gates = WriteGates::always_closed();
        let settle = self.config.shadow.settle;
        let mut builder =
            ControllerBuilder::new(self, &gates, metrics, tasks.stop(), RunMode::DryRun { settle });
        builder.add_all()?;
        let ControllerBuilder {
            controllers, dry_runs, caches, context, explainers, nodes, ..
        } = builder;
        metrics.caches_syncing();
        caches.start(tasks).await?;
        self.start_provider(&context, metrics).await?;
        self.explanations
            .install(&self.provider, nodes, &self.clock, explainers);
        for controller in self
            .provider
            .controllers()
            .into_iter()
            .filter(|controller| self.is_enabled(controller.name))
        {
            tracing::info!(
                controller = controller.name,
                "the provider's controller is not started in shadow mode; its changes are not compared"
            );
        }
        for (_, NamedTask { name, run }) in controllers {
            tasks.spawn(name, run);
        }
        tracing::info!("shadow mode: nothing is written, and no lease is acquired");
        Ok(Shadow::new(
            dry_runs,
            self.shadow_report.clone(),
            self.output.clone(),
            self.config.shadow.once,
        ))
    }
}
