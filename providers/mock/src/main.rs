//! `ccm-mock`: the mock cloud, and the cloud-controller-manager for it.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    ccm_mock::cli::main(std::env::args_os()).await
}
