//! Each row is one misconfiguration, for which there must be exactly one line that says what to do
//! about it.

mod caller;
mod permissions;

use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::{
    check::not_built as finding_of,
    config::{Config, Invocation, parse},
    error::BoxError,
    k8s::{NodeView, ServiceView},
    provider::{CheckedCluster, CloudProvider, Finding, Op, Severity},
    write_gate::WriteGate,
};
use tokio_util::sync::CancellationToken;

use super::super::AwsProvider;
use crate::{
    api::{Action, AwsError, AwsErrorCause, Connection, Metadata},
    fake::{CLUSTER, FakeCluster, REGION},
    lb::{model::ServiceKey, names, security_groups::classic_group_name},
    manager,
};

const OWN_TAG: &str = "kubernetes.io/cluster/test";
const TAGGING: &[&str] = &["--controllers=*,tagging", "--tags=team=a", "--resources=instance"];
/// UID of the only Service.
const UID: &str = "6c1f0f4e-6f7b-4a52-9d8e-0d6c4c1b2a3f";
const OTHER_TAG: &str = "kubernetes.io/cluster/other";

/// A cluster in AWS, with what of it a row changes.
struct Fixture {
    world: FakeCluster,
    /// More lines of `[Global]` in the cloud config.
    config: String,
    /// More flags.
    flags: &'static [&'static str],
    vpc: String,
    nodes: Vec<Arc<NodeView>>,
    metadata: InstanceMetadata,
}

/// The instance metadata service, which answers nothing unless a row says so.
#[derive(Clone, Debug, Default)]
struct InstanceMetadata(Option<String>);

#[async_trait]
impl Metadata for InstanceMetadata {
    async fn get(&self, path: &str) -> Result<Option<String>, AwsError> {
        match &self.0 {
            Some(id) if path == "instance-id" => Ok(Some(id.clone())),
            Some(_) => Ok(None),
            None => Err(AwsError {
                action: None,
                cause: AwsErrorCause::NoResponse(Arc::from(Box::from("no route"))),
            }),
        }
    }
}

fn node(name: &str, zone: &str, id: &str) -> Arc<NodeView> {
    let provider_id = Some(format!("aws:///{zone}/{id}").into());
    Arc::new(NodeView { provider_id, ..NodeView::named(name) })
}

impl Fixture {
    fn new() -> Self {
        let world = FakeCluster::small(2);
        let ids = world.nodes.iter().enumerate();
        let nodes = ids
            .map(|(n, id)| node(&format!("n{n}"), "us-west-2a", id))
            .collect();
        let config = format!("Region = {REGION}\nKubernetesClusterID = {CLUSTER}");
        let vpc = world.vpc.to_string();
        Self {
            world,
            config,
            flags: &[],
            vpc,
            nodes,
            metadata: InstanceMetadata::default(),
        }
    }

    fn op() -> Op {
        Op::new("kubernetes", CancellationToken::new(), WriteGate::always_closed())
    }

    /// Builds the provider as the subcommand does, and checks.
    async fn check(&self) -> Vec<Finding> {
        let provider = match self.build().await {
            Ok(provider) => provider,
            Err(error) => return vec![finding_of(&error)],
        };
        let service = ServiceView { uid: UID.into(), ..ServiceView::named("shop", "web") };
        let service = Arc::new(service);
        let cluster = CheckedCluster {
            nodes: &self.nodes,
            services: Some(std::slice::from_ref(&service)),
            creates_routes: true,
        };
        provider.check(&Self::op(), cluster).await
    }

    async fn build(&self) -> Result<AwsProvider, BoxError> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("cloud.conf");
        std::fs::write(&file, format!("[Global]\nVPC = {}\n{}\n", self.vpc, self.config))?;
        let (transport, metadata) = (self.world.aws.transport(), Arc::new(self.metadata.clone()));
        manager::build(config(&file, self.flags)?, |settings| async move {
            let region = settings.region.clone().unwrap_or_else(|| REGION.into());
            Ok(Connection { transport, metadata, region })
        })
        .await
    }
}

/// Parses the flags, and does not wait for AWS, like the subcommand `check`.
fn config(file: &std::path::Path, flags: &[&str]) -> Result<Config, BoxError> {
    let config = format!("--cloud-config={}", file.display());
    let args = ["--cloud-provider=aws", &*config]
        .into_iter()
        .chain(flags.iter().copied());
    match parse(&manager::product(), args)? {
        Invocation::Run(mut config) => {
            config.wait_for_cloud = false;
            Ok(*config)
        }
        other => Err(format!("{other:?}").into()),
    }
}

