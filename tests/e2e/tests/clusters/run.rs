//! Runs each case on each of its servers, which are started when the first case needs them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ccm_e2e::image::ContainerMethod;
use ccm_e2e::scenario::{Scenario, neighbour, user};
use ccm_e2e::server::{Server, ServerKind};
use ccm_testkit::apiserver;
use ccm_testkit::control_plane::{Binaries, GoProgram, helm};
use ccm_testkit::suite::{Tier, failed};
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Failed};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::OnceCell;

/// The embedded server and a real one.
pub(crate) const EVERYWHERE: &[ServerKind] = &[ServerKind::Embedded, ServerKind::Real];

/// Scenarios at a time: they mostly wait, and the machines that run them have few processors.
const AT_ONCE: usize = 8;
/// Real servers for cases that want one for themselves, by turns. Another one is for all others
/// together.
const ALONE: usize = 2;

/// What a case does.
pub(crate) type Body = for<'a> fn(&'a Scenario) -> LocalBoxFuture<'a, anyhow::Result<()>>;

/// What a case needs beside its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A program in Go.
    Go(GoProgram),
    /// helm, which installs the chart.
    Helm,
    /// What containers are made of.
    Containers,
    /// kubectl, for what people type.
    Kubectl,
}

impl Need {
    /// Why it cannot be had.
    fn missing(self) -> Option<String> {
        match self {
            Self::Go(program) => program.find().err(),
            Self::Helm => helm().err(),
            Self::Kubectl => std::process::Command::new("kubectl")
                .args(["version", "--client"])
                .output()
                .err()
                .map(|_| "no kubectl on PATH".to_owned()),
            Self::Containers => ContainerMethod::find().err().map(str::to_owned),
        }
    }
}

/// One scenario and where it runs.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    /// What it is about: `nodes`, `services` and so on, a part of its name.
    pub(crate) subject: &'static str,
    /// Says what must hold.
    pub(crate) name: &'static str,
    /// Short name: region, and beginning of node names. No other case has it.
    pub(crate) slug: &'static str,
    /// Servers it runs on.
    pub(crate) on: &'static [ServerKind],
    /// Whether it bears no others beside it: it then runs alone on a real server, and has an
    /// embedded one of its own.
    pub(crate) alone: bool,
    /// Settings of an embedded server of its own.
    pub(crate) own_server: Option<fn() -> apiserver::Options>,
    /// When it runs, if not as its server says.
    pub(crate) tier: Option<Tier>,
    /// What it needs beside its server.
    pub(crate) needs: &'static [Need],
    /// What it does.
    pub(crate) body: Body,
}

/// Makes a case of an `async fn(&Scenario) -> anyhow::Result<()>`, named after it.
#[macro_export]
macro_rules! case {
    ($slug:literal, $on:expr, $body:ident) => {
        $crate::run::Case {
            subject: "",
            name: stringify!($body),
            slug: $slug,
            on: $on,
            alone: false,
            own_server: None,
            tier: None,
            needs: &[],
            body: |scenario| Box::pin($body(scenario)),
        }
    };
}

/// Where a case runs: which kind of server, and which of those.
type ServerSlot = (ServerKind, usize);

/// Settings of embedded servers: what they answered is counted.
pub(crate) fn settings() -> apiserver::Options {
    apiserver::Options { log_limit: 200_000, ..apiserver::Options::default() }
}

