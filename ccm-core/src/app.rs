//! The process: arguments, logging, signals, exit code. A provider's `main` calls [`run`] and nothing else.

use std::{ffi::OsString, future::Future, io::Write, process::ExitCode, sync::Arc};

use tokio_util::sync::CancellationToken;

use crate::{
    config::{self, Config, Invocation, Product},
    error::chain,
    provider::CloudProvider,
    runtime::{
        manager::{Exit, Manager},
        shadow::Verdict,
        shutdown::{SignalSource, UnixSignals},
    },
    telemetry::logging,
};

/// Exit code of `--shadow-once` when something differs.
const DIFFERENT: u8 = 2;

/// Error of a provider's constructor.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Runs a cloud-controller-manager to its end and returns its exit code: 0 after an orderly stop, `--help`,
/// `--version`, and when `--shadow-once` finds no difference; 2 when that finds some; 1 for bad arguments, a provider that cannot be built, lost leadership and every other failure.
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
    Box::pin(run_until_signalled(manager, UnixSignals::install()?)).await
}

/// Runs the manager; the first signal stops it in order, the second at once.
async fn run_until_signalled(manager: Manager, mut signals: impl SignalSource) -> Result<ExitCode, BoxError> {
    let stop = CancellationToken::new();
    let run = manager.run(stop.clone());
    tokio::pin!(run);
    loop {
        tokio::select! {
            exit = &mut run => return match exit? {
                Exit::Stopped | Exit::Compared(Verdict::Same) => Ok(ExitCode::SUCCESS),
                Exit::Compared(Verdict::Different) => Ok(ExitCode::from(DIFFERENT)),
                Exit::Compared(Verdict::Incomplete) => Err("some objects could not be compared".into()),
                Exit::LeadershipLost(why) => Err(format!("leadership lost: {why}").into()),
            },
            signal = signals.next() => {
                if stop.is_cancelled() {
                    return Err(format!("{signal} again: stopped without waiting").into());
                }
                tracing::info!(%signal, "stopping; a second signal ends the process at once");
                stop.cancel();
            }
        }
    }
}

/// Writes a line; a closed pipe is no reason to fail.
fn say(to: &mut impl Write, text: &str) {
    let _ = writeln!(to, "{}", text.trim_end());
}
