use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::*;

/// Reads the body, checks that writing gives the same body, and returns what was read.
#[expect(clippy::needless_pass_by_value, reason = "bodies are written in place")]
fn round_trip<T: Serialize + DeserializeOwned>(body: Value) -> T {
    let read: T = serde_json::from_value(body.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), body);
    read
}

/// Adds what every resource carries.
fn standard(mut row: Value) -> Value {
    let standard = json!({"project_id": "p", "tenant_id": "p", "description": "", "revision_number": 3, "tags": ["t"],
        "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:01Z"});
    row.as_object_mut()
        .unwrap()
        .extend(standard.as_object().unwrap().clone());
    row
}

#[test]
fn extensions() {
    let page: Extensions = round_trip(
        json!({"extensions": [{"alias": "extraroute-atomic", "name": "Atomic extra routes",
        "description": "", "updated": "2019-07-10T00:00:00+00:00", "links": []}]}),
    );
    assert_eq!(page.extensions[0].alias, "extraroute-atomic");
}

#[test]
fn networks() {
    let NetworkEnvelope { network } =
        round_trip::<NetworkEnvelope>(json!({"network": standard(json!({
        "id": "n", "name": "public", "status": "ACTIVE", "admin_state_up": true, "shared": false,
        "router:external": true, "subnets": ["s"], "mtu": 1500, "port_security_enabled": true,
        "availability_zones": ["nova"], "availability_zone_hints": [], "ipv4_address_scope": null,
        "ipv6_address_scope": null}))}));
    assert!(network.external);
    assert_eq!(network.standard.revision_number, 3);
    round_trip::<NetworkEnvelope<NetworkCreate>>(
        json!({"network": {"name": "a", "router:external": false}}),
    );
}

#[test]
fn subnets() {
    let page: Subnets = round_trip(json!({"subnets": [standard(json!({
        "id": "s", "name": "a", "network_id": "n", "ip_version": 4, "cidr": "10.0.0.0/24", "gateway_ip": null,
        "enable_dhcp": true, "allocation_pools": [{"start": "10.0.0.2", "end": "10.0.0.254"}], "dns_nameservers": [],
        "host_routes": [], "ipv6_address_mode": null, "ipv6_ra_mode": null, "segment_id": null,
        "subnetpool_id": null, "service_types": []}))],
        "subnets_links": [{"rel": "next", "href": "http://127.0.0.1/v2.0/subnets?marker=s&limit=1"}]}));
    assert_eq!(page.next(), Some("http://127.0.0.1/v2.0/subnets?marker=s&limit=1"));
    assert_eq!(page.subnets[0].gateway_ip, None);
    let request: SubnetEnvelope<SubnetCreate> = round_trip(
        json!({"subnet": {"network_id": "n", "ip_version": 4, "cidr": "127.1.0.0/24", "gateway_ip": null}}),
    );
    assert_eq!(request.subnet.gateway_ip, Some(None));
    let request: SubnetCreate =
        serde_json::from_value(json!({"network_id": "n", "ip_version": 4})).unwrap();
    assert_eq!(request.gateway_ip, None);
}

fn port() -> Value {
    standard(json!({
        "id": "p", "name": "", "network_id": "n", "status": "ACTIVE", "admin_state_up": true,
        "mac_address": "fa:16:3e:00:00:01", "device_id": "d", "device_owner": "compute:nova",
        "fixed_ips": [{"subnet_id": "s", "ip_address": "10.0.0.3"}, {"subnet_id": "s6", "ip_address": "fd00::3"}],
        "security_groups": ["g"], "port_security_enabled": true, "binding:vnic_type": "normal", "extra_dhcp_opts": [],
        "allowed_address_pairs": [{"ip_address": "10.8.0.0/24", "mac_address": "fa:16:3e:00:00:01"}]}))
}

#[test]
fn ports_tell_a_trunk_only_where_there_is_one() {
    let read: PortEnvelope = round_trip(json!({ "port": port() }));
    assert_eq!(read.port.trunk_details, None);
    let mut parent = port();
    parent["trunk_details"] = json!({"trunk_id": "t", "sub_ports": [{"port_id": "q", "segmentation_id": 7,
        "segmentation_type": "vlan", "mac_address": "fa:16:3e:00:00:02"}]});
    let read: PortEnvelope = round_trip(json!({ "port": parent }));
    assert_eq!(read.port.trunk_details.unwrap().sub_ports[0].segmentation_id, 7);
}

#[test]
fn ports_with_chosen_fields_or_without_extensions_are_read() {
    let page: Ports = serde_json::from_value(
        json!({"ports": [{"id": "p", "fixed_ips": [], "description": null, "tags": null}]}),
    )
    .unwrap();
    assert_eq!(page.ports[0].port_security_enabled, None);
}

#[test]
fn updates_of_ports_say_only_what_changes() {
    let update: PortEnvelope<PortUpdate> =
        round_trip(json!({"port": {"allowed_address_pairs": [{"ip_address": "10.8.0.0/24"}]}}));
    assert_eq!(update.port.allowed_address_pairs.unwrap()[0].mac_address, None);
    let update: PortEnvelope<PortUpdate> =
        round_trip(json!({"port": {"device_id": null, "security_groups": []}}));
    assert_eq!((update.port.device_id, update.port.security_groups), (Some(None), Some(vec![])));
}

