use ccm_aws::api::{
    EniId, Filter, InstanceId, RouteTableId, SubnetId, VpcId,
    ec2::{
        CreateRoute, CreateTags, DeleteRoute, DeleteTags, DescribeAvailabilityZones,
        DescribeInstances, DescribeNetworkInterfaces, DescribeRouteTables, DescribeSubnets,
        DescribeVpcs, ReplaceRoute, Route, RouteTable, RouteTarget,
    },
};
use ccm_testkit::moto::query_api::EC2;

use super::fixture::{RequestFixture, tags};

pub(crate) async fn zones(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let zones = rig.send(DescribeAvailabilityZones).await?;
    let a = zones
        .iter()
        .find(|zone| &*zone.name == "us-west-2a")
        .expect("the zone is there");
    assert_eq!((&*a.id, &*a.zone_type), ("usw2-az2", "availability-zone"));
    Ok(())
}

pub(crate) async fn subnets_and_vpcs(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (vpc, [a, b]) = rig.network().await?;
    let v6 = rig.fixture.ipv6_network(&vpc).await?;
    let found = rig
        .send(DescribeVpcs { ids: vec![vpc.id.as_str().into()], token: None })
        .await?;
    assert_eq!((found.items.len(), &*found.items[0].id), (1, &*vpc.id));
    assert_eq!(found.items[0].cidrs, ["10.0.0.0/16".parse()?, v6.parse()?]);

    let v6 = v6.replace("/56", "/64");
    rig.fixture
        .wire()
        .ask(EC2, "AssociateSubnetCidrBlock", [("SubnetId", &*a.id), ("Ipv6CidrBlock", &*v6)])
        .await?;
    let by_vpc = DescribeSubnets {
        filters: vec![Filter::new("vpc-id", [&*vpc.id])],
        ..DescribeSubnets::default()
    };
    let mut found = rig.send(by_vpc).await?.items;
    found.sort_by(|x, y| x.zone.cmp(&y.zone));
    let [subnet, other] = &found[..] else {
        anyhow::bail!("{found:?}")
    };
    assert_eq!((&*subnet.id, &*other.id), (&*a.id, &*b.id));
    assert_eq!((&*subnet.vpc, &*subnet.zone, subnet.free_ips), (&*vpc.id, "us-west-2a", 251));
    assert_eq!(subnet.cidr, Some("10.0.0.0/24".parse()?));
    assert_eq!((&subnet.ipv6_cidrs[..], &other.ipv6_cidrs[..]), (&[v6.parse()?][..], &[][..]));
    assert_eq!(subnet.tags, tags(&[("zone", "a")]));

    let by_id =
        |id: &str| DescribeSubnets { ids: vec![SubnetId::from(id)], ..DescribeSubnets::default() };
    assert_eq!(rig.send(by_id(&b.id)).await?.items, [other.clone()]);
    assert_eq!(rig.refused(by_id("subnet-0123456789abcdef0")).await?, "InvalidSubnetID.NotFound");
    let absent = DescribeVpcs { ids: vec![VpcId::from("vpc-0123456789abcdef0")], token: None };
    assert_eq!(rig.refused(absent).await?, "InvalidVpcID.NotFound");
    Ok(())
}

pub(crate) async fn interfaces(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (vpc, [subnet, _]) = rig.network().await?;
    let made = rig.fixture.instance(&subnet, "t3.small", &[], &[]).await?;
    let by = |name: &str, value: &str| DescribeNetworkInterfaces {
        filters: vec![Filter::new("vpc-id", [&*vpc.id]), Filter::new(name, [value])],
        token: None,
    };
    let found = rig.send(by("private-ip-address", &made.private_ip)).await?;
    let [interface] = &found.items[..] else {
        anyhow::bail!("{found:?}")
    };
    assert_eq!((&*interface.private_ip, &*interface.zone), (&*made.private_ip, &*subnet.zone));
    assert!(interface.id.starts_with("eni-"));
    assert_eq!(
        rig.send(by("private-ip-address", "10.0.0.250"))
            .await?
            .items,
        []
    );
    Ok(())
}

async fn table(rig: &RequestFixture<'_>, id: &str) -> anyhow::Result<RouteTable> {
    let request = DescribeRouteTables {
        ids: vec![RouteTableId::from(id)],
        ..DescribeRouteTables::default()
    };
    Ok(rig.send(request).await?.items.remove(0))
}

