//! Octavia and Neutron over the local cloud's own functions, for as long as it has no routes for them.

use bytes::Bytes;
use http::{Request, Response};
use openstack_local::{
    neutron as net, octavia as lb,
    server::LocalCloud,
    state::{ApiError, Cx, State},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

type Answer = Result<(u16, Value), ApiError>;

pub(super) fn serves(request: &Request<Bytes>) -> bool {
    let path = request.uri().path();
    path.trim_end_matches('/') == "/load-balancer"
        || path.starts_with("/network/v2.0/")
        || path.starts_with("/load-balancer/v2.0/lbaas/")
}

pub(super) async fn answer(local: LocalCloud, project: Box<str>, request: Request<Bytes>) -> Response<Bytes> {
    let path = request.uri().path().to_owned();
    let is_net = path.starts_with("/network");
    let rest = path.trim_start_matches("/network/v2.0/").trim_start_matches("/load-balancer/v2.0/lbaas/");
    let segments: Vec<&str> = rest.split('/').collect();
    let query: Vec<(String, String)> =
        url::form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes())
            .into_owned()
            .filter(|(key, _)| key != "fields")
            .collect();
    let body: Value = serde_json::from_slice(request.body()).unwrap_or(Value::Null);
    let method = request.method().as_str().to_owned();
    let cx = Cx { now: local.cloud().clock.now(), project, user: "demo".into(), admin: true };
    let settled = local.cloud().store.change(|state| {
        lb::settle(state, cx.now);
        sweep(state, &cx);
        Ok(())
    });
    settled.await.unwrap();
    let done = local.cloud().store.change(|state| {
        let key = (&*method, &*segments);
        let answer =
            if is_net { network(state, &cx, key, &query, body) } else { balancer(state, &cx, key, &query, body) };
        lb::settle(state, cx.now);
        sweep(state, &cx);
        answer
    });
    let (status, body) = match done.await {
        Ok((status, body)) => (status, body),
        Err(error) if is_net => (
            error.status.as_u16(),
            json!({"NeutronError": {"type": error.kind, "message": error.message, "detail": ""}}),
        ),
        Err(error) => {
            (error.status.as_u16(), json!({"faultcode": "Client", "faultstring": error.message, "debuginfo": null}))
        }
    };
    let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    Response::builder().status(status).header("content-type", "application/json").body(bytes).unwrap()
}

/// Takes away ports of balancers that are gone.
fn sweep(state: &mut State, cx: &Cx) {
    let orphans: Vec<String> = state
        .neutron
        .ports
        .iter()
        .filter(|port| port.device_owner == "Octavia")
        .filter(|port| {
            !state.octavia.load_balancers.iter().any(|row| row.body.vip_port_id.as_deref() == Some(&port.id))
        })
        .map(|port| port.id.clone())
        .collect();
    for id in orphans {
        net::ports::delete(state, cx, &id).unwrap();
    }
}

fn read<T: DeserializeOwned>(body: Value, key: &str) -> T {
    serde_json::from_value(if key.is_empty() { body } else { body[key].clone() }).unwrap()
}

fn one(key: &str, status: u16, value: impl Serialize) -> Answer {
    Ok((status, json!({ key: value })))
}

fn list(key: &str, all: impl Serialize, query: &[(String, String)]) -> Answer {
    let all = serde_json::to_value(all).unwrap();
    let holds = |item: &Value, key: &str, wanted: &str| match &item[key] {
        Value::String(text) => text == wanted,
        Value::Bool(truth) => truth.to_string() == wanted,
        Value::Array(list) => list.iter().any(|one| one == wanted || one["id"] == wanted),
        _ => false,
    };
    let fits = |item: &&Value| {
        query.iter().all(|(key, _)| {
            let field = if key == "loadbalancer_id" { "loadbalancers" } else { key };
            query.iter().filter(|(other, _)| other == key).any(|(_, wanted)| holds(item, field, wanted))
        })
    };
    let found: Vec<&Value> = all.as_array().unwrap().iter().filter(fits).collect();
    Ok((200, json!({ key: found })))
}

fn network(
    state: &mut State,
    cx: &Cx,
    (method, path): (&str, &[&str]),
    query: &[(String, String)],
    body: Value,
) -> Answer {
    match (method, path) {
        ("GET", ["networks"]) => list("networks", net::networks::list(state, cx), query),
        ("GET", ["subnets"]) => list("subnets", net::subnets::list(state, cx), query),
        ("GET", ["subnets", id]) => one("subnet", 200, net::subnets::get(state, cx, id)?.clone()),
        ("GET", ["ports"]) => list("ports", net::ports::list(state, cx), query),
        ("PUT", ["ports", id]) => one("port", 200, net::ports::update(state, cx, id, read(body, "port"))?),
        ("GET", ["floatingips"]) => list("floatingips", net::floating_ips::list(state, cx), query),
        ("POST", ["floatingips"]) => {
            one("floatingip", 201, net::floating_ips::create(state, cx, read(body, "floatingip"))?)
        }
        ("PUT", ["floatingips", id]) => {
            one("floatingip", 200, net::floating_ips::update(state, cx, id, read(body, "floatingip"))?)
        }
        ("DELETE", ["floatingips", id]) => net::floating_ips::delete(state, cx, id).map(|()| (204, Value::Null)),
        ("GET", ["security-groups"]) => list("security_groups", net::security_groups::list(state, cx), query),
        ("GET", ["security-groups", id]) => one("security_group", 200, net::security_groups::show(state, cx, id)?),
        ("POST", ["security-groups"]) => {
            one("security_group", 201, net::security_groups::create(state, cx, read(body, "security_group"))?)
        }
        ("DELETE", ["security-groups", id]) => net::security_groups::delete(state, cx, id).map(|()| (204, Value::Null)),
        ("POST", ["security-group-rules"]) => {
            let made = net::security_group_rules::create(state, cx, read(body, "security_group_rules"))?;
            one("security_group_rules", 201, made)
        }
        ("DELETE", ["security-group-rules", id]) => {
            net::security_group_rules::delete(state, cx, id).map(|()| (204, Value::Null))
        }
        other => panic!("{other:?}"),
    }
}

