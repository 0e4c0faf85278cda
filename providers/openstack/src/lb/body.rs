//! Bodies of requests that create something.

use openstack_api::octavia::{
    HealthMonitorCreate, LbAlgorithm, ListenerCreate, ListenerProtocol, LoadBalancerCreate,
    MemberCreate, MonitorType, PoolCreate, PoolProtocol, SessionPersistence,
};

use super::{
    features::Features,
    model::{DesiredListener, DesiredLoadBalancer, DesiredMonitor, MonitorKind},
    names,
};
use crate::lb::desired_members::DesiredMember;

/// Header with the client's address.
pub(super) const FORWARDED_FOR: &str = "X-Forwarded-For";
/// Path where kube-proxy reports whether it has endpoints.
const HEALTH_PATH: &str = "/healthz";

/// Returns the body of a listener without its pool. `name`: of the load balancer, which is part of
/// the names of children.
pub(super) fn listener(
    desired: &DesiredListener,
    name: &str,
    features: Features,
) -> ListenerCreate {
    let timeout = |pick: fn(&super::model::Timeouts) -> i32| {
        desired
            .timeouts
            .as_ref()
            .map(|timeouts| pick(timeouts).unsigned_abs())
    };
    ListenerCreate {
        name: Some(names::listener(desired.index, name).into()),
        protocol: Some(ListenerProtocol::from(desired.protocol.as_str())),
        protocol_port: desired.port,
        connection_limit: Some(desired.connection_limit.into()),
        default_tls_container_ref: desired.tls_container.as_deref().map(Into::into),
        insert_headers: desired
            .forwarded_for
            .then(|| [(FORWARDED_FOR.into(), "true".into())].into()),
        timeout_client_data: timeout(|timeouts| timeouts.client_data),
        timeout_member_connect: timeout(|timeouts| timeouts.member_connect),
        timeout_member_data: timeout(|timeouts| timeouts.member_data),
        timeout_tcp_inspect: timeout(|timeouts| timeouts.tcp_inspect),
        tags: features.tags.then(|| vec![name.into()]),
        allowed_cidrs: desired
            .allowed
            .as_ref()
            .map(|nets| nets.iter().map(ToString::to_string).collect()),
        ..ListenerCreate::default()
    }
}

/// Returns the body of a pool without members and monitor.
pub(super) fn pool(desired: &DesiredListener, name: &str) -> PoolCreate {
    PoolCreate {
        name: Some(names::pool(desired.index, name).into()),
        protocol: Some(PoolProtocol::from(desired.pool.protocol.as_str())),
        lb_algorithm: Some(LbAlgorithm::from(&*desired.pool.method)),
        session_persistence: desired
            .pool
            .session_persistence
            .then_some(SessionPersistence::SOURCE_IP),
        ..PoolCreate::default()
    }
}

/// Returns the body of a monitor.
pub(super) fn monitor(desired: &DesiredMonitor, index: usize, name: &str) -> HealthMonitorCreate {
    let http = |text: &str| (desired.kind == MonitorKind::Http).then(|| text.to_owned());
    let retries = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
    HealthMonitorCreate {
        name: Some(names::monitor(index, name).into()),
        kind: Some(MonitorType::from(desired.kind.as_str())),
        delay: desired.delay,
        timeout: desired.timeout,
        max_retries: retries(desired.max_retries),
        max_retries_down: Some(retries(desired.max_retries_down)),
        url_path: http(HEALTH_PATH),
        http_method: http("GET"),
        expected_codes: http("200"),
        ..HealthMonitorCreate::default()
    }
}

/// Returns the body of a member. `serial`: it is created alone, which determines its name.
pub(super) fn member(desired: &DesiredMember, subnet: Option<&str>, serial: bool) -> MemberCreate {
    let address = desired.address.to_string();
    let name = if serial {
        names::member(&desired.node, &address, desired.port)
    } else {
        names::truncate(&desired.node)
    };
    MemberCreate {
        name: Some(name.into()),
        address,
        protocol_port: desired.port,
        subnet_id: subnet.map(Into::into),
        monitor_port: desired.monitor_port,
        ..MemberCreate::default()
    }
}

/// Returns the body of a load balancer: with all its children where the driver takes that, else
/// without any. `members`: by listener. `subnet`: of the VIP, if one was looked up.
pub(super) fn load_balancer(
    desired: &DesiredLoadBalancer,
    members: &[Vec<DesiredMember>],
    subnet: Option<&str>,
    features: Features,
    serial: bool,
) -> LoadBalancerCreate {
    let create_settings = &desired.create_settings;
    let own = |id: &Option<Box<str>>| id.as_deref().map(String::from);
    let port = own(&create_settings.port);
    let vip_subnet = own(&create_settings.subnet)
        .or_else(|| subnet.map(Into::into))
        .filter(|_| port.is_none());
    let vip_network = own(&create_settings.network).filter(|_| port.is_none());
    let member_subnet = desired
        .member_subnet
        .as_deref()
        .or(desired.vip_subnet.as_deref())
        .or(vip_subnet.as_deref());
    let populated = |(listener_wanted, members): (&DesiredListener, &Vec<DesiredMember>)| {
        let pool = PoolCreate {
            members: members
                .iter()
                .map(|wanted| member(wanted, member_subnet, false))
                .collect(),
            healthmonitor: listener_wanted.pool.monitor.as_ref().map(|wanted_monitor| {
                monitor(wanted_monitor, listener_wanted.index, &desired.name)
            }),
            ..pool(listener_wanted, &desired.name)
        };
        ListenerCreate {
            default_pool: Some(pool),
            ..listener(listener_wanted, &desired.name, features)
        }
    };
    let listeners = if serial {
        Vec::new()
    } else {
        desired
            .listeners
            .iter()
            .zip(members)
            .map(populated)
            .collect()
    };
    LoadBalancerCreate {
        name: Some(desired.name.to_string()),
        description: Some(desired.description.to_string()),
        admin_state_up: Some(true),
        provider: Some(create_settings.driver.to_string()),
        tags: features.tags.then(|| vec![desired.name.to_string()]),
        flavor_id: own(&create_settings.flavor),
        availability_zone: own(&create_settings.availability_zone),
        vip_port_id: port,
        vip_subnet_id: vip_subnet,
        vip_network_id: vip_network,
        vip_address: create_settings.address.map(|address| address.to_string()),
        listeners,
        ..LoadBalancerCreate::default()
    }
}
