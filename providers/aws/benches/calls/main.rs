//! Counts the requests to AWS that a cloud-controller-manager makes: ours as built here, and
//! upstream's beside it. Each run has a kube-apiserver and a moto of its own; the overlay in front
//! of moto counts. `cargo xtask bench --aws` starts it.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

mod cluster;

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Context as _;
use ccm_testkit::{control_plane::ControlPlane, moto};
use clap::Parser;

use crate::cluster::{BenchCluster, Programs, Who};

/// Its name, for who names those that are to run.
const NAME: &str = "calls";
/// What `cargo bench` adds, and `cargo test`, which runs benches too when it is asked for all
/// targets, does not.
const BENCH: &str = "--bench";

#[derive(Parser)]
struct Arguments {
    /// Part of a benchmark's name: nothing is measured when this one's does not have it
    name: Option<String>,
    /// Nodes of the cluster
    #[arg(long, default_value_t = 100)]
    nodes: usize,
    /// Services of type LoadBalancer, with one port each
    #[arg(long, default_value_t = 30)]
    services: usize,
    /// Runs of each manager
    #[arg(long, default_value_t = 1)]
    runs: usize,
    /// Upstream's program, which takes turns with ours
    #[arg(long)]
    upstream: Option<PathBuf>,
    /// Says that this is to be measured, and not tested
    #[arg(long, hide = true)]
    bench: bool,
}

/// How often each action was requested.
pub(crate) type Counts = BTreeMap<String, usize>;

fn main() -> anyhow::Result<()> {
    // Nothing is shown by a test here, whatever the arguments of tests are.
    if std::env::args_os().all(|argument| argument != BENCH) {
        return Ok(());
    }
    let arguments = Arguments::parse();
    if arguments
        .name
        .as_ref()
        .is_some_and(|part| !NAME.contains(part.as_str()))
    {
        return Ok(());
    }
    let programs = Programs {
        upstream: arguments.upstream.clone(),
        control_plane: ControlPlane::available().context("find the control plane")?,
        moto: moto::find().map_err(anyhow::Error::msg)?,
    };
    let runtime = tokio::runtime::Runtime::new()?;
    for run in 1..=arguments.runs {
        for who in [Some(Who::Ours), arguments.upstream.as_ref().map(|_| Who::Upstream)]
            .into_iter()
            .flatten()
        {
            println!(
                "\nrun {run}, {who:?}, {} nodes, {} services",
                arguments.nodes, arguments.services
            );
            runtime.block_on(measure(&programs, who, &arguments))?;
        }
    }
    Ok(())
}

fn tell(what: &str, counts: &Counts) {
    let each: Vec<_> = counts
        .iter()
        .map(|(action, count)| format!("{action} {count}"))
        .collect();
    println!("{what:32} {:5}  {}", counts.values().sum::<usize>(), each.join(", "));
}

async fn measure(programs: &Programs, who: Who, sizes: &Arguments) -> anyhow::Result<()> {
    let mut stage = BenchCluster::new(programs, who).await?;
    for _ in 0..sizes.nodes {
        stage.join().await?;
    }
    stage.moto.overlay().reset();
    let ccm = stage.start().await?;
    stage.until_initialized().await?;
    tell("start, and initialise the nodes", &stage.count().await);
    for what in ["create the first service", "create a service"] {
        stage.serve().await?;
        stage.until_served().await?;
        tell(what, &stage.count().await);
    }
    while stage.services < sizes.services {
        stage.serve().await?;
    }
    stage.until_served().await?;
    tell("create the other services", &stage.count().await);
    tell("nothing happens for a minute", &stage.count_minute().await);
    stage.join().await?;
    stage.until_initialized().await?;
    tell("add a node", &stage.count().await);
    stage.exclude_a_node().await?;
    tell("take a node out", &stage.count().await);
    stage.delete_a_service().await?;
    tell("delete a service", &stage.count().await);
    println!("{:32} {:5.1}", "resident memory, MiB", cluster::resident(&ccm)?);
    stage.end(ccm).await?;
    stage.moto.overlay().reset();
    let ccm = stage.start().await?;
    tell("restart", &stage.count().await);
    stage.end(ccm).await
}
