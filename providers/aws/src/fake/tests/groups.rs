use super::*;
use crate::api::{
    SecurityGroupId,
    ec2::{
        AuthorizeSecurityGroupIngress, CreateSecurityGroup, DeleteSecurityGroup,
        DescribeSecurityGroups, RevokeSecurityGroupIngress, Rule, RuleSource,
    },
    elb::DeleteLoadBalancer,
};

fn cidr(protocol: &str, from: i32, to: i32, net: &str) -> Rule {
    let source = RuleSource::Cidr(net.parse().unwrap());
    Rule {
        protocol: protocol.into(),
        ports: Some((from, to)),
        source,
        description: Box::default(),
    }
}

fn pair(id: &SecurityGroupId) -> Rule {
    Rule {
        source: RuleSource::Group(id.clone(), None),
        ..cidr("tcp", 1, 2, "0.0.0.0/0")
    }
}

fn allow(id: &SecurityGroupId, rules: Vec<Rule>) -> AuthorizeSecurityGroupIngress {
    AuthorizeSecurityGroupIngress { id: id.clone(), rules }
}

fn revoke(id: &SecurityGroupId, rules: Vec<Rule>) -> RevokeSecurityGroupIngress {
    RevokeSecurityGroupIngress { id: id.clone(), rules }
}

fn group(vpc: &VpcId, name: &str, description: &str) -> CreateSecurityGroup {
    CreateSecurityGroup {
        name: name.into(),
        description: description.into(),
        vpc: vpc.clone(),
        tags: tags(&[]),
    }
}

fn delete(id: &SecurityGroupId) -> DeleteSecurityGroup {
    DeleteSecurityGroup { id: id.clone() }
}

#[tokio::test(start_paused = true)]
async fn groups_are_created_as_by_aws() {
    let world = FakeCluster::small(0);
    let (aws, vpc) = (&world.aws, &world.vpc);
    let other = aws.vpc("10.9.0.0/16");
    let cases = [
        ("first", group(vpc, "a", "[k8s] Managed SecurityGroup for LoadBalancer"), "ok"),
        ("same name", group(vpc, "a", "other"), "InvalidGroup.Duplicate"),
        ("same name, other VPC", group(&other, "a", "d"), "ok"),
        ("unknown VPC", group(&"vpc-0".into(), "b", "d"), "InvalidVpcID.NotFound"),
        ("no description", group(vpc, "b", ""), "MissingParameter"),
        ("bad description", group(vpc, "b", "größe"), "InvalidParameterValue"),
        ("name like an ID", group(vpc, "sg-b", "d"), "InvalidParameterValue"),
        ("reserved name", group(vpc, "default", "d"), "InvalidGroup.Reserved"),
    ];
    for (name, request, expected) in cases {
        assert_eq!(code(aws, request).await, expected, "{name}");
    }
    aws.quotas(|quotas| quotas.security_groups_per_vpc = 1);
    assert_eq!(code(aws, group(vpc, "b", "d")).await, "SecurityGroupLimitExceeded");
}

#[tokio::test(start_paused = true)]
async fn rules_are_added_all_or_none() {
    let world = FakeCluster::small(0);
    let (aws, id) = (&world.aws, &world.node_group);
    let (web, dns) = (cidr("tcp", 80, 80, "10.0.0.0/8"), cidr("udp", 53, 53, "::/0"));
    let described = Rule { description: "text".into(), ..web.clone() };
    let far = aws.security_group(&aws.vpc("10.9.0.0/16"), "far", &[]);
    let cases = [
        ("first", vec![web.clone()], "ok"),
        ("one of two is there", vec![dns.clone(), web.clone()], "InvalidPermission.Duplicate"),
        ("other description", vec![described], "InvalidPermission.Duplicate"),
        (
            "number for a name",
            vec![cidr("6", 80, 80, "10.0.0.0/8")],
            "InvalidPermission.Duplicate",
        ),
        ("host bits", vec![cidr("tcp", 80, 80, "10.1.2.3/8")], "InvalidPermission.Duplicate"),
        ("twice in one request", vec![dns.clone(), dns], "InvalidParameterValue"),
        ("no protocol of IP", vec![cidr("tls", 443, 443, "10.0.0.0/8")], "InvalidParameterValue"),
        ("ports upside down", vec![cidr("tcp", 81, 80, "10.0.0.0/8")], "InvalidParameterValue"),
        ("unknown group", vec![pair(&"sg-0".into())], "InvalidGroup.NotFound"),
        ("group of another VPC", vec![pair(&far)], "InvalidGroup.NotFound"),
        ("itself", vec![pair(id)], "ok"),
        ("ICMP", vec![cidr("icmp", 3, 4, "10.0.0.0/8")], "ok"),
    ];
    for (name, rules, expected) in cases {
        assert_eq!(code(aws, allow(id, rules)).await, expected, "{name}");
    }
    let rules = aws.rules(id);
    assert_eq!(rules.len(), 3);
    assert!(
        rules
            .iter()
            .any(|rule| rule.source == RuleSource::Group(id.clone(), Some(ACCOUNT.into())))
    );
}

