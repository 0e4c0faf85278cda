//! What can happen to an operation, and its name on the command line.

use std::{fmt, str::FromStr, time::Duration};

use ccm_core::provider::ErrorKind;

use crate::interceptor::{OperationKind, Point, Side};

/// How long something that is late takes. Longer than every deadline of a request to the API server
/// and than the lease.
pub const LATE: Duration = Duration::from_secs(40);
/// How long something that is slow takes.
pub const SLOW: Duration = Duration::from_secs(4);
/// How long caches show nothing new.
pub const LAG: Duration = Duration::from_secs(30);

/// What happens to one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The process ends before the operation is sent.
    CrashBefore,
    /// The process ends after the operation had its effect, before its answer.
    CrashAfter,
    /// The process ends, and the operation has its effect [`LATE`], when the next one works
    /// already.
    CrashLate,
    /// The operation has its effect; the connection breaks before its answer.
    Lost,
    /// The connection breaks before the operation has an effect.
    Broken,
    /// The operation has no effect and is never answered.
    Hang,
    /// The operation has its effect and is never answered.
    HangAfter,
    /// The operation is held up for [`SLOW`], and then has its effect.
    Delay,
    /// The operation is held up for [`LATE`], and then has its effect, whether or not anybody waits
    /// for it.
    Late,
    /// The answer is held up for [`SLOW`].
    DelayAnswer,
    /// The API server refuses with this status.
    Status(u16),
    /// The cloud refuses with an error of this kind.
    Cloud(ErrorKind),
    /// Every watch shows nothing new for [`LAG`], from just before the operation.
    Lag,
    /// The process ends after the operation; once the caches of the next one are filled its watches
    /// stand still for [`LAG`], and then tell everything again since the start of the scenario, as
    /// those of another API server that lags.
    StaleStart,
    /// Every watch tells everything again since the start of the scenario.
    Rewind,
    /// Every watch breaks, and what it would go on with is forgotten: everything is listed anew.
    Expire,
    /// Every watch stands still for [`LAG`], and then breaks and everything is listed anew: what
    /// happened in between is never seen.
    Missed,
    /// The process does not reach the API server for [`LATE`]; this operation is still sent and
    /// arrives then.
    CutOff,
}

/// Faults of a kind, which are explored together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// The process ends.
    Crash,
    /// The connection breaks.
    Lost,
    /// It is refused.
    Refused,
    /// It takes its time, or has no end.
    Slow,
    /// Caches lag behind, or go back.
    Stale,
    /// Another process leads meanwhile.
    Split,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Crash, Self::Lost, Self::Refused, Self::Slow, Self::Stale, Self::Split];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Lost => "lost",
            Self::Refused => "refused",
            Self::Slow => "slow",
            Self::Stale => "stale",
            Self::Split => "split",
        }
    }
}

/// Statuses with which the API server refuses.
const STATUSES: [u16; 5] = [409, 410, 429, 500, 504];

impl Fault {
    /// Every fault.
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::CrashBefore,
            Self::CrashAfter,
            Self::CrashLate,
            Self::Lost,
            Self::Broken,
            Self::Hang,
            Self::HangAfter,
            Self::Delay,
            Self::Late,
            Self::DelayAnswer,
            Self::Lag,
            Self::StaleStart,
            Self::Rewind,
            Self::Expire,
            Self::Missed,
            Self::CutOff,
        ];
        all.extend(STATUSES.map(Self::Status));
        all.extend(ErrorKind::ALL.map(Self::Cloud));
        all
    }

    /// The class that it is explored with.
    pub fn class(self) -> Class {
        match self {
            Self::CrashBefore | Self::CrashAfter | Self::CrashLate => Class::Crash,
            Self::Lost | Self::Broken => Class::Lost,
            Self::Status(_) | Self::Cloud(_) => Class::Refused,
            Self::Hang | Self::HangAfter | Self::Delay | Self::DelayAnswer => Class::Slow,
            Self::Lag | Self::StaleStart | Self::Rewind | Self::Expire | Self::Missed => {
                Class::Stale
            }
            Self::Late | Self::CutOff => Class::Split,
        }
    }

    /// Whether it ends the process.
    pub fn ends_process(self) -> bool {
        matches!(self, Self::CrashBefore | Self::CrashAfter | Self::CrashLate | Self::StaleStart)
    }

    /// Whether it can happen at this point. `elected`: there is more than one process.
    pub fn fits(self, point: &Point, elected: bool) -> bool {
        let changes = point.changes();
        match self {
            Self::CrashBefore | Self::Broken | Self::Hang | Self::Delay => true,
            Self::CrashAfter | Self::Lost | Self::HangAfter | Self::DelayAnswer => changes,
            // What is on its way belongs to a process that has ended. A cloud knows no order of
            // requests, so what arrives there last stays until the next check of everything; that
            // is another subject.
            Self::CrashLate => point.kind == OperationKind::Write && point.side == Side::Api,
            Self::Lag | Self::Rewind | Self::Expire | Self::Missed | Self::StaleStart => {
                matches!(point.kind, OperationKind::Write | OperationKind::Read)
            }
            Self::Late | Self::CutOff => elected && point.side == Side::Api && changes,
            Self::Status(status) => point.side == Side::Api && refuses(status, point.kind),
            Self::Cloud(kind) => point.side == Side::Cloud && fails(kind, &point.label),
        }
    }
}

