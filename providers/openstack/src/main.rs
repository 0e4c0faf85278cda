//! `ccm-openstack`: the cloud-controller-manager for OpenStack.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    ccm_openstack::cli::main(std::env::args_os()).await
}
