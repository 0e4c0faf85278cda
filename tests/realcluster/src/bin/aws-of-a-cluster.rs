//! AWS for a real cluster: moto's server with an instance for each node, and the metadata service
//! that programs on an instance ask.
//!
//! Arguments: moto's server, the address to listen on, the file to write the instances to as soon
//! as all is there, and the nodes, each `NAME=ADDRESS`. The file has a line for each node, its name
//! and its provider ID. Serves until it is killed.
//!
//! The metadata service listens on its well-known address, which has to be one of this machine's,
//! and knows who asks by the address of the node.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context as _;
use axum::extract::ConnectInfo;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use ccm_testkit::moto::Moto;
use ccm_testkit::moto::fault_proxy::FaultProxy;
use ccm_testkit::moto::fixture::{Fixture, Subnet};
use ccm_testkit::moto::query_api::REGION;
use serde_json::json;
use tokio::net::TcpListener;

/// Network of the cluster's machines.
const NETWORK: &str = "10.250.0.0/24";
/// Where every instance finds its metadata.
const METADATA: (Ipv4Addr, u16) = (Ipv4Addr::new(169, 254, 169, 254), 80);
/// Role of the instances, whose credentials are metadata.
const ROLE: &str = "nodes";
/// Marks what is the cluster's.
const CLUSTER: (&str, &str) = ("kubernetes.io/cluster/example", "owned");

/// Instances by their addresses.
type Instances = BTreeMap<IpAddr, Metadata>;

/// What the metadata service tells an instance of itself.
struct Metadata {
    id: String,
    zone: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // First, what it is told.
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().context("an argument is missing");
    let (server, listen, file) = (next()?, next()?.parse()?, next()?);
    let nodes = arguments
        .map(|argument| {
            let (name, address) = argument.split_once('=').context("a node is NAME=ADDRESS")?;
            Ok((name.to_owned(), address.parse()?))
        })
        .collect::<anyhow::Result<Vec<(String, Ipv4Addr)>>>()?;

    // Next, AWS with the nodes' instances.
    let moto = Moto::start(server.into()).await?;
    let _proxy = FaultProxy::start_at(listen, moto.direct().clone())
        .await
        .context("listen")?;
    let (instances, told) = launch(&Fixture::new(moto.direct().clone()), &nodes).await?;
    let listener = TcpListener::bind(METADATA)
        .await
        .context("listen for questions of instances")?;
    std::fs::write(&file, told).with_context(|| format!("write {file}"))?;

    // Last, both serve until the end.
    let instances = Arc::new(instances);
    let router = axum::Router::new().fallback(
        move |ConnectInfo(who): ConnectInfo<SocketAddr>, uri: Uri| async move {
            metadata(&instances, who, &uri)
        },
    );
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service)
        .await
        .context("serve metadata")
}

/// Launches an instance for each node. Returns them, and a line for each node.
async fn launch(
    fixture: &Fixture,
    nodes: &[(String, Ipv4Addr)],
) -> anyhow::Result<(Instances, String)> {
    let vpc = fixture.vpc(NETWORK, &[]).await?;
    let subnet: Subnet = fixture.subnet(&vpc, "a", NETWORK, true, &[]).await?;
    let group = fixture.security_group(&vpc, "nodes", &[CLUSTER]).await?;
    let (mut instances, mut told) = (BTreeMap::new(), String::new());
    for (name, address) in nodes {
        let instance = fixture
            .instance_at(*address, &subnet, "t3.micro", &[&group], &[CLUSTER])
            .await?;
        // Writing to a string cannot fail.
        let _ = writeln!(told, "{name} aws:///{}/{}", subnet.zone, instance.id);
        let metadata = Metadata { id: instance.id, zone: subnet.zone.clone() };
        instances.insert((*address).into(), metadata);
    }
    Ok((instances, told))
}

/// Answers what an instance asks of itself; who is no instance gets nothing.
fn metadata(instances: &Instances, who: SocketAddr, uri: &Uri) -> Response {
    let Some(instance) = instances.get(&who.ip()) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let path = uri.path().strip_prefix("/latest/").unwrap_or_default();
    let text = match path {
        "api/token" => {
            let lifetime = [("x-aws-ec2-metadata-token-ttl-seconds", "21600")];
            return (lifetime, "token").into_response();
        }
        "meta-data/instance-id" => instance.id.clone(),
        "meta-data/placement/region" => REGION.to_owned(),
        "meta-data/placement/availability-zone" => instance.zone.clone(),
        "meta-data/iam/security-credentials/" => ROLE.to_owned(),
        "dynamic/instance-identity/document" => json!({
            "region": REGION,
            "availabilityZone": instance.zone,
            "instanceId": instance.id,
        })
        .to_string(),
        _ if path.strip_prefix("meta-data/iam/security-credentials/") == Some(ROLE) => json!({
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": "AKIATEST",
            "SecretAccessKey": "secret",
            "Token": "token",
            "LastUpdated": "2026-01-01T00:00:00Z",
            "Expiration": "2099-01-01T00:00:00Z",
        })
        .to_string(),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    text.into_response()
}
