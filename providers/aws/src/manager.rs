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
    provider::{AwsProvider, NAME, config_invalid, connection_failed, not_built},
    tagging,
};

/// First delay between attempts to discover the environment while AWS is unavailable. The delay
/// doubles with each attempt.
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay between attempts to discover the environment.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Describes this program to the framework.
pub fn product() -> Product {
    let mut product = Product::new("ccm-aws", concat!("v", env!("CARGO_PKG_VERSION")), &[NAME]);
    product.controllers.push(tagging::info());
    product.extra_flags = tagging::flags();
    product
}

/// Runs the manager with these arguments (without the program's name) until the process stops.
/// `connect` creates the connection to AWS from the validated cloud config.
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

/// Creates the provider from the flags and from the cloud config that they name. Retries while AWS
/// is unavailable.
///
/// # Errors
/// Returns all validation errors of the cloud config and of the tagging controller's flags
/// together. Also returns an error if there is no connection, or if region, VPC or cluster cannot
/// be discovered.
pub async fn build<C, F>(config: Config, connect: C) -> Result<AwsProvider, BoxError>
where
    C: FnOnce(Settings) -> F,
    F: Future<Output = Result<Connection, BoxError>>,
{
    let (settings, tagging) = read_settings(&config).map_err(|error| {
        let file = config
            .generic
            .cloud_config
            .as_deref()
            .map(|file| file.display().to_string());
        config_invalid(&file.unwrap_or_else(|| "the flags".to_owned()), error)
    })?;
    settings.log();
    let connection = connect(settings.clone()).await.map_err(connection_failed)?;
    let Connection { region, transport, metadata } = connection;
    let settings = Settings { region: Some(region), ..settings };
    let mut delay = FIRST_RETRY_DELAY;
    loop {
        let connected =
            AwsProvider::connect(settings.clone(), transport.clone(), metadata.clone()).await;
        let error = match connected {
            Ok(provider) => return Ok(provider.with_tagging(tagging)),
            Err(error) => error,
        };
        if !error.is_transient() || !config.wait_for_cloud {
            return Err(not_built(error).into());
        }
        // Retry here, so that an outage does not cause a restart loop. A signal ends the wait.
        tracing::warn!(error = %chain(&error), ?delay, "failed to discover region, VPC and cluster; retrying");
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(MAX_RETRY_DELAY);
    }
}

/// Reads the cloud config, and the tagging controller's flags if it is enabled.
fn read_settings(config: &Config) -> Result<(Settings, Option<tagging::Options>), BoxError> {
    let settings = match &config.generic.cloud_config {
        Some(file) => config::load(file),
        None => Ok(Settings::default()),
    };
    let tagging = if config.generic.controllers.is_enabled(tagging::NAME) {
        tagging::Options::parse(&config.extra).map(Some)
    } else {
        Ok(None)
    };
    // Report the errors of both sources together.
    match (settings, tagging) {
        (Ok(settings), Ok(tagging)) => Ok((settings, tagging)),
        (Err(file), Ok(_)) => Err(file.into()),
        (Ok(_), Err(flags)) => Err(flags.into()),
        (Err(file), Err(flags)) => Err(format!("{}\n{flags}", chain(&file)).into()),
    }
}

#[cfg(test)]
mod tests;
