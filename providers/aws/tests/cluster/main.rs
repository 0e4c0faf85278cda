//! The binary, end to end: moto in the place of AWS, a real control plane or the embedded API server, simulated kubelets.
//!
//! All tests share one moto and one API server of a kind, which are emptied before each, so they run one after the other.

mod crash;
mod mistakes;
mod nodes;
mod orphans;
mod rights;
mod secrets;
mod services;
mod stage;

use std::{process::ExitCode, sync::Arc};

use ccm_e2e::server::Kind;
use ccm_testkit::{
    control_plane::Binaries,
    moto::{self, Moto},
};
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};

use crate::stage::{House, Stage};

/// What a test does.
type Body = for<'a, 'b> fn(&'a mut Stage<'b>) -> LocalBoxFuture<'a, anyhow::Result<()>>;

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
            a_node_gets_what_upstream_writes, nodes_follow_their_instances, families_come_in_the_order_of_the_configuration,
            pod_networks_get_routes_and_instances_tags,
        }
        Real services { each_annotation_has_its_effect, security_groups_follow_the_annotations }
        Real mistakes {
            mistakes_are_told_together, what_is_not_there_is_told, refusals_of_aws_are_told_and_heal, what_cannot_change_stays,
        }
        Real orphans { what_was_leaked_is_found_and_deleted }
        Real crash { a_kill_at_any_change_leads_to_the_same_end }
        Embedded nodes {
            a_node_gets_what_upstream_writes, nodes_follow_their_instances, families_come_in_the_order_of_the_configuration,
        }
        Embedded mistakes { no_credential_is_shown_at_any_verbosity }
        Embedded secrets {
            keys_that_aws_repeats_are_not_shown, no_web_identity_and_nothing_it_gives_is_shown, no_role_is_shown,
            no_token_of_a_pod_identity_is_shown, no_token_of_an_instance_and_nothing_it_gives_is_shown,
            no_token_that_a_metadata_service_repeats_is_shown, a_file_with_keys_that_cannot_be_read_is_not_shown,
        }
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let what = "the AWS manager, end to end,";
    let program = if arguments.list { None } else { moto::find_or_say_skipped(what) };
    let house = program.map(|program| {
        let moto = runtime.block_on(Moto::start(program)).expect("moto's server starts");
        let binaries = Binaries::find_or_say_skipped(what);
        runtime.block_on(House::new(moto, binaries)).expect("a port is free")
    });
    let shared = Arc::new((runtime, house));
    let trials = tests.into_iter().map(|(kind, name, body)| {
        let shared = Arc::clone(&shared);
        Trial::test(format!("{}::{name}", kind.name()), move || run(&shared.0, shared.1.as_ref(), kind, body))
    });
    let mut trials: Vec<_> = trials.collect();
    // The last, so that everything was asked for. Where there is no control plane, most was not.
    let all = arguments.filter.is_none() && arguments.skip.is_empty();
    trials.push(Trial::test("rights::match_what_was_asked", move || match &shared.1 {
        Some(house) => rights::match_what_was_asked(house, all && house.has(Kind::Real))
            .map_err(|error| Failed::from(format!("{error:#}"))),
        None => Ok(()),
    }));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn run(runtime: &tokio::runtime::Runtime, house: Option<&House>, kind: Kind, body: Body) -> Result<(), Failed> {
    let Some(house) = house.filter(|house| house.has(kind)) else { return Ok(()) };
    let done = runtime.block_on(async {
        let mut stage = Stage::new(house, kind).await?;
        let done = body(&mut stage).await.and_then(|()| stage.check_logs());
        stage.take_requests();
        done
    });
    done.map_err(|error: anyhow::Error| Failed::from(format!("{error:#}")))
}
