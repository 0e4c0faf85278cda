//! Measures how a cloud-controller-manager initialises many kubelet-shaped nodes that appear together.
//!
//! A real etcd and kube-apiserver run on loopback, the nodes are registered, then the manager under test is started as
//! a process of its own against the mock cloud of this process. The end is seen through a watch of metadata, because
//! listing such nodes would be the server's main load. Figures of one run are noise on a busy machine: medians over
//! several runs are printed.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people at a terminal")]

mod run;
mod table;

use std::{num::NonZeroUsize, path::PathBuf};

use clap::Parser;

/// Measures node initialisation and prints Markdown tables.
#[derive(Debug, Parser)]
struct Arguments {
    /// Binary of the manager under test.
    #[arg(long)]
    manager: PathBuf,
    /// Node counts, one table each.
    #[arg(long, value_delimiter = ',', default_value = "200,1000")]
    nodes: Vec<NonZeroUsize>,
    /// Runs per node count.
    #[arg(long, default_value = "3")]
    runs: NonZeroUsize,
    /// Latency of one call of the cloud, in milliseconds.
    #[arg(long, default_value = "20")]
    latency_ms: u64,
    /// More flags for the manager, for instance to compare settings.
    #[arg(last = true)]
    flags: Vec<String>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    for nodes in &arguments.nodes {
        let mut samples = Vec::new();
        for number in 1..=arguments.runs.get() {
            eprintln!("{nodes} nodes, run {number} of {}", arguments.runs);
            let setting = run::Setting {
                manager: arguments.manager.clone(),
                nodes: nodes.get(),
                latency_ms: arguments.latency_ms,
                flags: arguments.flags.clone(),
            };
            samples.push(run::measure(&setting).await?);
        }
        println!("{}", table::markdown(nodes.get(), arguments.latency_ms, &samples));
    }
    Ok(())
}
