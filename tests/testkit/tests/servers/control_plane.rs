//! The harness itself, on real binaries.

use std::io::{BufRead as _, BufReader, Write as _};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ccm_testkit::control_plane::{
    Binaries, Component, ControlPlane, ControllerManager, Options, StartError, User,
    kubernetes_version, usage,
};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use kube::api::{Api, ListParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;

use crate::{Case, binaries, cases};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases![
        starts_admits_and_stops,
        gates_controller_manager_and_service_accounts_work,
        an_api_server_that_was_restarted_has_the_objects_and_not_the_history,
        a_bad_argument_is_reported_with_the_programs_own_words,
        a_port_that_is_never_free_is_reported_in_the_end,
    ];
    // Whether a process is gone is seen there alone.
    if cfg!(target_os = "linux") {
        cases.extend(cases![killing_the_holder_kills_the_programs]);
    }
    cases
}

fn from_json<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).expect("the test's own JSON has the right shape")
}

/// Callers start control planes in tasks of a runtime with many threads.
#[expect(dead_code, reason = "compiling it is the test")]
fn starting_can_move_between_threads(binaries: &Binaries) -> impl Send {
    ControlPlane::start(binaries, Options::default())
}

async fn starts_admits_and_stops() {
    let binaries = binaries();
    let options = Options::default().audit().user(User::new("nobody-special"));
    let control_plane = ControlPlane::start(&binaries, options).await.unwrap();

    let version = control_plane
        .client()
        .await
        .unwrap()
        .apiserver_version()
        .await
        .unwrap()
        .git_version;
    assert_eq!(version, kubernetes_version(), "the version that tests/control-plane pins");
    let nodes: Api<Node> = Api::all(control_plane.client_named("ccm-test/1").await.unwrap());
    let node = from_json(json!({"metadata": {"name": "a"}}));
    let node = nodes.create(&PostParams::default(), &node).await.unwrap();
    let taints: Vec<_> = node
        .spec
        .unwrap()
        .taints
        .unwrap()
        .into_iter()
        .map(|taint| taint.key)
        .collect();
    assert_eq!(
        taints,
        ["node.kubernetes.io/not-ready"],
        "the admission plugin that taints new nodes is on"
    );

    let nobody = control_plane.user("nobody-special").unwrap();
    let denied: Api<Node> = Api::all(control_plane.client_as(&nobody.token).await.unwrap());
    let error = denied.list(&ListParams::default()).await.unwrap_err();
    assert!(
        matches!(&error, kube::Error::Api(status) if status.code == 403),
        "RBAC is on: {error}"
    );

    let log = control_plane.audit_log().unwrap();
    assert_eq!(log.of_agent("ccm-test/").count("create", "nodes"), 1);
    assert_eq!(
        log.filter(|event| event.user == "nobody-special")
            .events
            .len(),
        1
    );

    let pids = [Component::Etcd, Component::Apiserver]
        .map(|component| control_plane.pid(component).unwrap());
    let directory = control_plane.directory().to_owned();
    if cfg!(target_os = "linux") {
        assert!(control_plane.usage(Component::Apiserver).unwrap().cpu > Duration::ZERO);
    }
    control_plane.stop().await.unwrap();
    assert!(!directory.exists());
    if cfg!(target_os = "linux") {
        assert_eq!(pids.map(usage), [None, None], "the programs are gone");
    }
}

async fn gates_controller_manager_and_service_accounts_work() {
    let binaries = binaries();
    let controllers = ControllerManager {
        controllers: vec!["serviceaccount-controller".into()],
        args: Vec::new(),
    };
    let options = Options::default()
        .feature_gate("WatchList", false)
        .controller_manager(controllers);
    let control_plane = ControlPlane::start(&binaries, options).await.unwrap();
    let client = control_plane.client().await.unwrap();

    let metrics = client
        .request_text(http::Request::get("/metrics").body(Vec::new()).unwrap())
        .await
        .unwrap();
    let gate = metrics
        .lines()
        .find(|line| line.starts_with("kubernetes_feature_enabled{name=\"WatchList\""));
    assert!(gate.unwrap().ends_with(" 0"), "{gate:?}");

    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .create(&PostParams::default(), &from_json(json!({"metadata": {"name": "team"}})))
        .await
        .unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(client, "team");
    let deadline = Instant::now() + Duration::from_secs(30);
    while accounts.get_opt("default").await.unwrap().is_none() {
        assert!(Instant::now() < deadline, "the controller makes no service account");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    let token = control_plane
        .service_account_token("team", "default")
        .await
        .unwrap();
    let kubeconfig = control_plane.directory().join("team.kubeconfig");
    control_plane.write_kubeconfig(&kubeconfig, &token).unwrap();
    let kubeconfig = kube::config::Kubeconfig::read_from(&kubeconfig).unwrap();
    let config = kube::Config::from_custom_kubeconfig(
        kubeconfig,
        &kube::config::KubeConfigOptions::default(),
    )
    .await
    .unwrap();
    let nodes: Api<Node> = Api::all(kube::Client::try_from(config).unwrap());
    let error = nodes
        .list(&ListParams::default())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("system:serviceaccount:team:default"), "{error}");
    control_plane.stop().await.unwrap();
}

