//! What a request may say, and how it is refused.

use std::collections::BTreeMap;

use crate::api::octavia::LoadBalancerCreate;

use super::*;
use crate::keystone::KeyContainer;

/// A refusal: what is sent, its status, and what its text has in it.
type Case = (Value, u16, &'static str);

#[track_caller]
fn refused(cases: &[Case], mut send: impl FnMut(Value) -> Result<Value, ApiError>) {
    for (body, status, text) in cases {
        let (found, message) = refusal(send(body.clone()));
        assert_eq!(found, *status, "{body}: {message}");
        assert!(message.contains(text), "{body}: {message}");
    }
}

#[test]
fn load_balancers_are_checked() {
    let long = "x".repeat(256);
    let cases = [
        (json!({"colour": "red"}), 400, "Unknown attribute for argument loadbalancer: colour"),
        (json!({"name": long}), 400, "field/attribute name. Value: 'x"),
        (json!({"tags": [long]}), 400, "maximum character requirement of 255"),
        (
            json!({"admin_state_up": "maybe"}),
            400,
            "field/attribute admin_state_up. Value: 'maybe'.",
        ),
        (json!({"vip_address": "10.0.0.300"}), 400, "Value should be IPv4 or IPv6 format"),
        (json!({"flavor_id": "small"}), 400, "Value should be UUID format"),
        (
            json!({"flavor_id": "8d4bc2c4-1ac7-4e7d-9d5e-0b4a3b1f6b8e"}),
            400,
            "Validation failure: Invalid flavor_id.",
        ),
        (
            json!({"availability_zone": "moon"}),
            400,
            "Validation failure: Invalid availability zone.",
        ),
        (json!({"provider": "f5"}), 400, "Provider 'f5' is not enabled."),
        (
            json!({"listeners": [{"protocol": "TCP"}]}),
            400,
            "protocol_port. Value: 'None'. Mandatory field missing.",
        ),
    ];
    let mut cloud = Cloud::new();
    refused(&cases, |body| cloud.post_lb(body));
    let minor = cloud.minor();
    let read =
        |body| schema::read::<Value>(body, "loadbalancer", schema::LOAD_BALANCER_CREATE, minor);
    assert_eq!(refusal(read(json!({}))), (400, "Missing argument: \"loadbalancer\"".into()));
    assert_eq!(refusal(read(json!([]))).0, 400);
    assert_eq!(refusal(read(json!({"loadbalancer": {}, "x": 1}))).0, 400);
    assert_eq!(
        refusal(cloud.run(|state, ctx| load_balancers::create(
            state,
            ctx,
            LoadBalancerCreate::default()
        )))
        .1,
        "Validation failure: VIP must contain one of: vip_port_id, vip_network_id, vip_subnet_id."
    );
    cloud
        .post_lb(json!({"name": null, "admin_state_up": "true", "tags": null}))
        .expect("nulls are nothing");
}

// length: a table
#[test]
fn listeners_are_checked() {
    let mut cloud = Cloud::new();
    let web = cloud.web();
    let base = json!({"loadbalancer_id": web.lb, "protocol": "TCP", "protocol_port": 81});
    let but = |fields: Value| set(base.clone(), fields);
    let cert = "http://127.0.0.1:9311/v1/containers/a570068c-d295-4780-91d4-3046a325db51";
    let unknown = json!({"protocol": "TERMINATED_HTTPS", "default_tls_container_ref": cert.replace("a57", "b57")});
    cloud.state.keystone.key_containers.put(KeyContainer {
        id: cert.rsplit('/').next().unwrap().to_owned(),
        name: "web".to_owned(),
        project_id: PROJECT.to_owned(),
        created_at: Timestamp::UNIX_EPOCH,
        kind: "certificate".to_owned(),
        secrets: BTreeMap::new(),
    });
    cloud.commit();
    let refs = json!({"protocol": "TERMINATED_HTTPS", "default_tls_container_ref": "http://127.0.0.1/v1/keys/1"});
    let cases = [
        (
            but(json!({"protocol_port": 0})),
            400,
            "Value: '0'. Value should be greater or equal to 1",
        ),
        (
            but(json!({"protocol_port": 65536})),
            400,
            "Value: '65536'. Value should be lower or equal to 65535",
        ),
        (but(json!({"protocol_port": "http"})), 400, "Value: 'http'."),
        (but(json!({"protocol": "QUIC"})), 400, "Value should be one of: TCP, UDP, SCTP"),
        (but(json!({"protocol": null})), 400, "Mandatory field missing."),
        (but(json!({"connection_limit": -2})), 400, "greater or equal to -1"),
        (but(json!({"timeout_client_data": 2_073_600_001})), 400, "lower or equal to 2073600000"),
        (but(json!({"timeout_member_data": -1})), 400, "greater or equal to 0"),
        (
            but(json!({"allowed_cidrs": ["10.0.0.0/33"]})),
            400,
            "Value should be IPv4 or IPv6 CIDR format",
        ),
        (
            but(json!({"allowed_cidrs": ["2001:db8::/32"]})),
            400,
            "IP version incompatible with all VIPs",
        ),
        (
            but(json!({"insert_headers": {"X-Forwarded-For": "true"}})),
            400,
            "insert-headers is not a valid option for a TCP",
        ),
        (
            but(json!({"protocol": "HTTP", "insert_headers": {"X-Colour": "true"}})),
            400,
            "['X-Colour'] is not a valid option",
        ),
        (
            but(json!({"protocol": "HTTP", "insert_headers": {"X-SSL-Client-CN": "true"}})),
            400,
            "option for HTTP protocol",
        ),
        (
            but(json!({"protocol": "TERMINATED_HTTPS"})),
            400,
            "container reference must be provided for TERMINATED_HTTPS",
        ),
        (
            but(unknown),
            400,
            "Could not retrieve certificate: ['http://127.0.0.1:9311/v1/containers/b57",
        ),
        (but(refs), 400, "Could not retrieve certificate: ['http://127.0.0.1/v1/keys/1']"),
        (
            but(json!({"default_tls_container_ref": cert})),
            400,
            "not allowed on TCP protocol listeners.",
        ),
        (
            but(json!({"protocol": "UDP", "sni_container_refs": [cert]})),
            400,
            "UDP protocol listener does not support TLS.",
        ),
        (but(json!({"hsts_preload": true})), 400, "hsts_max_age is set as well"),
        (but(json!({"loadbalancer_id": web.pool})), 404, "Load Balancer"),
        (but(json!({"default_pool_id": web.lb})), 404, "Pool"),
        (
            but(json!({"protocol": "UDP", "default_pool_id": web.pool})),
            400,
            "The pool protocol 'TCP' is invalid while the listener protocol is 'UDP'.",
        ),
    ];
    refused(&cases, |body| cloud.post_listener(body));
    assert_eq!(cloud.lb(&web.lb)["provisioning_status"], "ACTIVE", "refusals leave no lock");

    let made = cloud
        .post_listener(but(
            json!({"allowed_cidrs": ["10.1.2.3/8", "10.9.9.9"], "tags": ["a", "a"]}),
        ))
        .unwrap();
    assert_eq!(
        made["allowed_cidrs"],
        json!(["10.0.0.0/8", "10.9.9.9/32"]),
        "networks are normalized"
    );
    assert_eq!(made["tags"], json!(["a"]));
    assert_eq!(
        (&made["timeout_client_data"], &made["connection_limit"]),
        (&json!(50000), &json!(-1))
    );
    cloud.rest();
    let tls = but(
        json!({"protocol": "TERMINATED_HTTPS", "protocol_port": 443, "default_tls_container_ref": cert}),
    );
    assert_eq!(cloud.post_listener(tls).unwrap()["tls_versions"], json!(["TLSv1.2", "TLSv1.3"]));
}

/// TCP, HTTP, HTTPS and TERMINATED_HTTPS share their ports; UDP and SCTP have their own.
#[test]
fn a_port_is_taken_once_per_transport() {
    let cases = [
        ("TCP", "TCP", false),
        ("TCP", "HTTP", false),
        ("HTTP", "HTTPS", false),
        ("TCP", "UDP", true),
        ("UDP", "UDP", false),
        ("UDP", "SCTP", true),
        ("SCTP", "SCTP", false),
    ];
    for (first, second, fits) in cases {
        let mut cloud = Cloud::new();
        let lb = id(&cloud.post_lb(json!({})).unwrap());
        cloud.rest();
        let body =
            |protocol| json!({"loadbalancer_id": lb, "protocol": protocol, "protocol_port": 53});
        cloud.post_listener(body(first)).unwrap();
        cloud.rest();
        let result = cloud.post_listener(body(second));
        if fits {
            result.unwrap_or_else(|error| panic!("{first} and {second}: {error}"));
        } else {
            let text = format!(
                "Another Listener on this Load Balancer is already using protocol {first} and protocol_port 53"
            );
            assert_eq!(refusal(result), (409, text));
        }
    }
}

#[test]
fn protocols_of_listener_and_pool_go_together() {
    let pools = ["TCP", "UDP", "SCTP", "HTTP", "HTTPS", "PROXY", "PROXYV2"];
    let good = [
        ("TCP", &["TCP", "HTTP", "HTTPS", "PROXY", "PROXYV2"][..]),
        ("HTTP", &["HTTP", "PROXY", "PROXYV2"]),
        ("HTTPS", &["TCP", "HTTPS", "PROXY", "PROXYV2"]),
        ("UDP", &["UDP"]),
        ("SCTP", &["SCTP"]),
    ];
    for (listener, good) in good {
        for pool in pools {
            let mut cloud = Cloud::new();
            let pool_body = json!({"name": "p", "protocol": pool, "lb_algorithm": "ROUND_ROBIN"});
            let body =
                json!({"protocol": listener, "protocol_port": 80, "default_pool": pool_body});
            let result = cloud.post_lb(json!({"listeners": [body]}));
            assert_eq!(result.is_ok(), good.contains(&pool), "{listener} to {pool}: {result:?}");
        }
    }
}

#[test]
fn pools_are_checked() {
    let mut cloud = Cloud::new();
    let web = cloud.web();
    let base = json!({"loadbalancer_id": web.lb, "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"});
    let but = |fields: Value| set(base.clone(), fields);
    let cases = [
        (
            but(json!({"loadbalancer_id": null})),
            400,
            "Must provide at least one of: loadbalancer_id, listener_id",
        ),
        (
            but(json!({"listener_id": web.listener})),
            409,
            "This listener already has a default pool",
        ),
        (
            but(json!({"lb_algorithm": "RANDOM"})),
            400,
            "Value should be one of: ROUND_ROBIN, LEAST_CONNECTIONS",
        ),
        (
            but(json!({"session_persistence": {"type": "APP_COOKIE"}})),
            400,
            "\"cookie_name\" must be specified",
        ),
        (
            but(json!({"session_persistence": {"type": "SOURCE_IP", "cookie_name": "c"}})),
            400,
            "can only be specified",
        ),
        (
            but(json!({"session_persistence": {"type": "SOURCE_IP", "persistence_timeout": 5}})),
            400,
            "only for UDP and SCTP",
        ),
        (
            but(json!({"protocol": "UDP", "session_persistence": {"type": "HTTP_COOKIE"}})),
            400,
            "not supported for UDP/SCTP",
        ),
        (but(json!({"crl_container_ref": "x"})), 400, "required to specify a revocation list"),
        (
            but(json!({"lb_algorithm": "SOURCE_IP_PORT"})),
            501,
            "Provider 'amphora' does not support a requested option: ",
        ),
    ];
    refused(&cases, |body| cloud.post_pool(body));
    let made = cloud
        .post_pool(but(json!({"session_persistence": {"type": "SOURCE_IP"}})))
        .unwrap();
    assert_eq!(
        (&made["session_persistence"]["type"], &made["healthmonitor_id"]),
        (&json!("SOURCE_IP"), &Value::Null)
    );
    cloud.rest();
    let made = cloud
        .put_pool(&id(&made), json!({"session_persistence": null, "name": null}))
        .unwrap();
    assert_eq!((&made["session_persistence"], &made["name"]), (&Value::Null, &json!("")));
}

#[test]
fn members_are_checked() {
    let mut cloud = Cloud::new();
    let web = cloud.web();
    let but = |fields: Value| set(member(3), fields);
    let cases = [
        (but(json!({"address": null})), 400, "address. Value: 'None'. Mandatory field missing."),
        (but(json!({"address": "node"})), 400, "Value should be IPv4 or IPv6 format"),
        (but(json!({"weight": 257})), 400, "lower or equal to 256"),
        (but(json!({"weight": -1})), 400, "greater or equal to 0"),
        (but(json!({"monitor_port": 0})), 400, "greater or equal to 1"),
        (
            but(json!({"address": "169.254.169.254"})),
            400,
            "is not a valid option for member address",
        ),
        (but(json!({"subnet_id": web.lb})), 400, "Subnet"),
        (
            member(1),
            409,
            "Another member on this pool is already using ip 127.0.1.1 on protocol_port 30080",
        ),
    ];
    refused(&cases, |body| cloud.post_member(&web.pool, body));
    let made = cloud
        .post_member(&web.pool, but(json!({"weight": "9", "subnet_id": cloud.subnet.clone()})))
        .unwrap();
    assert_eq!(
        (&made["weight"], &made["backup"], &made["monitor_port"]),
        (&json!(9), &json!(false), &Value::Null)
    );
    cloud.rest();
    let made = cloud
        .put_member(&web.pool, &id(&made), json!({"weight": null, "monitor_port": 8080}))
        .unwrap();
    assert_eq!((&made["weight"], &made["monitor_port"]), (&json!(1), &json!(8080)));
}

#[test]
fn monitors_are_checked() {
    let mut cloud = Cloud::new();
    let web = cloud.web();
    let but = |fields: Value| set(monitor(&web.pool), fields);
    let cases = [
        (but(json!({"delay": null})), 400, "delay. Value: 'None'. Mandatory field missing."),
        (but(json!({"max_retries": 0})), 400, "greater or equal to 1"),
        (but(json!({"max_retries_down": 11})), 400, "lower or equal to 10"),
        (
            but(json!({"type": "UDP-CONNECT"})),
            400,
            "The UDP-CONNECT type is only supported for pools of type UDP/SCTP.",
        ),
        (
            but(json!({"url_path": "/healthz"})),
            400,
            "url_path is not a valid option for health monitors of type TCP",
        ),
        (
            but(json!({"type": "HTTP", "url_path": "healthz"})),
            400,
            "Value must be a valid URL Path string",
        ),
        (but(json!({"type": "HTTP", "expected_codes": "2xx"})), 400, "expected_codes"),
        (but(json!({"type": "HTTP", "http_method": "BREW"})), 400, "Value should be one of: GET"),
        (
            but(json!({"type": "HTTP", "domain_name": "a.b"})),
            400,
            "'http_version' must be specified",
        ),
        (
            but(json!({"type": "HTTP", "domain_name": "a.b", "http_version": 1.0})),
            400,
            "http_version 1.0 is not a valid option",
        ),
        (but(json!({"pool_id": web.lb})), 404, "Pool"),
    ];
    refused(&cases, |body| cloud.post_monitor(body));
    let made = cloud.post_monitor(but(json!({"type": "HTTP"}))).unwrap();
    let http =
        ["http_method", "url_path", "expected_codes"].map(|field| made[field].as_str().unwrap());
    assert_eq!((http, &made["max_retries_down"]), (["GET", "/", "200"], &json!(3)));
    assert_eq!(cloud.pool(&web.pool)["healthmonitor_id"], made["id"]);
    cloud.rest();
    assert_eq!(
        refusal(cloud.post_monitor(but(json!({})))),
        (409, "This pool already has a health monitor".into())
    );
    let monitor = id(&made);
    assert_eq!(
        refusal(cloud.put_monitor(&monitor, json!({"delay": null}))).1,
        "None is not a valid option for delay"
    );
    assert_eq!(refusal(cloud.put_monitor(&monitor, json!({"type": "TCP"}))).0, 400, "a kind stays");
    let made = cloud
        .put_monitor(&monitor, json!({"url_path": null, "max_retries_down": null, "delay": 9}))
        .unwrap();
    assert_eq!(
        (&made["url_path"], &made["max_retries_down"], &made["delay"]),
        (&json!("/"), &json!(3), &json!(9))
    );
}

/// UDP pools take TCP and HTTP monitors from 2.16 on.
#[test]
fn what_is_newer_than_the_service_is_unknown() {
    let udp = json!({"protocol": "UDP", "protocol_port": 53,
        "default_pool": {"name": "p", "protocol": "UDP", "lb_algorithm": "ROUND_ROBIN"}});
    for (newest, fits) in [(15, false), (16, true)] {
        let mut cloud = Cloud::new();
        cloud.settings(|settings| settings.newest_minor = newest);
        let lb = cloud.post_lb(json!({"listeners": [udp]})).unwrap();
        cloud.rest();
        let pool = id(&lb["pools"][0]);
        assert_eq!(
            cloud
                .post_monitor(set(monitor(&pool), json!({"type": "HTTP"})))
                .is_ok(),
            fits,
            "2.{newest}"
        );
    }
    for (newest, field, value) in [
        (4, "tags", json!(["a"])),
        (5, "flavor_id", Value::Null),
        (13, "availability_zone", json!("az")),
        (25, "additional_vips", json!([])),
    ] {
        let mut cloud = Cloud::new();
        cloud.settings(|settings| settings.newest_minor = newest);
        let text = format!("Unknown attribute for argument loadbalancer: {field}");
        assert_eq!(refusal(cloud.post_lb(json!({field: value}))), (400, text));
    }
}

#[test]
fn immutable_fields_are_unknown_to_updates() {
    let mut cloud = Cloud::new();
    let web = cloud.web();
    let member = id(&cloud.members(&web.pool)[0]);
    assert_eq!(refusal(cloud.put_lb(&web.lb, json!({"vip_address": "127.1.0.9"}))).0, 400);
    assert_eq!(refusal(cloud.put_lb(&web.lb, json!({"provider": "ovn"}))).0, 400);
    assert_eq!(refusal(cloud.put_listener(&web.listener, json!({"protocol_port": 81}))).0, 400);
    assert_eq!(refusal(cloud.put_listener(&web.listener, json!({"protocol": "HTTP"}))).0, 400);
    assert_eq!(refusal(cloud.put_pool(&web.pool, json!({"protocol": "HTTP"}))).0, 400);
    for field in ["address", "protocol_port", "subnet_id"] {
        assert_eq!(refusal(cloud.put_member(&web.pool, &member, json!({field: 1}))).0, 400);
    }
}

#[test]
fn null_puts_a_listener_back_to_its_defaults() {
    let mut cloud = Cloud::new();
    let web = cloud.web();
    let fields = json!({"allowed_cidrs": ["10.0.0.0/8"], "connection_limit": 5, "timeout_client_data": 1, "name": "n"});
    cloud.put_listener(&web.listener, fields).unwrap();
    cloud.rest();
    let nulls = json!({"allowed_cidrs": null, "connection_limit": null, "timeout_client_data": null, "name": null});
    let made = cloud.put_listener(&web.listener, nulls).unwrap();
    assert_eq!((&made["allowed_cidrs"], &made["connection_limit"]), (&Value::Null, &json!(-1)));
    assert_eq!((&made["timeout_client_data"], &made["name"]), (&json!(50000), &json!("")));
    cloud.rest();
    let made = cloud
        .put_listener(&web.listener, json!({"default_pool_id": null}))
        .unwrap();
    assert_eq!(made["default_pool_id"], Value::Null);
    assert_eq!(cloud.pool(&web.pool)["listeners"], json!([]));
}

#[test]
fn ovn_says_what_it_cannot() {
    let mut cloud = Cloud::new();
    let lb = id(&cloud.post_lb(json!({"provider": "ovn"})).unwrap());
    cloud.rest();
    let listener = json!({"loadbalancer_id": lb, "protocol": "TCP", "protocol_port": 80});
    let pool = json!({"loadbalancer_id": lb, "protocol": "TCP", "lb_algorithm": "SOURCE_IP_PORT"});
    let prefix = "Provider 'ovn' does not support a requested option: ";
    refused(
        &[
            (set(listener.clone(), json!({"protocol": "HTTP"})), 501, prefix),
            (set(listener.clone(), json!({"allowed_cidrs": ["10.0.0.0/8"]})), 501, prefix),
        ],
        |body| cloud.post_listener(body),
    );
    refused(
        &[
            (set(pool.clone(), json!({"lb_algorithm": "ROUND_ROBIN"})), 501, prefix),
            (set(pool.clone(), json!({"protocol": "PROXY"})), 501, prefix),
        ],
        |body| cloud.post_pool(body),
    );
    cloud.post_listener(listener).unwrap();
    cloud.rest();
    let pool = id(&cloud.post_pool(pool).unwrap());
    cloud.rest();
    assert_eq!(refusal(cloud.post_monitor(set(monitor(&pool), json!({"type": "HTTP"})))).0, 501);
    assert_eq!(
        refusal(cloud.post_member(&pool, json!({"address": "10.9.9.9", "protocol_port": 80}))).0,
        501
    );
    cloud
        .post_member(&pool, json!({"address": "127.1.0.77", "protocol_port": 80}))
        .expect("inside the VIP's subnet");
    cloud.settings(|settings| settings.failover_needs_admin = false);
    let failover = cloud.run(|state, ctx| load_balancers::failover(state, ctx, &lb));
    assert!(
        refusal(failover)
            .1
            .starts_with("Provider 'ovn' does not support a requested action: ")
    );
}

#[test]
fn flavors_belong_to_providers() {
    let mut cloud = Cloud::new();
    let small = crate::octavia::put_flavor(&mut cloud.state, "small", "amphora", true);
    let off = crate::octavia::put_flavor(&mut cloud.state, "off", "amphora", false);
    assert_eq!(cloud.post_lb(json!({"flavor_id": small})).unwrap()["provider"], "amphora");
    let text = format!("Flavor '{small}' is not compatible with provider 'ovn'");
    assert_eq!(refusal(cloud.post_lb(json!({"flavor_id": small, "provider": "ovn"}))), (400, text));
    let text = format!("The selected flavor is not allowed in this deployment: {off}");
    assert_eq!(refusal(cloud.post_lb(json!({"flavor_id": off}))), (400, text));
}
