//! Services: what there is in the cloud for each annotation, after it changed, and when the Service
//! is gone.

mod table;

use anyhow::Context as _;
use ccm_testkit::kubelet::NodeSpec;
use openstack_local::api::neutron::{FloatingIpCreate, PortCreate};
use openstack_local::{neutron, octavia, state::CloudState};
use serde_json::json;

use self::table::{AnnotationValues, Case};
use crate::fixture::{
    ClusterFixture, INTERNAL,
    cloud::{self, port_in},
    full, service,
};

const FLAGS: [&str; 1] = ["--controllers=service"];

/// Each Service gets what its annotations ask for, and what they ask for next; then nothing is left
/// of it.
pub(crate) async fn each_annotation_has_its_effect(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    let (net, nodes) = (&stage.cloud.net, &stage.cloud.net.nodes);
    stage.config.balancer = format!("floating-subnet-id = {}\n", net.public[0]);
    stage.config.more = format!(
        "[LoadBalancerClass \"gold\"]\nsubnet-id = {nodes}\nmember-subnet-id = {}\nfloating-subnet-tags = b\n",
        net.vips
    );
    play(stage, table::plain).await
}

/// The same where Services have security groups.
pub(crate) async fn security_groups_admit_load_balancers(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    stage.config.balancer = "manage-security-groups = true\n".into();
    play(stage, table::managed).await
}

/// The same with OVN, whose members see clients' addresses.
pub(crate) async fn another_driver_gets_what_it_can_do(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    stage.config.balancer =
        "lb-provider = ovn\nlb-method = SOURCE_IP_PORT\nmanage-security-groups = true\n".into();
    play(stage, table::of_ovn).await
}

/// A driver that takes one object at a time ends with the same objects, and is taken apart one by
/// one.
pub(crate) async fn one_object_at_a_time_leads_to_the_same_end(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    stage.config.balancer =
        "provider-requires-serial-api-calls = true\ncascade-delete = false\n".into();
    stage.nodes(2).await?;
    let before = stage.world();
    stage.start(&FLAGS).await?;
    let ports = [("TCP", 80), ("UDP", 53)];
    let manifest = service("web", &ports, &[(INTERNAL, "true"), ("enable-health-monitor", "true")]);
    stage.create(&manifest).await?;
    stage
        .holds(&[
            "default/web:80: listens TCP",
            "default/web:80: member node-0 30080 in nodes",
            "default/web:80: member node-1 30080 in nodes",
            "default/web:80: check TCP",
            "default/web:53/udp: member node-1 30053 in nodes",
            "default/web:53/udp: check UDP-CONNECT",
        ])
        .await?;
    stage.served(&["web"]).await?;
    let writes = stage.take_writes();
    anyhow::ensure!(
        writes.iter().any(|write| write.ends_with("/members")),
        "one by one: {writes:#?}"
    );
    stage.delete("web").await?;
    stage.vanished(&["web"]).await?;
    stage
        .settles("nothing is left", |world| world.same(&before))
        .await?;
    stage.stop().await
}

impl AnnotationValues {
    async fn make(stage: &ClusterFixture) -> anyhow::Result<Self> {
        let net = &stage.cloud.net;
        let flavor = stage
            .cloud
            .change(|state, _| Ok(octavia::put_flavor(state, "big", "amphora", true)))
            .await?;
        let (external, public) = (net.external[0].clone(), net.public[1].clone());
        let floating = stage.cloud.change(|state, ctx| {
            let request = FloatingIpCreate {
                floating_network_id: external,
                subnet_id: Some(public),
                description: Some("mine".into()),
                ..FloatingIpCreate::default()
            };
            neutron::floating_ips::create(state, ctx, request)
        });
        let floating = floating
            .await?
            .floating_ip_address
            .context("an address")?
            .to_string();
        Ok(Self {
            vips: net.vips.clone(),
            nodes: net.nodes.clone(),
            other: net.external[1].clone(),
            public_b: net.public[1].clone(),
            flavor,
            certificates: [reference(stage, "first").await?, reference(stage, "second").await?],
            floating,
        })
    }
}

async fn reference(stage: &ClusterFixture, name: &str) -> anyhow::Result<String> {
    Ok(cloud::certificate(&stage.cloud, name).await?.reference)
}

/// Makes a port for a load balancer.
async fn port(stage: &ClusterFixture, name: &str) -> anyhow::Result<String> {
    let net = &stage.cloud.net;
    let request = PortCreate { name: Some(name.into()), ..port_in(&net.network, &net.vips) };
    Ok(stage
        .cloud
        .change(|state, ctx| neutron::ports::create(state, ctx, request))
        .await?
        .id)
}

async fn play(
    stage: &mut ClusterFixture,
    table: fn(&AnnotationValues) -> Vec<Case>,
) -> anyhow::Result<()> {
    stage.node(|spec| spec).await?;
    stage.node(|spec| spec.label("disk", "ssd")).await?;
    let places = AnnotationValues::make(stage).await?;
    let nothing = stage.world();
    let cases = table(&places);
    stage.start(&FLAGS).await?;
    for (at, case) in cases.iter().enumerate() {
        stage
            .create(&table::manifest(at, case, service))
            .await
            .context(case.name)?;
    }
    let names: Vec<_> = cases.iter().map(|case| case.name).collect();
    stage.served(&names).await?;
    let lines = cases
        .iter()
        .enumerate()
        .flat_map(|(at, case)| table::whole(at, case, &case.wanted));
    stage
        .holds(&lines.collect::<Vec<_>>())
        .await
        .context("made")?;
    published(stage, &cases).await?;
    for case in cases.iter().filter(|case| !case.change.is_null()) {
        stage
            .change(case.name, case.change.clone())
            .await
            .context(case.name)?;
    }
    let lines = cases
        .iter()
        .enumerate()
        .flat_map(|(at, case)| table::whole(at, case, &case.then));
    stage
        .holds(&lines.collect::<Vec<_>>())
        .await
        .context("changed")?;
    for name in &names {
        stage.delete(name).await?;
    }
    stage.vanished(&names).await?;
    let left: Vec<_> = cases
        .iter()
        .enumerate()
        .flat_map(|(at, case)| table::whole(at, case, &case.left))
        .collect();
    stage
        .settles("the rest is gone", |world| world.same(&nothing.with(&left)))
        .await?;
    stage.stop().await
}

