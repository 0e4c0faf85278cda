//! The process: arguments, logging, signals, exit code. A provider's `main` calls [`run`] and nothing else.

use std::{ffi::OsString, future::Future, io::Write, process::ExitCode, sync::Arc};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{self, Config, Invocation, Product},
    error::chain,
    provider::CloudProvider,
    runtime::manager::{Exit, Manager},
    telemetry::logging,
};

/// Error of a provider's constructor.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Runs a cloud-controller-manager to its end and returns its exit code: 0 after an orderly stop, `--help` and
/// `--version`; 1 for bad arguments, a provider that cannot be built, lost leadership and every other failure.
///
/// `build` constructs the provider from the checked configuration, before leader election, so that a bad cloud
/// configuration ends a standby too.
pub async fn run<A, B, F>(product: Product, args: A, build: B) -> ExitCode
where
    A: IntoIterator<Item = OsString>,
    B: FnOnce(Config) -> F,
    F: Future<Output = Result<Arc<dyn CloudProvider>, BoxError>>,
{
    match start(product, args, build).await {
        Ok(code) => code,
        Err(error) => {
            // Logging may not be there yet, and an operator looks at the last line on standard error.
            say(&mut std::io::stderr(), &format!("error: {}", chain(error.as_ref())));
            ExitCode::FAILURE
        }
    }
}

async fn start<A, B, F>(product: Product, args: A, build: B) -> Result<ExitCode, BoxError>
where
    A: IntoIterator<Item = OsString>,
    B: FnOnce(Config) -> F,
    F: Future<Output = Result<Arc<dyn CloudProvider>, BoxError>>,
{
    let config = match config::parse(&product, args)? {
        Invocation::Help(text) | Invocation::Version(text) => {
            say(&mut std::io::stdout(), &text);
            return Ok(ExitCode::SUCCESS);
        }
        Invocation::Run(config) => *config,
    };
    let (dispatch, _verbosity) = logging::dispatch(&config.logging, std::io::stderr);
    tracing::dispatcher::set_global_default(dispatch)?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    for flag in config.flags() {
        tracing::debug!(flag = %flag.name, value = %flag.value, "flag");
    }
    let provider = build(config.clone()).await?;
    tracing::info!(version = product.version, provider = provider.name(), "starting");
    let manager = Manager::from_config(product, config, provider).await?;
    Box::pin(run_until_signalled(manager, Signals::install()?)).await
}

/// The signals that ask the process to end: `SIGTERM` from the kubelet, `SIGINT` from Ctrl-C.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes them over from now on.
    fn install() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next one. None is lost when the future is dropped.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Runs the manager; the first signal stops it in order, the second at once.
async fn run_until_signalled(manager: Manager, mut signals: Signals) -> Result<ExitCode, BoxError> {
    let stop = CancellationToken::new();
    let run = manager.run(stop.clone());
    tokio::pin!(run);
    loop {
        tokio::select! {
            exit = &mut run => return match exit? {
                Exit::Stopped => Ok(ExitCode::SUCCESS),
                Exit::LeadershipLost(why) => Err(format!("leadership lost: {why}").into()),
            },
            signal = signals.next() => {
                if stop.is_cancelled() {
                    return Err(format!("{signal} again: stopped without waiting").into());
                }
                tracing::info!(signal, "stopping; a second signal ends the process at once");
                stop.cancel();
            }
        }
    }
}

/// Writes a line; a closed pipe is no reason to fail.
fn say(to: &mut impl Write, text: &str) {
    let _ = writeln!(to, "{}", text.trim_end());
}