/// A row: what is wrong, and the name, severity, object and advice of its line.
type Row = (fn(&mut Fixture), &'static str, Severity, fn(&Fixture) -> String, &'static str);

/// Creates a security group with the name of a load balancer's, as an upstream that could not tag it.
fn untagged_group(fixture: &mut Fixture, name: &str) {
    fixture
        .world
        .aws
        .security_group(&fixture.world.vpc, name, &[]);
}

fn vpc(fixture: &Fixture) -> String {
    format!("VPC {}", fixture.vpc)
}

fn first_instance(fixture: &Fixture) -> String {
    fixture.world.nodes[0].to_string()
}

const ROWS: &[Row] = &[
    // The provider cannot be created.
    (
        |f| f.config = format!("Region = us/west\nKubernetesClusterID = {CLUSTER}"),
        "ConfigInvalid",
        Severity::Error,
        |_| String::new(),
        "correct the keys",
    ),
    (
        |f| f.config = format!("Region = {REGION}"),
        "MetadataMissing",
        Severity::Error,
        |_| "KubernetesClusterID".to_owned(),
        "set KubernetesClusterID in the cloud config",
    ),
    (
        own_instance_in_another_account,
        "OwnInstanceUnknown",
        Severity::Error,
        |_| "instance i-0000".to_owned(),
        "ec2:DescribeInstances for instance i-0000",
    ),
    (
        own_instance_with_two_tags,
        "ClusterTagsContradict",
        Severity::Error,
        |f| format!("instance {}", f.world.nodes[0]),
        "leave one tag",
    ),
    // Credentials and permissions.
    (
        |f| {
            f.world
                .aws
                .fail_always(Action::DescribeVpcs, "ExpiredToken");
        },
        "CredentialsInvalid",
        Severity::Error,
        |_| "instance profile, IRSA or environment".to_owned(),
        "renew the credentials",
    ),
    (
        |f| {
            f.world
                .aws
                .fail_always(Action::DescribeVpcs, "InvalidClientTokenId");
        },
        "CredentialsInvalid",
        Severity::Error,
        |_| "instance profile, IRSA or environment".to_owned(),
        "renew the credentials",
    ),
    (
        |f| f.world.aws.deny(Action::DescribeSubnets),
        "ReadDenied",
        Severity::Error,
        |_| "ec2:DescribeSubnets".to_owned(),
        "allow ec2:DescribeSubnets in the IAM policy",
    ),
    (
        |f| f.world.aws.deny(Action::DescribeLoadBalancers),
        "ReadDenied",
        Severity::Error,
        |_| "elasticloadbalancing:DescribeLoadBalancers".to_owned(),
        "allow elasticloadbalancing:DescribeLoadBalancers",
    ),
    (
        |f| {
            f.world
                .aws
                .fail_always(Action::DescribeSecurityGroups, "InternalError");
        },
        "ReadFailed",
        Severity::Warning,
        |_| "ec2:DescribeSecurityGroups".to_owned(),
        "error of ec2:DescribeSecurityGroups",
    ),
    (
        |f| f.world.aws.deny(Action::CreateSecurityGroup),
        "ChangeDenied",
        Severity::Error,
        |_| "ec2:CreateSecurityGroup and ec2:CreateTags".to_owned(),
        "allow ec2:CreateSecurityGroup",
    ),
    (
        |f| f.world.aws.deny(Action::AuthorizeSecurityGroupIngress),
        "ChangeDenied",
        Severity::Error,
        |_| "ec2:AuthorizeSecurityGroupIngress".to_owned(),
        "allow ec2:AuthorizeSecurityGroupIngress",
    ),
    (
        |f| f.world.aws.deny(Action::CreateTags),
        "ChangeDenied",
        Severity::Error,
        |_| "ec2:CreateSecurityGroup and ec2:CreateTags".to_owned(),
        "and ec2:CreateTags in the IAM policy",
    ),
    (
        |f| {
            f.flags = TAGGING;
            f.world.aws.deny_tags_after_creation();
        },
        "ChangeDenied",
        Severity::Error,
        |_| "ec2:CreateTags".to_owned(),
        "allow ec2:CreateTags",
    ),
    (
        |f| f.world.aws.deny(Action::ModifyInstanceAttribute),
        "ChangeDenied",
        Severity::Error,
        |_| "ec2:ModifyInstanceAttribute".to_owned(),
        "allow ec2:ModifyInstanceAttribute",
    ),
    // Account and region.
    (
        |f| f.config += "\nRegoin = x",
        "ConfigIgnored",
        Severity::Warning,
        |_| "[Global] Regoin".to_owned(),
        "correct or remove [Global] Regoin",
    ),
    (
        wrong_account,
        "VpcUnknown",
        Severity::Error,
        vpc,
        "the credentials are of the account of VPC vpc-0other",
    ),
    (
        |f| f.nodes.push(node("far", "eu-west-1a", "i-0far")),
        "NodeInOtherRegion",
        Severity::Error,
        |_| "far".to_owned(),
        "to the region of far",
    ),
    // Tags.
    (
        |f| retag_subnets(f, Some(OTHER_TAG)),
        "SubnetsOfOtherClusters",
        Severity::Error,
        vpc,
        "tag subnets of VPC",
    ),
    (
        |f| retag_subnets(f, None),
        "SubnetsUntagged",
        Severity::Warning,
        vpc,
        "tag the subnets of load balancers in VPC",
    ),
    (
        no_role_tags,
        "SubnetRolesMissing",
        Severity::Warning,
        vpc,
        "with kubernetes.io/role/elb=1",
    ),
    (
        one_full_subnet,
        "SubnetFull",
        Severity::Warning,
        |f| f.world.public[0].to_string(),
        "free addresses in subnet-",
    ),
    (
        subnet_of_two_clusters,
        "OwnedByTwoClusters",
        Severity::Error,
        |f| format!("subnet {}", f.world.private[0]),
        "leave the value owned to one cluster",
    ),
    (
        |f| f.world.aws.tag(&f.world.node_group, OTHER_TAG, "owned"),
        "OwnedByTwoClusters",
        Severity::Error,
        |f| format!("security group {}", f.world.node_group),
        "set shared for the others",
    ),
    (
        |f| untagged_group(f, &classic_group_name(&names::load_balancer(UID))),
        "BalancerGroupUntagged",
        Severity::Warning,
        |_| String::new(),
        "run the command of the message",
    ),
    (
        |f| {
            let owner = ServiceKey {
                namespace: "shop".into(),
                name: "web".into(),
                uid: UID.into(),
            };
            untagged_group(f, &names::security_group("kubernetes", &owner));
        },
        "BalancerGroupUntagged",
        Severity::Warning,
        |_| String::new(),
        "which tags sg-",
    ),
    (
        |f| f.world.aws.untag(&f.world.nodes[0], OWN_TAG),
        "InstanceUntagged",
        Severity::Warning,
        first_instance,
        "with kubernetes.io/cluster/CLUSTER_ID=owned",
    ),
    (
        instance_of_another_cluster,
        "InstanceOfOtherCluster",
        Severity::Error,
        first_instance,
        "correct the tag",
    ),
    (
        second_tagged_group,
        "NodeGroupsAmbiguous",
        Severity::Error,
        |f| f.world.nodes[2].to_string(),
        "on one security group of i-",
    ),
    (
        several_untagged_groups,
        "NodeGroupsUntagged",
        Severity::Error,
        |f| f.world.nodes[2].to_string(),
        "tag one security group of i-",
    ),
    (
        |f| f.world.aws.untag(&f.world.table, OWN_TAG),
        "RouteTablesUnusable",
        Severity::Error,
        vpc,
        "tag one route table of VPC",
    ),
];