#[test]
fn routers() {
    let RouterEnvelope { router } = round_trip::<RouterEnvelope>(json!({"router": standard(json!({
        "id": "r", "name": "a", "status": "ACTIVE", "admin_state_up": true,
        "routes": [{"destination": "10.8.0.0/24", "nexthop": "10.0.0.3"}],
        "external_gateway_info": {"network_id": "n", "enable_snat": true,
            "external_fixed_ips": [{"subnet_id": "s", "ip_address": "203.0.113.2"}]},
        "ha": false, "distributed": false, "availability_zones": ["nova"], "availability_zone_hints": [],
        "flavor_id": null}))}));
    assert_eq!(router.routes.len(), 1);
    let update: RouterUpdate = round_trip(json!({"external_gateway_info": null, "routes": []}));
    assert_eq!(update.external_gateway_info, Some(None));
    let update: RouterUpdate = round_trip(json!({"external_gateway_info": {}}));
    assert_eq!(update.external_gateway_info, Some(Some(GatewayRequest::default())));
    round_trip::<RouterEnvelope<ExtraRoutes>>(
        json!({"router": {"routes": [{"destination": "10.8.0.0/24", "nexthop": "10.0.0.3"}]}}),
    );
    round_trip::<RouterEnvelope<ExtraRoutes>>(
        json!({"router": {"id": "r", "name": "a", "routes": []}}),
    );
    round_trip::<InterfaceRequest>(json!({"subnet_id": "s"}));
    round_trip::<RouterInterface>(
        json!({"id": "r", "tenant_id": "p", "project_id": "p", "port_id": "q",
        "network_id": "n", "subnet_id": "s", "subnet_ids": ["s"], "tags": []}),
    );
}

#[test]
fn floating_ips_send_null_to_detach() {
    let FloatingIpEnvelope { floatingip } = round_trip::<FloatingIpEnvelope>(
        json!({"floatingip": standard(json!({
        "id": "f", "floating_ip_address": "203.0.113.4", "floating_network_id": "n", "fixed_ip_address": null,
        "port_id": null, "router_id": null, "status": "DOWN", "port_details": null, "port_forwardings": [],
        "qos_policy_id": null}))}),
    );
    assert_eq!(floatingip.port_id, None);
    let detach = FloatingIpEnvelope { floatingip: FloatingIpUpdate::detach() };
    assert_eq!(serde_json::to_value(detach).unwrap(), json!({"floatingip": {"port_id": null}}));
    let attach = FloatingIpEnvelope { floatingip: FloatingIpUpdate::attach("p") };
    assert_eq!(serde_json::to_value(attach).unwrap(), json!({"floatingip": {"port_id": "p"}}));
    assert_eq!(
        serde_json::from_value::<FloatingIpUpdate>(json!({"description": "d"}))
            .unwrap()
            .port_id,
        None
    );
    assert_eq!(
        serde_json::from_value::<FloatingIpUpdate>(json!({"port_id": null}))
            .unwrap()
            .port_id,
        Some(None)
    );
}

#[test]
fn security_groups_and_rules() {
    let rule = standard(
        json!({"id": "r", "security_group_id": "g", "direction": "egress", "ethertype": "IPv6",
        "protocol": null, "port_range_min": null, "port_range_max": null, "remote_ip_prefix": null,
        "remote_group_id": null, "remote_address_group_id": null, "normalized_cidr": null,
        "belongs_to_default_sg": false}),
    );
    let read: SecurityGroupEnvelope = round_trip(json!({"security_group": standard(json!({
        "id": "g", "name": "a", "stateful": true, "shared": false, "security_group_rules": [rule]}))}));
    let rule = &read.security_group.security_group_rules[0];
    assert_eq!((rule.direction, rule.ethertype), (Direction::Egress, EtherType::Ipv6));
    let bulk: SecurityGroupRulesCreate = round_trip(json!({"security_group_rules": [
        {"security_group_id": "g", "direction": "ingress", "ethertype": "IPv4", "protocol": "tcp",
         "port_range_min": 30000, "port_range_max": 30000, "remote_ip_prefix": "10.0.0.0/24"}]}));
    assert_eq!(bulk.security_group_rules.len(), 1);
    let numbered: SecurityGroupRuleCreate = serde_json::from_value(
        json!({"security_group_id": "g", "direction": "ingress", "protocol": 6}),
    )
    .unwrap();
    assert_eq!(numbered.protocol.as_deref(), Some("6"));
}

#[test]
fn trunks() {
    round_trip::<TrunkEnvelope>(
        json!({"trunk": standard(json!({"id": "t", "name": "a", "port_id": "p",
        "status": "ACTIVE", "admin_state_up": true,
        "sub_ports": [{"port_id": "q", "segmentation_id": 7, "segmentation_type": "vlan"}]}))}),
    );
    round_trip::<SubPorts>(json!({"sub_ports": [{"port_id": "q"}]}));
}

#[test]
fn quotas() {
    let read: QuotaEnvelope = round_trip(
        json!({"quota": {"network": 100, "subnet": 100, "subnetpool": -1, "port": 500,
        "router": 10, "floatingip": 50, "security_group": 10, "security_group_rule": 100, "rbac_policy": 10,
        "trunk": -1}}),
    );
    assert_eq!(read.quota, Quota::default());
    let mut quota = Quota::default();
    quota.apply(&QuotaUpdate { security_group: Some(2), ..QuotaUpdate::default() });
    assert_eq!((quota.security_group, quota.port), (2, 500));
}

#[test]
fn a_revision_is_asked_for_as_neutron_reads_it() {
    assert_eq!(if_match(7), "revision_number=7");
}
