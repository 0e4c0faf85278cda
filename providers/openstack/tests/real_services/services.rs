//! Services: what there is in the cloud for each annotation, after it changed, and when the Service
//! is gone.

#[path = "../cluster/services/table.rs"]
#[allow(dead_code, reason = "the suite on the local cloud has another driver")]
mod table;

use anyhow::Context as _;
use ccm_testkit::kubelet::NodeSpec;
use serde_json::{Value, json};

use self::table::{AnnotationValues, Case};
use crate::{
    cloud::User,
    fixture::{ClusterFixture, LONG, full, service, snapshot::Lists},
};

pub(crate) const FLAGS: [&str; 1] = ["--controllers=service"];

/// The thinnest slice: one load balancer, its address, and nothing left of it.
pub(crate) async fn a_load_balancer_is_made_and_deleted(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.node(|spec| spec).await?;
    let before = stage.world().await?;
    stage.start(&FLAGS).await?;
    stage.create(&service("web", &[("TCP", 80)], &[])).await?;
    stage.served(&["web"]).await?;
    stage
        .holds(&[
            "default/web: is ACTIVE",
            "default/web: floating ip from public",
            "default/web:80: listens TCP",
            "default/web:80: member node-0 30080 in nodes",
        ])
        .await?;
    // Members follow the nodes.
    stage.node(|spec| spec).await?;
    stage
        .holds(&["default/web:80: member node-1 30080 in nodes"])
        .await?;
    stage.kubelets.stop_node("node-0")?;
    stage
        .node_api()
        .delete("node-0", &kube::api::DeleteParams::default())
        .await?;
    stage
        .holds(&["!default/web:80: member node-0", "default/web:80: member node-1 30080 in nodes"])
        .await?;
    stage.gone(&["web"], &before).await?;
    stage.stop().await
}

/// Each Service gets what its annotations ask for, and what they ask for next; then nothing is left
/// of it. The table is that of the suite on the local cloud.
pub(crate) async fn each_annotation_has_its_effect(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    let id = |name| stage.cloud.id(name);
    stage.balancer = format!(
        "floating-subnet-id = {}\n[LoadBalancerClass \"gold\"]\nsubnet-id = {}\nmember-subnet-id = {}\n\
         floating-subnet-tags = b\n",
        id("public_a"),
        id("nodes"),
        id("vips"),
    );
    play(stage, table::plain).await
}

/// The same where Services have security groups.
pub(crate) async fn security_groups_admit_load_balancers(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.balancer = "manage-security-groups = true\n".into();
    play(stage, table::managed).await
}

/// Keys of `cloud.conf`, a configuration at a time.
pub(crate) async fn each_key_of_cloud_conf_has_its_effect(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.node(|spec| spec).await?;
    stage.node(|spec| spec.label("disk", "ssd")).await?;
    let certificate = stage.cloud.certificate("first").await?;
    let before = stage.world().await?;
    let first = format!(
        "internal-lb = true\nlb-method = LEAST_CONNECTIONS\ncreate-monitor = true\nmonitor-delay = 10s\n\
         monitor-timeout = 4s\nmonitor-max-retries = 2\nmonitor-max-retries-down = 4\nnode-selector = disk=ssd\n\
         flavor-id = {}\navailability-zone = zone-1\nprovider-requires-serial-api-calls = true\ncascade-delete = false\n",
        stage.cloud.id("lb_flavor")
    );
    let second = format!(
        "lb-provider = octavia\nfloating-subnet-tags = b\ndefault-tls-container-ref = {certificate}\n\
         enable-ingress-hostname = true\ningress-hostname-suffix = lb.example.org\n"
    );
    let cases = [
        (
            first,
            service("web", &[("TCP", 80), ("UDP", 53)], &[]),
            vec![
                "!default/web: floating ip",
                "default/web: flavor big",
                "default/web: zone zone-1",
                "default/web:80: pool TCP LEAST_CONNECTIONS",
                "default/web:80: check TCP",
                "default/web:80: check every 10 within 4 up 2 down 4",
                "default/web:53/udp: check UDP-CONNECT",
                "!default/web:80: member node-0",
                "default/web:80: member node-1 30080 in nodes",
            ],
        ),
        (
            second,
            service("web", &[("TCP", 443)], &[]),
            vec![
                "default/web: driver octavia",
                "default/web: floating ip in public-b",
                "default/web:443: listens TERMINATED_HTTPS",
                "default/web:443: certificate first",
                "default/web:443: pool HTTP ROUND_ROBIN",
            ],
        ),
        (
            "enable-ingress-hostname = true\ningress-hostname-suffix = lb.example.org\n".into(),
            service("web", &[("TCP", 80)], &[("proxy-protocol", "true")]),
            vec!["default/web:80: pool PROXY ROUND_ROBIN"],
        ),
    ];
    for (at, (lines, manifest, wanted)) in cases.into_iter().enumerate() {
        stage.balancer = lines;
        stage.start(&FLAGS).await?;
        stage.create(&manifest).await?;
        stage
            .served(&["web"])
            .await
            .with_context(|| format!("configuration {at}"))?;
        stage
            .holds(&wanted)
            .await
            .with_context(|| format!("configuration {at}"))?;
        let hostname = stage.ingress("web").await?["hostname"]
            .as_str()
            .map(str::to_owned);
        let is_named = hostname.is_some_and(|name| name.ends_with(".lb.example.org"));
        anyhow::ensure!(is_named == (at == 2), "configuration {at}: a hostname in the status?");
        stage
            .gone(&["web"], &before)
            .await
            .with_context(|| format!("configuration {at}"))?;
        stage.stop().await?;
    }
    Ok(())
}

