//! Answers of the services, recorded for tests of what reads them:
//! `tests/fixtures/openstack-2026.1`.
//!
//! The case fails if an answer has a field that its recording lacks. `CCM_UPDATE_REFERENCE=1`
//! records them anew. Nothing secret is in them: tokens come in headers, and no answer has a
//! password.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::Context as _;
use http::Method;
use serde_json::{Value, json};

use crate::{
    cloud::{RealCloud, User, id_of},
    fixture::{ClusterFixture, service},
    services::FLAGS,
};

/// Answers by file and request.
type Recordings = BTreeMap<&'static str, BTreeMap<String, Value>>;

/// What the manager reads has the fields that are recorded.
pub(crate) async fn answers_are_as_recorded(stage: &mut ClusterFixture<'_>) -> anyhow::Result<()> {
    let cloud = stage.cloud;
    stage.node(|spec| spec).await?;
    let server = stage.servers[0].clone();
    let floating = json!({"floating_network_id": cloud.id("public"), "port_id": server.port});
    cloud
        .create(User::Owner, "network", "/v2.0/floatingips", "floatingip", floating)
        .await?;
    let pairs = json!({"port": {"allowed_address_pairs": [{"ip_address": "10.244.0.0/24"}]}});
    let path = format!("/v2.0/ports/{}", server.port);
    cloud
        .must(User::Owner, Method::PUT, "network", &path, Some(pairs))
        .await?;
    let route =
        json!({"router": {"routes": [{"destination": "10.244.0.0/24", "nexthop": server.ip}]}});
    let path = format!("/v2.0/routers/{}", cloud.id("router"));
    cloud
        .must(User::Owner, Method::PUT, "network", &path, Some(route))
        .await?;
    // A load balancer with everything that one may have.
    stage.balancer = "manage-security-groups = true\n".into();
    stage.start(&FLAGS).await?;
    let certificate = cloud.certificate("first").await?;
    let annotations = [
        ("enable-health-monitor", "true"),
        ("default-tls-container-ref", &*certificate),
        ("flavor-id", cloud.id("lb_flavor")),
        ("availability-zone", "zone-1"),
    ];
    let mut manifest = service("web", &[("TCP", 443)], &annotations);
    manifest["spec"]["sessionAffinity"] = json!("ClientIP");
    manifest["spec"]["loadBalancerSourceRanges"] = json!(["10.7.0.0/16"]);
    stage.create(&manifest).await?;
    stage.served(&["web"]).await?;
    stage
        .holds(&["default/web: is ACTIVE", "default/web:443: check named monitor_0_default/web"])
        .await?;

    let mut recordings = answers(cloud, &server.id).await?;
    recordings.insert("errors", errors(cloud).await?);
    for (file, answers) in recordings {
        check(file, &answers)?;
    }
    stage.stop().await
}

