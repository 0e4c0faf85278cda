//! `ccm-aws`: the cloud-controller-manager for AWS.

use std::process::ExitCode;

use ccm_aws::{api::Connection, config::Settings, manager, sdk};
use ccm_core::error::BoxError;

#[tokio::main]
async fn main() -> ExitCode {
    Box::pin(manager::run(std::env::args_os().skip(1), connect)).await
}

async fn connect(settings: Settings) -> Result<Connection, BoxError> {
    Ok(sdk::connect(&settings).await?)
}
