//! Services: what there is in AWS for each annotation, after it changed, and when the Service is
//! gone.

mod table;

use anyhow::Context as _;
use ccm_testkit::{kubelet::NodeSpec, moto::fault_proxy::Recorded};
use serde_json::{Value, json};

use self::table::{AnnotationValues, Case, SentParameter};
use super::fixture::{ClusterFixture, full, service};

const FLAGS: [&str; 1] = ["--controllers=service"];

/// Each Service gets what its annotations ask for, and what they ask for next; then nothing is left
/// of it.
// EN1 TG1 SU4 SU5 LB1 LB5 LB6 LB7 LB8 LB9 LB10
pub(crate) async fn each_annotation_has_its_effect(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.config = "DefaultLoadBalancerType = nlb\nAnnotationDialect = extended\n".into();
    play(stage, table::plain).await
}

/// The same, where load balancers have security groups.
// EN1 SG1 SG2 SG6 SG9 LB4 LB12 E4 E5 E6
pub(crate) async fn security_groups_follow_the_annotations(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.config = "DefaultLoadBalancerType = nlb\nAnnotationDialect = extended\nNLBSecurityGroupMode = Managed\n".into();
    play(stage, table::managed).await
}

/// The same for classic load balancers, which Services without type get as long as nothing is configured.
pub(crate) async fn classic_load_balancers_follow_the_annotations(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    play(stage, table::classic::cases).await
}

async fn play(
    stage: &mut ClusterFixture<'_>,
    table: fn(&AnnotationValues) -> Vec<Case>,
) -> anyhow::Result<()> {
    stage.nodes(1).await?;
    stage.launch(1, "m5.large").await?;
    let other = NodeSpec::new(stage.instances[1].private_dns_name.clone())
        .label("disk", "ssd")
        .initialized();
    let zone = &stage.network.public[1].zone;
    stage
        .kubelets
        .register(other.provider_id(format!("aws:///{zone}/{}", stage.instances[1].id)))
        .await?;
    let places = AnnotationValues::make(stage).await?;
    let before = stage.world().await?;
    let cases = table(&places);
    stage.start(&FLAGS).await?;
    for (at, case) in cases.iter().enumerate() {
        table::slice(stage, case).await?;
        stage.create(&manifest(at, case)).await.context(case.name)?;
    }
    let names: Vec<_> = cases.iter().map(|case| case.name).collect();
    stage.served(&names).await?;
    holds(stage, &cases, |case| &case.wanted)
        .await
        .context("made")?;
    sent(&cases, &stage.take_requests(), |case| &case.sent)?;
    for case in cases.iter().filter(|case| !case.change.is_null()) {
        stage
            .change(case.name, with_full_names(&case.change))
            .await
            .context(case.name)?;
    }
    holds(stage, &cases, |case| &case.then)
        .await
        .context("changed")?;
    sent(&cases, &stage.take_requests(), |case| &case.then_sent).context("changed")?;
    for name in &names {
        stage.delete(name).await?;
    }
    stage.vanished(&names).await?;
    stage
        .world()
        .await?
        .same(&before)
        .map_err(anyhow::Error::msg)
        .context("left behind")?;
    stage.stop().await
}

/// A Service of the table; its ports have node ports of their own.
fn manifest(at: usize, case: &Case) -> Value {
    let annotations: Vec<_> = case
        .annotations
        .iter()
        .map(|(key, value)| (*key, value.as_str()))
        .collect();
    let mut manifest = service(case.name, &case.ports, &annotations);
    for (port, (_, number)) in case.ports.iter().enumerate() {
        manifest["spec"]["ports"][port]["nodePort"] = json!(node_port(at, *number));
    }
    for (field, value) in case.spec.as_object().into_iter().flatten() {
        manifest["spec"][field] = value.clone();
    }
    manifest
}

/// One port has one node port, whatever the protocol.
fn node_port(at: usize, port: u16) -> usize {
    30000 + 20 * at + usize::from(port % 20)
}

/// Annotations of a patch, by their full names.
fn with_full_names(change: &Value) -> Value {
    let mut change = change.clone();
    if let Some(map) = change["metadata"]["annotations"].as_object() {
        let map: serde_json::Map<_, _> = map
            .iter()
            .map(|(key, value)| (full(key), value.clone()))
            .collect();
        change["metadata"]["annotations"] = map.into();
    }
    change
}

/// Waits until each line holds. A line begins with the name of its Service, unless it is one of a
/// security group.
async fn holds(
    stage: &ClusterFixture<'_>,
    cases: &[Case],
    lines: fn(&Case) -> &[&'static str],
) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        for line in lines(case) {
            let line = match line.strip_prefix('!') {
                Some(start) => format!("!{}", whole(at, case, start)),
                None => whole(at, case, line),
            };
            all.push(line);
        }
    }
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    stage
        .settles("what is wanted", |world| world.has(&all))
        .await
        .map(drop)
}

fn whole(at: usize, case: &Case, line: &str) -> String {
    let owner = format!("default/{}", case.name);
    let line = if line.starts_with("group ") {
        line.to_owned()
    } else {
        format!("{}{owner}{line}", case.kind)
    };
    let line = line.replace("{name}", case.name).replace("{owner}", &owner);
    case.ports.iter().fold(line, |line, (_, port)| {
        line.replace(&format!("{{{port}}}"), &node_port(at, *port).to_string())
    })
}

/// What moto does not keep was at least asked for.
fn sent(
    cases: &[Case],
    requests: &[Recorded],
    wanted: fn(&Case) -> &[SentParameter],
) -> anyhow::Result<()> {
    for (case, (action, parameter, value)) in cases
        .iter()
        .flat_map(|case| wanted(case).iter().map(move |sent| (case, sent)))
    {
        let asked = requests.iter().filter(|request| request.action == *action);
        let is = |request: &Recorded| request.parameter(parameter) == Some(value);
        anyhow::ensure!(
            asked.clone().any(is),
            "{}: no {action} with {parameter} = {value}: {requests:#?}",
            case.name
        );
    }
    Ok(())
}
