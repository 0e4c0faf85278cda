use super::*;

fn update(
    world: &mut Fixture,
    id: &str,
    request: FloatingIpUpdate,
) -> Result<FloatingIp, ApiError> {
    floating_ips::update(&mut world.state, &world.ctx, id, request)
}

#[test]
fn a_floating_ip_leads_to_a_port_and_outlives_it() {
    let mut world = world();
    let (port, floating) = (world.port(), world.floating());
    assert_eq!(
        (&*floating.status, floating.floating_ip_address.unwrap().to_string()),
        ("DOWN", "203.0.113.3".into())
    );
    let attached = update(&mut world, &floating.id, FloatingIpUpdate::attach(&port.id)).unwrap();
    assert_eq!(attached.fixed_ip_address, Some(port.fixed_ips[0].ip_address));
    assert_eq!((&*attached.status, attached.router_id), ("ACTIVE", Some(world.router.clone())));
    assert_eq!(attached.port_details.unwrap().mac_address, port.mac_address);
    ports::delete(&mut world.state, &world.ctx, &port.id).unwrap();
    let left = floating_ips::show(&world.state, &world.ctx, &floating.id).unwrap();
    assert_eq!(
        (left.port_id, left.fixed_ip_address, left.router_id, &*left.status),
        (None, None, None, "DOWN")
    );
}

#[test]
fn null_and_an_empty_body_detach_but_a_description_alone_does_not() {
    let mut world = world();
    let (port, floating) = (world.port(), world.floating());
    let empty = FloatingIpUpdate::default();
    let text = FloatingIpUpdate { description: Some("d".into()), ..Default::default() };
    for (name, request, stays) in [
        ("null", FloatingIpUpdate::detach(), false),
        ("empty", empty, false),
        ("text", text, true),
    ] {
        update(&mut world, &floating.id, FloatingIpUpdate::attach(&port.id)).unwrap();
        assert_eq!(
            update(&mut world, &floating.id, request)
                .unwrap()
                .port_id
                .is_some(),
            stays,
            "{name}"
        );
    }
}

#[test]
fn an_address_inside_has_one_floating_ip_of_a_network() {
    let mut world = world();
    let (port, one, two) = (world.port(), world.floating(), world.floating());
    update(&mut world, &one.id, FloatingIpUpdate::attach(&port.id)).unwrap();
    update(&mut world, &one.id, FloatingIpUpdate::attach(&port.id)).unwrap();
    let taken = update(&mut world, &two.id, FloatingIpUpdate::attach(&port.id));
    assert_eq!(refused(taken), (409, "FloatingIPPortAlreadyAssociated".into()));
}

#[test]
fn a_port_behind_no_router_cannot_be_reached() {
    let mut world = world();
    let other = network(&mut world.state, &world.ctx, "other", false);
    subnet(&mut world.state, &world.ctx, &other, "10.1.0.0/24");
    let port = PortCreate { network_id: other, ..Default::default() };
    let port = ports::create(&mut world.state, &world.ctx, port).unwrap();
    let floating = world.floating();
    let attached = update(&mut world, &floating.id, FloatingIpUpdate::attach(port.id));
    assert_eq!(refused(attached), (404, "ExternalGatewayForFloatingIPNotFound".into()));
}

#[test]
fn what_a_floating_ip_needs_stays() {
    let mut world = world();
    let (port, floating) = (world.port(), world.floating());
    update(&mut world, &floating.id, FloatingIpUpdate::attach(&port.id)).unwrap();
    let interface = InterfaceRequest { subnet_id: Some(world.subnet.clone()), port_id: None };
    let Fixture { state, ctx, router, .. } = &mut world;
    let removed = router_interfaces::remove(state, ctx, router, &interface);
    assert_eq!(refused(removed), (409, "RouterInterfaceInUseByFloatingIP".into()));
    let none = RouterUpdate { external_gateway_info: Some(None), ..Default::default() };
    let removed = routers::update(state, ctx, router, none);
    assert_eq!(refused(removed), (409, "RouterExternalGatewayInUseByFloatingIp".into()));
}

#[test]
fn an_address_is_given_back_and_asking_for_one_is_for_administrators() {
    let mut world = world();
    let one = world.floating();
    floating_ips::delete(&mut world.state, &world.ctx, &one.id).unwrap();
    assert_eq!(world.floating().floating_ip_address, one.floating_ip_address);
    let this = FloatingIpCreate {
        floating_network_id: world.outside.clone(),
        floating_ip_address: Some("203.0.113.9".parse().unwrap()),
        ..Default::default()
    };
    let refusal = floating_ips::create(&mut world.state, &world.ctx, this.clone());
    assert_eq!(refused(refusal), (403, "PolicyNotAuthorized".into()));
    let made = floating_ips::create(&mut world.state, &admin(), this.clone()).unwrap();
    assert_eq!(made.floating_ip_address, this.floating_ip_address);
    let inside = FloatingIpCreate {
        floating_network_id: world.inside.clone(),
        ..Default::default()
    };
    assert_eq!(
        refused(floating_ips::create(&mut world.state, &world.ctx, inside)),
        (400, "BadRequest".into())
    );
}

#[test]
fn the_ports_behind_floating_ips_and_gateways_are_hidden() {
    let mut world = world();
    world.floating();
    let owners: Vec<_> = ports::list(&world.state, &world.ctx)
        .into_iter()
        .map(|port| port.device_owner)
        .collect();
    assert_eq!(owners, [ROUTER_INTERFACE]);
    assert_eq!(ports::list(&world.state, &admin()).len(), 3);
}
