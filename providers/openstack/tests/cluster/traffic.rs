//! Traffic: clients reach web servers on the nodes through load balancers, as annotations say.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::Context as _;
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::fixture::{
    ClusterFixture, INTERNAL, cloud, service,
    web::{CLIENT, Connection, ask_udp, get},
};

const FLAGS: [&str; 1] = ["--controllers=service"];
/// Another client.
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));
/// Checks that are soon over.
const MONITOR: [(&str, &str); 5] = [
    ("enable-health-monitor", "true"),
    ("health-monitor-delay", "1"),
    ("health-monitor-timeout", "1"),
    ("health-monitor-max-retries", "1"),
    ("health-monitor-max-retries-down", "1"),
];

/// Waits until a request to this address has this answer, as `judge` sees it.
async fn answers(
    stage: &ClusterFixture,
    what: &str,
    to: SocketAddr,
    judge: impl Fn(&Value) -> bool,
) -> anyhow::Result<()> {
    stage
        .until(what, async || {
            let answer = get(CLIENT, to, "/")
                .await
                .map_err(|error| error.to_string());
            Ok(answer.and_then(|answer| {
                if judge(&answer) {
                    Ok(())
                } else {
                    Err(answer.to_string())
                }
            }))
        })
        .await
}

/// Waits until several requests in a row are all answered by this node.
async fn all_from(stage: &ClusterFixture, to: SocketAddr, node: &str) -> anyhow::Result<()> {
    stage
        .until(&format!("{node} answers everything"), async || {
            for _ in 0..4 {
                match get(CLIENT, to, "/").await {
                    Ok(answer) if answer["node"] == node => {}
                    other => return Ok(Err(format!("{other:?}"))),
                }
            }
            Ok(Ok(()))
        })
        .await
}

/// Waits until each node has answered once.
async fn both(stage: &ClusterFixture, to: SocketAddr) -> anyhow::Result<()> {
    for node in ["node-0", "node-1"] {
        answers(stage, &format!("an answer of {node}"), to, |answer| answer["node"] == node)
            .await?;
    }
    Ok(())
}

/// Two nodes, of which the second has a label; web servers on their ports for each of these
/// Services; and the Services.
async fn begin(stage: &mut ClusterFixture, services: &[Value]) -> anyhow::Result<()> {
    stage.node(|spec| spec).await?;
    stage.node(|spec| spec.label("disk", "ssd")).await?;
    stage.start(&FLAGS).await?;
    for service in services {
        stage.create(service).await?;
        for port in service["spec"]["ports"].as_array().into_iter().flatten() {
            let number = port["nodePort"].as_u64().context("a node port")?;
            stage
                .serve(port["protocol"].as_str().unwrap_or("TCP"), u16::try_from(number)?)
                .await?;
        }
    }
    let names: Vec<_> = services
        .iter()
        .filter_map(|service| service["metadata"]["name"].as_str())
        .collect();
    stage.served(&names).await
}

/// An internal Service.
fn inside(name: &str, ports: &[(&str, u16)], annotations: &[(&str, &str)]) -> Value {
    let annotations: Vec<_> = annotations
        .iter()
        .copied()
        .chain([(INTERNAL, "true")])
        .collect();
    service(name, ports, &annotations)
}

/// The same with a further field of its spec.
fn with(mut service: Value, field: &str, value: Value) -> Value {
    service["spec"][field] = value;
    service
}

