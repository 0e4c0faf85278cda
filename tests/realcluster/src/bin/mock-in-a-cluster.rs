//! The mock's manager, for an image that needs no release build.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    ccm_mock::cli::main(std::env::args_os()).await
}