/// Runs all cases as the arguments of the process say.
pub(crate) fn main(cases: &[Case]) -> anyhow::Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    let chosen = Tier::chosen()?;
    // On real servers some wait for theirs, and hold up nobody else's.
    let waiting = if chosen == Tier::Full { ALONE + 2 } else { 0 };
    arguments.test_threads.get_or_insert(AT_ONCE + waiting);
    let runtime = Runtime::new()?;
    let servers = Arc::new(Servers::new(cases));
    let trials = places(cases).into_iter().filter_map(|(case, place)| {
        let (kind, _) = place;
        let tier = case.tier.unwrap_or(if kind == ServerKind::Embedded {
            Tier::Quick
        } else {
            Tier::Full
        });
        // What is missing takes a look, which nobody needs who does not run it.
        let missing = if tier == chosen {
            servers.missing(case, kind)
        } else {
            None
        };
        let name = format!("{}::{}::{}", kind.name(), case.subject, case.name);
        let (servers, handle) = (servers.clone(), runtime.handle().clone());
        tier.case(chosen, name, missing, move || run(&handle, &servers, case, place))
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // Ends the servers.
    drop(servers);
    runtime.shutdown_timeout(Duration::from_secs(10));
    Ok(conclusion.exit_code())
}

/// Each case with each of its places, so that no server's cases come all at once: those that wait
/// for it would be in the way of those that could run.
fn places(cases: &[Case]) -> Vec<(Case, ServerSlot)> {
    let mut turns: BTreeMap<ServerKind, usize> = BTreeMap::new();
    let mut lengths: BTreeMap<ServerSlot, usize> = BTreeMap::new();
    let mut all = Vec::new();
    for case in cases {
        for &kind in case.on {
            let number = match case.alone && kind == ServerKind::Real {
                true => {
                    let turn = turns.entry(kind).or_default();
                    *turn += 1;
                    1 + *turn % ALONE
                }
                false => 0,
            };
            let length = lengths.entry((kind, number)).or_default();
            *length += 1;
            all.push((*length, *case, (kind, number)));
        }
    }
    all.sort_by_key(|(position, ..)| *position);
    all.into_iter()
        .map(|(_, case, place)| (case, place))
        .collect()
}

struct Servers {
    binaries: Result<Binaries, String>,
    users: Vec<String>,
    embedded: OnceCell<Arc<Server>>,
    real: [OnceCell<Arc<Server>>; 1 + ALONE],
    without_watchlist: OnceCell<Arc<Server>>,
    with_controllers: OnceCell<Arc<Server>>,
}

impl Servers {
    fn new(cases: &[Case]) -> Self {
        let both = |slug: &str| ["a", "b"].map(|process| user(slug, process));
        let users = cases
            .iter()
            .flat_map(|case| [both(case.slug), both(&neighbour(case.slug))].concat());
        Self {
            binaries: Binaries::find().map_err(|missing| missing.to_string()),
            users: users.collect(),
            embedded: OnceCell::new(),
            real: Default::default(),
            without_watchlist: OnceCell::new(),
            with_controllers: OnceCell::new(),
        }
    }

    /// Why a case cannot run on such a server.
    fn missing(&self, case: Case, kind: ServerKind) -> Option<String> {
        let server = match kind {
            ServerKind::Embedded => None,
            ServerKind::Real | ServerKind::RealWithoutWatchList => self.binaries.as_ref().err().cloned(),
            ServerKind::RealWithControllers => match &self.binaries {
                Ok(binaries) if binaries.kube_controller_manager.is_some() => None,
                Ok(_) => {
                    Some("no kube-controller-manager; `cargo xtask control-plane` builds it, it needs Go".to_owned())
                }
                Err(missing) => Some(missing.clone()),
            },
        };
        server.or_else(|| case.needs.iter().find_map(|need| need.missing()))
    }

    async fn get(&self, case: &Case, (kind, number): ServerSlot) -> anyhow::Result<Arc<Server>> {
        let cell = match (kind, case.own_server) {
            (ServerKind::Embedded, Some(options)) => return Server::embedded(options()).await,
            (ServerKind::Embedded, None) if case.alone => {
                return Server::embedded(settings()).await;
            }
            (ServerKind::Embedded, None) => {
                return self
                    .embedded
                    .get_or_try_init(|| Server::embedded(settings()))
                    .await
                    .cloned();
            }
            (ServerKind::Real, _) => &self.real[number],
            (ServerKind::RealWithoutWatchList, _) => &self.without_watchlist,
            (ServerKind::RealWithControllers, _) => &self.with_controllers,
        };
        let binaries = self
            .binaries
            .as_ref()
            .map_err(|missing| anyhow::anyhow!("{missing}"))?;
        cell.get_or_try_init(|| Server::real(kind, binaries, &self.users))
            .await
            .cloned()
    }
}

fn run(
    handle: &Handle,
    servers: &Arc<Servers>,
    case: Case,
    place: ServerSlot,
) -> Result<(), Failed> {
    let done = handle.block_on(async {
        let server = servers.get(&case, place).await?;
        if case.alone {
            let _alone = server.peace.write().await;
            play(&server, case).await
        } else {
            let _together = server.peace.read().await;
            play(&server, case).await
        }
    });
    done.map_err(failed)
}

async fn play(server: &Arc<Server>, case: Case) -> anyhow::Result<()> {
    let program = Path::new(env!("CARGO_BIN_EXE_ccm-under-test"));
    let scenario = Scenario::new(server.clone(), case.slug, program).await?;
    let result = (case.body)(&scenario).await;
    // What was seen all along is worth knowing even when the scenario failed otherwise.
    let verdict = scenario.verdict();
    let cleaned = scenario.clean_up().await;
    let problems: Vec<_> = [result.err(), verdict.err(), cleaned.err()]
        .into_iter()
        .flatten()
        .map(|e| format!("{e:#}"))
        .collect();
    anyhow::ensure!(problems.is_empty(), "{}\n{}", problems.join("\n"), scenario.log_tails());
    Ok(())
}
