//! The cluster, the cloud, and the managers that come and go.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use ccm_e2e::ccm::{Ccm, Signal};
use ccm_testkit::{
    control_plane::{Binaries, ControlPlane, Options},
    kubelet::{KubeletOptions, Kubelets, NodeSpec, UNINITIALIZED_TAINT},
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Event, Node, Service},
};
use kube::api::{Api, ListParams, Patch, PatchParams};
use openstack_local::api::neutron::Router;
use openstack_local::state::CloudState;

use crate::{cloud::TakeoverCloud, services::Round};

/// How long anything may take.
pub(crate) const SOON: Duration = Duration::from_secs(120);

/// Programs that the story needs.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) upstream: PathBuf,
    pub(crate) control_plane: Binaries,
}

/// Which manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManagerKind {
    Upstream,
    Ours,
    /// Ours, which compares everything with the cloud all the time instead of once in a while.
    OursChecking,
}

/// The same for both. The lease runs out soon, since upstream's manager does not give it back.
const FLAGS: [&str; 12] = [
    "--cloud-provider=openstack",
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

/// Where the story plays.
pub(crate) struct TakeoverEnvironment {
    pub(crate) world: TakeoverCloud,
    nodes: usize,
    round: Round,
    programs: Programs,
    _control_plane: ControlPlane,
    client: kube::Client,
    kubelets: Kubelets,
    directory: tempfile::TempDir,
    started: usize,
}

impl TakeoverEnvironment {
    pub(crate) async fn new(programs: Programs, round: Round) -> anyhow::Result<Self> {
        let control_plane =
            ControlPlane::start(&programs.control_plane, Options::default()).await?;
        let client = control_plane.client().await?;
        let world = TakeoverCloud::new(round.driver(), round.pending()).await?;
        let directory = tempfile::tempdir()?;
        std::fs::write(directory.path().join("cloud.conf"), cloud_conf(&world, round)?)?;
        control_plane
            .write_kubeconfig(&directory.path().join("kubeconfig"), &control_plane.admin().token)?;
        let kubelets = Kubelets::new(client.clone(), KubeletOptions::default());
        Ok(Self {
            world,
            nodes: 0,
            round,
            programs,
            _control_plane: control_plane,
            client,
            kubelets,
            directory,
            started: 0,
        })
    }

    /// Starts a manager; it leads when this returns.
    pub(crate) async fn start(&mut self, who: ManagerKind) -> anyhow::Result<Ccm> {
        self.started += 1;
        let ours = Path::new(env!("CARGO_BIN_EXE_ccm-openstack"));
        let program = if who == ManagerKind::Upstream {
            &self.programs.upstream
        } else {
            ours
        };
        let mut args: Vec<OsString> = FLAGS.map(OsString::from).into();
        args.push(format!("--concurrent-service-syncs={}", self.round.workers()).into());
        if who == ManagerKind::OursChecking {
            args.push("--load-balancer-verify-period=2s".into());
        }
        for (flag, file) in [("--cloud-config=", "cloud.conf"), ("--kubeconfig=", "kubeconfig")] {
            let mut argument = OsString::from(flag);
            argument.push(self.directory.path().join(file));
            args.push(argument);
        }
        let name = format!("{}-{who:?}", self.started);
        let mut ccm = Ccm::start(program, self.directory.path(), &name, args).await?;
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

    /// Nodes join the cluster, all at once. Every other one has the label `pool=blue`.
    pub(crate) async fn join(&mut self, nodes: usize) -> anyhow::Result<()> {
        let mut specs = Vec::new();
        for n in self.nodes..self.nodes + nodes {
            let name = format!("node-{n}");
            let (_, ip) = self.world.server(&name).await?;
            let pool = if n.is_multiple_of(2) { "blue" } else { "green" };
            let spec = NodeSpec::new(&*name)
                .provided_ip(ip)
                .pod_cidr(format!("10.244.{n}.0/24"));
            specs.push(spec.label("pool", pool));
        }
        self.nodes += nodes;
        Ok(self.kubelets.register_all(specs).await?)
    }

    pub(crate) fn services(&self) -> Api<Service> {
        Api::default_namespaced(self.client.clone())
    }

    pub(crate) fn nodes_api(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub(crate) fn events(&self) -> Api<Event> {
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

    /// Names of what there is in the cloud for Services, and what of them is on nodes' ports.
    pub(crate) fn left(&self) -> Vec<String> {
        self.world.peek(|state| {
            let octavia = &state.octavia;
            let mut left: Vec<String> = octavia
                .load_balancers
                .iter()
                .map(|row| row.body.name.clone())
                .collect();
            // Upstream leaves an empty tag where it takes away the last one.
            let tags = octavia
                .load_balancers
                .iter()
                .flat_map(|row| row.body.tags.clone());
            left.extend(tags.filter(|tag| !tag.is_empty()));
            left.extend(octavia.listeners.iter().map(|row| row.body.name.clone()));
            left.extend(octavia.pools.iter().map(|row| row.body.name.clone()));
            left.extend(octavia.monitors.iter().map(|row| row.body.name.clone()));
            left.extend(octavia.members.iter().map(|row| row.body.name.clone()));
            left.extend(
                state
                    .neutron
                    .floating_ips
                    .iter()
                    .map(|row| format!("{} {:?}", row.standard.description, row.port_id)),
            );
            left.extend(
                state
                    .neutron
                    .security_groups
                    .iter()
                    .map(|group| group.name.clone())
                    .filter(|name| name != "default"),
            );
            left.extend(ports_with_groups(state));
            left.sort();
            left
        })
    }

    /// The routes of the cluster's router.
    pub(crate) fn routes(&self) -> BTreeSet<String> {
        let router = self.world.peek(|state| {
            state
                .neutron
                .routers
                .get(&self.world.ids.router)
                .map(|router| Router::clone(router))
        });
        let routes = router.map(|router| router.routes).unwrap_or_default();
        routes.iter().map(|route| format!("{route:?}")).collect()
    }
}

/// Ports of nodes that have more than the default group.
fn ports_with_groups(state: &CloudState) -> Vec<String> {
    let ports = state
        .neutron
        .ports
        .iter()
        .filter(|port| port.device_owner.starts_with("compute"));
    ports
        .filter(|port| port.security_groups.len() > 1)
        .map(|port| format!("groups on port {}", port.id))
        .collect()
}

fn cloud_conf(world: &TakeoverCloud, round: Round) -> anyhow::Result<String> {
    let (address, password, ids) = (world.address, world.password()?, &world.ids);
    let mut text = format!(
        "[Global]\nauth-url = http://{address}/identity/v3\nusername = demo\npassword = \"{password}\"\n\
         domain-id = default\ntenant-name = demo\nregion = RegionOne\n\
         [Route]\nrouter-id = {}\n\
         [LoadBalancerClass \"spare\"]\nfloating-network-id = {}\nfloating-subnet-id = {}\nsubnet-id = {}\n\
         member-subnet-id = {}\n\
         [LoadBalancer]\nsubnet-id = {}\nfloating-network-id = {}\nfloating-subnet-id = {}\n",
        ids.router,
        ids.public,
        ids.other_public,
        ids.vip_subnet,
        ids.nodes_subnet,
        ids.nodes_subnet,
        ids.public,
        ids.public_subnet
    );
    match round {
        Round::Plain | Round::Counted => {}
        Round::Managed => {
            text.push_str(
                "manage-security-groups = true\ncreate-monitor = true\nprovider-requires-serial-api-calls = true\n",
            );
        }
        Round::Ovn => text.push_str(
            "lb-provider = ovn\nlb-method = SOURCE_IP_PORT\nmanage-security-groups = true\n",
        ),
    }
    Ok(text)
}
