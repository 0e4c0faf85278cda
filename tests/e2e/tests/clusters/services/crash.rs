//! Killed at any moment, the process leaves nothing behind that its successor does not put right.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use ccm_core::k8s::well_known::LABEL_EXCLUDE_FROM_LOAD_BALANCERS;
use ccm_e2e::ccm::Signal;
use ccm_e2e::fixture::reported;
use ccm_e2e::load_balancer_history::{CallBreakpoint, LoadBalancerHistory};
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_e2e::server::ServerKind;
use ccm_mock::cloud::InstanceSpec;
use ccm_testkit::suite::Tier;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::case;
use crate::run::{Case, EVERYWHERE};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!("kill", EVERYWHERE, killed_at_random_moments_it_leaves_the_cloud_as_the_services_ask),
        Case {
            tier: Some(Tier::Nightly),
            ..case!("luck", &[ServerKind::Embedded], killed_at_other_moments_each_time)
        },
    ]
}

/// Variable that repeats a run: the seed that its failure named.
const SEED: &str = "CCM_E2E_SEED";
/// What the users of the cluster do meanwhile.
const ACTIONS: usize = 90;
/// Without an election, so that a successor need not wait for the lease of the dead.
const FLAGS: [&str; 4] = [
    "--leader-elect=false",
    "--node-status-update-frequency=10m",
    "--cluster-cidr=10.244.0.0/16",
    "--route-reconciliation-period=2s",
];

async fn killed_at_random_moments_it_leaves_the_cloud_as_the_services_ask(
    s: &Scenario,
) -> anyhow::Result<()> {
    survive(s, seed(1)?).await
}

/// The same, and never twice the same.
async fn killed_at_other_moments_each_time(s: &Scenario) -> anyhow::Result<()> {
    survive(s, seed(rand::random())?).await
}

fn seed(otherwise: u64) -> anyhow::Result<u64> {
    match std::env::var(SEED) {
        Ok(seed) => Ok(seed.parse()?),
        Err(_) => Ok(otherwise),
    }
}

async fn survive(s: &Scenario, seed: u64) -> anyhow::Result<()> {
    live_and_die(s, seed)
        .await
        .with_context(|| format!("{SEED}={seed}"))
}

async fn live_and_die(s: &Scenario, seed: u64) -> anyhow::Result<()> {
    let ledger = LoadBalancerHistory::open(&s.cloud);
    let mut users = Users {
        s,
        random: StdRng::seed_from_u64(seed),
        services: Vec::new(),
        nodes: Vec::new(),
        made: 0,
    };
    for _ in 0..4 {
        users.add_node().await?;
    }
    let over = CancellationToken::new();
    let live = async {
        let lived = users.live().await;
        over.cancel();
        lived
    };
    let (lived, killed) = tokio::join!(live, kill(s, &ledger, seed, &over));
    ledger.disarm();
    lived?;
    let (kills, caught) = killed?;
    anyhow::ensure!(
        kills >= 5 && caught >= 2,
        "only {kills} kills, {caught} of them in the midst of a call"
    );

    let ccm = s.start("a", &FLAGS).await?;
    // What is in line before may not be afterwards, for a moment.
    s.initialized(&users.nodes, SOON).await?;
    let in_line = || s.in_line_where_held().and_then(|()| s.in_routes(&[]));
    s.becomes("in line after the last start", Duration::from_secs(60), in_line)
        .await?;
    s.stays("it stays in line", Duration::from_secs(2), in_line)
        .await?;
    let farewells = s.server.observer.farewells();
    for (uid, lost) in ledger.lost() {
        let left = farewells.get(&uid).copied().unwrap_or_default();
        anyhow::ensure!(lost <= left, "service {uid} lost {lost} balancers and gave up {left}");
    }
    s.cloud.set_hook(None);
    ccm.terminate().await?;
    collect_unheld(s).await
}

/// Whoever deletes a Service in the moment in which it is given the finalizer may have it deleted
/// all the same, by the API server. The process that gave it the finalizer sees that and deletes
/// the balancer; one that is killed then leaves it behind, and it is an orphan.
async fn collect_unheld(s: &Scenario) -> anyhow::Result<()> {
    let unheld = s.server.observer.unheld();
    let balancers = s.cloud.load_balancers();
    let left: BTreeSet<_> = balancers
        .iter()
        .filter(|b| unheld.contains(&b.uid))
        .map(|b| b.name.as_str())
        .collect();
    let delete = ["--delete", "--confirm=kubernetes", "--orphan-minimum-age=0s"];
    let (code, report) = s.orphans("a", &delete).await?;
    let orphans = reported(&report).with_context(|| format!("{code:?}"))?;
    let deleted = orphans.iter().filter(|orphan| orphan["state"] == "deleted");
    let deleted: BTreeSet<_> = deleted.filter_map(|orphan| orphan["id"].as_str()).collect();
    anyhow::ensure!(
        code == Some(0) && deleted == left && orphans.len() == left.len(),
        "{left:?}, {code:?}: {report:#}"
    );
    s.in_line().map_err(anyhow::Error::msg)
}