fn refuses(status: u16, kind: OperationKind) -> bool {
    match status {
        409 => matches!(kind, OperationKind::Write | OperationKind::Lease),
        410 => matches!(kind, OperationKind::List | OperationKind::Watch),
        _ => true,
    }
}

/// Which errors an operation of the cloud may have. That something is not there is no error that
/// may come out of nowhere: it says a fact.
fn fails(kind: ErrorKind, label: &str) -> bool {
    let is = |action: &str| label.starts_with(&format!("cloud.{action}"));
    match kind {
        ErrorKind::Transient
        | ErrorKind::Throttled
        | ErrorKind::Denied
        | ErrorKind::Canceled
        | ErrorKind::Conflict => true,
        ErrorKind::QuotaExceeded => is("create_load_balancer") || is("apply_routes"),
        ErrorKind::InvalidInput => !is("list_") && !is("get_"),
        // Of a call as a whole, it proves nothing.
        ErrorKind::NotFound => {
            is("describe_instances") || is("update_load_balancer") || is("modify_load_balancer")
        }
        ErrorKind::NotImplemented | ErrorKind::ImplementedElsewhere | ErrorKind::NotLeader => false,
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::CrashBefore => "crash-before",
            Self::CrashAfter => "crash-after",
            Self::CrashLate => "crash-late",
            Self::Lost => "lost",
            Self::Broken => "broken",
            Self::Hang => "hang",
            Self::HangAfter => "hang-after",
            Self::Delay => "delay",
            Self::Late => "late",
            Self::DelayAnswer => "delay-answer",
            Self::Lag => "lag",
            Self::StaleStart => "stale-start",
            Self::Rewind => "rewind",
            Self::Expire => "expire",
            Self::Missed => "missed",
            Self::CutOff => "cut-off",
            Self::Status(status) => return write!(f, "status-{status}"),
            Self::Cloud(kind) => return write!(f, "cloud-{kind}"),
        };
        f.write_str(name)
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("{text:?} is no fault");
        Self::all()
            .into_iter()
            .find(|fault| fault.to_string() == text)
            .ok_or_else(unknown)
    }
}

/// One fault and where it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFault {
    /// Where.
    pub at: FaultPosition,
    /// What.
    pub fault: Fault,
}

/// Where a fault happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultPosition {
    /// At the point with this label.
    Point(String),
    /// At the n-th operation, counted from 1, after the fault before this one.
    Next(u32),
}

impl fmt::Display for PlannedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            FaultPosition::Point(label) => write!(f, "{label}/{}", self.fault),
            FaultPosition::Next(count) => write!(f, "+{count}/{}", self.fault),
        }
    }
}

/// Reads `label/fault`, or `label/fault/+n/fault`.
///
/// # Errors
/// Says what cannot be read.
pub fn parse_shots(text: &str) -> Result<Vec<PlannedFault>, String> {
    let parts: Vec<&str> = text.split('/').collect();
    let pairs = parts.chunks_exact(2);
    if !pairs.remainder().is_empty() || parts.is_empty() {
        return Err(format!("{text:?} is not <point>/<fault>"));
    }
    pairs
        .map(|pair| {
            let at = match pair[0].strip_prefix('+') {
                Some(count) => {
                    FaultPosition::Next(count.parse().map_err(|e| format!("{:?}: {e}", pair[0]))?)
                }
                None => FaultPosition::Point(pair[0].to_owned()),
            };
            Ok(PlannedFault { at, fault: pair[1].parse()? })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_read_as_it_is_written() {
        for fault in Fault::all() {
            assert_eq!(fault.to_string().parse(), Ok(fault));
        }
        assert!("crash".parse::<Fault>().is_err());
    }

    #[test]
    fn plans_are_read_as_they_are_written() {
        let first = PlannedFault {
            at: FaultPosition::Point("api.patch.nodes.a#2".into()),
            fault: Fault::Status(500),
        };
        let second = PlannedFault { at: FaultPosition::Next(3), fault: Fault::CrashAfter };
        let text = format!("{first}/{second}");
        assert_eq!(text, "api.patch.nodes.a#2/status-500/+3/crash-after");
        assert_eq!(parse_shots(&text), Ok(vec![first, second]));
        for wrong in
            ["", "api.get#1", "api.get#1/crash", "api.get#1/crash-after/+x/crash-after", "a/lost/b"]
        {
            assert!(parse_shots(wrong).is_err(), "{wrong:?}");
        }
    }
}
