//! Whole servers: the harness of the real control plane, simulated kubelets, and the requests,
//! decoding and caches of ccm-core against them.
//!
//! `embedded::…` is the embedded API server, in virtual time, in the first tier; `real::…` are etcd
//! and kube-apiserver, in the second.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says where"
)]

mod control_plane;
mod kubelet;
mod reflector;

use std::process::ExitCode;

use ccm_testkit::control_plane::Binaries;
use ccm_testkit::suite::Tier;
use futures::future::LocalBoxFuture;
use libtest_mimic::Arguments;
use tokio::runtime::Builder;

/// Name and body of a case.
type Case = (&'static str, fn() -> LocalBoxFuture<'static, ()>);

/// Lists asynchronous functions as cases.
#[macro_export]
macro_rules! cases {
    ($($body:ident),+ $(,)?) => {{
        let list: Vec<$crate::Case> = vec![$((stringify!($body), || Box::pin($body()))),+];
        list
    }};
}

fn main() -> anyhow::Result<ExitCode> {
    if control_plane::is_holder() {
        control_plane::hold();
        return Ok(ExitCode::SUCCESS);
    }
    let (arguments, chosen) = (Arguments::from_args(), Tier::chosen()?);
    let missing = Binaries::find().err().map(|missing| missing.to_string());
    let embedded = reflector::embedded()
        .into_iter()
        .filter_map(|(name, body)| {
            let run = move || {
                run(Builder::new_current_thread().start_paused(true), body);
                Ok(())
            };
            Tier::Quick.case(chosen, format!("embedded::{name}"), None::<String>, run)
        });
    let real = [control_plane::cases(), kubelet::cases(), reflector::real()]
        .concat()
        .into_iter();
    let real = real.filter_map(|(name, body)| {
        let run = move || {
            run(&mut Builder::new_current_thread(), body);
            Ok(())
        };
        Tier::Full.case(chosen, format!("real::{name}"), missing.clone(), run)
    });
    Ok(libtest_mimic::run(&arguments, embedded.chain(real).collect()).exit_code())
}

fn run(runtime: &mut Builder, body: fn() -> LocalBoxFuture<'static, ()>) {
    runtime
        .enable_all()
        .build()
        .expect("a runtime can be made")
        .block_on(body());
}

/// The binaries, without which a case is ignored.
fn binaries() -> Binaries {
    Binaries::find().expect("the control plane was there")
}
