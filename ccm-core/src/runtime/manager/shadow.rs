use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    DRAIN_LIMIT, Exit, Manager, ManagerError,
    election::{self, Gates},
    telemetry::Telemetry,
    wiring::{Task, Wiring, Work},
};
use crate::runtime::{
    shadow::{Shadow, Verdict},
    shutdown::Tasks,
};

impl Manager {
    /// Compares what is with what the controllers would make of it, until `stop`; or once, if that was asked for. Takes
    /// no lease.
    pub(super) async fn shadow(&self, stop: CancellationToken, metrics: &Telemetry) -> Result<Exit, ManagerError> {
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
        election::ended(tasks.run(DRAIN_LIMIT).await)?;
        let verdict = *verdict.lock();
        Ok(verdict.map_or_else(|| self.stopped(), Exit::Compared))
    }

    /// How it ends when it is asked to stop: whoever wanted one comparison did not get it.
    pub(super) fn stopped(&self) -> Exit {
        if self.config.shadow.once { Exit::Compared(Verdict::Incomplete) } else { Exit::Stopped }
    }

    async fn prepare_shadow(&self, tasks: &mut Tasks, metrics: &Telemetry) -> Result<Shadow, ManagerError> {
        let (gates, settle) = (Gates::shut(), self.config.shadow.settle);
        let mut wiring = Wiring::new(self, &gates, metrics, tasks.stop(), Work::Preview { settle });
        wiring.add_all()?;
        let Wiring { controllers, previews, caches, context, .. } = wiring;
        metrics.fills();
        caches.start(tasks).await?;
        self.start_provider(&context, metrics).await?;
        for extra in self.provider.controllers().into_iter().filter(|extra| self.is_enabled(extra.name)) {
            tracing::info!(
                controller = extra.name,
                "loop of the provider is not started: what it would do is not compared"
            );
        }
        for (_, Task { name, run }) in controllers {
            tasks.spawn(name, run);
        }
        tracing::info!("shadow: nothing is written, and no lease is taken");
        Ok(Shadow::new(previews, self.board.clone(), self.output.clone(), self.config.shadow.once))
    }
}
