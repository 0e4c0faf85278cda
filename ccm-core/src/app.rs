//! The process: arguments, logging, signals, exit code. A provider's `main` calls [`run`] and
//! nothing else.

mod orphans;

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

/// Exit code of `--shadow-once` when something differs.
const EXIT_DIFFERENT: u8 = 2;
/// What `--shadow-once` says when it could not judge.
const INCOMPLETE: &str = "some objects could not be compared";

pub use crate::error::BoxError;

/// Runs a cloud-controller-manager to its end and returns its exit code: 0 after an orderly stop,
/// `--help`, `--version`, and when `--shadow-once` finds no difference; 2 when that finds some; 1
/// for bad arguments, a provider that cannot be built, lost leadership and every other failure.
///
/// With `orphans` as the first argument it prints what the cloud holds for this cluster and nobody
/// asks for, with the same flags and some more (`orphans --help`), and exits with 0 when nothing of
/// it is left, 2 when something is, 1 on failure.
///
/// `build` constructs the provider from the checked configuration, before leader election, so that
/// a bad cloud configuration ends a standby too. An error ends the process, so a cloud that is down
/// should be none: `build` may wait for it. The pages are served meanwhile, `/readyz` fails, and a
/// signal drops the future. What can wait belongs into [`CloudProvider::start`], which is called
/// again as long as the cloud is down.
pub async fn run<A, B, F>(product: Product, args: A, build: B) -> ExitCode
where
    A: IntoIterator<Item = OsString>,
    B: FnOnce(Config) -> F,
    F: Future<Output = Result<Arc<dyn CloudProvider>, BoxError>>,
{
    match start(product, args, build).await {
        Ok(code) => code,
        Err(error) => {
            // Logging may not be there yet, and an operator looks at the last line on standard
            // error.
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
    let mut args = args.into_iter().peekable();
    let orphans = args.next_if(|word| word == orphans::SUBCOMMAND).is_some();
    let product = if orphans {
        orphans::product(product)
    } else {
        product
    };
    let mut config = match config::parse(&product, args)? {
        Invocation::Help(text) | Invocation::Version(text) => {
            write_line(&mut std::io::stdout(), &text);
            return Ok(ExitCode::SUCCESS);
        }
        Invocation::Run(config) => *config,
    };
    // Variables that are not Unicode are none of ours.
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let gate_warnings = config.client_gates.read_environment(environment);
    let (traces, spans) = traces(&product, &config)?.unzip();
    let (dispatch, verbosity) = logging::dispatch_with(&config.logging, std::io::stderr, spans);
    tracing::dispatcher::set_global_default(dispatch)?;
    std::panic::set_hook(Box::new(log_panic));
    for warning in config.warnings().iter().chain(&gate_warnings) {
        tracing::warn!("{warning}");
    }
    for flag in config.flags() {
        tracing::debug!(flag = %flag.name, value = %flag.value, "flag");
    }
    let result = if orphans {
        Box::pin(orphans::run(product, config, build)).await
    } else {
        run_manager(product, config, verbosity, build).await
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
    // Before the election: a standby is probed and scraped, too, and a port in use is to be known
    // at once. A single comparison serves nobody, and is usually made where the port is another's.
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

/// What has to be done at the first contact with the API server.
type AuthSetup = BoxFuture<'static, Result<(), AuthError>>;

/// Builds the provider, which may wait for its cloud, and runs the manager.
async fn build_and_run<B, F>(
    product: Product,
    config: Config,
    observability: Observability,
    recognition: Option<AuthSetup>,
    build: B,
    mut signals: Signals,
) -> Result<ExitCode, BoxError>
where
    B: FnOnce(Config) -> F,
    F: Future<Output = Result<Arc<dyn CloudProvider>, BoxError>>,
{
    let building = observability
        .health
        .add(CheckKind::Ready, CLOUD_PROVIDER_CHECK, || Err("is not built yet".to_owned()));
    let provider = tokio::select! {
        provider = build(config.clone()) => provider?,
        signal = signals.next() => {
            // Nothing was begun that would have to end first.
            tracing::info!(signal, "stopping before the cloud provider is built");
            return if config.shadow.once { Err(INCOMPLETE.into()) } else { Ok(ExitCode::SUCCESS) };
        }
    };
    tracing::info!(version = product.version, provider = provider.name(), "starting");
    let manager = Manager::from_config(product, config, provider)
        .await?
        .with_observability(observability);
    drop(building);
    let manager = match recognition {
        Some(recognition) => manager.on_api_server_reachable(recognition),
        None => manager,
    };
    run_until_signalled(manager, signals).await
}

/// Finds out, once the API server was reached and before anything else is done, how callers of the
/// HTTPS server are recognised. The receiver gets the result.
fn set_up_delegated_auth(
    product: &Product,
    config: &Config,
    registry: Registry,
    door: AuthFilter,
) -> (AuthSetup, oneshot::Receiver<DelegatedAuth>) {
    let (sender, receiver) = oneshot::channel();
    let authentication = config.authentication.clone();
    let authorization = config.authorization.clone();
    let product = product.clone();
    let connect = async move {
        let clients = AuthClients::from_flags(&authentication, &authorization, &product).await?;
        let auth =
            DelegatedAuth::connect(&authentication, &authorization, clients, &registry).await?;
        door.install(Arc::new(auth.clone()));
        // Without a receiver the process is ending already.
        let _ = sender.send(auth);
        Ok(())
    };
    (connect.boxed(), receiver)
}

/// Does the work and answers meanwhile, so that what happens at the beginning and at the end can be
/// seen as well.
async fn run_and_serve(
    work: impl Future<Output = Result<ExitCode, BoxError>>,
    server: Server,
    router: Router,
    auth: oneshot::Receiver<DelegatedAuth>,
) -> Result<ExitCode, BoxError> {
    let end = CancellationToken::new();
    let keep_fresh = async {
        if let Some(Ok(auth)) = end.run_until_cancelled(auth).await {
            auth.run(end.clone()).await;
        }
    };
    let answer = async {
        server.run(router, end.clone()).await;
        // Alone when the process ends, and if not, it should.
        end.cancel();
    };
    let mut serve = pin!(async { tokio::join!(answer, keep_fresh) });
    let code = tokio::select! {
        result = work => result?,
        _ = &mut serve => return Err("the HTTPS server ended".into()),
    };
    end.cancel();
    serve.await;
    Ok(code)
}

/// Begins to export traces, if `--tracing-config-file` is given.
fn traces(product: &Product, config: &Config) -> Result<Option<(Traces, SpanLayer)>, BoxError> {
    let Some(file) = &config.debugging.tracing_config_file else {
        return Ok(None);
    };
    let settings = TracesConfig::load(file)?;
    let instance = uuid::Uuid::new_v4().to_string();
    Ok(Some(Traces::start(&settings, product.binary, product.version, instance)?))
}

/// The signals that ask the process to end: `SIGTERM` from the kubelet, `SIGINT` from Ctrl-C.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes them over from now on.
    fn install() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
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
    match until_signalled(manager.run(stop.clone()), &stop, &mut signals).await?? {
        ManagerExit::Stopped | ManagerExit::Compared(Verdict::Same) => Ok(ExitCode::SUCCESS),
        ManagerExit::Compared(Verdict::Different) => Ok(ExitCode::from(EXIT_DIFFERENT)),
        ManagerExit::Compared(Verdict::Incomplete) => Err(INCOMPLETE.into()),
        ManagerExit::LeadershipLost(why) => Err(format!("leadership lost: {why}").into()),
    }
}

/// Waits for the end of what `stop` stops. The first signal cancels that; at the second the work is
/// dropped.
async fn until_signalled<T>(
    work: impl Future<Output = T>,
    stop: &CancellationToken,
    signals: &mut Signals,
) -> Result<T, BoxError> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done),
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

/// Says that a thread panicked, as the standard library does, without what looks like credentials:
/// libraries may panic with a request in their message.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic
        .location()
        .map(ToString::to_string)
        .unwrap_or_default();
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("<unnamed>");
    let text = redacted_panic(panic.payload());
    let trace = Backtrace::capture();
    let trace = if trace.status() == BacktraceStatus::Captured {
        trace.to_string()
    } else {
        String::new()
    };
    write_line(
        &mut std::io::stderr(),
        &format!("thread '{thread}' panicked at {place}:\n{text}\n{trace}"),
    );
}

/// Writes a line; a closed pipe is no reason to fail.
fn write_line(to: &mut impl Write, text: &str) {
    let _ = writeln!(to, "{}", text.trim_end());
}
