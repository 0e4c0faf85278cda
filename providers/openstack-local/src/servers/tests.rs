//! Servers that run, with real sockets and a cluster that is only remembered.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Instant,
};

use futures::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};

use super::*;
use crate::server::{LocalCloud, Settings, tests::Asked};

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// A cluster that remembers its nodes: name, server, and whether it was heard that the server is
/// off.
#[derive(Debug, Default)]
struct Remembered {
    nodes: Mutex<BTreeMap<String, (String, bool)>>,
    refusing: Mutex<Option<String>>,
    refused: AtomicUsize,
    ports: watch::Sender<Arc<Ports>>,
}

impl Cluster for Remembered {
    fn ports(&self) -> watch::Receiver<Arc<Ports>> {
        self.ports.subscribe()
    }

    fn join<'a>(&'a self, name: &'a str, server: &'a str) -> BoxFuture<'a, Result<(), String>> {
        async move {
            if let Some(reason) = &*self.refusing.lock() {
                self.refused.fetch_add(1, SeqCst);
                return Err(reason.clone());
            }
            self.nodes
                .lock()
                .insert(name.to_owned(), (server.to_owned(), true));
            Ok(())
        }
        .boxed()
    }

    fn leave<'a>(&'a self, name: &'a str, server: &'a str) -> BoxFuture<'a, ()> {
        async move {
            if let Some((joined, on)) = self.nodes.lock().get_mut(name)
                && joined == server
            {
                *on = false;
            }
        }
        .boxed()
    }

    fn run(&self, cancel: CancellationToken) -> BoxFuture<'_, ()> {
        async move { cancel.cancelled().await }.boxed()
    }
}

/// A cloud with a loopback network, whose servers run.
struct Fixture {
    asked: Asked,
    token: String,
    network: String,
    cluster: Arc<Remembered>,
    halt: CancellationToken,
    running: JoinHandle<()>,
}

impl Fixture {
    async fn new(cidr: &str) -> Self {
        let cluster = Arc::new(Remembered::default());
        let local = LocalCloud::in_memory(Settings::default()).with_cluster(cluster.clone());
        let asked = Asked { router: local.router(), local };
        let token = asked.token("demo").await;
        let body = json!({"network": {"name": "nodes"}});
        let answer = asked.post("/network/v2.0/networks", &token, body).await;
        let network = answer.body["network"]["id"].as_str().unwrap().to_owned();
        let body = json!({"subnet": {"network_id": network, "ip_version": 4, "cidr": cidr, "gateway_ip": null}});
        assert_eq!(
            asked
                .post("/network/v2.0/subnets", &token, body)
                .await
                .status,
            201
        );
        let (halt, cloud) = (CancellationToken::new(), asked.local.clone());
        let cancel = halt.clone();
        let running = tokio::spawn(async move { cloud.run_servers(cancel).await });
        Self { asked, token, network, cluster, halt, running }
    }

    async fn try_server(&self, name: &str, metadata: Value) -> (u16, Value) {
        let networks = json!([{"uuid": self.network}]);
        let body = json!({"server": {"name": name, "flavorRef": "1", "networks": networks, "metadata": metadata}});
        let answer = self
            .asked
            .post("/compute/v2.1/servers", &self.token, body)
            .await;
        (answer.status.as_u16(), answer.body)
    }

    /// Makes a server and returns its identifier and address.
    async fn server(&self, name: &str, metadata: Value) -> (String, String) {
        let (status, body) = self.try_server(name, metadata).await;
        assert_eq!(status, 202, "{body}");
        let id = body["server"]["id"].as_str().unwrap().to_owned();
        let answer = self
            .asked
            .get(&format!("/compute/v2.1/servers/{id}"), &self.token)
            .await;
        let address = answer.body["server"]["addresses"]["nodes"][0]["addr"]
            .as_str()
            .unwrap()
            .to_owned();
        (id, address)
    }

    async fn act(&self, server: &str, action: &str) {
        let path = format!("/compute/v2.1/servers/{server}/action");
        let answer = self
            .asked
            .post(&path, &self.token, json!({action: null}))
            .await;
        assert_eq!(answer.status, 202, "{}", answer.body);
    }

    async fn delete(&self, server: &str) {
        let answer = self
            .asked
            .ask("DELETE", &format!("/compute/v2.1/servers/{server}"), &self.token, None)
            .await;
        assert_eq!(answer.status, 204, "{}", answer.body);
    }

    fn offer(&self, ports: &[(Transport, u16)]) {
        self.cluster.ports.send_replace(Arc::new(
            ports
                .iter()
                .map(|port| (*port, "default/web".to_owned()))
                .collect(),
        ));
    }

    async fn end(self) {
        self.halt.cancel();
        soon(self.running).await.unwrap();
    }
}

