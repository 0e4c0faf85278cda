use super::*;

fn route(destination: &str, nexthop: &str) -> Route {
    Route { destination: destination.into(), nexthop: nexthop.into() }
}

fn many(count: usize) -> Vec<Route> {
    (0..count)
        .map(|n| route(&format!("10.8.{n}.0/24"), "10.0.0.9"))
        .collect()
}

#[test]
fn an_interface_takes_the_gateway_address_and_belongs_to_the_router() {
    let mut world = world();
    let port = ports::of_device(&world.state, &world.router)
        .into_iter()
        .find(|port| port.device_owner == ROUTER_INTERFACE)
        .unwrap()
        .clone();
    assert_eq!(port.fixed_ips[0].ip_address.to_string(), "10.0.0.1");
    assert_eq!(port.status, "ACTIVE");
    let deleted = ports::delete_by_caller(&mut world.state, &world.ctx, &port.id);
    assert_eq!(refused(deleted), (409, "ServicePortInUse".into()));
    let again = InterfaceRequest { subnet_id: Some(world.subnet.clone()), port_id: None };
    let again = router_interfaces::add(&mut world.state, &world.ctx, &world.router, &again);
    assert_eq!(refused(again), (400, "BadRequest".into()));
    assert_eq!(
        refused(routers::delete(&mut world.state, &world.ctx, &world.router)),
        (409, "RouterInUse".into())
    );
}

#[test]
fn a_port_can_be_an_interface_and_is_then_in_use() {
    let mut world = world();
    let other = network(&mut world.state, &world.ctx, "other", false);
    subnet(&mut world.state, &world.ctx, &other, "10.1.0.0/24");
    let port = PortCreate { network_id: other, ..Default::default() };
    let port = ports::create(&mut world.state, &world.ctx, port).unwrap();
    let interface = InterfaceRequest { subnet_id: None, port_id: Some(port.id.clone()) };
    let answer =
        router_interfaces::add(&mut world.state, &world.ctx, &world.router, &interface).unwrap();
    assert_eq!(answer.port_id, port.id);
    let again = router_interfaces::add(&mut world.state, &world.ctx, &world.router, &interface);
    assert_eq!(refused(again), (409, "PortInUse".into()));
    router_interfaces::remove(&mut world.state, &world.ctx, &world.router, &interface).unwrap();
    let gone = router_interfaces::remove(&mut world.state, &world.ctx, &world.router, &interface);
    assert_eq!(refused(gone), (404, "RouterInterfaceNotFound".into()));
}

#[test]
fn routes_are_added_and_removed_as_sets() {
    let mut world = world();
    let Fixture { state, ctx, router, .. } = &mut world;
    let one = route("10.8.0.0/24", "10.0.0.9");
    let two = route("10.8.0.0/24", "10.0.0.8");
    assert_eq!(
        extra_routes::add(state, ctx, router, vec![one.clone()])
            .unwrap()
            .routes,
        [one.clone()]
    );
    let added = extra_routes::add(state, ctx, router, vec![one.clone(), two.clone()]).unwrap();
    assert_eq!(added.routes, [one.clone(), two.clone()]);
    let removed =
        extra_routes::remove(state, ctx, router, &[one.clone(), route("10.9.0.0/24", "10.0.0.9")])
            .unwrap();
    assert_eq!(removed.routes, [two.clone()]);
    let revision = removed.standard.revision_number;
    let same = extra_routes::remove(state, ctx, router, &[one]).unwrap();
    assert_eq!(same.standard.revision_number, revision);
}

#[test]
fn routes_that_lead_nowhere_are_refused_and_change_nothing() {
    let mut world = world();
    let Fixture { state, ctx, router, .. } = &mut world;
    for (name, asked, kind) in [
        ("not connected", route("10.8.0.0/24", "10.7.0.9"), "InvalidRoutes"),
        ("own address", route("10.8.0.0/24", "10.0.0.1"), "InvalidRoutes"),
        ("host bits", route("10.8.0.1/24", "10.0.0.9"), "HTTPBadRequest"),
        ("no address", route("10.8.0.0/24", "gateway"), "HTTPBadRequest"),
    ] {
        let refusal =
            extra_routes::add(state, ctx, router, vec![route("10.6.0.0/24", "10.0.0.9"), asked]);
        assert_eq!(refused(refusal), (400, kind.to_owned()), "{name}");
        assert!(routers::get(state, ctx, router).unwrap().routes.is_empty(), "{name}");
    }
    let twice = vec![route("10.8.0.0/24", "10.0.0.9"); 2];
    assert_eq!(
        refused(extra_routes::replace(state, ctx, router, twice)),
        (400, "HTTPBadRequest".into())
    );
}

#[test]
fn a_next_hop_outside_is_connected_through_the_gateway() {
    let mut world = world();
    let hop = vec![route("10.8.0.0/24", "203.0.113.9")];
    extra_routes::add(&mut world.state, &world.ctx, &world.router, hop).unwrap();
}

#[test]
fn thirty_routes_are_the_most_unless_the_operator_set_another_number() {
    let mut world = world();
    let Fixture { state, ctx, router, .. } = &mut world;
    extra_routes::add(state, ctx, router, many(30)).unwrap();
    let more = extra_routes::add(state, ctx, router, vec![route("10.9.0.0/24", "10.0.0.9")]);
    assert_eq!(refused(more), (400, "RoutesExhausted".into()));
    assert_eq!(routers::get(state, ctx, router).unwrap().routes.len(), 30);
    Limits { routes: 31, ..Limits::default() }.set(state);
    extra_routes::add(state, ctx, router, vec![route("10.9.0.0/24", "10.0.0.9")]).unwrap();
}

#[test]
fn an_interface_that_a_route_needs_stays() {
    let mut world = world();
    let interface = InterfaceRequest { subnet_id: Some(world.subnet.clone()), port_id: None };
    let Fixture { state, ctx, router, .. } = &mut world;
    extra_routes::add(state, ctx, router, many(1)).unwrap();
    let removed = router_interfaces::remove(state, ctx, router, &interface);
    assert_eq!(refused(removed), (409, "RouterInterfaceInUseByRoute".into()));
    extra_routes::replace(state, ctx, router, Vec::new()).unwrap();
    router_interfaces::remove(state, ctx, router, &interface).unwrap();
    routers::delete(state, ctx, router).unwrap();
    assert!(state.neutron.ports.is_empty());
}

#[test]
fn the_gateway_is_an_external_network_and_can_be_taken_away() {
    let mut world = world();
    let gateway = |network: &str| RouterUpdate {
        external_gateway_info: Some(Some(GatewayRequest {
            network_id: Some(network.into()),
            ..Default::default()
        })),
        ..Default::default()
    };
    let inside = gateway(&world.inside);
    let Fixture { state, ctx, router, .. } = &mut world;
    assert_eq!(refused(routers::update(state, ctx, router, inside)), (400, "BadRequest".into()));
    let before = routers::get(state, ctx, router)
        .unwrap()
        .external_gateway_info
        .clone()
        .unwrap();
    assert_eq!(before.external_fixed_ips[0].ip_address.to_string(), "203.0.113.2");
    let none = RouterUpdate { external_gateway_info: Some(None), ..Default::default() };
    assert_eq!(
        routers::update(state, ctx, router, none)
            .unwrap()
            .external_gateway_info,
        None
    );
    assert!(
        !ports::of_device(state, router)
            .iter()
            .any(|port| port.device_owner == ROUTER_GATEWAY)
    );
}
