//! Watches as narrow as they get: protobuf, which the server encodes once for the manager and for
//! us, decoded into the few fields that say how far a manager is. Lists of 15 KB nodes would be a
//! load of their own.

use std::marker::PhantomData;

use anyhow::{Context as _, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use http::{Request, header::ACCEPT};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use prost::Message;

/// What every protobuf object of the API begins with.
const MAGIC: &[u8] = b"k8s\0";

/// Field numbers are those of `generated.proto` in `k8s.io/apimachinery` and `k8s.io/api/core/v1`,
/// v0.36.
#[derive(Clone, PartialEq, Message)]
struct WatchEvent {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(message, optional, tag = "2")]
    object: Option<RawExtension>,
}

#[derive(Clone, PartialEq, Message)]
struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

/// `runtime.Unknown`, the envelope behind the magic bytes.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "6")]
    resource_version: String,
}

/// What a Node must have for a watch of nodes.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Node {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(message, optional, tag = "2")]
    spec: Option<NodeSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<NodeStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct NodeSpec {
    #[prost(message, repeated, tag = "5")]
    taints: Vec<Taint>,
}

#[derive(Clone, PartialEq, Message)]
struct Taint {
    #[prost(string, tag = "1")]
    key: String,
}

#[derive(Clone, PartialEq, Message)]
struct NodeStatus {
    #[prost(message, repeated, tag = "4")]
    conditions: Vec<Condition>,
    #[prost(message, repeated, tag = "5")]
    addresses: Vec<Address>,
}

#[derive(Clone, PartialEq, Message)]
struct Condition {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    status: String,
}

#[derive(Clone, PartialEq, Message)]
struct Address {
    #[prost(string, tag = "1")]
    kind: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Service {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(message, optional, tag = "3")]
    status: Option<ServiceStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct ServiceStatus {
    #[prost(message, optional, tag = "1")]
    load_balancer: Option<LoadBalancerStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct LoadBalancerStatus {
    #[prost(message, repeated, tag = "1")]
    ingress: Vec<Ingress>,
}

#[derive(Clone, PartialEq, Message)]
struct Ingress {
    #[prost(string, tag = "1")]
    ip: String,
}

impl Node {
    /// Whether a cloud-controller-manager has done its work: the taint is gone and the addresses
    /// are there.
    pub(crate) fn is_initialised(&self) -> bool {
        let tainted = self.spec.as_ref().is_some_and(|spec| {
            spec.taints
                .iter()
                .any(|taint| taint.key == ccm_testkit::kubelet::UNINITIALIZED_TAINT)
        });
        let addressed = self.status.as_ref().is_some_and(|status| {
            status
                .addresses
                .iter()
                .any(|address| address.kind == "InternalIP")
        });
        !tainted && addressed
    }

    /// Whether its routes are marked as made.
    pub(crate) fn is_routed(&self) -> bool {
        let made = |condition: &Condition| {
            condition.kind == "NetworkUnavailable" && condition.status == "False"
        };
        self.status
            .as_ref()
            .is_some_and(|status| status.conditions.iter().any(made))
    }
}

impl Service {
    /// Whether it has an address.
    pub(crate) fn has_address(&self) -> bool {
        let balancer = self
            .status
            .as_ref()
            .and_then(|status| status.load_balancer.as_ref());
        balancer.is_some_and(|balancer| !balancer.ingress.is_empty())
    }
}

/// An object that can be watched.
pub(crate) trait Watched: Message + Default {
    /// Path of its list, with a query that selects what belongs to the benchmark.
    const PATH: &'static str;

    fn metadata(&self) -> Option<&Metadata>;
}

impl Watched for Node {
    const PATH: &'static str = "/api/v1/nodes?";

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }
}

impl Watched for Service {
    const PATH: &'static str =
        "/api/v1/namespaces/default/services?fieldSelector=metadata.name!%3Dkubernetes&";

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }
}

/// A change of an object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change<T> {
    /// It is new or changed.
    Applied(T),
    /// It is gone.
    Deleted(T),
}

/// A watch that begins with all that is there and goes on for ever.
pub(crate) struct Watch<T> {
    client: Client,
    /// Where the next request goes on; `0` begins with what the server's cache holds.
    resource_version: String,
    body: Option<Body>,
    buffer: BytesMut,
    kind: PhantomData<T>,
}

impl<T: Watched> Watch<T> {
    /// Makes a watch; it starts when it is first asked.
    pub(crate) fn new(client: Client) -> Self {
        let resource_version = "0".to_owned();
        Self {
            client,
            resource_version,
            body: None,
            buffer: BytesMut::new(),
            kind: PhantomData,
        }
    }

