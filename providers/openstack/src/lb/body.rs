//! Builds the bodies of requests that create a load balancer and its children.

use openstack_api::octavia::{
    AdditionalVip, HealthMonitorCreate, LbAlgorithm, ListenerCreate, ListenerProtocol,
    LoadBalancerCreate, MemberCreate, MonitorType, PoolCreate, PoolProtocol, SessionPersistence,
};

use super::{
    features::Features,
    model::{DesiredListener, DesiredLoadBalancer, DesiredMonitor, MonitorKind},
    names,
};
use crate::lb::desired_members::DesiredMember;

/// Header with the client's address.
pub(super) const FORWARDED_FOR: &str = "X-Forwarded-For";
/// Path at which kube-proxy reports whether its node has endpoints.
const HEALTH_PATH: &str = "/healthz";

/// Builds the body of a listener without its pool. `name` is the name of the load balancer, which
/// is part of the names of its children.
pub(super) fn listener(
    desired: &DesiredListener,
    name: &str,
    features: Features,
) -> ListenerCreate {
    let mut body = ListenerCreate {
        name: Some(names::listener(desired.index, name).into()),
        protocol: Some(ListenerProtocol::from(desired.protocol.as_str())),
        protocol_port: desired.port,
        connection_limit: Some(desired.connection_limit.into()),
        default_tls_container_ref: desired.tls_container.as_deref().map(Into::into),
        tags: features.tags.then(|| own_and(name, &desired.tags)),
        ..ListenerCreate::default()
    };
    if desired.forwarded_for {
        body.insert_headers = Some([(FORWARDED_FOR.into(), "true".into())].into());
    }
    if let Some(timeouts) = &desired.timeouts {
        body.timeout_client_data = Some(timeouts.client_data.unsigned_abs());
        body.timeout_member_connect = Some(timeouts.member_connect.unsigned_abs());
        body.timeout_member_data = Some(timeouts.member_data.unsigned_abs());
        body.timeout_tcp_inspect = Some(timeouts.tcp_inspect.unsigned_abs());
    }
    if let Some(networks) = &desired.allowed {
        body.allowed_cidrs = Some(networks.iter().map(ToString::to_string).collect());
    }
    body
}

/// Returns the Service's own tag and those that it requests.
fn own_and(own: &str, requested: &[Box<str>]) -> Vec<String> {
    let mut tags = vec![own.to_owned()];
    tags.extend(texts(requested));
    tags
}

fn texts(tags: &[Box<str>]) -> Vec<String> {
    tags.iter().map(ToString::to_string).collect()
}

/// Builds the body of a pool without members and monitor.
pub(super) fn pool(desired: &DesiredListener, name: &str) -> PoolCreate {
    PoolCreate {
        name: Some(names::pool(desired.index, name).into()),
        protocol: Some(PoolProtocol::from(desired.pool.protocol.as_str())),
        lb_algorithm: Some(LbAlgorithm::from(&*desired.pool.method)),
        session_persistence: desired
            .pool
            .session_persistence
            .then_some(SessionPersistence::SOURCE_IP),
        tags: (!desired.pool.tags.is_empty()).then(|| texts(&desired.pool.tags)),
        ..PoolCreate::default()
    }
}

/// Builds the body of a monitor.
pub(super) fn monitor(desired: &DesiredMonitor, index: usize, name: &str) -> HealthMonitorCreate {
    let mut body = HealthMonitorCreate {
        name: Some(names::monitor(index, name).into()),
        kind: Some(MonitorType::from(desired.kind.as_str())),
        delay: desired.delay,
        timeout: desired.timeout,
        max_retries: saturating_u8(desired.max_retries),
        max_retries_down: Some(saturating_u8(desired.max_retries_down)),
        ..HealthMonitorCreate::default()
    };
    if desired.kind == MonitorKind::Http {
        body.url_path = Some(HEALTH_PATH.to_owned());
        body.http_method = Some("GET".to_owned());
        body.expected_codes = Some("200".to_owned());
    }
    body
}

fn saturating_u8(number: u32) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// The kind of request that creates a member. It determines the member's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberRequest {
    /// In a request of its own.
    Single,
    /// With all members of its pool.
    Batch,
}

/// Builds the body of a member.
pub(super) fn member(
    desired: &DesiredMember,
    subnet: Option<&str>,
    request: MemberRequest,
) -> MemberCreate {
    let address = desired.address.to_string();
    let name = match request {
        MemberRequest::Single => names::member(&desired.node, &address, desired.port),
        MemberRequest::Batch => names::truncate(&desired.node),
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

/// Subnets of the addresses of a new load balancer, as far as they had to be searched for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VipSubnets<'a> {
    /// Subnet of the VIP if none is configured.
    pub(super) first: Option<&'a str>,
    /// Subnet of the second VIP, or `None` for a load balancer with one.
    pub(super) second: Option<&'a str>,
}

/// Builds the body of a load balancer, with all its children unless the driver takes them only one
/// by one. `members` are the members of each listener.
pub(super) fn load_balancer(
    desired: &DesiredLoadBalancer,
    members: &[Vec<DesiredMember>],
    subnets: VipSubnets<'_>,
    features: Features,
    serial_api_calls: bool,
) -> LoadBalancerCreate {
    let create_settings = &desired.create_settings;
    let mut vip_subnet = None;
    let mut vip_network = None;
    // A configured port already determines subnet and network.
    if create_settings.port.is_none() {
        vip_subnet = create_settings.subnet.as_deref().or(subnets.first);
        vip_network = create_settings.network.as_deref();
    }
    let member_subnet = desired
        .member_subnet
        .as_deref()
        .or(desired.vip_subnet.as_deref())
        .or(vip_subnet);
    let mut listeners = Vec::new();
    if !serial_api_calls {
        for (listener, members) in desired.listeners.iter().zip(members) {
            listeners.push(populated_listener(
                listener,
                members,
                member_subnet,
                &desired.name,
                features,
            ));
        }
    }
    LoadBalancerCreate {
        name: Some(desired.name.to_string()),
        description: Some(desired.description.to_string()),
        admin_state_up: Some(true),
        provider: Some(create_settings.driver.to_string()),
        tags: features.tags.then(|| own_and(&desired.name, &desired.tags)),
        flavor_id: create_settings.flavor.as_deref().map(Into::into),
        availability_zone: create_settings.availability_zone.as_deref().map(Into::into),
        vip_port_id: create_settings.port.as_deref().map(Into::into),
        vip_subnet_id: vip_subnet.map(Into::into),
        vip_network_id: vip_network.map(Into::into),
        vip_address: create_settings.address.map(|address| address.to_string()),
        additional_vips: subnets.second.map(|subnet| {
            vec![AdditionalVip { subnet_id: subnet.into(), ..AdditionalVip::default() }]
        }),
        listeners,
        ..LoadBalancerCreate::default()
    }
}

/// Builds the body of a listener with its pool, members and monitor.
fn populated_listener(
    desired: &DesiredListener,
    members: &[DesiredMember],
    member_subnet: Option<&str>,
    name: &str,
    features: Features,
) -> ListenerCreate {
    let mut pool = pool(desired, name);
    for desired_member in members {
        pool.members
            .push(member(desired_member, member_subnet, MemberRequest::Batch));
    }
    if let Some(desired_monitor) = &desired.pool.monitor {
        pool.healthmonitor = Some(monitor(desired_monitor, desired.index, name));
    }
    ListenerCreate {
        default_pool: Some(pool),
        ..listener(desired, name, features)
    }
}
