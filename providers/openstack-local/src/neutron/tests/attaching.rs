use super::*;

fn update(world: &mut Fixture, id: &str, request: PortUpdate) -> Result<Port, ApiError> {
    ports::update(&mut world.state, &world.ctx, id, request)
}

fn pairs(count: u8) -> Vec<AddressPair> {
    (0..count)
        .map(|n| AddressPair { ip_address: format!("10.8.{n}.0/24"), mac_address: None })
        .collect()
}

#[test]
fn a_port_has_the_default_group_and_is_down_until_something_is_bound() {
    let mut world = world();
    let port = world.port();
    assert_eq!(port.security_groups, [security_groups::default_of(&world.state, "p").unwrap()]);
    assert_eq!((&*port.status, port.port_security_enabled), ("DOWN", Some(true)));
    let owner = PortUpdate {
        device_owner: Some(Some("compute:nova".into())),
        ..Default::default()
    };
    assert_eq!(update(&mut world, &port.id, owner).unwrap().status, "ACTIVE");
}

#[test]
fn address_pairs_take_the_ports_own_mac_and_are_at_most_ten() {
    let mut world = world();
    let port = world.port();
    let ten = PortUpdate { allowed_address_pairs: Some(pairs(10)), ..Default::default() };
    let changed = update(&mut world, &port.id, ten).unwrap();
    assert!(
        changed
            .allowed_address_pairs
            .iter()
            .all(|pair| pair.mac_address.as_ref() == Some(&port.mac_address))
    );
    let eleven = PortUpdate { allowed_address_pairs: Some(pairs(11)), ..Default::default() };
    assert_eq!(
        refused(update(&mut world, &port.id, eleven)),
        (400, "AllowedAddressPairExhausted".into())
    );
    let mut twice = pairs(1);
    twice.extend(pairs(1));
    let twice = PortUpdate { allowed_address_pairs: Some(twice), ..Default::default() };
    assert_eq!(
        refused(update(&mut world, &port.id, twice)),
        (400, "DuplicateAddressPairInRequest".into())
    );
}

#[test]
fn without_port_security_there_are_no_groups_and_no_pairs() {
    let mut world = world();
    let port = world.port();
    let off = PortUpdate { port_security_enabled: Some(false), ..Default::default() };
    assert_eq!(
        refused(update(&mut world, &port.id, off.clone())),
        (409, "PortSecurityPortHasSecurityGroup".into())
    );
    let off = PortUpdate { security_groups: Some(Vec::new()), ..off };
    update(&mut world, &port.id, off).unwrap();
    let pairs = PortUpdate { allowed_address_pairs: Some(pairs(1)), ..Default::default() };
    assert_eq!(
        refused(update(&mut world, &port.id, pairs)),
        (409, "AddressPairAndPortSecurityRequired".into())
    );
}

#[test]
fn a_change_counts_one_revision_and_no_change_none() {
    let mut world = world();
    let port = world.port();
    assert_eq!(port.standard.revision_number, 1);
    let named = PortUpdate { name: Some("a".into()), ..Default::default() };
    assert_eq!(
        update(&mut world, &port.id, named.clone())
            .unwrap()
            .standard
            .revision_number,
        2
    );
    assert_eq!(
        update(&mut world, &port.id, named)
            .unwrap()
            .standard
            .revision_number,
        2
    );
    let check =
        |expected| Resource::Port.check_revision(&world.state, &world.ctx, &port.id, expected);
    assert!(check(None).is_ok() && check(Some(2)).is_ok());
    assert_eq!(refused(check(Some(1))), (412, "RevisionNumberConstraintFailed".into()));
    assert_eq!(resource::parse_if_match("revision_number=7").unwrap(), 7);
    assert!(resource::parse_if_match("7").is_err());
}

#[test]
fn tags_are_a_set() {
    let mut world = world();
    let port = world.port();
    let mut add = |tag: &str| {
        Resource::Port
            .change_tags(&mut world.state, &world.ctx, &port.id, |tags| tags.push(tag.into()))
            .unwrap()
    };
    add("b");
    add("a");
    assert_eq!(add("b"), ["a", "b"]);
    Resource::Port
        .remove_tag(&mut world.state, &world.ctx, &port.id, "a")
        .unwrap();
    let gone = Resource::Port.remove_tag(&mut world.state, &world.ctx, &port.id, "a");
    assert_eq!(refused(gone), (404, "TagNotFound".into()));
}

