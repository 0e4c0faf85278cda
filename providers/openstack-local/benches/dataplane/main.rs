//! The data plane side by side with nginx's stream module: `cargo bench -p openstack-local --bench
//! dataplane`.
//!
//! Balancers and the server behind them are processes of their own, the clients are this one.
//! Rounds alternate between the two balancers, the first of a round takes turns, and what is
//! compared are pairs: the machine's noise hits both. On a busy machine the rows of computing time
//! say the most. Without an `nginx` that has its stream module, only our own figures are shown.

#![allow(clippy::print_stdout, reason = "its output is its purpose")]

mod load;
mod process;
mod results;
mod server;

use std::{net::SocketAddr, num::NonZeroUsize, thread::available_parallelism, time::Duration};

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use self::{
    load::LoadGenerator,
    process::Balancer,
    results::{Measure, Results},
};

#[derive(Debug, Parser)]
struct Args {
    /// Rounds, of which each measures everything once with each balancer.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds for each figure.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Idle connections for the measure of memory.
    #[arg(long, default_value_t = 8_000)]
    idle: usize,
    /// Threads of ours, and processes of nginx's; as many as the machine runs at a time unless
    /// given.
    #[arg(long)]
    workers: Option<NonZeroUsize>,
    /// Leaves nginx out.
    #[arg(long)]
    alone: bool,
    /// Given by `cargo bench`; without it nothing is measured.
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

/// What a process of this program is, if not the clients.
#[derive(Debug, Subcommand)]
enum Role {
    /// The server behind the balancers.
    Server {
        /// Where it listens.
        listen: SocketAddr,
    },
    /// Our data plane.
    Balancer {
        /// Where it listens.
        listen: SocketAddr,
        /// The server behind it.
        member: SocketAddr,
        /// Threads.
        workers: NonZeroUsize,
    },
}

fn main() -> anyhow::Result<()> {
    // Whoever runs all targets with the name of a test has nothing measured.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let args = Args::parse();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(async {
            match args.role {
                Some(Role::Server { listen }) => server::serve(listen).await,
                Some(Role::Balancer { listen, member, workers }) => {
                    server::balance(listen, member, workers).await
                }
                None => compare(args).await,
            }
        })
}

async fn compare(args: Args) -> anyhow::Result<()> {
    let server = process::server().await?;
    let nginx = !args.alone && process::has_nginx();
    if !nginx {
        println!("no nginx with its stream module: only our own figures");
    }
    let workers = args.workers.map_or_else(available_parallelism, Ok)?;
    let load = LoadGenerator { time: Duration::from_secs_f64(args.seconds), idle: args.idle };
    let mut sheet = Results::new(workers, args.idle);
    for round in 0..args.rounds {
        let mut names = if nginx {
            vec!["ours", "nginx"]
        } else {
            vec!["ours"]
        };
        if round % 2 == 1 {
            names.reverse();
        }
        for name in names {
            // A new one each time, so that memory is that of this round.
            let balancer = Balancer::start(name, server.address, workers).await?;
            let figures = measure(&load, &balancer)
                .await
                .with_context(|| format!("measure {name}"))?;
            sheet.add(name, figures);
        }
        println!("round {} of {}", round + 1, args.rounds);
    }
    println!("{sheet}");
    Ok(())
}

async fn measure(load: &LoadGenerator, balancer: &Balancer) -> anyhow::Result<Vec<(Measure, f64)>> {
    let address = balancer.address;
    let mut figures = Vec::new();
    let begin = balancer.cpu()?;
    let downloaded = load.download(address).await?;
    figures.push((Measure::Throughput, downloaded.rate));
    figures.push((Measure::DownloadCpu, (balancer.cpu()? - begin) / downloaded.all));
    let begin = balancer.cpu()?;
    let connections = load.connections(address).await?;
    figures.push((Measure::ConnectionRate, connections.rate));
    figures.push((Measure::ConnectionP99, connections.p99));
    figures.push((Measure::ConnectionCpu, (balancer.cpu()? - begin) / connections.count));
    let begin = balancer.cpu()?;
    let paced = load.paced(address).await?;
    figures.push((Measure::MessageP50, paced.p50));
    figures.push((Measure::MessageP99, paced.p99));
    figures.push((Measure::MessageCpu, (balancer.cpu()? - begin) / paced.count));
    let begin = balancer.cpu()?;
    let busy = load.busy(address).await?;
    figures.push((Measure::BusyRate, busy.rate));
    figures.push((Measure::BusyP99, busy.p99));
    figures.push((Measure::BusyCpu, (balancer.cpu()? - begin) / busy.count));
    let idle = load.hold(address).await?;
    figures.push((Measure::IdleMemory, balancer.memory()?));
    drop(idle);
    Ok(figures)
}
