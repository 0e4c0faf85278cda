//! Delays before a reflector lists or watches again.

use std::time::Duration;

use rand::RngExt as _;
use tokio::time::Instant;

/// The back-off between failed attempts, with client-go's numbers (`tools/cache/reflector.go`
/// v0.37): it starts at 0.8 s and doubles up to 30 s. Each delay is lengthened by up to its own
/// length. After two minutes without a failure it starts again.
#[derive(Debug)]
pub(crate) struct ReflectorBackoff {
    next: Duration,
    last: Option<Instant>,
}

const INITIAL_DELAY: Duration = Duration::from_millis(800);
const MAX_DELAY: Duration = Duration::from_secs(30);
const RESET_AFTER: Duration = Duration::from_secs(120);

impl ReflectorBackoff {
    pub(crate) fn new() -> Self {
        Self { next: INITIAL_DELAY, last: None }
    }

    /// Returns the delay after one more failure. The delay that the server requests is a lower
    /// bound.
    pub(crate) fn failure(&mut self, retry_after: Option<Duration>) -> Duration {
        if self.last.is_some_and(|last| last.elapsed() > RESET_AFTER) {
            self.next = INITIAL_DELAY;
        }
        let base = self.next;
        self.next = (base * 2).min(MAX_DELAY);
        let wait = base
            .mul_f64(1.0 + rand::rng().random::<f64>())
            .max(retry_after.unwrap_or_default());
        self.last = Some(Instant::now() + wait);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_grows_to_its_limit_and_forgets() {
        let mut backoff = ReflectorBackoff::new();
        for want in [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0] {
            let wait = backoff.failure(None);
            assert!(
                (want..want * 2.0 + 0.001).contains(&wait.as_secs_f64()),
                "{wait:?} for {want}"
            );
            tokio::time::advance(wait).await;
        }
        tokio::time::advance(Duration::from_secs(121)).await;
        assert!(backoff.failure(None) < Duration::from_millis(1601));
        assert!(backoff.failure(Some(Duration::from_secs(7))) >= Duration::from_secs(7));
    }
}
