//! Everything that was ever written to a Lease, from a watch.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::{Api, WatchEvent, WatchParams};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How one term of leadership followed the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handover {
    /// There was none.
    First,
    /// It was given back.
    Released,
    /// It ran out.
    Expired,
}

/// What one holder wrote.
#[derive(Debug)]
pub(crate) struct Term {
    pub(crate) holder: String,
    pub(crate) handover: Handover,
}

/// States of a Lease, each with the moment at which it was seen.
pub(crate) struct History {
    seen: Arc<Mutex<Vec<(Instant, LeaseSpec)>>>,
    _task: JoinSet<()>,
}

impl History {
    /// Watches a Lease of kube-system that is not there yet.
    pub(crate) async fn follow(client: kube::Client, name: &str) -> Self {
        let seen: Arc<Mutex<Vec<_>>> = Arc::default();
        let (all, selector, mut task) =
            (seen.clone(), format!("metadata.name={name}"), JoinSet::new());
        let (opened, open) = tokio::sync::oneshot::channel();
        task.spawn(async move {
            let leases: Api<Lease> = Api::namespaced(client, "kube-system");
            // Shorter than any scenario's end is no use, so it is not opened again.
            let parameters = WatchParams::default().fields(&selector).timeout(290);
            let Ok(watch) = leases.watch(&parameters, "0").await else {
                return;
            };
            let mut watch = watch.boxed();
            // Nobody waits any more only when the scenario has ended.
            let _ = opened.send(());
            while let Ok(Some(event)) = watch.try_next().await {
                if let WatchEvent::Added(Lease { spec: Some(spec), .. })
                | WatchEvent::Modified(Lease { spec: Some(spec), .. }) = event
                {
                    all.lock().push((Instant::now(), spec));
                }
            }
        });
        // Without a watch there will be no terms, which is noticed.
        let _ = open.await;
        Self { seen, _task: task }
    }

    /// Waits until the Lease has its `number`-th holder, and one of `parties` says that it leads;
    /// returns which.
    pub(crate) async fn until_held<T>(
        &self,
        number: usize,
        limit: Duration,
        parties: &[T],
        leads: impl Fn(&T) -> bool,
    ) -> anyhow::Result<usize> {
        let wait = async {
            loop {
                if self.holders().len() >= number
                    && let Some(leader) = parties.iter().position(&leads)
                {
                    return leader;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let waited = tokio::time::timeout(limit, wait).await;
        waited.with_context(|| {
            format!("no leader {number} within {limit:?}; there were {:?}", self.holders())
        })
    }

    fn holders(&self) -> Vec<String> {
        let seen = self.seen.lock();
        let mut holders: Vec<_> = seen
            .iter()
            .filter_map(|(_, spec)| spec.holder_identity.clone())
            .collect();
        holders.retain(|holder| !holder.is_empty());
        holders.dedup();
        holders
    }

    /// Takes the history apart and judges it: every state is complete, a holder only renews, and
    /// the next one comes after the lease was given back or has run out, counting one transition.
    /// `duration` is that of every lease.
    pub(crate) fn terms(&self, duration: Duration) -> anyhow::Result<Vec<Term>> {
        let seen = self.seen.lock();
        let mut terms: Vec<Term> = Vec::new();
        // The last state with a holder, and whether it was given back since.
        let mut last: Option<(Instant, &LeaseSpec)> = None;
        let mut released = false;
        for (at, spec) in &*seen {
            let holder = spec.holder_identity.clone().unwrap_or_default();
            if holder.is_empty() {
                released = true;
                continue;
            }
            let seconds = i32::try_from(duration.as_secs())?;
            anyhow::ensure!(
                spec.lease_duration_seconds == Some(seconds),
                "not the duration: {spec:?}"
            );
            let renewed = spec
                .renew_time
                .as_ref()
                .with_context(|| format!("not renewed: {spec:?}"))?;
            let acquired = spec
                .acquire_time
                .as_ref()
                .with_context(|| format!("not acquired: {spec:?}"))?;
            anyhow::ensure!(acquired.0 <= renewed.0, "renewed before it was acquired: {spec:?}");
            let handover = match last {
                None => Handover::First,
                Some((_, before))
                    if before.holder_identity == spec.holder_identity && !released =>
                {
                    let same = before.acquire_time == spec.acquire_time
                        && before.lease_transitions == spec.lease_transitions
                        && before
                            .renew_time
                            .as_ref()
                            .is_some_and(|before| before.0 < renewed.0);
                    anyhow::ensure!(same, "no renewal of {before:?}: {spec:?}");
                    last = Some((*at, spec));
                    continue;
                }
                Some((since, before)) => {
                    let transitions = before.lease_transitions.unwrap_or(0) + 1;
                    anyhow::ensure!(
                        spec.lease_transitions == Some(transitions),
                        "after {before:?}: {spec:?}"
                    );
                    let waited = at.duration_since(since);
                    // Both moments are those at which the watch told; it is not that much late.
                    let expired = waited + Duration::from_millis(300) >= duration;
                    anyhow::ensure!(
                        released || expired,
                        "{holder} took the lease {waited:?} after {before:?}"
                    );
                    anyhow::ensure!(
                        !released || waited < duration,
                        "{holder} waited {waited:?} for a free lease"
                    );
                    if released {
                        Handover::Released
                    } else {
                        Handover::Expired
                    }
                }
            };
            terms.push(Term { holder, handover });
            (last, released) = (Some((*at, spec)), false);
        }
        Ok(terms)
    }
}
