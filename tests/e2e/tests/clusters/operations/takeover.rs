//! Swap of the image: a manager on Go's framework, then ours, and back again, in one cluster with
//! one cloud.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use ccm_e2e::ccm::{Ccm, Signal};
use ccm_e2e::manifests;
use ccm_e2e::permissions::{common, forbidden};
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_e2e::server::ServerKind;
use ccm_mock::cloud::{Calls, LoadBalancer, Operation, Route};
use ccm_testkit::control_plane::GoProgram;
use kube::api::ListParams;
use serde_json::Value;

use crate::case;
use crate::install::rbac::upstream;
use crate::run::{Case, Need};

pub(crate) fn cases() -> Vec<Case> {
    vec![Case {
        needs: &[Need::Go(GoProgram::Ccm)],
        ..case!(
            "takeover",
            &[ServerKind::Real],
            a_manager_in_go_is_replaced_and_comes_back_and_nothing_is_touched
        )
    }]
}

/// Account of both managers, with the rights that the manifests of Go managers have in common.
const ACCOUNT: &str = "e2e-takeover";

/// The same for both: a lease that runs out soon, since Go's manager does not give it back.
const FLAGS: [&str; 5] = [
    "--cluster-cidr=10.244.0.0/16",
    "--route-reconciliation-period=2s",
    "--leader-elect-lease-duration=4s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=500ms",
];

/// How long nothing may happen before a manager counts as done.
const QUIET: Duration = Duration::from_secs(2);

async fn a_manager_in_go_is_replaced_and_comes_back_and_nothing_is_touched(
    s: &Scenario,
) -> anyhow::Result<()> {
    let applied = manifests::granted(ACCOUNT, &common(&upstream::roles()?));
    s.with_manifests(ACCOUNT, &applied, async || {
        let go = GoProgram::Ccm.find().map_err(anyhow::Error::msg)?;
        TakeoverScenario { s, go, services: Vec::new(), nodes: Vec::new() }
            .tell()
            .await?;
        let forbidden = forbidden(&s.requests(ACCOUNT).await?);
        anyhow::ensure!(forbidden.is_empty(), "{forbidden:?}");
        Ok(())
    })
    .await
}

/// Which manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ManagerKind {
    Go,
    Ours,
}

/// What is in the cluster meanwhile.
struct TakeoverScenario<'a> {
    s: &'a Scenario,
    go: PathBuf,
    /// Services that want a balancer, in order.
    services: Vec<String>,
    nodes: Vec<String>,
}

/// Everything that a takeover may not change.
#[derive(Debug, PartialEq)]
struct ClusterSnapshot {
    /// Nodes and Services, by kind and name.
    objects: BTreeMap<String, Value>,
    balancers: BTreeMap<String, LoadBalancer>,
    routes: BTreeMap<String, Route>,
}

