mod keys_and_groups;

use axum::body::Body;
use http::Request;
use serde_json::{Value, json};

use super::*;
use crate::{
    server::{
        Settings,
        tests::{Answer, Asked},
    },
    state::CloudState,
};

/// A cloud with a user, a network inside with a subnet, one outside, and a router between them.
struct Fixture {
    cloud: Asked,
    token: String,
    admin: String,
    network: String,
    outside: String,
}

impl Fixture {
    async fn new() -> Self {
        let cloud = Asked::new(Settings::default());
        let (token, admin) = (cloud.token("demo").await, cloud.token("admin").await);
        let mut world = Self {
            cloud,
            token,
            admin,
            network: String::new(),
            outside: String::new(),
        };
        world.network = world.network("inside", "10.0.0.0/24").await;
        let admin = world.admin.clone();
        let outside = json!({"network": {"name": "outside", "router:external": true}});
        world.outside = made(&world.cloud, &admin, "networks", outside).await;
        let subnet = json!({"subnet": {"network_id": world.outside, "ip_version": 4, "cidr": "203.0.113.0/24"}});
        made(&world.cloud, &admin, "subnets", subnet).await;
        let gateway = json!({"router": {"external_gateway_info": {"network_id": world.outside}}});
        let router = made(&world.cloud, &world.token, "routers", gateway).await;
        let subnets = world
            .cloud
            .get("/network/v2.0/subnets", &world.token)
            .await
            .body;
        let body = json!({"subnet_id": subnets["subnets"][0]["id"]});
        let path = format!("/network/v2.0/routers/{router}/add_router_interface");
        assert_eq!(
            world
                .cloud
                .ask("PUT", &path, &world.token, Some(body))
                .await
                .status,
            200
        );
        world
    }

    async fn network(&self, name: &str, cidr: &str) -> String {
        let id =
            made(&self.cloud, &self.token, "networks", json!({"network": {"name": name}})).await;
        let subnet = json!({"subnet": {"network_id": id, "ip_version": 4, "cidr": cidr}});
        made(&self.cloud, &self.token, "subnets", subnet).await;
        id
    }

    /// Asks compute in a microversion (0: without a header).
    async fn ask(&self, method: &str, path: &str, minor: u16, body: Option<Value>) -> Answer {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/compute/v2.1/{path}"))
            .header("host", "cloud.test:5000")
            .header("x-auth-token", &self.token);
        if minor > 0 {
            request = request.header("openstack-api-version", format!("compute 2.{minor}"));
        }
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        self.cloud.send(request.body(body).unwrap()).await
    }

    async fn get(&self, path: &str, minor: u16) -> Value {
        let answer = self.ask("GET", path, minor, None).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }

    /// Makes a server on the network inside.
    async fn server(&self, name: &str) -> String {
        let server = json!({"name": name, "flavorRef": "1", "networks": [{"uuid": self.network}]});
        let answer = self
            .ask("POST", "servers", 0, Some(json!({ "server": server })))
            .await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        answer.body["server"]["id"].as_str().unwrap().to_owned()
    }

    async fn act(&self, id: &str, action: Value) -> u16 {
        self.ask("POST", &format!("servers/{id}/action"), 0, Some(action))
            .await
            .status
            .as_u16()
    }

    async fn change(
        &self,
        change: impl FnOnce(&mut CloudState) -> Result<(), crate::state::ApiError>,
    ) {
        self.cloud.local.cloud().store.change(change).await.unwrap();
    }
}

async fn made(cloud: &Asked, token: &str, path: &str, body: Value) -> String {
    let answer = cloud
        .post(&format!("/network/v2.0/{path}"), token, body)
        .await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let one = answer.body.as_object().unwrap().values().next().unwrap();
    one["id"].as_str().unwrap().to_owned()
}

