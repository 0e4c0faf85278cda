//! Measures cloud-controller-managers: what they need to bring a cluster up, what they cost when
//! nothing changes, and how soon they react.
//!
//! A real etcd and kube-apiserver run on loopback, kubelet-shaped nodes and services are made, then
//! the manager under test is started as a process of its own. What it has done is seen through
//! narrow watches, because listing such nodes would be the server's main load. Figures of one run
//! are noise on a busy machine: several managers are measured in turns, each run on a fresh control
//! plane, and medians and ratios are printed.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people at a terminal"
)]

mod admin;
mod cloud;
mod cluster;
mod convergence;
mod manager;
mod measure;
mod metrics;
mod run;
mod scenario;
mod subject;
mod table;
mod watch;

use std::{num::NonZeroUsize, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Parser;

use crate::{
    measure::Measure,
    scenario::{CloudProfile, Outage, Scenario, Size},
    subject::{BenchmarkedManager, CloudLocation, ManagerKind},
    table::Series,
};

/// Measures cloud-controller-managers and prints Markdown tables.
#[derive(Debug, Parser)]
struct Arguments {
    /// What is measured.
    #[arg(default_value = "converge")]
    measure: Measure,
    /// Binary of the manager of this repository.
    #[arg(long)]
    manager: PathBuf,
    /// Binary of the Go manager in `tests/control-plane/kubernetes/ccm`, to be measured too.
    #[arg(long)]
    baseline: Option<PathBuf>,
    /// Who is measured. Default: ours, and with `--baseline` the tuned Go manager.
    #[arg(long, value_delimiter = ',')]
    contenders: Vec<ManagerKind>,
    /// Sizes as `nodes/services`, one table each. The default depends on the measure.
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<Size>,
    /// Runs per size, of each manager. The default depends on the measure.
    #[arg(long)]
    runs: Option<NonZeroUsize>,
    /// What the cloud is like.
    #[arg(long, default_value = "steady")]
    setting: CloudProfile,
    /// Where the cloud of our manager runs; a restart always has it outside.
    #[arg(long, default_value = "inside")]
    cloud: CloudLocation,
    /// Seconds for which every call of the cloud fails; for `converge`.
    #[arg(long)]
    outage: Option<u64>,
    /// Seconds from the start of the manager to that outage.
    #[arg(long, default_value = "10")]
    outage_after: u64,
    /// Value of `--controllers` for all managers; what they do not run is not waited for.
    #[arg(long, default_value = "*")]
    controllers: String,
    /// Folder for profiles of our manager's processes, taken by `perf`, which must be installed.
    /// Figures of such runs count for nothing.
    #[arg(long)]
    profiles: Option<PathBuf>,
    /// More flags for our manager, for instance to compare settings.
    #[arg(last = true)]
    flags: Vec<String>,
}

impl Arguments {
    fn contenders(&self) -> anyhow::Result<Vec<BenchmarkedManager>> {
        let default: &[ManagerKind] = if self.baseline.is_some() {
            &[ManagerKind::Ours, ManagerKind::GoTuned]
        } else {
            &[ManagerKind::Ours]
        };
        let kinds = if self.contenders.is_empty() {
            default
        } else {
            &self.contenders
        };
        // One cloud has to outlive its manager, or to serve two.
        let outside = matches!(self.measure, Measure::Restart | Measure::Failover);
        let place = if outside {
            CloudLocation::Outside
        } else {
            self.cloud
        };
        let make = |kind: &ManagerKind| match kind {
            ManagerKind::Ours | ManagerKind::OursDefault => {
                let ours = BenchmarkedManager::ours(*kind, &self.manager, place, &self.flags);
                Ok(BenchmarkedManager { profiles: self.profiles.clone(), ..ours })
            }
            ManagerKind::GoTuned | ManagerKind::GoDefault => {
                let baseline = self
                    .baseline
                    .as_ref()
                    .context("the Go manager needs `--baseline`")?;
                BenchmarkedManager::go(*kind, baseline)
            }
        };
        kinds.iter().map(make).collect()
    }

    fn scenarios(&self) -> Vec<Scenario> {
        let sizes = if self.sizes.is_empty() {
            self.measure.default_sizes()
        } else {
            self.sizes.clone()
        };
        let scenario = |size| Scenario {
            size,
            setting: self.setting,
            controllers: self.controllers.clone(),
        };
        sizes.into_iter().map(scenario).collect()
    }

    fn outage(&self) -> Option<Outage> {
        let length = Duration::from_secs(self.outage?);
        Some(Outage { after: Duration::from_secs(self.outage_after), length })
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures what is asked for.
async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let contenders = arguments.contenders()?;
    let outage = arguments.outage();
    let runs = arguments
        .runs
        .map_or(arguments.measure.default_runs(), NonZeroUsize::get);
    for scenario in arguments.scenarios() {
        let series = measure(arguments.measure, &scenario, &contenders, outage, runs).await?;
        println!("{}", table::markdown(arguments.measure, &scenario, outage, &series));
    }
    Ok(())
}

/// Runs all contenders in turns.
async fn measure(
    measure: Measure,
    scenario: &Scenario,
    contenders: &[BenchmarkedManager],
    outage: Option<Outage>,
    runs: usize,
) -> anyhow::Result<Vec<Series>> {
    let start =
        |contender: &BenchmarkedManager| Series { contender: contender.clone(), runs: Vec::new() };
    let mut all: Vec<Series> = contenders.iter().map(start).collect();
    for number in 1..=runs {
        let mut turn: Vec<&mut Series> = all.iter_mut().collect();
        // Nobody is always the one who comes last, on a machine whose caches are warm and whose
        // disk is busy.
        if number % 2 == 0 {
            turn.reverse();
        }
        for series in turn {
            let name = series.contender.name();
            eprintln!("{measure:?}, {}, run {number} of {runs}: {name}", scenario.size);
            // Boxed, since a run holds a whole control plane.
            let figures = Box::pin(measure.run(scenario, &series.contender, outage)).await;
            series
                .runs
                .push(figures.with_context(|| format!("measure {name}"))?);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Arguments {
        Arguments::try_parse_from(["bench", "--manager", "ccm-mock"].iter().chain(arguments))
            .unwrap()
    }

    #[test]
    fn the_baseline_makes_a_second_contender() {
        let kinds = |arguments: &[&str]| -> Vec<ManagerKind> {
            parse(arguments)
                .contenders()
                .unwrap()
                .into_iter()
                .map(|contender| contender.kind)
                .collect()
        };
        assert_eq!(kinds(&[]), [ManagerKind::Ours]);
        assert_eq!(kinds(&["--baseline", "go"]), [ManagerKind::Ours, ManagerKind::GoTuned]);
        let all = ["--baseline", "go", "--contenders", "go-default,ours"];
        assert_eq!(kinds(&all), [ManagerKind::GoDefault, ManagerKind::Ours]);
        assert!(
            parse(&["--contenders", "go-tuned"]).contenders().is_err(),
            "there is no Go manager"
        );
    }

    #[test]
    fn a_restart_keeps_its_cloud() {
        let place = |arguments: &[&str]| parse(arguments).contenders().unwrap().remove(0).place;
        assert_eq!(place(&["restart", "--cloud", "inside"]), CloudLocation::Outside);
        assert_eq!(place(&["idle"]), CloudLocation::Inside);
        assert_eq!(place(&["idle", "--cloud", "outside"]), CloudLocation::Outside);
    }

    #[test]
    fn sizes_and_outages_are_read() {
        let sizes = |arguments: &[&str]| -> Vec<Size> {
            parse(arguments)
                .scenarios()
                .iter()
                .map(|scenario| scenario.size)
                .collect()
        };
        assert_eq!(
            sizes(&["--sizes", "10/2,5"]),
            [Size { nodes: 10, services: 2 }, Size { nodes: 5, services: 0 }]
        );
        assert_eq!(sizes(&["memory"]), [Size { nodes: 20_000, services: 0 }]);
        assert_eq!(parse(&[]).outage(), None);
        let outage = parse(&["--outage", "300"]).outage().unwrap();
        assert_eq!((outage.after.as_secs(), outage.length.as_secs()), (10, 300));
    }
}