/// Clients reach every node through the load balancer, also when its Service changes; what is
/// deleted is closed.
// length: one story, told in order
pub(crate) async fn reaches_the_nodes(stage: &mut ClusterFixture) -> anyhow::Result<()> {
    begin(
        stage,
        &[inside("web", &[("TCP", 80)], &[]), inside("names", &[("UDP", 53), ("TCP", 53)], &[])],
    )
    .await?;
    let at = |ip: IpAddr, port| SocketAddr::new(ip, port);
    let (web, names) = (stage.address("web").await?, stage.address("names").await?);
    both(stage, at(web, 80)).await?;
    both(stage, at(names, 53)).await?;
    for node in ["node-0", "node-1"] {
        stage
            .until(&format!("a datagram of {node}"), async || {
                let answer = ask_udp(CLIENT, at(names, 53)).await;
                Ok(if answer.as_ref().is_ok_and(|answer| answer == node) {
                    Ok(())
                } else {
                    Err(format!("{answer:?}"))
                })
            })
            .await?;
    }
    stage.serve("TCP", 30081).await?;
    // A connection lives through changes of other things.
    let mut connection = Connection::open(CLIENT, at(web, 80)).await?;
    connection.get("/").await?;
    stage
        .annotate("web", &[("connection-limit", "50".into())])
        .await?;
    let further = json!([{"name": "more", "protocol": "TCP", "port": 81, "nodePort": 30081}]);
    let ports = stage
        .services()
        .get("web")
        .await?
        .spec
        .and_then(|spec| spec.ports);
    let mut ports = serde_json::to_value(ports)?;
    ports
        .as_array_mut()
        .context("ports")?
        .extend(further.as_array().cloned().unwrap_or_default());
    stage
        .change("web", json!({"spec": {"ports": ports}}))
        .await?;
    both(stage, at(web, 81)).await?;
    connection
        .get("/")
        .await
        .context("on the connection of before")?;
    // A node more, a node less.
    let third = stage.node(|spec| spec).await?;
    stage.web.open(&third.name, at(third.ip, 30080))?;
    answers(stage, "an answer of the new node", at(web, 80), |answer| answer["node"] == "node-2")
        .await?;
    stage.delete("web").await?;
    stage.delete("names").await?;
    stage.vanished(&["web", "names"]).await?;
    stage
        .until("the addresses are closed", async || {
            let open = get(CLIENT, at(web, 80), "/").await.is_ok()
                || ask_udp(CLIENT, at(names, 53)).await.is_ok();
            Ok(if open {
                Err("somebody answers".to_owned())
            } else {
                Ok(())
            })
        })
        .await?;
    stage.stop().await
}

