//! The process and its person: bad input, a server that is away. Each answer is clear, none is a
//! panic.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ccm_core::{
    config::{self, Invocation},
    manager::{ClientFactory, Manager},
};
use ccm_e2e::ccm::{Ccm, Signal};
use ccm_mock::manager::product;
use ccm_mock::{CloudConfig, MockCloud, MockProvider};
use ccm_testkit::apiserver::{Action, ApiServer, Match, Options};
use ccm_testkit::suite::Tier;
use tokio::net::TcpSocket;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::plain::Case;
use crate::{async_cases, cases};

pub(crate) fn cases() -> Vec<Case> {
    let minute = async_cases![an_api_server_that_is_away_is_waited_for_a_minute];
    let mut cases: Vec<_> = minute
        .into_iter()
        .map(|case| Case { tier: Tier::Nightly, ..case })
        .collect();
    cases.extend(cases![a_manager_waits_a_minute_for_an_api_server_that_is_away]);
    cases.extend(async_cases![
        help_and_version_succeed,
        help_names_each_subcommand,
        to_ask_the_leader_explain_needs_no_flags,
        mistakes_in_flags_are_reported_together,
        flags_that_contradict_each_other_are_reported_together,
        a_bad_migration_file_is_named_with_every_wrong_field,
        help_has_groups_and_stages_and_version_has_forms,
        an_unknown_provider_is_named_beside_the_known_one,
        a_bad_cloud_config_is_named_with_file_line_and_key,
        a_bad_kubeconfig_is_named,
        sigterm_ends_the_wait_for_an_api_server_in_order,
    ]);
    cases
}

/// How long a process may take to end that has nothing to wait for.
const AT_ONCE: Duration = Duration::from_secs(20);

/// A directory with the files of one test, and the processes started with them.
struct TestDirectory {
    directory: tempfile::TempDir,
}

