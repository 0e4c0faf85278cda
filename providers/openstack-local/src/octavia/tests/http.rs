//! The service over HTTP, without sockets.

use std::time::Duration;

use super::*;
use crate::server::{
    self,
    tests::{Answer, Asked},
};

const BASE: &str = "/load-balancer/v2.0/lbaas";

/// A cloud that is asked over HTTP, with a token of an administrator and a subnet.
struct Http {
    asked: Asked,
    token: String,
    subnet: String,
}

/// Changes are over at the next request.
fn at_once() -> server::Settings {
    server::Settings { pending: Duration::ZERO, ..Default::default() }
}

impl Http {
    async fn new(settings: server::Settings) -> Self {
        let asked = Asked::new(settings);
        let token = asked.token("admin").await;
        let make = |state: &mut CloudState| Ok(network(state, "web", true, "127.1.0.0/24"));
        let subnet = asked.local.cloud().store.change(make).await.expect("made");
        Self { asked, token, subnet }
    }

    async fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        self.asked
            .ask(method, &format!("{BASE}{path}"), &self.token, body)
            .await
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, None).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let answer = self.ask("POST", path, Some(body)).await;
        assert_eq!(answer.status, 201, "{path}: {}", answer.body);
        answer.body
    }

    async fn lb(&self, name: &str, more: Value) -> Value {
        let body = set(json!({"name": name, "vip_subnet_id": self.subnet}), more);
        self.post("/loadbalancers", json!({"loadbalancer": body}))
            .await["loadbalancer"]
            .clone()
    }

    /// Returns the names in a list.
    async fn names(&self, path: &str) -> Vec<String> {
        let body = self.get(path).await;
        let rows = body
            .as_object()
            .unwrap()
            .values()
            .find(|value| value.is_array())
            .unwrap()
            .as_array()
            .unwrap();
        rows.iter()
            .map(|row| row["name"].as_str().unwrap().to_owned())
            .collect()
    }
}

#[tokio::test]
async fn versions_rise_up_to_the_ceiling() {
    let http = Http::new(server::Settings { octavia_minor: 14, ..Default::default() }).await;
    let answer = http.asked.get("/load-balancer/", "").await;
    let versions = answer.body["versions"].as_array().unwrap();
    let ids: Vec<_> = versions
        .iter()
        .map(|version| version["id"].as_str().unwrap())
        .collect();
    assert_eq!((ids.len(), ids[0], ids[14]), (15, "v2.0", "v2.14"));
    assert_eq!(
        (&versions[13]["status"], &versions[14]["status"]),
        (&json!("SUPPORTED"), &json!("CURRENT"))
    );
    assert_eq!(versions[0]["links"][0]["href"], "http://cloud.test:5000/load-balancer/v2");
}

