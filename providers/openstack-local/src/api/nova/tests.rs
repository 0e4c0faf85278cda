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

fn server_2_1() -> Value {
    json!({"server": {
        "id": "569f39f9-7c76-42a1-9c2d-8394e2638a6d",
        "name": "node-1",
        "status": "ACTIVE",
        "tenant_id": "6f70656e737461636b20342065766572",
        "user_id": "fake",
        "metadata": {"hostname": "node-1.example.org"},
        "hostId": "2091634baaccdc4c5a1d57069c833e402921df696b7f970791b12ec6",
        "image": {"id": "70a599e0-31e7-49b7-b260-868f441e862b", "links": [
            {"rel": "bookmark", "href": "http://127.0.0.1/images/70a599e0-31e7-49b7-b260-868f441e862b"}]},
        "flavor": {"id": "1", "links": [{"rel": "bookmark", "href": "http://127.0.0.1/flavors/1"}]},
        "created": "2017-10-10T15:49:08Z",
        "updated": "2017-10-10T15:49:09Z",
        "addresses": {"private": [
            {"addr": "192.168.0.3", "version": 4, "OS-EXT-IPS:type": "fixed",
             "OS-EXT-IPS-MAC:mac_addr": "fa:16:3e:00:00:01"},
            {"addr": "203.0.113.4", "version": 4, "OS-EXT-IPS:type": "floating",
             "OS-EXT-IPS-MAC:mac_addr": "fa:16:3e:00:00:01"},
            {"addr": "fd00::3", "version": 6}]},
        "accessIPv4": "",
        "accessIPv6": "",
        "links": [{"rel": "self", "href": "http://127.0.0.1/v2.1/servers/569f39f9-7c76-42a1-9c2d-8394e2638a6d"}],
        "OS-DCF:diskConfig": "AUTO",
        "progress": 0,
        "OS-EXT-AZ:availability_zone": "nova",
        "config_drive": "",
        "key_name": null,
        "OS-SRV-USG:launched_at": "2017-10-10T15:49:09.516729",
        "OS-SRV-USG:terminated_at": null,
        "security_groups": [{"name": "default"}],
        "OS-EXT-STS:task_state": null,
        "OS-EXT-STS:vm_state": "active",
        "OS-EXT-STS:power_state": 1,
        "os-extended-volumes:volumes_attached": []
    }})
}

#[test]
fn a_server_of_2_1_has_a_flavor_by_id() {
    let ServerEnvelope { server } = round_trip::<ServerEnvelope>(server_2_1());
    assert!(matches!(&server.flavor, Some(ServerFlavor::Reference { id, .. }) if id == "1"));
    let addresses = &server.addresses.as_ref().unwrap()["private"];
    assert_eq!(
        addresses
            .iter()
            .map(|address| address.kind)
            .collect::<Vec<_>>(),
        [Some(AddressType::Fixed), Some(AddressType::Floating), None]
    );
    assert_eq!(server.key_name, Some(None));
    assert!(!server.is_partial());
}

#[test]
fn a_server_of_2_96_has_its_flavor_within() {
    let mut body = server_2_1();
    let server = body["server"].as_object_mut().unwrap();
    server.insert("image".into(), json!(""));
    server.insert(
        "flavor".into(),
        json!({"original_name": "m1.tiny", "vcpus": 1, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0,
               "extra_specs": {"hw:cpu_policy": "dedicated"}}),
    );
    server.insert("locked".into(), json!(true));
    server.insert("locked_reason".into(), json!(null));
    server.insert("description".into(), json!(null));
    server.insert("tags".into(), json!(["a"]));
    server.insert("trusted_image_certificates".into(), json!(null));
    server.insert("server_groups".into(), json!([]));
    server.insert("OS-EXT-SRV-ATTR:hostname".into(), json!("node-1"));
    server.insert("pinned_availability_zone".into(), json!(null));
    let ServerEnvelope { server } = round_trip::<ServerEnvelope>(body);
    assert!(
        matches!(&server.flavor, Some(ServerFlavor::Embedded { original_name, .. }) if original_name == "m1.tiny")
    );
    assert_eq!(server.image, Some(Image::Volume));
    assert_eq!(server.pinned_availability_zone, Some(None));
}

#[test]
fn a_server_in_a_cell_that_does_not_answer_is_partial() {
    let page: Servers = round_trip(json!({"servers": [
        {"created": "2018-06-29T15:07:29Z", "status": "UNKNOWN", "tenant_id": "940f", "id": "bcc6",
         "links": [{"rel": "self", "href": "http://127.0.0.1/v2.1/servers/bcc6"}]}],
        "servers_links": [{"rel": "next", "href": "http://127.0.0.1/v2.1/servers/detail?marker=bcc6"}]}));
    assert!(page.servers[0].is_partial());
    assert_eq!(page.servers[0].name, None);
    assert_eq!(page.next(), Some("http://127.0.0.1/v2.1/servers/detail?marker=bcc6"));
}