/// A Service of the family IPv6 has an address and members of it, and no floating IP. One of both
/// families has an address of each.
pub(crate) async fn ipv6_services_have_addresses_and_members_of_their_family(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    let cloud = stage.cloud;
    let node = stage.make("node-0", Value::Null).await?;
    let both = json!({"port": {"fixed_ips": [
        {"subnet_id": cloud.id("nodes"), "ip_address": node.ip},
        {"subnet_id": cloud.id("vips6"), "ip_address": "2001:db8:1::100"}]}});
    let path = format!("/v2.0/ports/{}", node.port);
    cloud
        .must(User::Owner, http::Method::PUT, "network", &path, Some(both))
        .await?;
    let spec = NodeSpec::new("node-0")
        .provided_ip(node.ip.parse()?)
        .provided_ip("2001:db8:1::100".parse()?);
    stage
        .kubelets
        .register(spec.provider_id(node.provider_id()).initialized())
        .await?;
    let before = stage.world().await?;
    stage.start(&FLAGS).await?;
    let subnet = cloud.id("vips6");
    let mut six =
        service("six", &[("TCP", 80)], &[("subnet-id", subnet), ("member-subnet-id", subnet)]);
    six["spec"]["ipFamilies"] = json!(["IPv6"]);
    stage.create(&six).await?;
    stage.create(&service("four", &[("TCP", 81)], &[])).await?;
    let mut both = service("both", &[("TCP", 82)], &[]);
    both["spec"]["ipFamilyPolicy"] = json!("RequireDualStack");
    stage.create(&both).await?;
    stage.served(&["six", "four", "both"]).await?;
    stage
        .holds(&[
            "default/six: address in vips6",
            "!default/six: floating ip",
            "default/six:80: member 2001:db8:1::100 30080 in vips6",
            "default/four:81: member node-0 30081 in nodes",
            "default/four: floating ip from public",
            "default/both:82: member node-0 30082 in nodes",
            "default/both: floating ip from public",
        ])
        .await?;
    let status = serde_json::to_value(stage.services().get("both").await?.status)?;
    let second = status.pointer("/loadBalancer/ingress/1/ip");
    let is_six = second
        .and_then(Value::as_str)
        .is_some_and(|address| address.starts_with("2001:db8:1:"));
    anyhow::ensure!(is_six, "no second address: {status}");
    stage.gone(&["six", "four", "both"], &before).await?;
    stage.stop().await
}

