//! Upstream's manager makes everything, ours takes over, upstream takes it back: neither changes
//! anything in the cloud, and members follow the nodes throughout.

#[path = "../takeover/services.rs"]
#[allow(dead_code, reason = "the suite on the local cloud has more rounds")]
mod kinds;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use ccm_e2e::ccm::{Ccm, Signal};
use ccm_testkit::{
    control_plane::{Binaries, ControlPlane, GoProgram, Options},
    kubelet::{KubeletOptions, Kubelets, NodeSpec, UNINITIALIZED_TAINT},
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Service},
};
use kube::{
    ResourceExt as _,
    api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use self::kinds::Round;
use crate::{
    cloud::{Ids, PAUSE, PAUSE_OF_CLOUD, RealCloud, User, id_of},
    fixture::{LONG, SOON, is_tainted, snapshot::Lists},
};

/// Time in which a manager that leads has looked at every load balancer: what it would change, it
/// has changed by then. That it has looked is shown by the members that follow.
const LOOKED: Duration = Duration::from_secs(30);

/// The same for both. The lease runs out soon, since upstream's manager does not give it back.
const FLAGS: [&str; 13] = [
    "--cloud-provider=openstack",
    "--cluster-name=kubernetes",
    "--allocate-node-cidrs=true",
    "--configure-cloud-routes=true",
    "--cluster-cidr=10.244.0.0/16",
    "--route-reconciliation-period=5s",
    "--node-monitor-period=1s",
    "--secure-port=0",
    "--leader-elect=true",
    "--leader-elect-lease-duration=8s",
    "--leader-elect-renew-deadline=6s",
    "--leader-elect-retry-period=1s",
    "--kube-api-qps=1000",
];

/// Programs that the story needs.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    upstream: PathBuf,
    control_plane: Binaries,
}

impl Programs {
    /// Finds them.
    ///
    /// # Errors
    /// One is missing: which.
    pub(crate) fn find() -> Result<Self, String> {
        let control_plane = Binaries::find().map_err(|missing| missing.to_string())?;
        Ok(Self { upstream: GoProgram::OpenstackCcm.find()?, control_plane })
    }
}

/// Managers swap, with all annotations.
pub(crate) async fn with_every_annotation(
    cloud: &RealCloud,
    programs: &Programs,
) -> anyhow::Result<()> {
    play(cloud, programs, Round::Plain).await
}

/// Managers swap, with managed security groups and changes made one by one.
pub(crate) async fn with_managed_security_groups(
    cloud: &RealCloud,
    programs: &Programs,
) -> anyhow::Result<()> {
    play(cloud, programs, Round::Managed).await
}

async fn play(cloud: &RealCloud, programs: &Programs, round: Round) -> anyhow::Result<()> {
    cloud.clean().await.context("clean the cloud")?;
    let ids = ids(cloud).await?;
    let mut stage = Stage::new(cloud, programs, round, &ids).await?;
    let before = cloud_state(cloud).await?;
    let upstream = stage.start(&programs.upstream, &[]).await?;
    stage.join().await?;
    stage.join().await?;
    stage.nodes_are_ready(&upstream).await?;
    // First, upstream's manager makes everything.
    for kind in kinds::kinds(round, &ids) {
        let manifest: Service = serde_json::from_value(kind.manifest())?;
        stage
            .services()
            .create(&PostParams::default(), &manifest)
            .await?;
        stage.names.insert(kind.name.to_owned());
    }
    stage.served(&upstream).await?;
    stage
        .follow(&upstream)
        .await
        .context("upstream's members")?;
    // Next, ours takes over, and upstream takes it back.
    let ours = Path::new(env!("CARGO_BIN_EXE_ccm-openstack"));
    let ours = stage
        .swap(upstream, true, ours, &["--load-balancer-verify-period=5s"])
        .await?;
    stage.follow(&ours).await.context("our members")?;
    let upstream = stage.swap(ours, false, &programs.upstream, &[]).await?;
    stage
        .follow(&upstream)
        .await
        .context("upstream's members after ours")?;
    // Last, each deletes half of it.
    let half = stage.names.len() / 2;
    let names: Vec<_> = stage.names.iter().cloned().collect();
    stage.delete(&upstream, &names[..half]).await?;
    let ours = Path::new(env!("CARGO_BIN_EXE_ccm-openstack"));
    let ours = stage.swap(upstream, true, ours, &[]).await?;
    stage.delete(&ours, &names[half..]).await?;
    let left = difference(&before, &cloud_state(cloud).await?);
    let left: Vec<_> = left.iter().filter(|line| !is_expected(line)).collect();
    anyhow::ensure!(left.is_empty(), "not as before: {left:#?}");
    stage.end(ours).await
}

