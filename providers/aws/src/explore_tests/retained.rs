//! Load balancers that outlive their Service, and Services that adopt them.

use std::sync::Arc;

use ccm_core::k8s::{ServiceView, well_known::ANNOTATION_ADOPT};
use ccm_testkit::explore::ScenarioRun;

use super::{
    account::{Account, targets},
    faulty_transport::stop_counting,
    service_driver::{DriverCall, ServiceDriver, ServiceInput, balancers_of},
};
use crate::{
    api::LoadBalancerArn,
    config::Settings,
    fake::FakeAws,
    lb::tests::fixture::service,
    ownership_tags::{RETAINED_TAG, SERVICE_TAG},
};

/// A Service lets go of its load balancer, and another one may adopt it.
pub(super) struct RetainScenario {
    name: &'static str,
    /// Ports of the Service that adopts it; `None` if none does.
    adopts: Option<&'static [u16]>,
    /// The adopting Service is deleted after its first attempt, whatever came of it.
    gives_up: bool,
}

pub(super) fn cases() -> Vec<RetainScenario> {
    vec![
        RetainScenario { name: "keep", adopts: None, gives_up: false },
        RetainScenario { name: "adopt", adopts: Some(&[80, 443]), gives_up: false },
        RetainScenario {
            name: "adopt with other ports",
            adopts: Some(&[80, 8443]),
            gives_up: false,
        },
        RetainScenario {
            name: "give up an adoption",
            adopts: Some(&[80, 8443]),
            gives_up: true,
        },
    ]
}

scenario!(RetainScenario);

fn managed() -> Settings {
    Settings { managed_security_groups: true, ..Settings::default() }
}

fn on(service: ServiceView) -> ServiceInput {
    ServiceInput { service, backends: &[0, 1] }
}

impl RetainScenario {
    async fn go(&self, journey: &Arc<ScenarioRun>) -> anyhow::Result<String> {
        let world = Account::new(journey, |_| {}, managed(), None, 2).await?;
        let aws = world.place.aws.clone();
        let mut driver = ServiceDriver::new(&world);
        let web = on(service("web", &[80, 443]));
        driver.settle(&DriverCall::Ensure(web.clone())).await?;
        let arn = balancers_of(&aws, "web").remove(0);
        guard(&world, &arn);
        // The Service lets go, and another process goes on.
        journey.count(true);
        driver.settle(&DriverCall::Retain(web)).await?;
        driver.restart();
        anyhow::ensure!(is_kept(&aws, &arn), "it is not kept: {:?}", aws.tags(&arn));
        let Some(ports) = self.adopts else {
            stop_counting(journey).await;
            return world.describe().map(|end| end.to_string());
        };
        // Another one adopts it.
        let mut app = service("app7", ports);
        app.annotations
            .insert(ANNOTATION_ADOPT.into(), arn.as_str().into());
        let app = on(app);
        if self.gives_up {
            // Without a fault, the adoption is finished at once, and the load balancer goes.
            driver.settle(&DriverCall::GivenUp(app.clone())).await?;
            let is_finished = aws.tags(&arn).contains_key(SERVICE_TAG)
                && !aws.tags(&arn).contains_key(RETAINED_TAG);
            if is_finished {
                world.watch(Box::new(|_| None));
            }
            driver.settle(&DriverCall::Delete(app)).await?;
            stop_counting(journey).await;
            anyhow::ensure!(
                is_finished != aws.exists(&arn),
                "finished: {is_finished}, and then it exists: {}",
                aws.exists(&arn)
            );
            anyhow::ensure!(is_finished || is_kept(&aws, &arn), "{:?}", aws.tags(&arn));
            // What came of it depends on the fault.
            world.describe()?;
            return Ok(String::new());
        }
        driver.settle(&DriverCall::Ensure(app.clone())).await?;
        stop_counting(journey).await;
        let end = world.describe()?;
        driver.is_quiet(&app).await?;
        world.watch(Box::new(|_| None));
        driver.settle(&DriverCall::Delete(app)).await?;
        let diff = world.empty.diff(&world.describe()?);
        anyhow::ensure!(diff.is_empty(), "left behind:\n{diff}");
        Ok(end.to_string())
    }
}

fn is_kept(aws: &FakeAws, arn: &LoadBalancerArn) -> bool {
    let tags = aws.tags(arn);
    tags.contains_key(RETAINED_TAG) && !tags.contains_key(SERVICE_TAG)
}

/// Has the load balancer exist and serve at every moment, alone.
fn guard(world: &Account, arn: &LoadBalancerArn) {
    let arn = arn.clone();
    let count = world.place.aws.load_balancers().len();
    world.watch(Box::new(move |aws: &FakeAws| {
        let all = aws.load_balancers();
        if all.len() != count || all.iter().all(|found| found.arn != arn) {
            return Some(format!("there are {} load balancers", all.len()));
        }
        let listeners = aws.listeners(&arn);
        let Some(listener) = listeners.iter().find(|listener| listener.port == 80) else {
            return Some("port 80 has no listener".to_owned());
        };
        let group = listener.target_group.as_ref()?;
        targets(aws, group)
            .is_empty()
            .then(|| "port 80 leads nowhere".to_owned())
    }));
}
