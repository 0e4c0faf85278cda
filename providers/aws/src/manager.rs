//! The cloud-controller-manager for AWS.

use std::{ffi::OsString, process::ExitCode, sync::Arc, time::Duration};

use ccm_core::{
    app::{self, BoxError},
    config::{Config, ControllerInfo, Flag, Product},
    provider::CloudProvider,
};

use crate::{
    api::{Metadata, Transport},
    config::{self, Settings},
    provider::{AwsProvider, NAME},
};

/// Name of the tagging controller (`--controllers`).
pub const TAGGING: &str = "tagging";

/// First and longest pause between attempts to find the own instance while AWS does not answer.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The way to AWS, made from the settings.
#[derive(Clone)]
pub struct Connection {
    /// Region that requests go to.
    pub region: Arc<str>,
    /// Sends requests.
    pub transport: Arc<dyn Transport>,
    /// The instance metadata service.
    pub metadata: Arc<dyn Metadata>,
}

/// Describes this binary to the framework.
pub fn product() -> Product {
    let mut product = Product::new("ccm-aws", concat!("v", env!("CARGO_PKG_VERSION")), &[NAME]);
    product.controllers.push(ControllerInfo {
        name: TAGGING,
        aliases: &["tagging-controller"],
        client_name: "tagging-controller",
        enabled_by_default: false,
    });
    product.extra_flags = vec![
        Flag::provider("tags", "", "Tags that the tagging controller puts on instances, as key=value[,key=value]."),
        Flag::provider("resources", "", "What the tagging controller tags: instance."),
        Flag::provider("tagging-controller-rate-limit", "0", "Nodes tagged per second; 0 for no limit."),
        Flag::provider("tagging-controller-burst-limit", "0", "Nodes tagged at once after a pause; 0 for no limit."),
        Flag::provider("tagging-controller-concurrent-node-syncs", "1", "Nodes tagged at the same time."),
        Flag::provider_switch("tagging-controller-enable-batching", "Tag many instances with one request."),
    ];
    product
}

/// Runs the manager with these arguments (without the program's name) to its end. `connect` makes the way to AWS from the
/// checked cloud config.
pub async fn run<C, F>(args: impl IntoIterator<Item = OsString>, connect: C) -> ExitCode
where
    C: FnOnce(Settings) -> F,
    F: Future<Output = Result<Connection, BoxError>>,
{
    app::run(product(), args, |config| build(config, connect)).await
}

async fn build<C, F>(config: Config, connect: C) -> Result<Arc<dyn CloudProvider>, BoxError>
where
    C: FnOnce(Settings) -> F,
    F: Future<Output = Result<Connection, BoxError>>,
{
    let settings = match &config.generic.cloud_config {
        Some(file) => config::load(file)?,
        None => Settings::default(),
    };
    settings.log();
    let Connection { region, transport, metadata } = connect(settings.clone()).await?;
    let settings = Settings { region: Some((&*region).into()), ..settings };
    let mut pause = PAUSE.0;
    loop {
        let error = match AwsProvider::connect(settings.clone(), transport.clone(), metadata.clone()).await {
            Ok(provider) => return Ok(Arc::new(provider)),
            Err(error) => error,
        };
        if !error.may_pass() {
            return Err(error.into());
        }
        // An outage must not become a restart loop; a signal ends the wait.
        tracing::warn!(error = %chain(&error), ?pause, "AWS does not say which cluster this is; asking again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
