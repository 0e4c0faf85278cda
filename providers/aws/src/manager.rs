//! The cloud-controller-manager for AWS.

use std::{ffi::OsString, process::ExitCode, sync::Arc, time::Duration};

use ccm_core::{
    app,
    config::{Config, Product},
    error::{BoxError, chain},
    provider::CloudProvider,
};

use crate::{
    api::Connection,
    config::{self, Settings},
    provider::{AwsProvider, NAME},
    tagging,
};

/// First delay between attempts to discover the environment while AWS does not answer. It doubles.
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Limit of that delay.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Describes this program to the framework.
pub fn product() -> Product {
    let mut product = Product::new("ccm-aws", concat!("v", env!("CARGO_PKG_VERSION")), &[NAME]);
    product.controllers.push(tagging::info());
    product.extra_flags = tagging::flags();
    product
}

/// Runs the manager with these arguments (without the program's name) until it ends. `connect`
/// creates the connection to AWS from the validated cloud config.
pub async fn run<C, F>(args: impl IntoIterator<Item = OsString>, connect: C) -> ExitCode
where
    C: FnOnce(Settings) -> F,
    F: Future<Output = Result<Connection, BoxError>>,
{
    app::run(product(), args, |config| async move {
        Ok(Arc::new(build(config, connect).await?) as Arc<dyn CloudProvider>)
    })
    .await
}

/// Creates the provider from the flags and the cloud config that they name. Retries while AWS is
/// unavailable.
///
/// # Errors
/// All validation errors of the cloud config and the tagging controller's flags together; no
/// connection; or region, VPC or cluster cannot be found.
pub async fn build<C, F>(config: Config, connect: C) -> Result<AwsProvider, BoxError>
where
    C: FnOnce(Settings) -> F,
    F: Future<Output = Result<Connection, BoxError>>,
{
    let (settings, tagging) = read(&config)?;
    settings.log();
    let Connection { region, transport, metadata } = connect(settings.clone()).await?;
    let settings = Settings { region: Some(region), ..settings };
    let mut pause = FIRST_RETRY_DELAY;
    loop {
        let connected =
            AwsProvider::connect(settings.clone(), transport.clone(), metadata.clone()).await;
        let error = match connected {
            Ok(provider) => return Ok(provider.with_tagging(tagging)),
            Err(error) => error,
        };
        if !error.is_transient() {
            return Err(error.into());
        }
        // An outage must not cause a restart loop. A signal ends the wait.
        tracing::warn!(error = %chain(&error), ?pause, "cannot discover region, VPC and cluster yet; retrying");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_RETRY_DELAY);
    }
}

/// Reads the cloud config, and the tagging controller's flags if it is enabled.
fn read(config: &Config) -> Result<(Settings, Option<tagging::Options>), BoxError> {
    let settings = match &config.generic.cloud_config {
        Some(file) => config::load(file),
        None => Ok(Settings::default()),
    };
    let tagging = if config.generic.controllers.is_enabled(tagging::NAME) {
        tagging::Options::parse(&config.extra).map(Some)
    } else {
        Ok(None)
    };
    // All errors are reported together.
    match (settings, tagging) {
        (Ok(settings), Ok(tagging)) => Ok((settings, tagging)),
        (Err(file), Ok(_)) => Err(file.into()),
        (Ok(_), Err(flags)) => Err(flags.into()),
        (Err(file), Err(flags)) => Err(format!("{}\n{flags}", chain(&file)).into()),
    }
}

#[cfg(test)]
mod tests;
