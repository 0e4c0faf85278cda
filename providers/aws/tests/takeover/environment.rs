//! The cluster, AWS, and the managers that come and go.

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
        query_api::{CLASSIC, EC2, ELB, REGION, elements},
    },
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Event, Node, Service},
};
use kube::api::{Api, ListParams, Patch, PatchParams};

use crate::table::Round;

/// How long anything may take.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Programs that the story needs.
#[derive(Clone)]
pub(crate) struct Programs {
    pub(crate) upstream: PathBuf,
    pub(crate) control_plane: Binaries,
    pub(crate) moto: PathBuf,
}

/// Which manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManagerKind {
    Upstream,
    Ours,
    /// Ours, which compares everything with AWS all the time instead of once an hour.
    OursChecking,
}

/// The same for both. The lease runs out soon, since upstream's manager does not give it back.
const FLAGS: [&str; 12] = [
    "--cloud-provider=aws",
    "--cluster-name=kubernetes",
    "--allocate-node-cidrs=true",
    "--configure-cloud-routes=true",
    "--cluster-cidr=10.244.0.0/16",
    "--route-reconciliation-period=2s",
    "--node-monitor-period=1s",
    "--secure-port=0",
    "--leader-elect=true",
    "--leader-elect-lease-duration=4s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=500ms",
];

/// Beginning of cloud.conf for comparing all the time, which the budget for reading is not made
/// for.
const CHECKING: &str =
    "[Global]\nDriftCheckInterval = 1s\nELBReadQPS = 1000\nELBReadBurst = 10000\n";

const CLUSTER: (&str, &str) = ("kubernetes.io/cluster/shop", "owned");

/// Where the story plays.
pub(crate) struct TakeoverEnvironment {
    pub(crate) moto: Moto,
    pub(crate) certificate: String,
    pub(crate) group: String,
    pub(crate) addresses: [String; 2],
    pub(crate) nodes: Vec<String>,
    programs: Programs,
    _control_plane: ControlPlane,
    client: kube::Client,
    kubelets: Kubelets,
    fixture: Fixture,
    subnets: [Subnet; 2],
    node_group: String,
    /// Without the cluster's tag.
    other_group: String,
    directory: tempfile::TempDir,
    started: usize,
}

impl TakeoverEnvironment {
    pub(crate) async fn new(programs: Programs, round: Round) -> anyhow::Result<Self> {
        let control_plane =
            ControlPlane::start(&programs.control_plane, Options::default()).await?;
        let client = control_plane.client().await?;
        let moto = Moto::start(programs.moto.clone()).await?;
        let fixture = Fixture::new(moto.direct().clone());
        let vpc = fixture.vpc("10.0.0.0/16", &[]).await?;
        let a = fixture.subnet(&vpc, "a", "10.0.0.0/24", true, &[]).await?;
        let b = fixture.subnet(&vpc, "b", "10.0.1.0/24", true, &[]).await?;
        fixture.tag(&vpc.main_table, &[CLUSTER]).await?;
        let node_group = fixture.security_group(&vpc, "nodes", &[CLUSTER]).await?;
        let other_group = fixture.security_group(&vpc, "other", &[]).await?;
        let group = fixture.security_group(&vpc, "given", &[]).await?;
        let addresses = [fixture.elastic_ip().await?, fixture.elastic_ip().await?];
        let certificate = fixture.certificate("shop.example").await?;
        let directory = tempfile::tempdir()?;
        let conf = cloud_conf(moto.url(), &vpc, &a, round);
        std::fs::write(directory.path().join("cloud.conf"), &conf)?;
        let checking = conf.replace("[Global]\n", CHECKING);
        std::fs::write(directory.path().join("checking.conf"), checking)?;
        control_plane
            .write_kubeconfig(&directory.path().join("kubeconfig"), &control_plane.admin().token)?;
        let kubelets = Kubelets::new(client.clone(), KubeletOptions::default());
        Ok(Self {
            moto,
            certificate,
            group,
            addresses,
            nodes: Vec::new(),
            programs,
            _control_plane: control_plane,
            client,
            kubelets,
            fixture,
            subnets: [a, b],
            node_group,
            other_group,
            directory,
            started: 0,
        })
    }

    /// Starts a manager; it leads when this returns.
    pub(crate) async fn start(&mut self, who: ManagerKind) -> anyhow::Result<Ccm> {
        self.started += 1;
        let ours = Path::new(env!("CARGO_BIN_EXE_ccm-aws"));
        let program = if who == ManagerKind::Upstream {
            &self.programs.upstream
        } else {
            ours
        };
        // Keys by environment, as both take them.
        let environment = [
            "AWS_ACCESS_KEY_ID=AKIATEST",
            "AWS_SECRET_ACCESS_KEY=secret",
            "AWS_EC2_METADATA_DISABLED=true",
        ];
        let mut args: Vec<OsString> = environment.map(Into::into).into();
        args.push(program.into());
        args.extend(FLAGS.map(OsString::from));
        let conf = if who == ManagerKind::OursChecking {
            "checking.conf"
        } else {
            "cloud.conf"
        };
        if who == ManagerKind::OursChecking {
            args.push("--load-balancer-verify-period=2s".into());
        }
        for (flag, file) in [("--cloud-config=", conf), ("--kubeconfig=", "kubeconfig")] {
            let mut argument = OsString::from(flag);
            argument.push(self.directory.path().join(file));
            args.push(argument);
        }
        let name = format!("{}-{who:?}", self.started);
        let mut ccm =
            Ccm::start(Path::new("/usr/bin/env"), self.directory.path(), &name, args).await?;
        ccm.logged("became leader", SOON).await?;
        Ok(ccm)
    }

