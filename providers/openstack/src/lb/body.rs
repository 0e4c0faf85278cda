//! Bodies of requests that create something.

use openstack_api::octavia::{
    HealthMonitorCreate, LbAlgorithm, ListenerCreate, ListenerProtocol, LoadBalancerCreate, MemberCreate, MonitorType,
    PoolCreate, PoolProtocol, SessionPersistence,
};

use super::{
    features::Features,
    members::DesiredMember,
    model::{DesiredListener, DesiredLoadBalancer, DesiredMonitor, MonitorKind},
    names,
};

/// Header with the client's address.
pub(super) const FORWARDED_FOR: &str = "X-Forwarded-For";
/// Path where kube-proxy reports whether it has endpoints.
const HEALTH_PATH: &str = "/healthz";

/// Returns the body of a listener without its pool. `name`: of the load balancer, which is part of the names of
/// children.
pub(super) fn listener(wanted: &DesiredListener, name: &str, features: Features) -> ListenerCreate {
    let timeout = |pick: fn(&super::model::Timeouts) -> i32| {
        wanted.timeouts.as_ref().map(|timeouts| pick(timeouts).unsigned_abs())
    };
    ListenerCreate {
        name: Some(names::listener(wanted.index, name).into()),
        protocol: Some(ListenerProtocol::from(wanted.protocol.as_str())),
        protocol_port: wanted.port,
        connection_limit: Some(wanted.connection_limit.into()),
        default_tls_container_ref: wanted.tls_container.as_deref().map(Into::into),
        insert_headers: wanted.forwarded_for.then(|| [(FORWARDED_FOR.into(), "true".into())].into()),
        timeout_client_data: timeout(|timeouts| timeouts.client_data),
        timeout_member_connect: timeout(|timeouts| timeouts.member_connect),
        timeout_member_data: timeout(|timeouts| timeouts.member_data),
        timeout_tcp_inspect: timeout(|timeouts| timeouts.tcp_inspect),
        tags: features.tags.then(|| vec![name.into()]),
        allowed_cidrs: wanted.allowed.as_ref().map(|nets| nets.iter().map(ToString::to_string).collect()),
        ..ListenerCreate::default()
    }
}

/// Returns the body of a pool without members and monitor.
pub(super) fn pool(wanted: &DesiredListener, name: &str) -> PoolCreate {
    PoolCreate {
        name: Some(names::pool(wanted.index, name).into()),
        protocol: Some(PoolProtocol::from(wanted.pool.protocol.as_str())),
        lb_algorithm: Some(LbAlgorithm::from(&*wanted.pool.method)),
        session_persistence: wanted.pool.session_persistence.then_some(SessionPersistence::SOURCE_IP),
        ..PoolCreate::default()
    }
}

/// Returns the body of a monitor.
pub(super) fn monitor(wanted: &DesiredMonitor, index: usize, name: &str) -> HealthMonitorCreate {
    let http = |text: &str| (wanted.kind == MonitorKind::Http).then(|| text.to_owned());
    let retries = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
    HealthMonitorCreate {
        name: Some(names::monitor(index, name).into()),
        kind: Some(MonitorType::from(wanted.kind.as_str())),
        delay: wanted.delay,
        timeout: wanted.timeout,
        max_retries: retries(wanted.max_retries),
        max_retries_down: Some(retries(wanted.max_retries_down)),
        url_path: http(HEALTH_PATH),
        http_method: http("GET"),
        expected_codes: http("200"),
        ..HealthMonitorCreate::default()
    }
}

/// Returns the body of a member. `serial`: it is created alone, which determines its name.
pub(super) fn member(wanted: &DesiredMember, subnet: Option<&str>, serial: bool) -> MemberCreate {
    let address = wanted.address.to_string();
    let name = if serial { names::member(&wanted.node, &address, wanted.port) } else { names::truncate(&wanted.node) };
    MemberCreate {
        name: Some(name.into()),
        address,
        protocol_port: wanted.port,
        subnet_id: subnet.map(Into::into),
        monitor_port: wanted.monitor_port,
        ..MemberCreate::default()
    }
}

/// Returns the body of a load balancer: with all its children where the driver takes that, else without any. `members`:
/// by listener. `subnet`: of the VIP, if one was looked up.
pub(super) fn load_balancer(
    wanted: &DesiredLoadBalancer,
    members: &[Vec<DesiredMember>],
    subnet: Option<&str>,
    features: Features,
    serial: bool,
) -> LoadBalancerCreate {
    let front = &wanted.create_settings;
    let own = |id: &Option<Box<str>>| id.as_deref().map(String::from);
    let port = own(&front.port);
    let vip_subnet = own(&front.subnet).or_else(|| subnet.map(Into::into)).filter(|_| port.is_none());
    let vip_network = own(&front.network).filter(|_| port.is_none());
    let member_subnet = wanted.member_subnet.as_deref().or(wanted.vip_subnet.as_deref()).or(vip_subnet.as_deref());
    let populated = |(listener_wanted, members): (&DesiredListener, &Vec<DesiredMember>)| {
        let pool = PoolCreate {
            members: members.iter().map(|wanted| member(wanted, member_subnet, false)).collect(),
            healthmonitor: listener_wanted
                .pool
                .monitor
                .as_ref()
                .map(|wanted_monitor| monitor(wanted_monitor, listener_wanted.index, &wanted.name)),
            ..pool(listener_wanted, &wanted.name)
        };
        ListenerCreate { default_pool: Some(pool), ..listener(listener_wanted, &wanted.name, features) }
    };
    let listeners = if serial { Vec::new() } else { wanted.listeners.iter().zip(members).map(populated).collect() };
    LoadBalancerCreate {
        name: Some(wanted.name.to_string()),
        description: Some(wanted.description.to_string()),
        admin_state_up: Some(true),
        provider: Some(front.driver.to_string()),
        tags: features.tags.then(|| vec![wanted.name.to_string()]),
        flavor_id: own(&front.flavor),
        availability_zone: own(&front.availability_zone),
        vip_port_id: port,
        vip_subnet_id: vip_subnet,
        vip_network_id: vip_network,
        vip_address: front.address.map(|address| address.to_string()),
        listeners,
        ..LoadBalancerCreate::default()
    }
}
