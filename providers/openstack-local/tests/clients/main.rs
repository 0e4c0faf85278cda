//! The local cloud as a program: it serves, keeps what it was told, and carries traffic
//! (`process::`, `machines::`, `traffic::`), and OpenStack's own clients work with it
//! (`openstack::`). Beside it, its data plane between address families (`families::`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says where"
)]

mod families;
mod openstack;
mod process;
#[allow(dead_code, reason = "the data plane's own tests use the rest")]
#[path = "../../src/dataplane/tests/fixture.rs"]
mod rig;

use std::{process::ExitCode, sync::Arc};

use ccm_testkit::{
    control_plane::GoProgram,
    suite::{Tier, failed},
};
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};
// As the rig finds it in the library.
use openstack_local::dataplane;
use parking_lot::Mutex;

#[cfg(feature = "nodes")]
use crate::process::machines;
use crate::process::traffic;

/// Cases at a time: they mostly wait for processes.
const AT_ONCE: usize = 4;

/// What a case does.
type Body = fn() -> LocalBoxFuture<'static, ()>;

/// A list of cases, by their functions' names.
macro_rules! cases {
    ($module:ident { $($name:ident),* $(,)? }) => {
        [$((concat!(stringify!($module), "::", stringify!($name)), (|| Box::pin($module::$name())) as Body)),*]
    };
}

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let tier = Tier::chosen()?;
    // The longest first, so that none runs alone at the end.
    let mut trials = programs(tier);
    trials.extend(families(tier));
    trials.extend(clients(tier));
    trials.extend(gophercloud(tier));
    Ok(libtest_mimic::run(&arguments, trials).exit_code())
}

fn programs(tier: Tier) -> Vec<Trial> {
    let plain = cases! {
        process {
            no_acknowledged_write_is_lost_when_the_process_is_killed, the_cloud_serves_until_it_is_told_to_end,
            bad_arguments_and_directories_are_explained, credentials_are_for_the_owner_only,
            passwords_and_tokens_are_not_logged,
        }
    };
    let mut trials = quick(tier, &plain, None);
    let nightly = cases! { process { no_acknowledged_write_is_lost_at_fifty_kills_by_chance } };
    let trial = |&(name, body): &(&str, Body)| {
        Tier::Nightly.case(tier, name, None::<&str>, move || run(body))
    };
    trials.extend(nightly.iter().filter_map(trial));
    #[cfg(feature = "nodes")]
    {
        let nodes = cases! {
            machines { a_server_is_a_node_for_as_long_as_it_is_on, a_kubeconfig_that_is_none_is_explained }
        };
        trials.extend(quick(tier, &nodes, None));
    }
    let traffic = cases! {
        traffic { load_balancers_carry_tcp_and_udp_on_ipv4_and_on_one_ipv6_address }
    };
    trials.extend(quick(tier, &traffic, traffic::missing_ipv6().as_deref()));
    trials
}

fn families(tier: Tier) -> Vec<Trial> {
    let missing = traffic::missing_ipv6();
    let all = cases! {
        families {
            datagrams_pass_between_address_families, members_are_told_an_ipv6_client_in_the_text_header,
            members_are_told_an_ipv6_client_in_the_binary_header,
        }
    };
    quick(tier, &all, missing.as_deref())
}

fn quick(tier: Tier, cases: &[(&str, Body)], missing: Option<&str>) -> Vec<Trial> {
    let trial =
        |&(name, body): &(&str, Body)| Tier::Quick.case(tier, name, missing, move || run(body));
    cases.iter().filter_map(trial).collect()
}

/// Runs a case to its end, in a runtime of its own.
fn run(body: Body) -> Result<(), Failed> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(body());
    Ok(())
}

/// The Go library that Terraform uses, on a cloud of its own.
fn gophercloud(tier: Tier) -> Option<Trial> {
    let program = GoProgram::Gophercloud.find();
    let missing = program.as_ref().err().cloned();
    let run = move || openstack::gophercloud(&program?).map_err(failed);
    Tier::Full.case(tier, "openstack::gophercloud", missing, run)
}

/// OpenStack's own clients, all on one cloud, which the first of them starts.
fn clients(tier: Tier) -> Vec<Trial> {
    let client = openstack::find();
    let shared: Arc<Mutex<Option<Arc<openstack::Cloud>>>> = Arc::default();
    let trial = |(name, test): (&str, openstack::Test)| {
        let (shared, own) = (Arc::clone(&shared), client.clone());
        let run = move || {
            let cloud = {
                let mut shared = shared.lock();
                match &*shared {
                    Some(cloud) => Arc::clone(cloud),
                    None => Arc::clone(
                        shared.insert(Arc::new(openstack::Cloud::start(own?).map_err(failed)?)),
                    ),
                }
            };
            test(&cloud).map_err(failed)
        };
        Tier::Full.case(tier, format!("openstack::{name}"), client.as_ref().err(), run)
    };
    openstack::TESTS.into_iter().filter_map(trial).collect()
}
