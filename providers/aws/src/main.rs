//! `ccm-aws`: the cloud-controller-manager for AWS.

use std::process::ExitCode;

use ccm_aws::{manager, sdk};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1);
    manager::run(arguments, async |settings| Ok(sdk::connect(&settings).await?)).await
}
