use ccm_aws::api::{
    Filter, SecurityGroupId, VpcId,
    ec2::{
        AuthorizeSecurityGroupIngress, CreateSecurityGroup, DeleteSecurityGroup,
        DescribeSecurityGroups, RevokeSecurityGroupIngress, Rule, RuleSource, SecurityGroup,
    },
};
use ccm_testkit::moto::query_api::EC2;

use super::fixture::{RequestFixture, tags};

fn rule(protocol: &str, ports: Option<(i32, i32)>, source: RuleSource, description: &str) -> Rule {
    Rule {
        protocol: protocol.into(),
        ports,
        source,
        description: description.into(),
    }
}

async fn group(rig: &RequestFixture<'_>, id: &SecurityGroupId) -> anyhow::Result<SecurityGroup> {
    Ok(rig
        .send(DescribeSecurityGroups { ids: vec![id.clone()], ..Default::default() })
        .await?
        .items
        .remove(0))
}

fn wanted(vpc: &str) -> CreateSecurityGroup {
    CreateSecurityGroup {
        name: "k8s-ns-name-0123456789".into(),
        description: "[k8s] Managed SecurityGroup for LoadBalancer".into(),
        vpc: VpcId::from(vpc),
        tags: tags(&[("kubernetes.io/cluster/c", "owned")]),
    }
}

pub(crate) async fn life(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (vpc, _) = rig.network().await?;
    let id = rig.send(wanted(&vpc.id)).await?;
    assert_eq!(rig.refused(wanted(&vpc.id)).await?, "InvalidGroup.Duplicate");
    let found = group(&rig, &id).await?;
    assert_eq!((&*found.name, found.vpc.as_deref()), ("k8s-ns-name-0123456789", Some(&*vpc.id)));
    assert_eq!(&*found.description, "[k8s] Managed SecurityGroup for LoadBalancer");
    assert_eq!((found.tags.clone(), &found.ingress[..]), (wanted("").tags, &[][..]));
    let filters = vec![
        Filter::new("group-name", [&*found.name]),
        Filter::new("vpc-id", [&*vpc.id]),
        Filter::new("tag:kubernetes.io/cluster/c", ["owned"]),
    ];
    assert_eq!(
        rig.send(DescribeSecurityGroups { filters, ..Default::default() })
            .await?
            .items,
        [found]
    );
    rig.send(DeleteSecurityGroup { id: id.clone() }).await?;
    assert_eq!(rig.refused(DeleteSecurityGroup { id: id.clone() }).await?, "InvalidGroup.NotFound");
    let absent = DescribeSecurityGroups { ids: vec![id], ..Default::default() };
    assert_eq!(rig.refused(absent).await?, "InvalidGroup.NotFound");
    Ok(())
}

pub(crate) async fn rules(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (vpc, _) = rig.network().await?;
    let id = rig.send(wanted(&vpc.id)).await?;
    let other = SecurityGroupId::from(
        rig.fixture
            .security_group(&vpc, "other", &[])
            .await?
            .as_str(),
    );
    let list = [("PrefixListName", "l"), ("MaxEntries", "1"), ("AddressFamily", "IPv4")];
    let list = rig
        .fixture
        .wire()
        .ask(EC2, "CreateManagedPrefixList", list)
        .await?
        .text("prefixListId")?;
    let all = vec![
        rule("tcp", Some((80, 80)), RuleSource::Cidr("10.1.0.0/16".parse()?), "one"),
        rule("tcp", Some((80, 80)), RuleSource::Cidr("10.2.0.0/16".parse()?), ""),
        rule("udp", Some((53, 60)), RuleSource::Cidr("fd00::/8".parse()?), "six"),
        rule("icmp", Some((3, 4)), RuleSource::Cidr("0.0.0.0/0".parse()?), "mtu"),
        rule("tcp", Some((30000, 32767)), RuleSource::Group(other.clone(), None), "nodes"),
        rule("tcp", Some((443, 443)), RuleSource::PrefixList(list.into()), ""),
        rule("-1", None, RuleSource::Cidr("10.3.0.0/16".parse()?), "all"),
    ];
    let authorize =
        |rules: &[Rule]| AuthorizeSecurityGroupIngress { id: id.clone(), rules: rules.to_vec() };
    rig.send(authorize(&all)).await?;
    assert_eq!(rig.refused(authorize(&all[..1])).await?, "InvalidPermission.Duplicate");
    let mut found = group(&rig, &id).await?.ingress;
    for rule in &mut found {
        // The answer names the account of a group.
        if let RuleSource::Group(_, owner) = &mut rule.source {
            assert!(owner.take().is_some());
        }
    }
    let sorted = |mut rules: Vec<Rule>| {
        rules.sort();
        rules
    };
    assert_eq!(sorted(found), sorted(all.clone()));

    let referring = vec![Filter::new("ip-permission.group-id", [&*other])];
    let referring = rig
        .send(DescribeSecurityGroups { filters: referring, ..Default::default() })
        .await?
        .items;
    assert_eq!(referring.iter().map(|group| &*group.id).collect::<Vec<_>>(), [&*id]);

    // With what the answer says, the account included.
    for at in (0..all.len()).rev() {
        let rules = group(&rig, &id).await?.ingress;
        assert_eq!(rules.len(), at + 1);
        let last = RevokeSecurityGroupIngress { id: id.clone(), rules: vec![rules[at].clone()] };
        rig.send(last.clone()).await?;
        assert_eq!(rig.refused(last).await?, "InvalidPermission.NotFound");
    }
    Ok(())
}