    pub(crate) async fn end(&self, mut ccm: Ccm) -> anyhow::Result<()> {
        ccm.signal(Signal::Term).await?;
        ccm.exit(SOON).await.map(drop)
    }

    /// Gives back the lease of a manager that has ended without doing so.
    pub(crate) async fn release_lease(&self) -> anyhow::Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        let nobody = serde_json::json!({"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}});
        leases
            .patch("cloud-controller-manager", &PatchParams::default(), &Patch::Merge(nobody))
            .await?;
        Ok(())
    }

    /// The subnets, in another order than EC2 lists them.
    pub(crate) fn named_subnets(&self) -> String {
        let mut ids = self.subnets.each_ref().map(|subnet| &*subnet.id);
        ids.sort_unstable();
        ids.reverse();
        ids.join(",")
    }

    /// A node joins the cluster. Every other one also has a security group that is not the cluster's.
    pub(crate) async fn join(&mut self) -> anyhow::Result<()> {
        let n = self.nodes.len();
        let groups = [&*self.node_group, &*self.other_group];
        let groups = &groups[..=n % 2];
        let instance = self
            .fixture
            .instance(&self.subnets[n % 2], "t3.micro", groups, &[CLUSTER])
            .await?;
        let spec = NodeSpec::new(&*instance.private_dns_name)
            .provided_ip(
                instance
                    .private_ip
                    .parse()
                    .context("parse the instance's address")?,
            )
            .pod_cidr(format!("10.244.{n}.0/24"));
        self.kubelets.register(spec).await?;
        self.nodes.push(instance.private_dns_name);
        Ok(())
    }

    pub(crate) fn services(&self) -> Api<Service> {
        Api::default_namespaced(self.client.clone())
    }

    /// The note of an event about a Service, if there is one with this reason.
    pub(crate) async fn event(
        &self,
        service: &str,
        reason: &str,
    ) -> anyhow::Result<Option<String>> {
        let events: Api<Event> = Api::default_namespaced(self.client.clone());
        let found = events
            .list(&ListParams::default())
            .await?
            .items
            .into_iter()
            .find(|event| {
                event.involved_object.name.as_deref() == Some(service)
                    && event.reason.as_deref() == Some(reason)
            });
        Ok(found.and_then(|event| event.message))
    }

    pub(crate) fn nodes_api(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Whether every node is initialised and has its route.
    pub(crate) async fn nodes_are_ready(&self) -> anyhow::Result<bool> {
        let nodes = self.nodes_api().list(&ListParams::default()).await?.items;
        let ready = |node: &Node| {
            let taints = node
                .spec
                .as_ref()
                .and_then(|spec| spec.taints.as_deref())
                .unwrap_or_default();
            let conditions = node
                .status
                .as_ref()
                .and_then(|status| status.conditions.as_deref())
                .unwrap_or_default();
            !taints.iter().any(|taint| taint.key == UNINITIALIZED_TAINT)
                && conditions
                    .iter()
                    .any(|c| c.type_ == "NetworkUnavailable" && c.status == "False")
        };
        Ok(nodes.iter().all(ready))
    }

    /// The numbers of instances of all classic load balancers.
    pub(crate) async fn classic_members(&self) -> anyhow::Result<Vec<usize>> {
        let wire = self.moto.direct();
        let names = wire
            .ask(CLASSIC, "DescribeLoadBalancers", [])
            .await?
            .texts("LoadBalancerName");
        let mut members = Vec::new();
        for name in &names {
            let parameters = [("LoadBalancerNames.member.1", &**name)];
            let described = wire
                .ask(CLASSIC, "DescribeLoadBalancers", parameters)
                .await?;
            members.push(described.texts("InstanceId").len());
        }
        Ok(members)
    }

    /// Names of what there is in AWS for Services: balancers, target groups, security groups, and
    /// rules of the nodes'.
    pub(crate) async fn left(&self) -> anyhow::Result<Vec<String>> {
        let wire = self.moto.direct();
        let mut left = wire
            .ask(ELB, "DescribeLoadBalancers", [])
            .await?
            .texts("LoadBalancerName");
        left.extend(
            wire.ask(ELB, "DescribeTargetGroups", [])
                .await?
                .texts("TargetGroupName"),
        );
        left.extend(
            wire.ask(CLASSIC, "DescribeLoadBalancers", [])
                .await?
                .texts("LoadBalancerName"),
        );
        let groups = wire
            .ask(EC2, "DescribeSecurityGroups", [])
            .await?
            .texts("groupName");
        left.extend(groups.into_iter().filter(|name| name.starts_with("k8s-")));
        let nodes = wire
            .ask(EC2, "DescribeSecurityGroups", [("GroupId.1", &*self.node_group)])
            .await?;
        left.extend(
            elements(&nodes.0, "ipPermissions")
                .iter()
                .filter(|rules| rules.contains("item"))
                .map(|rules| (*rules).to_owned()),
        );
        Ok(left)
    }
}

fn cloud_conf(url: &str, vpc: &Vpc, subnet: &Subnet, round: Round) -> String {
    let mut text = format!(
        "[Global]\nZone = {}\nVPC = {}\nSubnetID = {}\nKubernetesClusterID = shop\n",
        subnet.zone, vpc.id, subnet.id
    );
    if round == Round::Managed {
        text.push_str("NLBSecurityGroupMode = Managed\n");
    }
    let services = ["EC2", "Elastic Load Balancing v2", "Elastic Load Balancing"];
    for (n, service) in services.iter().enumerate() {
        // Writing into a text does not fail.
        let _ = write!(
            text,
            "[ServiceOverride \"{n}\"]\nService = {service}\nRegion = {REGION}\nURL = {url}\nSigningRegion = {REGION}\n"
        );
    }
    text
}