async fn an_api_server_that_was_restarted_has_the_objects_and_not_the_history() {
    let binaries = binaries();
    let mut control_plane = ControlPlane::start(&binaries, Options::default())
        .await
        .unwrap();
    let nodes: Api<Node> = Api::all(control_plane.client().await.unwrap());
    let create = async |name: &str| {
        let node = from_json(json!({"metadata": {"name": name}}));
        nodes
            .create(&PostParams::default(), &node)
            .await
            .unwrap()
            .metadata
            .resource_version
            .unwrap()
    };
    let before = create("a").await;
    create("b").await;

    control_plane
        .stop_program(Component::Apiserver)
        .await
        .unwrap();
    assert_eq!(control_plane.pid(Component::Apiserver), None);
    assert!(nodes.get("a").await.is_err(), "an outage");
    control_plane
        .restart_program(Component::Apiserver)
        .await
        .unwrap();
    assert_eq!(
        nodes
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        2
    );
    let mut watch = pin!(nodes.watch(&WatchParams::default(), &before).await.unwrap());
    match watch.try_next().await.unwrap() {
        Some(WatchEvent::Error(status)) => assert_eq!(status.code, 410, "{status:?}"),
        other => panic!("a watch from before goes on: {other:?}"),
    }

    let error = control_plane
        .restart_program(Component::ControllerManager)
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "the control plane was started without ControllerManager");
    control_plane.stop().await.unwrap();
}

async fn a_bad_argument_is_reported_with_the_programs_own_words() {
    let binaries = binaries();
    let options = Options::default().apiserver_arg("--no-such-flag=1");
    let error = ControlPlane::start(&binaries, options)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("kube-apiserver ended during start"), "{error}");
    assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
}

async fn a_port_that_is_never_free_is_reported_in_the_end() {
    let binaries = binaries();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    // The last one wins, so every attempt meets the taken port. The words are those that a new
    // attempt depends on.
    let options = Options::default().apiserver_arg(format!("--secure-port={port}"));
    let error = ControlPlane::start(&binaries, options).await.unwrap_err();
    assert!(
        matches!(&error, StartError::Exited { log, .. } if log.contains("address already in use")),
        "{error}"
    );
}

/// Set for the process that [`killing_the_holder_kills_the_programs`] starts.
const HOLDER: &str = "CCM_TEST_CONTROL_PLANE_HOLDER";

/// Whether this process is to [`hold`] a control plane and to be killed.
pub(crate) fn is_holder() -> bool {
    std::env::var_os(HOLDER).is_some()
}

/// Starts a control plane, says so, and does nothing more.
pub(crate) fn hold() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let control_plane = ControlPlane::start(&binaries(), Options::default())
            .await
            .unwrap();
        let pids = [Component::Etcd, Component::Apiserver]
            .map(|component| control_plane.pid(component).unwrap());
        let mut out = std::io::stdout();
        writeln!(out, "HOLDING {} {} {}", pids[0], pids[1], control_plane.directory().display())
            .unwrap();
        out.flush().unwrap();
        std::future::pending::<()>().await;
    });
}

async fn killing_the_holder_kills_the_programs() {
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .env(HOLDER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let held = lines
        .find_map(|line| line.strip_prefix("HOLDING ").map(str::to_owned))
        .expect("the holder started");
    let fields: Vec<_> = held.splitn(3, ' ').collect();
    let pids = [fields[0], fields[1]].map(|pid| pid.parse::<u32>().unwrap());
    let directory = std::path::PathBuf::from(fields[2]);
    assert!(pids.iter().all(|pid| usage(*pid).is_some()) && directory.exists(), "{held}");

    holder.kill().unwrap(); // SIGKILL: no destructor runs
    holder.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while pids.iter().any(|pid| usage(*pid).is_some()) || directory.exists() {
        assert!(Instant::now() < deadline, "still there: {held}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
