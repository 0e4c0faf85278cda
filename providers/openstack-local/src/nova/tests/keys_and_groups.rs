//! Key pairs and server groups.

use super::*;

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDm7DxjCZ1yKZAuTQpTgvI6BzIFGDFmsN4CFSXG3oM1m nobody";

#[tokio::test(start_paused = true)]
async fn key_pairs_belong_to_their_user() {
    let rig = Fixture::new().await;
    let create = |name: &str, key: &str| json!({"keypair": {"name": name, "public_key": key}});
    let made = rig
        .ask("POST", "os-keypairs", 0, Some(create("old", KEY)))
        .await;
    assert_eq!((made.status.as_u16(), made.body["keypair"].get("type")), (200, None));
    let made = rig
        .ask("POST", "os-keypairs", 2, Some(create("new", KEY)))
        .await;
    assert_eq!((made.status.as_u16(), &made.body["keypair"]["type"]), (201, &json!("ssh")));
    let fingerprint = made.body["keypair"]["fingerprint"].as_str().unwrap();
    assert_eq!((fingerprint.len(), fingerprint.matches(':').count()), (47, 15), "{fingerprint}");
    for (status, body) in [
        (409, create("new", KEY)),
        (400, create("n/w", KEY)),
        (400, create("bad", "ssh-rsa AAAA")),
        (400, create("bad", &KEY.replacen("ed25519", "rsa", 1))),
        (400, json!({"keypair": {"name": "generated"}})),
        (400, json!({"keypair": {"name": "x", "public_key": KEY, "type": "x509"}})),
    ] {
        let refused = rig.ask("POST", "os-keypairs", 2, Some(body.clone())).await;
        assert_eq!(refused.status, status, "{body}");
    }
    let rows = rig.get("os-keypairs?limit=1&marker=new", 35).await;
    assert_eq!(rows["keypairs"][0]["keypair"]["name"], "old", "{rows}");
    assert_eq!(rig.get("os-keypairs/new", 2).await["keypair"]["fingerprint"], fingerprint);
    // A server gets one that exists.
    let server = |key: &str| {
        json!({"server": {"name": "s", "flavorRef": "1", "key_name": key,
        "networks": [{"uuid": rig.network}]}})
    };
    assert_eq!(
        rig.ask("POST", "servers", 0, Some(server("none")))
            .await
            .status,
        400
    );
    let made = rig
        .ask("POST", "servers", 0, Some(server("new")))
        .await
        .body;
    let path = format!("servers/{}", made["server"]["id"].as_str().unwrap());
    assert_eq!(rig.get(&path, 0).await["server"]["key_name"], "new");
    // Another user has others.
    let admin = rig.cloud.token("admin").await;
    let others = rig
        .cloud
        .get("/compute/v2.1/os-keypairs", &admin)
        .await
        .body;
    assert_eq!(others["keypairs"], json!([]));
    assert_eq!(rig.ask("DELETE", "os-keypairs/old", 0, None).await.status, 202);
    assert_eq!(rig.ask("DELETE", "os-keypairs/new", 2, None).await.status, 204);
    assert_eq!(rig.ask("DELETE", "os-keypairs/new", 2, None).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn server_groups_show_their_servers() {
    let rig = Fixture::new().await;
    let old = |policy: &str| json!({"server_group": {"name": "g", "policies": [policy]}});
    let new = |policy: &str, rules: Value| json!({"server_group": {"name": "g", "policy": policy, "rules": rules}});
    for (status, minor, body) in [
        (200, 0, old("affinity")),
        (400, 0, old("soft-affinity")),
        (200, 15, old("soft-affinity")),
        (400, 64, old("affinity")),
        (400, 0, new("affinity", json!({}))),
        (400, 64, new("odd", json!({}))),
        (400, 64, new("affinity", json!({"max_server_per_host": 2}))),
    ] {
        let answer = rig
            .ask("POST", "os-server-groups", minor, Some(body.clone()))
            .await;
        assert_eq!(answer.status, status, "{minor} {body}");
    }
    let rules = json!({"max_server_per_host": 2});
    let body = new("anti-affinity", rules.clone());
    let made = rig
        .ask("POST", "os-server-groups", 64, Some(body))
        .await
        .body;
    let id = made["server_group"]["id"].as_str().unwrap();
    let server = |group: &str| {
        json!({"os:scheduler_hints": {"group": group}, "server": {"name": "s",
        "flavorRef": "1", "networks": [{"uuid": rig.network}]}})
    };
    assert_eq!(
        rig.ask("POST", "servers", 0, Some(server("none")))
            .await
            .status,
        400
    );
    let started = rig.ask("POST", "servers", 0, Some(server(id))).await.body;
    let started = started["server"]["id"].as_str().unwrap();
    let shown = rig.get(&format!("os-server-groups/{id}"), 64).await;
    let shown = &shown["server_group"];
    assert_eq!((&shown["members"], &shown["rules"]), (&json!([started]), &rules));
    let shown = rig.get(&format!("servers/{started}"), 71).await;
    assert_eq!(shown["server"]["server_groups"], json!([id]));
    rig.ask("DELETE", &format!("servers/{started}"), 0, None)
        .await;
    let shown = rig.get(&format!("os-server-groups/{id}"), 0).await;
    assert_eq!(shown["server_group"]["members"], json!([]));
    assert_eq!(shown["server_group"]["policies"], json!(["anti-affinity"]));
    assert_eq!(
        rig.get("os-server-groups", 0).await["server_groups"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    assert_eq!(
        rig.ask("DELETE", &format!("os-server-groups/{id}"), 0, None)
            .await
            .status,
        204
    );
    assert_eq!(
        rig.ask("GET", &format!("os-server-groups/{id}"), 0, None)
            .await
            .status,
        404
    );
}
