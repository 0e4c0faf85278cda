//! Commands of `ccm-openstack` in addition to the cloud-controller-manager itself.

use std::{ffi::OsString, io::Write, process::ExitCode};

#[cfg(feature = "demo")]
use clap::{Parser, Subcommand};

use crate::{config::Environment, manager};

/// The command that shows the controllers at work. Any other first argument belongs to the
/// cloud-controller-manager.
pub const DEMO: &str = "demo";

/// Command line of `ccm-openstack` when its first argument is one of the commands.
#[cfg(feature = "demo")]
#[derive(Debug, Parser)]
#[command(
    name = "ccm-openstack",
    about = "Cloud-controller-manager for OpenStack"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands.
#[cfg(feature = "demo")]
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the controllers at work on a local cloud, in one process and on loopback only.
    Demo(crate::demo::DemoArgs),
}

/// Runs the binary: the demo if the first argument names it, otherwise the
/// cloud-controller-manager, which has no commands and its own rules for flags.
pub async fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    if args.get(1).is_some_and(|first| first == DEMO) {
        return demo(args).await;
    }
    Box::pin(manager::run(args.into_iter().skip(1), Environment::of_process(), manager::connect))
        .await
}

#[cfg(feature = "demo")]
async fn demo(args: Vec<OsString>) -> ExitCode {
    let Command::Demo(args) = Cli::parse_from(args).command;
    match Box::pin(crate::demo::run(args)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            write_line(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(not(feature = "demo"))]
#[expect(clippy::unused_async, reason = "the one with a demo awaits")]
async fn demo(_: Vec<OsString>) -> ExitCode {
    write_line("error: this binary was built without its feature demo");
    ExitCode::FAILURE
}

fn write_line(line: &str) {
    // Nothing can be done about a closed error stream.
    let _ = writeln!(std::io::stderr(), "{line}");
}
