//! Measures how a cloud-controller-manager initialises many kubelet-shaped nodes that appear together.
//!
//! A real etcd and kube-apiserver run on loopback, the nodes are registered, then the manager under test is started as
//! a process of its own against the mock cloud of this process. The end is seen through a watch of metadata, because
//! listing such nodes would be the server's main load. Figures of one run are noise on a busy machine: medians over
//! several runs are printed. A second manager, the baseline, is measured in turns with the first, each run on a fresh
//! control plane, so that what the machine does meanwhile meets both.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people at a terminal")]

mod contender;
mod run;
mod table;

use std::{num::NonZeroUsize, path::PathBuf};

use clap::Parser;

use crate::{contender::Contender, run::Setting, table::Series};

/// Measures node initialisation and prints Markdown tables.
#[derive(Debug, Parser)]
struct Arguments {
    /// Binary of the manager under test.
    #[arg(long)]
    manager: PathBuf,
    /// Binary of the Go manager in `tests/bench/go`, to be measured in turns with the manager under test.
    #[arg(long)]
    baseline: Option<PathBuf>,
    /// Node counts, one table each.
    #[arg(long, value_delimiter = ',', default_value = "200,1000")]
    nodes: Vec<NonZeroUsize>,
    /// Runs per node count, of each manager.
    #[arg(long, default_value = "3")]
    runs: NonZeroUsize,
    /// Latency of one call of the cloud, in milliseconds.
    #[arg(long, default_value = "20")]
    latency_ms: u64,
    /// More flags for the manager under test, for instance to compare settings.
    #[arg(last = true)]
    flags: Vec<String>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut contenders = vec![Contender::manager(&arguments.manager, arguments.flags.clone())?];
    if let Some(baseline) = &arguments.baseline {
        contenders.push(Contender::baseline(baseline)?);
    }
    for nodes in &arguments.nodes {
        let setting = Setting { nodes: nodes.get(), latency_ms: arguments.latency_ms };
        let series = measure(&setting, &contenders, arguments.runs).await?;
        println!("{}", table::markdown(&setting, &series));
    }
    Ok(())
}

/// Runs all contenders in turns.
async fn measure(setting: &Setting, contenders: &[Contender], runs: NonZeroUsize) -> anyhow::Result<Vec<Series>> {
    let start = |contender: &Contender| Series { contender: contender.clone(), samples: Vec::new() };
    let mut all: Vec<Series> = contenders.iter().map(start).collect();
    for number in 1..=runs.get() {
        let mut turn: Vec<&mut Series> = all.iter_mut().collect();
        // Nobody is always the one who comes second, on a machine whose caches are warm and whose disk is busy.
        if number % 2 == 0 {
            turn.reverse();
        }
        for series in turn {
            eprintln!("{} nodes, run {number} of {runs}: {}", setting.nodes, series.contender.name);
            series.samples.push(run::measure(setting, &series.contender).await?);
        }
    }
    Ok(all)
}
