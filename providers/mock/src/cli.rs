//! Commands of `ccm-mock`, in addition to the cloud-controller-manager itself.

use std::{ffi::OsString, io::Write, path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{CloudConfig, HostPort, MockCloud, bind_admin, serve_admin};

/// Command line of `ccm-mock` when its first argument is one of the commands.
#[derive(Debug, Parser)]
#[command(
    name = "ccm-mock",
    about = "Mock cloud and its cloud-controller-manager"
)]
pub struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the mock cloud alone, for processes whose cloud config names it as endpoint.
    Cloud(CloudArgs),
    /// Show the controllers at work in one process, with no cluster and no cloud.
    #[cfg(feature = "demo")]
    Demo(crate::demo::DemoArgs),
}

/// Arguments of `ccm-mock cloud`.
#[derive(Debug, Args)]
pub struct CloudArgs {
    /// Cloud config (YAML). Without adminAddress the cloud listens at a free port of the loopback
    /// interface.
    #[arg(long, value_name = "FILE")]
    pub cloud_config: Option<PathBuf>,
}

/// Names of the commands. Any other first argument is a flag of the cloud-controller-manager.
pub const COMMANDS: [&str; 2] = ["cloud", "demo"];

/// Runs the binary: a command if the first argument names one, otherwise the
/// cloud-controller-manager, which parses its own flags.
pub async fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let is_command = args
        .get(1)
        .is_some_and(|first| COMMANDS.iter().any(|command| first == command));
    if !is_command {
        return Box::pin(crate::manager::run(args.into_iter().skip(1))).await;
    }
    match run(Cli::parse_from(args)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed stderr is not an error.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a command until it ends.
///
/// # Errors
/// Returns an error if the configuration is invalid, or the command cannot start or fails.
pub async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Cloud(args) => serve_cloud(args).await,
        #[cfg(feature = "demo")]
        Command::Demo(args) => crate::demo::run(args).await,
    }
}

/// Serves the cloud until SIGTERM or SIGINT. Prints `admin http://<address>` as the first line once
/// it listens.
async fn serve_cloud(args: CloudArgs) -> anyhow::Result<()> {
    let config = match &args.cloud_config {
        Some(file) => CloudConfig::from_file(file)?,
        None => CloudConfig::default(),
    };
    if config.endpoint.is_some() {
        anyhow::bail!(
            "cloud config: endpoint names a cloud elsewhere, but this command serves one"
        );
    }
    let cloud = MockCloud::new(&config)?;
    // Install the signal handlers before announcing the address.
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let address = config
        .admin_address
        .unwrap_or(HostPort { host: "127.0.0.1".to_owned(), port: 0 });
    let listener = bind_admin(&address)
        .await
        .with_context(|| format!("cannot listen at adminAddress {address}"))?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "admin http://{}", listener.local_addr()?)?;
    stdout.flush()?;
    drop(stdout);
    let cancel = CancellationToken::new();
    let server = serve_admin(cloud, listener, cancel.clone());
    tokio::pin!(server);
    tokio::select! {
        ended = &mut server => return Ok(ended?),
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    cancel.cancel();
    Ok(server.await?)
}