/// Whether this is what is to be left: servers of nodes with their routes, the floating IP of the
/// Service that keeps it, the empty tag that upstream leaves on a shared load balancer, and a user's
/// port whose security groups Octavia has replaced with its own.
fn is_expected(line: &str) -> bool {
    let node = line.starts_with("port node-") || line.starts_with("router cluster: routes");
    node || line.starts_with("port chosen: security_groups: ")
        || line.starts_with("floating IP Floating IP for Kubernetes external service default/keep")
        || line.starts_with("load balancer manual: tags: [] -> [\"\"]")
}

/// What Services name, made for the story.
async fn ids(cloud: &RealCloud) -> anyhow::Result<Ids> {
    let id = |name| cloud.id(name).to_owned();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let port = json!({"network_id": id("network"), "name": "chosen", "fixed_ips": [{"subnet_id": id("vips")}]});
    let port = cloud
        .create(User::Owner, "network", "/v2.0/ports", "port", port)
        .await?;
    // Only an administrator may choose the address.
    let floating = async |address: &str, port: Value| {
        let fields = json!({"floating_network_id": cloud.id("public"), "floating_ip_address": address,
            "project_id": cloud.id("project"), "port_id": port, "description": "an operator's"});
        cloud
            .create(User::Admin, "network", "/v2.0/floatingips", "floatingip", fields)
            .await
    };
    let fixed_address = "203.0.113.200";
    floating(fixed_address, Value::Null).await?;
    let manual = json!({"name": "manual", "vip_subnet_id": id("nodes")});
    let path = "/v2/lbaas/loadbalancers";
    let manual = cloud
        .create(User::Owner, "load-balancer", path, "loadbalancer", manual)
        .await?;
    floating("203.0.113.201", manual["vip_port_id"].clone()).await?;
    let deadline = Instant::now() + SOON;
    let path = format!("{path}/{}", id_of(&manual));
    while cloud.get(User::Owner, "load-balancer", &path).await?["loadbalancer"]["provisioning_status"]
        != "ACTIVE"
    {
        anyhow::ensure!(Instant::now() < deadline, "the operator's load balancer is not made");
        tokio::time::sleep(PAUSE).await;
    }
    Ok(Ids {
        nodes_subnet: id("nodes"),
        vip_network: id("network"),
        vip_subnet: id("vips"),
        vip_port: text(&port["id"]),
        public: id("public"),
        public_subnet: id("public_a"),
        flavor: id("lb_flavor"),
        certificate: cloud.certificate("shop").await?,
        manual: text(&manual["id"]),
        fixed_address: fixed_address.to_owned(),
    })
}

/// The cluster, and the managers that come and go.
struct Stage<'a> {
    cloud: &'a RealCloud,
    round: Round,
    client: kube::Client,
    kubelets: Kubelets,
    directory: tempfile::TempDir,
    nodes: Vec<(String, String)>,
    /// Services.
    names: BTreeSet<String>,
    started: usize,
    _control_plane: ControlPlane,
}

impl<'a> Stage<'a> {
    async fn new(
        cloud: &'a RealCloud,
        programs: &Programs,
        round: Round,
        ids: &Ids,
    ) -> anyhow::Result<Self> {
        let control_plane =
            ControlPlane::start(&programs.control_plane, Options::default()).await?;
        let client = control_plane.client().await?;
        let directory = tempfile::tempdir()?;
        let kubeconfig = directory.path().join("kubeconfig");
        control_plane.write_kubeconfig(&kubeconfig, &control_plane.admin().token)?;
        std::fs::write(directory.path().join("cloud.conf"), cloud_conf(cloud, round, ids))?;
        Ok(Self {
            cloud,
            round,
            kubelets: Kubelets::new(client.clone(), KubeletOptions::default()),
            client,
            directory,
            nodes: Vec::new(),
            names: BTreeSet::new(),
            started: 0,
            _control_plane: control_plane,
        })
    }