/// What the status and the annotations of Services say.
async fn published(stage: &ClusterFixture, cases: &[Case]) -> anyhow::Result<()> {
    for case in cases {
        let service = stage.services().get(case.name).await?;
        let status = serde_json::to_value(&service.status)?;
        let ingress = &status["loadBalancer"]["ingress"][0];
        for (field, value) in case.ingress.as_object().into_iter().flatten() {
            anyhow::ensure!(ingress[field] == *value, "{}: {ingress}", case.name);
        }
        let annotations = service.metadata.annotations.unwrap_or_default();
        let note = |name: &str| annotations.get(&full(name)).cloned().unwrap_or_default();
        let id = note("load-balancer-id");
        let name = stage.cloud.peek(|state| name_of(state, &id));
        anyhow::ensure!(
            name.is_some_and(|name| name.ends_with(&format!("_{}", case.name))),
            "{}: load-balancer-id is {id}",
            case.name
        );
        let address = note("load-balancer-address");
        let shown = ingress["ip"].as_str();
        anyhow::ensure!(
            shown.is_none_or(|shown| shown == address),
            "{}: {address} {ingress}",
            case.name
        );
        anyhow::ensure!(!address.is_empty(), "{}: no address", case.name);
    }
    Ok(())
}

fn name_of(state: &CloudState, id: &str) -> Option<String> {
    state
        .octavia
        .load_balancers
        .get(id)
        .map(|row: &std::sync::Arc<octavia::rows::LoadBalancerRow>| row.body.name.clone())
}

/// Where nobody names a subnet, nodes, a network or a port say where the address is.
pub(crate) async fn without_a_subnet_others_say_where(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    stage.config.subnet = Some(String::new());
    stage.nodes(1).await?;
    let before = stage.world();
    let port = port(stage, "mine").await?;
    let beside = stage.cloud.beside().await?;
    stage.start(&FLAGS).await?;
    for (at, annotation) in [None, Some(("network-id", &*beside)), Some(("port-id", &*port))]
        .into_iter()
        .enumerate()
    {
        let annotations: Vec<_> = annotation.into_iter().chain([(INTERNAL, "true")]).collect();
        let (name, port) = (["nodes", "network", "port"][at], 80 + u16::try_from(at)?);
        stage
            .create(&service(name, &[("TCP", port)], &annotations))
            .await?;
    }
    stage.served(&["nodes", "network", "port"]).await?;
    stage
        .holds(&[
            "default/nodes: address in nodes",
            "default/network: address in beside",
            "default/port: address in vips",
            "default/port: holds port mine",
        ])
        .await?;
    for name in ["nodes", "network", "port"] {
        stage.delete(name).await?;
    }
    stage.vanished(&["nodes", "network", "port"]).await?;
    stage
        .settles("nothing is left", |world| world.same(&before))
        .await?;
    let there = stage.cloud.peek(|state| {
        state
            .neutron
            .ports
            .get(&port)
            .is_some_and(|port| port.device_id.is_empty())
    });
    anyhow::ensure!(there, "the port that was named stays, free");
    stage.stop().await
}

/// A Service of the family IPv6 has an address and members of it, and no floating IP.
pub(crate) async fn ipv6_services_have_addresses_and_members_of_their_family(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    let [four, six] = stage.cloud.server_of_both_families("node-0").await?;
    stage.servers.push(four.clone());
    let spec = NodeSpec::new("node-0")
        .provided_ip(four.ip)
        .provided_ip(six.ip);
    stage
        .kubelets
        .register(spec.provider_id(four.provider_id()).initialized())
        .await?;
    let nothing = stage.world();
    stage.start(&FLAGS).await?;
    let subnet = stage.cloud.net.vips6.clone();
    let on_six = [("subnet-id", subnet.as_str()), ("member-subnet-id", subnet.as_str())];
    let mut manifest = service("six", &[("TCP", 80)], &on_six);
    manifest["spec"]["ipFamilies"] = json!(["IPv6"]);
    stage.create(&manifest).await?;
    stage.create(&service("four", &[("TCP", 81)], &[])).await?;
    stage.served(&["six", "four"]).await?;
    let member = format!("default/six:80: member {} 30080 in vips6", six.ip);
    let lines = [
        "default/six: address in vips6",
        "!default/six: floating ip",
        "default/six:80: listens TCP",
        &member,
    ];
    stage.holds(&lines).await?;
    stage
        .holds(&[
            "default/four:81: member node-0 30081 in nodes",
            "default/four: floating ip from public",
        ])
        .await?;
    anyhow::ensure!(
        stage.address("six").await?.is_ipv6() && stage.address("four").await?.is_ipv4()
    );
    for name in ["six", "four"] {
        stage.delete(name).await?;
    }
    stage.vanished(&["six", "four"]).await?;
    stage
        .settles("nothing is left", |world| world.same(&nothing))
        .await?;
    stage.stop().await
}
