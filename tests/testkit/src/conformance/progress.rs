//! A run as it goes on, for whoever waits for its end.

use std::{
    future::Future,
    io::{self, Write as _},
    sync::Arc,
    time::{Duration, Instant},
};

use ccm_core::provider::CloudProvider;
use futures::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;

use super::{
    FaultyCloud, INSTANCE_RULES, InstanceCloud, LOAD_BALANCER_RULES, Limits, LoadBalancerCloud,
    Make, ROUTE_RULES, Report, RouteCloud,
    context::RuleContext,
    report::{Case, Problem, Verdict},
    rule::Rule,
    time_limit::{Kept, limited},
};

/// Undoes what a rule did.
type Clean<C> = for<'a> fn(&'a RuleContext<'a, C>) -> BoxFuture<'a, Verdict>;

/// Checks suites, and shows meanwhile how far they are. Clones show the same.
#[derive(Clone, Debug, Default)]
pub struct SuiteProgress {
    seen: Arc<Mutex<SuiteState>>,
    /// Whether the process ends when a rule keeps its thread, because nobody looks on who could
    /// report that.
    alone: bool,
}

/// How far a suite is.
#[derive(Debug)]
struct SuiteState {
    limits: Limits,
    cases: Vec<Case>,
    /// Rules that have no result yet, the current one last.
    left: Vec<(&'static str, &'static str)>,
    /// Since when nothing has changed.
    since: Instant,
    /// What tasks said that panicked since the last rule ended.
    panics: Vec<String>,
}

impl Default for SuiteState {
    fn default() -> Self {
        let (cases, left, panics) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            limits: Limits::default(),
            cases,
            left,
            since: Instant::now(),
            panics,
        }
    }
}

impl SuiteProgress {
    /// One that nobody looks at from another thread.
    pub(super) fn alone() -> Self {
        Self { alone: true, ..Self::default() }
    }

    /// Checks every rule about instances; as [`check_instances`](super::check_instances).
    pub async fn instances<F, Fut>(&self, make: F, cloud: &dyn InstanceCloud) -> Report
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = anyhow::Result<Arc<dyn CloudProvider>>> + Send + 'static,
    {
        let make: Make = Box::new(move || make().boxed());
        let limits = cloud.limits();
        self.check("instances", &INSTANCE_RULES, &make, cloud, limits, |bench| {
            bench.clean().boxed()
        })
        .await
    }

    /// Checks every rule about load balancers; as
    /// [`check_load_balancers`](super::check_load_balancers).
    pub async fn load_balancers<F, Fut>(&self, make: F, cloud: &dyn LoadBalancerCloud) -> Report
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = anyhow::Result<Arc<dyn CloudProvider>>> + Send + 'static,
    {
        self.check_scripted(
            "load balancers",
            &LOAD_BALANCER_RULES,
            Box::new(move || make().boxed()),
            cloud,
        )
        .await
    }

    /// Checks every rule about routes; as [`check_routes`](super::check_routes).
    pub async fn routes<F, Fut>(&self, make: F, cloud: &dyn RouteCloud) -> Report
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = anyhow::Result<Arc<dyn CloudProvider>>> + Send + 'static,
    {
        self.check_scripted("routes", &ROUTE_RULES, Box::new(move || make().boxed()), cloud)
            .await
    }

    /// Checks rules against a cloud that is reset after each.
    async fn check_scripted<C: FaultyCloud + ?Sized>(
        &self,
        suite: &'static str,
        rules: &[Rule<C>],
        make: Make,
        cloud: &C,
    ) -> Report {
        let limits = cloud.limits();
        let clean: Clean<C> = |bench| async { Ok(bench.cloud.reset().await?) }.boxed();
        self.check(suite, rules, &make, cloud, limits, clean).await
    }

