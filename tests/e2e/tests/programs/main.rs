//! The binary itself, without a cluster or with an embedded API server: what it prints, refuses and
//! keeps to itself, its demo, its image; and kubectl against the embedded server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says where"
)]

mod browser;
mod commands;
mod demo;
#[allow(dead_code, reason = "other suites use the rest")]
#[path = "../support/commands.rs"]
mod guides;
mod image;
mod kubectl;
#[path = "../support/plain.rs"]
mod plain;
mod process;
mod secrets;

use std::process::ExitCode;

/// Cases at a time: they mostly wait for the processes that they start.
const AT_ONCE: usize = 6;

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    // The longest first, so that none runs alone at the end.
    let mut cases = process::cases();
    cases.extend(secrets::cases());
    cases.extend(demo::cases());
    cases.extend(browser::cases());
    cases.extend(commands::cases());
    cases.extend(kubectl::cases());
    cases.extend(image::cases());
    plain::main(&arguments, cases)
}

/// Lists asynchronous functions as cases of the first tier.
#[macro_export]
macro_rules! async_cases {
    ($($body:ident),+ $(,)?) => {
        vec![$($crate::plain::Case {
            module: module_path!(),
            name: stringify!($body),
            tier: ccm_testkit::suite::Tier::Quick,
            missing: None,
            body: || $crate::plain::Outcome::judge($crate::block_on($body())),
        }),+]
    };
}

/// Runs a case to its end, in a runtime of its own.
fn block_on<T>(case: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("threads can be started").block_on(case)
}