/// Starts the process and kills it, until it is over. Returns how often, and how often in the midst
/// of a call.
async fn kill(
    s: &Scenario,
    ledger: &LoadBalancerHistory,
    seed: u64,
    over: &CancellationToken,
) -> anyhow::Result<(usize, usize)> {
    let mut random = StdRng::seed_from_u64(!seed);
    let (mut kills, mut caught) = (0, 0);
    while !over.is_cancelled() {
        let trap = CallBreakpoint {
            skip: random.random_range(0..5),
            after: random.random_bool(0.5),
        };
        let moment = Duration::from_millis(random.random_range(300..3000));
        // By turns in the midst of a call, whenever that comes, and at any moment.
        let sprung = (kills % 2 == 0).then(|| ledger.set_trap(trap));
        let mut ccm = s.start("a", &FLAGS).await?;
        let chosen = async {
            match sprung {
                Some(sprung) => {
                    let sprung = tokio::time::timeout(SOON, sprung).await;
                    sprung
                        .with_context(|| format!("no call for {trap:?}"))?
                        .map(|()| 1)
                        .context("the trap is gone")
                }
                None => {
                    tokio::time::sleep(moment).await;
                    Ok(0)
                }
            }
        };
        tokio::select! {
            chosen = chosen => caught += chosen?,
            () = over.cancelled() => {}
        }
        ledger.disarm();
        ccm.signal(Signal::Kill).await?;
        ccm.exit(SOON).await?;
        kills += 1;
    }
    Ok((kills, caught))
}

/// Those who want something of the cluster.
struct Users<'a> {
    s: &'a Scenario,
    random: StdRng,
    /// Services that were created and not deleted.
    services: Vec<String>,
    nodes: Vec<String>,
    /// Names ever used.
    made: usize,
}

impl Users<'_> {
    async fn live(&mut self) -> anyhow::Result<()> {
        for _ in 0..ACTIONS {
            self.act().await?;
            tokio::time::sleep(Duration::from_millis(self.random.random_range(0..250))).await;
        }
        Ok(())
    }

    async fn act(&mut self) -> anyhow::Result<()> {
        let s = self.s;
        match self.random.random_range(0..12) {
            0..4 => {
                let name = self.new_name();
                s.create(&Scenario::manifest(&name)).await?;
                if self.random.random_bool(0.25) {
                    tokio::time::sleep(Duration::from_millis(self.random.random_range(0..15)))
                        .await;
                    s.delete_service(&name).await?;
                } else {
                    self.services.push(name);
                }
            }
            4..6 => {
                if let Some(name) = self.any_service(true) {
                    s.delete_service(&name).await?;
                }
            }
            6..8 => {
                if let Some(name) = self.any_service(false) {
                    let port = self.random.random_range(1..1000);
                    let ports = json!([{"name": "http", "port": port, "protocol": "TCP", "targetPort": 8080}]);
                    s.change(&name, json!({"spec": {"ports": ports}})).await?;
                }
            }
            8..10 => {
                if let Some(name) = self.any_service(false) {
                    let kind = if self.random.random_bool(0.4) {
                        "ClusterIP"
                    } else {
                        "LoadBalancer"
                    };
                    s.change(&name, json!({"spec": {"type": kind}})).await?;
                }
            }
            10 if self.nodes.len() > 3 => {
                let name = self
                    .nodes
                    .swap_remove(self.random.random_range(0..self.nodes.len()));
                s.kubelets.stop_node(&name)?;
                s.delete_node(&name).await?;
                s.cloud.delete_instance(&name);
            }
            10 => self.add_node().await?,
            _ => {
                let name = &self.nodes[self.random.random_range(0..self.nodes.len())];
                let value = if self.random.random_bool(0.5) {
                    "true"
                } else {
                    "false"
                };
                s.set_labels(name, &[(LABEL_EXCLUDE_FROM_LOAD_BALANCERS, value)])
                    .await?;
            }
        }
        Ok(())
    }

    async fn add_node(&mut self) -> anyhow::Result<()> {
        let name = self.new_name();
        self.s.cloud.put_instance(&name, InstanceSpec::default())?;
        self.s.register_one(self.s.spec(&name)).await?;
        self.s
            .add_pod_cidrs(&name, &[format!("10.244.{}.0/24", self.made)])
            .await?;
        self.nodes.push(name);
        Ok(())
    }

    fn new_name(&mut self) -> String {
        self.made += 1;
        self.s.name(self.made)
    }

    /// Chooses a service; `take`: it is no longer among those to choose from.
    fn any_service(&mut self, take: bool) -> Option<String> {
        if self.services.is_empty() {
            return None;
        }
        let at = self.random.random_range(0..self.services.len());
        Some(if take {
            self.services.swap_remove(at)
        } else {
            self.services[at].clone()
        })
    }
}