/// What annotations say about clients, connections and headers shows.
// length: one story, told in order
pub(crate) async fn is_carried_as_annotations_say(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    let ranges = with(
        inside("ranges", &[("TCP", 84)], &[]),
        "loadBalancerSourceRanges",
        json!(["127.0.0.9/32"]),
    );
    let sticky = with(inside("sticky", &[("TCP", 88)], &[]), "sessionAffinity", json!("ClientIP"));
    let services = [
        inside("proxy-1", &[("TCP", 81)], &[("proxy-protocol", "v1")]),
        inside("proxy-2", &[("TCP", 82)], &[("proxy-protocol", "v2")]),
        inside("forwarded", &[("TCP", 83)], &[("x-forwarded-for", "true")]),
        ranges,
        inside("client-timeout", &[("TCP", 85)], &[("timeout-client-data", "300")]),
        inside("member-timeout", &[("TCP", 86)], &[("timeout-member-data", "300")]),
        inside("limit", &[("TCP", 87)], &[("connection-limit", "1")]),
        sticky,
        inside("selector", &[("TCP", 90)], &[("node-selector", "disk=ssd")]),
    ];
    begin(stage, &services).await?;
    let mut at = std::collections::BTreeMap::new();
    for service in &services {
        let name = service["metadata"]["name"].as_str().unwrap_or_default();
        let port = service["spec"]["ports"][0]["port"]
            .as_u64()
            .unwrap_or_default();
        at.insert(name.to_owned(), SocketAddr::new(stage.vip(name)?, u16::try_from(port)?));
    }
    for (name, version) in [("proxy-1", 1), ("proxy-2", 2)] {
        let client = CLIENT.to_string();
        let is = |answer: &Value| {
            answer["proxy"]["version"] == version && answer["proxy"]["client"] == *client
        };
        answers(stage, name, at[name], is).await?;
    }
    let client = CLIENT.to_string();
    answers(stage, "a header", at["forwarded"], |answer| {
        answer["headers"]["x-forwarded-for"] == *client
    })
    .await?;

    stage
        .until("a client in the range is served", async || {
            Ok(get(OTHER, at["ranges"], "/")
                .await
                .map(drop)
                .map_err(|error| error.to_string()))
        })
        .await?;
    anyhow::ensure!(
        get(CLIENT, at["ranges"], "/").await.is_err(),
        "a client out of the range is not"
    );

    answers(stage, "an answer in time", at["client-timeout"], |answer| answer["node"].is_string())
        .await?;
    Connection::open(CLIENT, at["client-timeout"])
        .await?
        .ends()
        .await
        .context("an idle client is left")?;
    answers(stage, "an answer in time", at["member-timeout"], |answer| answer["node"].is_string())
        .await?;
    anyhow::ensure!(
        get(CLIENT, at["member-timeout"], "/slow/4000")
            .await
            .is_err(),
        "a slow member is left"
    );

    // The connection of a look before may not be over yet.
    let mut first = stage
        .until("the only connection", async || {
            let Ok(mut connection) = Connection::open(CLIENT, at["limit"]).await else {
                return Ok(Err(String::new()));
            };
            Ok(connection
                .get("/")
                .await
                .map(|_| connection)
                .map_err(|error| error.to_string()))
        })
        .await?;
    anyhow::ensure!(get(CLIENT, at["limit"], "/").await.is_err(), "there is a limit");
    first.get("/").await.context("the first goes on")?;
    drop(first);
    answers(stage, "the next connection", at["limit"], |answer| answer["node"].is_string()).await?;

    answers(stage, "an answer", at["sticky"], |answer| answer["node"].is_string()).await?;
    let node = get(CLIENT, at["sticky"], "/").await?["node"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    all_from(stage, at["sticky"], &node).await?;
    all_from(stage, at["selector"], "node-1").await?;
    stage.stop().await
}

/// A member that does not answer its checks gets no traffic, and gets it back.
pub(crate) async fn goes_around_members_that_are_down(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    let mut local =
        with(inside("local", &[("TCP", 92)], &MONITOR), "externalTrafficPolicy", json!("Local"));
    local["spec"]["healthCheckNodePort"] = json!(32192);
    begin(stage, &[inside("web", &[("TCP", 91)], &MONITOR), local]).await?;
    // Pods run on the second node alone, as its kube-proxy says.
    stage
        .web
        .open("healthz", SocketAddr::new(stage.servers[1].ip, 32192))?;
    let to = SocketAddr::new(stage.address("web").await?, 91);
    both(stage, to).await?;
    all_from(stage, SocketAddr::new(stage.address("local").await?, 92), "node-1").await?;
    let first = SocketAddr::new(stage.servers[0].ip, 30091);
    let is = |status: &'static str| {
        let (cloud, member) = (&stage.cloud, first.ip().to_string());
        move || {
            cloud.peek(|state| {
                let mut members = state.octavia.members.iter().map(|row| &row.body);
                let found =
                    members.find(|body| body.address == member && body.protocol_port == 30091);
                let status_now = found
                    .map(|body| body.operating_status.to_string())
                    .unwrap_or_default();
                if status_now == status {
                    Ok(())
                } else {
                    Err(format!("the member is {status_now}"))
                }
            })
        }
    };
    let (up, down) = (is("ONLINE"), is("ERROR"));
    stage
        .until("the checks have begun", async || Ok(up()))
        .await?;
    let mut web = std::mem::take(&mut stage.web);
    web.close(first).await;
    stage
        .until("the member is found down", async || Ok(down()))
        .await?;
    all_from(stage, to, "node-1").await?;
    web.open("node-0", first)?;
    both(stage, to).await?;
    stage.web = web;
    stage.stop().await
}

/// Listeners end TLS with the certificate that is named.
pub(crate) async fn is_decrypted_with_the_certificate(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    let certificate = cloud::certificate(&stage.cloud, "web").await?;
    let annotations = [("default-tls-container-ref", &*certificate.reference)];
    begin(stage, &[inside("web", &[("TCP", 443)], &annotations)]).await?;
    let to = SocketAddr::new(stage.address("web").await?, 443);
    let mut roots = RootCertStore::empty();
    roots.add(certificate.certificate.clone())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    let connector = tokio_rustls::TlsConnector::from(config);
    let ask = async || {
        let stream = tokio::net::TcpStream::connect(to).await?;
        let mut stream = connector
            .connect(ServerName::try_from("web.test").map_err(std::io::Error::other)?, stream)
            .await?;
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: web.test\r\nconnection: close\r\n\r\n")
            .await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    stage
        .until("an answer over TLS", async || {
            let answer = ask().await.map_err(|error| error.to_string());
            Ok(answer.and_then(|answer| {
                if answer.contains("\"node\"") {
                    Ok(())
                } else {
                    Err(answer)
                }
            }))
        })
        .await?;
    stage.stop().await
}
