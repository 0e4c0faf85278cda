//! The Helm chart with this provider: what it renders is what the binary takes, and an installed
//! release serves a cluster.

#[allow(dead_code, reason = "other suites use the rest")]
#[path = "../../../../tests/e2e/tests/support/helm.rs"]
mod helm;

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ccm_core::config::{Invocation, parse};
use ccm_e2e::{
    ccm::Ccm,
    server::{Server, ServerKind},
};
use ccm_openstack::{
    config::{self, Environment},
    manager,
};
use ccm_testkit::{
    control_plane::{Binaries, helm as find_helm},
    supervised::free_port,
};
use helm::{Helm, RELEASE, chart, container, only, strings};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Secret, Service},
    rbac::v1::ClusterRole,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use openstack_local::api::{
    neutron::{NetworkCreate, SubnetCreate},
    nova::{NetworkRequest, Networks, ServerCreate},
};
use openstack_local::{
    neutron,
    nova::{self, Microversion},
    server::{LocalCloud, Settings, TimeSource},
    servers::{Kubernetes, NODE},
    state::{ApiError, CloudState, RequestContext},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

/// Namespace of the release.
const NAMESPACE: &str = "kube-system";
/// Longest time of anything, on a machine that is busy.
const SOON: Duration = Duration::from_secs(120);
/// Port of the Service.
const PORT: u16 = 8282;

/// The argument's value.
fn value_of<'a>(args: &'a [String], flag: &str) -> &'a str {
    args.iter()
        .find_map(|arg| arg.strip_prefix(&format!("--{flag}=")))
        .unwrap()
}

/// Tells where the Secret of the cloud config is mounted, and how it is called.
fn mounted(pod: &Value) -> (String, String) {
    let volumes = pod["volumes"].as_array().unwrap();
    let volume = volumes
        .iter()
        .find(|volume| volume["name"] == "cloud-config")
        .unwrap();
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    let mount = mounts
        .iter()
        .find(|mount| mount["name"] == "cloud-config")
        .unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&volume["secret"]["secretName"]), text(&mount["mountPath"]))
}

/// Why the chart cannot be rendered.
pub(crate) fn missing_for_rendering() -> Option<String> {
    find_helm().err()
}

/// Why no release can be installed.
pub(crate) fn missing_for_a_release(binaries: &Result<Binaries, String>) -> Option<String> {
    let no_manager = || {
        "no kube-controller-manager; `cargo xtask control-plane` builds it, it needs Go".to_owned()
    };
    match binaries {
        Ok(binaries) if binaries.kube_controller_manager.is_none() => Some(no_manager()),
        Ok(_) => missing_for_rendering(),
        Err(missing) => Some(missing.clone()),
    }
}

pub(crate) fn the_example_renders_what_the_provider_takes() -> anyhow::Result<()> {
    let helm = Helm::find()?;
    let example = chart().join("examples/openstack.yaml");
    let objects = helm
        .objects(&["--values", example.to_str().unwrap()])
        .unwrap();
    let workload = only(&objects, "DaemonSet").unwrap();
    assert_eq!(container(workload)["image"], "registry.example.org/infra/ccm-openstack:0.1.0");
    let args = strings(&container(workload)["args"]);
    let Ok(Invocation::Run(config)) = parse(&manager::product(), args.iter().cloned()) else {
        panic!("{args:?}")
    };
    assert_eq!(config.generic.cluster_name, "example");
    // The file that the flag names is a key of the Secret that is mounted there.
    let (secret_name, folder) = mounted(&workload["spec"]["template"]["spec"]);
    let secret = only(&objects, "Secret").unwrap();
    assert_eq!(secret["metadata"]["name"], *secret_name);
    let file = config.generic.cloud_config.unwrap();
    assert_eq!(file.parent().unwrap(), Path::new(&folder));
    let content = secret["stringData"][file.file_name().unwrap().to_str().unwrap()]
        .as_str()
        .unwrap();

    let own = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(own.path(), content).unwrap();
    let settings = config::load(Some(own.path()), &Environment::default()).unwrap();
    assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
    assert_eq!(&*settings.cloud.region, "RegionOne");
    assert_eq!(settings.cloud.tls.ca_file.as_deref(), Some(Path::new("/etc/openstack-ca/ca.pem")));
    assert_eq!(settings.networking.internal_networks, ["nodes".into(), "storage".into()]);
    assert!(settings.router.is_some());
    let balancers = settings.load_balancer.unwrap();
    assert!(balancers.create_monitor && balancers.manage_security_groups);
    assert_eq!(
        balancers
            .classes
            .keys()
            .map(|name| &**name)
            .collect::<Vec<_>>(),
        ["internal"]
    );
    Ok(())
}

