//! What happened to a cloud's load balancers, and a trap that goes off in the middle of a call.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use ccm_mock::MockCloud;
use ccm_mock::cloud::{CallHook, Operation};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Keeps the books of a cloud while it is its hook; cheap to clone, all clones are one.
#[derive(Clone)]
pub struct LoadBalancerHistory(Arc<HistoryInner>);

struct HistoryInner {
    cloud: MockCloud,
    state: Mutex<HistoryState>,
}

#[derive(Default)]
struct HistoryState {
    /// UID of the Service of each balancer that was there, by the balancer's ID, which is never
    /// used twice.
    present: BTreeMap<String, String>,
    /// Balancers that went, by UID of their Service.
    lost: BTreeMap<String, usize>,
    trap: Option<(CallBreakpoint, oneshot::Sender<()>)>,
}

/// A point in the middle of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallBreakpoint {
    /// Calls that change the cloud and still pass.
    pub skip: usize,
    /// Whether the call has its effect and only its answer never comes.
    pub after: bool,
}

impl LoadBalancerHistory {
    /// Opens the books and becomes the cloud's hook.
    pub fn open(cloud: &MockCloud) -> Self {
        let shared = HistoryInner { cloud: cloud.clone(), state: Mutex::default() };
        let ledger = Self(Arc::new(shared));
        cloud.set_hook(Some(Arc::new(ledger.clone())));
        ledger
    }

    /// Sets a trap, in place of the last one. The answer resolves when it has gone off; the call
    /// that it caught is never answered.
    pub fn set_trap(&self, trap: CallBreakpoint) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.0.state.lock().trap = Some((trap, sender));
        receiver
    }

    /// Takes the trap away.
    pub fn disarm(&self) {
        self.0.state.lock().trap = None;
    }

    /// How many balancers each Service, by UID, has lost so far.
    pub fn lost(&self) -> BTreeMap<String, usize> {
        self.record();
        self.0.state.lock().lost.clone()
    }

    fn record(&self) {
        // Read with the books in hand: of two looks at once, the older one written last would have
        // a balancer lost that was created between them.
        let mut state = self.0.state.lock();
        let now: BTreeMap<_, _> = self
            .0
            .cloud
            .load_balancers()
            .into_iter()
            .map(|b| (b.id, b.uid))
            .collect();
        let before = std::mem::take(&mut state.present);
        for (_, uid) in before.iter().filter(|(id, _)| !now.contains_key(*id)) {
            *state.lost.entry(uid.clone()).or_default() += 1;
        }
        state.present = now;
    }

    /// Returns whom to tell if the trap goes off.
    fn springs(&self, operation: Operation, after: bool) -> Option<oneshot::Sender<()>> {
        let mut state = self.0.state.lock();
        let (trap, _) = state
            .trap
            .as_mut()
            .filter(|(trap, _)| trap.after == after && operation.is_write())?;
        if trap.skip > 0 {
            trap.skip -= 1;
            return None;
        }
        state.trap.take().map(|(_, sender)| sender)
    }

    async fn wait_if_caught(&self, operation: Operation, after: bool) {
        if let Some(sprung) = self.springs(operation, after) {
            // Nobody listens any more when the caller was killed at another moment.
            let _ = sprung.send(());
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl CallHook for LoadBalancerHistory {
    async fn before(&self, _: u64, operation: Operation) {
        self.wait_if_caught(operation, false).await;
    }

    async fn after(&self, _: u64, operation: Operation) {
        if operation.is_write() {
            self.record();
        }
        self.wait_if_caught(operation, true).await;
    }
}

#[cfg(test)]
mod tests {
    use ccm_mock::CloudConfig;
    use ccm_mock::cloud::{
        CloudApi as _, LoadBalancerKey, LoadBalancerSettings, LoadBalancerSpec, Members,
    };
    use futures::FutureExt as _;

    use super::*;

    fn key(uid: &str) -> LoadBalancerKey {
        LoadBalancerKey {
            cluster: "c".to_owned(),
            uid: uid.to_owned(),
            name: format!("a{uid}"),
            service: format!("default/{uid}"),
        }
    }

    async fn create(cloud: &MockCloud, uid: &str) {
        let members = Members::default();
        let spec = LoadBalancerSpec {
            key: key(uid),
            settings: LoadBalancerSettings::default(),
            members,
            activation: None,
        };
        cloud
            .create_load_balancer(&spec)
            .await
            .expect("the cloud makes it");
    }

    #[tokio::test]
    async fn every_balancer_that_goes_is_counted_for_its_service() {
        let cloud = MockCloud::new(&CloudConfig::default()).expect("the defaults are valid");
        let ledger = LoadBalancerHistory::open(&cloud);
        for _ in 0..2 {
            create(&cloud, "u1").await;
            cloud
                .delete_load_balancer(&key("u1"))
                .await
                .expect("the cloud deletes it");
        }
        create(&cloud, "u2").await;
        assert_eq!(ledger.lost(), [("u1".to_owned(), 2)].into());
        cloud.remove_load_balancer("au2");
        assert_eq!(ledger.lost(), [("u1".to_owned(), 2), ("u2".to_owned(), 1)].into());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn of_many_calls_at_once_none_is_taken_for_a_loss() {
        let cloud = MockCloud::new(&CloudConfig::default()).expect("the defaults are valid");
        let ledger = LoadBalancerHistory::open(&cloud);
        let mut calls = tokio::task::JoinSet::new();
        for task in 0..8 {
            let cloud = cloud.clone();
            calls.spawn(async move {
                for n in 0..100 {
                    create(&cloud, &format!("u{task}-{n}")).await;
                }
            });
        }
        calls.join_all().await;
        assert_eq!(ledger.lost(), BTreeMap::new());
        assert_eq!(cloud.load_balancers().len(), 800);
    }

    #[tokio::test]
    async fn a_trap_catches_one_call_before_or_after_its_effect() {
        for (after, there) in [(false, 1), (true, 2)] {
            let cloud = MockCloud::new(&CloudConfig::default()).expect("the defaults are valid");
            let ledger = LoadBalancerHistory::open(&cloud);
            let mut sprung = ledger.set_trap(CallBreakpoint { skip: 1, after });
            create(&cloud, "passes").await;
            assert!(sprung.try_recv().is_err(), "the first call is let pass");
            assert_eq!(create(&cloud, "caught").now_or_never(), None, "it was answered");
            assert!(sprung.try_recv().is_ok());
            assert_eq!(cloud.load_balancers().len(), there);
            create(&cloud, "later").await;
        }
    }
}
