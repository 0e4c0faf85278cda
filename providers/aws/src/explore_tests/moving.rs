//! Services that move from a classic to a Network Load Balancer, and back.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use ccm_core::k8s::ServiceView;
use ccm_testkit::explore::ScenarioRun;

use super::{
    account::Account,
    faulty_transport::stop_counting,
    service_driver::{DriverCall, ServiceDriver, ServiceInput, balancers_of, is_served},
};
use crate::{
    config::{AnnotationDialect, Settings},
    fake::{FakeAws, FakeOptions},
    lb::{
        names,
        spec::annotations::PREFIX,
        tests::fixture::{service, with},
    },
};

/// Time for which both load balancers serve after the status was switched.
const DRAIN: Duration = Duration::from_secs(300);
/// The state of a move has no fractions of a second.
const ROUNDING: Duration = Duration::from_secs(1);

/// Tells, by the state of the move and what there is, whether the next act may begin.
type IsEnough = fn(&str, &FakeAws) -> bool;

/// A Service with a classic load balancer, and what it asks for, one after the other.
pub(super) struct MoveScenario {
    name: &'static str,
    knobs: fn(&mut FakeOptions),
    then: Vec<(DriverCall, IsEnough)>,
    /// Another process goes on between the acts.
    restarts: bool,
}

const NODES: &[usize] = &[0, 1, 2];

fn web() -> ServiceView {
    service("web", &[80, 443])
}

/// A Service that asks for a Network Load Balancer, and does not ask to be moved.
fn staying() -> ServiceView {
    with(web(), "type", "nlb")
}

fn moving() -> ServiceView {
    let moving = with(staying(), "move-to", "nlb");
    with(moving, "move-drain-seconds", &DRAIN.as_secs().to_string())
}

fn on(service: ServiceView, backends: &'static [usize]) -> ServiceInput {
    ServiceInput { service, backends }
}

pub(super) fn cases() -> Vec<MoveScenario> {
    let ensure = |service| DriverCall::Ensure(on(service, NODES));
    let done: IsEnough = |_, _| false;
    let switched: IsEnough = |state, _| state.starts_with("switched");
    let exists: IsEnough = |_, aws| !balancers_of(aws, "web").is_empty();
    let unhealthy = |knobs: &mut FakeOptions| knobs.initial = Duration::from_secs(60);
    let case = |name, then| MoveScenario { name, knobs: |_| {}, then, restarts: false };
    vec![
        case("move", vec![(ensure(moving()), done)]),
        MoveScenario {
            knobs: |knobs| *knobs = FakeOptions::realistic(),
            restarts: true,
            ..case(
                "move slowly by another process",
                vec![(ensure(moving()), switched), (ensure(moving()), done)],
            )
        },
        MoveScenario {
            knobs: unhealthy,
            ..case(
                "move while nodes come and go",
                vec![
                    (DriverCall::Ensure(on(moving(), &[0, 1])), exists),
                    (DriverCall::Update(on(moving(), &[1, 2, 3])), done),
                ],
            )
        },
        case("move back", vec![(ensure(moving()), switched), (ensure(staying()), done)]),
        MoveScenario {
            knobs: unhealthy,
            restarts: true,
            ..case(
                "move back before anything is published",
                vec![(ensure(moving()), exists), (ensure(staying()), done)],
            )
        },
        case(
            "delete while it moves",
            vec![(ensure(moving()), switched), (DriverCall::Delete(on(moving(), NODES)), done)],
        ),
    ]
}

scenario!(MoveScenario);

