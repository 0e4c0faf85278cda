//! Hooks before and after the n-th operation that changes something in the API server or a cloud.
//!
//! One [`Hooks`] stands for one process under test: give it to the process's API client
//! ([`crate::apiserver::ClientBuilder::hooks`]) and wrap its provider calls ([`Hooks::around`]).
//! Both count in one sequence, so a test can stop the process at every single write to either side:
//! run once to learn the count, then once per number and [`Point`], and check the resulting state.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Target of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The API server.
    Api,
    /// The cloud.
    Provider,
}

/// An operation that will change something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Target of the operation.
    pub side: Side,
    /// API verb and resource (`patch nodes/status`), or provider call (`ensure_load_balancer`).
    pub action: String,
    /// Object, as `name` or `namespace/name`; empty if there is none.
    pub object: String,
}

/// Time at which a hook acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// The operation fails without effect.
    Before,
    /// The operation takes effect; its answer is lost.
    After,
}

/// Decision of a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookDecision {
    /// The operation continues.
    Continue,
    /// The operation is interrupted here.
    Interrupt,
    /// The operation is interrupted here, and so is every later operation of the process, before
    /// any effect.
    Crash,
}

/// The operation did not finish as seen from the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted {
    /// Number of the operation, from 1; 0 for one after a crash.
    pub number: u64,
    /// [`Point::After`] if the operation took effect.
    pub point: Point,
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let point = if self.point == Point::Before {
            "before"
        } else {
            "after"
        };
        write!(f, "interrupted by a test hook {point} operation {}", self.number)
    }
}

impl std::error::Error for Interrupted {}

type Hook = Arc<dyn Fn(u64, Point, &Operation) -> HookDecision + Send + Sync>;

/// Hooks of one process under test. Clones share them. Without a hook they only count.
#[derive(Clone)]
pub struct Hooks {
    shared: Arc<HooksInner>,
}

struct HooksInner {
    state: Mutex<HooksState>,
    crashed: watch::Sender<bool>,
}

#[derive(Default)]
struct HooksState {
    seen: Vec<Operation>,
    hooks: Vec<Hook>,
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            shared: Arc::new(HooksInner {
                state: Mutex::default(),
                crashed: watch::Sender::new(false),
            }),
        }
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("count", &self.count())
            .field("crashed", &self.has_crashed())
            .finish()
    }
}

impl Hooks {
    /// Creates hooks that only count.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `hook` before and after every operation, with its number (from 1), the point and the
    /// operation.
    pub fn on(
        &self,
        hook: impl Fn(u64, Point, &Operation) -> HookDecision + Send + Sync + 'static,
    ) {
        self.shared.state.lock().hooks.push(Arc::new(hook));
    }

    /// Crashes the process at the `number`-th operation, counted from 1.
    pub fn crash_at(&self, number: u64, point: Point) {
        self.at(number, point, HookDecision::Crash);
    }

    /// Interrupts only the `number`-th operation, counted from 1.
    pub fn interrupt_at(&self, number: u64, point: Point) {
        self.at(number, point, HookDecision::Interrupt);
    }

    fn at(&self, number: u64, point: Point, verdict: HookDecision) {
        self.on(move |n, p, _| {
            if (n, p) == (number, point) {
                verdict
            } else {
                HookDecision::Continue
            }
        });
    }

    /// Returns the number of operations, including interrupted ones, but not those after a crash.
    pub fn count(&self) -> u64 {
        self.shared.state.lock().seen.len() as u64
    }

    /// Returns the operations so far, in order.
    pub fn operations(&self) -> Vec<Operation> {
        self.shared.state.lock().seen.clone()
    }

    /// Returns true if a hook has crashed the process.
    pub fn has_crashed(&self) -> bool {
        *self.shared.crashed.borrow()
    }

    /// Resolves when a hook crashes the process; at once if one has.
    pub async fn crashed(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.shared.crashed.subscribe().wait_for(|c| *c).await;
    }

