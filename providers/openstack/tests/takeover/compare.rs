//! What each manager makes of the same objects, in the cloud and in the cluster.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use kube::api::ListParams;
use regex::Regex;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    environment::{ManagerKind, Programs, TakeoverEnvironment},
    scenario::TakeoverScenario,
    services::{self, Round},
    table,
};

/// Objects by name, without what differs from run to run.
type CloudSnapshot = BTreeMap<String, Value>;

pub(crate) async fn tell(programs: Programs) -> anyhow::Result<()> {
    let (upstream, ours) = tokio::join!(
        Box::pin(made_by(programs.clone(), ManagerKind::Upstream)),
        Box::pin(made_by(programs, ManagerKind::Ours))
    );
    let (upstream, ours) = (upstream.context("upstream")?, ours.context("ours")?);
    let mut differences = BTreeSet::new();
    for name in upstream.keys().chain(ours.keys()).collect::<BTreeSet<_>>() {
        compare(
            name,
            upstream.get(name).unwrap_or(&Value::Null),
            ours.get(name).unwrap_or(&Value::Null),
            &mut differences,
        );
    }
    let listed = |difference: &str| table::DIFFERENCES.iter().any(|row| row.is_of(difference));
    let unlisted: Vec<_> = differences
        .iter()
        .filter(|difference| !listed(difference))
        .cloned()
        .collect();
    anyhow::ensure!(unlisted.is_empty(), "not on the page:\n{}", unlisted.join("\n"));
    let seen =
        |row: &&table::Difference| differences.iter().any(|difference| row.is_of(difference));
    let gone: Vec<_> = table::DIFFERENCES
        .iter()
        .filter(|row| !seen(row))
        .map(|row| row.what)
        .collect();
    anyhow::ensure!(gone.is_empty(), "on the page and not there: {gone:?}");
    Ok(())
}

fn compare(at: &str, upstream: &Value, ours: &Value, differences: &mut BTreeSet<String>) {
    match (upstream, ours) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                let (a, b) =
                    (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
                compare(&format!("{at}.{key}"), a, b, differences);
            }
        }
        _ if upstream == ours => {}
        _ => {
            differences.insert(format!("{at}: upstream {upstream}, ours {ours}"));
        }
    }
}

/// Lets one manager make everything in a cluster and a cloud of its own.
async fn made_by(programs: Programs, who: ManagerKind) -> anyhow::Result<CloudSnapshot> {
    let mut stage = TakeoverEnvironment::new(programs, Round::Plain).await?;
    let ccm = stage.start(who).await?;
    stage.join(2).await?;
    let mut story = TakeoverScenario { round: Round::Plain, stage, kinds: BTreeSet::new() };
    story.settled(&ccm).await?;
    for kind in services::kinds(Round::Plain, &story.stage.world.ids) {
        story.create(kind).await?;
    }
    story.settled(&ccm).await?;
    let mut picture = cloud(&story.stage);
    picture.extend(cluster(&story).await?);
    story.delete("one").await?;
    story.settled(&ccm).await?;
    picture.extend(events(&story.stage).await?);
    story.stage.end(ccm).await?;
    Ok(picture)
}

/// What is in the cloud.
fn cloud(stage: &TakeoverEnvironment) -> CloudSnapshot {
    let clean = Clean::new(stage);
    stage.world.peek(|state| {
        let octavia = &state.octavia;
        let mut names = BTreeMap::new();
        let mut picture = CloudSnapshot::new();
        for row in octavia.load_balancers.iter() {
            picture.insert(format!("balancer {}", row.body.name), clean.json(&row.body));
        }
        for row in octavia.listeners.iter() {
            names.insert(
                row.body.default_pool_id.clone().unwrap_or_default(),
                row.body.name.clone(),
            );
            let mut listener = clean.json(&row.body);
            // Upstream keeps them in a Go map: their order is another one at each run.
            if let Some(cidrs) = listener["allowed_cidrs"].as_array_mut() {
                cidrs.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
            }
            picture.insert(format!("listener {}", row.body.name), listener);
        }
        for row in octavia.pools.iter() {
            picture.insert(format!("pool {}", row.body.name), clean.json(&row.body));
        }
        for row in octavia.members.iter() {
            let pool = octavia
                .pools
                .get(&row.pool)
                .map(|pool| pool.body.name.clone())
                .unwrap_or_default();
            picture.insert(format!("member {} of {pool}", row.body.name), clean.json(&row.body));
        }
        for row in octavia.monitors.iter() {
            picture.insert(format!("monitor {}", row.body.name), clean.json(&row.body));
        }
        for floating in state.neutron.floating_ips.iter() {
            picture.insert(
                format!("floating IP {}", floating.standard.description),
                clean.json(&**floating),
            );
        }
        for router in state.neutron.routers.iter() {
            let mut routes: Vec<_> = router
                .routes
                .iter()
                .map(|route| clean.json(route).to_string())
                .collect();
            routes.sort();
            picture.insert("routes".into(), json!(routes));
        }
        for port in state
            .neutron
            .ports
            .iter()
            .filter(|port| port.device_owner.starts_with("compute"))
        {
            let address = port
                .fixed_ips
                .first()
                .map(|fixed| fixed.ip_address.to_string())
                .unwrap_or_default();
            picture.insert(format!("port {address}"), clean.json(&**port));
        }
        picture
    })
}

