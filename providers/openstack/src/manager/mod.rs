//! The cloud-controller-manager for OpenStack.

use std::{ffi::OsString, process::ExitCode, sync::Arc, time::Duration};

use ccm_core::{
    app,
    config::{Config, Flag, Product},
    error::{BoxError, chain},
    provider::{CloudProvider, NotBuilt},
};

use crate::{
    client::{Client, Https, Transport},
    config::{self, Cloud, ConfigErrors, Environment, ReloadingCredentials, Settings},
    provider::{NAME, OpenStackFinding, OpenStackProvider, connection_invalid, not_built},
};

/// The flag for components that precede our own name in the header `User-Agent`.
const USER_AGENT: &str = "user-agent";
/// First back-off while the cloud does not answer; doubles up to [`MAX_BACKOFF`].
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum back-off while the cloud does not answer.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Describes this binary to the framework: its name, version, provider and extra flags.
pub fn product() -> Product {
    let mut product =
        Product::new("ccm-openstack", concat!("v", env!("CARGO_PKG_VERSION")), &[NAME]);
    let help = "Extra data to add to the user agent of requests to OpenStack. Use multiple times to add more than one \
                component.";
    product.extra_flags = vec![Flag::provider_list(USER_AGENT, help)];
    product
}

/// Returns the values of `--user-agent`, in the order of the command line.
pub fn user_agents(config: &Config) -> &[String] {
    config
        .extra_lists
        .get(USER_AGENT)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Creates the transport over sockets. `agents` are the values of `--user-agent`.
///
/// # Errors
/// Returns an error if a TLS file cannot be used, or if an agent is not a valid header value.
pub fn connect(cloud: &Cloud, agents: &[String]) -> Result<Arc<dyn Transport>, BoxError> {
    Ok(Arc::new(Https::new(cloud, agents)?))
}

/// Runs the manager until it ends. `args` are the arguments without the program's name. `connect`
/// creates the transport from the checked cloud config and the user agents.
pub async fn run<C>(
    args: impl IntoIterator<Item = OsString>,
    environment: Environment,
    connect: C,
) -> ExitCode
where
    C: FnOnce(&Cloud, &[String]) -> Result<Arc<dyn Transport>, BoxError>,
{
    app::run(product(), args, |config| async move {
        Ok(Arc::new(build(config, environment, connect).await?) as Arc<dyn CloudProvider>)
    })
    .await
}

/// Creates the provider from the flags and the cloud config that they name. Waits while the cloud
/// is unavailable.
///
/// # Errors
/// Returns all errors in the cloud config together, or an error if the credentials are rejected or
/// a needed service is missing.
pub async fn build<C>(
    config: Config,
    environment: Environment,
    connect: C,
) -> Result<OpenStackProvider, BoxError>
where
    C: FnOnce(&Cloud, &[String]) -> Result<Arc<dyn Transport>, BoxError>,
{
    let file = config
        .generic
        .cloud_config
        .clone()
        .ok_or(ConfigErrors::NoFile)?;
    let settings = config::load(Some(&file), &environment).map_err(|error| {
        let finding =
            OpenStackFinding::ConfigInvalid.about(file.display().to_string(), chain(&error));
        NotBuilt::new(finding, error)
    })?;
    settings.log();
    let transport = connect(&settings.cloud, user_agents(&config)).map_err(connection_invalid)?;
    let credentials = Arc::new(ReloadingCredentials::new(file, environment));
    let client = Client::new(&settings, credentials, transport);
    connect_with_retries(settings, client, &config).await
}

/// Connects to the cloud, and retries with a back-off while it is unavailable, unless the flags say
/// not to wait.
async fn connect_with_retries(
    settings: Settings,
    client: Client,
    config: &Config,
) -> Result<OpenStackProvider, BoxError> {
    let cluster: Arc<str> = config.generic.cluster_name.as_str().into();
    let mut backoff = INITIAL_BACKOFF;
    loop {
        let error =
            match OpenStackProvider::connect(settings.clone(), client.clone(), cluster.clone())
                .await
            {
                Ok(provider) => return Ok(provider),
                Err(error) => error,
            };
        if !error.is_transient() || !config.wait_for_cloud {
            return Err(not_built(error, &settings.cloud).into());
        }
        // An outage of the cloud must not cause a restart loop. A signal ends the wait.
        tracing::warn!(error = %chain(&error), ?backoff, "failed to connect to OpenStack, retrying");
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

#[cfg(test)]
mod tests;
