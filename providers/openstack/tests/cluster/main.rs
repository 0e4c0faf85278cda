//! The binary, end to end: the local cloud in this process, a real control plane or the embedded API server, simulated
//! kubelets, and web servers that clients reach through load balancers.
//!
//! All tests share one API server of a kind, which is emptied before each, so they run one after the other. Each has a
//! cloud of its own.

mod crash;
mod mistakes;
mod nodes;
mod orphans;
mod restart;
mod routes;
mod services;
mod sharing;
mod stage;
mod traffic;

use std::{process::ExitCode, sync::Arc};

use ccm_e2e::server::Kind;
use ccm_testkit::control_plane::Binaries;
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};

use crate::stage::{House, Stage};

/// What a test does.
type Body = for<'a> fn(&'a mut Stage) -> LocalBoxFuture<'a, anyhow::Result<()>>;

/// A list of tests, by kind of server and their functions' names.
macro_rules! tests {
    ($($kind:ident $module:ident { $($name:ident),* $(,)? })*) => {
        vec![$($((
            Kind::$kind,
            concat!(stringify!($module), "::", stringify!($name)),
            (|stage| Box::pin($module::$name(stage))) as Body,
        )),*),*]
    };
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    #[rustfmt::skip]
    let tests: Vec<(Kind, &str, Body)> = tests! {
        Real nodes {
            a_node_gets_what_upstream_writes, nodes_follow_their_servers, addresses_come_in_the_order_of_the_configuration,
            a_token_that_expires_is_renewed, a_changed_password_needs_no_restart,
        }
        Real routes { pod_networks_are_routed_to_their_nodes }
        Real services {
            each_annotation_has_its_effect, security_groups_admit_load_balancers, another_driver_gets_what_it_can_do,
            one_object_at_a_time_leads_to_the_same_end, without_a_subnet_others_say_where,
            ipv6_services_have_addresses_and_members_of_their_family,
        }
        Real sharing {
            services_share_a_load_balancer, a_users_load_balancer_stays, what_upstream_made_is_taken_over,
        }
        Real traffic {
            reaches_the_nodes, is_carried_as_annotations_say, goes_around_members_that_are_down,
            is_decrypted_with_the_certificate,
        }
        Real mistakes {
            a_configuration_that_cannot_work_is_refused, a_cloud_without_load_balancers_serves_nodes,
            what_is_not_there_is_told, trouble_of_load_balancers_is_told_and_heals,
            answers_that_say_nothing_are_told_and_lose_nothing, credentials_that_are_refused_later_are_told,
            a_router_that_is_not_there_is_told,
        }
        Real orphans { what_was_leaked_is_found_and_deleted }
        Real crash { a_kill_at_any_change_leads_to_the_same_end }
        Real restart { a_cloud_that_was_down_is_brought_in_line }
        Embedded nodes {
            a_node_gets_what_upstream_writes, nodes_follow_their_servers, addresses_come_in_the_order_of_the_configuration,
        }
        Embedded crash { a_kill_at_any_write_to_the_api_server_leads_to_the_same_end }
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let binaries =
        if arguments.list { None } else { Binaries::find_or_say_skipped("the OpenStack manager, end to end,") };
    let shared = Arc::new((runtime, House::new(binaries)));
    let trials = tests.into_iter().map(|(kind, name, body)| {
        let shared = Arc::clone(&shared);
        Trial::test(format!("{}::{name}", kind.name()), move || run(&shared.0, &shared.1, kind, body))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn run(runtime: &tokio::runtime::Runtime, house: &House, kind: Kind, body: Body) -> Result<(), Failed> {
    if !house.has(kind) {
        return Ok(());
    }
    let done = runtime.block_on(async {
        let mut stage = Stage::new(house, kind).await?;
        let done = body(&mut stage).await;
        let closed = stage.close().await;
        done.and(closed)
    });
    done.map_err(|error: anyhow::Error| Failed::from(format!("{error:#}")))
}