impl TakeoverScenario<'_> {
    async fn tell(&mut self) -> anyhow::Result<()> {
        let go = self.start(ManagerKind::Go).await?;
        for n in 0..3 {
            // Go's framework takes the taint off first.
            self.s.may_be_exposed(&self.s.name(n));
            self.join(n).await?;
        }
        for what in ["a", "b", "c", "d"] {
            self.create(what).await?;
        }
        self.converged(ManagerKind::Go).await?;

        let ours = self.swap(go, ManagerKind::Ours).await?;
        // What Go made goes under ours, and the other way round below.
        self.delete("a").await?;
        self.create("e").await?;
        self.join(3).await?;
        self.change("b").await?;
        self.converged(ManagerKind::Ours).await?;

        let go = self.swap(ours, ManagerKind::Go).await?;
        self.delete("e").await?;
        self.create("f").await?;
        self.change("b").await?;
        self.converged(ManagerKind::Go).await?;

        // While nobody is there, too.
        self.end(go).await?;
        self.ask_to_delete("f").await?;
        self.ask_for("g").await?;
        let ours = self.start(ManagerKind::Ours).await?;
        self.converged(ManagerKind::Ours).await?;
        self.end(ours).await?;
        self.ask_to_delete("g").await?;
        self.ask_for("h").await?;
        let go = self.start(ManagerKind::Go).await?;
        self.converged(ManagerKind::Go).await?;
        self.end(go).await
    }

    /// Replaces a manager and makes sure that its successor changes nothing.
    async fn swap(&self, old: Ccm, who: ManagerKind) -> anyhow::Result<Ccm> {
        let (before, calls) = (self.picture().await?, self.s.cloud.calls());
        self.end(old).await?;
        let new = self.start(who).await?;
        self.looked(&calls).await?;
        self.quiet(who).await?;
        let differences = before.differences(&self.picture().await?);
        anyhow::ensure!(
            differences.is_empty(),
            "{who:?} changed what it took over:\n{}",
            differences.join("\n")
        );
        let writes = self.s.cloud.calls().since(&calls);
        anyhow::ensure!(writes.writes() == 0, "{who:?} wrote to the cloud it took over: {writes}");
        Ok(new)
    }

    async fn start(&self, who: ManagerKind) -> anyhow::Result<Ccm> {
        let mut ccm = match who {
            ManagerKind::Ours => self.s.start_as(ACCOUNT, "", "ours", &FLAGS).await?,
            ManagerKind::Go => {
                self.s
                    .start_other_as(&self.go, ACCOUNT, "go", &FLAGS)
                    .await?
            }
        };
        ccm.logged("became leader", SOON).await?;
        Ok(ccm)
    }

    async fn end(&self, mut ccm: Ccm) -> anyhow::Result<()> {
        ccm.signal(Signal::Term).await?;
        ccm.exit(SOON).await.map(drop)
    }

    async fn join(&mut self, n: usize) -> anyhow::Result<()> {
        let name = self.s.name(n);
        self.s
            .register_initialized(std::slice::from_ref(&name))
            .await?;
        self.s
            .add_pod_cidrs(&name, &[format!("10.244.{}.0/24", n + 1)])
            .await?;
        self.nodes.push(name);
        Ok(())
    }

    async fn ask_for(&mut self, what: &str) -> anyhow::Result<()> {
        let name = format!("{}{what}", self.s.prefix());
        self.s.create(&Scenario::manifest(&name)).await?;
        self.services.push(name);
        Ok(())
    }

    async fn create(&mut self, what: &str) -> anyhow::Result<()> {
        self.ask_for(what).await?;
        self.s.served(&self.services, SOON).await
    }

    async fn ask_to_delete(&mut self, what: &str) -> anyhow::Result<()> {
        let name = format!("{}{what}", self.s.prefix());
        self.services.retain(|service| *service != name);
        self.s.delete_service(&name).await
    }

    async fn delete(&mut self, what: &str) -> anyhow::Result<()> {
        self.ask_to_delete(what).await?;
        self.s
            .vanished(&format!("{}{what}", self.s.prefix()))
            .await?;
        self.s.served(&self.services, SOON).await
    }

    async fn change(&self, what: &str) -> anyhow::Result<()> {
        let name = format!("{}{what}", self.s.prefix());
        let port = self.s.service(&name).map_err(anyhow::Error::msg)?;
        let port = port
            .spec
            .as_ref()
            .and_then(|spec| Some(spec.ports.as_ref()?.first()?.port))
            .context("a port")?;
        let ports = serde_json::json!([{"name": "http", "port": port + 1}]);
        let changed = self
            .s
            .change(&name, serde_json::json!({"spec": {"ports": ports}}))
            .await?;
        self.s.caught_up(&changed).await?;
        self.s.served(&self.services, SOON).await
    }

    /// Waits until everything is as it should be, and stays so.
    async fn converged(&self, who: ManagerKind) -> anyhow::Result<()> {
        self.s.initialized(&self.nodes, SOON).await?;
        self.s.routed(&[], SOON).await?;
        self.s.served(&self.services, SOON).await?;
        self.quiet(who).await
    }

    /// Waits until a manager that was just started has looked at everything in the cloud.
    async fn looked(&self, before: &Calls) -> anyhow::Result<()> {
        let services = u64::try_from(self.services.len())?;
        self.s
            .until("it looked at everything", SOON, || {
                let calls = self.s.cloud.calls().since(before);
                calls.of(Operation::GetLoadBalancer) >= services
                    && calls.of(Operation::ListRoutes) >= 2
                    && calls.of(Operation::DescribeInstances) >= 1
            })
            .await
    }

    /// Makes sure for a while that everything stays as it should be.
    async fn quiet(&self, who: ManagerKind) -> anyhow::Result<()> {
        let judge = || self.s.in_line().and_then(|()| self.s.in_routes(&[]));
        self.s
            .stays(&format!("{who:?} keeps everything"), QUIET, judge)
            .await
    }

    async fn picture(&self) -> anyhow::Result<ClusterSnapshot> {
        let all = ListParams::default();
        let mut objects = BTreeMap::new();
        for node in self.s.nodes_api().list(&all).await?.items {
            objects.insert(
                format!("node {}", node.metadata.name.clone().unwrap_or_default()),
                serde_json::to_value(node)?,
            );
        }
        for service in self.s.services_api().list(&all).await?.items {
            let name = format!("service {}", service.metadata.name.clone().unwrap_or_default());
            objects.insert(name, serde_json::to_value(service)?);
        }
        objects.values_mut().for_each(leave_out_heartbeats);
        let balancers = self
            .s
            .cloud
            .load_balancers()
            .into_iter()
            .map(|balancer| (balancer.service.clone(), balancer));
        let routes = self
            .s
            .cloud
            .routes()
            .into_iter()
            .map(|route| (route.name.clone(), route));
        Ok(ClusterSnapshot {
            objects,
            balancers: balancers.collect(),
            routes: routes.collect(),
        })
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

impl ClusterSnapshot {
    fn differences(&self, after: &Self) -> Vec<String> {
        let mut differences = differences(&self.objects, &after.objects);
        differences.extend(self::differences(&self.balancers, &after.balancers));
        differences.extend(self::differences(&self.routes, &after.routes));
        differences
    }
}

fn differences<T: PartialEq + std::fmt::Debug>(
    before: &BTreeMap<String, T>,
    after: &BTreeMap<String, T>,
) -> Vec<String> {
    let mut names: Vec<_> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    let differ = names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name));
    differ
        .map(|name| format!("{name}: {:?}\nbecame {:?}", before.get(name), after.get(name)))
        .collect()
}
