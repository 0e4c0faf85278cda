//! Every type that is read accepts what releases and drivers of OpenStack may send.

use std::fmt::Debug;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    from_json,
    keystone::Token,
    neutron::{Extension, FloatingIp, Network, Port, Router, SecurityGroup, Subnet},
    nova::{Flavor, Server},
    octavia::{HealthMonitor, Listener, LoadBalancer, LoadBalancerTree, Member, Pool},
    version::VersionDocument,
};

fn parse<T: DeserializeOwned>(object: &Value) -> T {
    from_json(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"))
}

/// Checks a type with an object as a service sends it. `required`: names of the fields that the
/// provider cannot go on without.
fn check<T: DeserializeOwned + Debug>(complete: &Value, required: &[&str]) {
    parse::<T>(complete);
    let fields = complete.as_object().unwrap();
    // Every other field may be null, a list of null, or absent, each alone and all together.
    let mut all_null = fields.clone();
    let mut minimal = fields.clone();
    for (name, field) in fields {
        if required.contains(&&**name) {
            continue;
        }
        let mut one = fields.clone();
        one.insert(name.clone(), Value::Null);
        parse::<T>(&one.clone().into());
        one.remove(name);
        parse::<T>(&one.clone().into());
        if field.is_array() {
            one.insert(name.clone(), json!([null]));
            parse::<T>(&one.into());
        }
        all_null.insert(name.clone(), Value::Null);
        minimal.remove(name);
    }
    let from_null = parse::<T>(&all_null.into());
    let from_minimal = parse::<T>(&minimal.clone().into());
    assert_eq!(format!("{from_null:?}"), format!("{from_minimal:?}"), "null is as good as absent");
    // A field that nobody reads may contain anything.
    let mut odd = fields.clone();
    odd.insert("something_new".into(), json!({"a": [1, "b", {"c": null}]}));
    parse::<T>(&odd.into());
    // Without a required field, or with null in it, nothing is known.
    for name in required {
        for null in [None, Some(Value::Null)] {
            let mut object = minimal.clone();
            object.remove(*name);
            object.extend(null.map(|null| ((*name).to_owned(), null)));
            assert!(from_json::<T>(object.into()).is_err(), "without {name}");
        }
    }
}

/// In the form of Neutron 2026.1, with what it answers for an L3 agent without a zone.
fn router() -> Value {
    json!({
        "id": "0a4ffd0e-9d0f-4b6c-a2ec-7d8a1ee5a0a2", "name": "nodes", "status": "ACTIVE",
        "admin_state_up": true, "tenant_id": "9d0e", "project_id": "9d0e", "description": "",
        "external_gateway_info": {"network_id": "f1", "external_fixed_ips":
            [{"subnet_id": "f2", "ip_address": "203.0.113.7"}], "enable_snat": true},
        "availability_zone_hints": [], "availability_zones": [null], "flavor_id": null,
        "routes": [{"destination": "10.244.1.0/24", "nexthop": "10.0.0.11"}],
        "tags": [], "created_at": "2026-11-02T08:00:00Z", "updated_at": "2026-11-02T08:00:09Z",
        "revision_number": 4,
    })
}

fn server() -> Value {
    json!({
        "id": "s", "name": "node-1", "status": "ACTIVE", "hostId": "h",
        "OS-EXT-AZ:availability_zone": "nova", "accessIPv4": "", "accessIPv6": "",
        "flavor": {"original_name": "m1.small", "vcpus": 1, "extra_specs": {}},
        "metadata": {"hostname": "node-1.example", "other": "x"},
        "addresses": {"net": [{"addr": "10.0.0.11", "version": 4, "OS-EXT-IPS:type": "fixed",
            "OS-EXT-IPS-MAC:mac_addr": "fa:16:3e:00:00:01"}]},
        "image": "", "key_name": null, "progress": 0,
    })
}

fn port() -> Value {
    json!({
        "id": "p", "network_id": "n", "status": "ACTIVE", "device_id": "s", "device_owner": "compute:nova",
        "fixed_ips": [{"subnet_id": "sn", "ip_address": "10.0.0.11"}], "security_groups": ["g"],
        "allowed_address_pairs": [{"ip_address": "10.244.0.0/24", "mac_address": "fa:16:3e:00:00:01"}],
        "port_security_enabled": true, "revision_number": 3, "tags": ["t"],
        "trunk_details": {"trunk_id": "t", "sub_ports": [{"port_id": "q", "segmentation_id": 5}]},
    })
}

fn rule() -> Value {
    json!({
        "id": "r", "security_group_id": "g", "direction": "ingress", "ethertype": "IPv4", "protocol": "tcp",
        "port_range_min": 80, "port_range_max": 80, "remote_ip_prefix": "0.0.0.0/0",
        "remote_group_id": null, "remote_address_group_id": null,
    })
}

fn load_balancer() -> Value {
    json!({
        "id": "lb", "name": "web", "description": "", "provisioning_status": "ACTIVE",
        "operating_status": "ONLINE", "created_at": "2026-11-02T08:00:00", "updated_at": null,
        "vip_address": "10.0.0.5", "vip_port_id": "p", "vip_subnet_id": "sn", "vip_network_id": "n",
        "listeners": [{"id": "l"}], "pools": [{"id": "o"}], "provider": "amphora", "tags": ["t"],
        "flavor_id": null, "admin_state_up": true, "additional_vips": [], "vip_qos_policy_id": null,
    })
}

fn listener() -> Value {
    json!({
        "id": "l", "name": "l", "protocol": "TCP", "protocol_port": 80, "connection_limit": -1,
        "default_tls_container_ref": null, "default_pool_id": "o", "insert_headers": {"X-Forwarded-For": "true"},
        "created_at": "2026-11-02T08:00:00", "loadbalancers": [{"id": "lb"}], "timeout_client_data": 50000,
        "timeout_member_connect": 5000, "timeout_member_data": 50000, "timeout_tcp_inspect": 0,
        "tags": ["t"], "allowed_cidrs": ["192.0.2.0/24"], "provisioning_status": "ACTIVE", "operating_status": "ONLINE",
    })
}

fn pool() -> Value {
    json!({
        "id": "o", "name": "o", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN",
        "session_persistence": {"type": "SOURCE_IP", "cookie_name": null}, "loadbalancers": [{"id": "lb"}],
        "listeners": [{"id": "l"}], "healthmonitor_id": "h", "members": [{"id": "m"}],
        "provisioning_status": "ACTIVE", "operating_status": "ONLINE",
    })
}

fn member() -> Value {
    json!({
        "id": "m", "name": "node-1", "address": "10.0.0.11", "protocol_port": 30080, "weight": 1,
        "subnet_id": "sn", "monitor_port": null, "operating_status": "NO_MONITOR", "provisioning_status": "ACTIVE",
    })
}

fn monitor() -> Value {
    json!({
        "id": "h", "name": "h", "type": "HTTP", "delay": 5, "timeout": 3, "max_retries": 1, "max_retries_down": 3,
        "http_method": "GET", "url_path": "/healthz", "expected_codes": "200",
    })
}

#[test]
fn what_is_not_needed_may_be_null_or_absent() {
    check::<Token>(
        &json!({"issued_at": "2026-11-02T08:00:00.000000Z", "expires_at": "2026-11-02T09:00:00.000000Z",
            "methods": ["password"], "catalog": [{"id": "c", "type": "compute", "name": "nova", "endpoints": [
                {"id": "e", "interface": "public", "region": "R", "region_id": "R", "url": "http://c/"}]}]}),
        &[],
    );
    check::<Server>(&server(), &["id"]);
    check::<Flavor>(&json!({"id": "f", "name": "m1.small", "ram": 1}), &["name"]);
    check::<Extension>(&json!({"alias": "extraroute", "links": [], "updated": null}), &["alias"]);
    check::<Router>(&router(), &["routes"]);
    check::<Network>(
        &json!({"id": "n", "name": "n", "router:external": true, "subnets": ["sn"], "mtu": 1450,
            "availability_zones": []}),
        &["id"],
    );
    check::<Subnet>(
        &json!({"id": "sn", "name": "s", "network_id": "n", "ip_version": 4, "cidr": "10.0.0.0/24",
            "tags": ["t"], "gateway_ip": null}),
        &["id"],
    );
    check::<Port>(&port(), &["id", "device_id", "status", "fixed_ips"]);
    check::<FloatingIp>(
        &json!({"id": "f", "floating_ip_address": "203.0.113.9", "port_id": "p", "description": "d",
            "port_details": null, "status": "DOWN"}),
        &["id"],
    );
    check::<SecurityGroup>(
        &json!({"id": "g", "name": "g", "description": "d", "created_at": "2026-11-02T08:00:00Z",
            "security_group_rules": [rule()], "stateful": true}),
        &["id", "name"],
    );
    check::<super::neutron::SecurityGroupRule>(&rule(), &["id"]);
    check::<LoadBalancer>(&load_balancer(), &["id", "name", "provisioning_status"]);
    check::<LoadBalancerTree>(&load_balancer_tree(), &["id", "name", "provisioning_status"]);
    check::<Listener>(&listener(), &["id", "protocol", "protocol_port"]);
    check::<Pool>(&pool(), &["id", "protocol"]);
    check::<Member>(&member(), &["id", "address", "protocol_port"]);
    check::<HealthMonitor>(&monitor(), &["id", "type"]);
}

fn load_balancer_tree() -> Value {
    let mut pool = pool();
    pool["members"] = json!([member()]);
    pool["healthmonitor"] = monitor();
    pool.as_object_mut().unwrap().remove("healthmonitor_id");
    let mut tree = load_balancer();
    tree["listeners"] = json!([listener()]);
    tree["pools"] = json!([pool]);
    tree
}

#[test]
fn the_answer_to_a_create_has_everything_below_the_load_balancer() {
    let tree: LoadBalancerTree = parse(&load_balancer_tree());
    assert_eq!(tree.load_balancer, parse(&load_balancer()));
    assert_eq!(tree.listeners, [parse::<Listener>(&listener())]);
    assert_eq!(tree.pools[0].pool, parse(&pool()));
    assert_eq!(tree.pools[0].members, [parse::<Member>(&member())]);
    assert_eq!(tree.pools[0].monitor, Some(parse(&monitor())));
}

#[test]
fn unknown_words_are_kept() {
    let with = |mut object: Value, field: &str| {
        object[field] = "SOMETHING_NEW".into();
        object
    };
    let word = "SOMETHING_NEW";
    assert_eq!(parse::<Server>(&with(server(), "status")).status, word);
    assert_eq!(parse::<Port>(&with(port(), "status")).status, word);
    let rule =
        parse::<super::neutron::SecurityGroupRule>(&with(with(rule(), "direction"), "ethertype"));
    assert_eq!((rule.direction.as_str(), rule.ethertype.as_str()), (word, word));
    let status = parse::<LoadBalancer>(&with(load_balancer(), "provisioning_status"));
    assert_eq!(status.provisioning_status.as_str(), word);
    assert!(!status.provisioning_status.is_pending());
    let status = parse::<LoadBalancer>(&with(load_balancer(), "operating_status"));
    assert_eq!(status.operating_status.as_str(), word);
    assert_eq!(
        parse::<Listener>(&with(listener(), "protocol"))
            .protocol
            .as_str(),
        word
    );
    assert_eq!(parse::<Pool>(&with(pool(), "protocol")).protocol.as_str(), word);
    let algorithm = parse::<Pool>(&with(pool(), "lb_algorithm")).lb_algorithm;
    assert_eq!(algorithm.unwrap().as_str(), word);
    let mut persistent = pool();
    persistent["session_persistence"]["type"] = word.into();
    let persistence = parse::<Pool>(&persistent).session_persistence;
    assert_eq!(persistence.unwrap().kind.as_str(), word);
    assert_eq!(
        parse::<HealthMonitor>(&with(monitor(), "type"))
            .kind
            .as_str(),
        word
    );
    let mut address = server();
    address["addresses"]["net"][0]["OS-EXT-IPS:type"] = word.into();
    assert!(!parse::<Server>(&address).addresses.unwrap()["net"][0].is_floating());
}

#[test]
fn defaults_are_the_services_own() {
    let listener: Listener = parse(&json!({"id": "l", "protocol": "TCP", "protocol_port": 80}));
    assert_eq!((listener.connection_limit, listener.allowed_cidrs), (-1, None));
    let member: Member = parse(&json!({"id": "m", "address": "10.0.0.1", "protocol_port": 80}));
    assert_eq!(member.weight, 1);
    let load_balancer: LoadBalancer =
        parse(&json!({"id": "lb", "name": "b", "provisioning_status": "ACTIVE"}));
    assert_eq!(load_balancer.operating_status.as_str(), "", "it is not known to be online");
}

#[test]
fn odd_rows_are_read() {
    // Nova answers so for a server in a cell that is down, and for one with the oldest microversion.
    let partial: Server =
        parse(&json!({"id": "s", "status": "UNKNOWN", "created": "", "links": []}));
    assert!(partial.is_partial());
    let mut old = server();
    old["flavor"] = json!({"id": "7", "links": []});
    let flavor = parse::<Server>(&old).flavor.unwrap();
    assert_eq!((flavor.id.as_deref(), flavor.original_name), (Some("7"), None));
    old["flavor"] = json!({});
    assert!(parse::<Server>(&old).flavor.unwrap().id.is_none());
    // An address that is none would be lost, and equal ones are written alike.
    let mut addresses = server();
    addresses["addresses"]["net"][0]["addr"] = "2001:DB8:0::1".into();
    let found = &parse::<Server>(&addresses).addresses.unwrap()["net"][0];
    assert_eq!(found.addr.to_string(), "2001:db8::1");
    for odd in ["", "10.0.0.256", "node-1"] {
        addresses["addresses"]["net"][0]["addr"] = odd.into();
        assert!(from_json::<Server>(addresses.clone()).is_err(), "{odd:?}");
    }
    // Numbers and booleans where others have text.
    let mut number = rule();
    number["protocol"] = json!(6);
    let protocol = parse::<super::neutron::SecurityGroupRule>(&number).protocol;
    assert_eq!(protocol.as_deref(), Some("6"));
    let mut headers = listener();
    headers["insert_headers"] = json!({"X-Forwarded-For": true});
    assert_eq!(parse::<Listener>(&headers).insert_headers.unwrap()["X-Forwarded-For"], "true");
    // A route or an address pair that cannot be sent back as it was must not be lost.
    let mut routes = router();
    routes["routes"] = json!([{"destination": "10.244.1.0/24"}]);
    assert!(from_json::<Router>(routes).is_err());
    // Nor a port on a trunk that cannot be identified, or an address that is on no subnet.
    let sub_ports = "/trunk_details/sub_ports";
    for path in [sub_ports, "/trunk_details/sub_ports/0/port_id", "/fixed_ips/0/subnet_id"] {
        let mut incomplete = port();
        *incomplete.pointer_mut(path).unwrap() = Value::Null;
        assert!(from_json::<Port>(incomplete).is_err(), "{path}");
    }
    let mut pairs = port();
    pairs["allowed_address_pairs"] = json!([{"mac_address": "fa:16:3e:00:00:01"}]);
    assert!(from_json::<Port>(pairs).is_err());
}

#[test]
fn version_documents_have_three_forms() {
    let nova = json!({"id": "v2.1", "status": "CURRENT", "version": "2.96", "min_version": "2.1",
        "updated": null, "links": [{"rel": "self", "href": "http://c/compute/v2.1/"}]});
    let octavia = json!({"versions": [{"id": "v2.0", "status": "SUPPORTED", "links": null}, {"id": "v2.30"}]});
    let keystone =
        json!({"versions": {"values": [{"id": "v3.14", "status": "stable", "media-types": []}]}});
    let versions = |document: &Value| parse::<VersionDocument>(document).into_versions();
    let one = &versions(&json!({ "version": nova }))[0];
    assert_eq!(one.self_link(), Some("http://c/compute/v2.1/"));
    assert_eq!(one.version.as_deref(), Some("2.96"));
    assert_eq!(versions(&octavia)[1].number(), Some((2, 30)));
    assert_eq!(versions(&keystone)[0].number(), Some((3, 14)));
    assert!(from_json::<VersionDocument>(json!({"choices": []})).is_err());
}

#[test]
fn ids_have_numbers() {
    for (id, expected) in [
        ("v2.30", Some((2, 30))),
        ("v2", Some((2, 0))),
        ("2.30", None),
        ("v2.x", None),
        ("v2.1.3", None),
    ] {
        let version = super::version::Version { id: id.to_owned(), ..Default::default() };
        assert_eq!(version.number(), expected, "{id}");
    }
}

#[test]
fn the_local_cloud_shares_no_types_with_the_provider() {
    let manifest = include_str!("../../../openstack-local/Cargo.toml");
    let dependencies: Vec<&str> = manifest
        .lines()
        .filter(|line| line.contains(".workspace"))
        .collect();
    assert!(dependencies.len() > 30, "{dependencies:?}");
    for shared in ["openstack-api", "ccm-openstack"] {
        assert!(!dependencies.iter().any(|line| line.starts_with(shared)), "{shared}");
    }
}
