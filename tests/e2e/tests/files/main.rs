//! Files that are shipped and files that describe: the Helm chart as far as it needs no cluster,
//! the Dockerfile, and the documentation.
//!
//! What has to be rendered needs helm, and is ignored where there is none.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on says where"
)]

mod chart;
mod commands;
mod docs;
#[path = "../support/commands.rs"]
mod guides;
#[allow(dead_code, reason = "other suites use the rest")]
#[path = "../support/helm.rs"]
mod helm;
mod image;
#[path = "../support/plain.rs"]
mod plain;
mod readme;

use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let mut cases = chart::cases();
    cases.extend(image::cases());
    cases.extend(docs::cases());
    cases.extend(commands::cases());
    cases.extend(readme::cases());
    plain::main(&libtest_mimic::Arguments::from_args(), cases)
}
