mod addresses;
mod attaching;
mod floating;
mod groups;
mod http;
mod routing;

use crate::api::neutron::*;

use super::*;
use crate::state::{ApiError, CloudState, RequestContext};

fn ctx(project: &str) -> RequestContext {
    RequestContext {
        now: "2026-01-01T00:00:00Z".parse().unwrap(),
        project: project.into(),
        user: "u".into(),
        admin: false,
    }
}

fn admin() -> RequestContext {
    RequestContext { admin: true, ..ctx("admin") }
}

/// Returns status and kind of a refusal.
fn refused<T: std::fmt::Debug>(result: Result<T, ApiError>) -> (u16, String) {
    let error = result.unwrap_err();
    (error.status.as_u16(), error.kind.into_owned())
}

/// A network inside with a subnet, a network outside with a subnet, and a router between the two.
struct Fixture {
    state: CloudState,
    ctx: RequestContext,
    inside: String,
    subnet: String,
    outside: String,
    router: String,
}

fn network(state: &mut CloudState, ctx: &RequestContext, name: &str, external: bool) -> String {
    let request = NetworkCreate {
        name: Some(name.into()),
        external: external.then_some(true),
        ..Default::default()
    };
    networks::create(state, ctx, request).unwrap().id
}

fn subnet_request(network: &str, cidr: &str) -> SubnetCreate {
    let ip_version = if cidr.contains(':') { 6 } else { 4 };
    SubnetCreate {
        network_id: network.into(),
        ip_version,
        cidr: Some(cidr.into()),
        ..Default::default()
    }
}

fn subnet(state: &mut CloudState, ctx: &RequestContext, network: &str, cidr: &str) -> String {
    subnets::create(state, ctx, subnet_request(network, cidr))
        .unwrap()
        .id
}

fn world() -> Fixture {
    let (mut state, ctx) = (CloudState::default(), ctx("p"));
    let inside = network(&mut state, &ctx, "inside", false);
    let subnet_id = subnet(&mut state, &ctx, &inside, "10.0.0.0/24");
    let outside = network(&mut state, &admin(), "outside", true);
    subnet(&mut state, &admin(), &outside, "203.0.113.0/28");
    let gateway = GatewayRequest { network_id: Some(outside.clone()), ..Default::default() };
    let request = RouterCreate { external_gateway_info: Some(gateway), ..Default::default() };
    let router = routers::create(&mut state, &ctx, request).unwrap().id;
    let interface = InterfaceRequest { subnet_id: Some(subnet_id.clone()), port_id: None };
    router_interfaces::add(&mut state, &ctx, &router, &interface).unwrap();
    Fixture { state, ctx, inside, subnet: subnet_id, outside, router }
}

impl Fixture {
    fn port(&mut self) -> Port {
        let request = PortCreate { network_id: self.inside.clone(), ..Default::default() };
        ports::create(&mut self.state, &self.ctx, request).unwrap()
    }

    fn floating(&mut self) -> FloatingIp {
        let request = FloatingIpCreate {
            floating_network_id: self.outside.clone(),
            ..Default::default()
        };
        floating_ips::create(&mut self.state, &self.ctx, request).unwrap()
    }
}