/// Every resource, from its making to its end.
// length: one story, told in order
#[tokio::test]
async fn resources_come_change_and_go() {
    let http = Http::new(at_once()).await;
    let lb = id(&http.lb("web", json!({})).await);
    let body = json!({"loadbalancer_id": lb, "protocol": "TCP", "protocol_port": 80, "name": "l"});
    let listener = id(&http.post("/listeners", json!({"listener": body})).await["listener"]);
    let body = json!({"listener_id": listener, "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "name": "p"});
    let pool = id(&http.post("/pools", json!({"pool": body})).await["pool"]);
    let members = format!("/pools/{pool}/members");
    let member = id(&http.post(&members, json!({"member": member(1)})).await["member"]);
    let monitor = id(&http
        .post("/healthmonitors", json!({"healthmonitor": monitor(&pool)}))
        .await["healthmonitor"]);
    let paths = [
        (format!("{members}/{member}"), "member"),
        (format!("/healthmonitors/{monitor}"), "healthmonitor"),
        (format!("/pools/{pool}"), "pool"),
        (format!("/listeners/{listener}"), "listener"),
        (format!("/loadbalancers/{lb}"), "loadbalancer"),
    ];
    for (path, one) in &paths {
        let changed = http
            .ask("PUT", path, Some(json!({*one: {"name": "new"}})))
            .await;
        assert_eq!(
            (changed.status.as_u16(), &changed.body[one]["name"]),
            (200, &json!("new")),
            "{path}"
        );
        assert_eq!(http.get(path).await[one]["provisioning_status"], "ACTIVE");
        let fields = http.get(&format!("{path}?fields=name&fields=id")).await;
        assert_eq!(fields[one].as_object().unwrap().len(), 2);
    }
    let batch = http
        .ask("PUT", &members, Some(json!({"members": [super::member(2)]})))
        .await;
    assert_eq!((batch.status.as_u16(), batch.body), (202, Value::Null));
    assert_eq!(http.names(&members).await, ["node-2"]);
    let (path, body) =
        (format!("{members}?additive_only=True"), json!({"members": [super::member(1)]}));
    assert_eq!(http.ask("PUT", &path, Some(body)).await.status, 202);
    assert_eq!(
        http.get(&members).await["members"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    for status in ["status", "statuses"] {
        let tree = http.get(&format!("/loadbalancers/{lb}/{status}")).await;
        assert_eq!(
            tree["statuses"]["loadbalancer"]["listeners"][0]["pools"][0]["members"]
                .as_array()
                .unwrap()
                .len(),
            2
        );
    }
    for stats in [format!("/loadbalancers/{lb}/stats"), format!("/listeners/{listener}/stats")] {
        assert_eq!(http.get(&stats).await["stats"]["total_connections"], 0);
    }
    assert_eq!(
        http.ask("PUT", &format!("/loadbalancers/{lb}/failover"), None)
            .await
            .status,
        202
    );
    let refused = http
        .ask("DELETE", &format!("/loadbalancers/{lb}"), None)
        .await;
    assert_eq!((refused.status.as_u16(), &refused.body["faultcode"]), (400, &json!("Client")));
    for (path, _) in &paths[1..] {
        assert_eq!(http.ask("DELETE", path, None).await.status, 204, "{path}");
        assert_eq!(http.ask("GET", path, None).await.status, 404, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn changes_take_the_time_that_the_settings_say() {
    let http =
        Http::new(server::Settings { pending: Duration::from_secs(3), ..Default::default() }).await;
    let lb = id(&http.lb("web", json!({"listeners": [listener(80)]})).await);
    let path = format!("/loadbalancers/{lb}");
    for (wait, status) in [(0, "PENDING_CREATE"), (2, "PENDING_CREATE"), (1, "ACTIVE")] {
        tokio::time::advance(Duration::from_secs(wait)).await;
        assert_eq!(http.get(&path).await["loadbalancer"]["provisioning_status"], status);
    }
    assert_eq!(
        http.ask("DELETE", &format!("{path}?cascade=True"), None)
            .await
            .status,
        204
    );
    assert_eq!(http.get(&path).await["loadbalancer"]["provisioning_status"], "PENDING_DELETE");
    let busy = http
        .ask("PUT", &path, Some(json!({"loadbalancer": {"name": "x"}})))
        .await;
    let text = format!("Invalid state PENDING_DELETE of loadbalancer resource {lb}");
    assert_eq!(busy.body, json!({"faultcode": "Client", "faultstring": text, "debuginfo": null}));
    tokio::time::advance(Duration::from_secs(3)).await;
    let text = format!("Load Balancer {lb} not found.");
    let gone = http.ask("GET", &path, None).await;
    assert_eq!((gone.status.as_u16(), &gone.body["faultstring"]), (404, &json!(text)));
}

#[tokio::test]
async fn lists_are_filtered_sorted_and_paged() {
    let http = Http::new(at_once()).await;
    for (name, tags) in [("a", json!(["x", "y"])), ("b", json!(["y"])), ("c", json!([]))] {
        http.lb(name, json!({"tags": tags, "listeners": [listener(80)]}))
            .await;
    }
    for (query, expected) in [
        ("", &["a", "b", "c"][..]),
        ("?name=b", &["b"]),
        ("?name=b&name=c", &["b", "c"]),
        ("?name=nobody", &[]),
        ("?tags=x,y", &["a"]),
        ("?tags-any=x,y", &["a", "b"]),
        ("?not-tags-any=x", &["b", "c"]),
        ("?provider=ovn", &[]),
        ("?admin_state_up=true&provisioning_status=ACTIVE&name=a", &["a"]),
    ] {
        let found = http
            .names(&format!("/loadbalancers{query}&sort_key=name").replacen("s&", "s?", 1))
            .await;
        assert_eq!(found, expected, "{query}");
    }
    assert_eq!(
        http.names("/loadbalancers?sort_key=name&sort_dir=desc")
            .await,
        ["c", "b", "a"]
    );
    let lb = &http.get("/loadbalancers?name=b").await["loadbalancers"][0];
    let found = http
        .get(&format!("/listeners?loadbalancer_id={}", id(lb)))
        .await;
    assert_eq!(found["listeners"].as_array().unwrap().len(), 1);
    assert_eq!(found["listeners"][0].get("loadbalancer_id"), None, "it is not shown");
    let found = http
        .get(&format!("/pools?loadbalancer_id={}&name=pool_80", id(lb)))
        .await;
    assert_eq!(found["pools"][0]["loadbalancers"][0], json!({"id": id(lb)}));

    let page = http.get("/loadbalancers?limit=2&sort_key=name").await;
    let next = page["loadbalancers_links"][0]["href"].as_str().unwrap();
    assert!(
        next.starts_with("http://cloud.test:5000/load-balancer/v2.0/lbaas/loadbalancers?"),
        "{next}"
    );
    let rest = http
        .asked
        .get(next.strip_prefix("http://cloud.test:5000").unwrap(), &http.token)
        .await
        .body;
    assert_eq!(rest["loadbalancers"].as_array().unwrap().len(), 1);
    let next: Vec<_> = rest["loadbalancers_links"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|link| link["rel"] == "next")
        .collect();
    assert!(next.is_empty());

    for path in [
        "/loadbalancers?colour=red",
        "/listeners?vip_address=x",
        "/pools?weight=1",
        "/healthmonitors?x=y",
    ] {
        assert_eq!(http.ask("GET", path, None).await.status, 400, "{path}");
    }
}

/// Both spellings of the version are the same service.
#[tokio::test]
async fn both_paths_lead_there() {
    let http = Http::new(at_once()).await;
    let lb = http.lb("web", json!({})).await;
    let asked = &http.asked;
    let other = asked
        .get(&format!("/load-balancer/v2/lbaas/loadbalancers/{}", id(&lb)), &http.token)
        .await;
    assert_eq!(other.body["loadbalancer"]["name"], "web");
    for version in ["v2.0", "v2"] {
        let found = asked
            .get(&format!("/load-balancer/{version}/octavia/amphorae"), &http.token)
            .await;
        assert_eq!(found.body, json!({"amphorae": [], "amphorae_links": []}));
    }
    assert_eq!(asked.get(&format!("{BASE}/loadbalancers"), "").await.status, 401);
}

#[tokio::test]
async fn the_rest_of_the_catalogue_is_there() {
    let http = Http::new(at_once()).await;
    let names = http.names("/providers?sort_key=name").await;
    assert_eq!(names, ["amphora", "octavia", "ovn"]);
    let add = |state: &mut CloudState| {
        crate::octavia::put_availability_zone(state, "az1", true);
        Ok(crate::octavia::put_flavor(state, "small", "amphora", true))
    };
    let flavor = http.asked.local.cloud().store.change(add).await.unwrap();
    assert_eq!(http.names("/flavors?name=small").await, ["small"]);
    assert_eq!(http.get(&format!("/flavors/{flavor}")).await["flavor"]["enabled"], true);
    assert_eq!(http.names("/flavorprofiles").await, ["small"]);
    assert_eq!(http.names("/availabilityzones").await, ["az1"]);
    assert_eq!(http.get("/availabilityzones/az1").await["availability_zone"]["name"], "az1");
    assert_eq!(http.get("/l7policies").await, json!({"l7policies": [], "l7policies_links": []}));
    assert_eq!(
        http.ask("POST", "/l7policies", Some(json!({})))
            .await
            .status,
        501
    );

    let project = "0123";
    let quota = http.get(&format!("/quotas/{project}")).await;
    assert_eq!(
        (&quota["quota"]["loadbalancer"], &quota["quota"]["load_balancer"]),
        (&json!(-1), &json!(-1))
    );
    let body = json!({"quota": {"loadbalancer": 3, "pool": null}});
    let changed = http
        .ask("PUT", &format!("/quotas/{project}"), Some(body))
        .await;
    assert_eq!((changed.status.as_u16(), &changed.body["quota"]["loadbalancer"]), (202, &json!(3)));
    assert_eq!(http.get(&format!("/quotas/{project}/default")).await["quota"]["loadbalancer"], -1);
    assert_eq!(
        http.get("/quotas").await["quotas"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        http.ask("DELETE", &format!("/quotas/{project}"), None)
            .await
            .status,
        204
    );
    assert_eq!(http.get("/quotas").await["quotas"], json!([]));
    let demo = http.asked.token("demo").await;
    let body = json!({"quota": {"loadbalancer": 1}});
    let refused = http
        .asked
        .ask("PUT", &format!("{BASE}/quotas/x"), &demo, Some(body))
        .await;
    assert_eq!(refused.status, 403);
}

// length: one story, told in order
#[tokio::test]
async fn an_administrator_offers_flavors_and_zones() {
    let http = Http::new(at_once()).await;
    let profile = |data: &str| json!({"flavorprofile": {"name": "p", "provider_name": "amphora", "flavor_data": data}});
    let refused = http
        .ask("POST", "/flavorprofiles", Some(profile("{")))
        .await;
    assert!(
        refused.status == 400
            && refused.body["faultstring"]
                .as_str()
                .unwrap()
                .contains("flavor_data")
    );
    let made = http
        .post("/flavorprofiles", profile(r#"{"loadbalancer_topology": "SINGLE"}"#))
        .await;
    let profile = made["flavorprofile"]["id"].as_str().unwrap();
    let flavor = json!({"flavor": {"name": "small", "flavor_profile_id": profile}});
    let made = http.post("/flavors", flavor.clone()).await;
    assert_eq!(made["flavor"]["enabled"], true);
    assert_eq!(
        http.ask("POST", "/flavors", Some(flavor.clone()))
            .await
            .status,
        409
    );
    let id = made["flavor"]["id"].as_str().unwrap();
    let lb = http.lb("b", json!({"flavor_id": id})).await;
    for path in [format!("/flavors/{id}"), format!("/flavorprofiles/{profile}")] {
        let refused = http.ask("DELETE", &path, None).await;
        assert_eq!(refused.status, 409, "{path}: {}", refused.body);
    }
    let change = json!({"flavorprofile": {"flavor_data": "{}"}});
    assert_eq!(
        http.ask("PUT", &format!("/flavorprofiles/{profile}"), Some(change))
            .await
            .status,
        409
    );
    let changed = http
        .ask("PUT", &format!("/flavors/{id}"), Some(json!({"flavor": {"enabled": false}})))
        .await;
    assert_eq!((changed.status.as_u16(), &changed.body["flavor"]["enabled"]), (200, &json!(false)));
    assert_eq!(
        http.ask("DELETE", &format!("/loadbalancers/{}", lb["id"].as_str().unwrap()), None)
            .await
            .status,
        204
    );
    for path in [format!("/flavors/{id}"), format!("/flavorprofiles/{profile}")] {
        assert_eq!(http.ask("DELETE", &path, None).await.status, 204, "{path}");
        assert_eq!(http.ask("DELETE", &path, None).await.status, 404, "{path}");
    }

    let profile = json!({"name": "z", "provider_name": "amphora", "availability_zone_data": "{}"});
    let made = http
        .post("/availabilityzoneprofiles", json!({"availability_zone_profile": profile}))
        .await;
    let profile = made["availability_zone_profile"]["id"].as_str().unwrap();
    let zone =
        json!({"availability_zone": {"name": "az1", "availability_zone_profile_id": profile}});
    http.post("/availabilityzones", zone.clone()).await;
    assert_eq!(
        http.ask("POST", "/availabilityzones", Some(zone.clone()))
            .await
            .status,
        409
    );
    assert_eq!(
        http.lb("in", json!({"availability_zone": "az1"})).await["availability_zone"],
        "az1"
    );
    assert_eq!(
        http.ask("DELETE", "/availabilityzones/az1", None)
            .await
            .status,
        409
    );
    assert_eq!(
        http.ask("DELETE", &format!("/availabilityzoneprofiles/{profile}"), None)
            .await
            .status,
        409
    );
    assert_eq!(http.names("/availabilityzoneprofiles").await, ["z"]);

    let demo = http.asked.token("demo").await;
    for (path, body) in [("/flavors", flavor), ("/availabilityzones", zone)] {
        assert_eq!(
            http.asked
                .ask("POST", &format!("{BASE}{path}"), &demo, Some(body))
                .await
                .status,
            403,
            "{path}"
        );
    }
}
