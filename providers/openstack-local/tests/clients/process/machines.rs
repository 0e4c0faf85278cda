//! Servers of the process that are nodes of a cluster: stopped, started, killed with the process,
//! and deleted.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use ccm_testkit::apiserver::{ApiServer, Options};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::sleep,
};

use super::cloud::{Cloud, password, run};

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// Waits until it is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !is_so().await {
        assert!(begin.elapsed() < SOON, "{what} does not happen");
        sleep(Duration::from_millis(20)).await;
    }
}

/// What a server says; `None` when nobody listens.
async fn get(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
        .await
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer.split_once("\r\n\r\n")?.1.to_owned())
}

/// A user's requests.
struct User<'a> {
    cloud: &'a Cloud,
    token: String,
}

impl<'a> User<'a> {
    async fn new(cloud: &'a Cloud, dir: &std::path::Path) -> Self {
        Self {
            cloud,
            token: cloud.token("demo", &password(dir, "demo")).await,
        }
    }

    async fn send(&self, method: &str, target: &str, body: Option<Value>) -> Value {
        let (status, body) = self
            .cloud
            .try_send(method, target, &self.token, body)
            .await
            .unwrap();
        assert!((200..300).contains(&status), "{method} {target}: {status} {body}");
        body
    }

    async fn act(&self, server: &str, action: &str) {
        self.send(
            "POST",
            &format!("/compute/v2.1/servers/{server}/action"),
            Some(json!({action: null})),
        )
        .await;
    }

    /// Makes servers that are nodes. Returns identifiers and addresses.
    async fn servers(&self, names: &[&str]) -> Vec<(String, String)> {
        let network = self
            .send("POST", "/network/v2.0/networks", Some(json!({"network": {"name": "nodes"}})))
            .await;
        let network = network["network"]["id"].as_str().unwrap().to_owned();
        let process = std::process::id();
        // A network that no other process of these tests has.
        let cidr = format!("127.{}.{}.0/28", 192 + process % 60, process / 60 % 256);
        let subnet = json!({"subnet": {"network_id": network, "ip_version": 4, "cidr": cidr}});
        self.send("POST", "/network/v2.0/subnets", Some(subnet))
            .await;
        let mut made = Vec::new();
        for name in names {
            let metadata = json!({"openstack-local:node": "true"});
            let networks = json!([{"uuid": network}]);
            let body = json!({"server": {"name": name, "flavorRef": "1", "networks": networks, "metadata": metadata}});
            let id = self.send("POST", "/compute/v2.1/servers", Some(body)).await["server"]["id"]
                .clone();
            let id = id.as_str().unwrap().to_owned();
            let server = self
                .send("GET", &format!("/compute/v2.1/servers/{id}"), None)
                .await;
            let address = server["server"]["addresses"]["nodes"][0]["addr"]
                .as_str()
                .unwrap()
                .to_owned();
            made.push((id, address));
        }
        made
    }
}

/// Status of the condition Ready; `None` without the Node.
async fn ready(nodes: &Api<Node>, name: &str) -> Option<String> {
    let node = nodes.get_opt(name).await.unwrap()?;
    let condition = node
        .status?
        .conditions?
        .into_iter()
        .find(|condition| condition.type_ == "Ready")?;
    Some(condition.status)
}

async fn is_ready(nodes: &Api<Node>, name: &str, wanted: &str) {
    let what = format!("that {name} is Ready={wanted}");
    until(&what, async || ready(nodes, name).await.as_deref() == Some(wanted)).await;
}

