//! A control plane of one run, with its nodes and services.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ccm_testkit::{
    control_plane::{AuditLog, Component, ControlPlane, Options},
    kubelet::{KubeletOptions, Kubelets, NodeShape, NodeSpec},
};
use futures::{TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::{
    scenario::{self, Size},
    subject::BenchmarkedManager,
};

/// Requests in flight while services are made.
const IN_FLIGHT: usize = 32;

/// Requests of a manager by verb and resource.
pub(crate) type Requests = BTreeMap<String, usize>;

/// Processor time of the servers, in seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerUsage {
    pub(crate) apiserver: f64,
    pub(crate) etcd: f64,
}

/// etcd and kube-apiserver with an audit log, and what is in them.
pub(crate) struct Cluster {
    control_plane: ControlPlane,
    client: Client,
    kubelets: Kubelets,
    folder: tempfile::TempDir,
    kubeconfig: PathBuf,
}

impl Cluster {
    /// Starts one and makes its objects, as fast as they can be made.
    pub(crate) async fn start(size: Size) -> anyhow::Result<Self> {
        let binaries = ControlPlane::available().map_err(|missing| anyhow::anyhow!("{missing}"))?;
        let plane = ControlPlane::start(&binaries, Options::default().audit()).await?;
        let client = plane.client().await?;
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        plane.write_kubeconfig(&kubeconfig, &plane.admin().token)?;
        let kubelets = kubelets(client.clone());
        let cluster = Self { control_plane: plane, client, kubelets, folder, kubeconfig };
        cluster.add_nodes(0..size.nodes).await?;
        cluster.add_services(0..size.services).await?;
        Ok(cluster)
    }

    /// Registers kubelet-shaped nodes.
    pub(crate) async fn add_nodes(&self, numbers: Range<usize>) -> anyhow::Result<()> {
        Ok(self.kubelets.register_all(numbers.map(node)).await?)
    }

    /// Makes services of type LoadBalancer.
    async fn add_services(&self, numbers: Range<usize>) -> anyhow::Result<()> {
        let api = Api::<Service>::namespaced(self.client.clone(), "default");
        let params = PostParams::default();
        let make = async |number: usize| {
            let service: Service = serde_json::from_value(json!({
                "metadata": {"name": format!("service-{number:04}"), "labels": {"app": format!("app-{number:04}")}},
                "spec": {
                    "type": "LoadBalancer",
                    "selector": {"app": format!("app-{number:04}")},
                    "ports": [
                        {"name": "http", "port": 80, "targetPort": 8080},
                        {"name": "https", "port": 443, "targetPort": 8443},
                    ],
                },
            }))?;
            api.create(&params, &service)
                .await
                .with_context(|| format!("make service {number}"))?;
            anyhow::Ok(())
        };
        stream::iter(numbers.map(Ok))
            .try_for_each_concurrent(IN_FLIGHT, make)
            .await
    }

    /// Takes a node out of all load balancers, or back in.
    pub(crate) async fn exclude(&self, node: &str, excluded: bool) -> anyhow::Result<()> {
        let value = if excluded { json!("") } else { json!(null) };
        let patch = json!({"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": value}}});
        let api = Api::<k8s_openapi::api::core::v1::Node>::all(self.client.clone());
        api.patch_metadata(node, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(())
    }

    /// The kubelets.
    pub(crate) fn kubelets(&self) -> &Kubelets {
        &self.kubelets
    }

    /// A client with all rights.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Where files of the run go.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// What the servers used since they started.
    pub(crate) fn usage(&self) -> anyhow::Result<ServerUsage> {
        let of = |component| {
            self.control_plane
                .usage(component)
                .context("no usage of the control plane on this system")
        };
        let seconds = |component| anyhow::Ok(of(component)?.cpu.as_secs_f64());
        Ok(ServerUsage {
            apiserver: seconds(Component::Apiserver)?,
            etcd: seconds(Component::Etcd)?,
        })
    }

    /// Requests of a manager so far, watches and lists included.
    ///
    /// # Errors
    ///
    /// When there are none: an agent of another name must not look like thrift.
    pub(crate) fn requests(&self, contender: &BenchmarkedManager) -> anyhow::Result<Requests> {
        let requests = count(&self.control_plane.audit_log()?.of_agent(&contender.agent));
        ensure!(!requests.is_empty(), "the audit log has no requests of `{}`", contender.agent);
        Ok(requests)
    }

    /// Ends everything.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.kubelets.stop().await;
        Ok(self.control_plane.stop().await?)
    }
}

fn count(log: &AuditLog) -> Requests {
    let mut sums = Requests::new();
    for (key, count) in log.counts() {
        *sums
            .entry(format!("{} {}", key.verb, key.resource))
            .or_default() += count;
    }
    sums
}

/// Kubelets that register and then keep quiet: their reports would be part of the server's load.
pub(crate) fn kubelets(client: Client) -> Kubelets {
    let options = KubeletOptions {
        shape: NodeShape::Full,
        report_period: Duration::from_secs(24 * 3600),
        lease_period: None,
        ..KubeletOptions::default()
    };
    Kubelets::new(client, options)
}

/// One node of 25 labels, 50 images, about 15 KB, with a network for its pods.
pub(crate) fn node(number: usize) -> NodeSpec {
    NodeSpec::new(scenario::node_name(number)).pod_cidr(scenario::pod_cidr(number))
}

/// Requests that change something, events apart.
pub(crate) fn writes(requests: &Requests) -> usize {
    requests
        .iter()
        .filter(|(name, _)| is_write(name) && !is_event(name))
        .map(|(_, count)| count)
        .sum()
}

/// Requests that write events.
pub(crate) fn events(requests: &Requests) -> usize {
    requests
        .iter()
        .filter(|(name, _)| is_write(name) && is_event(name))
        .map(|(_, count)| count)
        .sum()
}

fn is_write(name: &str) -> bool {
    let verb = name.split(' ').next().unwrap_or_default();
    ["create", "update", "patch", "delete", "deletecollection"].contains(&verb)
}

fn is_event(name: &str) -> bool {
    name.ends_with(" events")
}

/// What was asked between two counts.
pub(crate) fn between(before: &Requests, after: &Requests) -> Requests {
    let earlier = |name: &String| before.get(name).copied().unwrap_or(0);
    let more = after
        .iter()
        .map(|(name, count)| (name.clone(), count.saturating_sub(earlier(name))));
    more.filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_apart_from_other_writes() {
        let counts = [
            ("create events", 5),
            ("patch events", 1),
            ("list nodes", 1),
            ("patch nodes/status", 3),
            ("patch services/status", 2),
            ("update nodes", 1),
            ("watch nodes", 9),
        ];
        let requests: Requests = counts
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect();
        assert_eq!((writes(&requests), events(&requests)), (6, 6));
        assert_eq!(between(&requests, &requests), Requests::new());
        assert_eq!(between(&Requests::new(), &requests), requests);
    }
}