/// A range of addresses that no other process of these tests has.
fn range(number: u8) -> String {
    let process = std::process::id();
    format!("127.{}.{}.{}/29", 128 + process % 64, process / 64 % 256, number * 8)
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(SOON, what).await.expect("must happen soon")
}

/// Asks again until the answer fits.
async fn until<T>(mut ask: impl AsyncFnMut() -> T, fits: impl Fn(&T) -> bool) -> T {
    let begin = Instant::now();
    loop {
        let answer = ask().await;
        if fits(&answer) {
            return answer;
        }
        assert!(begin.elapsed() < SOON, "must happen soon");
        sleep(Duration::from_millis(10)).await;
    }
}

/// What a server says to `GET /`, behind this; `None` when nobody listens.
async fn get(address: &str, port: u16, before: &[u8], header: &str) -> Option<String> {
    let mut stream = TcpStream::connect((address, port)).await.ok()?;
    let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\n{header}Connection: close\r\n\r\n");
    stream.write_all(before).await.ok()?;
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    Some(body.to_owned())
}

async fn answers(address: &str, port: u16) -> String {
    until(async || get(address, port, b"", "").await, Option::is_some)
        .await
        .unwrap()
}

async fn is_silent(address: &str, port: u16) {
    until(async || get(address, port, b"", "").await, Option::is_none).await;
}

#[tokio::test]
async fn a_server_answers_while_it_is_on() {
    let world = Fixture::new(&range(1)).await;
    let (one, address) = world.server("one", json!({WEB: "8081, 8082"})).await;
    let (_, other) = world.server("two", json!({WEB: "8081"})).await;
    assert!(
        answers(&address, 8082)
            .await
            .starts_with(&format!("one answers at {address}:8082 for itself, to 127."))
    );
    assert!(answers(&address, 8081).await.starts_with("one "));
    assert!(answers(&other, 8081).await.starts_with("two "));
    // What is under way ends with the server, as when the power goes.
    let mut open = TcpStream::connect((&*address, 8081)).await.unwrap();
    open.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    world.act(&one, "os-stop").await;
    let mut rest = Vec::new();
    let ended = soon(open.read_to_end(&mut rest)).await;
    assert!(ended.is_err() || rest.is_empty(), "{rest:?}");
    is_silent(&address, 8081).await;
    is_silent(&address, 8082).await;
    assert!(answers(&other, 8081).await.starts_with("two "), "the other goes on");
    world.act(&one, "os-start").await;
    answers(&address, 8081).await;
    world.delete(&one).await;
    is_silent(&address, 8081).await;
    world.end().await;
    is_silent(&other, 8081).await;
}

#[tokio::test]
async fn changed_metadata_count_at_once() {
    let world = Fixture::new(&range(2)).await;
    let (id, address) = world.server("one", json!({})).await;
    let path = format!("/compute/v2.1/servers/{id}/metadata");
    let set = async |metadata: Value| {
        world
            .asked
            .ask("PUT", &path, &world.token, Some(json!({"metadata": metadata})))
            .await
            .status
            .as_u16()
    };
    assert_eq!(set(json!({WEB: "8081"})).await, 200);
    answers(&address, 8081).await;
    assert_eq!(set(json!({WEB: "8082"})).await, 200);
    answers(&address, 8082).await;
    is_silent(&address, 8081).await;
    assert_eq!(set(json!({})).await, 200);
    is_silent(&address, 8082).await;
    world.end().await;
}

#[tokio::test]
async fn values_that_mean_nothing_are_refused() {
    let world = Fixture::new(&range(3)).await;
    let many = (1..=17)
        .map(|port: u16| port.to_string())
        .collect::<Vec<_>>()
        .join(",");
    for (key, value) in [
        (WEB, "0"),
        (WEB, "web"),
        (WEB, "80,"),
        (WEB, "65536"),
        (WEB, &many),
        (NODE, "yes"),
        (NODE, ""),
    ] {
        let (status, body) = world.try_server("one", json!({key: value})).await;
        let message = body["badRequest"]["message"].as_str().unwrap_or_default();
        assert!(
            status == 400 && message.contains(&format!("{key}={value}:")),
            "{key}={value}: {body}"
        );
    }
    let (id, _) = world
        .server("one", json!({NODE: "False", WEB: "65535"}))
        .await;
    let path = format!("/compute/v2.1/servers/{id}/metadata");
    let body = json!({"metadata": {NODE: "maybe"}});
    assert_eq!(
        world
            .asked
            .ask("POST", &path, &world.token, Some(body))
            .await
            .status,
        400
    );
    world.end().await;
}

#[tokio::test]
async fn only_loopback_is_listened_on() {
    let world = Fixture::new("10.61.0.0/24").await;
    let (id, _) = world.server("far", json!({WEB: "8081"})).await;
    let machines = world.asked.local.cloud().store.peek(machines);
    assert_eq!(machines[&id].addresses, Vec::<std::net::IpAddr>::new());
    world.end().await;
}

