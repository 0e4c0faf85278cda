//! Minimum delay of health checks of UDP ports, which is a setting of each Octavia and in no answer
//! but a rejection.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::client::{Call, ErrorClass, OpenStackError};

/// Maximum delay that is believed to be a minimum.
const MAX_DELAY: u32 = 3600;

/// Minimum delay between UDP-CONNECT health checks, in seconds, as far as Octavia has named it.
#[derive(Debug, Default)]
pub(super) struct MinMonitorDelay(AtomicU32);

impl MinMonitorDelay {
    /// Returns the minimum, or 0 if Octavia has named none yet.
    pub(super) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Records the minimum that a rejection names, and returns it, also if another Service's
    /// rejection named it before. Returns `None` if the error is another one.
    pub(super) fn learn(&self, error: &OpenStackError) -> Option<u32> {
        let may_have_monitor = matches!(
            error.call,
            Call::LoadBalancerCreate | Call::MonitorCreate | Call::MonitorUpdate
        );
        if !may_have_monitor || error.class() != ErrorClass::Invalid {
            return None;
        }
        let minimum = parse_minimum(&error.response()?.message)?;
        self.0.fetch_max(minimum, Ordering::Relaxed);
        Some(minimum)
    }
}

/// Finds the minimum in Octavia's message: "The request delay value 1 should be larger than 3 for
/// UDP-CONNECT health monitor type". In spite of these words, Octavia accepts the minimum itself; if
/// it rejected that, the next whole second is the minimum.
fn parse_minimum(message: &str) -> Option<u32> {
    if !message.contains("UDP-CONNECT") {
        return None;
    }
    let requested = number_after(message, "delay value ")?;
    let named = number_after(message, "should be larger than ")?;
    let minimum = if requested >= named {
        named.saturating_add(1)
    } else {
        named
    };
    (1..=MAX_DELAY).contains(&minimum).then_some(minimum)
}

fn number_after(text: &str, words: &str) -> Option<u32> {
    let (_, rest) = text.split_once(words)?;
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimum_is_what_octavia_names() {
        let message = |requested: u32, named: u32| {
            format!(
                "Validation failure: The request delay value {requested} should be larger than {named} for UDP-CONNECT \
                 health monitor type."
            )
        };
        assert_eq!(parse_minimum(&message(1, 3)), Some(3));
        assert_eq!(parse_minimum(&message(3, 3)), Some(4));
        assert_eq!(parse_minimum(&message(1, 4000)), None);
        for other in [
            "The request delay value 1 should be larger than 3 for PING health monitor type.",
            "The associated pool protocol is UDP, so only a UDP-CONNECT health monitor is supported.",
            "",
        ] {
            assert_eq!(parse_minimum(other), None, "{other}");
        }
    }
}
