//! `ccm-openstack demo`, as somebody sees it who runs the README's command.

use std::{
    ffi::OsString,
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::ExitStatus,
    time::{Duration, Instant},
};

use ccm_testkit::supervised::{CommandLine, Supervised};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::Command,
    time::sleep,
};

const LIMIT: Duration = Duration::from_secs(240);

/// A demo that runs; it ends with the test.
struct Demo(Supervised);

/// A network that no other test has, of this process or another.
fn network(number: u32) -> String {
    let process = std::process::id();
    format!("127.{}.{}.0/24", 16 + process % 32 * 3 + number, process / 32 % 256)
}

impl Demo {
    async fn start(folder: &Path, args: &[&str]) -> Self {
        let args = ["demo"].iter().chain(args).map(OsString::from).collect();
        let command = CommandLine {
            name: "demo",
            program: env!("CARGO_BIN_EXE_ccm-openstack").into(),
            args,
        };
        Self(
            Supervised::spawn(&command, &folder.join("demo.log"))
                .await
                .unwrap(),
        )
    }

    async fn exit(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.exited().unwrap() {
                return status;
            }
            assert!(begin.elapsed() < LIMIT, "the demo still runs: {}", self.0.log());
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn says(&mut self, text: &str) {
        let begin = Instant::now();
        while !self.0.log().contains(text) {
            let ended = self.0.exited().unwrap();
            assert!(
                ended.is_none() && begin.elapsed() < LIMIT,
                "{ended:?}, without {text:?}: {}",
                self.0.log()
            );
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// What was printed behind this, up to the end of the line.
    fn said(&self, word: &str) -> String {
        let log = self.0.log();
        let (_, rest) = log
            .split_once(word)
            .unwrap_or_else(|| panic!("no {word:?} in {log}"));
        rest.lines().next().unwrap().trim().to_owned()
    }
}

pub(crate) async fn once_shows_everything_and_ends_well() -> anyhow::Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let network = network(0);
    let mut demo = Demo::start(folder.path(), &["--once", "--network", &network]).await;
    let status = demo.exit().await;
    let log = demo.0.log();
    assert!(status.success(), "{status}: {log}");
    let address = network.replace(".0/24", ".100:8080");
    let in_order = [
        "3 servers are made in Nova",
        "node-0  initialised  zone=nova  type=m1.small  ",
        "all 3 nodes initialised",
        "requests to OpenStack: ",
        "writes to Kubernetes: ",
        "all 3 nodes have a pod CIDR",
        &format!("web  LoadBalancer  {address}"),
        "is answered by node-0 3 times, node-1 3 times, node-2 3 times",
        "openstack server stop node-0",
        "nobody listens at ",
        "is answered by node-1 3 times, node-2 3 times",
        "has taken the member",
        "Node node-0 has the taint node.cloudprovider.kubernetes.io/shutdown",
        "openstack server start node-0",
        "is answered by node-0 3 times, node-1 3 times, node-2 3 times",
        "Node node-0 has lost the taint",
        "openstack server delete node-2",
        "Node node-2 deleted",
        "is answered by node-0 3 times, node-1 3 times",
        "the Service web is deleted",
        &format!("nobody listens at {address} any more, and Octavia has no load balancer"),
    ];
    let mut rest = &*log;
    for text in in_order {
        let (_, behind) = rest
            .split_once(text)
            .unwrap_or_else(|| panic!("no {text:?} where it should be in {log}"));
        rest = behind;
    }
    // One load balancer was made, by one request.
    let (_, created) = log
        .split_once("a Service of type LoadBalancer is created")
        .unwrap();
    let counts = created
        .lines()
        .find(|line| line.contains("requests to OpenStack"))
        .unwrap();
    assert!(counts.contains("1 POST loadbalancers"), "{counts}");
    assert!(TcpStream::connect(&*address).is_err(), "the address is closed");
    for file in ["kubeconfig  ", "credentials  ", "cloud.conf  "] {
        assert!(!Path::new(&demo.said(file)).exists(), "{file} goes away with the demo");
    }
    Ok(())
}

pub(crate) async fn it_stays_for_curl_and_the_openstack_client_until_it_is_told_to_end()
-> anyhow::Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let network = network(1);
    let args = ["--nodes", "1", "--network", &network, "--port", "8181"];
    let mut demo = Demo::start(folder.path(), &args).await;
    demo.says("until Ctrl-C").await;
    let url = network.replace(".0/24", ".100:8181");
    assert!(
        demo.0
            .log()
            .contains(&format!("curl --noproxy '*' http://{url}/")),
        "{}",
        demo.0.log()
    );
    assert!(get(&url).await.starts_with("node-0 answers at "));
    // The client itself has tests of its own.
    let openrc = demo.said("credentials  ");
    let script = format!(". {openrc}; echo $OS_USERNAME $OS_AUTH_URL");
    let said = Command::new("sh")
        .args(["-c", &script])
        .output()
        .await
        .unwrap();
    let cloud = demo.said("local cloud ");
    assert_eq!(String::from_utf8(said.stdout).unwrap().trim(), format!("demo {cloud}"));
    for file in [&openrc, &demo.said("kubeconfig  "), &demo.said("cloud.conf  ")] {
        assert_eq!(
            std::fs::metadata(file).unwrap().permissions().mode() & 0o77,
            0,
            "{file} is for its owner only"
        );
    }
    // A second one on the same addresses says what is in its way.
    let second = tempfile::tempdir().unwrap();
    let mut other = Demo::start(second.path(), &args).await;
    assert!(!other.exit().await.success());
    let log = other.0.log();
    assert!(
        log.contains(&format!("cannot listen on {url}")) && log.contains("--port or --network"),
        "{log}"
    );
    let pid = demo.0.pid().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .await
            .unwrap()
            .success()
    );
    let status = demo.exit().await;
    assert!(status.success(), "{status}: {}", demo.0.log());
    assert!(!Path::new(&openrc).exists());
    Ok(())
}

pub(crate) async fn bad_arguments_are_explained() -> anyhow::Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (taken, network) = (listener.local_addr().unwrap().to_string(), network(2));
    let cases: [(&[&str], &str); 5] = [
        (&["--nodes", "0"], "--nodes"),
        (&["--network", "10.0.0.0/16"], "inside 127.0.0.0/8"),
        (&["--listen", "0.0.0.0:5000"], "not a loopback address"),
        (&["--port", "0"], "--port"),
        (&["--network", &network, "--listen", &taken], &format!("cannot listen on {taken}")),
    ];
    for (number, (args, words)) in cases.into_iter().enumerate() {
        let own = folder.path().join(number.to_string());
        std::fs::create_dir(&own).unwrap();
        let mut demo = Demo::start(&own, args).await;
        assert!(!demo.exit().await.success(), "{args:?}");
        assert!(demo.0.log().contains(words), "{args:?}: {}", demo.0.log());
    }
    Ok(())
}

async fn get(address: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}
