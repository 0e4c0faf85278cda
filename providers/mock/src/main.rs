//! `ccm-mock`: the mock cloud, and the cloud-controller-manager for it.

use std::process::ExitCode;

use ccm_mock::cli::{COMMANDS, Cli, run};
use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    // The manager has no subcommands and its own rules for flags, so only a known command goes to this parser.
    let command = std::env::args().nth(1).filter(|first| COMMANDS.contains(&first.as_str()));
    let result = match command {
        Some(_) => run(Cli::parse()).await,
        None => Err(anyhow::anyhow!("expected one of the commands: {}", COMMANDS.join(", "))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            use std::io::Write;
            // Nothing can be done about a closed error stream.
            let _ = writeln!(std::io::stderr(), "ccm-mock: {error:#}");
            ExitCode::FAILURE
        }
    }
}
