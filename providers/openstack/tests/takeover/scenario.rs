//! Upstream makes everything, ours takes over, changes and deletes some of it, and upstream takes
//! it back.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::Context as _;
use ccm_e2e::ccm::Ccm;
use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    calls::{self, ServiceIndex},
    environment::{ManagerKind, Programs, SOON, TakeoverEnvironment},
    recorder::Recorded,
    services::{self, Round, ServiceKind},
    table::{self, Situation},
};

/// Nothing may be asked about load balancers for so long before a manager counts as done.
const QUIET: Duration = Duration::from_millis(2500);
const LOOK: Duration = Duration::from_millis(200);

pub(crate) async fn tell(programs: Programs, round: Round) -> anyhow::Result<()> {
    let stage = TakeoverEnvironment::new(programs, round).await?;
    let kinds = services::kinds(round, &stage.world.ids);
    TakeoverScenario { round, stage, kinds: BTreeSet::new() }
        .play(kinds)
        .await
}

/// A cluster with its Services.
pub(crate) struct TakeoverScenario {
    pub(crate) round: Round,
    pub(crate) stage: TakeoverEnvironment,
    pub(crate) kinds: BTreeSet<String>,
}

impl TakeoverScenario {
    async fn play(&mut self, kinds: Vec<ServiceKind>) -> anyhow::Result<()> {
        let mut before = self.stage.left();
        let upstream = self.stage.start(ManagerKind::Upstream).await?;
        self.stage.join(2).await?;
        // Upstream's loops for nodes and for Services may do the same at once.
        self.settled(&upstream).await?;
        for kind in kinds {
            self.create(kind).await?;
        }
        self.settled(&upstream).await?;
        let upstream = self
            .swap(upstream, ManagerKind::Upstream, Situation::Upstream)
            .await?;
        let ours = self
            .swap(upstream, ManagerKind::OursChecking, Situation::Takeover)
            .await?;
        let ours = self
            .swap(ours, ManagerKind::Ours, Situation::Restart)
            .await?;

        self.create(services::later()).await?;
        self.change("one", json!([{"name": "new", "port": 81, "protocol": "TCP"}]))
            .await?;
        self.change("mixed", json!([{"name": "dns", "port": 53, "protocol": "UDP"}]))
            .await?;
        self.stage.join(1).await?;
        self.settled(&ours).await?;
        for name in self
            .kinds
            .iter()
            .cloned()
            .enumerate()
            .filter(|(n, _)| n % 3 == 0)
            .map(|(_, name)| name)
            .collect::<Vec<_>>()
        {
            self.delete(&name).await?;
        }
        self.settled(&ours).await?;
        let upstream = self
            .swap(ours, ManagerKind::Upstream, Situation::Rollback)
            .await?;
        self.change("later", json!([{"name": "new", "port": 82, "protocol": "TCP"}]))
            .await?;
        self.settled(&upstream).await?;
        for name in self.kinds.clone() {
            self.delete(&name).await?;
        }
        self.settled(&upstream).await?;
        let seen = self.stage.world.recorder.take();
        if self.round == Round::Plain {
            before.push(
                "Floating IP for Kubernetes external service default/keep from cluster kubernetes None".to_owned(),
            );
            before.sort();
        }
        let left = self.stage.left();
        anyhow::ensure!(
            left == before,
            "there is now {left:#?}, and should be {before:#?}; upstream asked for\n{}",
            calls::lines(&seen, &ServiceIndex::default())
        );
        self.stage.end(upstream).await
    }

    pub(crate) async fn create(&mut self, kind: ServiceKind) -> anyhow::Result<()> {
        let manifest: Service = serde_json::from_value(kind.manifest())?;
        self.stage
            .services()
            .create(&PostParams::default(), &manifest)
            .await?;
        self.kinds.insert(kind.name.to_owned());
        Ok(())
    }

