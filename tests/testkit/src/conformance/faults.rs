//! A cloud that changes: what the suites for load balancers and for routes ask of an adapter beyond
//! listing.

use std::time::Duration;

use async_trait::async_trait;
use ccm_core::k8s::NodeView;

use super::{InjectedFault, Limits};

/// A cloud whose calls can be counted and spoilt one by one.
///
/// A *call* is one request of the provider's client to the cloud, as the provider's own retries
/// make them too. The kit counts calls that were begun since the last [`script`](Self::script).
#[async_trait]
pub trait FaultyCloud: Send + Sync + 'static {
    /// Creates a running instance and returns its node as the framework would have initialised it:
    /// with provider ID, addresses, and whatever else the provider reads. Names are lower-case
    /// letters, digits and dashes, unique in the run.
    async fn add_node(&self, name: &str) -> anyhow::Result<NodeView>;

    /// Deletes an instance; succeeds on nothing.
    async fn remove_node(&self, name: &str) -> anyhow::Result<()>;

    /// Starts to count calls from zero, and spoils some of those that follow. Replaces an earlier
    /// script.
    async fn script(&self, trouble: Option<InjectedCallFault>) -> anyhow::Result<()>;

    /// Counts the calls since the last [`script`](Self::script).
    async fn call_count(&self) -> anyhow::Result<CallCount>;

    /// Makes every call wait this long before its effect and again before its answer; zero ends
    /// that. `false` when the cloud cannot, which leaves rules about calls under way unchecked.
    async fn slow_down(&self, latency: Duration) -> anyhow::Result<bool>;

    /// Tells whether an answer that throttles says when to come again; as
    /// [`InstanceCloud::names_pauses`](super::InstanceCloud::names_pauses).
    fn names_pauses(&self) -> bool {
        true
    }

    /// Tells at how many calls and await points rules that try each of them do so: each (1, the
    /// default), or only every second, third and so on, beginning with the first. For servers that
    /// are slow in real time; run the suite on a fast stand-in as well, with all of them.
    fn stride(&self) -> usize {
        1
    }

    /// Longest time that one call takes by itself. Zero, the default, is right where tokio's time
    /// is paused.
    fn answer_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Time that each provider call is given, as its [`Op`](ccm_core::provider::Op)'s deadline: the
    /// framework's minute by default. A cloud in real time whose lost answers never come chooses
    /// less, so that the run does not take hours.
    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// Returns secrets that the provider knows, such as passwords and tokens, none of which may be
    /// read anywhere; none by default.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns how long a run may take.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// Ends scripts and slowness and removes, by hand and whoever owns it, everything that the rule
    /// made.
    async fn reset(&self) -> anyhow::Result<()>;
}

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectedCallFault {
    /// Number of the call, from 1.
    pub call: u64,
    /// What happens to it.
    pub kind: CallFaultKind,
    /// Whether it happens to all later calls too.
    pub lasts: bool,
}

/// How a call is spoilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFaultKind {
    /// It fails and has no effect.
    Fails(InjectedFault),
    /// It has its effect, but the answer does not arrive: the connection breaks, or nothing comes
    /// until the caller gives up.
    AnswerLost,
}

impl InjectedCallFault {
    /// Fails one call.
    pub fn fail(call: u64, fault: InjectedFault) -> Self {
        Self { call, kind: CallFaultKind::Fails(fault), lasts: false }
    }

    /// Loses the answer of one call.
    pub fn lose_answer(call: u64) -> Self {
        Self { call, kind: CallFaultKind::AnswerLost, lasts: false }
    }

    /// Goes on to all later calls.
    #[must_use]
    pub fn lasting(self) -> Self {
        Self { lasts: true, ..self }
    }
}

/// Calls that were begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCount {
    /// Calls that read.
    pub reads: u64,
    /// Calls that create, change or delete, also those that failed or had nothing to do.
    pub writes: u64,
}

impl CallCount {
    /// Returns the number of all calls.
    pub fn calls(self) -> u64 {
        self.reads + self.writes
    }
}