/// A local cloud with a network on loopback, and the cluster's nodes as its servers.
struct Cloud {
    local: LocalCloud,
    address: SocketAddr,
    subnet: String,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Cloud {
    async fn start(cluster: kube::Client, servers: u32) -> Self {
        let settings = Settings {
            time: TimeSource::System,
            pending: Duration::from_millis(200),
            ..Settings::default()
        };
        let local =
            LocalCloud::in_memory(settings).with_cluster(Arc::new(Kubernetes::new(cluster)));
        let project = local.cloud().store.peek(|state| {
            let mut projects = state.keystone.projects.iter();
            projects
                .find(|project| project.name == "demo")
                .map(|project| project.id.clone())
                .unwrap()
        });
        let ctx = RequestContext {
            now: local.cloud().clock.now(),
            project: project.into(),
            user: "operator".into(),
            admin: true,
        };
        let process = std::process::id();
        // A network that no other process of these tests has.
        let range = format!("127.{}.{}.0/24", 112 + process % 16, process / 16 % 256);
        let subnet = local
            .cloud()
            .store
            .change(move |state| build(state, &ctx, &range, servers))
            .await
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, cloud) = (CancellationToken::new(), local.clone());
        let cancel = stop.clone();
        let serving = tokio::spawn(async move { cloud.serve(listener, cancel).await });
        Self { local, address, subnet, stop, serving }
    }

    async fn end(self) {
        self.stop.cancel();
        self.serving.await.unwrap().unwrap();
    }
}

/// Makes a network and servers on it that are nodes. Returns the subnet.
fn build(
    state: &mut CloudState,
    ctx: &RequestContext,
    range: &str,
    servers: u32,
) -> Result<String, ApiError> {
    let network = NetworkCreate { name: Some("nodes".into()), ..NetworkCreate::default() };
    let network = neutron::networks::create(state, ctx, network)?.id;
    let subnet = SubnetCreate {
        network_id: network.clone(),
        ip_version: 4,
        cidr: Some(range.to_owned()),
        ..SubnetCreate::default()
    };
    let subnet = neutron::subnets::create(state, ctx, subnet)?.id;
    for number in 0..servers {
        let on = NetworkRequest { uuid: Some(network.clone()), ..NetworkRequest::default() };
        let server = ServerCreate {
            name: format!("node-{number}"),
            flavor_ref: "2".to_owned(),
            networks: Some(Networks::These(vec![on])),
            metadata: Some([(NODE.to_owned(), "true".to_owned())].into()),
            ..ServerCreate::default()
        };
        nova::create::create(state, ctx, Microversion(60), &server)?;
    }
    Ok(subnet)
}

/// Waits until `look` finds something.
async fn soon<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begin.elapsed() < SOON, "{what} does not happen");
        sleep(Duration::from_millis(100)).await;
    }
}

/// What a user writes: this cloud, with short periods.
fn values(cloud: &Cloud) -> Value {
    let password = cloud.local.credentials().password("demo").unwrap().expose();
    json!({
        "provider": "openstack",
        "image": {"registry": "registry.example.org"},
        "replicaCount": 1,
        "cluster": {"name": "chart"},
        "serving": {"port": free_port().unwrap()},
        "cloudConfig": {"values": {
            "Global": {
                "auth-url": format!("http://{}/identity/v3", cloud.address), "region": "RegionOne",
                "username": "demo", "password": password, "tenant-name": "demo", "domain-id": "default",
            },
            "LoadBalancer": {"subnet-id": cloud.subnet, "internal-lb": true},
        }},
        "extraArgs": {"node-monitor-period": "1s"},
    })
}