    /// Starts a manager; it leads when this returns.
    async fn start(&mut self, program: &Path, flags: &[&str]) -> anyhow::Result<Ccm> {
        self.started += 1;
        let mut args: Vec<OsString> = FLAGS.map(OsString::from).into();
        let workers = self.round.workers();
        args.push(format!("--concurrent-service-syncs={workers}").into());
        args.extend(flags.iter().map(Into::into));
        for (flag, file) in [("--cloud-config=", "cloud.conf"), ("--kubeconfig=", "kubeconfig")] {
            let mut argument = OsString::from(flag);
            argument.push(self.directory.path().join(file));
            args.push(argument);
        }
        let name = format!("manager-{}", self.started);
        let mut ccm = Ccm::start(program, self.directory.path(), &name, args).await?;
        ccm.logged("became leader", SOON).await?;
        Ok(ccm)
    }

    async fn end(&self, mut ccm: Ccm) -> anyhow::Result<()> {
        ccm.signal(Signal::Term).await?;
        ccm.exit(SOON).await.map(drop)
    }

    /// Ends a manager and starts its successor, which changes nothing.
    async fn swap(
        &mut self,
        old: Ccm,
        is_upstream: bool,
        program: &Path,
        flags: &[&str],
    ) -> anyhow::Result<Ccm> {
        let (cloud, cluster) = (cloud_state(self.cloud).await?, self.cluster_state().await?);
        self.end(old).await?;
        if is_upstream {
            // Others wait until the lease has run out.
            let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
            let free = json!({"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}});
            let name = "cloud-controller-manager";
            leases
                .patch(name, &PatchParams::default(), &Patch::Merge(free))
                .await?;
        }
        let new = self.start(program, flags).await?;
        tokio::time::sleep(LOOKED).await;
        let changed = difference(&cloud, &cloud_state(self.cloud).await?);
        // Listed: upstream forgets the health port of members that it makes one by one; and it names
        // a monitor on a shared load balancer after this when nodes change, and after the Service
        // when it starts.
        let listed = |line: &&String| {
            let health_port = is_upstream && line.contains("monitor_port: null ->");
            let renamed = !is_upstream && line.starts_with("monitor monitor_0_manual: name: ");
            self.round == Round::Managed && (health_port || renamed)
        };
        let changed: Vec<_> = changed.iter().filter(|line| !listed(line)).collect();
        anyhow::ensure!(changed.is_empty(), "changed in the cloud: {changed:#?}\n{}", tail(&new));
        let changed = difference(&cluster, &self.cluster_state().await?);
        anyhow::ensure!(changed.is_empty(), "changed in the cluster: {changed:#?}\n{}", tail(&new));
        Ok(new)
    }

    /// A node joins the cluster. Every other one has the label `pool=blue`.
    async fn join(&mut self) -> anyhow::Result<()> {
        let n = self.nodes.len();
        let name = format!("node-{n}");
        let metadata = json!({"metadata": {"hostname": format!("{name}.example")}});
        let made = self.cloud.server(&name, metadata).await?;
        let spec = NodeSpec::new(&*name)
            .provided_ip(made.ip.parse()?)
            .pod_cidr(format!("10.244.{n}.0/24"))
            .label("pool", if n.is_multiple_of(2) { "blue" } else { "green" });
        self.kubelets.register(spec).await?;
        self.nodes.push((name, made.ip));
        Ok(())
    }

    fn services(&self) -> Api<Service> {
        Api::default_namespaced(self.client.clone())
    }

    /// Waits until something holds.
    async fn until(
        &self,
        ccm: &Ccm,
        what: &str,
        holds: impl AsyncFn() -> anyhow::Result<Result<(), String>>,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + LONG;
        while let Err(wrong) = holds().await? {
            anyhow::ensure!(Instant::now() < deadline, "{what}: {wrong}\n{}", tail(ccm));
            tokio::time::sleep(PAUSE_OF_CLOUD).await;
        }
        Ok(())
    }

    async fn nodes_are_ready(&self, ccm: &Ccm) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        self.until(ccm, "nodes are initialised and have routes", async || {
            for node in nodes.list(&ListParams::default()).await? {
                let conditions = node
                    .status
                    .iter()
                    .flat_map(|status| status.conditions.iter().flatten());
                let mut routes = conditions.filter(|c| c.type_ == "NetworkUnavailable");
                if is_tainted(&node, UNINITIALIZED_TAINT) || !routes.any(|c| c.status == "False") {
                    return Ok(Err(node.name_any()));
                }
            }
            Ok(Ok(()))
        })
        .await
    }

    async fn served(&self, ccm: &Ccm) -> anyhow::Result<()> {
        self.until(ccm, "Services have addresses", async || {
            let services = self.services().list(&ListParams::default()).await?.items;
            let waits = |service: &&Service| {
                let status = service
                    .status
                    .as_ref()
                    .and_then(|s| s.load_balancer.as_ref());
                let shows = status
                    .and_then(|s| s.ingress.as_ref())
                    .is_some_and(|i| !i.is_empty());
                self.names.contains(&service.name_any()) && !shows
            };
            let waiting: Vec<_> = services
                .iter()
                .filter(waits)
                .map(kube::ResourceExt::name_any)
                .collect();
            Ok(if waiting.is_empty() {
                Ok(())
            } else {
                Err(format!("{waiting:?} have none"))
            })
        })
        .await
    }

    /// A node joins, and becomes a member of every pool and of every Service's security group.
    async fn follow(&mut self, ccm: &Ccm) -> anyhow::Result<()> {
        self.join().await?;
        self.nodes_are_ready(ccm).await?;
        self.until(ccm, "every pool has every node", async || {
            let lists = Lists::read(self.cloud).await?;
            let mut lacking = Vec::new();
            for (pool, members) in lists.pools() {
                let selects = pool["name"]
                    .as_str()
                    .is_some_and(|name| name.ends_with("_select"));
                for (n, (node, ip)) in self.nodes.iter().enumerate() {
                    let wanted = !selects || n.is_multiple_of(2);
                    if members.iter().any(|member| member["address"] == **ip) != wanted {
                        lacking.push(format!("{} and {node}", pool["name"]));
                    }
                }
            }
            // Upstream puts ports into security groups after all members have been set.
            for (group, node) in lists.groups_without(self.nodes.iter().map(|(_, ip)| &**ip)) {
                lacking.push(format!("{group} and {node}"));
            }
            let busy = |row: &&Value| row["provisioning_status"] != "ACTIVE";
            lacking.extend(
                lists
                    .balancers()
                    .iter()
                    .filter(busy)
                    .map(|row| format!("{} is busy", row["name"])),
            );
            Ok(if lacking.is_empty() {
                Ok(())
            } else {
                Err(format!("{lacking:?}"))
            })
        })
        .await
    }

    async fn delete(&self, ccm: &Ccm, names: &[String]) -> anyhow::Result<()> {
        for name in names {
            self.services()
                .delete(name, &DeleteParams::default())
                .await?;
        }
        self.until(ccm, "Services are deleted", async || {
            let services = self.services().list(&ListParams::default()).await?.items;
            let left: Vec<_> = services
                .iter()
                .map(kube::ResourceExt::name_any)
                .filter(|name| names.contains(name))
                .collect();
            Ok(if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?} are left"))
            })
        })
        .await
    }

    /// Nodes and Services, but for what changes although nothing does.
    async fn cluster_state(&self) -> anyhow::Result<Objects> {
        let mut objects = Objects::new();
        let nodes: Api<Node> = Api::all(self.client.clone());
        for node in nodes.list(&ListParams::default()).await? {
            objects.insert(format!("node {}", node.name_any()), serde_json::to_value(node)?);
        }
        for service in self.services().list(&ListParams::default()).await? {
            objects
                .insert(format!("service {}", service.name_any()), serde_json::to_value(service)?);
        }
        for object in objects.values_mut() {
            for field in ["managedFields", "resourceVersion"] {
                object["metadata"]
                    .as_object_mut()
                    .and_then(|fields| fields.remove(field));
            }
            for condition in object["status"]["conditions"]
                .as_array_mut()
                .into_iter()
                .flatten()
            {
                condition
                    .as_object_mut()
                    .and_then(|fields| fields.remove("lastHeartbeatTime"));
            }
        }
        Ok(objects)
    }
}

