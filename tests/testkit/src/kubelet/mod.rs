//! Simulated kubelets. They register Nodes, report conditions, renew leases and fall silent, through
//! any client.
//!
//! They follow a kubelet's rules if a cloud-controller-manager can observe the difference. They
//! write addresses only while the status has none, and only their own conditions. A kubelet whose
//! Node was deleted does not register again until it is restarted
//! (`pkg/kubelet/kubelet_node_status.go` in Kubernetes).

mod shape;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub use shape::{NodeShape, NodeSpec, PROVIDED_NODE_IP, Ready, UNINITIALIZED_TAINT};

/// Options of simulated kubelets.
#[derive(Debug, Clone)]
pub struct KubeletOptions {
    /// Size of each Node object.
    pub shape: NodeShape,
    /// Interval of reports of an unchanged status. Five minutes by default, like a kubelet's
    /// `nodeStatusReportFrequency`; a change is reported at once.
    pub report_period: Duration,
    /// Interval of renewals of the Lease in `kube-node-lease`; `None`, the default, means no Lease.
    /// A real kubelet renews every ten seconds.
    pub lease_period: Option<Duration>,
    /// Maximum number of requests in flight, over all kubelets. 32 by default.
    pub concurrency: usize,
}

impl Default for KubeletOptions {
    fn default() -> Self {
        Self {
            shape: NodeShape::Light,
            report_period: Duration::from_mins(5),
            lease_period: None,
            concurrency: 32,
        }
    }
}

/// Error of a simulated kubelet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubeletError {
    /// The API server rejected a write or could not be reached.
    #[error("{action} node {node}")]
    Api {
        /// Action that failed.
        action: &'static str,
        /// The node's name.
        node: String,
        /// The cause.
        source: kube::Error,
    },
    /// No such kubelet runs.
    #[error("no simulated kubelet runs for node {0}")]
    Unknown(String),
    /// A kubelet of that name runs already.
    #[error("a simulated kubelet runs for node {0} already")]
    Running(String),
}

/// Maximum number of attempts of a request: with the delays below, about twenty seconds.
const ATTEMPTS: u32 = 8;
/// First pause between attempts, doubled each time up to [`LONGEST_PAUSE`]: a kubelet's own when it
/// registers.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(7);

/// A set of simulated kubelets. Dropping it silences them all; [`stop`](Self::stop) also waits for
/// them.
#[derive(Debug)]
pub struct Kubelets {
    shared: Arc<KubeletsInner>,
    running: Mutex<BTreeMap<String, Running>>,
    tasks: TaskTracker,
    cancel: CancellationToken,
    _cancel_on_drop: DropGuard,
}

/// State that all kubelets of a set share.
struct KubeletsInner {
    nodes: Api<Node>,
    leases: Api<Lease>,
    options: KubeletOptions,
    in_flight: Semaphore,
    failed_reports: AtomicUsize,
    registered: AtomicUsize,
    /// The wall clock when the set was made, and tokio's clock at that moment: time goes on by
    /// tokio's clock, so that tests under paused time see the same time everywhere.
    started: (Timestamp, Instant),
}

impl std::fmt::Debug for KubeletsInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeletsInner")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Running {
    kubelet: Arc<Kubelet>,
    cancel: CancellationToken,
}

/// One simulated kubelet.
#[derive(Debug)]
struct Kubelet {
    spec: NodeSpec,
    /// UID of the Node it registered, for the lease's owner.
    uid: String,
    /// Held while a report is written, so that an older state never overwrites a newer one.
    state: tokio::sync::Mutex<KubeletState>,
}

#[derive(Debug)]
struct KubeletState {
    ready: Ready,
    transition: Timestamp,
}

impl Kubelets {
    /// Creates an empty set of kubelets that use `client`.
    pub fn new(client: kube::Client, options: KubeletOptions) -> Self {
        let cancel = CancellationToken::new();
        let shared = KubeletsInner {
            nodes: Api::all(client.clone()),
            leases: Api::namespaced(client, "kube-node-lease"),
            in_flight: Semaphore::new(options.concurrency.max(1)),
            options,
            failed_reports: AtomicUsize::new(0),
            registered: AtomicUsize::new(0),
            started: (Timestamp::now(), Instant::now()),
        };
        Self {
            shared: Arc::new(shared),
            running: Mutex::default(),
            tasks: TaskTracker::new(),
            _cancel_on_drop: cancel.clone().drop_guard(),
            cancel,
        }
    }

