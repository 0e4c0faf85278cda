//! Questions about nodes, while instances come and go.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use anyhow::Context as _;
use ccm_core::{
    k8s::NodeView,
    provider::{CloudProvider as _, InstanceQuery, InstanceStatus, MetadataScope},
};
use ccm_testkit::explore::ScenarioRun;

use super::{
    account::{Account, op},
    mutants::Bug,
};
use crate::{config::Settings, lb::tests::fixture::node, provider::AwsProvider};

/// How often something is asked for until it must be answered.
const MOST_ROUNDS: usize = 60;

pub(super) struct Case {
    name: &'static str,
    need: MetadataScope,
    /// By name, as the kubelet registers them.
    new: bool,
    bug: Option<Bug>,
}

pub(super) fn cases() -> Vec<Case> {
    let case = |name, need, new| Case { name, need, new, bug: None };
    vec![
        case("adopt", MetadataScope::All, true),
        case("follow addresses", MetadataScope::Addresses, false),
        case("follow power", MetadataScope::PowerState, false),
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
        let mut world = Account::new(journey, |_| {}, Settings::default(), self.bug, 4).await?;
        let names = self.names(&world).await?;
        let (mut process, mut there) = (None, vec![true; 4]);
        journey.count(true);
        let mut text = self.ask(&world, &mut process, &names, &there).await?;
        // One comes. Who is so young that it does not show everywhere is not asked about yet.
        let id = world.place.add_node();
        world.nodes.push(node(&id));
        tokio::time::sleep(Duration::from_secs(30)).await;
        let names = self.names(&world).await?;
        // One goes, with nothing left of it.
        world
            .lane
            .elsewhere(|aws| aws.forget_instance(&world.place.nodes[0]));
        there[0] = false;
        there.push(true);
        text.push_str(&self.ask(&world, &mut process, &names, &there).await?);
        journey.count(false);
        anyhow::ensure!(
            world.place.aws.writes() == 0,
            "something was changed: {:?}",
            world.place.aws.actions()
        );
        Ok(text)
    }

    /// Returns what Nodes are called: by names that EC2 gives to instances, where they are new.
    async fn names(&self, world: &Account) -> anyhow::Result<Vec<Arc<NodeView>>> {
        if !self.new {
            return Ok(world.nodes.clone());
        }
        let all = world
            .place
            .aws
            .copy()
            .ask(crate::api::ec2::DescribeInstances::default())
            .await?;
        let mut names = Vec::new();
        for id in &world.place.nodes {
            let instance = all
                .items
                .iter()
                .find(|instance| instance.id == *id)
                .context("there is such an instance")?;
            names.push(Arc::new(NodeView::named(&instance.private_dns_name)));
        }
        Ok(names)
    }

    async fn ask(
        &self,
        world: &Account,
        process: &mut Option<Arc<AwsProvider>>,
        nodes: &[Arc<NodeView>],
        there: &[bool],
    ) -> anyhow::Result<String> {
        let mut answers: Vec<Option<String>> = vec![None; nodes.len()];
        for _ in 0..MOST_ROUNDS {
            let provider = process.get_or_insert_with(|| world.process()).clone();
            let open: Vec<usize> = (0..answers.len())
                .filter(|n| answers[*n].is_none())
                .collect();
            if open.is_empty() {
                break;
            }
            let query = |n: &usize| InstanceQuery {
                node: nodes[*n].clone(),
                scope: self.need,
                max_age: Duration::ZERO,
            };
            let queries: Vec<_> = open.iter().map(query).collect();
            let instances = provider.instances().context("there are instances")?;
            match world
                .journey
                .alive(instances.describe(&op(world, Duration::ZERO), &queries))
                .await
            {
                None => *process = None,
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
                            !(there[n] && absent),
                            "node {n} is said to be {presence:?}"
                        );
                        // What lags behind may still show what is gone.
                        answers[n] = (there[n] || absent).then(|| format!("{presence:?}"));
                    }
                }
            }
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        let mut text = String::new();
        for answer in answers {
            writeln!(text, "{}", answer.context("there is no answer in the end")?)?;
        }
        Ok(text)
    }
}