    /// Clears hooks, count and crash, as for a new process.
    pub fn reset(&self) {
        *self.shared.state.lock() = HooksState::default();
        self.shared.crashed.send_replace(false);
    }

    /// Fails the reads of a process that has crashed.
    ///
    /// # Errors
    /// The process has crashed.
    pub fn alive(&self) -> Result<(), Interrupted> {
        if self.has_crashed() {
            Err(Interrupted { number: 0, point: Point::Before })
        } else {
            Ok(())
        }
    }

    /// Counts an operation and calls the hooks. Returns its number for [`after`](Self::after).
    ///
    /// # Errors
    /// A hook interrupts it, or the process has crashed: it must have no effect.
    pub fn before(&self, operation: &Operation) -> Result<u64, Interrupted> {
        self.alive()?;
        let number = {
            let mut state = self.shared.state.lock();
            state.seen.push(operation.clone());
            state.seen.len() as u64
        };
        self.ask(number, Point::Before, operation).map(|()| number)
    }

    /// Calls the hooks for an operation that took effect.
    ///
    /// # Errors
    /// A hook interrupts it: the caller must not see the answer.
    pub fn after(&self, number: u64, operation: &Operation) -> Result<(), Interrupted> {
        self.ask(number, Point::After, operation)
    }

    /// Runs `call` between [`before`](Self::before) and [`after`](Self::after).
    ///
    /// # Errors
    /// Those of `call`, and [`Interrupted`] in its error type.
    ///
    /// # Cancellation
    /// As `call`; a cancelled call has been counted.
    pub async fn around<T, E: From<Interrupted>>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let number = self.before(&operation)?;
        let result = call.await;
        self.after(number, &operation)?;
        result
    }

    fn ask(&self, number: u64, point: Point, operation: &Operation) -> Result<(), Interrupted> {
        // Not under the lock: a hook may look at the count.
        let hooks = self.shared.state.lock().hooks.clone();
        let verdicts: Vec<HookDecision> = hooks
            .iter()
            .map(|hook| hook(number, point, operation))
            .collect();
        if verdicts.contains(&HookDecision::Crash) {
            self.shared.crashed.send_replace(true);
        }
        if verdicts.iter().all(|v| *v == HookDecision::Continue) {
            Ok(())
        } else {
            Err(Interrupted { number, point })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(action: &str) -> Operation {
        Operation {
            side: Side::Provider,
            action: action.into(),
            object: String::new(),
        }
    }

    #[tokio::test]
    async fn a_crash_lets_nothing_more_happen() {
        let hooks = Hooks::new();
        hooks.crash_at(2, Point::After);
        let done = Mutex::new(0);
        let call = || async {
            *done.lock() += 1;
            Ok::<(), Interrupted>(())
        };
        assert!(hooks.around(operation("a"), call()).await.is_ok());
        let lost = hooks.around(operation("b"), call()).await;
        assert_eq!(lost, Err(Interrupted { number: 2, point: Point::After }));
        hooks.crashed().await;
        assert!(hooks.around(operation("c"), call()).await.is_err());
        assert_eq!((*done.lock(), hooks.count()), (2, 2));
        hooks.reset();
        assert!(hooks.around(operation("d"), call()).await.is_ok());
        assert_eq!(hooks.operations(), [operation("d")]);
    }

    #[tokio::test]
    async fn an_interruption_before_has_no_effect_and_is_alone() {
        let hooks = Hooks::new();
        hooks.interrupt_at(1, Point::Before);
        let failed = hooks
            .around(operation("a"), async { unreachable!("no effect") })
            .await;
        assert_eq!(failed, Err::<(), _>(Interrupted { number: 1, point: Point::Before }));
        assert!(
            hooks
                .around(operation("a"), async { Ok::<(), Interrupted>(()) })
                .await
                .is_ok()
        );
    }
}