    /// Registers one node and starts its kubelet. An existing Node is taken over as it is, and its
    /// conditions are reported again, as by a restarted kubelet.
    ///
    /// # Errors
    /// When the API server refuses, or stays unreachable or overloaded for about twenty seconds.
    pub async fn register(&self, spec: NodeSpec) -> Result<(), KubeletError> {
        if self.running.lock().contains_key(&spec.name) {
            return Err(KubeletError::Running(spec.name));
        }
        let node = self.shared.create_or_adopt(&spec).await?;
        let name = spec.name.clone();
        let state = KubeletState { ready: Ready::True, transition: self.shared.now() };
        let uid = node.metadata.uid.unwrap_or_default();
        let kubelet = Arc::new(Kubelet { spec, uid, state: tokio::sync::Mutex::new(state) });
        let cancel = self.cancel.child_token();
        let order = self.shared.registered.fetch_add(1, Ordering::Relaxed);
        let run = Arc::clone(&self.shared).run(Arc::clone(&kubelet), order);
        let until = cancel.clone();
        self.tasks
            .spawn(async move { until.run_until_cancelled(run).await });
        if let Some(twin) = self
            .running
            .lock()
            .insert(name, Running { kubelet, cancel })
        {
            // Two registrations of one name crossed: the later one stays.
            twin.cancel.cancel();
        }
        Ok(())
    }

    /// Registers many nodes, [`KubeletOptions::concurrency`] at a time.
    ///
    /// # Errors
    /// The first failure; others may have been registered.
    pub async fn register_all(
        &self,
        specs: impl IntoIterator<Item = NodeSpec>,
    ) -> Result<(), KubeletError> {
        stream::iter(specs)
            .map(|spec| self.register(spec))
            .buffer_unordered(self.shared.options.concurrency.max(1))
            .try_collect()
            .await
    }

    /// Changes a node's Ready condition and reports it at once. [`Ready::Unknown`] silences the
    /// kubelet and writes what the control plane's node-lifecycle controller would write after a
    /// while; the other two wake it again.
    ///
    /// # Errors
    /// [`KubeletError::Unknown`] for a node without a running kubelet, or the API server's refusal.
    pub async fn set_ready(&self, name: &str, ready: impl Into<Ready>) -> Result<(), KubeletError> {
        let ready = ready.into();
        let kubelet = self
            .running
            .lock()
            .get(name)
            .map(|running| Arc::clone(&running.kubelet));
        let kubelet = kubelet.ok_or_else(|| KubeletError::Unknown(name.to_owned()))?;
        let mut state = kubelet.state.lock().await;
        if state.ready != ready {
            *state = KubeletState { ready, transition: self.shared.now() };
        }
        self.shared
            .report(&kubelet.spec.name, &state)
            .await
            .map(drop)
    }

    /// Stops one kubelet as a power failure would: its Node stays as it is.
    ///
    /// # Errors
    /// [`KubeletError::Unknown`] for a node without a running kubelet.
    pub fn stop_node(&self, name: &str) -> Result<NodeSpec, KubeletError> {
        let running = self
            .running
            .lock()
            .remove(name)
            .ok_or_else(|| KubeletError::Unknown(name.to_owned()))?;
        running.cancel.cancel();
        Ok(running.kubelet.spec.clone())
    }

    /// Restarts one kubelet. It registers again if its Node was deleted.
    ///
    /// # Errors
    /// As for [`stop_node`](Self::stop_node) and [`register`](Self::register).
    pub async fn restart(&self, name: &str) -> Result<(), KubeletError> {
        let spec = self.stop_node(name)?;
        self.register(spec).await
    }

    /// Returns the sorted names of the nodes with a running kubelet.
    pub fn names(&self) -> Vec<String> {
        self.running.lock().keys().cloned().collect()
    }

    /// Returns the number of periodic reports and lease renewals that failed, also because the Node
    /// was deleted. A kubelet continues after a failure.
    pub fn failed_reports(&self) -> usize {
        self.shared.failed_reports.load(Ordering::Relaxed)
    }

