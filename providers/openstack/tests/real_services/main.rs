//! The provider's binary on OpenStack's own services (Keystone, Nova, Neutron, Octavia, Barbican,
//! each its own process with its own database): `tests/control-plane/openstack-real`. Only
//! hypervisors, agents and amphorae are simulated.
//!
//! All cases share the services, which start with the first case and end with the program. They run
//! one after the other, and each begins on an empty project.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says where"
)]

mod certificates;
mod cloud;
mod fixture;
mod nodes;
mod recordings;
mod routes;
mod services;
mod sharing;
mod takeover;
mod trouble;

use std::{io::Write as _, path::PathBuf, process::ExitCode, sync::Arc, time::Instant};

use anyhow::Context as _;
use ccm_e2e::server::Server;
use ccm_testkit::{
    apiserver,
    suite::{Tier, failed},
};
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::{runtime::Runtime, sync::Mutex};

use crate::{cloud::RealCloud, fixture::ClusterFixture};

/// What a case does.
type Body = for<'a, 'b> fn(&'a mut ClusterFixture<'b>) -> LocalBoxFuture<'a, anyhow::Result<()>>;

/// What a case with upstream's manager does.
type Swap =
    for<'a> fn(&'a RealCloud, &'a takeover::Programs) -> LocalBoxFuture<'a, anyhow::Result<()>>;

/// A list of cases by their functions' names.
macro_rules! tests {
    ($($module:ident { $($name:ident),* $(,)? })*) => {
        vec![$($((
            concat!(stringify!($module), "::", stringify!($name)),
            (|stage| Box::pin($module::$name(stage))) as Body,
        )),*),*]
    };
}

/// What cases share.
struct Shared {
    runtime: Runtime,
    /// Where the services' state is, or how to get it.
    state: Result<PathBuf, String>,
    /// The services and the API server, once a case has needed them. The case that runs holds it.
    running: Mutex<Option<(RealCloud, Arc<Server>)>>,
}

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // There is one project in one cloud.
    arguments.test_threads = Some(1);
    let tier = Tier::chosen()?;
    let shared = Arc::new(Shared {
        runtime: Runtime::new()?,
        state: cloud::find(),
        running: Mutex::default(),
    });
    let conclusion = libtest_mimic::run(&arguments, trials(tier, &shared));
    let running = shared.running.try_lock()?.take();
    if let Some((cloud, _)) = running {
        shared.runtime.block_on(cloud.stop())?;
    }
    Ok(conclusion.exit_code())
}

fn trials(tier: Tier, shared: &Arc<Shared>) -> Vec<Trial> {
    #[rustfmt::skip]
    let cases: Vec<(&'static str, Body)> = tests! {
        nodes {
            nodes_are_initialised_and_follow_their_servers,
        }
        recordings { answers_are_as_recorded }
        routes { pod_networks_are_routed_and_routes_of_others_stay }
        services {
            a_load_balancer_is_made_and_deleted, each_annotation_has_its_effect, security_groups_admit_load_balancers,
            each_key_of_cloud_conf_has_its_effect, ipv6_services_have_addresses_and_members_of_their_family,
        }
        sharing { services_share_a_load_balancer, a_users_load_balancer_stays }
        trouble {
            a_quota_that_is_used_up_is_told, a_load_balancer_that_fails_is_made_anew,
            a_load_balancer_in_error_is_left_to_the_administrator, a_load_balancer_that_is_stuck_blocks_no_other,
            services_that_stop_and_start_lose_nothing, revoked_tokens_are_renewed,
        }
    };
    // The longest cases are the first.
    let mut trials = Vec::new();
    let swaps: [(&'static str, Swap); 2] = [
        ("takeover::with_every_annotation", |cloud, programs| {
            Box::pin(takeover::with_every_annotation(cloud, programs))
        }),
        ("takeover::with_managed_security_groups", |cloud, programs| {
            Box::pin(takeover::with_managed_security_groups(cloud, programs))
        }),
    ];
    let programs = takeover::Programs::find();
    for (name, swap) in swaps {
        let (own, programs) = (Arc::clone(shared), programs.clone());
        let missing = shared
            .state
            .as_ref()
            .err()
            .or(programs.as_ref().err())
            .cloned();
        trials.extend(Tier::Nightly.case(tier, name, missing, move || {
            let programs = programs.map_err(Failed::from)?;
            report(name, || {
                own.runtime.block_on(async {
                    let mut running = own.running.lock().await;
                    let (cloud, _) = own.started(&mut running).await.map_err(failed)?;
                    swap(cloud, &programs).await.map_err(failed)
                })
            })
        }));
    }
    let trial = |(name, body): (&'static str, Body)| {
        let own = Arc::clone(shared);
        let missing = shared.state.as_ref().err().cloned();
        Tier::Nightly.case(tier, name, missing, move || {
            report(name, || own.runtime.block_on(run(&own, body)))
        })
    };
    trials.extend(cases.into_iter().filter_map(trial));
    trials
}

/// Runs a case, and prints at once how long it took and why it failed: the summary of all comes much
/// later.
fn report(name: &str, case: impl FnOnce() -> Result<(), Failed>) -> Result<(), Failed> {
    let began = Instant::now();
    let result = case();
    let after = began.elapsed().as_secs();
    let failure = result.as_ref().err().and_then(Failed::message);
    let failure = failure.map(|message| format!(", failed: {message}"));
    writeln!(std::io::stderr(), "{name}: {after} s{}", failure.unwrap_or_default())?;
    result
}

impl Shared {
    /// Starts the services and the API server, unless they run.
    async fn started<'a>(
        &self,
        running: &'a mut Option<(RealCloud, Arc<Server>)>,
    ) -> anyhow::Result<(&'a RealCloud, Arc<Server>)> {
        if running.is_none() {
            let state = self.state.clone().map_err(anyhow::Error::msg)?;
            let cloud = RealCloud::start(&state).await?;
            let options = apiserver::Options {
                service_ranges: vec!["10.96.0.0/16".parse()?, "fd00:96::/112".parse()?],
                ..apiserver::Options::default()
            };
            *running = Some((cloud, Server::embedded(options).await?));
        }
        let (cloud, server) = running.as_ref().context("the services do not run")?;
        Ok((cloud, Arc::clone(server)))
    }
}

async fn run(shared: &Shared, body: Body) -> Result<(), Failed> {
    let mut running = shared.running.lock().await;
    let done = async {
        let (cloud, server) = shared.started(&mut running).await?;
        let mut stage = ClusterFixture::new(cloud, server).await?;
        body(&mut stage).await
    };
    done.await.map_err(failed)
}