#[test]
fn fields_that_nobody_knows_are_no_mistake() {
    let page: Servers =
        serde_json::from_value(json!({"servers": [{"id": "a", "name": "b", "new": 1}]})).unwrap();
    assert_eq!(page.servers[0].name.as_deref(), Some("b"));
    assert_eq!(page.next(), None);
}

#[test]
fn an_error_comes_with_its_fault() {
    let ServerEnvelope { server } = round_trip::<ServerEnvelope>(
        json!({"server": {"id": "a", "status": "ERROR",
        "fault": {"code": 500, "created": "2017-10-10T15:49:09Z", "message": "No valid host was found."}}}),
    );
    assert_eq!(server.fault.unwrap().code, 500);
}

#[test]
fn a_request_for_a_server_names_networks_or_says_a_word() {
    let body: ServerEnvelope<ServerCreate> = round_trip(
        json!({"server": {"name": "a", "flavorRef": "1",
        "networks": [{"uuid": "n", "fixed_ip": "10.0.0.4"}, {"port": "p"}], "availability_zone": "z",
        "security_groups": [{"name": "default"}], "metadata": {"k": "v"}}}),
    );
    assert!(matches!(body.server.networks, Some(Networks::These(these)) if these.len() == 2));
    let body: ServerEnvelope<ServerCreate> =
        round_trip(json!({"server": {"name": "a", "flavorRef": "1", "networks": "none"}}));
    assert_eq!(body.server.networks, Some(Networks::None));
    let error = serde_json::from_value::<ServerCreate>(
        json!({"name": "a", "flavorRef": "1", "networks": "some"}),
    );
    assert!(error.unwrap_err().to_string().contains("`some`"));
}

#[test]
fn actions_are_written_as_nova_reads_them() {
    assert_eq!(round_trip::<ServerAction>(json!({"os-start": null})), ServerAction::Start(()));
    assert_eq!(round_trip::<ServerAction>(json!({"os-stop": null})), ServerAction::Stop(()));
    assert_eq!(
        round_trip::<ServerAction>(json!({"reboot": {"type": "HARD"}})),
        ServerAction::Reboot(Reboot { kind: RebootType::Hard })
    );
    round_trip::<ServerAction>(json!({"lock": {"locked_reason": "mine"}}));
    round_trip::<ServerAction>(json!({"os-resetState": {"state": "error"}}));
}

#[test]
fn flavors_tell_swap_as_text_or_number() {
    let old = json!({"flavor": {"id": "1", "name": "m1.tiny", "ram": 512, "vcpus": 1, "disk": 1, "swap": "",
        "rxtx_factor": 1.0, "os-flavor-access:is_public": true, "OS-FLV-DISABLED:disabled": false,
        "OS-FLV-EXT-DATA:ephemeral": 0, "links": []}});
    assert_eq!(round_trip::<FlavorEnvelope>(old).flavor.swap, Some(Swap::Empty));
    let new = json!({"flavor": {"id": "1", "name": "m1.tiny", "ram": 512, "vcpus": 1, "disk": 1, "swap": 64,
        "rxtx_factor": 1.0, "os-flavor-access:is_public": true, "OS-FLV-DISABLED:disabled": false,
        "OS-FLV-EXT-DATA:ephemeral": 0, "description": null, "extra_specs": {}, "links": []}});
    assert_eq!(round_trip::<FlavorEnvelope>(new).flavor.swap, Some(Swap::Mib(64)));
}

#[test]
fn ports_zones_limits_and_quotas_keep_their_names() {
    round_trip::<InterfaceAttachments>(
        json!({"interfaceAttachments": [{"port_id": "p", "net_id": "n",
        "mac_addr": "fa:16:3e:00:00:01", "port_state": "ACTIVE",
        "fixed_ips": [{"subnet_id": "s", "ip_address": "10.0.0.3"}]}]}),
    );
    round_trip::<AvailabilityZones>(
        json!({"availabilityZoneInfo": [{"zoneName": "nova", "zoneState": {"available": true}, "hosts": null}]}),
    );
    round_trip::<LimitsEnvelope>(json!({"limits": {"rate": [], "absolute": {
        "maxTotalInstances": 10, "totalInstancesUsed": 1, "maxTotalCores": 20, "totalCoresUsed": 1,
        "maxTotalRAMSize": 51200, "totalRAMUsed": 512, "maxServerMeta": 128, "maxTotalKeypairs": 100,
        "maxServerGroups": 10, "maxServerGroupMembers": 10, "totalServerGroupsUsed": 0}}}));
    round_trip::<QuotaSetEnvelope>(
        json!({"quota_set": {"id": "p", "instances": 10, "cores": 20, "ram": 51200,
        "metadata_items": 128, "key_pairs": 100, "server_groups": 10, "server_group_members": 10}}),
    );
}
