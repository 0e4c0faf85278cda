//! Figures side by side.

use std::{collections::BTreeMap, fmt, num::NonZeroUsize};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Measure {
    Throughput,
    DownloadCpu,
    ConnectionRate,
    ConnectionP99,
    ConnectionCpu,
    MessageP50,
    MessageP99,
    MessageCpu,
    BusyRate,
    BusyP99,
    BusyCpu,
    IdleMemory,
}

impl Measure {
    fn name(self) -> &'static str {
        match self {
            Self::Throughput => "8 downloads, MiB/s",
            Self::DownloadCpu => "its computing time, us/MiB",
            Self::ConnectionRate => "16 clients connect, ask, close: per second",
            Self::ConnectionP99 => "all of that, p99, us",
            Self::ConnectionCpu => "its computing time for each, us",
            Self::MessageP50 => "2,000 messages/s on 100 connections: p50, us",
            Self::MessageP99 => "the same, p99, us",
            Self::MessageCpu | Self::BusyCpu => "its computing time per message, us",
            Self::BusyRate => "32 connections without pause: messages/s",
            Self::BusyP99 => "p99 of their messages, us",
            Self::IdleMemory => "memory with idle connections, MiB",
        }
    }

    /// What the ratio should be.
    fn goal(self) -> &'static str {
        match self {
            Self::Throughput | Self::ConnectionRate => ">= 0.80",
            Self::MessageP99 => "<= 1.25",
            _ => "",
        }
    }
}

/// All figures of all rounds.
#[derive(Debug)]
pub(crate) struct Results {
    workers: NonZeroUsize,
    idle: usize,
    figures: BTreeMap<Measure, BTreeMap<&'static str, Vec<f64>>>,
}

impl Results {
    pub(crate) fn new(workers: NonZeroUsize, idle: usize) -> Self {
        Self { workers, idle, figures: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, name: &'static str, figures: Vec<(Measure, f64)>) {
        for (measure, figure) in figures {
            self.figures
                .entry(measure)
                .or_default()
                .entry(name)
                .or_default()
                .push(figure);
        }
    }
}

/// Median, smallest and largest.
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Self { median, least, most })
    }

    fn show(spread: Option<&Self>, digits: usize) -> String {
        let show = |Self { median, least, most }: &Self| {
            format!("{median:.digits$} ({least:.digits$}-{most:.digits$})")
        };
        spread.map_or_else(|| "-".to_owned(), show)
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} workers each, {} idle connections; median (least-most)\n",
            self.workers, self.idle
        )?;
        writeln!(f, "| measure | ours | nginx | ratio | goal |\n|---|---|---|---|---|")?;
        for (measure, figures) in &self.figures {
            let of = |name| figures.get(name).into_iter().flatten().copied();
            let (ours, nginx) = (Spread::of(of("ours")), Spread::of(of("nginx")));
            let digits = usize::from(ours.as_ref().is_none_or(|ours| ours.median < 100.0));
            // Of each round's pair.
            let ratio = Spread::of(
                of("ours")
                    .zip(of("nginx"))
                    .map(|(ours, nginx)| ours / nginx),
            );
            let (ours, nginx) =
                (Spread::show(ours.as_ref(), digits), Spread::show(nginx.as_ref(), digits));
            let ratio = Spread::show(ratio.as_ref(), 2);
            writeln!(
                f,
                "| {} | {ours} | {nginx} | {ratio} | {} |",
                measure.name(),
                measure.goal()
            )?;
        }
        Ok(())
    }
}
