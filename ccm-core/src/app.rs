//! The process: arguments, logging, signals, exit code. A provider's `main` calls [`run`] and
//! nothing else.

mod check;
mod explain;
mod orphans;
mod report_flags;

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    ffi::OsString,
    future::Future,
    io::Write,
    panic::PanicHookInfo,
    pin::pin,
    process::ExitCode,
    sync::Arc,
};

use axum::Router;
use futures::{FutureExt, future::BoxFuture};
use prometheus::Registry;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{self, Config, Invocation, Product},
    crypto,
    error::{chain, redacted_panic},
    manager::{CLOUD_PROVIDER_CHECK, Manager, ManagerExit, Observability},
    provider::CloudProvider,
    runtime::{
        health::CheckKind,
        serving::{
            AuthFilter, Handlers, Server,
            auth::{AuthClients, AuthError, DelegatedAuth},
        },
        shadow::Verdict,
    },
    telemetry::{
        logging::{self, Verbosity},
        traces::{SpanLayer, Traces, TracesConfig},
    },
};

/// The names of the subcommands.
const SUBCOMMANDS: [&str; 3] = [orphans::SUBCOMMAND, check::SUBCOMMAND, explain::SUBCOMMAND];
/// The exit code of `--shadow-once` if something differs.
const EXIT_DIFFERENT: u8 = 2;
/// The error of `--shadow-once` if the comparison is incomplete.
const INCOMPLETE: &str = "some objects could not be compared";

pub use crate::error::BoxError;