#[tokio::test(start_paused = true)]
async fn the_quota_of_rules_counts_each_family() {
    let world = FakeCluster::small(0);
    let (aws, id) = (&world.aws, &world.node_group);
    aws.quotas(|quotas| quotas.rules_per_security_group = 2);
    let v4 = |n: i32| cidr("tcp", n, n, "0.0.0.0/0");
    let v6 = |n: i32| cidr("tcp", n, n, "::/0");
    assert_eq!(code(aws, allow(id, vec![v4(1), v4(2), v6(1)])).await, "ok");
    assert_eq!(code(aws, allow(id, vec![v4(3)])).await, "RulesPerSecurityGroupLimitExceeded");
    assert_eq!(code(aws, allow(id, vec![pair(id)])).await, "RulesPerSecurityGroupLimitExceeded");
    assert_eq!(code(aws, allow(id, vec![v6(2)])).await, "ok");
}

#[tokio::test(start_paused = true)]
async fn a_missing_rule_fails_the_whole_revocation_except_in_a_default_vpc() {
    let world = FakeCluster::small(0);
    let (aws, id) = (&world.aws, &world.node_group);
    let (one, two) = (cidr("tcp", 1, 1, "0.0.0.0/0"), cidr("tcp", 2, 2, "0.0.0.0/0"));
    aws.ask(allow(id, vec![Rule { description: "text".into(), ..one.clone() }]))
        .await
        .unwrap();
    assert_eq!(
        code(aws, revoke(id, vec![one.clone(), two.clone()])).await,
        "InvalidPermission.NotFound"
    );
    assert_eq!(aws.rules(id).len(), 1);
    aws.configure(|knobs| knobs.default_vpc = true);
    assert_eq!(code(aws, revoke(id, vec![one, two])).await, "ok");
    assert_eq!(aws.rules(id), []);
}

#[tokio::test(start_paused = true)]
async fn a_group_stays_while_anything_depends_on_it() {
    let world = FakeCluster::small(1);
    let aws = &world.aws;
    assert_eq!(code(aws, delete(&world.node_group)).await, "DependencyViolation");

    let front = aws.security_group(&world.vpc, "front", &[]);
    aws.ask(allow(&world.node_group, vec![pair(&front)]))
        .await
        .unwrap();
    assert_eq!(code(aws, delete(&front)).await, "DependencyViolation");
    aws.ask(revoke(&world.node_group, vec![pair(&front)]))
        .await
        .unwrap();

    aws.configure(|knobs| knobs.interfaces_linger = Duration::from_secs(180));
    let request = CreateLoadBalancer {
        security_groups: vec![front.clone()],
        ..balancer(&world, "lb")
    };
    let arn = aws.ask(request).await.unwrap().arn;
    assert_eq!(code(aws, delete(&front)).await, "DependencyViolation");
    aws.ask(DeleteLoadBalancer { arn }).await.unwrap();
    tokio::time::advance(Duration::from_secs(179)).await;
    assert_eq!(code(aws, delete(&front)).await, "DependencyViolation");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(code(aws, delete(&front)).await, "ok");
    assert_eq!(code(aws, delete(&front)).await, "InvalidGroup.NotFound");
}

#[tokio::test(start_paused = true)]
async fn groups_are_found_by_id_and_filter() {
    let world = FakeCluster::small(0);
    let (aws, node) = (&world.aws, &world.node_group);
    let front = aws.security_group(&world.vpc, "front", &[]);
    aws.ask(allow(node, vec![pair(&front)])).await.unwrap();
    let filtered = |name: &str, value: &str| DescribeSecurityGroups {
        filters: vec![crate::api::Filter::new(name, [value])],
        ..Default::default()
    };
    let cases = [
        ("group-name", "front", 1),
        ("ip-permission.group-id", &*front, 1),
        ("ip-permission.group-id", &**node, 0),
        ("vpc-id", &*world.vpc, 3),
        ("tag-key", "kubernetes.io/cluster/test", 1),
    ];
    for (name, value, expected) in cases {
        assert_eq!(
            aws.ask(filtered(name, value)).await.unwrap().items.len(),
            expected,
            "{name}={value}"
        );
    }
    let by_id = |id: &str| DescribeSecurityGroups {
        ids: vec![node.clone(), id.into()],
        ..Default::default()
    };
    assert_eq!(code(aws, by_id(&front)).await, "ok");
    assert_eq!(code(aws, by_id("sg-0")).await, "InvalidGroup.NotFound");
}
