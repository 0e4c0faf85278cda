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
    /// Compares observed state with what the controllers would change, until `stop`, or once if
    /// `shadow.once` is set. Takes no lease.
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
            // After a single comparison all other tasks end too. The token is cancelled first:
            // helpers of the controllers end when the controllers are dropped, and a task that ends
            // before the token is cancelled is an error.
            token.cancel();
            drop(shadow);
            Ok(())
        });
        election::task_result(tasks.run(DRAIN_LIMIT).await)?;
        let verdict = *verdict.lock();
        Ok(verdict.map_or_else(|| self.stopped(), ManagerExit::Compared))
    }

    /// Returns the exit of a manager that was asked to stop. If a single comparison was requested,
    /// it is incomplete.
    pub(super) fn stopped(&self) -> ManagerExit {
        if self.config.shadow.once {
            ManagerExit::Compared(Verdict::Incomplete)
        } else {
            ManagerExit::Stopped
        }
    }

    async fn prepare_shadow(
        &self,
        tasks: &mut Tasks,
        metrics: &Telemetry,
    ) -> Result<Shadow, ManagerError> {
        let gates = WriteGates::closed();
        let settle = self.config.shadow.settle;
        let mut builder =
            ControllerBuilder::new(self, &gates, metrics, tasks.stop(), RunMode::DryRun { settle });
        builder.add_all()?;
        let ControllerBuilder { controllers, dry_runs: previews, caches, context, .. } = builder;
        metrics.caches_syncing();
        caches.start(tasks).await?;
        self.start_provider(&context, metrics).await?;
        for extra in self
            .provider
            .controllers()
            .into_iter()
            .filter(|extra| self.is_enabled(extra.name))
        {
            tracing::info!(
                controller = extra.name,
                "loop of the provider is not started: what it would do is not compared"
            );
        }
        for (_, NamedTask { name, run }) in controllers {
            tasks.spawn(name, run);
        }
        tracing::info!("shadow: nothing is written, and no lease is taken");
        Ok(Shadow::new(
            previews,
            self.shadow_report.clone(),
            self.output.clone(),
            self.config.shadow.once,
        ))
    }
}
