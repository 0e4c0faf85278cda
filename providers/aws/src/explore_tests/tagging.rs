//! The tagging controller: instances get their tags, and lose them.

use std::sync::Arc;

use async_trait::async_trait;
use ccm_testkit::explore::{Call, FaultKind, Scenario, ScenarioRun};

use super::{account::Account, faulty_transport::applies};
use crate::{
    config::Settings,
    tagging::tests::{Fixture, options},
};

/// For how many seconds it is waited until everything must be done: nine tries take four minutes.
const LONGEST: u64 = 600;

pub(super) struct Case {
    name: &'static str,
    batching: bool,
    /// A node goes, and its instance loses the tags.
    goes: bool,
}

pub(super) fn cases() -> Vec<Case> {
    let case = |name, batching, goes| Case { name, batching, goes };
    vec![
        case("tag", true, false),
        case("tag one by one", false, false),
        case("untag", true, true),
    ]
}

#[async_trait]
impl Scenario for Case {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    /// An instance of a node that went away while no process led keeps its tags, as with upstream,
    /// and so does one of which AWS says that it is gone.
    fn applies(&self, kind: FaultKind, call: &Call) -> bool {
        let kept = matches!(
            kind,
            FaultKind::DiesBefore | FaultKind::DiesAfter | FaultKind::StrangeAbsence
        );
        applies(kind, call) && !(self.goes && kept)
    }

    async fn run(&self, journey: &Arc<ScenarioRun>) -> Result<String, String> {
        self.go(journey).await.map_err(|error| format!("{error:#}"))
    }
}

impl Case {
    async fn go(&self, journey: &Arc<ScenarioRun>) -> anyhow::Result<String> {
        let world = Account::new(journey, |_| {}, Settings::default(), None, 3).await?;
        let mut rig = Fixture::of(world.place.clone()).with_young_nodes();
        rig.client = Some(world.scope().client);
        rig.register_all().await;
        rig.start(options(self.batching));
        if self.goes {
            self.wait(&world, &mut rig, 3).await?;
            journey.count(true);
            rig.delete("n0").await;
        } else {
            journey.count(true);
        }
        let tagged = if self.goes { 2 } else { 3 };
        self.wait(&world, &mut rig, tagged).await?;
        journey.count(false);
        // Whatever did not hear that it is done already, and then gets no answer for a minute when
        // it asks again.
        rig.wait(150).await;
        let before = world.place.aws.writes();
        rig.wait(60).await;
        anyhow::ensure!(
            world.place.aws.writes() == before,
            "done, and then {:?}",
            world.place.aws.actions()
        );
        rig.kill().await;
        Ok(world.describe()?.to_string())
    }

    /// Waits until so many instances, the last ones, have the tags and their nodes the label, and
    /// the others have none.
    async fn wait(&self, world: &Account, rig: &mut Fixture, tagged: usize) -> anyhow::Result<()> {
        let first = world.place.nodes.len() - tagged;
        for _ in 0..LONGEST {
            let mut right = true;
            for (n, id) in world.place.nodes.iter().enumerate() {
                right &= rig.is_tagged(id) == (n >= first);
                right &= n < first || rig.label(&format!("n{n}")).await.is_some();
            }
            if right {
                return Ok(());
            }
            if world.journey.alive(rig.wait(1)).await.is_none() {
                rig.kill().await;
                rig.start(options(self.batching));
            }
        }
        anyhow::bail!("not all tags are right after {LONGEST} seconds")
    }
}
