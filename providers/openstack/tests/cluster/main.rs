//! The provider as a program and over sockets, on the local cloud in this process: the conformance
//! kit (`conformance::`), the demo, credentials that are shown nowhere (`secrets::`), the chart
//! (`chart::`), and the binary end to end (`real::` and `embedded::`, after the API server):
//! simulated kubelets, and web servers that clients reach through load balancers.
//!
//! All end-to-end cases share one API server of a kind, which is emptied before each, so they run
//! one after the other, beside the others. Each has a cloud of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says where"
)]

mod adoption;
mod chart;
mod check;
mod conformance;
mod crash;
#[cfg(feature = "demo")]
mod demo;
mod fixture;
mod mistakes;
mod nodes;
mod orphans;
mod restart;
mod retained;
mod routes;
mod secrets;
mod services;
mod sharing;
mod traffic;

use std::{process::ExitCode, sync::Arc};

use ccm_e2e::server::ServerKind;
use ccm_testkit::{
    control_plane::Binaries,
    suite::{Tier, failed},
};
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::{runtime::Runtime, sync::Mutex};

use crate::fixture::{ClusterFixture, SharedServers};

/// Cases at a time: they mostly wait for processes.
const AT_ONCE: usize = 4;

/// What a case on a stage does.
type Body = for<'a> fn(&'a mut ClusterFixture) -> LocalBoxFuture<'a, anyhow::Result<()>>;

/// A list of cases on a stage, by tier, kind of server and their functions' names.
macro_rules! tests {
    ($($tier:ident $kind:ident $module:ident { $($name:ident),* $(,)? })*) => {
        vec![$($((
            Tier::$tier,
            ServerKind::$kind,
            concat!(stringify!($module), "::", stringify!($name)),
            (|stage| Box::pin($module::$name(stage))) as Body,
        )),*),*]
    };
}

/// What a case without a stage does.
type Alone = fn() -> LocalBoxFuture<'static, anyhow::Result<()>>;

/// A list of cases without a stage, by their functions' names.
macro_rules! alone {
    ($($module:ident { $($name:ident),* $(,)? })*) => {
        vec![$($((
            concat!(stringify!($module), "::", stringify!($name)),
            (|| Box::pin($module::$name())) as Alone,
        )),*),*]
    };
}

fn main() -> anyhow::Result<ExitCode> {
    if let Some(code) = secrets::panics::child() {
        return Ok(code);
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let tier = Tier::chosen()?;
    let shared = Arc::new(SharedServersOnce::new()?);
    // The longest first, so that none runs alone at the end; those that wait for each other last.
    let mut trials = kit(tier, &shared);
    trials.extend(programs(tier));
    trials.extend(charts(tier, &shared));
    trials.extend(clusters(tier, &shared));
    let conclusion = libtest_mimic::run(&arguments, trials);
    Ok(conclusion.exit_code())
}

/// What cases share.
struct SharedServersOnce {
    runtime: Runtime,
    /// Programs of the control plane, or how to get them.
    binaries: Result<Binaries, String>,
    /// Held by the case that has the API servers.
    house: Mutex<SharedServers>,
    /// Held by the suite of the kit that runs: panics are taken for its own.
    kit: parking_lot::Mutex<()>,
}

impl SharedServersOnce {
    fn new() -> anyhow::Result<Self> {
        let binaries = Binaries::find().map_err(|missing| missing.to_string());
        let house = Mutex::new(SharedServers::new(binaries.clone().ok()));
        Ok(Self {
            runtime: Runtime::new()?,
            binaries,
            house,
            kit: parking_lot::Mutex::default(),
        })
    }
}

/// The suites of the conformance kit.
fn kit(tier: Tier, shared: &Arc<SharedServersOnce>) -> Vec<Trial> {
    let trial = |suite: &'static str| {
        let shared = Arc::clone(shared);
        let run = move || {
            let _turn = shared.kit.lock();
            conformance::suite(suite, shared.runtime.handle().clone()).check()
        };
        Tier::Quick.case(tier, format!("conformance::{suite}"), None::<String>, run)
    };
    conformance::SUITES.into_iter().filter_map(trial).collect()
}

/// The binary without a real API server.
fn programs(tier: Tier) -> Vec<Trial> {
    #[rustfmt::skip]
    let mut cases = alone! {
        secrets {
            no_password_is_shown_in_text, nothing_of_clouds_yaml_is_shown_in_json,
            no_secret_of_an_application_credential_is_shown_in_json, no_token_is_shown_in_text,
            no_password_of_a_trustee_is_shown_in_text, no_key_of_a_client_certificate_is_shown_in_json,
            no_command_shows_a_secret, mistakes_around_a_secret_are_told_without_it,
            a_panic_with_the_configuration_shows_no_secret,
        }
    };
    #[cfg(feature = "demo")]
    cases.extend(alone! {
        demo {
            once_shows_everything_and_ends_well, it_stays_for_curl_and_the_openstack_client_until_it_is_told_to_end,
            bad_arguments_are_explained,
        }
    });
    let trial =
        |(name, body)| Tier::Quick.case(tier, name, None::<String>, move || run_alone(body));
    cases.into_iter().filter_map(trial).collect()
}

