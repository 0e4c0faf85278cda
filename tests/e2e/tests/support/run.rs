//! Runs each case on each of its servers, which are started when the first case needs them.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use ccm_e2e::scenario::{Scenario, neighbour, user};
use ccm_e2e::server::{Kind, Server};
use ccm_testkit::apiserver;
use ccm_testkit::control_plane::Binaries;
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::OnceCell;

/// The embedded server and a real one.
pub(crate) const EVERYWHERE: &[Kind] = &[Kind::Embedded, Kind::Real];

/// Scenarios at a time: they mostly wait, and the machines that run them have few processors.
const AT_ONCE: usize = 4;
/// Real servers that there can be, for scenarios that need one for themselves.
const REAL_ONES: usize = 2;

/// What a case does.
pub(crate) type Body = for<'a> fn(&'a Scenario) -> LocalBoxFuture<'a, anyhow::Result<()>>;

/// One scenario and where it runs.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    /// Says what must hold.
    pub(crate) name: &'static str,
    /// Short name: region, and beginning of node names.
    pub(crate) slug: &'static str,
    /// Servers it runs on.
    pub(crate) on: &'static [Kind],
    /// Whether it breaks the server for others: it then runs alone on it.
    pub(crate) disruptive: bool,
    /// Which of the real servers it runs on, from 0.
    pub(crate) real: usize,
    /// Settings of an embedded server of its own.
    pub(crate) own_server: Option<fn() -> apiserver::Options>,
    /// What it does.
    pub(crate) body: Body,
}

/// Makes a case of an `async fn(&Scenario) -> anyhow::Result<()>`, named after it.
#[macro_export]
macro_rules! case {
    ($slug:literal, $on:expr, $body:ident) => {
        $crate::run::Case {
            name: stringify!($body),
            slug: $slug,
            on: $on,
            disruptive: false,
            real: 0,
            own_server: None,
            body: |scenario| Box::pin($body(scenario)),
        }
    };
}

/// Runs all cases as the arguments of the process say.
pub(crate) fn main(cases: &[Case]) -> anyhow::Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // Where each scenario wants a server for itself, some wait for theirs and hold up nobody else's.
    let waiting = if cases.iter().all(|case| case.disruptive) { REAL_ONES } else { 0 };
    arguments.test_threads.get_or_insert(AT_ONCE + waiting);
    let runtime = Runtime::new()?;
    let servers = Arc::new(Servers::new(cases));
    let ignored = servers.binaries.is_none();
    let trials = cases.iter().flat_map(|case| {
        case.on.iter().map(|&kind| {
            let (case, servers, handle) = (*case, servers.clone(), runtime.handle().clone());
            let trial =
                Trial::test(format!("{}::{}", kind.name(), case.name), move || run(&handle, &servers, case, kind));
            trial.with_ignored_flag(ignored && kind != Kind::Embedded)
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // Ends the servers.
    drop(servers);
    runtime.shutdown_timeout(Duration::from_secs(10));
    Ok(conclusion.exit_code())
}

struct Servers {
    binaries: Option<Binaries>,
    users: Vec<String>,
    embedded: OnceCell<Arc<Server>>,
    real: [OnceCell<Arc<Server>>; REAL_ONES],
    without_watchlist: OnceCell<Arc<Server>>,
    with_controllers: OnceCell<Arc<Server>>,
}

impl Servers {
    fn new(cases: &[Case]) -> Self {
        let both = |slug: &str| ["a", "b"].map(|process| user(slug, process));
        let users = cases.iter().flat_map(|case| [both(case.slug), both(&neighbour(case.slug))].concat());
        Self {
            binaries: Binaries::find_or_say_skipped("scenarios on a real control plane"),
            users: users.collect(),
            embedded: OnceCell::new(),
            real: Default::default(),
            without_watchlist: OnceCell::new(),
            with_controllers: OnceCell::new(),
        }
    }

    async fn get(&self, case: &Case, kind: Kind) -> anyhow::Result<Arc<Server>> {
        let cell = match (kind, case.own_server) {
            (Kind::Embedded, Some(options)) => return Server::embedded(options()).await,
            (Kind::Embedded, None) => {
                let options = || apiserver::Options { log_limit: 200_000, ..apiserver::Options::default() };
                return self.embedded.get_or_try_init(|| Server::embedded(options())).await.cloned();
            }
            (Kind::Real, _) => &self.real[case.real % REAL_ONES],
            (Kind::RealWithoutWatchList, _) => &self.without_watchlist,
            (Kind::RealWithControllers, _) => &self.with_controllers,
        };
        let binaries = self.binaries.as_ref().context("the control plane is not built")?;
        cell.get_or_try_init(|| Server::real(kind, binaries, &self.users)).await.cloned()
    }
}

fn run(handle: &Handle, servers: &Arc<Servers>, case: Case, kind: Kind) -> Result<(), Failed> {
    let done = handle.block_on(async {
        let server = servers.get(&case, kind).await?;
        if case.disruptive {
            let _alone = server.peace.write().await;
            play(&server, case).await
        } else {
            let _together = server.peace.read().await;
            play(&server, case).await
        }
    });
    done.map_err(|error| Failed::from(format!("{error:#}")))
}

async fn play(server: &Arc<Server>, case: Case) -> anyhow::Result<()> {
    let program = Path::new(env!("CARGO_BIN_EXE_ccm-under-test"));
    let scenario = Scenario::new(server.clone(), case.slug, program).await?;
    let result = (case.body)(&scenario).await;
    // What was seen all along is worth knowing even when the scenario failed otherwise.
    let verdict = scenario.verdict();
    let cleaned = scenario.clean_up().await;
    let problems: Vec<_> =
        [result.err(), verdict.err(), cleaned.err()].into_iter().flatten().map(|e| format!("{e:#}")).collect();
    anyhow::ensure!(problems.is_empty(), "{}\n{}", problems.join("\n"), scenario.log_tails());
    Ok(())
}