/// Answers to the requests of the manager, as the owner of the project gets them.
async fn answers(cloud: &RealCloud, server: &str) -> anyhow::Result<Recordings> {
    let balancers = cloud
        .of_project("load-balancer", "/v2/lbaas/loadbalancers", "loadbalancers")
        .await?;
    let balancer = id_of(balancers.first().context("a load balancer")?);
    let pools = cloud
        .of_project("load-balancer", "/v2/lbaas/pools", "pools")
        .await?;
    let pool = id_of(pools.first().context("a pool")?);
    let requests: [(&'static str, &str, &str); 22] = [
        ("identity", "/", "identity"),
        ("nova", "/", "compute"),
        ("nova", "/servers/detail", "compute"),
        ("nova", &format!("/servers/{server}"), "compute"),
        ("nova", &format!("/servers/{server}/os-interface"), "compute"),
        ("nova", "/flavors/1", "compute"),
        ("neutron", "/v2.0/extensions", "network"),
        ("neutron", "/v2.0/networks", "network"),
        ("neutron", "/v2.0/subnets", "network"),
        ("neutron", "/v2.0/ports", "network"),
        ("neutron", "/v2.0/routers", "network"),
        ("neutron", "/v2.0/floatingips", "network"),
        ("neutron", "/v2.0/security-groups", "network"),
        ("neutron", "/v2.0/security-group-rules", "network"),
        ("octavia", "/", "load-balancer"),
        ("octavia", "/v2/lbaas/loadbalancers", "load-balancer"),
        ("octavia", &format!("/v2/lbaas/loadbalancers/{balancer}/status"), "load-balancer"),
        ("octavia", "/v2/lbaas/listeners", "load-balancer"),
        ("octavia", "/v2/lbaas/pools", "load-balancer"),
        ("octavia", &format!("/v2/lbaas/pools/{pool}/members"), "load-balancer"),
        ("octavia", "/v2/lbaas/healthmonitors", "load-balancer"),
        ("barbican", "/v1/containers", "key-manager"),
    ];
    let mut recordings = Recordings::new();
    for (file, path, service) in requests {
        let answer = cloud.get(User::Owner, service, path).await?;
        let request = format!("GET {}", without_ids(path));
        recordings.entry(file).or_default().insert(request, answer);
    }
    let token = cloud.token_answer().await?;
    recordings
        .entry("identity")
        .or_default()
        .insert("POST /v3/auth/tokens".to_owned(), token);
    Ok(recordings)
}

/// How the services refuse: status and answer.
async fn errors(cloud: &RealCloud) -> anyhow::Result<BTreeMap<String, Value>> {
    let nowhere = "00000000-1111-2222-3333-444444444444";
    let lb = "load-balancer";
    let balancers = cloud
        .of_project(lb, "/v2/lbaas/loadbalancers", "loadbalancers")
        .await?;
    let balancer = balancers.first().context("a load balancer")?;
    let path = format!("/v2/lbaas/loadbalancers/{}", id_of(balancer));
    let mut recordings = BTreeMap::new();
    let mut record =
        async |what: &str, method: Method, service: &str, path: &str, body: Option<Value>| {
            let (status, answer) = cloud.ask(User::Owner, method, service, path, body).await?;
            anyhow::ensure!(status >= 400, "{what}: {status} {answer}");
            recordings.insert(what.to_owned(), json!({"status": status, "body": answer}));
            anyhow::Ok(())
        };
    let get = Method::GET;
    record("no such server", get.clone(), "compute", &format!("/servers/{nowhere}"), None).await?;
    record("no such router", get.clone(), "network", &format!("/v2.0/routers/{nowhere}"), None)
        .await?;
    record("no such port", get.clone(), "network", &format!("/v2.0/ports/{nowhere}"), None).await?;
    record("no such load balancer", get, lb, &format!("/v2/lbaas/loadbalancers/{nowhere}"), None)
        .await?;
    record("failover is the administrator's", Method::PUT, lb, &format!("{path}/failover"), None)
        .await?;
    let wrong = json!({"loadbalancer": {"name": "x", "vip_subnet_id": nowhere}});
    record("no such subnet", Method::POST, lb, "/v2/lbaas/loadbalancers", Some(wrong)).await?;
    Ok(recordings)
}

/// A path with `{id}` in place of IDs.
fn without_ids(path: &str) -> String {
    let is_id =
        |part: &str| part.len() == 36 && part.bytes().filter(|byte| *byte == b'-').count() == 4;
    let parts = path
        .split('/')
        .map(|part| if is_id(part) { "{id}" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

/// Compares answers with their recordings, or records them.
fn check(file: &str, answers: &BTreeMap<String, Value>) -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/openstack-2026.1");
    let path = folder.join(format!("{file}.json"));
    if std::env::var_os("CCM_UPDATE_REFERENCE").is_some() {
        std::fs::create_dir_all(&folder)?;
        let mut text = serde_json::to_string_pretty(answers)?;
        text.push('\n');
        return Ok(std::fs::write(&path, text)?);
    }
    let recorded = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let recorded: BTreeMap<String, Value> = serde_json::from_slice(&recorded)?;
    for (request, answer) in answers {
        let then = recorded
            .get(request)
            .with_context(|| format!("{request} is not recorded"))?;
        let (then, now) = (fields(then), fields(answer));
        let new: Vec<_> = now.difference(&then).collect();
        anyhow::ensure!(
            new.is_empty(),
            "{request} has fields that {} lacks: {new:?}; CCM_UPDATE_REFERENCE=1 records anew",
            path.display()
        );
    }
    Ok(())
}

/// Paths of all fields in an answer, of objects below lists as well.
fn fields(answer: &Value) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut left = vec![(String::new(), answer)];
    while let Some((at, value)) = left.pop() {
        match value {
            Value::Object(object) => {
                for (name, field) in object {
                    let at = format!("{at}.{name}");
                    left.push((at.clone(), field));
                    all.insert(at);
                }
            }
            Value::Array(list) => left.extend(list.iter().map(|element| (at.clone(), element))),
            _ => {}
        }
    }
    all
}
