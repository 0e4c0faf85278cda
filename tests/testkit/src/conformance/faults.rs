//! The part of an adapter that the suites for load balancers and for routes share: nodes, call
//! counts and injected faults.

use std::time::Duration;

use async_trait::async_trait;
use ccm_core::k8s::NodeView;

use super::{CallScript, InjectedFault, Limits, call_script::required_script};

/// A cloud whose calls can be counted and made to fail one by one.
///
/// A *call* is one request of the provider's client to the cloud. Each retry is a call of its own.
/// The kit counts calls that were started since the last [`script`](Self::script).
#[async_trait]
pub trait FaultyCloud: Send + Sync + 'static {
    /// Creates a running instance and returns its Node as the framework initialises it: with
    /// provider ID, addresses and everything else that the provider reads. Names consist of
    /// lower-case letters, digits and dashes, and are unique in the run.
    async fn add_node(&self, name: &str) -> anyhow::Result<NodeView>;

    /// Deletes an instance. Succeeds if it does not exist.
    async fn remove_node(&self, name: &str) -> anyhow::Result<()>;

    /// Returns the script that all calls follow, if there is one. It implements
    /// [`script`](Self::script), [`call_count`](Self::call_count) and
    /// [`slow_down`](Self::slow_down). The default is `None`.
    fn call_script(&self) -> Option<&CallScript> {
        None
    }

    /// Resets the call count to zero and injects `fault` into the following calls. Replaces an
    /// earlier script.
    async fn script(&self, fault: Option<InjectedCallFault>) -> anyhow::Result<()> {
        required_script(self.call_script())?.start(fault);
        Ok(())
    }

    /// Returns the number of calls since the last [`script`](Self::script).
    async fn call_count(&self) -> anyhow::Result<CallCount> {
        Ok(required_script(self.call_script())?.tally())
    }

    /// Delays every call by `latency` before its effect and again before its answer. Zero removes
    /// the delay. Returns `false` if the adapter cannot; rules about calls in flight are then not
    /// checked.
    async fn slow_down(&self, latency: Duration) -> anyhow::Result<bool> {
        required_script(self.call_script())?.slow_down(latency);
        Ok(true)
    }

    /// Makes the cloud complete each change that it accepts only after `time`, and show the earlier
    /// state until then. Zero ends this. Returns `false`, the default, if the cloud's changes always
    /// have taken effect when they are answered.
    async fn complete_after(&self, time: Duration) -> anyhow::Result<bool> {
        let _ = time;
        Ok(false)
    }

    /// Makes the next change that the cloud accepts fail when it would be completed, without
    /// effect. Called after [`complete_after`](Self::complete_after). Returns `false`, the default,
    /// if the cloud's accepted changes never fail.
    async fn fail_next_accepted(&self) -> anyhow::Result<bool> {
        Ok(false)
    }

    /// Returns true if the provider can do without the answers of call `first` and of all later calls
    /// since the last [`script`](Self::script) when the cloud denies them: reads of details, for which
    /// a permission may be missing. An operation may then succeed under
    /// [`InjectedFault::Denied`]. The default is `false`: the provider needs each answer.
    async fn are_optional_since(&self, first: u64) -> anyhow::Result<bool> {
        let _ = first;
        Ok(false)
    }

    /// Returns true if the cloud's throttling errors carry a retry delay, like
    /// [`InstanceCloud::reports_retry_after`](super::InstanceCloud::reports_retry_after).
    fn reports_retry_after(&self) -> bool {
        true
    }

    /// Returns the step between the calls or await points at which a rule injects faults: 1, the
    /// default, for each of them, 2 for every second, and so on, starting with the first. Raise it
    /// only for servers that are slow in real time, and also run the suite with 1 on a fast fake.
    fn stride(&self) -> usize {
        1
    }

    /// Returns the maximum duration of one cloud call. Zero, the default, is right if tokio's time
    /// is paused.
    fn answer_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the timeout of each provider call, from which the deadline of its
    /// [`Op`](ccm_core::provider::Op) is computed. By default one minute, as in the framework.
    /// Choose less in real time if lost answers never arrive: otherwise the run takes hours.
    fn call_timeout(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// Returns the secrets that the provider knows, such as passwords and tokens. They must not
    /// appear in any error or event. None by default.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns how long a run may take.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// Removes scripts and delays, and deletes everything that the rule created, whoever owns it.
    /// Does not use the provider for that.
    async fn reset(&self) -> anyhow::Result<()>;
}

/// A fault that is injected into one cloud call, or into it and all later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectedCallFault {
    /// Number of the call, counted from 1.
    pub call: u64,
    /// Effect on the call.
    pub kind: CallFaultKind,
    /// True if the fault also affects all later calls.
    pub lasts: bool,
}

/// Effect of an injected fault on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFaultKind {
    /// The call fails without effect.
    Fails(InjectedFault),
    /// The call takes effect, but its answer does not arrive: the connection breaks, or the caller
    /// runs into its timeout.
    AnswerLost,
}

impl InjectedCallFault {
    /// Makes one call fail.
    pub fn fail(call: u64, fault: InjectedFault) -> Self {
        Self { call, kind: CallFaultKind::Fails(fault), lasts: false }
    }

    /// Loses the answer of one call.
    pub fn lose_answer(call: u64) -> Self {
        Self { call, kind: CallFaultKind::AnswerLost, lasts: false }
    }

    /// Extends the fault to all later calls.
    #[must_use]
    pub fn lasting(self) -> Self {
        Self { lasts: true, ..self }
    }
}

/// Number of calls that were started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCount {
    /// Reading calls.
    pub reads: u64,
    /// Calls that create, change or delete, including those that failed or changed nothing.
    pub writes: u64,
}

impl CallCount {
    /// Returns the total number of calls.
    pub fn calls(self) -> u64 {
        self.reads + self.writes
    }
}