    /// Waits until everything is as it should be and nothing is asked for any more; returns what
    /// was asked for.
    pub(crate) async fn settled(&self, ccm: &Ccm) -> anyhow::Result<Vec<Recorded>> {
        let deadline = Instant::now() + SOON;
        loop {
            let nodes = self.stage.nodes_are_ready().await?;
            let services = self
                .stage
                .services()
                .list(&ListParams::default())
                .await?
                .items;
            let waiting: Vec<_> = services
                .iter()
                .filter(|s| self.waits(s))
                .filter_map(|s| s.metadata.name.clone())
                .collect();
            if nodes && waiting.is_empty() && services.len() == self.kinds.len() + 1 {
                return self.quiet(Vec::new()).await;
            }
            if Instant::now() >= deadline {
                let seen = self.stage.world.recorder.take();
                let refused = calls::refused(&seen).join("\n");
                anyhow::bail!(
                    "nodes are ready: {nodes}; Services without an address: {waiting:?}; Services: {}\n{refused}\n{}",
                    services.len(),
                    last(&ccm.log())
                );
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn waits(&self, service: &Service) -> bool {
        let known = service
            .metadata
            .name
            .as_ref()
            .is_some_and(|name| self.kinds.contains(name));
        let ingress = service
            .status
            .as_ref()
            .and_then(|s| s.load_balancer.as_ref()?.ingress.as_ref());
        known && ingress.is_none_or(Vec::is_empty)
    }

    /// Waits until nothing more is asked about load balancers, nor changed; returns all that was
    /// asked.
    pub(crate) async fn quiet(&self, mut seen: Vec<Recorded>) -> anyhow::Result<Vec<Recorded>> {
        let deadline = Instant::now() + SOON;
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            if Instant::now() >= deadline {
                let whose = self.whose();
                anyhow::bail!(
                    "requests about load balancers do not end\n{}",
                    calls::lines(&seen, &whose)
                );
            }
            let more = self.stage.world.recorder.take();
            if more.iter().any(|request| {
                request.path.starts_with("/load-balancer/") || calls::changes(request)
            }) {
                since = Instant::now();
            }
            seen.extend(more);
            tokio::time::sleep(LOOK).await;
        }
        Ok(seen)
    }

    fn whose(&self) -> ServiceIndex {
        self.stage
            .world
            .peek(|state| ServiceIndex::of(state, &self.kinds))
    }

    /// Replaces a manager, and makes sure that its successor changes what is listed and nothing
    /// else.
    async fn swap(
        &mut self,
        old: Ccm,
        who: ManagerKind,
        situation: Situation,
    ) -> anyhow::Result<Ccm> {
        let (before, routes, whose) = (self.picture().await?, self.stage.routes(), self.whose());
        self.stage.end(old).await?;
        if matches!(situation, Situation::Upstream | Situation::Takeover) {
            // Others wait until it has run out.
            self.stage.release_lease().await?;
        }
        let _ = self.stage.world.recorder.take();
        let new = self.stage.start(who).await?;
        let seen = self.looked(who).await.with_context(|| new.log())?;
        let seen = if who == ManagerKind::OursChecking {
            seen
        } else {
            self.quiet(seen).await?
        };
        let (changes, expected) =
            (calls::count(&seen, &whose), table::expected(self.round, situation));
        anyhow::ensure!(
            changes == expected,
            "{who:?} ({situation:?}) made other changing calls than are listed\nlisted: {expected:?}\nmade: {changes:?}\n{}\n{}",
            calls::lines(&seen, &whose),
            last(&new.log())
        );
        let refused = calls::refused(&seen);
        anyhow::ensure!(
            refused.is_empty(),
            "{who:?} ({situation:?}) was refused:\n{}",
            refused.join("\n")
        );
        anyhow::ensure!(
            routes == self.stage.routes(),
            "{who:?} changed routes {routes:?} to {:?}",
            self.stage.routes()
        );
        let after = self.picture().await?;
        for (name, object) in &before {
            anyhow::ensure!(
                after.get(name) == Some(object),
                "{who:?} changed {name}: {object}\nto {:?}",
                after.get(name).map(Value::to_string)
            );
        }
        Ok(new)
    }

    /// Waits until a manager has looked at every load balancer; one that compares all the time,
    /// twice since the last change.
    async fn looked(&self, who: ManagerKind) -> anyhow::Result<Vec<Recorded>> {
        let deadline = Instant::now() + SOON;
        let balancers = self
            .stage
            .world
            .peek(|state| ServiceIndex::balancers(state, &self.kinds));
        anyhow::ensure!(balancers.len() == self.kinds.len(), "only {balancers:?} have balancers");
        let checks = who == ManagerKind::OursChecking;
        let mut seen = Vec::new();
        loop {
            seen.extend(self.stage.world.recorder.take());
            let since = if checks {
                seen.iter().rposition(calls::changes).map_or(0, |at| at + 1)
            } else {
                0
            };
            let looked = |id: &str| {
                // By itself, or in a list of all that there are.
                let one = |request: &&Recorded| {
                    let all = request.path.ends_with("/loadbalancers")
                        && !request.query.contains("name=");
                    request.method == "GET"
                        && (all || request.path.contains(id) || request.query.contains(id))
                };
                seen[since..].iter().filter(one).count() >= if checks { 3 } else { 1 }
            };
            let missing: Vec<_> = balancers
                .iter()
                .filter(|(_, id)| !looked(id))
                .map(|(name, _)| name)
                .collect();
            if missing.is_empty() {
                return Ok(seen);
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "not looked at: {missing:?}; changes were\n{}",
                calls::lines(&seen, &self.whose())
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Nodes and Services, but for what changes although nothing does.
    pub(crate) async fn picture(&self) -> anyhow::Result<BTreeMap<String, Value>> {
        let mut objects = BTreeMap::new();
        for node in self
            .stage
            .nodes_api()
            .list(&ListParams::default())
            .await?
            .items
        {
            objects.insert(
                format!("node {}", node.metadata.name.clone().unwrap_or_default()),
                serde_json::to_value(node)?,
            );
        }
        for service in self
            .stage
            .services()
            .list(&ListParams::default())
            .await?
            .items
        {
            let name = format!("service {}", service.metadata.name.clone().unwrap_or_default());
            objects.insert(name, serde_json::to_value(service)?);
        }
        objects.values_mut().for_each(leave_out_heartbeats);
        Ok(objects)
    }

    /// Gives a Service other ports, if it is one of the round.
    async fn change(&self, name: &str, ports: Value) -> anyhow::Result<()> {
        if self.kinds.contains(name) {
            let patch = Patch::Merge(json!({"spec": {"ports": ports}}));
            self.stage
                .services()
                .patch(name, &PatchParams::default(), &patch)
                .await?;
        }
        Ok(())
    }

    pub(crate) async fn delete(&mut self, name: &str) -> anyhow::Result<()> {
        self.kinds.remove(name);
        self.stage
            .services()
            .delete(name, &DeleteParams::default())
            .await?;
        Ok(())
    }
}

/// The end of a log.
fn last(log: &str) -> &str {
    &log[log.floor_char_boundary(log.len().saturating_sub(4000))..]
}

/// Takes out what changes although nothing does.
fn leave_out_heartbeats(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
    }
    for condition in object["status"]["conditions"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        if let Some(condition) = condition.as_object_mut() {
            condition.remove("lastHeartbeatTime");
        }
    }
}