fn own_instance_in_another_account(f: &mut Fixture) {
    f.config = format!("Region = {REGION}");
    f.metadata = InstanceMetadata(Some("i-0000".to_owned()));
}

fn own_instance_with_two_tags(f: &mut Fixture) {
    f.config = format!("Region = {REGION}");
    f.metadata = InstanceMetadata(Some(f.world.nodes[0].to_string()));
    f.world.aws.tag(&f.world.nodes[0], OTHER_TAG, "owned");
}

/// The VPC exists in another account, and so do the instances.
fn wrong_account(f: &mut Fixture) {
    f.vpc = "vpc-0other".to_owned();
    f.config.push_str("\nRouteTableID = ");
    f.config.push_str(f.world.table.as_ref());
}

fn retag_subnets(f: &mut Fixture, other: Option<&str>) {
    for subnet in f.world.public.iter().chain(&f.world.private) {
        f.world.aws.untag(subnet, OWN_TAG);
        if let Some(tag) = other {
            f.world.aws.tag(subnet, tag, "owned");
        }
    }
}

fn no_role_tags(f: &mut Fixture) {
    for subnet in f.world.public.iter().chain(&f.world.private) {
        for role in ["kubernetes.io/role/elb", "kubernetes.io/role/internal-elb"] {
            f.world.aws.untag(subnet, role);
        }
    }
}

fn one_full_subnet(f: &mut Fixture) {
    f.world.aws.set_free_ips(&f.world.public[0], 3);
}

fn subnet_of_two_clusters(f: &mut Fixture) {
    f.world.aws.tag(&f.world.private[0], OTHER_TAG, "owned");
}

