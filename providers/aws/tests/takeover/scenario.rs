//! Upstream makes everything, ours takes over, changes some of it, and upstream takes it back.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use ccm_e2e::ccm::Ccm;
use ccm_testkit::moto::{fault_proxy::Recorded, query_api::CLASSIC};
use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    calls::{self, ServiceIndex},
    environment::{ManagerKind, Programs, SOON, TakeoverEnvironment},
    services::{self, Named, ServiceKind},
    table::{self, Round, Situation},
};

/// Nothing may be asked about load balancers for so long before a manager counts as done.
const QUIET: Duration = Duration::from_millis(2500);
const LOOK: Duration = Duration::from_millis(200);

pub(crate) async fn tell(programs: Programs, round: Round) -> anyhow::Result<()> {
    let stage = TakeoverEnvironment::new(programs, round).await?;
    let mut story = TakeoverScenario {
        round,
        stage,
        kinds: BTreeMap::new(),
        whose: ServiceIndex::default(),
    };
    let named = Named {
        certificate: &story.stage.certificate.clone(),
        group: &story.stage.group.clone(),
        subnets: &story.stage.named_subnets(),
        addresses: &story.stage.addresses.join(","),
    };
    story.play(services::kinds(round, &named)).await
}

struct TakeoverScenario {
    round: Round,
    stage: TakeoverEnvironment,
    kinds: BTreeMap<String, ServiceKind>,
    whose: ServiceIndex,
}

impl TakeoverScenario {
    async fn play(&mut self, kinds: Vec<ServiceKind>) -> anyhow::Result<()> {
        let upstream = self.stage.start(ManagerKind::Upstream).await?;
        self.stage.join().await?;
        self.stage.join().await?;
        // Upstream's loops for nodes and for Services may do the same at once.
        self.settled().await?;
        for kind in kinds {
            self.create(kind).await?;
        }
        self.settled().await?;
        let upstream = self
            .swap(upstream, ManagerKind::Upstream, Situation::Upstream)
            .await?;
        let ours = self
            .swap(upstream, ManagerKind::Ours, Situation::Takeover)
            .await?;
        let ours = self
            .swap(ours, ManagerKind::Ours, Situation::Restart)
            .await?;
        let ours = self
            .swap(ours, ManagerKind::OursChecking, Situation::Check)
            .await?;
        let ours = self
            .swap(ours, ManagerKind::Ours, Situation::Restart)
            .await?;

        if self.round == Round::Plain {
            for name in table::OPT_INS {
                self.opt_in(name).await.with_context(|| ours.log())?;
            }
            // Upstream would turn its port back.
            self.delete("spaces").await?;
        }
        for kind in services::later(self.round) {
            self.create(kind).await?;
        }
        self.change(
            "ranges",
            json!({"spec": {"ports": [{"name": "http", "port": 81, "protocol": "TCP"}]}}),
        )
        .await?;
        self.delete("local").await?;
        self.stage.join().await?;
        self.settled().await.with_context(|| ours.log())?;
        self.classics_follow().await.with_context(|| ours.log())?;
        let upstream = self
            .swap(ours, ManagerKind::Upstream, Situation::Rollback)
            .await?;
        self.stage.join().await?;
        self.settled().await.with_context(|| upstream.log())?;
        self.classics_follow()
            .await
            .with_context(|| upstream.log())?;
        for name in self.kinds.keys().cloned().collect::<Vec<_>>() {
            self.delete(&name).await?;
        }
        self.vanished().await?;
        let left = self.stage.left().await?;
        let seen = calls::lines(&self.stage.moto.overlay().take(), &self.whose);
        anyhow::ensure!(left.is_empty(), "upstream leaves {left:?}; it asked for\n{seen}");
        self.stage.end(upstream).await
    }

