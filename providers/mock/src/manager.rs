//! The cloud-controller-manager of the mock cloud.

use std::{ffi::OsString, io, process::ExitCode, sync::Arc};

use ccm_core::{
    app,
    config::{Config, Product},
    error::BoxError,
    provider::CloudProvider,
};
use futures::{FutureExt, future::BoxFuture};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::{CloudConfig, MockProvider, bind_admin, serve_admin};

/// Name of the provider (`--cloud-provider`).
pub const PROVIDER: &str = "mock";

/// Describes this binary to the framework.
pub fn product() -> Product {
    Product::new("ccm-mock", concat!("v", env!("CARGO_PKG_VERSION")), &[PROVIDER])
}

/// Runs the manager with these arguments (without the program's name) until the process stops.
///
/// If `adminAddress` is set, the admin API is served from the start, even before leadership. If it
/// fails, the process ends.
pub async fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let stop = CancellationToken::new();
    let (sender, receiver) = oneshot::channel();
    let manager = app::run(product(), args, |config| build(config, sender, stop.clone()));
    let admin = async {
        match receiver.await {
            Ok(server) => server.await,
            // Without an admin API, wait for the manager to end.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::pin!(admin);
    let code = tokio::select! {
        code = Box::pin(manager) => code,
        ended = &mut admin => {
            tracing::error!(error = ?ended.err(), "admin API ended");
            return ExitCode::FAILURE;
        }
    };
    stop.cancel();
    code
}

type Server = BoxFuture<'static, io::Result<()>>;

async fn build(
    config: Config,
    server: oneshot::Sender<Server>,
    stop: CancellationToken,
) -> Result<Arc<dyn CloudProvider>, BoxError> {
    let cloud_config = match &config.generic.cloud_config {
        Some(file) => CloudConfig::from_file(file)?,
        None => CloudConfig::default(),
    };
    let provider = MockProvider::new(&cloud_config).await?;
    if let (Some(address), Some(cloud)) = (&cloud_config.admin_address, provider.cloud()) {
        let listener = bind_admin(address)
            .await
            .map_err(|error| format!("cannot listen at adminAddress {address}: {error}"))?;
        // If there is no receiver, the process is already ending.
        let _ = server.send(serve_admin(cloud.clone(), listener, stop).boxed());
    }
    Ok(Arc::new(provider))
}
