use super::*;

fn first_address(state: &mut CloudState, ctx: &RequestContext, network: &str) -> String {
    let request = PortCreate { network_id: network.into(), ..Default::default() };
    ports::create(state, ctx, request).unwrap().fixed_ips[0]
        .ip_address
        .to_string()
}

#[test]
fn a_subnet_gets_its_gateway_and_pools_from_its_range() {
    let (mut state, ctx) = (CloudState::default(), ctx("p"));
    let id = network(&mut state, &ctx, "n", false);
    for (cidr, gateway, start, end) in [
        ("10.0.0.0/24", "10.0.0.1", "10.0.0.2", "10.0.0.254"),
        ("127.10.0.0/28", "127.10.0.1", "127.10.0.2", "127.10.0.14"),
        ("192.0.2.0/31", "192.0.2.0", "192.0.2.1", "192.0.2.1"),
        ("fd00::/64", "fd00::1", "fd00::2", "fd00::ffff:ffff:ffff:ffff"),
    ] {
        let subnet = subnets::create(&mut state, &ctx, subnet_request(&id, cidr)).unwrap();
        assert_eq!(subnet.gateway_ip.unwrap().to_string(), gateway, "{cidr}");
        let [pool] = subnet.allocation_pools.as_slice() else {
            panic!("{cidr}: {:?}", subnet.allocation_pools)
        };
        assert_eq!(
            (pool.start.to_string(), pool.end.to_string()),
            (start.into(), end.into()),
            "{cidr}"
        );
    }
}

#[test]
fn a_gateway_in_the_middle_splits_the_pool_and_none_leaves_it_whole() {
    let (mut state, ctx) = (CloudState::default(), ctx("p"));
    let id = network(&mut state, &ctx, "n", false);
    let middle = SubnetCreate {
        gateway_ip: Some(Some("10.0.0.9".parse().unwrap())),
        ..subnet_request(&id, "10.0.0.0/28")
    };
    let pools = subnets::create(&mut state, &ctx, middle)
        .unwrap()
        .allocation_pools;
    let shown: Vec<_> = pools
        .iter()
        .map(|pool| format!("{}-{}", pool.start, pool.end))
        .collect();
    assert_eq!(shown, ["10.0.0.1-10.0.0.8", "10.0.0.10-10.0.0.14"]);
    let none = SubnetCreate { gateway_ip: Some(None), ..subnet_request(&id, "10.0.1.0/28") };
    let subnet = subnets::create(&mut state, &ctx, none).unwrap();
    assert_eq!((subnet.gateway_ip, subnet.allocation_pools.len()), (None, 1));
}

#[test]
fn ranges_that_make_no_subnet_are_refused() {
    let (mut state, ctx) = (CloudState::default(), ctx("p"));
    let id = network(&mut state, &ctx, "n", false);
    subnet(&mut state, &ctx, &id, "10.0.0.0/24");
    let pool = |start: &str, end: &str| {
        Some(vec![AllocationPool { start: start.parse().unwrap(), end: end.parse().unwrap() }])
    };
    let other = || subnet_request(&id, "10.9.0.0/24");
    let cases = [
        ("host bits", subnet_request(&id, "10.1.0.1/24"), (400, "HTTPBadRequest")),
        ("no range", subnet_request(&id, "nonsense"), (400, "HTTPBadRequest")),
        ("overlap", subnet_request(&id, "10.0.0.128/25"), (400, "InvalidInput")),
        (
            "version",
            SubnetCreate { ip_version: 6, ..subnet_request(&id, "10.1.0.0/24") },
            (400, "InvalidInput"),
        ),
        (
            "pool outside",
            SubnetCreate { allocation_pools: pool("10.8.0.2", "10.8.0.9"), ..other() },
            (400, "OutOfBoundsAllocationPool"),
        ),
        (
            "pool turned",
            SubnetCreate { allocation_pools: pool("10.9.0.9", "10.9.0.2"), ..other() },
            (400, "InvalidAllocationPool"),
        ),
        (
            "gateway in pool",
            SubnetCreate { allocation_pools: pool("10.9.0.1", "10.9.0.9"), ..other() },
            (409, "GatewayConflictWithAllocationPools"),
        ),
        (
            "mode on IPv4",
            SubnetCreate { ipv6_address_mode: Some("slaac".into()), ..other() },
            (400, "InvalidInput"),
        ),
    ];
    for (name, request, (status, kind)) in cases {
        assert_eq!(
            refused(subnets::create(&mut state, &ctx, request)),
            (status, kind.to_owned()),
            "{name}"
        );
    }
}

#[test]
fn ports_take_the_lowest_free_address_of_the_pool() {
    let mut world = world();
    let (one, two) = (world.port(), world.port());
    assert_eq!(one.fixed_ips[0].ip_address.to_string(), "10.0.0.2");
    assert_eq!(two.fixed_ips[0].ip_address.to_string(), "10.0.0.3");
    ports::delete(&mut world.state, &world.ctx, &one.id).unwrap();
    assert_eq!(world.port().fixed_ips[0].ip_address.to_string(), "10.0.0.2");
}

