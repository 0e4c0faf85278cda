//! A cluster on moto with one manager.

use std::{
    ffi::OsString,
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use ccm_e2e::ccm::{Ccm, Signal};
use ccm_testkit::{
    control_plane::{Binaries, ControlPlane, Options},
    kubelet::{KubeletOptions, Kubelets, NodeSpec, UNINITIALIZED_TAINT},
    moto::{
        Moto,
        fixture::{Fixture, Subnet, Vpc},
        query_api::REGION,
    },
};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::Instant;

use crate::Counts;

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(900);
/// Nothing may be asked for so long before something counts as done.
const QUIET: Duration = Duration::from_secs(12);
const LOOK: Duration = Duration::from_millis(500);
const CLUSTER: (&str, &str) = ("kubernetes.io/cluster/shop", "owned");

/// Programs that are needed.
pub(crate) struct Programs {
    pub(crate) upstream: Option<PathBuf>,
    pub(crate) control_plane: Binaries,
    pub(crate) moto: PathBuf,
}

/// Which manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Ours,
    Upstream,
}

/// The same for both. Their own limits towards the API server are out of the way.
const FLAGS: [&str; 8] = [
    "--cloud-provider=aws",
    "--cluster-name=kubernetes",
    "--allocate-node-cidrs=false",
    "--configure-cloud-routes=false",
    "--secure-port=0",
    "--leader-elect=false",
    "--kube-api-qps=1000",
    "--kube-api-burst=2000",
];

/// Moto has no budgets; ours would keep to those of AWS and take long.
const BUDGETS: &str = "ELBReadQPS = 1000\nELBReadBurst = 1000\nELBWriteQPS = 1000\nELBWriteBurst = 1000\n\
    ELBRegisterQPS = 1000\nELBRegisterBurst = 1000\nEC2WriteQPS = 1000\nEC2WriteBurst = 1000\n";

pub(crate) struct BenchCluster {
    pub(crate) moto: Moto,
    /// Services made so far.
    pub(crate) services: usize,
    program: PathBuf,
    _control_plane: ControlPlane,
    client: kube::Client,
    kubelets: Kubelets,
    fixture: Fixture,
    subnets: [Subnet; 2],
    group: String,
    nodes: usize,
    directory: tempfile::TempDir,
}

impl BenchCluster {
    pub(crate) async fn new(programs: &Programs, who: Who) -> anyhow::Result<Self> {
        let control_plane =
            ControlPlane::start(&programs.control_plane, Options::default()).await?;
        let client = control_plane.client().await?;
        let moto = Moto::start(programs.moto.clone()).await?;
        let fixture = Fixture::new(moto.direct().clone());
        let vpc = fixture.vpc("10.0.0.0/16", &[]).await?;
        let a = fixture
            .subnet(&vpc, "a", "10.0.0.0/20", true, &[CLUSTER])
            .await?;
        let b = fixture
            .subnet(&vpc, "b", "10.0.16.0/20", true, &[CLUSTER])
            .await?;
        let group = fixture.security_group(&vpc, "nodes", &[CLUSTER]).await?;
        let directory = tempfile::tempdir()?;
        std::fs::write(
            directory.path().join("cloud.conf"),
            cloud_conf(moto.url(), &vpc, &a, who)?,
        )?;
        control_plane
            .write_kubeconfig(&directory.path().join("kubeconfig"), &control_plane.admin().token)?;
        let program = match who {
            Who::Ours => env!("CARGO_BIN_EXE_ccm-aws").into(),
            Who::Upstream => programs
                .upstream
                .clone()
                .context("upstream's program is not named")?,
        };
        let options = KubeletOptions { report_period: LIMIT * 4, ..KubeletOptions::default() };
        Ok(Self {
            moto,
            services: 0,
            program,
            kubelets: Kubelets::new(client.clone(), options),
            _control_plane: control_plane,
            client,
            fixture,
            subnets: [a, b],
            group,
            nodes: 0,
            directory,
        })
    }

    /// Starts the manager.
    pub(crate) async fn start(&self) -> anyhow::Result<Ccm> {
        let environment = [
            "AWS_ACCESS_KEY_ID=AKIATEST",
            "AWS_SECRET_ACCESS_KEY=secret",
            "AWS_EC2_METADATA_DISABLED=true",
        ];
        let mut args: Vec<OsString> = environment.map(Into::into).into();
        args.push(self.program.clone().into());
        args.extend(FLAGS.map(OsString::from));
        for (flag, file) in [("--cloud-config=", "cloud.conf"), ("--kubeconfig=", "kubeconfig")] {
            let mut argument = OsString::from(flag);
            argument.push(self.directory.path().join(file));
            args.push(argument);
        }
        // It becomes the program.
        Ccm::start(Path::new("/usr/bin/env"), self.directory.path(), "manager", args).await
    }

    pub(crate) async fn end(&self, mut ccm: Ccm) -> anyhow::Result<()> {
        ccm.signal(Signal::Term).await?;
        ccm.exit(Duration::from_secs(30)).await.map(drop)
    }