async fn values(stage: &ClusterFixture<'_>) -> anyhow::Result<AnnotationValues> {
    let cloud = stage.cloud;
    let id = |name| cloud.id(name).to_owned();
    let floating = json!({"floating_network_id": id("public"), "subnet_id": id("public_b"), "description": "mine"});
    let floating = cloud
        .create(User::Owner, "network", "/v2.0/floatingips", "floatingip", floating)
        .await?;
    Ok(AnnotationValues {
        vips: id("vips"),
        nodes: id("nodes"),
        other: id("other"),
        public_b: id("public_b"),
        flavor: id("lb_flavor"),
        certificates: [cloud.certificate("first").await?, cloud.certificate("second").await?],
        floating: floating["floating_ip_address"]
            .as_str()
            .context("an address")?
            .to_owned(),
    })
}

async fn play(
    stage: &mut ClusterFixture<'_>,
    table: fn(&AnnotationValues) -> Vec<Case>,
) -> anyhow::Result<()> {
    stage.node(|spec| spec).await?;
    stage.node(|spec| spec.label("disk", "ssd")).await?;
    let cases = table(&values(stage).await?);
    let nothing = stage.world().await?;
    stage.start(&FLAGS).await?;
    // First, every Service of the table.
    for (at, case) in cases.iter().enumerate() {
        stage
            .create(&table::manifest(at, case, service))
            .await
            .context(case.name)?;
    }
    let names: Vec<_> = cases.iter().map(|case| case.name).collect();
    stage.served(&names).await?;
    holds(stage, &cases, |case| &case.wanted)
        .await
        .context("made")?;
    published(stage, &cases).await?;
    // Next, what changes.
    for case in cases.iter().filter(|case| !case.change.is_null()) {
        stage
            .change(case.name, case.change.clone())
            .await
            .context(case.name)?;
    }
    holds(stage, &cases, |case| &case.then)
        .await
        .context("changed")?;
    // Last, nothing is left but what is to be kept.
    for name in &names {
        stage.delete(name).await?;
    }
    stage.vanished(&names).await?;
    let left = lines(&cases, |case| &case.left);
    stage
        .settles("the rest is gone", LONG, |world| world.same(&nothing.with(&left)))
        .await?;
    stage.stop().await
}

/// Waits until these lines of all cases hold.
async fn holds(
    stage: &ClusterFixture<'_>,
    cases: &[Case],
    of: fn(&Case) -> &Vec<&'static str>,
) -> anyhow::Result<()> {
    let wanted = lines(cases, of);
    stage
        .settles("what is wanted", LONG, |world| world.has(&wanted))
        .await
}

/// Lines of all cases as the world has them.
fn lines(cases: &[Case], of: fn(&Case) -> &Vec<&'static str>) -> Vec<String> {
    cases
        .iter()
        .enumerate()
        .flat_map(|(at, case)| table::whole(at, case, of(case)))
        .collect()
}

/// What the status and the annotations of Services say.
async fn published(stage: &ClusterFixture<'_>, cases: &[Case]) -> anyhow::Result<()> {
    let lists = Lists::read(stage.cloud).await?;
    for case in cases {
        let service = stage.services().get(case.name).await?;
        let ingress = stage.ingress(case.name).await?;
        for (field, value) in case.ingress.as_object().into_iter().flatten() {
            anyhow::ensure!(ingress[field] == *value, "{}: {ingress}", case.name);
        }
        let annotations = service.metadata.annotations.unwrap_or_default();
        let note = |name: &str| annotations.get(&full(name)).cloned().unwrap_or_default();
        let id = note("load-balancer-id");
        let name = lists
            .balancers()
            .iter()
            .find(|row| row["id"] == *id)
            .map(|row| &row["name"]);
        let ours = name
            .and_then(Value::as_str)
            .is_some_and(|name| name.ends_with(&format!("_{}", case.name)));
        anyhow::ensure!(ours, "{}: load-balancer-id is {id}, of {name:?}", case.name);
        let address = note("load-balancer-address");
        anyhow::ensure!(!address.is_empty(), "{}: no address", case.name);
        let shown = ingress["ip"].as_str();
        anyhow::ensure!(
            shown.is_none_or(|shown| shown == address),
            "{}: {address} {ingress}",
            case.name
        );
    }
    Ok(())
}
