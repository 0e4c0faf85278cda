//! Load balancers that nobody asks for any more, or that somebody asks for again just when they are
//! to be deleted.

use std::time::Duration;

use super::{Scenario, services};
use crate::cluster::SimulatedCluster;

/// Looks every two minutes; the third look finds an orphan old enough.
const COLLECTS: &[&str] = &[
    "--controllers=service",
    "--collect-orphans",
    "--collect-orphans-confirm=kubernetes",
    "--orphan-report-period=2m",
    "--orphan-minimum-age=3m",
];
/// A bit after the first look.
const SEEN: Duration = Duration::from_secs(130);
/// So many lists of load balancers have been begun when the third look is under way.
const THIRD: u32 = 3;
/// Most time that a story waits for it.
const PATIENCE: Duration = Duration::from_secs(1800);

const BASE: Scenario = Scenario { flags: COLLECTS, ..services::BASE };

pub(super) static ALL: [Scenario; 3] = [
    Scenario {
        name: "orphans",
        about: "of Services that vanished without a trace one stays gone, one is made anew, one comes back: two are orphans",
        before: Some(|world| Box::pin(served(world, &["kept", "lost", "anew", "back"]))),
        between: Some(|world| {
            Box::pin(std::future::ready(vanish(world, &["lost", "anew", "back"])))
        }),
        story: |world| Box::pin(return_early(world)),
        ..BASE
    },
    Scenario {
        name: "orphans-return",
        about: "a Service comes back when its load balancer is about to be deleted as an orphan",
        cloud: "latency: {loadBalancers: 300ms}\n",
        before: Some(|world| Box::pin(served(world, &["kept", "back"]))),
        between: Some(|world| Box::pin(std::future::ready(vanish(world, &["back"])))),
        story: |world| Box::pin(return_late(world)),
        ..BASE
    },
    Scenario {
        name: "orphans-unheld",
        about: "two Services get the finalizer when their deletion has begun, so that it does not hold them",
        cloud: "latency: {loadBalancers: 300ms}\n",
        before: Some(|world| Box::pin(served(world, &["kept"]))),
        story: |world| Box::pin(unheld(world)),
        ..BASE
    },
];

async fn served(world: &SimulatedCluster, names: &[&str]) -> Result<(), String> {
    services::nodes(world).await?;
    for name in names {
        world.create_service(name).await?;
    }
    Ok(())
}

fn vanish(world: &SimulatedCluster, names: &[&str]) -> Result<(), String> {
    names
        .iter()
        .try_for_each(|name| world.remove_from_store(name))
}

async fn return_early(world: &SimulatedCluster) -> Result<(), String> {
    world.create_service("anew").await?;
    tokio::time::sleep(SEEN).await;
    world.put_back("back")
}

/// One is gone while its load balancer is being made, one after that.
async fn unheld(world: &SimulatedCluster) -> Result<(), String> {
    let (early, late) = (Duration::from_millis(150), Duration::from_secs(2));
    tokio::try_join!(world.serve_unheld("early", early), world.serve_unheld("late", late)).map(drop)
}

async fn return_late(world: &SimulatedCluster) -> Result<(), String> {
    let looks = |world: &SimulatedCluster| {
        let count = world.seam.count("cloud.list_load_balancers");
        (count < THIRD).then(|| format!("{count} looks"))
    };
    let end = world.seam.now() + PATIENCE;
    while let Some(wrong) = looks(world) {
        if world.seam.now() > end {
            return Err(format!("no third look: {wrong}"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.put_back("back")
}