fn cloud_conf(cloud: &RealCloud, round: Round, ids: &Ids) -> String {
    let access = &cloud.access;
    let mut text = format!(
        "[Global]\nauth-url = {}\nusername = ccm\npassword = {}\ndomain-id = default\ntenant-name = kube\nregion = {}\n\
         [Route]\nrouter-id = {}\n\
         [LoadBalancerClass \"spare\"]\nfloating-network-id = {}\nfloating-subnet-id = {}\nsubnet-id = {}\n\
         member-subnet-id = {}\n\
         [LoadBalancer]\nsubnet-id = {}\nfloating-network-id = {}\nfloating-subnet-id = {}\n",
        access.auth_url,
        access.password,
        access.region,
        cloud.id("router"),
        ids.public,
        cloud.id("public_b"),
        ids.vip_subnet,
        ids.nodes_subnet,
        ids.nodes_subnet,
        ids.public,
        ids.public_subnet,
    );
    if round == Round::Managed {
        text.push_str("manage-security-groups = true\ncreate-monitor = true\nprovider-requires-serial-api-calls = true\n");
    }
    text
}

/// Objects by kind and name.
type Objects = BTreeMap<String, Value>;

/// Fields that change although nobody changes the object.
const VOLATILE: [&str; 5] =
    ["updated_at", "revision_number", "operating_status", "provisioning_status", "status"];