    /// Returns the next change and the name of its object.
    ///
    /// # Cancellation
    /// Safe: nothing that was read is lost.
    pub(crate) async fn next(&mut self) -> anyhow::Result<(String, Change<T>)> {
        loop {
            if let Some(frame) = take(&mut self.buffer) {
                if let Some(change) = self.decode(frame)? {
                    return Ok(change);
                }
                continue;
            }
            let Some(body) = &mut self.body else {
                self.body = Some(self.open().await?);
                self.buffer.clear();
                continue;
            };
            match body.frame().await {
                // The server ends a watch after some minutes.
                None => self.body = None,
                Some(frame) => {
                    if let Ok(data) = frame.context("the watch broke")?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    async fn open(&self) -> anyhow::Result<Body> {
        let path = format!(
            "{}watch=1&allowWatchBookmarks=true&timeoutSeconds=280&resourceVersion={}",
            T::PATH,
            self.resource_version
        );
        let accept = "application/vnd.kubernetes.protobuf;stream=watch";
        let answer = self
            .client
            .send(
                Request::get(path)
                    .header(ACCEPT, accept)
                    .body(Body::empty())?,
            )
            .await?;
        ensure!(answer.status().is_success(), "watch {}: {}", T::PATH, answer.status());
        Ok(answer.into_body())
    }

    /// Reads one event; `None` for a bookmark.
    fn decode(&mut self, frame: Bytes) -> anyhow::Result<Option<(String, Change<T>)>> {
        let event = WatchEvent::decode(frame)?;
        if event.kind == "ERROR" {
            bail!("the watch of {} failed", T::PATH);
        }
        let mut raw = event.object.unwrap_or_default().raw;
        ensure!(raw.starts_with(MAGIC), "the server does not speak protobuf");
        let object = T::decode(Unknown::decode(raw.split_off(MAGIC.len()))?.raw)?;
        let metadata = object.metadata().context("an object without metadata")?;
        self.resource_version.clone_from(&metadata.resource_version);
        let name = metadata.name.clone();
        Ok(match &*event.kind {
            "ADDED" | "MODIFIED" => Some((name, Change::Applied(object))),
            "DELETED" => Some((name, Change::Deleted(object))),
            _ => None,
        })
    }
}

/// Takes a whole event, which its length precedes.
fn take(buffer: &mut BytesMut) -> Option<Bytes> {
    let length = usize::try_from(u32::from_be_bytes(*buffer.first_chunk::<4>()?)).ok()?;
    if buffer.len() - 4 < length {
        return None;
    }
    buffer.advance(4);
    Some(buffer.split_to(length).freeze())
}

#[cfg(test)]
mod tests {
    use ccm_testkit::{
        control_plane::{Binaries, ControlPlane, Options},
        kubelet::{KubeletOptions, Kubelets, NodeSpec},
    };
    use kube::api::{Api, Patch, PatchParams};
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_cut_at_their_lengths() {
        let mut buffer = BytesMut::from(&[0, 0, 0, 2, 7, 8, 0, 0, 0, 1][..]);
        assert_eq!(take(&mut buffer).as_deref(), Some(&[7, 8][..]));
        assert_eq!(take(&mut buffer), None);
        buffer.extend_from_slice(&[9]);
        assert_eq!(take(&mut buffer).as_deref(), Some(&[9][..]));
    }

    /// On a real kube-apiserver: the embedded one does not answer in protobuf.
    #[tokio::test]
    #[ignore = "cargo xtask test --full"]
    async fn a_node_is_followed_from_its_registration_to_its_end() {
        let plane = ControlPlane::start(&Binaries::find().unwrap(), Options::default())
            .await
            .unwrap();
        let client = plane.client().await.unwrap();
        let kubelets = Kubelets::new(client.clone(), KubeletOptions::default());
        kubelets.register(NodeSpec::new("n")).await.unwrap();
        let mut watch = Watch::<Node>::new(client.clone());
        let facts = async |watch: &mut Watch<Node>| match watch.next().await.unwrap() {
            (name, Change::Applied(node)) => (name, node.is_initialised(), node.is_routed()),
            (name, Change::Deleted(_)) => (name, false, false),
        };
        assert_eq!(facts(&mut watch).await, ("n".to_owned(), false, false));

        let api = Api::<k8s_openapi::api::core::v1::Node>::all(client);
        let params = PatchParams::default();
        let untainted = json!({"spec": {"taints": null}});
        api.patch("n", &params, &Patch::Merge(&untainted))
            .await
            .unwrap();
        assert_eq!(
            facts(&mut watch).await,
            ("n".to_owned(), false, false),
            "it has no address yet"
        );
        let status = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{"type": "NetworkUnavailable", "status": "False"}],
        }});
        api.patch_status("n", &params, &Patch::Strategic(&status))
            .await
            .unwrap();
        assert_eq!(facts(&mut watch).await, ("n".to_owned(), true, true));
        api.delete("n", &kube::api::DeleteParams::default())
            .await
            .unwrap();
        assert!(matches!(watch.next().await.unwrap(), (name, Change::Deleted(_)) if name == "n"));
        kubelets.stop().await;
        plane.stop().await.unwrap();
    }
}