#[tokio::test]
async fn a_node_answers_at_the_clusters_ports_and_is_off_with_its_server() {
    use Transport::{Tcp, Udp};
    let world = Fixture::new(&range(4)).await;
    let (id, address) = world.server("node-0", json!({NODE: "true"})).await;
    let (_, plain) = world.server("plain", json!({WEB: "8081"})).await;
    let node = || world.cluster.nodes.lock().get("node-0").cloned();
    let is = async |on: bool| until(async || node(), |node| *node == Some((id.clone(), on))).await;
    is(true).await;
    world.offer(&[(Tcp, 30080), (Udp, 30053)]);
    assert!(
        answers(&address, 30080)
            .await
            .starts_with(&format!("node-0 answers at {address}:30080 for default/web"))
    );
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let ask = async || {
        let mut buffer = [0; 200];
        socket.send_to(b"who?", (&*address, 30053)).await.ok()?;
        let length = timeout(Duration::from_millis(200), socket.recv(&mut buffer))
            .await
            .ok()?
            .ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    };
    let said = until(ask, Option::is_some).await.unwrap();
    assert!(said.starts_with(&format!("node-0 answers at {address}:30053")), "{said}");
    answers(&plain, 8081).await;
    assert_eq!(get(&plain, 30080, b"", "").await, None, "no node");
    world.offer(&[(Tcp, 30081)]);
    answers(&address, 30081).await;
    is_silent(&address, 30080).await;
    world.act(&id, "os-stop").await;
    is(false).await;
    is_silent(&address, 30081).await;
    world.act(&id, "os-start").await;
    is(true).await;
    answers(&address, 30081).await;
    world.delete(&id).await;
    is(false).await;
    is_silent(&address, 30081).await;
    world.end().await;
}

#[tokio::test]
async fn a_cluster_that_refuses_is_asked_again_and_the_end_of_the_process_is_told_to_nobody() {
    let world = Fixture::new(&range(5)).await;
    *world.cluster.refusing.lock() = Some("not now".to_owned());
    let (id, address) = world.server("node-0", json!({NODE: "true"})).await;
    // It answers at its ports although it is no node yet.
    world.offer(&[(Transport::Tcp, 30080)]);
    assert!(answers(&address, 30080).await.starts_with("node-0 "));
    until(async || world.cluster.refused.load(SeqCst), |refused| *refused > 0).await;
    assert_eq!(world.cluster.nodes.lock().get("node-0"), None);
    *world.cluster.refusing.lock() = None;
    let joined = || world.cluster.nodes.lock().get("node-0").cloned();
    until(async || joined(), |node| *node == Some((id.clone(), true))).await;
    let cluster = world.cluster.clone();
    world.end().await;
    let node = cluster.nodes.lock().get("node-0").cloned();
    assert_eq!(node, Some((id, true)), "as after a power cut");
}

#[tokio::test]
async fn an_address_that_is_taken_is_tried_again() {
    let world = Fixture::new(&range(6)).await;
    // The first address of the range.
    let first = range(6).replace(".48/29", ".49");
    let taken = std::net::TcpListener::bind((&*first, 8081)).unwrap();
    let (_, address) = world.server("one", json!({WEB: "8081,8082"})).await;
    assert_eq!(address, first);
    answers(&address, 8082).await;
    drop(taken);
    assert!(answers(&address, 8081).await.starts_with("one "));
    world.end().await;
}

#[tokio::test]
async fn the_client_is_whom_the_balancer_names() {
    let world = Fixture::new(&range(7)).await;
    let (_, address) = world.server("one", json!({WEB: "8081"})).await;
    answers(&address, 8081).await;
    let client: SocketAddr = "192.0.2.7:4711".parse().unwrap();
    let text = format!("PROXY TCP4 192.0.2.7 {address} 4711 8081\r\n");
    let said = get(&address, 8081, text.as_bytes(), "").await.unwrap();
    assert!(said.ends_with(&format!(", to {client}\n")), "{said}");
    let to: SocketAddr = format!("{address}:8081").parse().unwrap();
    let addresses = ppp::v2::Addresses::from((client, to));
    let command = ppp::v2::Version::Two | ppp::v2::Command::Proxy;
    let binary = ppp::v2::Builder::with_addresses(command, ppp::v2::Protocol::Stream, addresses)
        .build()
        .unwrap();
    let said = get(&address, 8081, &binary, "").await.unwrap();
    assert!(said.ends_with(&format!(", to {client}\n")), "{said}");
    let said = get(&address, 8081, b"", "X-Forwarded-For: 192.0.2.9\r\n")
        .await
        .unwrap();
    assert!(said.ends_with(" (X-Forwarded-For: 192.0.2.9)\n"), "{said}");
    world.end().await;
}
