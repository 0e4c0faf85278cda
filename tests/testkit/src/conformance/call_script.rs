//! Counting and spoiling calls, for adapters.

use std::{future::Future, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{CallCount, CallFaultKind, InjectedCallFault};

/// The part of a [`FaultyCloud`](super::FaultyCloud) that is the same for every cloud whose calls
/// pass one place: counts them, spoils them, slows them down. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct CallScript(Arc<Mutex<ScriptState>>);

#[derive(Clone, Copy, Debug, Default)]
struct ScriptState {
    trouble: Option<InjectedCallFault>,
    tally: CallCount,
    latency: Duration,
}

impl CallScript {
    /// Counts from zero, and spoils what `trouble` says.
    pub fn start(&self, trouble: Option<InjectedCallFault>) {
        let mut page = self.0.lock();
        *page = ScriptState { trouble, tally: CallCount::default(), ..*page };
    }

    /// Returns how many calls were begun since the last [`start`](Self::start).
    pub fn tally(&self) -> CallCount {
        self.0.lock().tally
    }

    /// Makes every call wait this long before its effect and again before its answer.
    pub fn slow_down(&self, latency: Duration) {
        self.0.lock().latency = latency;
    }

    /// Ends troubles and slowness, and counts from zero.
    pub fn reset(&self) {
        *self.0.lock() = ScriptState::default();
    }

    /// Counts a call and makes it: `call` is its effect, and is not begun when it is dropped
    /// before.
    ///
    /// # Errors
    /// What the script says. [`CallFaultKind::Fails`] comes in place of the effect; at
    /// [`CallFaultKind::AnswerLost`] the call had its effect, and the answer is not to arrive.
    pub async fn around<T>(
        &self,
        writes: bool,
        call: impl Future<Output = T>,
    ) -> Result<T, CallFaultKind> {
        let (trouble, latency) = {
            let mut page = self.0.lock();
            *(if writes {
                &mut page.tally.writes
            } else {
                &mut page.tally.reads
            }) += 1;
            let number = page.tally.calls();
            let hit = |trouble: &InjectedCallFault| {
                trouble.call == number || trouble.lasts && trouble.call < number
            };
            (page.trouble.filter(hit).map(|trouble| trouble.kind), page.latency)
        };
        wait(latency).await;
        let answer = match trouble {
            Some(fails @ CallFaultKind::Fails(_)) => Err(fails),
            Some(CallFaultKind::AnswerLost) => {
                call.await;
                Err(CallFaultKind::AnswerLost)
            }
            None => Ok(call.await),
        };
        wait(latency).await;
        answer
    }
}

/// Waits; for no time without an await point, at which rules would try to cut calls short.
async fn wait(latency: Duration) {
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::conformance::InjectedFault;

    #[tokio::test(start_paused = true)]
    async fn calls_are_counted_spoilt_and_slowed_down() {
        let (script, effects) = (CallScript::default(), Cell::new(0));
        let call = async |writes| {
            script
                .around(writes, async { effects.set(effects.get() + 1) })
                .await
        };
        let fault = InjectedFault::Denied;
        script.start(Some(InjectedCallFault::fail(2, fault)));
        assert_eq!(call(false).await, Ok(()));
        assert_eq!(call(true).await, Err(CallFaultKind::Fails(fault)));
        assert_eq!(call(true).await, Ok(()));
        assert_eq!((script.tally(), effects.get()), (CallCount { reads: 1, writes: 2 }, 2));
        script.start(Some(InjectedCallFault::lose_answer(1).lasting()));
        assert_eq!(call(true).await, Err(CallFaultKind::AnswerLost));
        assert_eq!(call(true).await, Err(CallFaultKind::AnswerLost));
        assert_eq!(effects.get(), 4);
        script.reset();
        script.slow_down(Duration::from_secs(3));
        let begun = tokio::time::Instant::now();
        assert_eq!(call(false).await, Ok(()));
        assert_eq!((begun.elapsed(), script.tally().calls()), (Duration::from_secs(6), 1));
        // Dropped before its effect.
        assert!(
            tokio::time::timeout(Duration::from_secs(2), call(true))
                .await
                .is_err()
        );
        assert_eq!((effects.get(), script.tally().writes), (5, 1));
    }
}