fn charts(tier: Tier, shared: &SharedServersOnce) -> Vec<Trial> {
    let (helm, release) =
        (chart::missing_for_rendering(), chart::missing_for_a_release(&shared.binaries));
    let rendered =
        || run_alone(|| Box::pin(async { chart::the_example_renders_what_the_provider_takes() }));
    let binaries = shared.binaries.clone();
    let installed = move || {
        let binaries = binaries.map_err(Failed::from)?;
        block_on(chart::an_installed_release_serves_a_cluster(binaries))
    };
    let trials = [
        Tier::Quick.case(
            tier,
            "chart::the_example_renders_what_the_provider_takes",
            helm,
            rendered,
        ),
        Tier::Full.case(tier, "chart::an_installed_release_serves_a_cluster", release, installed),
    ];
    trials.into_iter().flatten().collect()
}

/// The binary on a cluster. What the first tier shows on the embedded server is shown on the real
/// one in the second.
fn clusters(tier: Tier, shared: &Arc<SharedServersOnce>) -> Vec<Trial> {
    #[rustfmt::skip]
    let cases: Vec<(Tier, ServerKind, &str, Body)> = tests! {
        Quick Embedded nodes {
            a_node_gets_what_upstream_writes, nodes_follow_their_servers, addresses_come_in_the_order_of_the_configuration,
        }
        Full Real nodes {
            a_node_gets_what_upstream_writes, nodes_follow_their_servers, addresses_come_in_the_order_of_the_configuration,
            a_token_that_expires_is_renewed, a_changed_password_needs_no_restart,
        }
        Full Real routes { pod_networks_are_routed_to_their_nodes }
        Full Real services {
            each_annotation_has_its_effect, security_groups_admit_load_balancers, another_driver_gets_what_it_can_do,
            one_object_at_a_time_leads_to_the_same_end, without_a_subnet_others_say_where,
            ipv6_services_have_addresses_and_members_of_their_family,
        }
        Full Real sharing {
            services_share_a_load_balancer, a_users_load_balancer_stays, what_upstream_made_is_taken_over,
        }
        Full Real traffic {
            reaches_the_nodes, is_carried_as_annotations_say, goes_around_members_that_are_down,
            is_decrypted_with_the_certificate,
        }
        Full Real mistakes {
            a_configuration_that_cannot_work_is_refused, a_cloud_without_load_balancers_serves_nodes,
            what_is_not_there_is_told, trouble_of_load_balancers_is_told_and_heals,
            answers_that_say_nothing_are_told_and_lose_nothing, credentials_that_are_refused_later_are_told,
            a_router_that_is_not_there_is_told,
        }
        Quick Embedded adoption { a_healthy_cluster_needs_no_change_and_has_no_defects }
        Full Real check { what_a_start_would_meet_is_known_before }
        Full Real orphans { what_was_leaked_is_found_and_deleted }
        Full Real crash { a_kill_at_some_changes_leads_to_the_same_end }
        Full Embedded retained { a_load_balancer_moves_while_it_serves }
        Full Real restart { a_cloud_that_was_down_is_brought_in_line }
        Nightly Real crash { a_kill_at_any_change_leads_to_the_same_end }
        Nightly Embedded crash { a_kill_at_any_write_to_the_api_server_leads_to_the_same_end }
    };
    let trial = |(of, kind, name, body): (Tier, ServerKind, &str, Body)| {
        let own = Arc::clone(shared);
        let missing = shared
            .binaries
            .as_ref()
            .err()
            .filter(|_| kind != ServerKind::Embedded);
        of.case(tier, format!("{}::{name}", kind.name()), missing, move || {
            own.runtime.block_on(run(&own, kind, body))
        })
    };
    cases.into_iter().filter_map(trial).collect()
}

async fn run(shared: &SharedServersOnce, kind: ServerKind, body: Body) -> Result<(), Failed> {
    let house = shared.house.lock().await;
    let done = async {
        let mut stage = ClusterFixture::new(&house, kind).await?;
        let done = body(&mut stage).await;
        let closed = stage.close().await;
        done.and(closed)
    };
    done.await.map_err(failed)
}

fn run_alone(body: Alone) -> Result<(), Failed> {
    block_on(body())
}

/// Runs a case to its end, in a runtime of its own.
fn block_on(case: impl Future<Output = anyhow::Result<()>>) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(case).map_err(failed)
}
