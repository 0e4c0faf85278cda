//! The conformance kit on the mock, as the program that an author of a provider runs.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[path = "../conformance/scripted.rs"]
mod scripted;
#[path = "../conformance/stage.rs"]
mod stage;

use std::{io, process::ExitCode, sync::Arc};

use ccm_core::provider::CloudProvider;
use ccm_mock::{CloudConfig, MockCloud, MockProvider};
use ccm_testkit::conformance::runner::{Suite, run};
use tokio::runtime::{Builder, Runtime};

use self::{scripted::Scripted, stage::Stage};

fn paused() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().start_paused(true).build()
}

fn main() -> ExitCode {
    let instances = Suite::new("instances", paused, async |watch| {
        let cloud = MockCloud::new(&CloudConfig::default())?;
        let made = cloud.clone();
        let make = move || {
            let provider = MockProvider::over(made.clone());
            async move { Ok(Arc::new(provider) as Arc<dyn CloudProvider>) }
        };
        Ok(watch.instances(make, &Scripted(cloud)).await)
    });
    let [balancers, routes] = ["load balancers", "routes"].map(|suite| {
        Suite::new(suite, paused, async move |watch| {
            let stage = Stage::new(CloudConfig::default());
            let made = stage.clone();
            let make = move || {
                let provider = made.provider();
                async move { Ok(Arc::new(provider) as Arc<dyn CloudProvider>) }
            };
            Ok(match suite {
                "routes" => watch.routes(make, &stage).await,
                _ => watch.load_balancers(make, &stage).await,
            })
        })
    });
    run("mock", [instances, balancers, routes].map(|suite| suite.excused(&[])))
}
