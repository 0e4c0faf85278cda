//! Requests are compared with literal bodies, as the API references show them.

use serde::Serialize;
use serde_json::{Value, json};

use crate::{Secret, keystone::*, neutron::*, octavia::*};

fn sent(request: impl Serialize) -> Value {
    serde_json::to_value(request).unwrap()
}

fn token_request(identity: Identity, scope: Option<Scope>) -> TokenRequest {
    TokenRequest { auth: Auth { identity, scope } }
}

#[test]
fn a_token_is_requested_by_each_kind_of_credentials() {
    let domain = |name: &str| DomainRef { name: Some(name.into()), ..DomainRef::default() };
    let user = UserRef {
        name: Some("demo".into()),
        domain: Some(domain("Default")),
        ..UserRef::default()
    };
    let by_id = UserRef { id: Some("u".into()), ..UserRef::default() };
    let project = ProjectRef {
        name: Some("demo".into()),
        domain: Some(domain("Default")),
        ..ProjectRef::default()
    };
    let credential = |id: Option<&str>, name: Option<&str>, user| {
        Identity::application_credential(ApplicationCredentialMethod {
            id: id.map(Into::into),
            name: name.map(Into::into),
            user,
            secret: "s3cret".into(),
        })
    };
    let cases = [
        (
            token_request(
                Identity::password(user.clone(), "s3cret".into()),
                Some(Scope::Project(project)),
            ),
            json!({"auth": {
                "identity": {"methods": ["password"], "password": {"user": {
                    "name": "demo", "domain": {"name": "Default"}, "password": "s3cret"}}},
                "scope": {"project": {"name": "demo", "domain": {"name": "Default"}}}}}),
        ),
        (
            token_request(
                Identity::password(by_id.clone(), "s3cret".into()),
                Some(Scope::Trust(TrustRef { id: "t".into() })),
            ),
            json!({"auth": {
                "identity": {"methods": ["password"], "password": {"user": {"id": "u", "password": "s3cret"}}},
                "scope": {"OS-TRUST:trust": {"id": "t"}}}}),
        ),
        (
            token_request(
                Identity::token("s3cret".into()),
                Some(Scope::Domain(DomainRef { id: Some("default".into()), name: None })),
            ),
            json!({"auth": {
                "identity": {"methods": ["token"], "token": {"id": "s3cret"}},
                "scope": {"domain": {"id": "default"}}}}),
        ),
        (
            token_request(credential(Some("a"), None, None), None),
            json!({"auth": {"identity": {"methods": ["application_credential"],
                "application_credential": {"id": "a", "secret": "s3cret"}}}}),
        ),
        (
            token_request(credential(None, Some("a"), Some(user)), None),
            json!({"auth": {"identity": {"methods": ["application_credential"],
                "application_credential": {"name": "a", "secret": "s3cret",
                    "user": {"name": "demo", "domain": {"name": "Default"}}}}}}),
        ),
    ];
    for (request, body) in cases {
        assert!(!format!("{request:?}").contains("s3cret"), "the secret shows");
        assert_eq!(sent(request), body);
    }
}

#[test]
fn a_load_balancer_is_created_whole() {
    let member = MemberCreate {
        name: Some("node".into()),
        address: "10.0.0.11".into(),
        protocol_port: 30_080,
        subnet_id: Some("s".into()),
        ..MemberCreate::default()
    };
    let monitor = HealthMonitorCreate {
        name: Some("h".into()),
        kind: Some(MonitorType::Tcp),
        delay: 60,
        timeout: 30,
        max_retries: 1,
        max_retries_down: Some(3),
        ..HealthMonitorCreate::default()
    };
    let pool = PoolCreate {
        name: Some("p".into()),
        protocol: Some(PoolProtocol::ProxyV2),
        lb_algorithm: Some(LbAlgorithm::RoundRobin),
        session_persistence: Some(SessionPersistence::SOURCE_IP),
        healthmonitor: Some(monitor),
        members: vec![member],
        ..PoolCreate::default()
    };
    let listener = ListenerCreate {
        name: Some("l".into()),
        protocol: Some(ListenerProtocol::Tcp),
        protocol_port: 80,
        connection_limit: Some(-1),
        allowed_cidrs: Some(vec!["192.0.2.0/24".into()]),
        default_pool: Some(pool),
        ..ListenerCreate::default()
    };
    let request = LoadBalancerCreate {
        name: Some("b".into()),
        vip_subnet_id: Some("s".into()),
        tags: Some(vec!["b".into()]),
        listeners: vec![listener],
        ..LoadBalancerCreate::default()
    };
    let body = json!({
        "name": "b", "vip_subnet_id": "s", "tags": ["b"],
        "listeners": [{
            "name": "l", "protocol": "TCP", "protocol_port": 80, "connection_limit": -1,
            "allowed_cidrs": ["192.0.2.0/24"],
            "default_pool": {
                "name": "p", "protocol": "PROXYV2", "lb_algorithm": "ROUND_ROBIN",
                "session_persistence": {"type": "SOURCE_IP"},
                "healthmonitor": {"name": "h", "type": "TCP", "delay": 60, "timeout": 30,
                    "max_retries": 1, "max_retries_down": 3},
                "members": [{"name": "node", "address": "10.0.0.11", "protocol_port": 30080, "subnet_id": "s"}],
            },
        }],
    });
    assert_eq!(sent(request), body);
}