// length: the life of a server, each step of which begins where the last one ended
pub(crate) async fn a_server_is_a_node_for_as_long_as_it_is_on() {
    let api = ApiServer::new(Options { taint_new_nodes: false, ..Options::default() });
    let serving = api.serve("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    serving.write_kubeconfig(&kubeconfig).unwrap();
    let (nodes, services) =
        (Api::<Node>::all(api.client()), Api::<Service>::namespaced(api.client(), "default"));
    let foreign = json!({"metadata": {"name": "foreign", "labels": {"a": "b"}}});
    let foreign = nodes
        .create(&PostParams::default(), &serde_json::from_value(foreign).unwrap())
        .await
        .unwrap();
    let service =
        json!({"metadata": {"name": "web"}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
    let service: Service = serde_json::from_value(service).unwrap();
    let port = services
        .create(&PostParams::default(), &service)
        .await
        .unwrap()
        .spec
        .unwrap()
        .ports
        .unwrap()[0]
        .node_port;
    let port = u16::try_from(port.unwrap()).unwrap();

    let state = dir.path().join("state");
    let more = ["--kubeconfig", kubeconfig.to_str().unwrap()];
    let cloud = Cloud::start_with(&state, &more).await;
    let user = User::new(&cloud, &state).await;
    let made = user.servers(&["node-0", "node-1", "foreign"]).await;
    let at = |number: usize| SocketAddr::new(made[number].1.parse().unwrap(), port);
    let answers = async |number: usize, name: &str| {
        let begin = format!("{name} answers at {} for default/web", at(number));
        until(&begin, async || {
            get(at(number))
                .await
                .is_some_and(|said| said.starts_with(&begin))
        })
        .await;
    };
    let is_silent =
        async |number: usize| until("silence", async || get(at(number)).await.is_none()).await;
    is_ready(&nodes, "node-0", "True").await;
    is_ready(&nodes, "node-1", "True").await;
    answers(0, "node-0").await;
    answers(1, "node-1").await;
    let node = nodes.get("node-0").await.unwrap();
    assert_eq!(node.labels()["openstack-local/server"], made[0].0);
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
        ["node.cloudprovider.kubernetes.io/uninitialized"],
        "it waits for its cloud"
    );

    user.act(&made[0].0, "os-stop").await;
    is_ready(&nodes, "node-0", "Unknown").await;
    is_silent(0).await;
    answers(1, "node-1").await;
    user.act(&made[0].0, "os-start").await;
    is_ready(&nodes, "node-0", "True").await;
    answers(0, "node-0").await;

    // With the process goes all of it, and comes back.
    user.act(&made[1].0, "os-stop").await;
    is_ready(&nodes, "node-1", "Unknown").await;
    cloud.kill().await;
    is_silent(0).await;
    let cloud = Cloud::start_with(&state, &more).await;
    let user = User::new(&cloud, &state).await;
    answers(0, "node-0").await;
    is_silent(1).await;
    user.send("DELETE", &format!("/compute/v2.1/servers/{}", made[0].0), None)
        .await;
    is_ready(&nodes, "node-0", "Unknown").await;
    is_silent(0).await;
    let untouched = nodes.get("foreign").await.unwrap();
    assert_eq!(untouched.resource_version(), foreign.resource_version(), "a Node of somebody else");
    // Without the Service nobody listens.
    user.act(&made[1].0, "os-start").await;
    answers(1, "node-1").await;
    services
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    is_silent(1).await;
    cloud.terminate().await;
    assert_eq!(
        ready(&nodes, "node-1").await.as_deref(),
        Some("True"),
        "the end of the process is told to nobody"
    );
    serving.stop().await;
}

pub(crate) async fn a_kubeconfig_that_is_none_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let file = dir.path().join("kubeconfig");
    let args = ["serve", "--listen", "127.0.0.1:0", "--state", state.to_str().unwrap()];
    let args: Vec<_> = args
        .into_iter()
        .chain(["--kubeconfig", file.to_str().unwrap()])
        .collect();
    let (code, error) = run(&args).await;
    assert!(code == 1 && error.contains(file.to_str().unwrap()), "{error}");
    std::fs::write(&file, "not: [a kubeconfig").unwrap();
    let (code, error) = run(&args).await;
    assert!(code == 1 && error.contains(file.to_str().unwrap()), "{error}");
}
