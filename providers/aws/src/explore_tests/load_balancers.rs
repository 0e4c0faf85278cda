//! Load balancers, from one state to another.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use async_trait::async_trait;
use ccm_testkit::explore::{Call, FaultKind, Scenario, ScenarioRun};
use parking_lot::Mutex;

use super::{
    account::Account,
    cases::Case,
    faulty_transport::{applies, stop_counting},
    mutants::Bug,
    service_driver::{DriverCall, ServiceDriver, balancers_of, is_served},
};
use crate::{
    api::ec2::{Rule, RuleSource},
    fake::{AccountSnapshot, FakeAws},
    lb::security_groups::desired_rules::is_client,
};

/// A case, which is run again and again.
pub(super) struct LoadBalancerScenario {
    case: Case,
    bug: Option<Bug>,
    /// Rules of the nodes' group in the end of the run without faults.
    rules: Mutex<Option<BTreeSet<Rule>>>,
}

impl LoadBalancerScenario {
    pub(super) fn new(case: Case) -> Self {
        Self { case, bug: None, rules: Mutex::default() }
    }

    pub(super) fn planted(case: Case, bug: Bug) -> Self {
        Self { bug: Some(bug), ..Self::new(case) }
    }
}

#[async_trait]
impl Scenario for LoadBalancerScenario {
    fn name(&self) -> String {
        self.case.name.to_owned()
    }

    fn applies(&self, kind: FaultKind, call: &Call) -> bool {
        let dies = matches!(kind, FaultKind::DiesBefore | FaultKind::DiesAfter);
        applies(kind, call) && !(self.case.remembered && dies)
    }

    async fn run(&self, journey: &Arc<ScenarioRun>) -> Result<String, String> {
        Box::pin(self.go(journey))
            .await
            .map_err(|error| format!("{error:#}"))
    }
}

impl LoadBalancerScenario {
    async fn go(&self, journey: &Arc<ScenarioRun>) -> anyhow::Result<String> {
        let case = &self.case;
        let settings = (case.settings)();
        let world = Account::new(journey, case.knobs, settings, self.bug, 4).await?;
        let mut tenant = ServiceDriver::new(&world);
        let mut alone = world.empty.clone();
        if !case.others.is_empty() {
            self.ensure_others(&mut tenant)
                .await
                .context("another Service")?;
            alone = world.describe()?;
        }
        if let Some(wish) = &case.before {
            tenant
                .settle(&DriverCall::Ensure(wish.clone()))
                .await
                .context("before")?;
        }
        self.guard(&world, &tenant);
        if case.restarts {
            tenant.restart();
        }
        journey.count(true);
        for act in &case.then {
            tenant.settle(act).await?;
        }
        self.ensure_others(&mut tenant)
            .await
            .context("another Service, afterwards")?;
        stop_counting(journey).await;
        let end = world.describe()?;
        self.rules.lock().get_or_insert_with(|| {
            world
                .place
                .aws
                .rules(&world.place.node_group)
                .into_iter()
                .collect()
        });
        let last = case
            .then
            .iter()
            .rfind(|act| !matches!(act, DriverCall::Refused(..)));
        let lives = last
            .filter(|act| !matches!(act, DriverCall::Delete(_)))
            .map(DriverCall::wish);
        if let Some(wish) = lives {
            tenant.is_quiet(wish).await?;
            tenant
                .settle(&DriverCall::Delete(wish.clone()))
                .await
                .context("deletion")?;
        }
        let mut left = self.left(&world, &alone).await.context("after deletion")?;
        if !case.others.is_empty() {
            for wish in &case.others {
                tenant
                    .settle(&DriverCall::Delete(wish.clone()))
                    .await
                    .context("deletion of another Service")?;
            }
            left.push_str(
                &self
                    .left(&world, &world.empty)
                    .await
                    .context("after deletion of all")?,
            );
        }
        Ok(format!("{end}{left}"))
    }

    /// Reconciles the other Services of the case.
    async fn ensure_others(&self, tenant: &mut ServiceDriver<'_>) -> anyhow::Result<()> {
        for wish in &self.case.others {
            tenant.settle(&DriverCall::Ensure(wish.clone())).await?;
        }
        Ok(())
    }

    /// Tells what is left behind beside what was there, which may be what all balancers share.
    async fn left(&self, world: &Account, before: &AccountSnapshot) -> anyhow::Result<String> {
        // Interfaces of load balancers go later.
        tokio::time::sleep(Duration::from_secs(600)).await;
        let diff = before.diff(&world.describe()?);
        anyhow::ensure!(diff.is_empty() || self.case.leaves, "left behind:\n{diff}");
        Ok(format!("left behind:\n{diff}"))
    }

    /// Has what is served and is to be served stay so at every moment, on the same load balancer,
    /// with the rules that are there before and in the end.
    fn guard(&self, world: &Account, tenant: &ServiceDriver<'_>) {
        let case = &self.case;
        let then: Vec<_> = case
            .then
            .iter()
            .map(|act| tenant.serving(act.wish()))
            .collect();
        let deletes = case
            .then
            .iter()
            .any(|act| matches!(act, DriverCall::Delete(_)));
        let mut stays = BTreeSet::new();
        if let Some(before) = case.before.as_ref().filter(|_| !deletes) {
            let all = tenant.serving(before).into_iter();
            stays.extend(all.filter(|one| then.iter().all(|of| of.contains(one))));
        }
        let mut live: BTreeMap<Arc<str>, _> = BTreeMap::new();
        let living = case.before.iter().filter(|_| !deletes).chain(&case.others);
        for wish in living {
            live.insert(
                wish.service.name.clone(),
                balancers_of(&world.place.aws, &wish.service.name),
            );
        }
        if case.breaks {
            stays.clear();
        }
        stays.extend(case.others.iter().flat_map(|wish| tenant.serving(wish)));
        let rules = self.rules.lock().clone().unwrap_or_default();
        let before = world.place.aws.rules(&world.place.node_group);
        let lasting = |rule: &Rule| {
            is_client(rule)
                && matches!(rule.source, RuleSource::Cidr(_))
                && !case.breaks
                && !deletes
        };
        let rules: Vec<Rule> = before
            .into_iter()
            .filter(|rule| rules.contains(rule) && lasting(rule))
            .collect();
        let group = world.place.node_group.clone();
        world.watch(Box::new(move |aws: &FakeAws| {
            for (service, arns) in &live {
                if arns.is_empty() || *arns != balancers_of(aws, service) {
                    return Some(format!("the load balancer of {service} is not the same"));
                }
            }
            if let Some((service, port, id)) = stays.iter().find(|one| !is_served(aws, one)) {
                return Some(format!("port {port} of {service} does not lead to {id} any more"));
            }
            let now = aws.rules(&group);
            let gone = rules.iter().find(|rule| !now.contains(rule))?;
            Some(format!("nodes do not admit {gone:?} any more"))
        }));
    }
}