#[test]
fn a_port_has_an_address_of_each_ip_version() {
    let mut world = world();
    subnet(&mut world.state, &world.ctx, &world.inside.clone(), "fd00::/64");
    let versions: Vec<bool> = world
        .port()
        .fixed_ips
        .iter()
        .map(|ip| ip.ip_address.is_ipv4())
        .collect();
    assert_eq!(versions, [true, false]);
}

#[test]
fn hosts_on_a_slaac_subnet_have_the_address_that_they_make_up() {
    let (mut state, ctx) = (CloudState::default(), ctx("p"));
    let id = network(&mut state, &ctx, "n", false);
    let slaac = Some("slaac".to_owned());
    let request = SubnetCreate {
        ipv6_address_mode: slaac.clone(),
        ipv6_ra_mode: slaac,
        ..subnet_request(&id, "2001:db8::/64")
    };
    subnets::create(&mut state, &ctx, request).unwrap();
    let request = PortCreate {
        network_id: id,
        mac_address: Some("fa:16:3e:01:02:03".into()),
        ..Default::default()
    };
    let port = ports::create(&mut state, &ctx, request).unwrap();
    assert_eq!(port.fixed_ips[0].ip_address.to_string(), "2001:db8::f816:3eff:fe01:203");
}

#[test]
fn a_range_without_a_free_address_gives_a_conflict() {
    let (mut state, ctx) = (CloudState::default(), ctx("p"));
    let id = network(&mut state, &ctx, "n", false);
    subnet(&mut state, &ctx, &id, "10.0.0.0/30");
    assert_eq!(first_address(&mut state, &ctx, &id), "10.0.0.2");
    let request = PortCreate { network_id: id, ..Default::default() };
    assert_eq!(
        refused(ports::create(&mut state, &ctx, request)),
        (409, "IpAddressGenerationFailure".into())
    );
}

#[test]
fn addresses_asked_for_must_be_on_the_network_and_free() {
    let mut world = world();
    let ask = |world: &mut Fixture, address: &str, subnet: Option<&str>| {
        let fixed = FixedIpRequest {
            ip_address: Some(address.parse().unwrap()),
            subnet_id: subnet.map(str::to_owned),
        };
        let request = PortCreate {
            network_id: world.inside.clone(),
            fixed_ips: Some(vec![fixed]),
            ..Default::default()
        };
        ports::create(&mut world.state, &world.ctx, request)
    };
    assert_eq!(ask(&mut world, "10.0.0.77", None).unwrap().fixed_ips[0].subnet_id, world.subnet);
    assert_eq!(
        refused(ask(&mut world, "10.0.0.77", None)),
        (409, "IpAddressAlreadyAllocated".into())
    );
    assert_eq!(refused(ask(&mut world, "10.0.7.1", None)), (400, "InvalidIpForNetwork".into()));
    let own = world.subnet.clone();
    assert_eq!(
        refused(ask(&mut world, "10.0.7.1", Some(&own))),
        (400, "InvalidIpForSubnet".into())
    );
    assert_eq!(refused(ask(&mut world, "10.0.0.78", Some("none"))), (400, "InvalidInput".into()));
}

#[test]
fn networks_and_subnets_in_use_stay() {
    let mut world = world();
    let port = world.port();
    let (inside, subnet) = (world.inside.clone(), world.subnet.clone());
    assert_eq!(
        refused(networks::delete(&mut world.state, &world.ctx, &inside)),
        (409, "NetworkInUse".into())
    );
    assert_eq!(
        refused(subnets::delete(&mut world.state, &world.ctx, &subnet)),
        (409, "SubnetInUse".into())
    );
    ports::delete(&mut world.state, &world.ctx, &port.id).unwrap();
    let interface = InterfaceRequest { subnet_id: Some(subnet.clone()), port_id: None };
    router_interfaces::remove(&mut world.state, &world.ctx, &world.router.clone(), &interface)
        .unwrap();
    networks::delete(&mut world.state, &world.ctx, &inside).unwrap();
    assert!(world.state.neutron.subnets.get(&subnet).is_none());
}

#[test]
fn projects_see_their_own_and_what_is_shared_or_outside() {
    let mut world = world();
    let other = ctx("q");
    let seen: Vec<_> = networks::list(&world.state, &other)
        .into_iter()
        .map(|network| network.name)
        .collect();
    assert_eq!(seen, ["outside"]);
    assert!(subnets::list(&world.state, &other).is_empty());
    let inside = world.inside.clone();
    assert_eq!(
        refused(networks::show(&world.state, &other, &inside)),
        (404, "NetworkNotFound".into())
    );
    let outside = world.outside.clone();
    assert_eq!(
        refused(networks::delete(&mut world.state, &other, &outside)),
        (403, "PolicyNotAuthorized".into())
    );
}
