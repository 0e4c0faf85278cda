//! The process under test: `ccm-mock` itself, built as a part of these suites so that they can find
//! it.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    ccm_mock::cli::main(std::env::args_os()).await
}
