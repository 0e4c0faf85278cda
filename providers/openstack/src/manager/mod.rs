//! The cloud-controller-manager for OpenStack.

use std::{ffi::OsString, process::ExitCode, sync::Arc, time::Duration};

use ccm_core::{
    app,
    config::{Config, Flag, Product},
    error::{BoxError, chain},
    provider::CloudProvider,
};

use crate::{
    client::{Client, Https, Transport},
    config::{self, Cloud, ConfigErrors, Environment, ReloadingCredentials, Settings},
    provider::{NAME, OpenStackProvider},
};

/// The flag for components that precede our own name in the header `User-Agent`.
const USER_AGENT: &str = "user-agent";
/// First and longest delay between attempts while the cloud does not answer.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Describes this binary for the framework.
pub fn product() -> Product {
    let mut product =
        Product::new("ccm-openstack", concat!("v", env!("CARGO_PKG_VERSION")), &[NAME]);
    let help = "Extra data to add to the user agent of requests to OpenStack. Use multiple times to add more than one \
                component.";
    product.extra_flags = vec![Flag::provider_list(USER_AGENT, help)];
    product
}

/// Returns the values of `--user-agent`, in order.
pub fn user_agents(config: &Config) -> &[String] {
    config
        .extra_lists
        .get(USER_AGENT)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Creates the transport over sockets.
///
/// # Errors
/// TLS files that cannot be used, or agents that cannot be sent.
pub fn connect(cloud: &Cloud, agents: &[String]) -> Result<Arc<dyn Transport>, BoxError> {
    Ok(Arc::new(Https::new(cloud, agents)?))
}

/// Runs the manager with these arguments (without the program's name) to its end. `connect` creates
/// the transport from the checked cloud config and the user agents.
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
/// is down.
///
/// # Errors
/// Errors in the cloud config, all together; rejected credentials; a service that is needed and
/// missing.
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
    let settings = config::load(Some(&file), &environment)?;
    settings.log();
    let cluster: Arc<str> = config.generic.cluster_name.as_str().into();
    let transport = connect(&settings.cloud, user_agents(&config))?;
    let credentials = Arc::new(ReloadingCredentials::new(file, environment));
    let client = Client::new(&settings, credentials, transport);
    provider(settings, client, cluster).await
}

async fn provider(
    settings: Settings,
    client: Client,
    cluster: Arc<str>,
) -> Result<OpenStackProvider, BoxError> {
    let mut pause = PAUSE.0;
    loop {
        let error =
            match OpenStackProvider::connect(settings.clone(), client.clone(), cluster.clone())
                .await
            {
                Ok(provider) => return Ok(provider),
                Err(error) => error,
            };
        if !error.is_transient() {
            return Err(error.into());
        }
        // An outage must not cause a restart loop; a signal ends the wait.
        tracing::warn!(error = %chain(&error), ?pause, "OpenStack does not answer as it should; asking again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

#[cfg(test)]
mod tests;
