//! The subcommand `check`: green on a healthy cluster, and a line for each mistake.

use anyhow::{Context as _, ensure};
use ccm_testkit::{
    kubelet::NodeSpec,
    moto::{
        fault_proxy::{Fault, ProxyFault},
        query_api::EC2,
    },
};
use http::{Response, StatusCode, request::Parts};
use serde_json::Value;

use super::fixture::{CLUSTER_TAG, ClusterFixture, service};

const FLAGS: [&str; 1] = ["--cluster-cidr=10.244.0.0/16"];
const OTHER_TAG: &str = "kubernetes.io/cluster/other";
const ROLES: [&str; 2] = ["kubernetes.io/role/elb", "kubernetes.io/role/internal-elb"];
/// Where the process has its credentials from, as findings say it.
const CREDENTIALS: &str = "instance profile, IRSA or environment";

/// Runs `check`, which must change nothing: what is no read asks with `DryRun`.
async fn check(stage: &ClusterFixture<'_>) -> anyhow::Result<(Option<i32>, Value)> {
    stage.take_requests();
    let result = stage.report("check", &FLAGS).await?;
    for request in stage.take_requests() {
        // A question to the metadata service is not signed and names no action.
        let is_about_metadata = request.service.is_empty() && request.action.is_empty();
        ensure!(is_about_metadata || request.is_read_or_dry_run(), "{request:?}");
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

/// Removes a tag from an object of EC2.
async fn untag(stage: &ClusterFixture<'_>, id: &str, key: &str) -> anyhow::Result<()> {
    let tag = [("ResourceId.1", id), ("Tag.1.Key", key)];
    stage.fixture.wire().ask(EC2, "DeleteTags", tag).await?;
    Ok(())
}

pub(crate) async fn a_healthy_cluster_is_green_and_mistakes_have_their_lines(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    // First, a cluster that a manager has finished.
    stage.config = "DefaultLoadBalancerType = nlb\nNLBSecurityGroupMode = Managed\n".into();
    stage.without_session_token();
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
        "account 123456789012, as arn:aws:",
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
    expect_finding(stage, ("CredentialsInvalid", "error", CREDENTIALS)).await?;
    stage.overlay().heal();

    // Next, tags: one that is missing, and one that is too much.
    let instance = stage.instances[0].id.clone();
    untag(stage, &instance, CLUSTER_TAG).await?;
    expect_finding(stage, ("InstanceUntagged", "warning", &instance)).await?;
    stage
        .fixture
        .tag(&instance, &[(CLUSTER_TAG, "owned")])
        .await?;
    let group = stage.network.group.clone();
    stage.fixture.tag(&group, &[(OTHER_TAG, "owned")]).await?;
    let object = format!("security group {group}");
    expect_finding(stage, ("OwnedByTwoClusters", "error", &object)).await?;
    untag(stage, &group, OTHER_TAG).await?;

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

pub(crate) async fn each_planted_mistake_has_its_line(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.config = "DefaultLoadBalancerType = nlb\nNLBSecurityGroupMode = Managed\n".into();
    stage.without_session_token();
    stage.nodes(1).await?;
    what_aws_refuses(stage).await.context("refusals")?;
    configuration_and_environment(stage)
        .await
        .context("configuration")?;
    tags_of_the_network(stage).await.context("the network")?;
    groups_and_tags_of_an_instance(stage)
        .await
        .context("an instance")
}

/// Reads that are denied or fail, and credentials that AWS does not know.
async fn what_aws_refuses(stage: &ClusterFixture<'_>) -> anyhow::Result<()> {
    let denied = "UnauthorizedOperation";
    let vpc = format!("VPC {}", stage.network.vpc.id);
    let balancers = "elasticloadbalancing:DescribeLoadBalancers";
    let rows = [
        ("DescribeLoadBalancers", 403, "AccessDenied", ("ReadDenied", "error", balancers)),
        (
            "DescribeSecurityGroups",
            403,
            denied,
            ("ReadDenied", "error", "ec2:DescribeSecurityGroups"),
        ),
        (
            "DescribeSecurityGroups",
            500,
            "InternalError",
            ("ReadFailed", "warning", "ec2:DescribeSecurityGroups"),
        ),
        ("DescribeInstances", 403, denied, ("ReadDenied", "error", "ec2:DescribeInstances")),
        ("DescribeRouteTables", 403, denied, ("RouteTablesUnusable", "error", &*vpc)),
        (
            "DescribeVpcs",
            403,
            "InvalidClientTokenId",
            ("CredentialsInvalid", "error", CREDENTIALS),
        ),
    ];
    for (action, status, code, expected) in rows {
        stage.overlay().fail(Fault::refused(action, status, code));
        expect_finding(stage, expected)
            .await
            .with_context(|| format!("{action}: {code}"))?;
        stage.overlay().heal();
    }
    Ok(())
}

/// The ID that [`metadata`] gives for the process' own instance, which does not exist.
const OWN_INSTANCE: &str = "i-0123456789abcdef0";

/// An instance metadata service that knows nothing but the instance's ID.
fn metadata(head: &Parts, _: &[u8]) -> Response<String> {
    let (status, text) = match head.uri.path() {
        "/latest/api/token" => (StatusCode::OK, "token"),
        "/latest/meta-data/instance-id" => (StatusCode::OK, OWN_INSTANCE),
        _ => (StatusCode::NOT_FOUND, ""),
    };
    let mut answer = Response::new(text.to_owned());
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert("x-aws-ec2-metadata-token-ttl-seconds", 21_600.into());
    answer
}

/// Keys of cloud.conf, the metadata service that stands in for them, and the environment.
async fn configuration_and_environment(stage: &mut ClusterFixture<'_>) -> anyhow::Result<()> {
    // First, a key that is misspelt.
    let config = stage.config.clone();
    stage.config.push_str("Regoin = us-west-2\n");
    expect_finding(stage, ("ConfigIgnored", "warning", "[Global] Regoin")).await?;
    stage.config = config;

    // Next, temporary credentials in the environment.
    let environment = stage.environment.clone();
    stage.environment.push("AWS_SESSION_TOKEN=t".into());
    expect_finding(stage, ("CredentialsNotRenewed", "warning", "AWS_SESSION_TOKEN")).await?;

    // Next, no VPC, and nobody to ask for it.
    stage.environment.clone_from(&environment);
    stage
        .environment
        .push("AWS_EC2_METADATA_DISABLED=true".into());
    let vpc = std::mem::take(&mut stage.network.vpc.id);
    expect_finding(stage, ("MetadataMissing", "error", "VPC")).await?;
    stage.network.vpc.id = vpc;

    // Last, no cluster ID, and an own instance that is not in this account.
    stage.environment.clone_from(&environment);
    let endpoint = format!("AWS_EC2_METADATA_SERVICE_ENDPOINT={}", stage.overlay().url());
    stage.environment.push(endpoint);
    let cluster = std::mem::take(&mut stage.cluster_id);
    stage.overlay().fail(Fault {
        action: String::new(),
        after: 0,
        times: usize::MAX,
        effect: ProxyFault::Answered(metadata),
    });
    let object = format!("instance {OWN_INSTANCE}");
    expect_finding(stage, ("OwnInstanceUnknown", "error", &object)).await?;
    stage.overlay().heal();
    stage.cluster_id = cluster;
    stage.environment = environment;
    Ok(())
}

/// Tags of subnets and of the route table, and free addresses.
async fn tags_of_the_network(stage: &ClusterFixture<'_>) -> anyhow::Result<()> {
    let vpc = format!("VPC {}", stage.network.vpc.id);
    let subnets = stage.network.public.iter().chain(&stage.network.private);
    let subnets: Vec<&str> = subnets.map(|subnet| &*subnet.id).collect();
    // First, subnets without the tag of a cluster, and then with that of another one.
    for id in &subnets {
        untag(stage, id, CLUSTER_TAG).await?;
    }
    expect_finding(stage, ("SubnetsUntagged", "warning", &vpc)).await?;
    for id in &subnets {
        stage.fixture.tag(id, &[(OTHER_TAG, "owned")]).await?;
    }
    expect_finding(stage, ("SubnetsOfOtherClusters", "error", &vpc)).await?;

    // Next, subnets of the cluster without a role.
    for id in &subnets {
        untag(stage, id, OTHER_TAG).await?;
        for role in ROLES {
            untag(stage, id, role).await?;
        }
        stage.fixture.tag(id, &[(CLUSTER_TAG, "shared")]).await?;
    }
    expect_finding(stage, ("SubnetRolesMissing", "warning", &vpc)).await?;
    for (subnets, role) in [&stage.network.public, &stage.network.private]
        .iter()
        .zip(ROLES)
    {
        for subnet in *subnets {
            stage.fixture.tag(&subnet.id, &[(role, "1")]).await?;
        }
    }

    // Next, a subnet of sixteen addresses, of which AWS keeps five and instances have four.
    let tags = [(CLUSTER_TAG, "shared"), (ROLES[0], "1")];
    let small = stage
        .fixture
        .subnet(&stage.network.vpc, "c", "10.0.9.0/28", false, &tags)
        .await?;
    for _ in 0..4 {
        let groups = [&*stage.network.group];
        stage
            .fixture
            .instance(&small, "m5.large", &groups, &[])
            .await?;
    }
    expect_finding(stage, ("SubnetFull", "warning", &small.id)).await?;
    untag(stage, &small.id, ROLES[0]).await?;

    // Last, no route table with the cluster's tag.
    let table = &stage.network.vpc.main_table;
    untag(stage, table, CLUSTER_TAG).await?;
    expect_finding(stage, ("RouteTablesUnusable", "error", &vpc)).await?;
    stage.fixture.tag(table, &[(CLUSTER_TAG, "owned")]).await?;
    Ok(())
}

/// A node with two security groups, and with the tag of another cluster.
async fn groups_and_tags_of_an_instance(stage: &ClusterFixture<'_>) -> anyhow::Result<()> {
    let second = stage
        .fixture
        .security_group(&stage.network.vpc, "second", &[(CLUSTER_TAG, "shared")])
        .await?;
    let subnet = &stage.network.public[0];
    let groups = [&*stage.network.group, &*second];
    let made = stage
        .fixture
        .instance(subnet, "m5.large", &groups, &[(CLUSTER_TAG, "owned")])
        .await?;
    let node = NodeSpec::new(made.private_dns_name.clone())
        .provider_id(format!("aws:///{}/{}", subnet.zone, made.id))
        .initialized();
    stage.kubelets.register_all([node]).await?;
    expect_finding(stage, ("NodeGroupsAmbiguous", "error", &made.id)).await?;
    for group in groups {
        untag(stage, group, CLUSTER_TAG).await?;
    }
    expect_finding(stage, ("NodeGroupsUntagged", "error", &made.id)).await?;
    untag(stage, &made.id, CLUSTER_TAG).await?;
    stage.fixture.tag(&made.id, &[(OTHER_TAG, "owned")]).await?;
    expect_finding(stage, ("InstanceOfOtherCluster", "error", &made.id)).await
}
