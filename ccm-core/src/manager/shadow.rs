//! Runs the controllers in shadow mode.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    DRAIN_LIMIT, Manager, ManagerError, ManagerExit,
    adoption::ReportSources,
    election::{self, WriteGates},
    telemetry::Telemetry,
    wiring::{ControllerBuilder, RunMode},
};
use crate::{
    config::ReportFormat,
    manager::named_task::NamedTask,
    runtime::{
        shadow::{Output, Shadow, Verdict},
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
        let (mut shadow, sources) = match stop
            .run_until_cancelled(self.prepare_shadow(&mut tasks, metrics))
            .await
        {
            Some(prepared) => prepared?,
            None => return Ok(self.stopped()),
        };
        let (send, receive) = oneshot::channel();
        let token = tasks.stop().clone();
        tasks.spawn("shadow", async move {
            // Without a receiver the process is stopping.
            let _ = send.send(shadow.run(token.clone()).await?);
            // The helper tasks of the controllers end with the controllers, and a task that ends
            // before the token is cancelled is an error.
            token.cancelled().await;
            drop(shadow);
            Ok(())
        });
        let token = tasks.stop().clone();
        let report = async {
            // Without a verdict the comparison was stopped or failed, and so the tasks end.
            let Ok(Some(verdict)) = receive.await else {
                return Ok(None);
            };
            let reported = self.report_once(&sources, verdict, &token).await;
            // Stop all other tasks after a single comparison.
            token.cancel();
            reported.map(|is_printed| is_printed.then_some(verdict))
        };
        let (ended, verdict) = tokio::join!(tasks.run(DRAIN_LIMIT), report);
        election::task_result(ended)?;
        Ok(verdict?.map_or_else(|| self.stopped(), ManagerExit::Compared))
    }

    /// Prints the adoption report of a single comparison, if it was requested. Returns false if the
    /// process was stopped before that.
    async fn report_once(
        &self,
        sources: &ReportSources,
        verdict: Verdict,
        stop: &CancellationToken,
    ) -> Result<bool, ManagerError> {
        if self.config.shadow.report == ReportFormat::None {
            return Ok(true);
        }
        let report = self.adoption_report(sources, verdict, stop);
        let Some(report) = stop.run_until_cancelled(report).await else {
            return Ok(false);
        };
        // Whoever stopped it cut the requests of the report short, too.
        if stop.is_cancelled() {
            return Ok(false);
        }
        let text = report.map_err(|error| ManagerError::Report(error.into()))?;
        (self.output)(text.trim_end()).map_err(ManagerError::Report)?;
        Ok(true)
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
    ) -> Result<(Shadow, ReportSources), ManagerError> {
        let gates = WriteGates::always_closed();
        let settle = self.config.shadow.settle;
        let mut builder =
            ControllerBuilder::new(self, &gates, metrics, tasks.stop(), RunMode::DryRun { settle });
        builder.add_all()?;
        let ControllerBuilder {
            controllers,
            dry_runs,
            caches,
            context,
            explainers,
            nodes,
            services,
            orphans,
            ..
        } = builder;
        let sources = ReportSources { nodes: nodes.clone(), services, orphans };
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
        // The report has the lines, too.
        let output: Output = match self.config.shadow.report {
            ReportFormat::None => self.output.clone(),
            ReportFormat::Markdown | ReportFormat::Json => Arc::new(|_| Ok(())),
        };
        let once = self.config.shadow.once;
        Ok((Shadow::new(dry_runs, self.shadow_report.clone(), output, once), sources))
    }
}