fn balancer(
    state: &mut State,
    cx: &Cx,
    (method, path): (&str, &[&str]),
    query: &[(String, String)],
    body: Value,
) -> Answer {
    let gone = |result: Result<(), ApiError>| result.map(|()| (204, Value::Null));
    match (method, path) {
        ("GET", ["" | "load-balancer"] | ["", "load-balancer", ..]) => {
            Ok((200, serde_json::to_value(lb::versions(state, "http://cloud.test/load-balancer")).unwrap()))
        }
        ("GET", ["loadbalancers"]) => list("loadbalancers", lb::load_balancers::list(state, cx), query),
        ("GET", ["loadbalancers", id]) => one("loadbalancer", 200, lb::load_balancers::show(state, cx, id)?),
        ("POST", ["loadbalancers"]) => {
            let create = with_port(state, cx, read(body, "loadbalancer"))?;
            one("loadbalancer", 201, lb::load_balancers::create(state, cx, create)?)
        }
        ("PUT", ["loadbalancers", id, "failover"]) => {
            lb::load_balancers::failover(state, cx, id).map(|()| (202, Value::Null))
        }
        ("PUT", ["loadbalancers", id]) => {
            one("loadbalancer", 200, lb::load_balancers::update(state, cx, id, read(body, "loadbalancer"))?)
        }
        ("DELETE", ["loadbalancers", id]) => gone(lb::load_balancers::delete(state, cx, id, !query.is_empty())),
        ("GET", ["listeners"]) => list("listeners", lb::listeners::list(state, cx), query),
        ("POST", ["listeners"]) => one("listener", 201, lb::listeners::create(state, cx, read(body, "listener"))?),
        ("PUT", ["listeners", id]) => {
            one("listener", 200, lb::listeners::update(state, cx, id, read(body, "listener"))?)
        }
        ("DELETE", ["listeners", id]) => gone(lb::listeners::delete(state, cx, id)),
        ("GET", ["pools"]) => list("pools", lb::pools::list(state, cx), query),
        ("POST", ["pools"]) => one("pool", 201, lb::pools::create(state, cx, read(body, "pool"))?),
        ("PUT", ["pools", id]) => one("pool", 200, lb::pools::update(state, cx, id, read(body, "pool"))?),
        ("DELETE", ["pools", id]) => gone(lb::pools::delete(state, cx, id)),
        ("GET", ["pools", id, "members"]) => list("members", lb::members::list(state, cx, id)?, query),
        ("PUT", ["pools", id, "members"]) => {
            lb::members::batch(state, cx, id, read(body, ""), false).map(|()| (202, Value::Null))
        }
        ("POST", ["pools", id, "members"]) => {
            one("member", 201, lb::members::create(state, cx, id, read(body, "member"))?)
        }
        ("PUT", ["pools", id, "members", m]) => {
            one("member", 200, lb::members::update(state, cx, id, m, read(body, "member"))?)
        }
        ("DELETE", ["pools", id, "members", m]) => gone(lb::members::delete(state, cx, id, m)),
        ("GET", ["healthmonitors", id]) => one("healthmonitor", 200, lb::monitors::show(state, cx, id)?),
        ("POST", ["healthmonitors"]) => {
            one("healthmonitor", 201, lb::monitors::create(state, cx, read(body, "healthmonitor"))?)
        }
        ("PUT", ["healthmonitors", id]) => {
            one("healthmonitor", 200, lb::monitors::update(state, cx, id, read(body, "healthmonitor"))?)
        }
        ("DELETE", ["healthmonitors", id]) => gone(lb::monitors::delete(state, cx, id)),
        other => panic!("{other:?}"),
    }
}

/// Gives a balancer a port of Neutron.
pub(super) fn with_port(
    state: &mut State,
    cx: &Cx,
    mut create: openstack_api::octavia::LoadBalancerCreate,
) -> Result<openstack_api::octavia::LoadBalancerCreate, ApiError> {
    if create.vip_port_id.is_some() {
        return Ok(create);
    }
    let subnet = create.vip_subnet_id.clone().unwrap();
    let network_id = net::subnets::get(state, cx, &subnet)?.network_id.clone();
    let fixed = openstack_api::neutron::FixedIpRequest {
        subnet_id: Some(subnet),
        ip_address: create.vip_address.as_deref().and_then(|a| a.parse().ok()),
    };
    let request = openstack_api::neutron::PortCreate {
        network_id,
        device_owner: Some("Octavia".into()),
        fixed_ips: Some(vec![fixed]),
        ..Default::default()
    };
    let port = net::ports::create(state, cx, request)?;
    create.vip_port_id = Some(port.id);
    create.vip_address = Some(port.fixed_ips[0].ip_address.to_string());
    Ok(create)
}
