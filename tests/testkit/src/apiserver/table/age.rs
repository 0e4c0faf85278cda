//! The short ages kubectl shows: `45s`, `3m10s`, `2d1h`.

use jiff::Timestamp;

const MINUTE: i128 = 60;
const HOUR: i128 = 60 * MINUTE;
const DAY: i128 = 24 * HOUR;
const YEAR: i128 = 365 * DAY;

/// Returns a duration in nanoseconds with two or three significant figures, by the rule of
/// apimachinery's `HumanDuration`: the larger the duration, the coarser its smallest unit. Down to
/// two seconds below zero counts as now, because clocks differ; anything earlier is `<invalid>`.
pub fn human_duration(nanos: i128) -> String {
    // Rounds towards zero, so -1.9 s is still -1 s.
    let seconds = nanos / 1_000_000_000;
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => two_units(s, (MINUTE, "m"), (1, "s")),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => two_units(s, (HOUR, "h"), (MINUTE, "m")),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two_units(s, (DAY, "d"), (HOUR, "h")),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        s if s < 8 * YEAR => two_units(s, (YEAR, "y"), (DAY, "d")),
        s => format!("{}y", s / YEAR),
    }
}

/// Formats two units. Omits the smaller one if it is zero.
fn two_units(seconds: i128, large: (i128, &str), small: (i128, &str)) -> String {
    let (whole, rest) = (seconds / large.0, seconds % large.0 / small.0);
    if rest == 0 {
        format!("{whole}{}", large.1)
    } else {
        format!("{whole}{}{rest}{}", large.1, small.1)
    }
}

/// Formats the age at `now` of an RFC 3339 time; `<unknown>` if there is none.
pub(super) fn since(time: Option<&str>, now: Timestamp) -> String {
    match time.and_then(|t| t.parse::<Timestamp>().ok()) {
        Some(then) => human_duration(now.as_nanosecond() - then.as_nanosecond()),
        None => "<unknown>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i128 = 1_000_000;
    const S: i128 = 1_000 * MS;
    const M: i128 = MINUTE * S;
    const H: i128 = HOUR * S;
    const D: i128 = DAY * S;
    const Y: i128 = YEAR * S;

    /// The vectors of apimachinery's `TestHumanDuration` and `TestHumanDurationBoundaries`.
    #[test]
    fn ages_round_as_kubectl_users_know_them() {
        let cases: &[(i128, &str)] = &[
            (S, "1s"),
            (70 * S, "70s"),
            (190 * S, "3m10s"),
            (70 * M, "70m"),
            (47 * H, "47h"),
            (49 * H, "2d1h"),
            (8 * D + 2 * H, "8d"),
            (367 * D, "367d"),
            (2 * Y + 25 * H, "2y1d"),
            (8 * Y + 2 * H, "8y"),
            (-2 * S, "<invalid>"),
            (-2 * S + 1, "0s"),
            (0, "0s"),
            (S - MS, "0s"),
            (2 * M - MS, "119s"),
            (2 * M, "2m"),
            (2 * M + S, "2m1s"),
            (10 * M - MS, "9m59s"),
            (10 * M, "10m"),
            (10 * M + S, "10m"),
            (3 * H - MS, "179m"),
            (3 * H, "3h"),
            (3 * H + M, "3h1m"),
            (8 * H - MS, "7h59m"),
            (8 * H, "8h"),
            (8 * H + 59 * M, "8h"),
            (2 * D - MS, "47h"),
            (2 * D, "2d"),
            (2 * D + H, "2d1h"),
            (8 * D - MS, "7d23h"),
            (8 * D, "8d"),
            (8 * D + 23 * H, "8d"),
            (2 * Y - MS, "729d"),
            (2 * Y, "2y"),
            (2 * Y + 23 * H, "2y"),
            (2 * Y + 23 * H + 59 * M, "2y"),
            (2 * Y + D - MS, "2y"),
            (2 * Y + D, "2y1d"),
            (3 * Y, "3y"),
            (7 * Y, "7y"),
            (8 * Y - MS, "7y364d"),
            (8 * Y, "8y"),
            (8 * Y + 364 * D, "8y"),
            (9 * Y, "9y"),
        ];
        for (nanos, want) in cases {
            assert_eq!(human_duration(*nanos), *want, "{nanos}");
        }
    }

    #[test]
    fn a_missing_or_broken_time_has_an_unknown_age() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        assert_eq!(since(None, now), "<unknown>");
        assert_eq!(since(Some("yesterday"), now), "<unknown>");
        assert_eq!(since(Some("2026-01-01T00:00:00Z"), now), "60s");
        assert_eq!(since(Some("2025-12-31T23:59:59.500000Z"), now), "60s");
    }
}