    /// Stops all kubelets and waits for them; their Nodes stay as they are.
    pub async fn stop(self) {
        self.cancel.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl KubeletsInner {
    fn now(&self) -> Timestamp {
        let (wall, start) = self.started;
        // Saturates: no test runs for so long.
        let elapsed = SignedDuration::try_from(start.elapsed()).unwrap_or(SignedDuration::MAX);
        wall.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }

    /// Reports and renews for ever. The n-th kubelet's first turn comes at its own moment of the
    /// period, so that hundreds of them do not write together.
    async fn run(self: Arc<Self>, kubelet: Arc<Kubelet>, order: usize) {
        let start = |period: Duration| {
            // Multiples of the golden ratio spread evenly, however many there are.
            let share = (order as f64 * 0.618_034).fract();
            let mut ticks = interval_at(Instant::now() + period.mul_f64(1.0 - share), period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        };
        let reports = async {
            let mut ticks = start(self.options.report_period);
            loop {
                ticks.tick().await;
                let state = kubelet.state.lock().await;
                if state.ready != Ready::Unknown {
                    self.count_failure("report", self.report(&kubelet.spec.name, &state).await);
                }
            }
        };
        let renewals = async {
            let Some(period) = self.options.lease_period else {
                return;
            };
            let mut ticks = start(period);
            let mut held = None;
            loop {
                if kubelet.state.lock().await.ready != Ready::Unknown {
                    let renewed = self.renew(&kubelet, held.take()).await;
                    held = self.count_failure("renew", renewed);
                }
                ticks.tick().await;
            }
        };
        tokio::join!(reports, renewals);
    }

    /// Counts a failure. A kubelet continues after any failure; tests can query the count.
    fn count_failure<T>(&self, what: &str, result: Result<T, KubeletError>) -> Option<T> {
        result
            .inspect_err(|error| {
                self.failed_reports.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(
                    what,
                    error = error as &dyn std::error::Error,
                    "simulated kubelet failed"
                );
            })
            .ok()
    }

    async fn create_or_adopt(&self, spec: &NodeSpec) -> Result<Node, KubeletError> {
        let node: Node = typed(shape::node(spec, self.options.shape, self.now()));
        let params = PostParams::default();
        match self.attempt(|| self.nodes.create(&params, &node)).await {
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                self.adopt(spec).await
            }
            created => created.map_err(|source| failure("register", &spec.name, source)),
        }
    }

    /// Continues with an existing Node: reports conditions, and addresses only if there are none.
    async fn adopt(&self, spec: &NodeSpec) -> Result<Node, KubeletError> {
        let node = self.attempt(|| self.nodes.get(&spec.name)).await;
        let node = node.map_err(|source| failure("read", &spec.name, source))?;
        let has_addresses = node
            .status
            .as_ref()
            .and_then(|status| status.addresses.as_ref())
            .is_some_and(|list| !list.is_empty());
        let now = self.now();
        let mut status = json!({"conditions": shape::conditions(Ready::True, now, now)});
        if let (false, Some(addresses)) = (has_addresses, shape::addresses(spec)) {
            status["addresses"] = addresses;
        }
        self.patch_status(&spec.name, status).await
    }

    async fn report(&self, name: &str, state: &KubeletState) -> Result<Node, KubeletError> {
        let conditions = shape::conditions(state.ready, self.now(), state.transition);
        self.patch_status(name, json!({"conditions": conditions}))
            .await
    }

    /// Kubelets send strategic merge patches: conditions are merged by type, so those of others
    /// stay.
    async fn patch_status(&self, name: &str, status: Value) -> Result<Node, KubeletError> {
        let patch = Patch::Strategic(json!({"status": status}));
        let params = PatchParams::default();
        let patched = self
            .attempt(|| self.nodes.patch_status(name, &params, &patch))
            .await;
        patched.map_err(|source| failure("report the status of", name, source))
    }

    /// Writes the lease: updates the known one, otherwise an existing one, otherwise creates one.
    async fn renew(&self, kubelet: &Kubelet, held: Option<Lease>) -> Result<Lease, KubeletError> {
        let name = &kubelet.spec.name;
        let params = PostParams::default();
        let result = async {
            let found = match held {
                Some(lease) => Some(lease),
                None => self.attempt(|| self.leases.get_opt(name)).await?,
            };
            let mut lease: Lease = typed(shape::lease(name, &kubelet.uid, self.now()));
            match found {
                Some(found) => {
                    lease.metadata = found.metadata;
                    self.attempt(|| self.leases.replace(name, &params, &lease))
                        .await
                }
                None => self.attempt(|| self.leases.create(&params, &lease)).await,
            }
        };
        result
            .await
            .map_err(|source| failure("renew the lease of", name, source))
    }

    /// Sends a request within the limit of requests in flight, and retries it while the server
    /// cannot serve it.
    async fn attempt<T, F>(&self, request: impl Fn() -> F) -> kube::Result<T>
    where
        F: Future<Output = kube::Result<T>>,
    {
        let mut pause = FIRST_PAUSE;
        let mut left = ATTEMPTS;
        loop {
            let answer = {
                // The semaphore is never closed; were it, the request would merely be unbounded.
                let _permit = self.in_flight.acquire().await;
                // Boxed, so that the tasks of hundreds of idle kubelets stay small.
                Box::pin(request()).await
            };
            left -= 1;
            match answer {
                Err(error) if left > 0 && is_temporary(&error) => tokio::time::sleep(pause).await,
                answer => return answer,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Returns true if the server did not answer, is overloaded or failed, rather than rejected the
/// request.
fn is_temporary(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        kube::Error::Service(_) | kube::Error::HyperError(_) => true,
        _ => false,
    }
}

fn failure(action: &'static str, node: &str, source: kube::Error) -> KubeletError {
    KubeletError::Api { action, node: node.to_owned(), source }
}

/// Reads an object that [`shape`] made.
fn typed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object made in this module has the API's shape")
}
