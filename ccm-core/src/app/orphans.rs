//! The subcommand `orphans`: prints the orphans of this cluster (cloud objects with its ownership
//! tags, but no Service or Node), and deletes them on request.

use std::{future::Future, process::ExitCode, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Signals,
    report_flags::{self, TIMEOUT},
    until_signalled, write_line,
};
use crate::{
    config::{Config, Flag, Product},
    controllers::orphans::OrphanReport,
    error::BoxError,
    manager::{Manager, OrphanRequest},
    provider::CloudProvider,
};

/// The name of the subcommand on the command line.
pub(super) const SUBCOMMAND: &str = "orphans";
/// The exit code if orphans remain.
const EXIT_ORPHANS_LEFT: u8 = 2;

const DELETE: &str = "delete";
const CONFIRM: &str = "confirm";

/// Adds the flags of the subcommand to those of the product.
pub(super) fn with_flags(mut product: Product) -> Product {
    product.extra_flags.extend([
        report_flags::output(),
        Flag::provider_switch(
            DELETE,
            "Delete what is as old as --orphan-minimum-age says, and --confirm the cluster; without it nothing is changed.",
        ),
        Flag::provider(
            CONFIRM,
            "",
            "Cluster whose orphans are to be deleted, as the cloud knows it: the report without --delete names it.",
        ),
        report_flags::timeout("5m0s"),
    ]);
    product
}

/// The parsed flags of the subcommand.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OrphansArgs {
    json: bool,
    /// The cluster given by `--confirm`, if orphans are to be deleted.
    delete: Option<String>,
    timeout: Duration,
}

impl OrphansArgs {
    fn read(config: &Config) -> Result<Self, String> {
        let mut errors = Vec::new();
        let json = report_flags::is_json(config).unwrap_or_else(|error| {
            errors.push(error);
            false
        });
        let timeout = report_flags::read_timeout(config).unwrap_or_else(|error| {
            errors.push(error);
            Duration::ZERO
        });
        let delete = report_flags::value(config, DELETE) == "true";
        let confirmed = report_flags::value(config, CONFIRM);
        if delete && confirmed.is_empty() {
            errors.push(format!(
                "--{DELETE} needs --{CONFIRM}, the cluster whose cloud objects are to be deleted; the report without \
                 --{DELETE} names it"
            ));
        }
        if !delete && !confirmed.is_empty() {
            errors.push(format!("--{CONFIRM} means nothing without --{DELETE}"));
        }
        let delete = delete.then(|| confirmed.to_owned());
        if errors.is_empty() {
            Ok(Self { json, delete, timeout })
        } else {
            Err(errors.join("; "))
        }
    }
}

/// Runs the subcommand: lists orphans, deletes them if requested, prints the report, and returns
/// the exit code: 0 if no orphans remain, 2 if some remain, 1 if a deletion failed.
pub(super) async fn run<B, F>(
    product: Product,
    config: Config,
    build: B,
) -> Result<ExitCode, BoxError>
where
    B: FnOnce(Config) -> F,
    F: Future<Output = Result<Arc<dyn CloudProvider>, BoxError>>,
{
    let args = OrphansArgs::read(&config)?;
    let json = args.json;
    let mut signals = Signals::install()?;
    let stop = CancellationToken::new();
    // After a signal, work in flight is finished, so that the report is complete about what was
    // deleted.
    let report =
        until_signalled(scan_once(product, config, build, args, &stop), &stop, &mut signals)
            .await??;
    write_line(
        &mut std::io::stdout(),
        &if json {
            format!("{:#}", report.json())
        } else {
            report.table()
        },
    );
    Ok(if report.failed() > 0 {
        ExitCode::FAILURE
    } else if report.remaining() > 0 {
        ExitCode::from(EXIT_ORPHANS_LEFT)
    } else {
        ExitCode::SUCCESS
    })
}

/// Builds the provider and the manager, and scans for orphans within `--timeout`.
async fn scan_once<B, F>(
    product: Product,
    config: Config,
    build: B,
    args: OrphansArgs,
    stop: &CancellationToken,
) -> Result<OrphanReport, BoxError>
where
    B: FnOnce(Config) -> F,
    F: Future<Output = Result<Arc<dyn CloudProvider>, BoxError>>,
{
    let deadline = Instant::now() + args.timeout;
    let build = tokio::time::timeout_at(deadline, build(config.clone()));
    let provider = match stop.run_until_cancelled(build).await {
        Some(Ok(provider)) => provider?,
        Some(Err(_)) => {
            return Err(format!("the cloud provider could not be built within --{TIMEOUT}").into());
        }
        None => return Err("stopped before the cloud provider was built".into()),
    };
    let request = OrphanRequest {
        delete: args.delete,
        minimum_age: config.orphans.minimum_age,
        limit: deadline,
    };
    let manager = Manager::from_config(product, config, provider).await?;
    Ok(manager.orphans(request, stop.clone()).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Invocation};

    fn read(args: &[&str]) -> Result<OrphansArgs, String> {
        let product = with_flags(Product::new("ccm-test", "v0.0", &["test"]));
        let args = ["--cloud-provider=test", "--cluster-name=blue"]
            .iter()
            .chain(args);
        match config::parse(&product, args).unwrap() {
            Invocation::Run(config) => OrphansArgs::read(&config),
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn nothing_is_deleted_unless_it_is_asked_for() {
        let wish = OrphansArgs { json: false, delete: None, timeout: Duration::from_secs(300) };
        assert_eq!(read(&[]), Ok(wish.clone()));
        assert_eq!(
            read(&["--output=json", "--timeout=1m"]),
            Ok(OrphansArgs { json: true, timeout: Duration::from_secs(60), ..wish.clone() })
        );
        // The name of the cluster is checked later, when the provider exists.
        assert_eq!(
            read(&["--delete", "--confirm=green"]),
            Ok(OrphansArgs { delete: Some("green".to_owned()), ..wish })
        );
    }

    #[test]
    fn deletion_needs_a_cluster_to_be_confirmed() {
        for args in [&["--delete"][..], &["--delete", "--confirm="]] {
            assert!(read(args).unwrap_err().contains("--confirm"), "{args:?}");
        }
        assert!(read(&["--confirm=blue"]).unwrap_err().contains("--delete"));
    }

    #[test]
    fn mistakes_are_told_together() {
        let error = read(&["--output=yaml", "--timeout=0s", "--delete"]).unwrap_err();
        for part in ["--output", "yaml", "--timeout", "--confirm"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