#[test]
fn the_quota_is_a_conflict() {
    let mut world = world();
    let limit = QuotaUpdate { port: Some(2), ..Default::default() };
    assert_eq!(
        refused(quotas::update(&mut world.state, &world.ctx, "p", &limit)),
        (403, "PolicyNotAuthorized".into())
    );
    quotas::update(&mut world.state, &admin(), "p", &limit).unwrap();
    // The router's interface is the project's, too; its gateway is nobody's.
    world.port();
    let request = PortCreate { network_id: world.inside.clone(), ..Default::default() };
    assert_eq!(
        refused(ports::create(&mut world.state, &world.ctx, request)),
        (409, "OverQuota".into())
    );
    assert_eq!(
        quotas::details(&world.state, "p").port,
        QuotaDetail { limit: 2, used: 2, reserved: 0 }
    );
}

#[test]
fn a_trunk_shows_its_ports_on_the_parent_and_holds_them() {
    let mut world = world();
    let (parent, child) = (world.port(), world.port());
    let sub = |id: u32| SubPort {
        port_id: child.id.clone(),
        segmentation_id: Some(id),
        segmentation_type: None,
    };
    let request = TrunkCreate {
        port_id: parent.id.clone(),
        sub_ports: Some(vec![sub(7)]),
        ..Default::default()
    };
    let trunk = trunks::create(&mut world.state, &world.ctx, request).unwrap();
    let details = ports::show(&world.state, &world.ctx, &parent.id)
        .unwrap()
        .trunk_details
        .unwrap();
    assert_eq!(
        (details.sub_ports[0].segmentation_id, &*details.sub_ports[0].mac_address),
        (7, &*child.mac_address)
    );
    assert_eq!(
        ports::show(&world.state, &world.ctx, &child.id)
            .unwrap()
            .trunk_details,
        None
    );
    for (port, kind) in [(&parent, "PortInUseAsTrunkParent"), (&child, "PortInUseAsSubPort")] {
        assert_eq!(
            refused(ports::delete(&mut world.state, &world.ctx, &port.id)),
            (409, kind.into())
        );
    }
    assert_eq!(
        refused(trunks::add(&mut world.state, &world.ctx, &trunk.id, vec![sub(8)])),
        (409, "TrunkPortInUse".into())
    );
    trunks::delete(&mut world.state, &world.ctx, &trunk.id).unwrap();
    ports::delete(&mut world.state, &world.ctx, &parent.id).unwrap();
    ports::delete(&mut world.state, &world.ctx, &child.id).unwrap();
}

#[test]
fn rows_are_read_as_they_were_written() {
    use crate::state::Tables as _;

    let mut world = world();
    let (port, floating) = (world.port(), world.floating());
    let attach = FloatingIpUpdate::attach(&port.id);
    floating_ips::update(&mut world.state, &world.ctx, &floating.id, attach).unwrap();
    let trunk = TrunkCreate { port_id: port.id, ..Default::default() };
    trunks::create(&mut world.state, &world.ctx, trunk).unwrap();
    let mut read = CloudState::default();
    world.state.neutron.each_touched(&mut |table, key, row| {
        assert!(read.neutron.load(table, &row.unwrap()).unwrap(), "{table} {key}");
    });
    let (written, admin) = (&world.state, &admin());
    assert_eq!(networks::list(&read, admin), networks::list(written, admin));
    assert_eq!(subnets::list(&read, admin), subnets::list(written, admin));
    assert_eq!(ports::list(&read, admin), ports::list(written, admin));
    assert_eq!(routers::list(&read, admin), routers::list(written, admin));
    assert_eq!(floating_ips::list(&read, admin), floating_ips::list(written, admin));
    assert_eq!(security_groups::list(&read, admin), security_groups::list(written, admin));
    assert_eq!(trunks::list(&read, admin), trunks::list(written, admin));
}