impl TestDirectory {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A kubeconfig for an address.
    fn kubeconfig(&self, server: &str) -> PathBuf {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\n\
             users: [{{name: u, user: {{token: secret-token}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
        );
        self.file("kubeconfig", &text)
    }

    async fn start(&self, args: &[&str]) -> Ccm {
        let program = Path::new(env!("CARGO_BIN_EXE_ccm-under-test"));
        let is_word = |arg: &&&str| !arg.starts_with('-');
        let (words, flags) = args.split_at(args.iter().take_while(is_word).count());
        // Many run side by side, and one port is not enough for them.
        let args = words
            .iter()
            .chain(&["--secure-port=0"])
            .chain(flags)
            .map(OsString::from)
            .collect();
        Ccm::start(program, self.directory.path(), "ccm", args)
            .await
            .unwrap()
    }

    /// Runs to the end; returns exit code and everything printed.
    async fn run(&self, args: &[&str]) -> (Option<i32>, String) {
        let mut ccm = self.start(args).await;
        let code = ccm.exit(AT_ONCE).await.unwrap().code();
        (code, printed(&ccm))
    }

    /// Runs with what it must not accept; returns what it says.
    async fn refused(&self, args: &[&str]) -> String {
        let (code, text) = self.run(args).await;
        assert_eq!(code, Some(1), "{text}");
        assert!(text.lines().any(|line| line.starts_with("error: ")), "{text}");
        text
    }
}

/// What a process printed, which may be anything but a panic or a secret.
fn printed(ccm: &Ccm) -> String {
    let text = ccm.log();
    assert!(!text.contains("panicked"), "{text}");
    assert!(!text.contains("secret-token"), "{text}");
    text
}

fn flag(name: &str, value: &Path) -> String {
    format!("--{name}={}", value.display())
}

async fn help_and_version_succeed() {
    let bench = TestDirectory::new();
    let (code, help) = bench.run(&["--help"]).await;
    assert_eq!(code, Some(0), "{help}");
    for word in [
        "ccm-mock",
        "--cloud-provider",
        "--cloud-config",
        "--node-deletion-safety",
        "--leader-elect",
    ] {
        assert!(help.contains(word), "{word} is not in\n{help}");
    }
    let (code, version) = bench.run(&["--version"]).await;
    assert_eq!(code, Some(0), "{version}");
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
}

async fn help_names_each_subcommand() {
    let bench = TestDirectory::new();
    let (_, help) = bench.run(&["--help"]).await;
    for (subcommand, flag) in
        [("check", "--timeout"), ("explain", "--alone"), ("orphans", "--delete")]
    {
        assert!(help.contains(&format!("ccm-mock {subcommand} ")), "{help}");
        let (code, own) = bench.run(&[subcommand, "--help"]).await;
        assert!(code == Some(0) && own.contains(flag), "{own}");
        assert!(!help.contains(flag), "{help}");
    }
}

/// The program knows its provider, which only matters if no leader answers.
async fn to_ask_the_leader_explain_needs_no_flags() {
    let bench = TestDirectory::new();
    let kubeconfig = flag("kubeconfig", &bench.kubeconfig("https://127.0.0.1:1"));
    let address = "--address=https://127.0.0.1:1";
    let node = ["explain", "node", "a", address, &*kubeconfig, "--timeout=1s"];
    let text = bench.refused(&node).await;
    assert!(text.contains("no leader answers at https://127.0.0.1:1"), "{text}");
    let text = bench
        .refused(&[&node[..], &["--cloud-provider=acme"]].concat())
        .await;
    assert!(text.contains("acme"), "{text}");
}

async fn mistakes_in_flags_are_reported_together() {
    let bench = TestDirectory::new();
    let text = bench
        .refused(&["--cloud-provider=mock", "--no-such-flag=1"])
        .await;
    assert!(text.contains("--no-such-flag"), "{text}");
    let text = bench
        .refused(&["--cloud-provider=mock", "--node-monitor-period=5parsecs"])
        .await;
    assert!(text.contains("node-monitor-period") && text.contains("5parsecs"), "{text}");
    let text = bench
        .refused(&["--cloud-provider=mock", "--node-monitor-period=soon", "--no-such-flag"])
        .await;
    assert!(text.contains("node-monitor-period") && text.contains("--no-such-flag"), "{text}");
    let text = bench
        .refused(&[
            "--cloud-provider=mock",
            "--concurrent-node-syncs=0",
            "--controllers=no-such-one",
        ])
        .await;
    assert!(text.contains("concurrent-node-syncs") && text.contains("no-such-one"), "{text}");
}

async fn flags_that_contradict_each_other_are_reported_together() {
    let bench = TestDirectory::new();
    let text = bench
        .refused(&[
            "--cloud-provider=mock",
            "--leader-elect-lease-duration=5s",
            "--leader-elect-renew-deadline=5s",
            "--leader-elect-retry-period=5s",
            "--leader-elect-resource-lock=endpoints",
            "--webhooks=*",
            "--secure-port=10258",
            "--webhook-secure-port=10258",
            "--tls-cert-file=/some/file",
            "--cluster-cidr=10.0.0.0/8,10.1.0.0/16",
            "--feature-gates=NoSuchGate=true",
        ])
        .await;
    for flag in [
        "--leader-elect-lease-duration",
        "--leader-elect-renew-deadline",
        "--leader-elect-resource-lock",
        "--webhooks",
        "--webhook-secure-port",
        "--tls-private-key-file",
        "--cluster-cidr",
        "NoSuchGate",
    ] {
        assert!(text.contains(flag), "{flag} is not in {text}");
    }
}

async fn a_bad_migration_file_is_named_with_every_wrong_field() {
    let bench = TestDirectory::new();
    let silent = Silent::take();
    let kubeconfig = bench.kubeconfig(&silent.url());
    let refused = async |file: &Path| {
        let kubeconfig = flag("kubeconfig", &kubeconfig);
        let flags = ["--cloud-provider=mock", &kubeconfig, "--enable-leader-migration"];
        bench
            .refused(&[&flags[..], &[&flag("leader-migration-config", file)]].concat())
            .await
    };
    let missing = bench.directory.path().join("missing.yaml");
    let text = refused(&missing).await;
    assert!(
        text.contains(&flag("leader-migration-config", &missing)) && text.contains("No such file"),
        "{text}"
    );
    let broken = bench.file("broken.yaml", "leaderName: [\n");
    let text = refused(&broken).await;
    assert!(
        text.contains(&flag("leader-migration-config", &broken)) && text.contains("line "),
        "{text}"
    );
    let wrong = "apiVersion: controllermanager.config.k8s.io/v2\nkind: Other\n\
                 controllerLeaders:\n  - name: service-controller\n  - component: kube-controller-manager\n";
    let text = refused(&bench.file("wrong.yaml", wrong)).await;
    for word in [
        "apiVersion",
        "kind",
        "leaderName",
        "controllerLeaders[0].component",
        "controllerLeaders[1].name",
    ] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    let lock = "apiVersion: controllermanager.config.k8s.io/v1\nkind: LeaderMigrationConfiguration\n\
                leaderName: cloud-controller-manager\n";
    let text = refused(&bench.file("lock.yaml", lock)).await;
    assert!(text.contains("leaderName") && text.contains("--leader-elect-resource-name"), "{text}");
    let twice = format!("{lock}leaderName: other\n");
    let text = refused(&bench.file("twice.yaml", &twice)).await;
    assert!(text.contains("leaderName") && text.contains("line 4"), "{text}");
}

async fn help_has_groups_and_stages_and_version_has_forms() {
    let bench = TestDirectory::new();
    let (_, help) = bench.run(&["--help"]).await;
    let groups = [
        "Generic flags:",
        "Leader-migration flags:",
        "Secure serving flags:",
        "Webhook flags:",
        "Global flags:",
    ];
    let places: Vec<_> = groups
        .iter()
        .map(|group| {
            help.find(group)
                .unwrap_or_else(|| panic!("{group}\n{help}"))
        })
        .collect();
    assert!(places.is_sorted(), "{places:?}");
    assert!(
        help.contains("CloudControllerManagerWatchBasedRoutesReconciliation=true|false (ALPHA - default=false)"),
        "{help}"
    );
    let (code, raw) = bench.run(&["--version=raw"]).await;
    assert!(code == Some(0) && raw.contains("platform:"), "{raw}");
    let library = format!("cryptography: {}\n", ccm_core::crypto::LIBRARY);
    assert!(raw.contains(&library), "{raw}");
    let text = bench.refused(&["--version=v1.x"]).await;
    assert!(text.contains("--version") && text.contains("v1.x"), "{text}");
    // A version to report does not end the process: the next thing that is missing does.
    let text = bench.refused(&["--version=v1.36.0"]).await;
    assert!(text.contains("--cloud-provider"), "{text}");
}

async fn an_unknown_provider_is_named_beside_the_known_one() {
    let bench = TestDirectory::new();
    let text = bench.refused(&["--cloud-provider=acme"]).await;
    assert!(text.contains("acme") && text.contains("mock"), "{text}");
    let text = bench.refused(&[]).await;
    assert!(text.contains("--cloud-provider"), "{text}");
}

async fn a_bad_cloud_config_is_named_with_file_line_and_key() {
    let bench = TestDirectory::new();
    let missing = bench.directory.path().join("missing.yaml");
    let text = bench
        .refused(&["--cloud-provider=mock", &flag("cloud-config", &missing)])
        .await;
    assert!(text.contains(&missing.display().to_string()), "{text}");
    assert!(text.contains("No such file"), "{text}");

    let cases = [
        ("region: r\ncolour: red\n", "line 2", "colour"),
        ("region: r\n\nlatency:\n  instances: soon\n", "line 4", "instances"),
        ("region: r\nzones: [a\ninstances: x\n", "line ", ""),
        ("region: \"\"\n", "line 1", "region"),
    ];
    for (content, line, key) in cases {
        let file = bench.file("cloud.yaml", content);
        let text = bench
            .refused(&["--cloud-provider=mock", &flag("cloud-config", &file)])
            .await;
        for wanted in [&*file.display().to_string(), line, key] {
            assert!(text.contains(wanted), "{wanted:?} is not in {text}");
        }
    }
}

async fn a_bad_kubeconfig_is_named() {
    let bench = TestDirectory::new();
    let missing = bench.directory.path().join("missing.kubeconfig");
    let text = bench
        .refused(&["--cloud-provider=mock", &flag("kubeconfig", &missing)])
        .await;
    assert!(text.contains(&missing.display().to_string()), "{text}");
    let broken = bench.file("broken.kubeconfig", "clusters: {");
    let text = bench
        .refused(&["--cloud-provider=mock", &flag("kubeconfig", &broken)])
        .await;
    assert!(text.contains(&broken.display().to_string()), "{text}");
}

/// A loopback address that is taken, and at which nobody listens.
struct Silent {
    socket: TcpSocket,
}

impl Silent {
    fn take() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        Self { socket }
    }

    fn host(&self) -> String {
        self.socket.local_addr().unwrap().to_string()
    }

    fn url(&self) -> String {
        format!("https://{}", self.host())
    }
}

/// In virtual time, and without a process around it.
fn a_manager_waits_a_minute_for_an_api_server_that_is_away() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let (took, error) = runtime.block_on(async {
        let server = ApiServer::new(Options::default());
        let away = server.faults().add(Match::any(), Action::Drop);
        let args = ["--cloud-provider=mock", "--secure-port=0"].map(OsString::from);
        let Ok(Invocation::Run(config)) = config::parse(&product(), args) else {
            panic!("these flags are in order")
        };
        let provider =
            MockProvider::new_in_process(MockCloud::new(&CloudConfig::default()).unwrap());
        let clients = server.clone();
        let clients: ClientFactory = Arc::new(move |_| clients.client());
        let manager =
            Manager::with_clients(product(), *config, Arc::new(provider), clients, "api.test");
        let begin = Instant::now();
        let error = manager.run(CancellationToken::new()).await.unwrap_err();
        assert!(server.faults().met(away) > 50, "it looked {} times", server.faults().met(away));
        (begin.elapsed(), error.to_string())
    });
    assert!((60..62).contains(&took.as_secs()), "it gave up after {took:?}");
    assert_eq!(error, "could not reach the API server api.test within 60s");
}

/// The same for real, which takes its time.
async fn an_api_server_that_is_away_is_waited_for_a_minute() {
    let bench = TestDirectory::new();
    let silent = Silent::take();
    let kubeconfig = bench.kubeconfig(&silent.url());
    let begin = Instant::now();
    let mut ccm = bench
        .start(&["--cloud-provider=mock", &flag("kubeconfig", &kubeconfig)])
        .await;
    ccm.logged("could not reach the API server, retrying", AT_ONCE)
        .await
        .unwrap();
    let status = ccm.exit(Duration::from_secs(90)).await.unwrap();
    let (text, took) = (printed(&ccm), begin.elapsed());
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(took >= Duration::from_secs(59), "it gave up after {took:?}");
    let last = text.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("error: ") && last.contains(&silent.host()) && last.contains("60s"),
        "{last}"
    );
    assert!(last.contains("refused"), "the reason is in {last}");
}

async fn sigterm_ends_the_wait_for_an_api_server_in_order() {
    let bench = TestDirectory::new();
    let silent = Silent::take();
    let kubeconfig = bench.kubeconfig(&silent.url());
    let mut ccm = bench
        .start(&["--cloud-provider=mock", &flag("kubeconfig", &kubeconfig)])
        .await;
    ccm.logged("could not reach the API server", AT_ONCE)
        .await
        .unwrap();
    ccm.signal(Signal::Term).await.unwrap();
    let status = ccm.exit(Duration::from_secs(10)).await.unwrap();
    assert_eq!(status.code(), Some(0), "{}", printed(&ccm));
}
