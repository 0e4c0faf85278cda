use http::Request;
use serde_json::{Value, json};

use crate::server::{Settings, tests::Asked};

async fn make(cloud: &Asked, token: &str, path: &str, body: Value) -> Value {
    let answer = cloud
        .post(&format!("/network/v2.0/{path}"), token, body)
        .await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.body
}

/// Makes a network with a subnet, and returns the network's identifier.
async fn network(cloud: &Asked, token: &str, name: &str, cidr: &str) -> String {
    let network = make(cloud, token, "networks", json!({"network": {"name": name}})).await;
    let id = network["network"]["id"].as_str().unwrap().to_owned();
    let subnet = json!({"subnet": {"network_id": id, "ip_version": 4, "cidr": cidr}});
    make(cloud, token, "subnets", subnet).await;
    id
}

fn names(body: &Value, collection: &str) -> Vec<String> {
    body[collection]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn discovery_needs_no_token_and_everything_else_does() {
    let cloud = Asked::new(Settings::default());
    let root = cloud.get("/network/", "").await;
    assert_eq!(
        root.body["versions"][0]["links"][0]["href"],
        "http://cloud.test:5000/network/v2.0/"
    );
    assert_eq!(cloud.get("/network/v2.0/", "").await.status, 200);
    assert_eq!(cloud.get("/network/v2.0/networks", "").await.status, 401);
}

#[tokio::test(start_paused = true)]
async fn a_network_is_made_shown_changed_and_removed() {
    let cloud = Asked::new(Settings::default());
    let token = cloud.token("demo").await;
    let id = network(&cloud, &token, "a", "10.0.0.0/24").await;
    let path = format!("/network/v2.0/networks/{id}");
    let shown = cloud.get(&path, &token).await.body;
    assert_eq!(shown["network"]["subnets"].as_array().unwrap().len(), 1);
    assert_eq!(shown["network"]["project_id"], shown["network"]["tenant_id"]);
    let changed = cloud
        .ask("PUT", &path, &token, Some(json!({"network": {"name": "b"}})))
        .await;
    assert_eq!((changed.status.as_u16(), &changed.body["network"]["name"]), (200, &json!("b")));
    let stale = Request::put(&path)
        .header("x-auth-token", &token)
        .header("if-match", "revision_number=1");
    let stale = cloud
        .send(
            stale
                .body(json!({"network": {"name": "c"}}).to_string().into())
                .unwrap(),
        )
        .await;
    assert_eq!(stale.status, 412);
    assert_eq!(stale.body["NeutronError"]["type"], "RevisionNumberConstraintFailed");
    assert_eq!(cloud.ask("DELETE", &path, &token, None).await.status, 204);
    let gone = cloud.get(&path, &token).await;
    assert_eq!(
        (gone.status.as_u16(), &gone.body["NeutronError"]["type"]),
        (404, &json!("NetworkNotFound"))
    );
}

#[tokio::test(start_paused = true)]
async fn attributes_that_there_are_not_are_named() {
    let cloud = Asked::new(Settings::default());
    let token = cloud.token("demo").await;
    let answer = cloud
        .post("/network/v2.0/networks", &token, json!({"network": {"name": "a", "nmae": "b"}}))
        .await;
    assert_eq!(answer.status, 400);
    assert!(
        answer.body["NeutronError"]["message"]
            .as_str()
            .unwrap()
            .contains("'nmae'"),
        "{}",
        answer.body
    );
    let answer = cloud.get("/network/v2.0/networks?nmae=b", &token).await;
    assert_eq!(answer.status, 400);
}

#[tokio::test(start_paused = true)]
async fn ports_are_found_by_address_device_and_group() {
    let cloud = Asked::new(Settings::default());
    let token = cloud.token("demo").await;
    let id = network(&cloud, &token, "a", "10.0.0.0/24").await;
    let several = json!({"ports": [
        {"network_id": id, "name": "one", "device_id": "x"}, {"network_id": id, "name": "two", "device_id": "y"}]});
    let made = make(&cloud, &token, "ports", several).await;
    let group = made["ports"][0]["security_groups"][0]
        .as_str()
        .unwrap()
        .to_owned();
    for (query, expected) in [
        ("fixed_ips=ip_address%3D10.0.0.3".to_owned(), vec!["two"]),
        (
            "fixed_ips=ip_address%3D10.0.0.3&fixed_ips=ip_address%3D10.0.0.2&sort_key=name"
                .to_owned(),
            vec!["one", "two"],
        ),
        ("device_id=x".to_owned(), vec!["one"]),
        ("device_id=x&device_id=y&sort_key=name&sort_dir=desc".to_owned(), vec!["two", "one"]),
        (format!("security_groups={group}&sort_key=name"), vec!["one", "two"]),
        ("security_groups=other".to_owned(), vec![]),
    ] {
        let page = cloud
            .get(&format!("/network/v2.0/ports?{query}"), &token)
            .await;
        assert_eq!(names(&page.body, "ports"), expected, "{query}");
    }
    let few = cloud
        .get("/network/v2.0/ports?fields=id&fields=fixed_ips&limit=1", &token)
        .await
        .body;
    assert_eq!(few["ports"][0].as_object().unwrap().len(), 2);
    assert_eq!(few["ports_links"][0]["rel"], "next");
}

#[tokio::test(start_paused = true)]
async fn extra_routes_are_atomic_where_the_extension_is_offered() {
    let cloud = Asked::new(Settings::default());
    let token = cloud.token("demo").await;
    network(&cloud, &token, "a", "10.0.0.0/24").await;
    let subnet = cloud.get("/network/v2.0/subnets", &token).await.body["subnets"][0]["id"].clone();
    let router = make(&cloud, &token, "routers", json!({"router": {"name": "r"}})).await;
    let path = format!("/network/v2.0/routers/{}", router["router"]["id"].as_str().unwrap());
    let put = async |verb: &str, body: Value| {
        cloud
            .ask("PUT", &format!("{path}/{verb}"), &token, Some(body))
            .await
    };
    assert_eq!(
        put("add_router_interface", json!({ "subnet_id": subnet }))
            .await
            .status,
        200
    );
    let routes =
        json!({"router": {"routes": [{"destination": "10.8.0.0/24", "nexthop": "10.0.0.9"}]}});
    let added = put("add_extraroutes", routes.clone()).await;
    assert_eq!(
        (added.status.as_u16(), &added.body["router"]["routes"]),
        (200, &routes["router"]["routes"])
    );
    let removed = put("remove_extraroutes", routes.clone()).await;
    assert_eq!(removed.body["router"]["routes"], json!([]));
    let aliases = async || {
        let body = cloud.get("/network/v2.0/extensions", &token).await.body;
        body["extensions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|extension| extension["alias"] == "extraroute-atomic")
    };
    assert!(aliases().await);
    cloud
        .local
        .cloud()
        .set(|settings| settings.hidden_extensions = ["extraroute-atomic".to_owned()].into());
    assert!(!aliases().await);
    assert_eq!(put("add_extraroutes", routes).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn rules_come_in_bulk_and_the_default_group_is_always_listed() {
    let cloud = Asked::new(Settings::default());
    let token = cloud.token("demo").await;
    let groups = cloud
        .get("/network/v2.0/security-groups", &token)
        .await
        .body;
    assert_eq!(names(&groups, "security_groups"), ["default"]);
    let group = groups["security_groups"][0]["id"].clone();
    let rule = |port: u16| {
        json!({"security_group_id": group, "direction": "ingress", "protocol": "tcp",
               "port_range_min": port, "port_range_max": port})
    };
    let bulk = json!({"security_group_rules": [rule(1), rule(2)]});
    let made = make(&cloud, &token, "security-group-rules", bulk).await;
    assert_eq!(made["security_group_rules"].as_array().unwrap().len(), 2);
    let again = json!({"security_group_rules": [rule(3), rule(2)]});
    assert_eq!(
        cloud
            .post("/network/v2.0/security-group-rules", &token, again)
            .await
            .status,
        409
    );
    let listed = cloud
        .get("/network/v2.0/security-group-rules?direction=ingress&protocol=tcp", &token)
        .await
        .body;
    assert_eq!(listed["security_group_rules"].as_array().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn tags_and_quotas_are_changed_in_their_places() {
    let cloud = Asked::new(Settings::default());
    let (token, admin) = (cloud.token("demo").await, cloud.token("admin").await);
    let id = network(&cloud, &token, "a", "10.0.0.0/24").await;
    let path = format!("/network/v2.0/networks/{id}");
    let set = cloud
        .ask("PUT", &format!("{path}/tags"), &token, Some(json!({"tags": ["b", "a"]})))
        .await;
    assert_eq!(set.body, json!({"tags": ["a", "b"]}));
    assert_eq!(
        cloud
            .ask("DELETE", &format!("{path}/tags/a"), &token, None)
            .await
            .status,
        204
    );
    assert_eq!(
        cloud
            .ask("DELETE", &format!("{path}/tags/a"), &token, None)
            .await
            .status,
        404
    );
    assert_eq!(
        names(
            &cloud
                .get("/network/v2.0/networks?tags=b", &token)
                .await
                .body,
            "networks"
        ),
        ["a"]
    );
    let project = cloud.get(&path, &token).await.body["network"]["project_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let quota = format!("/network/v2.0/quotas/{project}");
    assert_eq!(cloud.get(&quota, &token).await.body["quota"]["security_group"], 10);
    let changed = cloud
        .ask("PUT", &quota, &admin, Some(json!({"quota": {"network": 1}})))
        .await;
    assert_eq!(changed.body["quota"]["network"], 1);
    let below = json!({"quota": {"network": 0, "check_limit": true}});
    assert_eq!(cloud.ask("PUT", &quota, &admin, Some(below)).await.status, 400);
    let forced = json!({"quota": {"network": 0, "force": true, "check_limit": false}});
    assert_eq!(cloud.ask("PUT", &quota, &admin, Some(forced)).await.status, 200);
    let over = cloud
        .post("/network/v2.0/networks", &token, json!({"network": {"name": "b"}}))
        .await;
    assert_eq!(
        (over.status.as_u16(), &over.body["NeutronError"]["type"]),
        (409, &json!("OverQuota"))
    );
}
