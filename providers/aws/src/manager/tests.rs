//! The manager, from its arguments to the provider; with its controllers in [`cluster`].

mod cluster;
mod counts;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use ccm_core::config::{Invocation, parse};

use super::*;
use crate::{
    api::{Action, AwsError, Metadata, Transport},
    fake::{CLUSTER, FakeAws, FakeCluster},
};

/// A metadata service that is a table of paths.
struct Imds(BTreeMap<&'static str, String>);

#[async_trait]
impl Metadata for Imds {
    async fn get(&self, path: &str) -> Result<Option<String>, AwsError> {
        Ok(self.0.get(path).cloned())
    }
}

fn config(args: &[&str]) -> Config {
    let args = std::iter::once("--cloud-provider=aws").chain(args.iter().copied());
    match parse(&product(), args) {
        Ok(Invocation::Run(config)) => *config,
        other => panic!("{other:?}"),
    }
}

/// Connects to an account whose first node is the own instance.
fn on(world: &FakeCluster) -> Connection {
    let own = world
        .nodes
        .first()
        .map(|id| ("instance-id", id.to_string()));
    connection(&world.aws, Imds(own.into_iter().collect()))
}

fn connection(aws: &FakeAws, metadata: Imds) -> Connection {
    Connection {
        transport: aws.transport() as Arc<dyn Transport>,
        metadata: Arc::new(metadata),
        region: "us-west-2".into(),
    }
}

/// The error of a manager that must not come as far as to connect.
async fn refused(args: &[&str]) -> String {
    let result =
        build(config(args), async |_| -> Result<Connection, BoxError> { panic!("connects") }).await;
    chain(&*result.unwrap_err())
}

#[test]
fn arguments_of_upstreams_manifests_are_taken() {
    let args = [
        "--v=2",
        "--cloud-config=/etc/kubernetes/cloud.conf",
        "--use-service-account-credentials=true",
        "--configure-cloud-routes=false",
        "--allocate-node-cidrs=false",
        "--controllers=*,tagging",
        "--tags=a=b,c=d",
        "--resources=instance",
        "--tagging-controller-rate-limit=10",
        "--tagging-controller-burst-limit=20",
        "--tagging-controller-concurrent-node-syncs=5",
        "--tagging-controller-enable-batching=true",
    ];
    assert!(config(&args).generic.controllers.is_enabled(tagging::NAME));
    assert!(
        !config(&["--v=2"])
            .generic
            .controllers
            .is_enabled(tagging::NAME),
        "off unless named"
    );
}

/// Arguments and cloud config of the chart's examples, as they are rendered.
#[test]
fn examples_of_the_chart_are_taken() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../charts/cloud-controller-manager/examples/rendered");
    for (name, tagging) in [("aws", true), ("kops", false), ("hosted-control-plane", false)] {
        let text = std::fs::read_to_string(folder.join(format!("{name}.yaml"))).unwrap();
        let args = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("- "))
            .map(|line| line.trim_matches('"'));
        let args: Vec<&str> = args
            .filter(|arg| arg.starts_with("--") && *arg != "--cloud-provider=aws")
            .collect();
        let config = config(&args);
        assert_eq!(config.generic.controllers.is_enabled(tagging::NAME), tagging, "{name}");
        assert_eq!(tagging::Options::parse(&config.extra).is_ok(), tagging, "{name}");
        let file = text
            .lines()
            .skip_while(|line| !line.trim_start().starts_with("cloud.conf: |"))
            .skip(1);
        let file: Vec<&str> = file
            .take_while(|line| line.starts_with("    ") || line.is_empty())
            .map(str::trim)
            .collect();
        let settings = config::parse(&file.join("\n")).unwrap();
        assert_eq!(settings.default_type, config::DefaultType::Nlb, "{name}: {file:?}");
        assert_eq!(settings.warnings, [], "{name}");
    }
}

