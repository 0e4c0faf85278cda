//! `openstack-local`: a cloud that speaks OpenStack's REST APIs on loopback.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    openstack_local::cli::main(std::env::args_os()).await
}