fn instance_of_another_cluster(f: &mut Fixture) {
    f.world.aws.untag(&f.world.nodes[0], OWN_TAG);
    f.world.aws.tag(&f.world.nodes[0], OTHER_TAG, "owned");
}

fn second_tagged_group(f: &mut Fixture) {
    let second = f
        .world
        .aws
        .security_group(&f.world.vpc, "second", &[(OWN_TAG, "shared")]);
    let groups = [f.world.node_group.clone(), second];
    launch(f, &groups);
}

fn several_untagged_groups(f: &mut Fixture) {
    let groups =
        ["first", "second"].map(|name| f.world.aws.security_group(&f.world.vpc, name, &[]));
    launch(f, &groups);
}

/// Launches one more node with these groups.
fn launch(f: &mut Fixture, groups: &[crate::api::SecurityGroupId]) {
    let mut instance = f
        .world
        .aws
        .instance(&f.world.private[0])
        .tag(OWN_TAG, "owned");
    for group in groups {
        instance = instance.group(group);
    }
    let id = instance.launch();
    f.nodes.push(node("n2", "us-west-2a", &id));
    f.world.nodes.push(id);
}

fn problems(findings: &[Finding]) -> Vec<&Finding> {
    findings
        .iter()
        .filter(|finding| finding.severity > Severity::Ok)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn each_misconfiguration_has_its_line() {
    assert!(ROWS.len() >= 20);
    let mut failures = Vec::new();
    for (number, row) in ROWS.iter().enumerate() {
        if let Err(failure) = check_row(row).await {
            failures.push(format!("row {number}, {}: {failure}", row.1));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Returns what is wrong with the findings about the misconfiguration of a row.
async fn check_row((plant, name, severity, object, advice): &Row) -> Result<(), String> {
    let mut fixture = Fixture::new();
    plant(&mut fixture);
    let findings = fixture.check().await;
    let [line] = problems(&findings)[..] else {
        return Err(format!("{findings:#?}"));
    };
    let object = object(&fixture);
    let is_expected = (line.name, line.severity) == (*name, *severity)
        && (object.is_empty() || line.object == object)
        && line.advice.contains(advice)
        && !line.consequence.is_empty()
        && fixture.world.aws.writes() == 0;
    if is_expected {
        return Ok(());
    }
    Err(format!(
        "expected {object}, {advice:?}; writes: {}; {line:#?}",
        fixture.world.aws.writes()
    ))
}

#[tokio::test(start_paused = true)]
async fn a_group_without_tag_comes_with_the_command_that_tags_it() {
    let fixture = Fixture::new();
    let aws = &fixture.world.aws;
    let vpc = &fixture.world.vpc;
    let group = aws.security_group(vpc, &classic_group_name(&names::load_balancer(UID)), &[]);
    // Of a Service of another cluster, which may be in the same VPC.
    let other = names::load_balancer("00000000-6f7b-4a52-9d8e-0d6c4c1b2a3f");
    aws.security_group(vpc, &classic_group_name(&other), &[]);
    let findings = fixture.check().await;
    let [line] = problems(&findings)[..] else {
        panic!("{findings:#?}");
    };
    let command =
        format!("aws ec2 create-tags --resources {group} --tags Key={OWN_TAG},Value=owned");
    assert!(line.message.ends_with(&command), "{}", line.message);
    assert_eq!(*line.object, *group);
    for tag in [OTHER_TAG, OWN_TAG] {
        aws.tag(&group, tag, "owned");
        let findings = fixture.check().await;
        let is_reported = findings
            .iter()
            .any(|finding| finding.name == "BalancerGroupUntagged");
        assert!(!is_reported, "{tag}");
        aws.untag(&group, tag);
    }
}

#[tokio::test(start_paused = true)]
async fn a_healthy_cluster_is_green_and_nothing_is_changed() {
    let fixture = Fixture::new();
    let findings = fixture.check().await;
    let found = problems(&findings);
    assert!(found.is_empty(), "{found:#?}");
    let messages: Vec<&str> = findings.iter().map(|finding| &*finding.message).collect();
    let messages = messages.join("\n");
    for line in [
        "region us-west-2",
        "exists, with 10.0.0.0/16",
        "subnets for load balancers: 6",
        "routes of the cluster: 0",
        "allowed changes, by DryRun: ec2:CreateSecurityGroup and ec2:CreateTags, ec2:AuthorizeSecurityGroupIngress, ec2:ModifyInstanceAttribute",
    ] {
        assert!(messages.contains(line), "{line}: {messages}");
    }
    assert_eq!(fixture.world.aws.writes(), 0);
    assert!(fixture.world.aws.requests() <= 11, "{:?}", fixture.world.aws.actions());
}
