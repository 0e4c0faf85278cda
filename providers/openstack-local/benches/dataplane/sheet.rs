//! Medians side by side.

use std::{collections::BTreeMap, fmt};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Measure {
    Throughput,
    ConnectionRate,
    ConnectionP99,
    MessageP50,
    MessageP99,
    BusyRate,
    BusyP99,
    IdleMemory,
}

impl Measure {
    fn name(self) -> &'static str {
        match self {
            Self::Throughput => "download, MiB/s",
            Self::ConnectionRate => "connect, ask, close: per second",
            Self::ConnectionP99 | Self::MessageP99 | Self::BusyP99 => "  the same, p99, us",
            Self::MessageP50 => "2,000 messages/s on 100 connections, p50, us",
            Self::BusyRate => "32 connections without pause: messages/s",
            Self::IdleMemory => "memory with idle connections, MiB",
        }
    }
}

/// All figures of all rounds.
#[derive(Debug, Default)]
pub(crate) struct Sheet(BTreeMap<Measure, BTreeMap<&'static str, Vec<f64>>>);

impl Sheet {
    pub(crate) fn add(&mut self, name: &'static str, figures: Vec<(Measure, f64)>) {
        for (measure, figure) in figures {
            self.0.entry(measure).or_default().entry(name).or_default().push(figure);
        }
    }
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

impl fmt::Display for Sheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<48}{:>12}{:>12}{:>8}", "medians", "ours", "nginx", "ratio")?;
        for (measure, figures) in &self.0 {
            let of = |name| figures.get(name).map(|figures| median(figures));
            write!(f, "{:<48}", measure.name())?;
            for figure in [of("ours"), of("nginx")] {
                match figure {
                    Some(figure) => write!(f, "{figure:>12.1}")?,
                    None => write!(f, "{:>12}", "-")?,
                }
            }
            match (of("ours"), of("nginx")) {
                (Some(ours), Some(nginx)) => writeln!(f, "{:>8.2}", ours / nginx)?,
                _ => writeln!(f, "{:>8}", "-")?,
            }
        }
        Ok(())
    }
}
