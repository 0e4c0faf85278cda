use ccm_aws::api::{
    LoadBalancerArn,
    elb::{
        AddElbTags, CreateLoadBalancer, DeleteLoadBalancer, DescribeElbTags,
        DescribeLoadBalancerAttributes, DescribeLoadBalancers, IpAddressType, LoadBalancer,
        LoadBalancerState, ModifyLoadBalancerAttributes, RemoveElbTags, Scheme, SetIpAddressType,
        SetSecurityGroups, SetSubnets, SubnetMapping,
    },
};
use ccm_testkit::moto::fixture::Subnet;

use super::fixture::{RequestFixture, tags};

pub(crate) fn mapping(subnet: &Subnet) -> SubnetMapping {
    SubnetMapping {
        subnet: subnet.id.as_str().into(),
        allocation: None,
        private_ipv4: None,
        ipv6: None,
        source_nat_prefix: None,
    }
}

pub(crate) fn wanted(name: &str, subnets: &[&Subnet]) -> CreateLoadBalancer {
    CreateLoadBalancer {
        name: name.into(),
        scheme: Scheme::InternetFacing,
        ip_address_type: IpAddressType::Ipv4,
        subnets: subnets.iter().map(|subnet| mapping(subnet)).collect(),
        security_groups: Vec::new(),
        ipv6_source_nat: None,
        tags: tags(&[("kubernetes.io/service-name", "ns/name")]),
    }
}

async fn by_name(rig: &RequestFixture<'_>, name: &str) -> anyhow::Result<LoadBalancer> {
    Ok(rig
        .send(DescribeLoadBalancers { names: vec![name.into()], ..Default::default() })
        .await?
        .items
        .remove(0))
}

pub(crate) async fn life(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (vpc, [a, b]) = rig.network().await?;
    let made = rig.send(wanted("nlb", &[&a])).await?;
    assert_eq!(
        (&*made.name, &*made.kind, made.scheme),
        ("nlb", "network", Some(Scheme::InternetFacing))
    );
    assert_eq!(made.state, Some(LoadBalancerState::Provisioning));
    assert!(made.created.is_some() && !made.dns_name.is_empty());
    let found = by_name(&rig, "nlb").await?;
    assert_eq!((&found.arn, found.vpc.as_deref()), (&made.arn, Some(&*vpc.id)));
    assert_eq!(
        (found.ip_address_type, &found.security_groups[..]),
        (Some(IpAddressType::Ipv4), &[][..])
    );
    let zones: Vec<_> = found
        .zones
        .iter()
        .map(|zone| (&*zone.zone, zone.subnet.as_deref()))
        .collect();
    assert_eq!(zones, [("us-west-2a", Some(&*a.id))]);
    assert_eq!(by_name(&rig, "nlb").await?.state, Some(LoadBalancerState::Active));
    let by_arn = DescribeLoadBalancers { arns: vec![made.arn.clone()], ..Default::default() };
    assert_eq!(rig.send(by_arn).await?.items[0].arn, made.arn);

    let internal = CreateLoadBalancer { scheme: Scheme::Internal, ..wanted("inside", &[&a, &b]) };
    assert_eq!(rig.send(internal).await?.scheme, Some(Scheme::Internal));
    let all = rig.send(DescribeLoadBalancers::default()).await?;
    assert_eq!((all.items.len(), all.next), (2, None));

    rig.send(DeleteLoadBalancer { arn: made.arn.clone() })
        .await?;
    rig.send(DeleteLoadBalancer { arn: made.arn.clone() })
        .await?;
    let absent = DescribeLoadBalancers { names: vec!["nlb".into()], ..Default::default() };
    assert_eq!(rig.refused(absent).await?, "LoadBalancerNotFound");
    assert_eq!(
        rig.refused(DescribeLoadBalancerAttributes { arn: made.arn })
            .await?,
        "LoadBalancerNotFound"
    );
    Ok(())
}