fn names(body: &Value) -> Vec<&str> {
    body["servers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn discovery_tells_the_highest_version_without_a_token() {
    let world = Fixture::new().await;
    let root = world.cloud.get("/compute", "").await.body;
    assert_eq!(
        (&root["versions"][1]["id"], &root["versions"][1]["version"]),
        (&json!("v2.1"), &json!("2.96"))
    );
    world
        .cloud
        .local
        .cloud()
        .set(|settings| settings.nova_minor = 60);
    let one = world.cloud.get("/compute/v2.1/", "").await.body;
    assert_eq!(
        (&one["version"]["version"], &one["version"]["min_version"]),
        (&json!("2.60"), &json!("2.1"))
    );
    assert_eq!(world.ask("GET", "servers", 61, None).await.status, 406);
}

#[tokio::test(start_paused = true)]
async fn the_version_spoken_is_told_and_others_are_refused() {
    let world = Fixture::new().await;
    for (name, value, spoken) in [
        ("openstack-api-version", "compute 2.47", "2.47"),
        ("x-openstack-nova-api-version", "2.3", "2.3"),
        ("openstack-api-version", "compute latest", "2.96"),
        ("openstack-api-version", "volume 3.5", "2.1"),
    ] {
        let request = Request::get("/compute/v2.1/servers")
            .header("x-auth-token", &world.token)
            .header(name, value);
        let answer = world.cloud.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.headers["x-openstack-nova-api-version"], spoken, "{value}");
        assert_eq!(answer.headers["openstack-api-version"], format!("compute {spoken}"), "{value}");
        assert!(answer.headers.contains_key("vary"));
    }
    let refused = world.ask("GET", "servers", 97, None).await;
    assert_eq!(
        (refused.status.as_u16(), &refused.body["computeFault"]["code"]),
        (406, &json!(406))
    );
    let request =
        Request::get("/compute/v2.1/servers").header("openstack-api-version", "compute two");
    assert_eq!(
        world
            .cloud
            .send(request.body(Body::empty()).unwrap())
            .await
            .status,
        400
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_has_a_port_of_its_own_and_its_address() {
    let world = Fixture::new().await;
    let id = world.server("one").await;
    let server = &world.get(&format!("servers/{id}"), 0).await["server"];
    assert_eq!(
        (&server["status"], &server["OS-EXT-STS:power_state"]),
        (&json!("ACTIVE"), &json!(1))
    );
    assert_eq!(server["addresses"]["inside"][0]["addr"], "10.0.0.2");
    assert_eq!(server["security_groups"], json!([{"name": "default"}]));
    let ports = world
        .cloud
        .get(&format!("/network/v2.0/ports?device_id={id}"), &world.token)
        .await
        .body;
    let port = &ports["ports"][0];
    assert_eq!(
        (&port["device_owner"], &port["status"]),
        (&json!("compute:nova"), &json!("ACTIVE"))
    );
    let attached = world.get(&format!("servers/{id}/os-interface"), 0).await;
    assert_eq!(attached["interfaceAttachments"][0]["port_id"], port["id"]);
    assert_eq!(
        world
            .ask("DELETE", &format!("servers/{id}"), 0, None)
            .await
            .status,
        204
    );
    let gone = world.ask("GET", &format!("servers/{id}"), 0, None).await;
    assert_eq!((gone.status.as_u16(), &gone.body["itemNotFound"]["code"]), (404, &json!(404)));
    let ports = world
        .cloud
        .get(&format!("/network/v2.0/ports?device_id={id}"), &world.token)
        .await
        .body;
    assert_eq!(ports["ports"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn a_port_that_was_there_before_stays_when_its_server_goes() {
    let world = Fixture::new().await;
    let port = json!({"port": {"network_id": world.network, "name": "mine"}});
    let port = made(&world.cloud, &world.token, "ports", port).await;
    let body = json!({"server": {"name": "a", "flavorRef": "1", "networks": [{"port": port}]}});
    let id = world
        .ask("POST", "servers", 0, Some(body.clone()))
        .await
        .body["server"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(world.ask("POST", "servers", 0, Some(body)).await.status, 400);
    world.ask("DELETE", &format!("servers/{id}"), 0, None).await;
    let left = world
        .cloud
        .get(&format!("/network/v2.0/ports/{port}"), &world.token)
        .await
        .body;
    assert_eq!((&left["port"]["device_id"], &left["port"]["status"]), (&json!(""), &json!("DOWN")));
}

#[tokio::test(start_paused = true)]
async fn floating_addresses_stand_beside_fixed_ones() {
    let world = Fixture::new().await;
    let id = world.server("one").await;
    let ports = world
        .cloud
        .get(&format!("/network/v2.0/ports?device_id={id}"), &world.token)
        .await
        .body;
    let body = json!({"floatingip": {"floating_network_id": world.outside, "port_id": ports["ports"][0]["id"]}});
    made(&world.cloud, &world.token, "floatingips", body).await;
    let server = world.get(&format!("servers/{id}"), 0).await;
    let kinds: Vec<_> = server["server"]["addresses"]["inside"]
        .as_array()
        .unwrap()
        .iter()
        .map(|address| {
            (address["addr"].as_str().unwrap(), address["OS-EXT-IPS:type"].as_str().unwrap())
        })
        .collect();
    assert_eq!(kinds, [("10.0.0.2", "fixed"), ("203.0.113.3", "floating")]);
}

#[tokio::test(start_paused = true)]
async fn fields_come_with_their_versions() {
    let world = Fixture::new().await;
    let id = world.server("one").await;
    for (field, first) in [
        ("locked", 9),
        ("description", 19),
        ("tags", 26),
        ("trusted_image_certificates", 63),
        ("server_groups", 71),
        ("locked_reason", 73),
        ("OS-EXT-SRV-ATTR:hostname", 90),
        ("pinned_availability_zone", 96),
    ] {
        for minor in [first - 1, first] {
            let server = world.get(&format!("servers/{id}"), minor).await;
            assert_eq!(
                server["server"].get(field).is_some(),
                minor == first,
                "{field} in 2.{minor}"
            );
        }
    }
    let flavor =
        async |minor| world.get(&format!("servers/{id}"), minor).await["server"]["flavor"].clone();
    assert_eq!(
        (&flavor(46).await["id"], flavor(46).await.get("original_name")),
        (&json!("1"), None)
    );
    assert_eq!(
        (flavor(47).await.get("id"), &flavor(47).await["original_name"]),
        (None, &json!("m1.tiny"))
    );
}

#[tokio::test(start_paused = true)]
async fn names_are_found_by_regular_expression() {
    let world = Fixture::new().await;
    for name in ["node-1", "node-10", "other"] {
        world.server(name).await;
    }
    for (query, expected) in [
        ("name=node-1", vec!["node-1", "node-10"]),
        ("name=%5Enode-1%24", vec!["node-1"]),
        ("status=SHUTOFF", vec![]),
        ("ip=10.0.0.3", vec!["node-10"]),
        ("availability_zone=nova&name=o.h", vec!["other"]),
    ] {
        let page = world
            .get(&format!("servers/detail?{query}&sort_key=display_name&sort_dir=asc"), 0)
            .await;
        assert_eq!(names(&page), expected, "{query}");
    }
    assert_eq!(world.ask("GET", "servers?name=%28", 0, None).await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn full_pages_lead_to_the_next_one() {
    let world = Fixture::new().await;
    for number in 0..3 {
        world.server(&format!("s{number}")).await;
    }
    let mut path = "servers/detail?limit=2".to_owned();
    let mut seen = Vec::new();
    loop {
        let page = world.get(&path, 0).await;
        seen.extend(names(&page).into_iter().map(str::to_owned));
        assert!(page["servers"][0].get("created_at").is_none());
        let Some(next) = page["servers_links"][0]["href"].as_str() else {
            break;
        };
        next.strip_prefix("http://cloud.test:5000/compute/v2.1/")
            .unwrap()
            .clone_into(&mut path);
    }
    seen.sort();
    assert_eq!(seen, ["s0", "s1", "s2"]);
}

#[tokio::test(start_paused = true)]
async fn servers_in_a_cell_that_is_down_are_unknown_and_never_absent() {
    let world = Fixture::new().await;
    let (up, down) = (world.server("up").await, world.server("down").await);
    world
        .change(|state| servers::set_cell_down(state, &down, true))
        .await;
    let rows = async |path: &str, minor| {
        let body = world.get(path, minor).await;
        body["servers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let body = world.get("servers/detail?deleted=False", 69).await;
    let row = body["servers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["id"] == *down)
        .unwrap()
        .clone();
    let keys: Vec<&String> = row.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["created", "id", "links", "status", "tenant_id"]);
    assert_eq!(row["status"], "UNKNOWN");
    // Older versions, filters and limits leave it out, though it is there.
    assert_eq!(rows("servers/detail", 68).await, [up.clone()]);
    assert_eq!(rows("servers/detail?status=ACTIVE", 69).await, [up.clone()]);
    assert_eq!(rows("servers/detail?limit=5", 69).await, [up]);
    let alone = world.get(&format!("servers/{down}"), 69).await;
    assert_eq!(
        (&alone["server"]["status"], &alone["server"]["OS-EXT-STS:power_state"]),
        (&json!("UNKNOWN"), &json!(0))
    );
    assert_eq!(
        world
            .ask("GET", &format!("servers/{down}"), 68, None)
            .await
            .status,
        500
    );
    assert_eq!(
        world
            .ask("DELETE", &format!("servers/{down}"), 69, None)
            .await
            .status,
        500
    );
    world
        .change(|state| servers::set_cell_down(state, &down, false))
        .await;
    assert_eq!(world.get(&format!("servers/{down}"), 69).await["server"]["name"], "down");
}

#[tokio::test(start_paused = true)]
async fn power_follows_what_is_done() {
    let world = Fixture::new().await;
    let id = world.server("one").await;
    let state = async || {
        let server = world.get(&format!("servers/{id}"), 0).await;
        (server["server"]["status"].clone(), server["server"]["OS-EXT-STS:power_state"].clone())
    };
    assert_eq!(world.act(&id, json!({"os-start": null})).await, 409);
    assert_eq!(world.act(&id, json!({"os-stop": null})).await, 202);
    assert_eq!(state().await, (json!("SHUTOFF"), json!(4)));
    assert_eq!(world.act(&id, json!({"reboot": {"type": "SOFT"}})).await, 409);
    assert_eq!(world.act(&id, json!({"reboot": {"type": "HARD"}})).await, 202);
    assert_eq!(state().await, (json!("ACTIVE"), json!(1)));
    assert_eq!(
        world
            .act(&id, json!({"os-resetState": {"state": "error"}}))
            .await,
        403
    );
    assert_eq!(world.act(&id, json!({"jump": null})).await, 400);
    world
        .change(|state| servers::set_status(state, &id, "ERROR", Some("No valid host was found.")))
        .await;
    let server = world.get(&format!("servers/{id}"), 0).await;
    assert_eq!(server["server"]["fault"]["message"], "No valid host was found.");
    world
        .change(|state| servers::set_status(state, &id, "SOFT_DELETED", None))
        .await;
    assert_eq!(state().await.0, "SOFT_DELETED");
    assert_eq!(world.act(&id, json!({"restore": null})).await, 202);
}

#[tokio::test(start_paused = true)]
async fn a_lock_keeps_its_user_from_changes() {
    let world = Fixture::new().await;
    let id = world.server("one").await;
    assert_eq!(world.act(&id, json!({"lock": null})).await, 202);
    assert_eq!(world.act(&id, json!({"os-stop": null})).await, 409);
    assert_eq!(
        world
            .ask("DELETE", &format!("servers/{id}"), 0, None)
            .await
            .status,
        409
    );
    assert_eq!(
        world
            .act(&id, json!({"lock": {"locked_reason": "mine"}}))
            .await,
        202
    );
    assert_eq!(world.get(&format!("servers/{id}"), 73).await["server"]["locked_reason"], "mine");
    assert_eq!(world.act(&id, json!({"unlock": null})).await, 202);
    assert_eq!(world.act(&id, json!({"os-stop": null})).await, 202);
}

#[tokio::test(start_paused = true)]
async fn servers_are_read_as_they_were_written() {
    let world = Fixture::new().await;
    let id = world.server("one").await;
    world.act(&id, json!({"lock": null})).await;
    world.cloud.local.cloud().store.peek(|state| {
        let row = state.nova.servers.get(&id).unwrap();
        let read: ServerRow = serde_json::from_slice(&crate::state::encode(&**row)).unwrap();
        assert_eq!(read, **row);
        assert!(read.lock.is_some());
    });
}

#[tokio::test(start_paused = true)]
async fn metadata_and_tags_are_changed_in_their_places() {
    let world = Fixture::new().await;
    let id = world.server("one").await;
    let path = format!("servers/{id}/metadata");
    world
        .ask("POST", &path, 0, Some(json!({"metadata": {"a": "1", "b": "2"}})))
        .await;
    world
        .ask("PUT", &format!("{path}/a"), 0, Some(json!({"meta": {"a": "3"}})))
        .await;
    assert_eq!(
        world
            .ask("DELETE", &format!("{path}/b"), 0, None)
            .await
            .status,
        204
    );
    assert_eq!(world.get(&path, 0).await, json!({"metadata": {"a": "3"}}));
    let tags = world
        .ask("PUT", &format!("servers/{id}/tags"), 26, Some(json!({"tags": ["y", "x"]})))
        .await;
    assert_eq!(tags.body, json!({"tags": ["x", "y"]}));
    assert_eq!(
        world.get("servers/detail?tags=x,y", 26).await["servers"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(world.get("servers/detail?not-tags-any=x", 26).await["servers"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn requests_for_servers_that_cannot_be_made_say_why_and_leave_nothing() {
    let world = Fixture::new().await;
    world.network("second", "10.1.0.0/24").await;
    let network = json!([{"uuid": world.network}]);
    for (name, minor, server, status, reason) in [
        (
            "flavor",
            0,
            json!({"name": "a", "flavorRef": "99", "networks": network}),
            400,
            "Flavor 99",
        ),
        (
            "network",
            0,
            json!({"name": "a", "flavorRef": "1", "networks": [{"uuid": "none"}]}),
            400,
            "Network none",
        ),
        (
            "port",
            0,
            json!({"name": "a", "flavorRef": "1", "networks": [{"port": "none"}]}),
            400,
            "Port none",
        ),
        (
            "zone",
            0,
            json!({"name": "a", "flavorRef": "1", "networks": network, "availability_zone": "z"}),
            400,
            "zone",
        ),
        (
            "group",
            0,
            json!({"name": "a", "flavorRef": "1", "networks": network, "security_groups": [{"name": "g"}]}),
            400,
            "group g",
        ),
        ("networks", 37, json!({"name": "a", "flavorRef": "1"}), 400, "'networks'"),
        ("which", 0, json!({"name": "a", "flavorRef": "1"}), 409, "Multiple possible networks"),
        ("name", 0, json!({"name": " ", "flavorRef": "1", "networks": network}), 400, "name"),
        (
            "address",
            0,
            json!({"name": "a", "flavorRef": "1", "networks": [{"uuid": world.network, "fixed_ip": "10.9.0.1"}]}),
            400,
            "10.9.0.1",
        ),
    ] {
        let answer = world
            .ask("POST", "servers", minor, Some(json!({ "server": server })))
            .await;
        assert_eq!(answer.status, status, "{name}: {}", answer.body);
        assert!(answer.body.to_string().contains(reason), "{name}: {}", answer.body);
    }
    assert_eq!(world.get("servers", 0).await["servers"], json!([]));
    let ports = world
        .cloud
        .get(&format!("/network/v2.0/ports?network_id={}", world.network), &world.token)
        .await;
    assert_eq!(ports.body["ports"].as_array().unwrap().len(), 1, "only the router's");
}

#[tokio::test(start_paused = true)]
async fn several_servers_are_made_at_once_in_a_zone_that_is_there() {
    let world = Fixture::new().await;
    world
        .change(|state| {
            zones::add(state, "z1");
            Ok(())
        })
        .await;
    let server = json!({"name": "n", "flavorRef": "1", "networks": "none", "min_count": 3, "availability_zone": "z1"});
    assert_eq!(
        world
            .ask("POST", "servers", 37, Some(json!({ "server": server })))
            .await
            .status,
        202
    );
    let page = world
        .get("servers/detail?sort_key=display_name&sort_dir=asc", 96)
        .await;
    assert_eq!(names(&page), ["n-1", "n-2", "n-3"]);
    assert_eq!(page["servers"][0]["OS-EXT-AZ:availability_zone"], "z1");
    assert_eq!(page["servers"][0]["pinned_availability_zone"], "z1");
    let zones = world.get("os-availability-zone", 0).await;
    assert_eq!(
        zones["availabilityZoneInfo"][1],
        json!({"zoneName": "z1", "zoneState": {"available": true}, "hosts": null})
    );
}

#[tokio::test(start_paused = true)]
async fn quotas_and_limits_count_what_there_is() {
    let world = Fixture::new().await;
    world.server("one").await;
    let project = world.get("servers/detail", 0).await["servers"][0]["tenant_id"]
        .as_str()
        .unwrap()
        .to_owned();
    world
        .change(|state| {
            let row = quotas::get(state, &project);
            state.nova.quotas.put(QuotaRow { instances: 1, ..row });
            Ok(())
        })
        .await;
    let body =
        json!({"server": {"name": "a", "flavorRef": "1", "networks": [{"uuid": world.network}]}});
    let refused = world.ask("POST", "servers", 0, Some(body)).await;
    assert_eq!((refused.status.as_u16(), &refused.body["forbidden"]["code"]), (403, &json!(403)));
    let limits = world.get("limits", 0).await;
    let absolute = &limits["limits"]["absolute"];
    assert_eq!(
        (&absolute["maxTotalInstances"], &absolute["totalRAMUsed"]),
        (&json!(1), &json!(512))
    );
    assert_eq!(
        world.get(&format!("os-quota-sets/{project}"), 57).await["quota_set"]["instances"],
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_servers_flavor_outlives_the_flavor() {
    let world = Fixture::new().await;
    let id = world.server("one").await;
    world
        .change(|state| {
            state.nova.flavors.remove("1");
            Ok(())
        })
        .await;
    assert_eq!(world.ask("GET", "flavors/1", 0, None).await.status, 404);
    assert_eq!(
        world.get(&format!("servers/{id}"), 47).await["server"]["flavor"]["original_name"],
        "m1.tiny"
    );
    let flavors = world.get("flavors/detail", 61).await;
    assert_eq!(
        (&flavors["flavors"][0]["name"], &flavors["flavors"][0]["swap"]),
        (&json!("m1.small"), &json!(""))
    );
    assert_eq!(world.get("flavors/2", 75).await["flavor"]["swap"], 0);
}

#[tokio::test(start_paused = true)]
async fn interfaces_are_added_and_removed() {
    let world = Fixture::new().await;
    let id = world.server("one").await;
    let second = world.network("second", "10.1.0.0/24").await;
    let body = json!({"interfaceAttachment": {"net_id": second}});
    let added = world
        .ask("POST", &format!("servers/{id}/os-interface"), 0, Some(body))
        .await;
    assert_eq!(added.status, 200, "{}", added.body);
    let port = added.body["interfaceAttachment"]["port_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let addresses = world.get(&format!("servers/{id}"), 0).await["server"]["addresses"].clone();
    assert_eq!(addresses["second"][0]["addr"], "10.1.0.2");
    let path = format!("servers/{id}/os-interface/{port}");
    assert_eq!(world.ask("DELETE", &path, 0, None).await.status, 202);
    assert_eq!(world.ask("GET", &path, 0, None).await.status, 404);
    assert_eq!(
        world
            .cloud
            .get(&format!("/network/v2.0/ports/{port}"), &world.token)
            .await
            .status,
        404
    );
}

#[tokio::test(start_paused = true)]
async fn other_projects_servers_are_seen_by_administrators_only() {
    let world = Fixture::new().await;
    let id = world.server("one").await;
    let list = async |query: &str| {
        world
            .cloud
            .get(&format!("/compute/v2.1/servers{query}"), &world.admin)
            .await
    };
    assert_eq!(list("").await.body["servers"], json!([]));
    assert_eq!(list("?all_tenants=True").await.body["servers"][0]["id"], *id);
    assert_eq!(
        world
            .ask("GET", "servers?all_tenants=1", 0, None)
            .await
            .status,
        403
    );
}