    /// A node joins the cluster.
    pub(crate) async fn join(&mut self) -> anyhow::Result<()> {
        let subnet = &self.subnets[self.nodes % 2];
        let instance = self
            .fixture
            .instance(subnet, "t3.micro", &[&self.group], &[CLUSTER])
            .await?;
        let address = instance
            .private_ip
            .parse()
            .context("parse the instance's address")?;
        self.kubelets
            .register(NodeSpec::new(&*instance.private_dns_name).provided_ip(address))
            .await?;
        self.nodes += 1;
        Ok(())
    }

    /// Creates a Service with one port.
    pub(crate) async fn serve(&mut self) -> anyhow::Result<()> {
        let name = format!("web{}", self.services);
        let service = json!({
            "metadata": {"name": name, "annotations": {"service.beta.kubernetes.io/aws-load-balancer-type": "nlb"}},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], "selector": {"app": name}},
        });
        self.services_api()
            .create(&PostParams::default(), &serde_json::from_value(service)?)
            .await?;
        self.services += 1;
        Ok(())
    }

    /// Keeps a node that is no longer wanted out of load balancers.
    pub(crate) async fn exclude_a_node(&self) -> anyhow::Result<()> {
        let name = self.kubelets.names().pop().context("there are no nodes")?;
        let labels = json!({"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": ""}}});
        self.nodes_api()
            .patch(&name, &PatchParams::default(), &Patch::Merge(&labels))
            .await?;
        Ok(())
    }

    pub(crate) async fn delete_a_service(&mut self) -> anyhow::Result<()> {
        self.services_api()
            .delete("web0", &DeleteParams::default())
            .await?;
        let deadline = Instant::now() + LIMIT;
        while self.services_api().get_opt("web0").await?.is_some() {
            self.pause(deadline, "the Service is not gone").await?;
        }
        Ok(())
    }

    pub(crate) async fn until_initialized(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        let is_initialized = |node: &Node| {
            let taints = node
                .spec
                .as_ref()
                .and_then(|spec| spec.taints.as_deref())
                .unwrap_or_default();
            !taints.iter().any(|taint| taint.key == UNINITIALIZED_TAINT)
        };
        while !self
            .nodes_api()
            .list(&ListParams::default())
            .await?
            .items
            .iter()
            .all(is_initialized)
        {
            self.pause(deadline, "nodes are not initialised").await?;
        }
        Ok(())
    }

    pub(crate) async fn until_served(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        let is_served = |service: &Service| {
            let status = service
                .status
                .as_ref()
                .and_then(|status| status.load_balancer.as_ref());
            let ingress = status
                .and_then(|balancer| balancer.ingress.as_deref())
                .unwrap_or_default();
            !ingress.is_empty()
        };
        while self
            .services_api()
            .list(&ListParams::default())
            .await?
            .items
            .iter()
            .filter(|s| is_served(s))
            .count()
            < self.services
        {
            self.pause(deadline, "Services are not served").await?;
        }
        Ok(())
    }

    /// Waits until nothing is asked any more, and counts what was.
    pub(crate) async fn count(&self) -> Counts {
        let mut counts = Counts::new();
        let mut last = Instant::now();
        while last.elapsed() < QUIET {
            tokio::time::sleep(LOOK).await;
            let more = self.moto.overlay().take_counts();
            if !more.is_empty() {
                last = Instant::now();
            }
            for (action, count) in more {
                *counts.entry(action).or_default() += count;
            }
        }
        counts
    }

    /// Counts what is asked within a minute.
    pub(crate) async fn count_minute(&self) -> Counts {
        self.moto.overlay().reset();
        tokio::time::sleep(Duration::from_secs(60)).await;
        self.moto.overlay().take_counts()
    }

    async fn pause(&self, deadline: Instant, what: &str) -> anyhow::Result<()> {
        let log = || {
            std::fs::read_to_string(self.directory.path().join("manager.log")).unwrap_or_default()
        };
        anyhow::ensure!(Instant::now() < deadline, "{what} after {LIMIT:?}; the log:\n{}", log());
        tokio::time::sleep(LOOK).await;
        Ok(())
    }

    fn services_api(&self) -> Api<Service> {
        Api::default_namespaced(self.client.clone())
    }

    fn nodes_api(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }
}

/// Resident memory of a process, in MiB.
pub(crate) fn resident(ccm: &Ccm) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", ccm.pid()))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

fn cloud_conf(url: &str, vpc: &Vpc, subnet: &Subnet, who: Who) -> anyhow::Result<String> {
    let (zone, vpc, subnet) = (&subnet.zone, &vpc.id, &subnet.id);
    let mut text = format!(
        "[Global]\nZone = {zone}\nVPC = {vpc}\nSubnetID = {subnet}\nKubernetesClusterID = shop\n"
    );
    if who == Who::Ours {
        text.push_str(BUDGETS);
    }
    for (n, service) in ["EC2", "Elastic Load Balancing v2", "Elastic Load Balancing"]
        .iter()
        .enumerate()
    {
        writeln!(
            text,
            "[ServiceOverride \"{n}\"]\nService = {service}\nRegion = {REGION}\nURL = {url}"
        )?;
        writeln!(text, "SigningRegion = {REGION}")?;
    }
    Ok(text)
}