#[tokio::test]
async fn without_configuration_the_own_instance_says_it_all() {
    let world = FakeCluster::small(2);
    let provider = build(config(&[]), async |_| Ok(on(&world))).await.unwrap();
    let scope = provider.scope();
    assert_eq!(
        (&*scope.region, &scope.vpc, scope.cluster.id()),
        ("us-west-2", &world.vpc, CLUSTER)
    );
    assert_eq!(scope.settings.subnet.as_ref(), Some(&world.private[0]));
    assert_eq!(world.aws.actions(), [Action::DescribeInstances]);
}

#[tokio::test]
async fn an_untagged_instance_leaves_the_decision_to_the_framework() {
    let world = FakeCluster::small(1);
    world
        .aws
        .untag(&world.nodes[0], "kubernetes.io/cluster/test");
    let provider = build(config(&[]), async |_| Ok(on(&world))).await.unwrap();
    assert!(!provider.has_cluster_id());
}

#[tokio::test(start_paused = true)]
async fn an_outage_at_the_start_is_waited_for() {
    let world = FakeCluster::small(1);
    world.aws.throttle(Action::DescribeInstances, 20);
    let provider = build(config(&[]), async |_| Ok(on(&world))).await.unwrap();
    assert_eq!(provider.scope().cluster.id(), CLUSTER);
    assert!(world.aws.calls(Action::DescribeInstances) > 20);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_pass_ends_the_process() {
    let world = FakeCluster::small(1);
    world.aws.deny(Action::DescribeInstances);
    let error = build(config(&[]), async |_| Ok(on(&world)))
        .await
        .unwrap_err();
    assert!(chain(&*error).contains("UnauthorizedOperation"), "{}", chain(&*error));
    let nowhere = connection(&world.aws, Imds(BTreeMap::new()));
    let error = build(config(&[]), async |_| Ok(nowhere.clone()))
        .await
        .unwrap_err();
    let expected = "the instance metadata service returned no instance ID; set KubernetesClusterID in the cloud config";
    assert_eq!(chain(&*error), expected);
    let error = build(config(&[]), async |_| Err("no way".into()))
        .await
        .unwrap_err();
    assert_eq!(chain(&*error), "no way");
}

#[tokio::test]
async fn mistakes_in_file_and_flags_are_told_together_before_anything_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cloud.conf");
    let flag = format!("--cloud-config={}", file.display());
    let missing = refused(&[&flag, "--controllers=tagging"]).await;
    let lines: Vec<_> = missing.lines().collect();
    assert_eq!(lines.len(), 2, "{missing}");
    assert!(
        lines[0].starts_with(&format!("cannot read cloud config {}: ", file.display())),
        "{missing}"
    );
    assert!(lines[1].contains("--tags must not be empty"), "{missing}");
    std::fs::write(&file, "[Global]\nZone = x\nVPC = y\n").unwrap();
    let wrong = refused(&[&flag, "--controllers=tagging"]).await;
    assert_eq!(wrong.lines().count(), 3, "{wrong}");
    assert_eq!(
        refused(&[&flag]).await.lines().count(),
        2,
        "unselected, the tagging controller needs no flags"
    );
    assert_eq!(refused(&["--controllers=tagging"]).await.lines().count(), 1);
}

#[tokio::test]
async fn connection_is_made_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cloud.conf");
    std::fs::write(&file, "[Global]\nRegion = eu-west-1\nVPC = vpc-1\nKubernetesClusterID = c\n")
        .unwrap();
    let flag = format!("--cloud-config={}", file.display());
    let (asked, aws) = (AtomicUsize::new(0), FakeAws::new());
    let provider = build(config(&[&flag]), async |settings: Settings| {
        asked.fetch_add(1, Ordering::Relaxed);
        assert_eq!(settings.region.as_deref(), Some("eu-west-1"));
        let connection = connection(&aws, Imds(BTreeMap::new()));
        Ok(Connection { region: settings.region.unwrap(), ..connection })
    })
    .await
    .unwrap();
    assert_eq!((&*provider.scope().region, &*provider.scope().vpc), ("eu-west-1", "vpc-1"));
    assert_eq!((asked.into_inner(), aws.requests()), (1, 0));
}
