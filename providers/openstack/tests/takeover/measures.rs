//! Requests of each manager for the same happenings.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;

use crate::{
    calls,
    environment::{ManagerKind, Programs, TakeoverEnvironment},
    recorder::Recorded,
    scenario::TakeoverScenario,
    services::{self, Round},
    table,
};

/// Nodes that join at once.
const NODES: usize = 20;

pub(crate) async fn tell(programs: Programs) -> anyhow::Result<()> {
    let (upstream, ours) = tokio::join!(
        Box::pin(asked_by(programs.clone(), ManagerKind::Upstream)),
        Box::pin(asked_by(programs, ManagerKind::Ours))
    );
    let (upstream, ours) = (upstream.context("upstream")?, ours.context("ours")?);
    anyhow::ensure!(
        upstream.len() == table::MEASURES.len() && ours.len() == upstream.len(),
        "not all was measured"
    );
    for ((row, upstream), ours) in table::MEASURES.iter().zip(upstream).zip(ours) {
        let (theirs, own): (usize, usize) = (upstream.values().sum(), ours.values().sum());
        anyhow::ensure!(
            theirs >= row.upstream && own <= row.ours,
            "{}: upstream asks {theirs} times, ours {own} times\n{upstream:#?}\n{ours:#?}",
            row.what
        );
    }
    Ok(())
}

type Counts = BTreeMap<String, usize>;

/// Counts what one manager asks for.
async fn asked_by(programs: Programs, who: ManagerKind) -> anyhow::Result<Vec<Counts>> {
    let mut counts = Vec::new();
    let stage = TakeoverEnvironment::new(programs, Round::Counted).await?;
    let mut story = TakeoverScenario { round: Round::Counted, stage, kinds: BTreeSet::new() };
    let mut ccm = story.stage.start(who).await?;
    story.quiet(Vec::new()).await?;
    story.stage.join(NODES).await?;
    counts.push(nodes(&story.settled(&ccm).await?));
    story.create(services::later()).await?;
    counts.push(balancers(&story.settled(&ccm).await?));
    story.delete("later").await?;
    counts.push(balancers(&story.settled(&ccm).await?));
    for kind in services::kinds(Round::Counted, &story.stage.world.ids) {
        story.create(kind).await?;
    }
    story.settled(&ccm).await?;
    story.stage.join(1).await?;
    counts.push(balancers(&story.settled(&ccm).await?));
    story.stage.end(ccm).await?;
    if who == ManagerKind::Upstream {
        story.stage.release_lease().await?;
    }
    story.stage.world.recorder.take();
    ccm = story.stage.start(who).await?;
    counts.push(balancers(&story.settled(&ccm).await?));
    story.stage.end(ccm).await?;
    Ok(counts)
}

fn nodes(seen: &[Recorded]) -> Counts {
    counted(seen, |request| {
        request.path.starts_with("/compute")
            || request.path.contains("/ports") && request.query.contains("device_id")
    })
}

fn balancers(seen: &[Recorded]) -> Counts {
    counted(seen, |request| {
        request.path.starts_with("/load-balancer")
            || ["floatingips", "security-groups", "subnets", "networks"]
                .iter()
                .any(|part| request.path.contains(part))
    })
}

fn counted(seen: &[Recorded], is_meant: impl Fn(&Recorded) -> bool) -> Counts {
    let mut counts = Counts::new();
    for request in seen.iter().filter(|request| is_meant(request)) {
        *counts.entry(calls::kind(request)).or_default() += 1;
    }
    counts
}
