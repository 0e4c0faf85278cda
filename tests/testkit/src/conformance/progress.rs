//! Runs suites and tracks their progress for a watching thread.

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
    time_limit::{BlockedThreadHook, run_limited},
};

/// Cleans up the cloud after a rule.
type Cleanup<C> = for<'a> fn(&'a RuleContext<'a, C>) -> BoxFuture<'a, Verdict>;

/// Checks suites and tracks their progress. Clones share the progress.
#[derive(Clone, Debug, Default)]
pub struct SuiteProgress {
    state: Arc<Mutex<SuiteState>>,
    /// True if no other thread watches the progress. If a rule then blocks its thread, the process
    /// is aborted.
    is_unwatched: bool,
}

/// Progress of a suite.
#[derive(Debug)]
struct SuiteState {
    limits: Limits,
    cases: Vec<Case>,
    /// Rules without a result, as id and expected behaviour. The current one is last.
    remaining: Vec<(&'static str, &'static str)>,
    /// Time of the last progress.
    last_progress: Instant,
    /// Messages of panics since the last rule ended.
    panics: Vec<String>,
}

impl Default for SuiteState {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            cases: Vec::new(),
            remaining: Vec::new(),
            last_progress: Instant::now(),
            panics: Vec::new(),
        }
    }
}

impl SuiteProgress {
    /// Returns a progress that no other thread watches.
    pub(super) fn unwatched() -> Self {
        Self { is_unwatched: true, ..Self::default() }
    }

    /// Checks every rule for instances, like [`check_instances`](super::check_instances).
    pub async fn instances<F, Fut>(&self, make: F, cloud: &dyn InstanceCloud) -> Report
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = anyhow::Result<Arc<dyn CloudProvider>>> + Send + 'static,
    {
        let make: Make = Box::new(move || make().boxed());
        let limits = cloud.limits();
        self.check("instances", &INSTANCE_RULES, &make, cloud, limits, |ctx| ctx.clean().boxed())
            .await
    }

    /// Checks every rule for load balancers, like
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

    /// Checks every rule for routes, like [`check_routes`](super::check_routes).
    pub async fn routes<F, Fut>(&self, make: F, cloud: &dyn RouteCloud) -> Report
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = anyhow::Result<Arc<dyn CloudProvider>>> + Send + 'static,
    {
        self.check_scripted("routes", &ROUTE_RULES, Box::new(move || make().boxed()), cloud)
            .await
    }

    /// Checks rules with an adapter that is reset after each of them.
    async fn check_scripted<C: FaultyCloud + ?Sized>(
        &self,
        suite: &'static str,
        rules: &[Rule<C>],
        make: Make,
        cloud: &C,
    ) -> Report {
        let limits = cloud.limits();
        let clean_up: Cleanup<C> = |ctx| async { Ok(ctx.cloud.reset().await?) }.boxed();
        self.check(suite, rules, &make, cloud, limits, clean_up)
            .await
    }

    async fn check<C: ?Sized>(
        &self,
        suite: &'static str,
        rules: &[Rule<C>],
        make: &Make,
        cloud: &C,
        limits: Limits,
        clean_up: Cleanup<C>,
    ) -> Report {
        self.start_suite(rules, limits);
        let suite_start = Instant::now();
        let on_blocked = self.is_unwatched.then(|| self.abort_process_hook(suite));
        let mut report = Report::new(suite);
        for rule in rules {
            let started = tokio::time::Instant::now();
            let verdict = if suite_start.elapsed() > limits.suite {
                Err(Problem::Failed(format!(
                    "not started: the suite exceeded its limit of {:?}",
                    limits.suite
                )))
            } else {
                let ctx = RuleContext::new(make, cloud, rule.id);
                let verdict =
                    run_limited(limits.rule, "the rule", on_blocked.clone(), (rule.check)(&ctx))
                        .await;
                self.state.lock().last_progress = Instant::now();
                let cleaned =
                    run_limited(limits.rule, "cleaning up", on_blocked.clone(), clean_up(&ctx))
                        .await;
                self.fail_on_panics(verdict.and(cleaned))
            };
            report.push(rule, verdict, started.elapsed());
            self.rule_ended(&report);
        }
        report.fail_unfounded_blocks();
        report
    }

    fn start_suite<C: ?Sized>(&self, rules: &[Rule<C>], limits: Limits) {
        let remaining = rules
            .iter()
            .rev()
            .map(|rule| (rule.id, rule.expected))
            .collect();
        *self.state.lock() = SuiteState { limits, remaining, ..SuiteState::default() };
    }

    fn rule_ended(&self, report: &Report) {
        let mut state = self.state.lock();
        state.remaining.pop();
        state.cases.extend(report.cases().last().cloned());
        state.last_progress = Instant::now();
    }

    /// Turns the verdict into a failure if a panic went unnoticed, for example in a task that the
    /// provider spawned.
    fn fail_on_panics(&self, verdict: Verdict) -> Verdict {
        let panics = std::mem::take(&mut self.state.lock().panics);
        match verdict {
            Err(Problem::Failed(observed)) => Err(Problem::Failed(observed)),
            other if panics.is_empty() => other,
            _ => {
                Err(Problem::Failed(format!("something panicked meanwhile: {}", panics.join("; "))))
            }
        }
    }

    /// Records a panic, possibly of the rule itself.
    pub(super) fn record_panic(&self, text: String) {
        self.state.lock().panics.push(text);
    }

    /// Returns the time since the last progress if it is so long that the rule must be blocking its
    /// thread.
    pub(super) fn blocked_for(&self) -> Option<Duration> {
        let state = self.state.lock();
        let idle = state.last_progress.elapsed();
        (idle > state.limits.rule + state.limits.rule / 2).then_some(idle)
    }

    /// Returns a hook that prints the report so far and aborts the process. The blocked thread
    /// cannot be stopped, so the test would never end.
    fn abort_process_hook(&self, suite: &'static str) -> BlockedThreadHook {
        let progress = self.clone();
        Arc::new(move |text| {
            let rule = progress
                .state
                .lock()
                .remaining
                .last()
                .map_or("no rule", |(id, _)| *id);
            let report =
                progress.abort_suite(suite, &format!("{text}; waiting code must use await"));
            // The test harness would capture the output of `eprintln!` until the end of the test. A
            // closed pipe must not prevent the abort.
            let _ = writeln!(
                io::stderr(),
                "\n{report}\n{rule} of {suite}: {text}. The process is aborted."
            );
            std::process::abort()
        })
    }

    /// Returns the report of a suite that will not end. The current rule fails with `observed`, and
    /// the remaining rules fail as not started.
    pub(super) fn abort_suite(&self, suite: &'static str, observed: &str) -> Report {
        let mut state = self.state.lock();
        let current = state.remaining.pop();
        let mut report = Report::of(suite, std::mem::take(&mut state.cases));
        let (id, expected) = current.unwrap_or(("suite", "the suite starts and ends"));
        report.fail(id, expected, observed.to_owned());
        while let Some((id, expected)) = state.remaining.pop() {
            report.fail(id, expected, "not started".to_owned());
        }
        report.fail_unfounded_blocks();
        report
    }
}
