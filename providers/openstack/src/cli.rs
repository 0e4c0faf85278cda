//! Commands of `ccm-openstack` beside the cloud-controller-manager itself.

use std::{ffi::OsString, io::Write, process::ExitCode, sync::Arc};

use ccm_core::app::BoxError;
use clap::{Parser, Subcommand};

use crate::{
    client::{Https, Transport},
    config::{Cloud, Environment},
    manager,
};

/// Command line of `ccm-openstack` when its first argument is one of the commands.
#[derive(Debug, Parser)]
#[command(name = "ccm-openstack", about = "Cloud-controller-manager for OpenStack")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the controllers at work on a local cloud, in one process and on loopback only.
    #[cfg(feature = "demo")]
    Demo(crate::demo::DemoArgs),
}

/// Names of the commands; any other first argument belongs to the cloud-controller-manager.
pub const COMMANDS: [&str; 1] = ["demo"];

/// Runs the binary: one of the commands if the first argument names one, otherwise the cloud-controller-manager, which has
/// no commands and its own rules for flags.
pub async fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let is_command = args.get(1).is_some_and(|first| COMMANDS.iter().any(|command| first == command));
    if !is_command {
        let args = args.into_iter().skip(1);
        return Box::pin(manager::run(args, Environment::of_process(), connect)).await;
    }
    match Box::pin(run(Cli::parse_from(args))).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing can be done about a closed error stream.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a command to its end.
///
/// # Errors
/// What a person must know to make it work.
pub async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        #[cfg(feature = "demo")]
        Command::Demo(args) => crate::demo::run(args).await,
    }
}

/// Makes the transport over sockets.
///
/// # Errors
/// Files of TLS that cannot be used, or agents that cannot be sent.
pub fn connect(cloud: &Cloud, agents: &[String]) -> Result<Arc<dyn Transport>, BoxError> {
    Ok(Arc::new(Https::new(cloud, agents)?))
}