    /// Turns on all annotations of a Service: an event announces what that changes, and nothing else
    /// is changed.
    async fn opt_in(&self, name: &str) -> anyhow::Result<()> {
        let _ = self.stage.moto.overlay().take();
        let key = "service.beta.kubernetes.io/aws-load-balancer-annotation-dialect";
        self.change(name, json!({"metadata": {"annotations": {key: "extended"}}}))
            .await?;
        // Wait for the first change, and then until nothing more is asked.
        let deadline = Instant::now() + SOON;
        let mut seen = Vec::new();
        while !seen.iter().any(calls::changes) {
            anyhow::ensure!(Instant::now() < deadline, "the opt-in of {name} changes nothing");
            tokio::time::sleep(LOOK).await;
            seen.extend(self.stage.moto.overlay().take());
        }
        let seen = self.quiet(seen).await?;
        let made = calls::count(&seen, &self.whose);
        let mut expected = table::expected(self.round, Situation::OptIn);
        expected.retain(|(service, _), _| service == name);
        anyhow::ensure!(
            made == expected,
            "the opt-in made other changing calls than are listed\nlisted: {expected:?}\nmade: {made:?}\n{}",
            calls::lines(&seen, &self.whose)
        );
        // The event names each call.
        loop {
            let note = self.stage.event(name, "AnnotationsActivated").await?;
            if let Some(note) = note {
                for (_, action) in expected.keys() {
                    anyhow::ensure!(note.contains(action.as_str()), "{action} is not in: {note}");
                }
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "the opt-in of {name} is not announced");
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn create(&mut self, kind: ServiceKind) -> anyhow::Result<()> {
        let manifest: Service = serde_json::from_value(kind.manifest())?;
        let made = self
            .stage
            .services()
            .create(&PostParams::default(), &manifest)
            .await?;
        let uid = made.metadata.uid.context("a UID")?.replace('-', "");
        let name = kind.name.to_owned();
        self.whose
            .texts
            .push((format!("a{}", &uid[..31]), name.clone()));
        self.whose
            .texts
            .push((format!("k8s-default-{name}-"), name.clone()));
        self.kinds.insert(name, kind);
        Ok(())
    }

    /// Waits until everything is as it should be.
    async fn settled(&self) -> anyhow::Result<()> {
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
                return self.quiet(Vec::new()).await.map(drop);
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "nodes are ready: {nodes}; Services without an address: {waiting:?}; Services: {}",
                services.len()
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until all nodes are instances of all classic load balancers.
    async fn classics_follow(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + SOON;
        let classics = self.kinds.values().filter(|kind| kind.is_classic());
        let expected = vec![self.stage.nodes.len(); classics.count()];
        loop {
            let members = self.stage.classic_members().await?;
            if members == expected {
                return Ok(());
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "instances of classic load balancers: {members:?} instead of {expected:?}"
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until no Service is left.
    async fn vanished(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + SOON;
        // The cluster's own.
        while self
            .stage
            .services()
            .list(&ListParams::default())
            .await?
            .items
            .len()
            > 1
        {
            anyhow::ensure!(Instant::now() < deadline, "Services do not go");
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    fn waits(&self, service: &Service) -> bool {
        let known = service
            .metadata
            .name
            .as_ref()
            .is_some_and(|name| self.kinds.contains_key(name));
        let ingress = service
            .status
            .as_ref()
            .and_then(|s| s.load_balancer.as_ref()?.ingress.as_ref());
        known && ingress.is_none_or(Vec::is_empty)
    }

    /// Waits until nothing more is asked about load balancers; returns all that was asked.
    async fn quiet(&self, mut seen: Vec<Recorded>) -> anyhow::Result<Vec<Recorded>> {
        let deadline = Instant::now() + SOON;
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            anyhow::ensure!(
                Instant::now() < deadline,
                "requests about load balancers do not end; the last are {}",
                calls::last_actions(&seen, &self.whose)
            );
            let more = self.stage.moto.overlay().take();
            if more
                .iter()
                .any(|request| request.service != "ec2" || calls::changes(request))
            {
                since = Instant::now();
            }
            seen.extend(more);
            tokio::time::sleep(LOOK).await;
        }
        Ok(seen)
    }

    /// Replaces a manager, and makes sure that its successor changes what is listed and nothing
    /// else.
    async fn swap(
        &mut self,
        old: Ccm,
        who: ManagerKind,
        situation: Situation,
    ) -> anyhow::Result<Ccm> {
        let before = self.picture().await?;
        self.stage.end(old).await?;
        if situation == Situation::Upstream {
            // Others wait until it has run out.
            self.stage.release_lease().await?;
        }
        let _ = self.stage.moto.overlay().take();
        let new = self.stage.start(who).await?;
        let seen = self.looked(who).await.with_context(|| new.log())?;
        let seen = if who == ManagerKind::OursChecking {
            seen
        } else {
            self.quiet(seen).await.with_context(|| new.log())?
        };
        let (changes, expected) =
            (calls::count(&seen, &self.whose), table::expected(self.round, situation));
        anyhow::ensure!(
            changes == expected,
            "{who:?} ({situation:?}) made other changing calls than are listed\nlisted: {expected:?}\nmade: {changes:?}\n{}",
            calls::lines(&seen, &self.whose)
        );
        let after = self.picture().await?;
        for (name, object) in &before {
            anyhow::ensure!(
                after.get(name) == Some(object),
                "{who:?} changed {name}: {object}\nto {:?}",
                after.get(name)
            );
        }
        Ok(new)
    }

    /// Waits until a manager has looked at every load balancer.
    async fn looked(&self, who: ManagerKind) -> anyhow::Result<Vec<Recorded>> {
        let deadline = Instant::now() + SOON;
        let mut seen = Vec::new();
        loop {
            seen.extend(self.stage.moto.overlay().take());
            let looked = |kind: &ServiceKind| {
                let times = |action: &str| {
                    seen.iter()
                        .filter(|r: &&Recorded| {
                            r.action == action && self.whose.service(r) == kind.name
                        })
                        .count()
                };
                match (kind.is_classic(), who) {
                    (true, _) => seen.iter().any(|r| {
                        r.version == CLASSIC.version && r.action == "DescribeLoadBalancers"
                    }),
                    // The second look sees what the first one has changed.
                    (false, ManagerKind::OursChecking) => {
                        times("DescribeLoadBalancerAttributes") >= 2
                    }
                    (false, _) => times("DescribeListeners") >= 1,
                }
            };
            let missing: Vec<_> = self
                .kinds
                .values()
                .filter(|kind| !looked(kind))
                .map(|kind| kind.name)
                .collect();
            if missing.is_empty() {
                return Ok(seen);
            }
            anyhow::ensure!(Instant::now() < deadline, "not looked at: {missing:?}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Nodes and Services, but for what changes although nothing does.
    async fn picture(&self) -> anyhow::Result<BTreeMap<String, Value>> {
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

    async fn change(&self, name: &str, patch: Value) -> anyhow::Result<()> {
        self.stage
            .services()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    async fn delete(&mut self, name: &str) -> anyhow::Result<()> {
        self.kinds.remove(name);
        self.stage
            .services()
            .delete(name, &DeleteParams::default())
            .await?;
        Ok(())
    }
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
