//! Questions about nodes: adopted, followed, gone.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use anyhow::Context as _;
use async_trait::async_trait;
use ccm_core::{
    k8s::NodeView,
    provider::{CloudProvider as _, InstanceQuery, InstanceStatus, MetadataScope},
};
use ccm_testkit::explore::{Call, FaultKind, Scenario, ScenarioRun};
use openstack_local::{nova, server::Settings as CloudSettings};

use super::{
    cloud::{ExploredCloud, Kept, applies, op},
    explore,
    mutants::Bug,
};

/// How often something is asked for until it must be answered.
const MOST_ROUNDS: usize = 60;

struct Case {
    name: &'static str,
    /// Nodes that are there, beside one that is stopped and one whose server is gone.
    nodes: usize,
    need: MetadataScope,
    /// By name, as the kubelet registers them.
    new: bool,
    /// The process begins amid the faults.
    start: bool,
    cloud: fn(&mut CloudSettings),
    kept: Kept,
    bug: Option<Bug>,
}

fn cases() -> [Case; 7] {
    let case = |name, nodes, need, new, start| {
        let (kept, cloud) = (Kept::default(), (|_| {}) as fn(&mut CloudSettings));
        Case { name, nodes, need, new, start, cloud, kept, bug: None }
    };
    let pages = |settings: &mut CloudSettings| settings.page_size = Some(3);
    [
        case("adopt few nodes", 1, MetadataScope::All, true, false),
        case("adopt many nodes", 5, MetadataScope::All, true, false),
        Case {
            cloud: pages,
            ..case("adopt page by page", 5, MetadataScope::All, true, false)
        },
        case("follow few nodes", 1, MetadataScope::PowerState, false, false),
        case("follow addresses", 5, MetadataScope::Addresses, false, false),
        case("follow power", 5, MetadataScope::PowerState, false, false),
        case("start and adopt", 1, MetadataScope::All, true, true),
    ]
}

/// A case with a bug.
pub(super) fn planted(name: &str, bug: Bug) -> Box<dyn Scenario> {
    let case = cases().into_iter().find(|case| case.name == name).unwrap();
    Box::new(Case { bug: Some(bug), ..case })
}

#[tokio::test(start_paused = true)]
async fn nodes_are_adopted_and_followed_whatever_happens() {
    explore(cases()).await;
}

#[async_trait]
impl Scenario for Case {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn applies(&self, kind: FaultKind, call: &Call) -> bool {
        applies(kind, call)
    }

    async fn run(&self, journey: &Arc<ScenarioRun>) -> Result<String, String> {
        self.go(journey).await.map_err(|error| format!("{error:#}"))
    }
}

impl Case {
    async fn go(&self, journey: &Arc<ScenarioRun>) -> anyhow::Result<String> {
        let world = self
            .kept
            .take(journey, self.world(journey))
            .await?
            .planted(self.bug);
        let mut process = if self.start {
            None
        } else {
            Some(world.process().await?)
        };
        journey.count(true);
        let mut answers: Vec<Option<String>> = vec![None; world.nodes.len()];
        for _ in 0..MOST_ROUNDS {
            let provider = match &process {
                Some(provider) => provider.clone(),
                None => process.insert(world.process().await?).clone(),
            };
            let open: Vec<usize> = (0..answers.len())
                .filter(|n| answers[*n].is_none())
                .collect();
            if open.is_empty() {
                break;
            }
            let queries: Vec<_> = open.iter().map(|n| self.query(&world.nodes[*n])).collect();
            let instances = provider.instances().context("there are instances")?;
            match world
                .journey()
                .alive(instances.describe(&op(Duration::ZERO), &queries))
                .await
            {
                None => process = None,
                Some(Err(_)) => {}
                Some(Ok(found)) => {
                    anyhow::ensure!(
                        found.len() == open.len(),
                        "{} answers to {} questions",
                        found.len(),
                        open.len()
                    );
                    for (n, answer) in open.into_iter().zip(found) {
                        let Ok(presence) = answer else { continue };
                        let absent = presence == InstanceStatus::NotFound;
                        anyhow::ensure!(
                            absent == (n > self.nodes),
                            "node {n} is said to be {presence:?}"
                        );
                        anyhow::ensure!(
                            self.tells(&presence, &world.nodes[n]),
                            "node {n} is said to have {presence:?}"
                        );
                        answers[n] = Some(shown(&presence, &world.nodes[n]));
                    }
                }
            }
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        journey.count(false);
        anyhow::ensure!(world.describe().await? == *world.empty, "something was changed");
        let mut text = String::new();
        for answer in answers {
            writeln!(text, "{}", answer.context("there is no answer in the end")?)?;
        }
        self.kept.put(world).await;
        Ok(text)
    }

    /// Whether an answer has the addresses that it is to tell.
    fn tells(&self, presence: &InstanceStatus, node: &NodeView) -> bool {
        match presence {
            InstanceStatus::Found { meta, .. } if self.need != MetadataScope::PowerState => node
                .addresses
                .iter()
                .all(|address| meta.addresses.contains(address)),
            _ => true,
        }
    }

    async fn world(&self, journey: &Arc<ScenarioRun>) -> anyhow::Result<ExploredCloud> {
        let mut world = ExploredCloud::new(journey, self.cloud, |_| {}, self.nodes + 2).await?;
        let (stopped, gone) =
            (server(&world.nodes[self.nodes]), server(&world.nodes[self.nodes + 1]));
        let change = world.site.change(|state, ctx| {
            nova::servers::set_status(state, &stopped, "SHUTOFF", None)?;
            nova::servers::delete(state, ctx, &gone)
        });
        change.await?;
        world.empty = world.describe().await?;
        Ok(world)
    }

    fn query(&self, node: &NodeView) -> InstanceQuery {
        let node = if self.new {
            NodeView::named(&node.name)
        } else {
            node.clone()
        };
        InstanceQuery {
            node: Arc::new(node),
            scope: self.need,
            max_age: Duration::ZERO,
        }
    }
}

fn server(node: &NodeView) -> String {
    let id = node
        .provider_id
        .as_deref()
        .and_then(|id| id.rsplit('/').next());
    id.unwrap_or_default().to_owned()
}

/// Shows an answer without what differs from run to run.
fn shown(presence: &InstanceStatus, node: &NodeView) -> String {
    format!("{presence:?}").replace(&server(node), "<server>")
}
