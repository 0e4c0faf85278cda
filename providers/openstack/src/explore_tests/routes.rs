//! Routes, from one state to another.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::Context as _;
use async_trait::async_trait;
use ccm_core::provider::{CloudProvider as _, Route, RouteChange};
use ccm_testkit::explore::{Call, FaultKind, Scenario, ScenarioRun};
use ipnet::IpNet;
use openstack_local::server::Settings as CloudSettings;

use super::{
    cloud::{ExploredCloud, Kept, applies, op},
    explore,
    mutants::Bug,
};
use crate::provider::OpenStackProvider;

/// How often something is asked for until it must be done.
const MOST_ROUNDS: usize = 60;

/// Routes by destination and node.
type Table = &'static [(&'static str, usize)];

struct Case {
    name: &'static str,
    cloud: fn(&mut CloudSettings),
    before: Table,
    then: Table,
    kept: Kept,
    bug: Option<Bug>,
}

const ONE: (&str, usize) = ("10.64.0.0/24", 0);
const TWO: (&str, usize) = ("10.64.1.0/24", 1);
const SIX: (&str, usize) = ("fd00:64::/64", 1);
const THREE: (&str, usize) = ("10.64.2.0/24", 2);
/// The network of the second node, at the third.
const MOVED: (&str, usize) = ("10.64.1.0/24", 2);

fn as_a_whole(settings: &mut CloudSettings) {
    settings.hidden_extensions = ["extraroute-atomic".to_owned()].into();
}

/// How the network service changes routes, for names.
type Way = (&'static [&'static str; 4], fn(&mut CloudSettings));

fn cases() -> Vec<Case> {
    let ways: [Way; 2] = [
        (&["create routes", "delete routes", "change routes", "move a network"], |_| {}),
        (
            &["create as a whole", "delete as a whole", "change as a whole", "move as a whole"],
            as_a_whole,
        ),
    ];
    let tables: [(Table, Table); 4] = [
        (&[], &[ONE, TWO, SIX]),
        (&[ONE, TWO, SIX], &[SIX]),
        (&[ONE, TWO], &[TWO, SIX, THREE]),
        (&[ONE, TWO], &[ONE, MOVED]),
    ];
    let each = ways.iter().flat_map(|(names, cloud)| {
        names
            .iter()
            .zip(tables)
            .map(move |(name, table)| (name, cloud, table))
    });
    each.map(|(name, cloud, (before, then))| Case {
        name,
        cloud: *cloud,
        before,
        then,
        kept: Kept::default(),
        bug: None,
    })
    .collect()
}

/// A case with a bug.
pub(super) fn planted(name: &str, bug: Bug) -> Box<dyn Scenario> {
    let case = cases().into_iter().find(|case| case.name == name).unwrap();
    Box::new(Case { bug: Some(bug), ..case })
}

#[tokio::test(start_paused = true)]
async fn routes_are_created_and_deleted_whatever_happens() {
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
            .take(journey, ExploredCloud::new(journey, self.cloud, |_| {}, 3))
            .await?
            .planted(self.bug);
        let mut process = Some(world.process().await?);
        settle(&world, &mut process, self.before).await?;
        let stays: Vec<(&str, usize)> = self
            .before
            .iter()
            .filter(|route| self.then.contains(route))
            .copied()
            .collect();
        let stays: Vec<_> = stays
            .into_iter()
            .map(|(net, node)| (net, hop(&world, net, node)))
            .collect();
        let router = world.place.routers[0].clone();
        world.watch(Box::new(move |state| {
            let routes = &state.neutron.routers.get(&router)?.routes;
            let is = |route: &openstack_local::api::neutron::Route, (net, hop): &(&str, String)| {
                route.destination == *net && route.nexthop == *hop
            };
            let lost = stays
                .iter()
                .find(|stays| !routes.iter().any(|route| is(route, stays)));
            lost.map(|(net, hop)| format!("the route to {net} via {hop} is gone"))
        }));
        world.expect_others();
        journey.count(true);
        settle(&world, &mut process, self.then).await?;
        journey.count(false);
        world.others_come().await?;
        let end = world.describe().await?;
        world.others_go().await?;
        settle(&world, &mut process, &[]).await?;
        let left = world.describe().await?;
        anyhow::ensure!(left == world.empty, "left behind: {left} instead of {}", world.empty);
        self.kept.put(world).await;
        Ok(end)
    }
}

fn hop(world: &ExploredCloud, net: &str, node: usize) -> String {
    let six = net.contains(':');
    let mut addresses = world.nodes[node]
        .addresses
        .iter()
        .map(|address| address.address.to_string());
    addresses
        .find(|address| address.contains(':') == six)
        .unwrap_or_default()
}

/// Lists and changes until the table is as wanted, as the framework does.
async fn settle(
    world: &ExploredCloud,
    process: &mut Option<Arc<OpenStackProvider>>,
    table: Table,
) -> anyhow::Result<()> {
    let mut last = String::new();
    for _ in 0..MOST_ROUNDS {
        let provider = match process {
            Some(provider) => provider.clone(),
            None => process.insert(world.process().await?).clone(),
        };
        match world.journey().alive(turn(world, &provider, table)).await {
            None => *process = None,
            Some(turn) => match turn? {
                RouteStep::Done => return Ok(()),
                RouteStep::Changed => {}
                RouteStep::Failed(error, after) => {
                    last = error;
                    tokio::time::sleep(after).await;
                }
            },
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    anyhow::bail!("not done after {MOST_ROUNDS} rounds, the last error: {last}")
}

enum RouteStep {
    /// The table is as wanted.
    Done,
    /// Something was changed, which is to be seen.
    Changed,
    Failed(String, Duration),
}

async fn turn(
    world: &ExploredCloud,
    provider: &OpenStackProvider,
    table: Table,
) -> anyhow::Result<RouteStep> {
    let routes = provider.routes().context("there are routes")?;
    let failed = |error: &ccm_core::provider::CloudError| {
        RouteStep::Failed(error.chain(), error.retry_after().unwrap_or(Duration::from_secs(5)))
    };
    let listed = match routes.list(&op(Duration::ZERO), &world.nodes).await {
        Ok(listed) => listed,
        Err(error) => return Ok(failed(&error)),
    };
    let is = |route: &Route, (net, node): &(&str, usize)| {
        route.destination.to_string() == *net
            && route.node.as_ref() == Some(&world.nodes[*node].name)
    };
    let mut changes = Vec::new();
    for wanted in table
        .iter()
        .filter(|wanted| !listed.iter().any(|route| is(route, wanted)))
    {
        let (net, node) = wanted;
        changes.push(RouteChange::Create {
            node: world.nodes[*node].clone(),
            destination: net.parse::<IpNet>()?,
        });
    }
    let wanted: BTreeSet<IpNet> = table
        .iter()
        .map(|(net, _)| net.parse())
        .collect::<Result<_, _>>()?;
    // What is in the way of a wanted one goes with its creation.
    let surplus = listed
        .iter()
        .filter(|route| !wanted.contains(&route.destination));
    changes.extend(surplus.cloned().map(RouteChange::Delete));
    if changes.is_empty() {
        return Ok(RouteStep::Done);
    }
    let answers = routes.apply(&op(Duration::ZERO), &changes).await;
    Ok(answers
        .iter()
        .find_map(|answer| answer.as_ref().err())
        .map_or(RouteStep::Changed, failed))
}