#[test]
fn an_update_has_null_only_where_a_field_is_cleared() {
    let update = PoolUpdate {
        session_persistence: Patch::Clear,
        lb_algorithm: LbAlgorithm::from("WEIGHTED").into(),
        ..PoolUpdate::default()
    };
    assert_eq!(sent(update), json!({"session_persistence": null, "lb_algorithm": "WEIGHTED"}));
    assert_eq!(sent(ListenerUpdate::default()), json!({}));
    assert_eq!(sent(FloatingIpUpdate::detach()), json!({"port_id": null}));
    assert_eq!(sent(FloatingIpUpdate::attach("p")), json!({"port_id": "p"}));
}

#[test]
fn networks_are_changed_by_lists_that_replace_others() {
    let pair = AddressPair { ip_address: "10.244.0.0/24".into(), mac_address: None };
    let update = PortUpdate {
        allowed_address_pairs: Some(vec![pair]),
        ..PortUpdate::default()
    };
    assert_eq!(sent(update), json!({"allowed_address_pairs": [{"ip_address": "10.244.0.0/24"}]}));
    let rule = SecurityGroupRuleCreate {
        security_group_id: "g".into(),
        direction: Direction::Ingress,
        ethertype: Some(EtherType::Ipv6),
        protocol: Some("tcp".into()),
        port_range_min: Some(80),
        port_range_max: Some(80),
        ..SecurityGroupRuleCreate::default()
    };
    let body = json!({"security_group_id": "g", "direction": "ingress", "ethertype": "IPv6",
        "protocol": "tcp", "port_range_min": 80, "port_range_max": 80});
    assert_eq!(sent(rule), body);
}

#[test]
fn what_is_sent_back_stays_as_it_was_read() {
    let route = json!({"destination": "10.244.0.0/24", "nexthop": "10.0.0.5"});
    let read: Route = serde_json::from_value(route.clone()).unwrap();
    assert_eq!(sent(read), route);
    for pair in [
        json!({"ip_address": "10.0.0.9", "mac_address": "fa:16:3e:00:00:01"}),
        json!({"ip_address": "10.0.0.9"}),
    ] {
        let read: AddressPair = serde_json::from_value(pair.clone()).unwrap();
        assert_eq!(sent(read), pair);
    }
}

#[test]
fn every_word_is_read_back_and_an_unknown_one_is_kept() {
    fn check<W>(known: &[W])
    where
        W: Clone + std::fmt::Debug + PartialEq + Serialize + serde::de::DeserializeOwned,
        W: for<'a> From<&'a str>,
    {
        for word in known
            .iter()
            .cloned()
            .chain([W::from("SOMETHING_NEW"), W::from("")])
        {
            assert_eq!(serde_json::from_value::<W>(sent(&word)).unwrap(), word);
        }
        assert_eq!(sent(W::from("SOMETHING_NEW")), "SOMETHING_NEW");
    }
    check(ProvisioningStatus::ALL);
    check(OperatingStatus::ALL);
    check(ListenerProtocol::ALL);
    check(PoolProtocol::ALL);
    check(LbAlgorithm::ALL);
    check(MonitorType::ALL);
    check(PersistenceType::ALL);
    check(Direction::ALL);
    check(EtherType::ALL);
    assert_eq!(ProvisioningStatus::default().as_str(), "");
}

#[test]
fn a_secret_does_not_show() {
    let secret = Secret::from("s3cret");
    assert_eq!(format!("{secret:?}"), "Secret(…)");
    assert_eq!(sent(&secret), "s3cret");
}