    async fn check<C: ?Sized>(
        &self,
        suite: &'static str,
        rules: &[Rule<C>],
        make: &Make,
        cloud: &C,
        limits: Limits,
        clean: Clean<C>,
    ) -> Report {
        self.begin(rules, limits);
        let began = Instant::now();
        let kept = self.alone.then(|| self.ends_the_process(suite));
        let mut report = Report::new(suite);
        for rule in rules {
            let started = tokio::time::Instant::now();
            let verdict = if began.elapsed() > limits.suite {
                Err(Problem::Failed(format!(
                    "not begun: the {:?} of the suite were over",
                    limits.suite
                )))
            } else {
                let bench = RuleContext::new(make, cloud, rule.id);
                let verdict =
                    limited(limits.rule, "the rule", kept.clone(), (rule.check)(&bench)).await;
                self.seen.lock().since = Instant::now();
                let cleaned =
                    limited(limits.rule, "cleaning up", kept.clone(), clean(&bench)).await;
                self.without_panics(verdict.and(cleaned))
            };
            report.push(rule, verdict, started.elapsed());
            self.ended(&report);
        }
        report.settle();
        report
    }

    fn begin<C: ?Sized>(&self, rules: &[Rule<C>], limits: Limits) {
        let left = rules
            .iter()
            .rev()
            .map(|rule| (rule.id, rule.expected))
            .collect();
        *self.seen.lock() = SuiteState { limits, left, ..SuiteState::default() };
    }

    fn ended(&self, report: &Report) {
        let mut seen = self.seen.lock();
        seen.left.pop();
        seen.cases.extend(report.cases().last().cloned());
        seen.since = Instant::now();
    }

    /// A panic that nobody handed on, such as that of a task that the provider spawned, breaks the
    /// rule at hand.
    fn without_panics(&self, verdict: Verdict) -> Verdict {
        let panics = std::mem::take(&mut self.seen.lock().panics);
        match verdict {
            Err(Problem::Failed(seen)) => Err(Problem::Failed(seen)),
            other if panics.is_empty() => other,
            _ => {
                Err(Problem::Failed(format!("something panicked meanwhile: {}", panics.join("; "))))
            }
        }
    }

    /// Notes that something panicked, which may be the rule itself.
    pub(super) fn panicked(&self, text: String) {
        self.seen.lock().panics.push(text);
    }

    /// Tells for how long nothing has changed that must have changed, unless a thread is kept.
    pub(super) fn stuck(&self) -> Option<Duration> {
        let seen = self.seen.lock();
        let quiet = seen.since.elapsed();
        (quiet > seen.limits.rule + seen.limits.rule / 2).then_some(quiet)
    }

    /// Ends the process with the report as far as it goes. The thread that should go on cannot be
    /// had back, and the test would never end; nothing but a message tells why.
    fn ends_the_process(&self, suite: &'static str) -> Kept {
        let watch = self.clone();
        Arc::new(move |text| {
            let rule = watch
                .seen
                .lock()
                .left
                .last()
                .map_or("no rule", |(id, _)| *id);
            let report = watch.broken_off(suite, &format!("{text}; code that waits must await"));
            // Not by a macro, whose output a test keeps until its end. A closed pipe is no reason
            // to go on.
            let _ = writeln!(
                io::stderr(),
                "\n{report}\n{rule} of {suite}: {text}. The process is aborted."
            );
            std::process::abort()
        })
    }

    /// Makes a report of a suite that is not going to end; `seen` says what is wrong.
    pub(super) fn broken_off(&self, suite: &'static str, seen: &str) -> Report {
        let mut state = self.seen.lock();
        let current = state.left.pop();
        let mut report = Report::of(suite, std::mem::take(&mut state.cases));
        let (id, expected) = current.unwrap_or(("suite", "the suite begins and ends"));
        report.fail(id, expected, seen.to_owned());
        while let Some((id, expected)) = state.left.pop() {
            report.fail(id, expected, "not begun".to_owned());
        }
        report.settle();
        report
    }
}
