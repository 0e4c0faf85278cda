//! The provider against moto's server in the place of AWS: every request through the SDK
//! (`moto::`), the conformance kit (`conformance::`), and the binary end to end (`cluster::`).
//!
//! All cases share one moto, which is emptied before each, so they run one after the other. What a
//! case needs is started by the first that runs.

mod cluster;
mod conformance;
mod requests;

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use ccm_e2e::server::ServerKind;
use ccm_testkit::{
    control_plane::Binaries,
    moto::{self, Moto},
    suite::{Tier, failed},
};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::{runtime::Runtime, sync::OnceCell};

use crate::{
    cluster::{crash, fixture::SharedServers, rights},
    conformance::server::Remote,
};

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let tier = Tier::chosen()?;
    let shared = Arc::new(SharedMoto::new()?);
    let mut trials = requests(tier, &shared);
    trials.extend(kit(tier, &shared));
    trials.extend(clusters(tier, &shared));
    Ok(libtest_mimic::run(&arguments, trials).exit_code())
}

/// Every request by itself.
fn requests(tier: Tier, shared: &Arc<SharedMoto>) -> Vec<Trial> {
    let trial = |(name, body): (&str, requests::Body)| {
        let own = Arc::clone(shared);
        let run = move || {
            own.run(async |shared| {
                let moto = shared.moto().await?;
                requests::run(&moto, body).await
            })
        };
        Tier::Full.case(tier, format!("moto::{name}"), shared.missing(), run)
    };
    requests::cases().into_iter().filter_map(trial).collect()
}

/// The suites of the conformance kit.
fn kit(tier: Tier, shared: &Arc<SharedMoto>) -> Vec<Trial> {
    let trial = |suite: &'static str| {
        let own = Arc::clone(shared);
        let run = move || {
            let remote = own.runtime.block_on(own.remote()).map_err(failed)?;
            conformance::suite(suite, remote).check()
        };
        Tier::Full.case(tier, format!("conformance::{suite}"), shared.missing(), run)
    };
    conformance::SUITES.into_iter().filter_map(trial).collect()
}

/// The binary on a cluster, and in the end what it asked for against the rights that it has.
fn clusters(tier: Tier, shared: &Arc<SharedMoto>) -> Vec<Trial> {
    let cases = cluster::cases();
    let all = cases.len();
    let trial = |of: Tier, kind: ServerKind, name: &str, body: cluster::Body| {
        let own = Arc::clone(shared);
        let run =
            move || own.run(async |shared| cluster::run(shared.house().await?, kind, body).await);
        of.case(tier, format!("cluster::{}::{name}", kind.name()), shared.missing_for(kind), run)
    };
    let each = cases
        .into_iter()
        .filter_map(|(kind, name, body)| trial(Tier::Full, kind, name, body));
    let mut trials: Vec<_> = each.collect();
    trials.extend(trial(
        Tier::Nightly,
        ServerKind::Real,
        "crash::a_kill_at_any_change_leads_to_the_same_end",
        |stage| Box::pin(crash::a_kill_at_any_change_leads_to_the_same_end(stage)),
    ));
    let own = Arc::clone(shared);
    let asked = move || match own.house.get() {
        Some(house) => rights::match_what_was_asked(house, all).map_err(failed),
        None => Ok(rights::too_few(0, all)),
    };
    // The last, so that everything was asked for.
    let name = "cluster::rights::match_what_was_asked";
    trials.extend(match tier {
        Tier::Full => Some(Trial::ignorable_test(name, asked)),
        _ => Tier::Full.case(tier, name, shared.missing(), || Err("it is not of this tier".into())),
    });
    trials
}

/// What all cases share.
struct SharedMoto {
    runtime: Runtime,
    /// Moto's program, or how to get it.
    program: Result<PathBuf, String>,
    /// Programs of the control plane, or how to get them.
    binaries: Result<Binaries, String>,
    moto: OnceCell<Arc<Moto>>,
    remote: OnceCell<Remote>,
    house: OnceCell<SharedServers>,
}

impl SharedMoto {
    fn new() -> anyhow::Result<Self> {
        let (program, binaries) =
            (moto::find(), Binaries::find().map_err(|missing| missing.to_string()));
        let (moto, remote, house) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Ok(Self {
            runtime: Runtime::new()?,
            program,
            binaries,
            moto,
            remote,
            house,
        })
    }

    /// What is missing for whatever asks moto.
    fn missing(&self) -> Option<&String> {
        self.program.as_ref().err()
    }

    /// What is missing for a cluster with an API server of this kind.
    fn missing_for(&self, kind: ServerKind) -> Option<&String> {
        let binaries = self
            .binaries
            .as_ref()
            .err()
            .filter(|_| kind != ServerKind::Embedded);
        self.missing().or(binaries)
    }

    fn run(&self, body: impl AsyncFnOnce(&Self) -> anyhow::Result<()>) -> Result<(), Failed> {
        self.runtime.block_on(body(self)).map_err(failed)
    }

    async fn moto(&self) -> anyhow::Result<Arc<Moto>> {
        let start = async || {
            let program = self.program.clone().map_err(anyhow::Error::msg)?;
            anyhow::Ok(Arc::new(Moto::start(program).await?))
        };
        self.moto.get_or_try_init(start).await.cloned()
    }

    async fn remote(&self) -> anyhow::Result<Remote> {
        let start = async || Remote::connect(self.moto().await?).await;
        self.remote.get_or_try_init(start).await.cloned()
    }

    async fn house(&self) -> anyhow::Result<&SharedServers> {
        let start = async || {
            SharedServers::new(self.moto().await?, self.binaries.as_ref().ok().cloned()).await
        };
        self.house.get_or_try_init(start).await
    }
}
