//! Routes, from one state to another.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::Context as _;
use ccm_core::{
    k8s::NodeView,
    provider::{CloudError, CloudProvider as _, Route, RouteChange},
};
use ccm_testkit::explore::ScenarioRun;
use ipnet::IpNet;

use super::{
    account::{Account, THEIR_NETWORK, op},
    faulty_transport::stop_counting,
    mutants::Bug,
};
use crate::{config::Settings, provider::AwsProvider};

/// How often something is asked for until it must be done.
const MOST_ROUNDS: usize = 60;

/// Routes by destination and node.
type Table = &'static [(&'static str, usize)];

pub(super) struct Case {
    name: &'static str,
    before: Table,
    then: Table,
    /// Nodes whose instances vanish before anything is done about it.
    gone: &'static [usize],
    bug: Option<Bug>,
}

const ONE: (&str, usize) = ("100.64.0.0/24", 0);
const TWO: (&str, usize) = ("100.64.1.0/24", 1);
const SIX: (&str, usize) = ("fd00:64::/64", 1);
const THREE: (&str, usize) = ("100.64.2.0/24", 2);
/// The network of the second node, at the third.
const MOVED: (&str, usize) = ("100.64.1.0/24", 2);

pub(super) fn cases() -> Vec<Case> {
    let case = |name, before, then, gone| Case { name, before, then, gone, bug: None };
    vec![
        case("create routes", &[], &[ONE, TWO, SIX], &[]),
        case("delete routes", &[ONE, TWO, SIX], &[SIX], &[]),
        case("change routes", &[ONE, TWO], &[TWO, SIX, THREE], &[]),
        case("move a network", &[ONE, TWO], &[ONE, MOVED], &[]),
        case("routes that lead nowhere", &[ONE, TWO, SIX], &[ONE, MOVED], &[1]),
    ]
}

pub(super) fn planted(name: &str, bug: Bug) -> Case {
    let case = cases()
        .into_iter()
        .find(|case| case.name == name)
        .expect("there is such a case");
    Case { bug: Some(bug), ..case }
}

scenario!(Case);

impl Case {
    async fn go(&self, journey: &Arc<ScenarioRun>) -> anyhow::Result<String> {
        let world = Account::new(journey, |_| {}, Settings::default(), self.bug, 3).await?;
        let mut process = Some(world.process());
        settle(&world, &mut process, self.before).await?;
        for n in self.gone {
            world
                .lane
                .elsewhere(|aws| aws.forget_instance(&world.place.nodes[*n]));
        }
        self.guard(&world)?;
        journey.count(true);
        settle(&world, &mut process, self.then).await?;
        stop_counting(journey).await;
        let end = world.describe()?;
        world.place.aws.reset_calls();
        for fresh in [false, true] {
            let provider = if fresh {
                world.process()
            } else {
                process.clone().context("there is a process")?
            };
            let quiet = turn(&world, &provider, self.then).await?;
            anyhow::ensure!(matches!(quiet, RouteStep::Done), "done, and then there is left to do");
        }
        anyhow::ensure!(
            world.place.aws.writes() == 0,
            "done, and then {:?}",
            world.place.aws.actions()
        );
        settle(&world, &mut process, &[]).await?;
        let left = world.place.aws.routes(&world.place.table);
        anyhow::ensure!(left.len() == 1, "left behind: {left:?}");
        Ok(end.to_string())
    }

    /// Has what is to stay lead where it does at every moment, and what is to move lead somewhere.
    fn guard(&self, world: &Account) -> anyhow::Result<()> {
        let mut stays = Vec::new();
        for one in self
            .before
            .iter()
            .filter(|(net, _)| self.then.iter().any(|(to, _)| to == net))
        {
            let to = self
                .then
                .contains(one)
                .then(|| world.place.nodes[one.1].clone());
            stays.push((one.0.parse::<IpNet>()?, to));
        }
        let table = world.place.table.clone();
        world.watch(Box::new(move |aws| {
            let routes = aws.routes(&table);
            for (net, to) in &stays {
                let Some(route) = routes.iter().find(|route| route.destination == Some(*net))
                else {
                    return Some(format!("{net} leads nowhere"));
                };
                if to
                    .as_ref()
                    .is_some_and(|to| route.instance.as_ref() != Some(to))
                {
                    return Some(format!("{net} leads to {:?}", route.instance));
                }
            }
            None
        }));
        Ok(())
    }
}

/// Lists and changes until the table is as wanted, as the framework does.
async fn settle(
    world: &Account,
    process: &mut Option<Arc<AwsProvider>>,
    table: Table,
) -> anyhow::Result<()> {
    let mut last = String::new();
    for _ in 0..MOST_ROUNDS {
        let provider = process.get_or_insert_with(|| world.process()).clone();
        match world.journey.alive(turn(world, &provider, table)).await {
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

/// The nodes that are there, with the networks that they have now.
fn nodes(world: &Account, table: Table) -> Vec<Arc<NodeView>> {
    let node = |(n, node): (usize, &Arc<NodeView>)| {
        let nets = table
            .iter()
            .filter(|(_, at)| *at == n)
            .map(|(net, _)| (*net).into())
            .collect();
        Arc::new(NodeView { pod_cidrs: nets, ..(**node).clone() })
    };
    world
        .nodes
        .iter()
        .enumerate()
        .map(node)
        .filter(|node| !node.pod_cidrs.is_empty())
        .collect()
}

async fn turn(world: &Account, provider: &AwsProvider, table: Table) -> anyhow::Result<RouteStep> {
    let routes = provider.routes().context("there are routes")?;
    let failed = |error: &CloudError| {
        RouteStep::Failed(error.chain(), error.retry_after().unwrap_or(Duration::from_secs(5)))
    };
    let nodes = nodes(world, table);
    let op = op(world, Duration::ZERO);
    let listed = match routes.list(&op, &nodes).await {
        Ok(listed) => listed,
        Err(error) => return Ok(failed(&error)),
    };
    let is = |route: &Route, (net, n): &(&str, usize)| {
        !route.blackhole
            && route.destination.to_string() == *net
            && route.node.as_ref() == Some(&world.nodes[*n].name)
    };
    let mut changes = Vec::new();
    for wanted in table
        .iter()
        .filter(|wanted| !listed.iter().any(|route| is(route, wanted)))
    {
        let node = nodes
            .iter()
            .find(|node| node.name == world.nodes[wanted.1].name)
            .context("a node")?;
        changes.push(RouteChange::Create {
            node: node.clone(),
            destination: wanted.0.parse::<IpNet>()?,
        });
    }
    let wanted: BTreeSet<IpNet> = table
        .iter()
        .map(|(net, _)| net.parse())
        .collect::<Result<_, _>>()?;
    anyhow::ensure!(
        !listed
            .iter()
            .any(|route| route.destination == *THEIR_NETWORK),
        "somebody else's route is listed"
    );
    // What is in the way of a wanted one goes with its creation.
    let surplus = listed
        .iter()
        .filter(|route| !wanted.contains(&route.destination));
    changes.extend(surplus.cloned().map(RouteChange::Delete));
    if changes.is_empty() {
        return Ok(RouteStep::Done);
    }
    let answers = routes.apply(&op, &changes).await;
    Ok(answers
        .iter()
        .find_map(|answer| answer.as_ref().err())
        .map_or(RouteStep::Changed, failed))
}
