//! Durations in Go's notation (`1h2m3.5s`), which every duration flag uses.
//!
//! kube's own parser is not used for flags: it panics on values out of its range and on signs
//! inside the text (`5s-3s`), and accepts an empty string as zero. All of these must be errors in
//! flags, which are written by people.

use std::time::Duration;

/// Parses a Go duration. Units are `ns`, `us` (also with either micro sign), `ms`, `s`, `m`, `h`;
/// `0` needs none.
///
/// # Errors
///
/// A message for the user when the text is not a Go duration, does not fit Go's range (about 292
/// years), or is negative: no flag of a cloud-controller-manager accepts a negative duration.
pub fn parse(text: &str) -> Result<Duration, String> {
    let unsigned = text
        .strip_prefix('+')
        .or_else(|| text.strip_prefix('-'))
        .unwrap_or(text);
    let duration =
        parse_unsigned(unsigned).ok_or_else(|| format!("time: invalid duration {text:?}"))?;
    if text.starts_with('-') && !duration.is_zero() {
        return Err("must not be negative".to_owned());
    }
    Ok(duration)
}

fn parse_unsigned(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    if text.is_empty() {
        return None;
    }
    let mut rest = text;
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let number_end = rest
            .find(|c: char| !(c.is_ascii_digit() || c == '.'))
            .unwrap_or(rest.len());
        let (number, after) = rest.split_at(number_end);
        let unit_end = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        total = total.checked_add(nanoseconds(number, unit)?)?;
        rest = after;
    }
    // Go represents durations as signed 64-bit nanoseconds.
    let total = u64::try_from(total)
        .ok()
        .filter(|nanos| i64::try_from(*nanos).is_ok())?;
    Some(Duration::from_nanos(total))
}

fn nanoseconds(number: &str, unit: &str) -> Option<u128> {
    let scale: u128 = match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3_600 * 1_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: u128 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    // Eighteen digits exceed the resolution of a nanosecond in any unit; Go drops further digits,
    // too.
    let fraction = fraction.get(..18).unwrap_or(fraction);
    let fraction_nanos = if fraction.is_empty() {
        0
    } else {
        let digits = u32::try_from(fraction.len()).ok()?;
        fraction.parse::<u128>().ok()?.checked_mul(scale)? / 10u128.checked_pow(digits)?
    };
    whole.checked_mul(scale)?.checked_add(fraction_nanos)
}

/// Formats a duration as Go does: `10s`, `5m0s`, `12h0m0s`, `1.5s`, `500ms`.
pub(crate) fn format(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    if nanos < 1_000 {
        return format!("{nanos}ns");
    }
    if nanos < 1_000_000 {
        return format!("{}µs", decimal(nanos, 3));
    }
    if nanos < 1_000_000_000 {
        return format!("{}ms", decimal(nanos, 6));
    }
    let seconds = decimal(nanos % 60_000_000_000, 9);
    let minutes = nanos / 60_000_000_000;
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

fn decimal(nanos: u128, digits: usize) -> String {
    let text = format!("{nanos:0>width$}", width = digits + 1);
    let (whole, fraction) = text.split_at(text.len() - digits);
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() {
        whole.to_owned()
    } else {
        format!("{whole}.{fraction}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_go_reads() {
        for (text, nanos) in [
            ("0", 0),
            ("-0", 0),
            ("5s", 5_000_000_000),
            ("+5s", 5_000_000_000),
            ("1h2m3.5s", 3_723_500_000_000),
            (".5m", 30_000_000_000),
            ("1.s", 1_000_000_000),
            ("100ms", 100_000_000),
            ("3us", 3_000),
            ("3µs", 3_000),
            ("3μs", 3_000),
            ("1.0000000000000000000000001s", 1_000_000_000),
            ("9223372036854775807ns", 9_223_372_036_854_775_807),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn refuses_what_go_refuses() {
        for text in [
            "",
            "+",
            "-",
            "5",
            "s",
            ".s",
            "5x",
            "--5s",
            "5s-3s",
            "1..5s",
            "5 s",
            " 5s",
            "9999999999999h",
            "1e3s",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse("-5s"), Err("must not be negative".to_owned()));
    }

    #[test]
    fn writes_as_go_does() {
        for text in ["0s", "1ns", "1.5µs", "500ms", "10s", "1.5s", "5m0s", "12h0m0s", "1h2m3.5s"] {
            assert_eq!(format(parse(text).unwrap()), text);
        }
    }

    proptest! {
        #[test]
        fn reads_back_what_it_writes(nanos in 0..i64::MAX.unsigned_abs()) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }

        #[test]
        fn never_panics(text in "[-+.0-9a-zµμ ]{0,24}") {
            let _ = parse(&text);
        }
    }
}
