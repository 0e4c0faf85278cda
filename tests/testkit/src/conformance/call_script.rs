//! Counts calls and injects faults into them, for adapters.

use std::{future::Future, sync::Arc, time::Duration};

use anyhow::Context as _;
use parking_lot::Mutex;

use super::{CallCount, CallFaultKind, InjectedCallFault};

/// Counts, fails and delays calls, for any [`FaultyCloud`](super::FaultyCloud) whose calls all pass
/// through one function. Clones share the script.
#[derive(Clone, Debug, Default)]
pub struct CallScript(Arc<Mutex<ScriptState>>);

#[derive(Clone, Copy, Debug, Default)]
struct ScriptState {
    fault: Option<InjectedCallFault>,
    tally: CallCount,
    latency: Duration,
}

impl CallScript {
    /// Resets the call count to zero and injects `fault` into the following calls.
    pub fn start(&self, fault: Option<InjectedCallFault>) {
        let mut state = self.0.lock();
        *state = ScriptState { fault, tally: CallCount::default(), ..*state };
    }

    /// Returns the number of calls since the last [`start`](Self::start).
    pub fn tally(&self) -> CallCount {
        self.0.lock().tally
    }

    /// Delays every call by `latency` before its effect and again before its answer.
    pub fn slow_down(&self, latency: Duration) {
        self.0.lock().latency = latency;
    }

    /// Removes the fault and the delay, and resets the call count to zero.
    pub fn reset(&self) {
        *self.0.lock() = ScriptState::default();
    }

    /// Counts a call and runs it. `call` is the effect; it does not start if the returned future is
    /// dropped first.
    ///
    /// # Errors
    /// Returns the injected fault. For [`CallFaultKind::Fails`] the effect did not happen. For
    /// [`CallFaultKind::AnswerLost`] it did, and the adapter must withhold the answer.
    pub async fn around<T>(
        &self,
        writes: bool,
        call: impl Future<Output = T>,
    ) -> Result<T, CallFaultKind> {
        let (fault, latency) = {
            let mut state = self.0.lock();
            if writes {
                state.tally.writes += 1;
            } else {
                state.tally.reads += 1;
            }
            let number = state.tally.calls();
            let is_hit = |fault: &InjectedCallFault| {
                fault.call == number || fault.lasts && fault.call < number
            };
            (state.fault.filter(is_hit).map(|fault| fault.kind), state.latency)
        };
        wait(latency).await;
        let answer = match fault {
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

/// Returns the adapter's script.
///
/// # Errors
/// Fails if the adapter has none, and so must implement the method that calls this.
pub(super) fn required_script(script: Option<&CallScript>) -> anyhow::Result<&CallScript> {
    script.context("the adapter implements neither this method nor call_script")
}

/// Sleeps for `latency`. Zero adds no await point, because rules interrupt calls at each of them.
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
    async fn calls_are_counted_failed_and_delayed() {
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
        let started = tokio::time::Instant::now();
        assert_eq!(call(false).await, Ok(()));
        assert_eq!((started.elapsed(), script.tally().calls()), (Duration::from_secs(6), 1));
        // Dropped before its effect.
        assert!(
            tokio::time::timeout(Duration::from_secs(2), call(true))
                .await
                .is_err()
        );
        assert_eq!((effects.get(), script.tally().writes), (5, 1));
    }
}