pub(crate) async fn route_tables(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (vpc, [a, _]) = rig.network().await?;
    let by_vpc = DescribeRouteTables {
        filters: vec![Filter::new("vpc-id", [&*vpc.id])],
        ..DescribeRouteTables::default()
    };
    let found = rig.send(by_vpc).await?.items;
    assert_eq!(found.len(), 3);
    let main: Vec<_> = found.iter().filter(|table| table.main).collect();
    assert_eq!(main.iter().map(|table| &*table.id).collect::<Vec<_>>(), [&*vpc.main_table]);
    let id = a.table.as_deref().expect("a public subnet has a table");
    let public = table(&rig, id).await?;
    assert_eq!(
        (&*public.vpc, &public.subnets[..], public.main),
        (&*vpc.id, &[SubnetId::from(&*a.id)][..], false)
    );
    let internet = public
        .routes
        .iter()
        .find(|route| route.destination == "0.0.0.0/0".parse().ok());
    assert_eq!(internet.and_then(|route| route.gateway.as_deref()), Some(&*vpc.gateway));
    assert!(
        public
            .routes
            .iter()
            .any(|route| route.gateway.as_deref() == Some("local"))
    );
    assert_eq!(
        rig.refused(DescribeRouteTables {
            ids: vec!["rtb-0123456789abcdef0".into()],
            ..Default::default()
        })
        .await?,
        "InvalidRouteTableID.NotFound"
    );
    Ok(())
}

pub(crate) async fn routes(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (vpc, [subnet, _]) = rig.network().await?;
    let one = rig.fixture.instance(&subnet, "t3.small", &[], &[]).await?;
    let two = rig.fixture.instance(&subnet, "t3.small", &[], &[]).await?;
    let id = InstanceId::from(two.id.as_str());
    let described = rig
        .send(DescribeInstances { ids: vec![id], ..Default::default() })
        .await?;
    let interface = described.items[0].interfaces[0].id.clone();
    let table_id = RouteTableId::from(vpc.main_table.as_str());
    for (destination, target) in [
        ("100.64.1.0/24", RouteTarget::Instance(one.id.as_str().into())),
        // AWS drops bits of a host.
        ("100.64.2.9/24", RouteTarget::Interface(interface.clone())),
        ("fd00:1::/64", RouteTarget::Interface(interface.clone())),
    ] {
        let request = CreateRoute {
            table: table_id.clone(),
            destination: destination.parse()?,
            target,
        };
        rig.send(request.clone()).await?;
        // moto has a second route to an interface, or for IPv6, without a word.
        if matches!(request.target, RouteTarget::Instance(_)) {
            assert_eq!(rig.refused(request).await?, "RouteAlreadyExists", "{destination}");
        }
    }
    let found = |table: &RouteTable, destination: &str| -> Option<Route> {
        table
            .routes
            .iter()
            .find(|route| route.destination == destination.parse().ok())
            .cloned()
    };
    let now = table(&rig, &table_id).await?;
    let route = found(&now, "100.64.1.0/24").expect("the route is there");
    assert_eq!((route.instance.as_deref(), route.blackhole), (Some(&*one.id), false));
    for destination in ["100.64.2.0/24", "fd00:1::/64"] {
        let route = found(&now, destination).expect("the route is there");
        assert_eq!(route.interface, Some(EniId::from(interface.as_str())), "{destination}");
    }

    let moved = RouteTarget::Instance(two.id.as_str().into());
    let destination = "100.64.1.0/24".parse()?;
    rig.send(ReplaceRoute { table: table_id.clone(), destination, target: moved.clone() })
        .await?;
    let route = found(&table(&rig, &table_id).await?, "100.64.1.0/24").expect("the route is there");
    assert_eq!(route.instance.as_deref(), Some(&*two.id));
    let absent = ReplaceRoute {
        table: table_id.clone(),
        destination: "100.64.9.0/24".parse()?,
        target: moved,
    };
    assert_eq!(rig.refused(absent).await?, "InvalidParameterValue");

    for destination in ["100.64.1.0/24", "fd00:1::/64"] {
        let request = DeleteRoute { table: table_id.clone(), destination: destination.parse()? };
        rig.send(request.clone()).await?;
        assert_eq!(rig.refused(request).await?, "InvalidRoute.NotFound");
        assert_eq!(found(&table(&rig, &table_id).await?, destination), None);
    }
    Ok(())
}

pub(crate) async fn object_tags(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (_, [a, b]) = rig.network().await?;
    let resources: Vec<Box<str>> = vec![a.id.as_str().into(), b.id.as_str().into()];
    rig.send(CreateTags {
        resources: resources.clone(),
        tags: tags(&[("k", "v"), ("empty", "")]),
    })
    .await?;
    rig.send(DeleteTags {
        resources: vec![a.id.as_str().into()],
        tags: tags(&[("k", "v"), ("zone", "b")]),
    })
    .await?;
    let mut found = rig
        .send(DescribeSubnets {
            ids: vec![a.id.as_str().into(), b.id.as_str().into()],
            ..Default::default()
        })
        .await?
        .items;
    found.sort_by(|x, y| x.zone.cmp(&y.zone));
    // A tag with another value stays.
    assert_eq!(found[0].tags, tags(&[("empty", ""), ("zone", "a")]));
    assert_eq!(found[1].tags, tags(&[("empty", ""), ("k", "v"), ("zone", "b")]));
    Ok(())
}
