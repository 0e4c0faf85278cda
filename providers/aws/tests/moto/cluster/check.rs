//! The subcommand `check`: green on a healthy cluster, and a line for each mistake.

use anyhow::{Context as _, ensure};
use ccm_testkit::{
    kubelet::NodeSpec,
    moto::{fault_proxy::Fault, query_api::EC2},
};
use serde_json::Value;

use super::fixture::{CLUSTER_TAG, ClusterFixture, service};

const FLAGS: [&str; 1] = ["--cluster-cidr=10.244.0.0/16"];
const OTHER_TAG: &str = "kubernetes.io/cluster/other";

/// Runs `check`, which must change nothing: what is no read asks with `DryRun`.
async fn check(stage: &ClusterFixture<'_>) -> anyhow::Result<(Option<i32>, Value)> {
    stage.take_requests();
    let result = stage.report("check", &FLAGS).await?;
    for request in stage.take_requests() {
        let asks =
            request.action.starts_with("Describe") || request.parameter("DryRun") == Some("true");
        ensure!(asks, "{request:?}");
    }
    Ok(result)
}

/// Runs `check`, and expects a line of this name, severity and object, with advice.
async fn expect_finding(
    stage: &ClusterFixture<'_>,
    (name, severity, object): (&str, &str, &str),
) -> anyhow::Result<()> {
    let (code, report) = check(stage).await?;
    let findings = report["findings"].as_array().context("a report")?;
    let is_expected = |finding: &&Value| {
        finding["finding"] == name
            && finding["severity"] == severity
            && finding["object"] == object
            && finding["advice"]
                .as_str()
                .is_some_and(|advice| !advice.is_empty())
    };
    let found = findings.iter().filter(is_expected).count();
    ensure!(found == 1, "{found} of {name} about {object}: {report:#}");
    let errors = report["errors"] != 0;
    ensure!(code == Some(if errors { 1 } else { 2 }), "{name}: {code:?}");
    Ok(())
}

pub(crate) async fn a_healthy_cluster_is_green_and_mistakes_have_their_lines(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    // First, a cluster that a manager has finished.
    stage.config = "DefaultLoadBalancerType = nlb\nNLBSecurityGroupMode = Managed\n".into();
    stage.nodes(2).await?;
    stage.start(&FLAGS).await?;
    stage.create(&service("web", &[("TCP", 80)], &[])).await?;
    stage.served(&["web"]).await?;
    stage.stop().await?;
    let (code, report) = check(stage).await?;
    ensure!(code == Some(0), "{code:?}: {report:#}");
    let texts = report["findings"].to_string();
    for text in [
        "2 nodes, 2 of them found in the cloud",
        "what this cluster owns in the cloud can be listed",
        "allowed changes, by DryRun: ec2:CreateSecurityGroup and ec2:CreateTags, ec2:AuthorizeSecurityGroupIngress",
    ] {
        ensure!(texts.contains(text), "{text}: {report:#}");
    }

    // Next, what the policy of the role denies, and credentials that have expired.
    let denied = [
        ("AuthorizeSecurityGroupIngress", "ChangeDenied", "ec2:AuthorizeSecurityGroupIngress"),
        ("CreateSecurityGroup", "ChangeDenied", "ec2:CreateSecurityGroup and ec2:CreateTags"),
        ("DescribeSubnets", "ReadDenied", "ec2:DescribeSubnets"),
    ];
    for (action, name, object) in denied {
        stage
            .overlay()
            .fail(Fault::refused(action, 403, "UnauthorizedOperation"));
        expect_finding(stage, (name, "error", object)).await?;
        stage.overlay().heal();
    }
    stage
        .overlay()
        .fail(Fault::refused("DescribeVpcs", 400, "ExpiredToken"));
    let credentials = "instance profile, IRSA or environment";
    expect_finding(stage, ("CredentialsInvalid", "error", credentials)).await?;
    stage.overlay().heal();

    // Next, tags: one that is missing, and one that is too much.
    let instance = stage.instances[0].id.clone();
    let tag = [("ResourceId.1", &*instance), ("Tag.1.Key", CLUSTER_TAG)];
    stage.fixture.wire().ask(EC2, "DeleteTags", tag).await?;
    expect_finding(stage, ("InstanceUntagged", "warning", &instance)).await?;
    stage
        .fixture
        .tag(&instance, &[(CLUSTER_TAG, "owned")])
        .await?;
    let group = stage.network.group.clone();
    stage.fixture.tag(&group, &[(OTHER_TAG, "owned")]).await?;
    let object = format!("security group {group}");
    expect_finding(stage, ("OwnedByTwoClusters", "error", &object)).await?;
    let tag = [("ResourceId.1", &*group), ("Tag.1.Key", OTHER_TAG)];
    stage.fixture.wire().ask(EC2, "DeleteTags", tag).await?;

    // Last, a VPC that is not in this account, and a node of another region.
    let vpc = std::mem::replace(&mut stage.network.vpc.id, "vpc-0123456789abcdef0".to_owned());
    let object = format!("VPC {}", stage.network.vpc.id);
    expect_finding(stage, ("VpcUnknown", "error", &object)).await?;
    stage.network.vpc.id = vpc;
    let far = NodeSpec::new("far")
        .provider_id("aws:///eu-west-1a/i-0123456789abcdef0")
        .initialized();
    stage.kubelets.register_all([far]).await?;
    expect_finding(stage, ("NodeInOtherRegion", "error", "far")).await
}
