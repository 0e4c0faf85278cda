//! Figures of one run.

use crate::{
    admin::{self, Calls},
    cluster::{self, Requests},
};

/// A named value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measurement {
    pub(crate) name: String,
    pub(crate) value: f64,
    /// Digits after the point.
    pub(crate) digits: usize,
}

/// All figures of one run, in the order in which they are shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Measurements(pub(crate) Vec<Measurement>);

impl Measurements {
    /// Adds seconds, mebibytes or another amount.
    pub(crate) fn amount(&mut self, name: impl Into<String>, value: f64) {
        self.0
            .push(Measurement { name: name.into(), value, digits: 2 });
    }

    /// Adds a number of things.
    pub(crate) fn count(&mut self, name: impl Into<String>, value: u64) {
        self.0
            .push(Measurement { name: name.into(), value: value as f64, digits: 0 });
    }

    /// Adds the spread of many samples, in seconds.
    pub(crate) fn spread(&mut self, name: &str, mut seconds: Vec<f64>) {
        seconds.sort_by(f64::total_cmp);
        for (label, share) in [("median", 0.5), ("p99", 0.99), ("most", 1.0)] {
            if let Some(value) = percentile(&seconds, share) {
                self.amount(format!("{name}, {label}"), value);
            }
        }
        self.count(format!("{name}, samples"), seconds.len() as u64);
    }

    /// Adds requests to the API server: events apart, then by verb and resource.
    pub(crate) fn requests(&mut self, requests: &Requests) {
        self.count("API writes without events", cluster::writes(requests) as u64);
        self.count("API writes of events", cluster::events(requests) as u64);
        self.count("API requests", requests.values().sum::<usize>() as u64);
        for (name, count) in requests {
            self.count(format!("API requests: {name}"), *count as u64);
        }
    }

    /// Adds calls to the cloud: by kind, then by operation.
    pub(crate) fn calls(&mut self, calls: &Calls) {
        self.count("cloud calls", admin::all(calls));
        self.count("cloud writes", admin::writes(calls));
        self.count("instance calls", admin::instance_calls(calls));
        for (name, count) in calls.iter().filter(|(_, count)| **count > 0) {
            self.count(format!("cloud: {name}"), *count);
        }
    }

    /// Returns the value of a figure.
    pub(crate) fn get(&self, name: &str) -> Option<&Measurement> {
        self.0.iter().find(|figure| figure.name == name)
    }
}

/// The smallest value that so large a share of all does not exceed.
fn percentile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (sorted.len() as f64 * share).ceil().max(1.0);
    // A positive whole number, not above the length.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 1 and the length"
    )]
    sorted.get(rank as usize - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        let of = |share| percentile(&hundred, share);
        assert_eq!((of(0.5), of(0.99), of(1.0)), (Some(50.0), Some(99.0), Some(100.0)));
        assert_eq!(percentile(&[7.0], 0.01), Some(7.0));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn a_spread_needs_samples() {
        let mut figures = Measurements::default();
        figures.spread("gap", vec![3.0, 1.0, 2.0]);
        assert_eq!(figures.get("gap, median").map(|figure| figure.value), Some(2.0));
        assert_eq!(figures.get("gap, most").map(|figure| figure.value), Some(3.0));
        let mut none = Measurements::default();
        none.spread("gap", Vec::new());
        assert_eq!(none.0.len(), 1, "only the number of samples");
    }
}
