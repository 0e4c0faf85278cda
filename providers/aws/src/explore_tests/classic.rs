//! Classic load balancers, from one state to another.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use ccm_core::k8s::ServiceView;
use ccm_testkit::explore::ScenarioRun;

use super::{
    account::Account,
    faulty_transport::stop_counting,
    service_driver::{DriverCall, ServiceDriver, ServiceInput},
};
use crate::{
    config::{AnnotationDialect, Settings},
    fake::{FakeAws, FakeOptions},
    lb::{
        names,
        tests::fixture::{service, with},
    },
};

/// What is there, and what is to be then.
pub(super) struct ClassicScenario {
    name: &'static str,
    knobs: fn(&mut FakeOptions),
    before: Option<ServiceInput>,
    then: Vec<DriverCall>,
    restarts: bool,
}

fn on(service: ServiceView, backends: &'static [usize]) -> ServiceInput {
    ServiceInput { service, backends }
}

fn web(ports: &[u16]) -> ServiceView {
    service("web", ports)
}

/// What the accounts of all cases give out.
const CERTIFICATE: &str =
    "arn:aws:acm:us-west-2:123456789012:certificate/00000000-0000-0000-0000-000000000001";

/// A Service with everything that takes a request of its own.
fn rich(ports: &[u16]) -> ServiceView {
    let web = with(with(web(ports), "ssl-cert", CERTIFICATE), "ssl-ports", "443");
    let web = with(web, "ssl-negotiation-policy", "ELBSecurityPolicy-TLS-1-2-2017-01");
    let web = with(with(web, "proxy-protocol", "*"), "connection-idle-timeout", "120");
    with(with(web, "additional-resource-tags", "team=a"), "healthcheck-interval", "20")
}

/// Nodes of most cases.
const NODES: &[usize] = &[0, 1, 2];

pub(super) fn cases() -> Vec<ClassicScenario> {
    let case = |name, before: Option<ServiceInput>, then: Vec<DriverCall>| ClassicScenario {
        name,
        knobs: |_| {},
        before,
        then,
        restarts: false,
    };
    let ensure = |service| DriverCall::Ensure(on(service, NODES));
    let two = || web(&[80, 443]);
    let given = |service| with(service, "security-groups", "sg-00000000000000001");
    vec![
        case("classic: create", None, vec![ensure(two())]),
        ClassicScenario {
            knobs: |knobs| *knobs = FakeOptions::realistic(),
            ..case("classic: create slowly", None, vec![ensure(rich(&[80, 443]))])
        },
        case(
            "classic: change everything",
            Some(on(two(), NODES)),
            vec![ensure(rich(&[443, 8443]))],
        ),
        ClassicScenario {
            restarts: true,
            ..case(
                "classic: change by a new process",
                Some(on(rich(&[80, 443]), NODES)),
                vec![ensure(with(two(), "additional-resource-tags", "team=a"))],
            )
        },
        case("classic: change groups", Some(on(two(), NODES)), vec![ensure(given(two()))]),
        case(
            "classic: nodes",
            Some(on(two(), &[0, 1])),
            vec![DriverCall::Update(on(two(), &[1, 2, 3]))],
        ),
        case(
            "classic: give up",
            None,
            vec![DriverCall::GivenUp(on(two(), NODES)), DriverCall::Delete(on(two(), NODES))],
        ),
        ClassicScenario {
            restarts: true,
            ..case(
                "classic: orphan",
                Some(on(two(), NODES)),
                vec![DriverCall::Orphans(on(two(), NODES))],
            )
        },
        ClassicScenario {
            restarts: true,
            knobs: |knobs| *knobs = FakeOptions::realistic(),
            ..case(
                "classic: delete slowly by a new process",
                Some(on(two(), NODES)),
                vec![DriverCall::Delete(on(two(), NODES))],
            )
        },
    ]
}

scenario!(ClassicScenario);

impl ClassicScenario {
    async fn go(&self, journey: &Arc<ScenarioRun>) -> anyhow::Result<String> {
        let settings = Settings {
            annotation_dialect: AnnotationDialect::Upstream,
            ..Settings::default()
        };
        let world = Account::exactly(journey, self.knobs, settings, None, 4).await?;
        let mut tenant = ServiceDriver::new(&world);
        if let Some(wish) = &self.before {
            let before = DriverCall::Ensure(wish.clone());
            tenant.settle(&before).await.context("before")?;
        }
        self.guard(&world);
        if self.restarts {
            tenant.restart();
        }
        journey.count(true);
        for act in &self.then {
            tenant.settle(act).await?;
        }
        stop_counting(journey).await;
        let end = world.describe()?;
        let last = self.then.last().context("something is asked for")?;
        if !last.deletes() {
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

    /// Has the load balancer stay, with the instances and the rule of the nodes that it has before and
    /// in the end.
    fn guard(&self, world: &Account) {
        let deletes = self.then.iter().any(DriverCall::deletes);
        let (Some(before), false) = (&self.before, deletes) else {
            return;
        };
        let stays: Vec<_> = before
            .backends
            .iter()
            .filter(|n| self.then.iter().all(|act| act.wish().backends.contains(n)))
            .map(|n| world.place.nodes[*n].clone())
            .collect();
        let name = names::load_balancer(&before.service.uid);
        let group = world.place.node_group.clone();
        world.watch(Box::new(move |aws: &FakeAws| {
            let all = aws.classics();
            let Some(classic) = all.iter().find(|classic| classic.name == name) else {
                return Some(format!("load balancer {name} is gone"));
            };
            if let Some(id) = stays.iter().find(|id| !classic.instances.contains(id)) {
                return Some(format!("{id} is no instance any more"));
            }
            let rules = aws.rules(&group);
            let is_admitted = classic.security_groups.iter().any(|source| {
                rules.iter().any(|rule| {
                    matches!(&rule.source, crate::api::ec2::RuleSource::Group(id, _) if id == source)
                })
            });
            (!is_admitted).then(|| "nodes do not admit the load balancer".to_owned())
        }));
    }
}