impl MoveScenario {
    async fn go(&self, journey: &Arc<ScenarioRun>) -> anyhow::Result<String> {
        let settings = Settings {
            annotation_dialect: AnnotationDialect::Upstream,
            ..Settings::default()
        };
        let world = Account::exactly(journey, self.knobs, settings, None, 4).await?;
        let mut tenant = ServiceDriver::new(&world);
        let (first, _) = self.then.first().context("something is asked for")?;
        let before = DriverCall::Ensure(on(web(), first.wish().backends));
        tenant.settle(&before).await.context("before")?;
        // It is not so new that reads do not show it.
        tokio::time::sleep(Duration::from_secs(30)).await;
        self.guard(&world, &tenant);
        journey.count(true);
        for (act, is_enough) in &self.then {
            if act.deletes() {
                world.watch(Box::new(|_| None));
            }
            let aws = world.place.aws.clone();
            let uid = &act.wish().service.uid;
            let key = format!("{PREFIX}move-state");
            let until = |tenant: &ServiceDriver<'_>| {
                is_enough(tenant.written(uid, &key).unwrap_or_default(), &aws)
            };
            tenant.settle_until(act, until).await?;
            if self.restarts {
                tenant.restart();
            }
        }
        stop_counting(journey).await;
        let end = world.describe()?;
        let (last, _) = self.then.last().context("something is asked for")?;
        if !last.deletes() {
            let moves = world.place.aws.classics().is_empty();
            let asked = last
                .wish()
                .service
                .annotations
                .contains_key(&*format!("{PREFIX}move-to"));
            let networks = balancers_of(&world.place.aws, "web").len();
            anyhow::ensure!(moves == asked, "a classic load balancer is there: {}", !moves);
            anyhow::ensure!(networks == usize::from(asked), "{networks} network load balancers");
            tenant.is_quiet(last.wish()).await?;
            let delete = DriverCall::Delete(last.wish().clone());
            tenant.settle(&delete).await.context("deletion")?;
        }
        // Interfaces of load balancers go later.
        tokio::time::sleep(Duration::from_secs(600)).await;
        let diff = world.empty.diff(&world.describe()?);
        anyhow::ensure!(diff.is_empty(), "left behind:\n{diff}");
        Ok(end.to_string())
    }

    /// Has the Service show a load balancer at every moment that exists and leads to the nodes that it has
    /// before and in the end. The one that it showed before stays until it is drained.
    fn guard(&self, world: &Account, tenant: &ServiceDriver<'_>) {
        let backends = self.then.iter().map(|(act, _)| act.wish().backends);
        let all = world.place.nodes.iter().enumerate();
        let stays: Vec<_> = all
            .filter(|(n, _)| backends.clone().all(|backends| backends.contains(n)))
            .map(|(_, id)| id.clone())
            .collect();
        let web = web();
        let name = names::load_balancer(&web.uid);
        let published = tenant.published.clone();
        world.watch(Box::new(move |aws: &FakeAws| {
            let published = published.lock();
            let (host, since) = published.last()?;
            let classics = aws.classics();
            let classic = classics.iter().find(|found| found.name == name);
            let own = balancers_of(aws, "web");
            let all = aws.load_balancers();
            let network = all.iter().find(|found| own.contains(&found.arn));
            // The one that is shown exists, and serves.
            let is_classic = classic.is_some_and(|found| found.dns_name == *host);
            let is_network = network.is_some_and(|found| found.dns_name == *host);
            if !is_classic && !is_network {
                return Some(format!("{host} is published and does not exist"));
            }
            for id in &stays {
                let serves = match classic.filter(|_| is_classic) {
                    Some(classic) => classic.instances.contains(id),
                    None => web.ports.iter().all(|port| {
                        is_served(aws, &(web.name.clone(), port.port.get(), id.to_string()))
                    }),
                };
                if !serves {
                    return Some(format!("{host} is published and does not lead to {id}"));
                }
            }
            // The one before it stays until it is drained.
            let (previous, _) = published.iter().rev().nth(1)?;
            let hosts = classic.map(|found| &found.dns_name).into_iter();
            let mut hosts = hosts.chain(network.map(|found| &found.dns_name));
            let is_drained = since.elapsed() + ROUNDING >= DRAIN;
            (!is_drained && !hosts.any(|host| host == previous))
                .then(|| format!("{previous} is gone before it is drained"))
        }));
    }
}