/// Everything in the project that a manager may change, by kind and ID. Lists have no order.
async fn cloud_state(cloud: &RealCloud) -> anyhow::Result<Objects> {
    let mut objects = Objects::new();
    let mut add = |kind: &str, rows: Vec<Value>| {
        for mut row in rows {
            for field in VOLATILE {
                row.as_object_mut().and_then(|fields| fields.remove(field));
            }
            for field in row
                .as_object_mut()
                .into_iter()
                .flat_map(|fields| fields.values_mut())
            {
                if let Some(list) = field.as_array_mut() {
                    list.sort_by_key(Value::to_string);
                }
            }
            objects.insert(format!("{kind} {}", id_of(&row)), row);
        }
    };
    for (kind, key) in [
        ("load balancer", "loadbalancers"),
        ("listener", "listeners"),
        ("pool", "pools"),
        ("monitor", "healthmonitors"),
    ] {
        let path = format!("/v2/lbaas/{key}");
        let rows = cloud.of_project("load-balancer", &path, key).await?;
        for row in rows.iter().filter(|_| key == "pools") {
            let path = format!("{path}/{}/members", id_of(row));
            add("member", cloud.list("load-balancer", &path, "members").await?);
        }
        add(kind, rows);
    }
    for (kind, key, path) in [
        ("floating IP", "floatingips", "floatingips"),
        ("security group", "security_groups", "security-groups"),
        ("router", "routers", "routers"),
        ("port", "ports", "ports"),
    ] {
        add(
            kind,
            cloud
                .of_project("network", &format!("/v2.0/{path}"), key)
                .await?,
        );
    }
    Ok(objects)
}

/// A line for each field that differs, and for each object that one of the two lacks.
fn difference(before: &Objects, after: &Objects) -> Vec<String> {
    let mut lines = Vec::new();
    for key in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let (old, new) = (before.get(key), after.get(key));
        // Objects of the cloud are told by name, or by description where they have none.
        let known = old
            .or(new)
            .into_iter()
            .flat_map(|object| ["name", "description"].map(|f| &object[f]));
        let name = known
            .filter_map(Value::as_str)
            .find(|text| !text.is_empty());
        let id = key.rsplit(' ').next().unwrap_or_default();
        let called = name.map_or_else(|| key.clone(), |name| key.replace(id, name));
        match (old, new) {
            (Some(old), Some(new)) => {
                let fields = [old, new]
                    .into_iter()
                    .filter_map(Value::as_object)
                    .flat_map(|row| row.keys());
                for field in fields.collect::<BTreeSet<_>>() {
                    if old[field] != new[field] {
                        lines.push(format!("{called}: {field}: {} -> {}", old[field], new[field]));
                    }
                }
            }
            (Some(_), None) => lines.push(format!("{called} is gone")),
            _ => lines.push(format!("{called} is new")),
        }
    }
    lines
}

/// The end of a manager's log.
fn tail(ccm: &Ccm) -> String {
    let log = ccm.log();
    log[log.floor_char_boundary(log.len().saturating_sub(4000))..].to_owned()
}
