//! The subcommand `check`: finds out whether the manager could work, changes nothing, and prints a
//! report.

use std::{future::Future, process::ExitCode, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Signals,
    report_flags::{self, TIMEOUT},
    until_signalled, write_line,
};
use crate::{
    check::{self, Area, CheckReport, ClusterFinding, Finding, Severity},
    config::{Config, Product, ShadowConfig},
    error::{BoxError, caught, chain},
    manager::Manager,
    provider::CloudProvider,
};

/// The name of the subcommand on the command line.
pub(super) const SUBCOMMAND: &str = "check";
/// The exit code if there are warnings and no errors.
const EXIT_WARNINGS: u8 = 2;

/// Adds the flags of the subcommand to those of the product.
pub(super) fn with_flags(mut product: Product) -> Product {
    let flags = [report_flags::output(), report_flags::timeout("2m0s")];
    product.extra_flags.extend(flags);
    product
}

/// The parsed flags of the subcommand.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CheckArgs {
    json: bool,
    timeout: Duration,
}

impl CheckArgs {
    fn read(config: &Config) -> Result<Self, String> {
        Ok(Self {
            json: report_flags::is_json(config)?,
            timeout: report_flags::read_timeout(config)?,
        })
    }
}

/// Runs the subcommand and returns the exit code: 0 if all is well, 2 after warnings, 1 after
/// errors.
pub(super) async fn run<B, F>(
    product: Product,
    mut config: Config,
    build: B,
) -> Result<ExitCode, BoxError>
where
    B: FnOnce(Config) -> F,
    F: Future<Output = Result<Arc<dyn CloudProvider>, BoxError>>,
{
    let args = CheckArgs::read(&config)?;
    // The clients of shadow mode reject reviews, which are POST requests.
    config.shadow = ShadowConfig::default();
    // A cloud that does not answer is a finding, with the reason.
    config.wait_for_cloud = false;
    let mut signals = Signals::install()?;
    let stop = CancellationToken::new();
    let checks = check_once(product, config, build, args.timeout, &stop);
    let report = until_signalled(checks, &stop, &mut signals).await??;
    let text = if args.json {
        format!("{:#}", report.json())
    } else {
        report.table()
    };
    write_line(&mut std::io::stdout(), &text);
    Ok(match report.worst() {
        Severity::Ok => ExitCode::SUCCESS,
        Severity::Warning => ExitCode::from(EXIT_WARNINGS),
        Severity::Error => ExitCode::FAILURE,
    })
}

/// Builds the provider and the manager, and runs the checks within `timeout`. A provider that
/// cannot be built is a finding, too. It may take three quarters of the time, so that a slow cloud is
/// not mistaken for a slow API server. With the default of the flag that is longer than a provider
/// waits for one answer, so that its own error is reported.
async fn check_once<B, F>(
    product: Product,
    config: Config,
    build: B,
    timeout: Duration,
    stop: &CancellationToken,
) -> Result<CheckReport, BoxError>
where
    B: FnOnce(Config) -> F,
    F: Future<Output = Result<Arc<dyn CloudProvider>, BoxError>>,
{
    let limit = Instant::now() + timeout;
    let own_config = config.clone();
    let build = caught(async { build(own_config).await });
    let build = tokio::time::timeout(timeout * 3 / 4, build);
    let provider = match stop.run_until_cancelled(build).await {
        Some(Ok(Ok(Ok(provider)))) => provider,
        Some(Ok(Ok(Err(error)))) => return Ok(only(check::not_built(&error))),
        Some(Ok(Err(panic))) => {
            return Ok(only(check::panicked("the creation of the cloud provider", &panic)));
        }
        Some(Err(_)) => {
            let message = format!("the cloud did not answer within three quarters of --{TIMEOUT}");
            return Ok(only(ClusterFinding::CloudTooSlow.about("cloud", message)));
        }
        None => return Err("stopped before the cloud provider was built".into()),
    };
    let built = Finding::ok(Area::Cloud, format!("provider {} is configured", provider.name()));
    let manager = match Manager::from_config(product, config, provider).await {
        Ok(manager) => manager,
        Err(error) => {
            let unusable = ClusterFinding::KubeconfigUnusable.about("kubeconfig", chain(&error));
            return Ok(CheckReport { findings: vec![built, unusable] });
        }
    };
    let mut report = manager.check(limit, stop.clone()).await?;
    report.findings.insert(0, built);
    Ok(report)
}

fn only(finding: Finding) -> CheckReport {
    CheckReport { findings: vec![finding] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Invocation};

    fn read(args: &[&str]) -> Result<CheckArgs, String> {
        let product = with_flags(Product::new("ccm-test", "v0.0", &["test"]));
        let args = ["--cloud-provider=test"].iter().chain(args);
        match config::parse(&product, args).unwrap() {
            Invocation::Run(config) => CheckArgs::read(&config),
            other => unreachable!("{other:?}"),
        }
    }

    /// Checks with the flags, and with a provider that is built so.
    async fn check_with<F>(args: &[&str], build: impl FnOnce(Config) -> F) -> Finding
    where
        F: Future<Output = Result<Arc<dyn CloudProvider>, BoxError>>,
    {
        let product = with_flags(Product::new("ccm-test", "v0.0", &["test"]));
        let all_args = ["--cloud-provider=test"].iter().chain(args);
        let Ok(Invocation::Run(config)) = config::parse(&product, all_args) else {
            unreachable!("the flags are valid")
        };
        let timeout = read(args).unwrap().timeout;
        let stop = CancellationToken::new();
        let check = check_once(product, *config, build, timeout, &stop);
        let mut report = Box::pin(check).await.unwrap();
        assert_eq!(report.findings.len(), 1, "{}", report.table());
        report.findings.remove(0)
    }

    async fn fail_after(seconds: u64) -> Result<Arc<dyn CloudProvider>, BoxError> {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Err("no answer from the identity service".into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_is_built_slowly_takes_three_quarters_of_the_time() {
        let finding = check_with(&["--timeout=10s"], |_| fail_after(8)).await;
        assert_eq!(finding.name, "CloudTooSlow");
        // OpenStack waits 60 s for an answer.
        let finding = check_with(&[], |_| fail_after(61)).await;
        assert_eq!(finding.name, "CloudConfigRejected");
        assert!(finding.message.contains("identity service"), "{finding:?}");
    }

    #[tokio::test]
    async fn a_panic_while_the_provider_is_built_is_a_finding() {
        let panics = |_| -> std::future::Ready<_> { panic!("index out of bounds") };
        let finding = check_with(&[], panics).await;
        assert_eq!(finding.name, "CheckPanicked");
        assert!(finding.message.contains("index out of bounds"), "{finding:?}");
    }

    #[test]
    fn arguments_are_checked() {
        let timeout = Duration::from_secs(120);
        assert_eq!(read(&[]), Ok(CheckArgs { json: false, timeout }));
        assert_eq!(read(&["--output=json"]), Ok(CheckArgs { json: true, timeout }));
        assert!(read(&["--output=yaml"]).unwrap_err().contains("--output"));
        for invalid in ["0s", "soon"] {
            let error = read(&[&format!("--timeout={invalid}")]).unwrap_err();
            assert!(error.contains("--timeout"), "{error}");
        }
    }
}