/// What is in the cluster.
async fn cluster(story: &TakeoverScenario) -> anyhow::Result<CloudSnapshot> {
    let clean = Clean::new(&story.stage);
    let mut picture = CloudSnapshot::new();
    for (name, object) in story.picture().await? {
        let mut kept = json!({"metadata": {}, "spec": {}});
        for key in ["labels", "annotations", "finalizers"] {
            kept["metadata"][key] = object["metadata"][key].clone();
        }
        kept["status"] = object["status"].clone();
        for key in ["providerID", "taints"] {
            kept["spec"][key] = object["spec"][key].clone();
        }
        for condition in kept["status"]["conditions"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            condition
                .as_object_mut()
                .map(|condition| condition.remove("lastTransitionTime"));
        }
        picture.insert(name, clean.json(&kept));
    }
    Ok(picture)
}

/// Events, without their times.
async fn events(stage: &TakeoverEnvironment) -> anyhow::Result<CloudSnapshot> {
    let clean = Clean::new(stage);
    let events = stage.events().list(&ListParams::default()).await?.items;
    let line = |event: k8s_openapi::api::core::v1::Event| {
        let of = event.involved_object;
        let who = format!("{} {}", of.kind.unwrap_or_default(), of.name.unwrap_or_default());
        let message = clean.text(&event.message.unwrap_or_default());
        let what = format!(
            "event on {who}: {} {}",
            event.type_.unwrap_or_default(),
            event.reason.unwrap_or_default()
        );
        (what, json!(message))
    };
    // The API server repairs its records of addresses; and who leads is another story.
    let wanted = |event: &k8s_openapi::api::core::v1::Event| {
        event.involved_object.kind.as_deref() != Some("Lease")
            && event
                .reason
                .as_deref()
                .is_none_or(|reason| !reason.starts_with("ClusterIP"))
    };
    Ok(events.into_iter().filter(wanted).map(line).collect())
}

/// Takes out what differs from run to run.
struct Clean {
    names: Vec<(String, &'static str)>,
    patterns: Vec<(Regex, &'static str)>,
}

impl Clean {
    fn new(stage: &TakeoverEnvironment) -> Self {
        let ids = stage.world.ids.clone();
        let names = vec![
            (ids.nodes_network, "{nodes network}"),
            (ids.nodes_subnet, "{nodes subnet}"),
            (ids.vip_network, "{vip network}"),
            (ids.vip_subnet, "{vip subnet}"),
            (ids.public, "{public}"),
            (ids.public_subnet, "{public subnet}"),
            (ids.other_public, "{other public subnet}"),
            (ids.manual, "{manual balancer}"),
            (ids.fixed_address, "{fixed address}"),
            (stage.world.address.to_string(), "{cloud}"),
        ];
        let patterns = [
            (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "{id}"),
            (r"\b[0-9a-f]{32}\b", "{id}"),
            (r"\b3[0-2][0-9]{3}\b", "32767"),
            (r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z?", "{time}"),
            (r"\b(203\.0\.113|198\.51\.100|10\.1\.0|10\.0\.0)\.[0-9]+", "$1.x"),
            (r"\bfa:16:3e(:[0-9a-f]{2}){3}", "{mac}"),
        ];
        // They are patterns of this file.
        let patterns = patterns
            .into_iter()
            .filter_map(|(pattern, by)| Some((Regex::new(pattern).ok()?, by)));
        Self { names, patterns: patterns.collect() }
    }

    fn text(&self, text: &str) -> String {
        let text = self
            .names
            .iter()
            .fold(text.to_owned(), |text, (id, name)| text.replace(id, name));
        self.patterns
            .iter()
            .fold(text, |text, (pattern, by)| pattern.replace_all(&text, *by).into_owned())
    }

    fn json(&self, object: &impl Serialize) -> Value {
        let text = serde_json::to_string(object).unwrap_or_default();
        serde_json::from_str(&self.text(&text)).unwrap_or_default()
    }
}