/// What a kubelet does for the release's pod: writes the Secret where it is mounted and starts the
/// arguments, as the ServiceAccount. Paths are below `folder`.
async fn start(server: &Server, folder: &Path) -> Ccm {
    let deployments: Api<Deployment> = Api::namespaced(server.client(), NAMESPACE);
    let deployment = serde_json::to_value(deployments.get(RELEASE).await.unwrap()).unwrap();
    let pod = &deployment["spec"]["template"]["spec"];
    let (secret, path) = mounted(pod);
    let own = folder.join(path.trim_start_matches('/'));
    std::fs::create_dir_all(&own).unwrap();
    let secrets: Api<Secret> = Api::namespaced(server.client(), NAMESPACE);
    for (key, content) in secrets.get(&secret).await.unwrap().data.unwrap() {
        std::fs::write(own.join(key), content.0).unwrap();
    }
    let account = pod["serviceAccountName"].as_str().unwrap();
    let kubeconfig = folder.join("account.kubeconfig");
    server
        .write_account_kubeconfig(&kubeconfig, NAMESPACE, account)
        .await
        .unwrap();
    let args = strings(&pod["containers"][0]["args"]);
    let file = PathBuf::from(value_of(&args, "cloud-config"));
    assert_eq!(file.parent().unwrap(), Path::new(&path));
    let mut args: Vec<OsString> = args
        .iter()
        .map(|arg| arg.replace(&path, own.to_str().unwrap()).into())
        .collect();
    for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
        args.push(format!("--{flag}={}", kubeconfig.display()).into());
    }
    let program = Path::new(env!("CARGO_BIN_EXE_ccm-openstack"));
    Ccm::start(program, folder, "ccm-openstack", args)
        .await
        .unwrap()
}

// length: one story, told in order
pub(crate) async fn an_installed_release_serves_a_cluster(
    binaries: Binaries,
) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::real(ServerKind::RealWithControllers, &binaries, &[])
        .await
        .unwrap();
    let cloud = Cloud::start(server.client(), 2).await;
    let kubeconfig = folder.path().join("admin.kubeconfig");
    server.write_admin_kubeconfig(&kubeconfig).await.unwrap();
    let helm = Helm::find().unwrap().with_kubeconfig(kubeconfig);
    let file = folder.path().join("values.json");
    std::fs::write(&file, values(&cloud).to_string()).unwrap();
    let (chart, file) = (chart().display().to_string(), file.display().to_string());
    let install = ["install", RELEASE, &chart, "--namespace", NAMESPACE, "--values", &file];
    tokio::task::block_in_place(|| helm.run(install)).unwrap();
    let roles: Api<ClusterRole> = Api::all(server.client());
    let has_rules = |role: ClusterRole| {
        role.rules
            .is_some_and(|rules| !rules.is_empty())
            .then_some(())
    };
    soon("a role with rules", async || roles.get(RELEASE).await.ok().and_then(has_rules)).await;

    let mut ccm = start(&server, folder.path()).await;
    let nodes: Api<Node> = Api::all(server.client());
    let ids = soon("that all nodes are initialised", async || {
        assert!(ccm.is_running().unwrap(), "{}", ccm.log());
        let nodes = nodes.list(&ListParams::default()).await.unwrap().items;
        let id = |node: &Node| node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
        let ids: Vec<_> = nodes.iter().filter_map(id).collect();
        (ids.len() == 2).then_some(ids)
    });
    assert!(ids.await.iter().all(|id| id.starts_with("openstack:///")));
    let services: Api<Service> = Api::namespaced(server.client(), "default");
    let service = json!({"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer", "ports": [{"port": PORT}]}});
    services
        .create(&PostParams::default(), &serde_json::from_value(service).unwrap())
        .await
        .unwrap();
    let address = soon("an address", async || {
        let status = services.get("web").await.unwrap().status?;
        status.load_balancer?.ingress?.first()?.ip.clone()
    });
    let address = address.await;
    for node in ["node-0 ", "node-1 "] {
        soon("an answer of each node", async || {
            get(&address)
                .await
                .filter(|answer| answer.contains(&format!("\r\n\r\n{node}")))
        })
        .await;
    }
    services
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    soon("the end of the Service", async || {
        services
            .get_opt("web")
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
    assert!(get(&address).await.is_none(), "the address is closed");
    ccm.terminate().await.unwrap();
    cloud.end().await;
    Ok(())
}

/// What is answered at the Service's port.
async fn get(address: &str) -> Option<String> {
    let mut stream = TcpStream::connect((address, PORT)).await.ok()?;
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
        .await
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}