/// Runs a cloud-controller-manager until it ends, and returns its exit code.
///
/// The exit code is 0 after an orderly stop, after `--help` and `--version`, and if `--shadow-once`
/// finds no difference. It is 2 if `--shadow-once` finds a difference. It is 1 for invalid
/// arguments, a provider that cannot be built, lost leadership, and every other failure.
///
/// If the first argument is `orphans`, the process lists the orphans of this cluster instead, and
/// deletes them on request. This subcommand has the same flags and some more (see `orphans
/// --help`). Its exit code is 0 if no orphans remain, 2 if some remain, and 1 on failure.
///
/// If the first argument is `check`, the process finds out whether the manager could work with these
/// flags, changes nothing, and prints a report. Its exit code is 0 if all is well, 2 after warnings,
/// and 1 after errors.
///
/// If the first argument is `explain`, the process asks the leader why a Node, a Service or the
/// routes are as they are, and prints the answer. Its exit code is 0, and 1 on failure.
///
/// `build` constructs the provider from the validated configuration. It runs before leader
/// election, so an invalid cloud configuration also ends a standby. An error of `build` ends the
/// process. It should therefore wait for a cloud that is down, instead of returning an error:
/// meanwhile the HTTPS server runs, `/readyz` fails, and a signal drops the future. Work that can
/// wait belongs in [`CloudProvider::start`], which is called again while the cloud is down.
pub async fn run<A, B, F>(product: Product, args: A, build: B) -> ExitCode
where
    A: IntoIterator<Item = OsString>,
    B: FnOnce(Config) -> F,
    F: Future<Output = Result<Arc<dyn CloudProvider>, BoxError>>,
{
    match start(product, args, build).await {
        Ok(code) => code,
        Err(error) => {
            // Printed, not logged: logging may not be set up yet, and operators look at the last
            // line on standard error.
            write_line(&mut std::io::stderr(), &format!("error: {}", chain(error.as_ref())));
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
    // Before anything connects, or is read that contains keys.
    crypto::install()?;
    let mut args = args.into_iter().peekable();
    let subcommand = args
        .next_if(|arg| SUBCOMMANDS.iter().any(|name| arg == name))
        .and_then(|arg| arg.into_string().ok());
    let product = match subcommand.as_deref() {
        Some(orphans::SUBCOMMAND) => orphans::with_flags(product),
        Some(check::SUBCOMMAND) => check::with_flags(product),
        Some(explain::SUBCOMMAND) => explain::with_flags(product),
        _ => product,
    };
    let (mut object, mut default_provider) = (None, None);
    if subcommand.as_deref() == Some(explain::SUBCOMMAND) {
        object = explain::take_object(&mut args)?;
        default_provider = explain::default_provider(&product);
    }
    let mut config = match config::parse(&product, default_provider.into_iter().chain(args))? {
        Invocation::Help(text) | Invocation::Version(text) => {
            write_line(&mut std::io::stdout(), &text);
            return Ok(ExitCode::SUCCESS);
        }
        Invocation::Run(config) => *config,
    };
    // Environment variables that are not Unicode cannot be feature gates.
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let gate_warnings = config.client_gates.read_environment(environment);
    let (traces, spans) = start_traces(&product, &config)?.unzip();
    let (dispatch, verbosity) = logging::dispatch_with(&config.logging, std::io::stderr, spans);
    tracing::dispatcher::set_global_default(dispatch)?;
    std::panic::set_hook(Box::new(print_panic));
    for warning in config.warnings().iter().chain(&gate_warnings) {
        tracing::warn!("{warning}");
    }
    for flag in config.flags() {
        tracing::debug!(flag = %flag.name, value = %flag.value, "flag");
    }
    let result = match subcommand.as_deref() {
        Some(orphans::SUBCOMMAND) => Box::pin(orphans::run(product, config, build)).await,
        Some(check::SUBCOMMAND) => Box::pin(check::run(product, config, build)).await,
        Some(explain::SUBCOMMAND) => Box::pin(explain::run(product, config, object, build)).await,
        _ => run_manager(product, config, verbosity, build).await,
    };
    if let Some(traces) = traces {
        traces.shutdown().await;
    }
    result
}

async fn run_manager<B, F>(
    product: Product,
    config: Config,
    verbosity: Verbosity,
    build: B,
) -> Result<ExitCode, BoxError>
where
    B: FnOnce(Config) -> F,
    F: Future<Output = Result<Arc<dyn CloudProvider>, BoxError>>,
{
    // Bind before leader election: a standby is probed and scraped too, and a port that is in use
    // should be an error at once. A single comparison needs no server, and usually runs where
    // another process uses the port.
    let server = if config.shadow.once {
        None
    } else {
        Server::bind(&config.serving)?
    };
    let signals = Signals::install()?;
    let observability = Observability::new(&config);
    let Some(server) = server else {
        let work = build_and_run(product, config, observability, None, build, signals);
        return Box::pin(work).await;
    };

    // The server rejects users until authentication is set up, which needs the API server.
    let auth_filter = AuthFilter::new(&config.authorization.always_allow_paths)?;
    let (auth_setup, auth) = set_up_delegated_auth(
        &product,
        &config,
        observability.registry.clone(),
        auth_filter.clone(),
    );
    let registry = observability.registry.clone();
    let health = observability.health.clone();
    let provider_routes = observability.routes(&config);
    let handlers = Handlers::new(product.clone(), config.clone(), registry, health, verbosity);
    let router = handlers.router(auth_filter, provider_routes)?;
    let work = build_and_run(product, config, observability, Some(auth_setup), build, signals);
    Box::pin(run_and_serve(work, server, router, auth)).await
}

/// The setup of authentication, to run once the API server is reachable.
type AuthSetup = BoxFuture<'static, Result<(), AuthError>>;

/// Builds the provider, which may wait for its cloud, and runs the manager.
async fn build_and_run<B, F>(
    product: Product,
    config: Config,
    observability: Observability,
    auth_setup: Option<AuthSetup>,
    build: B,
    mut signals: Signals,
) -> Result<ExitCode, BoxError>
where
    B: FnOnce(Config) -> F,
    F: Future<Output = Result<Arc<dyn CloudProvider>, BoxError>>,
{
    let not_built_check = observability
        .health
        .add(CheckKind::Ready, CLOUD_PROVIDER_CHECK, || Err("has not started yet".to_owned()));
    let provider = tokio::select! {
        provider = build(config.clone()) => provider?,
        signal = signals.next() => {
            // Nothing has been started that would have to be stopped first.
            tracing::info!(signal, "stopping before the cloud provider is built");
            return if config.shadow.once { Err(INCOMPLETE.into()) } else { Ok(ExitCode::SUCCESS) };
        }
    };
    tracing::info!(
        version = product.version,
        provider = provider.name(),
        cryptography = crypto::LIBRARY,
        "starting"
    );
    let manager = Manager::from_config(product, config, provider)
        .await?
        .with_observability(observability);
    drop(not_built_check);
    let manager = match auth_setup {
        Some(auth_setup) => manager.on_api_server_reachable(auth_setup),
        None => manager,
    };
    Box::pin(run_until_signalled(manager, signals)).await
}

/// Returns the setup of the HTTPS server's authentication and authorization, and a receiver that
/// gets the result once the setup has run.
fn set_up_delegated_auth(
    product: &Product,
    config: &Config,
    registry: Registry,
    auth_filter: AuthFilter,
) -> (AuthSetup, oneshot::Receiver<DelegatedAuth>) {
    let (sender, receiver) = oneshot::channel();
    let authentication = config.authentication.clone();
    let authorization = config.authorization.clone();
    let product = product.clone();
    let connect = async move {
        let clients = AuthClients::from_flags(&authentication, &authorization, &product).await?;
        let auth =
            DelegatedAuth::connect(&authentication, &authorization, clients, &registry).await?;
        auth_filter.install(Arc::new(auth.clone()));
        // Without a receiver the process is already ending.
        let _ = sender.send(auth);
        Ok(())
    };
    (connect.boxed(), receiver)
}

/// Runs `work` and the HTTPS server together, until `work` ends. The server also runs while `work`
/// starts and stops, so that these phases can be observed.
async fn run_and_serve(
    work: impl Future<Output = Result<ExitCode, BoxError>>,
    server: Server,
    router: Router,
    auth: oneshot::Receiver<DelegatedAuth>,
) -> Result<ExitCode, BoxError> {
    let stop = CancellationToken::new();
    let refresh_auth = async {
        if let Some(Ok(auth)) = stop.run_until_cancelled(auth).await {
            auth.run(stop.clone()).await;
        }
    };
    let serve_requests = async {
        server.run(router, stop.clone()).await;
        // The server ends because of `stop`, or because it failed. Then the process should end.
        stop.cancel();
    };
    let mut serve = pin!(async { tokio::join!(serve_requests, refresh_auth) });
    let code = tokio::select! {
        result = work => result?,
        _ = &mut serve => return Err("the HTTPS server ended".into()),
    };
    stop.cancel();
    serve.await;
    Ok(code)
}

/// Starts the export of traces if `--tracing-config-file` is set.
fn start_traces(
    product: &Product,
    config: &Config,
) -> Result<Option<(Traces, SpanLayer)>, BoxError> {
    let Some(file) = &config.debugging.tracing_config_file else {
        return Ok(None);
    };
    let settings = TracesConfig::load(file)?;
    let instance = uuid::Uuid::new_v4().to_string();
    Ok(Some(Traces::start(&settings, product.binary, product.version, instance)?))
}

/// The signals that request the process to stop: `SIGTERM` from the kubelet, `SIGINT` from Ctrl-C.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs handlers for the signals, which replace their default effect.
    fn install() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal and returns its name.
    ///
    /// # Cancellation
    /// Dropping the future loses no signal.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Runs the manager. The first signal stops it gracefully, the second one at once.
async fn run_until_signalled(manager: Manager, mut signals: Signals) -> Result<ExitCode, BoxError> {
    let stop = CancellationToken::new();
    match until_signalled(manager.run(stop.clone()), &stop, &mut signals).await?? {
        ManagerExit::Stopped | ManagerExit::Compared(Verdict::Same) => Ok(ExitCode::SUCCESS),
        ManagerExit::Compared(Verdict::Different) => Ok(ExitCode::from(EXIT_DIFFERENT)),
        ManagerExit::Compared(Verdict::Incomplete) => Err(INCOMPLETE.into()),
        ManagerExit::LeadershipLost(reason) => Err(format!("leadership lost: {reason}").into()),
    }
}

/// Runs `work` until it ends. The first signal cancels `stop`, which should end it. The second
/// signal drops it.
async fn until_signalled<T>(
    work: impl Future<Output = T>,
    stop: &CancellationToken,
    signals: &mut Signals,
) -> Result<T, BoxError> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            result = &mut work => return Ok(result),
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

/// Prints a panic as the standard library does, but redacts text that looks like credentials,
/// because libraries may panic with a request in their message.
fn print_panic(panic: &PanicHookInfo<'_>) {
    let location = panic
        .location()
        .map(ToString::to_string)
        .unwrap_or_default();
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("<unnamed>");
    let text = redacted_panic(panic.payload());
    let backtrace = Backtrace::capture();
    let backtrace = if backtrace.status() == BacktraceStatus::Captured {
        backtrace.to_string()
    } else {
        String::new()
    };
    write_line(
        &mut std::io::stderr(),
        &format!("thread '{thread}' panicked at {location}:\n{text}\n{backtrace}"),
    );
}

/// Writes a line. Ignores errors, because a closed pipe should not fail the process.
fn write_line(output: &mut impl Write, text: &str) {
    let _ = writeln!(output, "{}", text.trim_end());
}
