//! Command line of `openstack-local`.

#[cfg(feature = "nodes")]
use std::sync::Arc;
use std::{
    ffi::OsString,
    io::{IsTerminal, Write},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use crate::server::{Credentials, LocalCloud, Settings, TimeSource};
#[cfg(feature = "nodes")]
use crate::servers::Kubernetes;

/// Where the cloud listens unless told otherwise.
const LISTEN: &str = "127.0.0.1:5000";

/// Command line.
#[derive(Debug, Parser)]
#[command(
    name = "openstack-local",
    about = "A local cloud that speaks OpenStack's REST APIs",
    version
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the cloud until SIGTERM or SIGINT. The first line printed says where.
    Serve(ServeArgs),
    /// Print what a shell must set for the `openstack` command: `eval "$(openstack-local
    /// credentials --state DIR)"`.
    Credentials(CredentialsArgs),
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Directory that keeps the state; made when missing.
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,
    /// Address to listen on. Port 0: a free one.
    #[arg(long, value_name = "ADDR", default_value = LISTEN)]
    pub listen: SocketAddr,
    /// Listen also on an address that other machines can reach. Tokens and passwords travel there
    /// without encryption.
    #[arg(long)]
    pub allow_non_loopback: bool,
    /// Region of the endpoints, when the state is first made.
    #[arg(long, value_name = "NAME", default_value = "RegionOne")]
    pub region: String,
    /// Seconds that a token is good for.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub token_lifetime: u64,
    /// Milliseconds that load balancers stay in a PENDING state after each change.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    pub pending_ms: u64,
    /// Cluster whose nodes servers can be (metadata openstack-local:node=true). Whoever may make
    /// servers adds nodes to it.
    #[cfg(feature = "nodes")]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Serve /admin, where tests read the journal of requests, inject faults, and move the clock.
    /// Anybody can.
    #[arg(long)]
    pub test_hooks: bool,
}

/// Arguments of `credentials`.
#[derive(Debug, Args)]
pub struct CredentialsArgs {
    /// Directory that keeps the state.
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,
    /// Address that the cloud listens on.
    #[arg(long, value_name = "ADDR", default_value = LISTEN)]
    pub listen: SocketAddr,
    /// User to be: `admin`, or `demo` without special rights.
    #[arg(long, value_name = "NAME", default_value = "admin")]
    pub user: String,
}

/// Runs the binary.
pub async fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match run(Cli::parse_from(args)).await {
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
/// What the user must know to make it work.
pub async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Serve(args) => serve(args).await,
        Command::Credentials(args) => credentials(&args),
    }
}

async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    // First, check the arguments and start the log.
    if !args.listen.ip().is_loopback() && !args.allow_non_loopback {
        bail!(
            "--listen {}: other machines could reach this address, and nothing is encrypted; \
             to do so nevertheless add --allow-non-loopback",
            args.listen
        );
    }
    let filter =
        tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(std::io::stderr)
        .init();
    let settings = Settings {
        region: args.region,
        token_lifetime: Duration::from_secs(args.token_lifetime),
        pending: Duration::from_millis(args.pending_ms),
        admin_endpoint: args.test_hooks,
        time: TimeSource::System,
        ..Settings::default()
    };
    // Then open everything. Signals are caught before the cloud is announced.
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    #[cfg(feature = "nodes")]
    let cluster = match &args.kubeconfig {
        Some(file) => Some(Arc::new(Kubernetes::from_kubeconfig(file).await?)),
        None => None,
    };
    let cloud = LocalCloud::open(&args.state, settings)?;
    #[cfg(feature = "nodes")]
    let cloud = match cluster {
        Some(cluster) => cloud.with_cluster(cluster),
        None => cloud,
    };
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "listening on http://{}", listener.local_addr()?)?;
    stdout.flush()?;
    drop(stdout);
    // Finally, serve until a signal arrives.
    let cancel = CancellationToken::new();
    let server = cloud.serve(listener, cancel.clone());
    tokio::pin!(server);
    tokio::select! {
        ended = &mut server => return Ok(ended?),
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    cancel.cancel();
    Ok(server.await?)
}

fn credentials(args: &CredentialsArgs) -> anyhow::Result<()> {
    let credentials = Credentials::read(&args.state);
    let credentials =
        credentials.with_context(|| "there are no credentials before the cloud first served")?;
    let exports = credentials.exports(&args.user, &args.listen.to_string());
    let users = || {
        credentials
            .passwords
            .keys()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let exports =
        exports.with_context(|| format!("--user {}: the users are {}", args.user, users()))?;
    std::io::stdout().write_all(exports.as_bytes())?;
    Ok(())
}