pub(crate) async fn settings(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (vpc, [a, b]) = rig.network().await?;
    let group = rig.fixture.security_group(&vpc, "front", &[]).await?;
    let other = rig.fixture.security_group(&vpc, "other", &[]).await?;
    let groups = CreateLoadBalancer {
        security_groups: vec![group.as_str().into()],
        ip_address_type: IpAddressType::Dualstack,
        ipv6_source_nat: Some(true),
        ..wanted("nlb", &[&a])
    };
    let made = rig.send(groups).await?;
    assert_eq!(
        (made.ip_address_type, &made.security_groups[..]),
        (Some(IpAddressType::Dualstack), &[group.as_str().into()][..])
    );
    let arn = made.arn;
    let zones = SetSubnets {
        arn: arn.clone(),
        subnets: vec![mapping(&a), mapping(&b)],
        ipv6_source_nat: None,
        ip_address_type: None,
    };
    rig.send(zones).await?;
    rig.send(SetIpAddressType { arn: arn.clone(), ip_address_type: IpAddressType::Ipv4 })
        .await?;
    let both = vec![group.as_str().into(), other.as_str().into()];
    let set = SetSecurityGroups {
        arn: arn.clone(),
        groups: both.clone(),
        private_link_rules: Some(false),
    };
    rig.send(set).await?;
    let found = by_name(&rig, "nlb").await?;
    assert_eq!((found.zones.len(), found.ip_address_type), (2, Some(IpAddressType::Ipv4)));
    assert_eq!(found.security_groups, both);
    let sent = rig.moto.overlay().take();
    let parameter = |action: &str, name: &str| {
        let request = sent.iter().find(|request| request.action == action);
        request
            .and_then(|request| request.parameter(name))
            .map(str::to_owned)
    };
    // What moto does not keep at least leaves.
    assert_eq!(
        parameter("CreateLoadBalancer", "EnablePrefixForIpv6SourceNat").as_deref(),
        Some("on")
    );
    let rules =
        parameter("SetSecurityGroups", "EnforceSecurityGroupInboundRulesOnPrivateLinkTraffic");
    assert_eq!(rules.as_deref(), Some("off"));
    Ok(())
}

pub(crate) async fn addresses(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (_, [a, b]) = rig.network().await?;
    let ip = rig.fixture.elastic_ip().await?;
    let subnets = vec![
        SubnetMapping { allocation: Some(ip.as_str().into()), ..mapping(&a) },
        SubnetMapping {
            private_ipv4: Some([10, 0, 1, 7].into()),
            ipv6: Some("fd00::7".parse()?),
            ..mapping(&b)
        },
    ];
    rig.send(CreateLoadBalancer { subnets, ..wanted("nlb", &[]) })
        .await?;
    let sent = rig.moto.overlay().take();
    let mappings: Vec<_> = sent[0]
        .parameters
        .iter()
        .filter(|(name, _)| name.starts_with("SubnetMappings"))
        .collect();
    let mappings: Vec<_> = mappings
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(
        mappings,
        [
            ("SubnetMappings.member.1.SubnetId", &*a.id),
            ("SubnetMappings.member.1.AllocationId", &*ip),
            ("SubnetMappings.member.2.SubnetId", &*b.id),
            ("SubnetMappings.member.2.PrivateIPv4Address", "10.0.1.7"),
            ("SubnetMappings.member.2.IPv6Address", "fd00::7"),
        ]
    );
    Ok(())
}

pub(crate) async fn attributes(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (_, [a, _]) = rig.network().await?;
    let arn = rig.send(wanted("nlb", &[&a])).await?.arn;
    let key = "load_balancing.cross_zone.enabled";
    let attributes = rig
        .send(DescribeLoadBalancerAttributes { arn: arn.clone() })
        .await?;
    assert_eq!(attributes.get(key).map(|value| &**value), Some("false"));
    let change = [(key.into(), "true".into())].into();
    rig.send(ModifyLoadBalancerAttributes { arn: arn.clone(), attributes: change })
        .await?;
    let attributes = rig
        .send(DescribeLoadBalancerAttributes { arn: arn.clone() })
        .await?;
    assert_eq!(attributes.get(key).map(|value| &**value), Some("true"));
    let change = [("no.such.attribute".into(), "true".into())].into();
    assert_eq!(
        rig.refused(ModifyLoadBalancerAttributes { arn, attributes: change })
            .await?,
        "InvalidConfigurationRequest"
    );
    Ok(())
}

pub(crate) async fn resource_tags(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (_, [a, b]) = rig.network().await?;
    let one = rig.send(wanted("one", &[&a])).await?.arn;
    let two = rig.send(wanted("two", &[&b])).await?.arn;
    let arns = |of: &[&LoadBalancerArn]| {
        of.iter()
            .map(|arn| Box::from(arn.as_str()))
            .collect::<Vec<_>>()
    };
    rig.send(AddElbTags {
        arns: arns(&[&one, &two]),
        tags: tags(&[("k", "v"), ("x", "")]),
    })
    .await?;
    rig.send(RemoveElbTags { arns: arns(&[&one]), keys: vec!["k".into(), "absent".into()] })
        .await?;
    let mut found = rig
        .send(DescribeElbTags { arns: arns(&[&one, &two]) })
        .await?;
    found.sort_by_key(|(arn, _)| *arn != Box::from(one.as_str()));
    let name = ("kubernetes.io/service-name", "ns/name");
    assert_eq!(found[0], (one.as_str().into(), tags(&[name, ("x", "")])));
    assert_eq!(found[1], (two.as_str().into(), tags(&[name, ("k", "v"), ("x", "")])));
    Ok(())
}
