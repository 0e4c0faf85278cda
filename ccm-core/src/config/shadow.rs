//! Configuration of shadow mode.

use std::time::Duration;

/// Shadow mode: comparing without changing anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShadowConfig {
    /// `--shadow`. Use [`is_on`](Self::is_on) to learn whether shadow mode is on.
    pub enabled: bool,
    /// Shadow mode in which the process ends when everything was compared.
    pub once: bool,
    /// The time for which a difference must persist before it is shown.
    pub settle: Duration,
    /// The form of the adoption report, which a single comparison prints instead of its lines.
    pub report: ReportFormat,
}

impl ShadowConfig {
    /// Returns true if shadow mode is on, so that nothing is changed.
    pub fn is_on(&self) -> bool {
        self.enabled || self.once
    }
}

/// The form of the [adoption report](crate::adoption).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReportFormat {
    /// No report: the differences are printed line by line.
    #[default]
    None,
    /// For people, and to attach to a change request.
    Markdown,
    /// For programs.
    Json,
}
