//! What people write on a command line: `1gbit`, `20ms`, `4k`, `1e-3`; and what they are used to
//! from iperf3 (`1G`), fio (`4kb`, `4KiB`) and ping (bare seconds).
//!
//! Plain parsers that a command-line library can call; each error says what was given, what is
//! wrong with it and what is allowed. Nothing here knows the link.

use std::time::Duration;

use thiserror::Error;

/// A value that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{quantity} {input:?}: {reason} (allowed: {allowed})")]
pub struct UnitError {
    quantity: &'static str,
    input: String,
    reason: &'static str,
    allowed: &'static str,
}

const RATE_ALLOWED: &str =
    "a number above 0 with bit, kbit, mbit, gbit or tbit, as in 2.5gbit, or K, M, G or T for them";
const TIME_ALLOWED: &str = "a number from 0 with ns, us, ms, s or min, as in 20ms";
const DURATION_ALLOWED: &str = "seconds, or a number with us, ms, s, min, h or d, as in 1.5s";
const SIZE_ALLOWED: &str = "bytes, or a number with k, M, G or T (powers of 1024), as in 4k";
const PROBABILITY_ALLOWED: &str = "a number from 0 to 1, as in 1e-3";

/// A rate in bits per second: `1gbit`, `2.5gbit`, `100mbit`, `64kbit`, `9600bit`, or without `bit`
/// as iperf3 has it, `1G`, `500m`; each optionally followed by `/s`. Prefixes are powers of 1000.
/// Bytes (`MB/s`) and `mbps`, which are bytes to tc and bits to others, are refused.
///
/// # Errors
/// When the number is missing, not above zero, beyond 64 bits, or its unit is missing or unknown.
pub fn parse_rate(input: &str) -> Result<u64, UnitError> {
    let fail = |reason| UnitError {
        quantity: "rate",
        input: input.to_owned(),
        reason,
        allowed: RATE_ALLOWED,
    };
    let (number, unit) = split(input);
    let unit = unit.to_ascii_lowercase();
    let scale = match unit.strip_suffix("/s").unwrap_or(&unit) {
        "bit" => 1.0,
        "kbit" | "k" => 1e3,
        "mbit" | "m" => 1e6,
        "gbit" | "g" => 1e9,
        "tbit" | "t" => 1e12,
        "" => return Err(fail("has no unit")),
        _ => return Err(fail("has an unknown unit")),
    };
    match whole(number, scale).map_err(fail)? {
        0 => Err(fail("is not above zero")),
        bits_per_s => Ok(bits_per_s),
    }
}

/// A time of a path or a device: `20ms`, `1s`, `500us`, `1.5s`, `2min`. A bare number is refused,
/// for `50` means milliseconds to some and seconds to others; a bare `0` needs no unit.
///
/// # Errors
/// When the number is missing, negative or too large, or its unit is missing or unknown.
pub fn parse_time(input: &str) -> Result<Duration, UnitError> {
    let fail = |reason| UnitError {
        quantity: "time",
        input: input.to_owned(),
        reason,
        allowed: TIME_ALLOWED,
    };
    let (number, unit) = split(input);
    let scale_ns = match unit.to_ascii_lowercase().as_str() {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" => 60e9,
        "" if number == "0" => 1.0,
        "" => return Err(fail("has no unit")),
        _ => return Err(fail("has an unknown unit")),
    };
    whole(number, scale_ns).map(Duration::from_nanos).map_err(fail)
}

/// How long something is done: a bare number of seconds, as ping, fio and iperf3 take it, or
/// `500ms`, `10s`, `2min` (or `2m`, as in fio), `1h`, `1d`.
///
/// # Errors
/// When the number is missing, negative or too large, or its unit is unknown.
pub fn parse_duration(input: &str) -> Result<Duration, UnitError> {
    let fail = |reason| UnitError {
        quantity: "time",
        input: input.to_owned(),
        reason,
        allowed: DURATION_ALLOWED,
    };
    let (number, unit) = split(input);
    let scale_ns = match unit.to_ascii_lowercase().as_str() {
        "" | "s" | "sec" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        "d" => 86_400e9,
        "ms" => 1e6,
        "us" | "µs" => 1e3,
        "ns" => 1.0,
        _ => return Err(fail("has an unknown unit")),
    };
    whole(number, scale_ns).map(Duration::from_nanos).map_err(fail)
}

/// A size in bytes: `4096`, `4k`, `1M`, `2G`, `1.5G`; prefixes are powers of 1024, and `kB`, `KiB`,
/// `MB`, `MiB`, … mean the same, as they do to fio and qemu-img.
///
/// # Errors
/// When the number is missing, negative or beyond 64 bits, or the unit is unknown.
pub fn parse_size(input: &str) -> Result<u64, UnitError> {
    let fail = |reason| UnitError {
        quantity: "size",
        input: input.to_owned(),
        reason,
        allowed: SIZE_ALLOWED,
    };
    let (number, unit) = split(input);
    let scale: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(fail("has an unknown unit")),
    };
    // Whole numbers are exact up to 64 bits; only a fraction goes through floating point.
    match number.parse::<u64>() {
        Ok(count) => count.checked_mul(scale).ok_or_else(|| fail("is too large")),
        Err(_) => whole(number, scale as f64).map_err(fail),
    }
}

/// A probability: `0`, `0.001`, `1e-3`, `1`.
///
/// # Errors
/// When it is no number, below 0 or above 1.
pub fn parse_probability(input: &str) -> Result<f64, UnitError> {
    let fail = |reason| UnitError {
        quantity: "probability",
        input: input.to_owned(),
        reason,
        allowed: PROBABILITY_ALLOWED,
    };
    match input.trim().parse::<f64>() {
        Err(_) => Err(fail("is not a number")),
        Ok(p) if p.is_nan() => Err(fail("is not a number")),
        Ok(p) if p < 0.0 => Err(fail("is negative")),
        Ok(p) if p > 1.0 => Err(fail("is above 1")),
        Ok(p) => Ok(p),
    }
}

/// Cuts `2.5gbit` between its number and its unit; a sign belongs to the number.
fn split(input: &str) -> (&str, &str) {
    let input = input.trim();
    let end = input
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+')))
        .unwrap_or(input.len());
    (&input[..end], input[end..].trim_start())
}

/// `number` × `scale`, rounded to a whole count of the smallest unit.
fn whole(number: &str, scale: f64) -> Result<u64, &'static str> {
    if number.is_empty() {
        return Err("has no number");
    }
    let value: f64 = number.parse().map_err(|_| "is not a number")?;
    if value < 0.0 {
        return Err("is negative");
    }
    let scaled = (value * scale).round();
    if scaled >= u64::MAX as f64 {
        return Err("is too large");
    }
    Ok(scaled as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rates() {
        assert_eq!(parse_rate("1gbit"), Ok(1_000_000_000));
        assert_eq!(parse_rate("2.5gbit"), Ok(2_500_000_000));
        assert_eq!(parse_rate("100Mbit/s"), Ok(100_000_000));
        assert_eq!(parse_rate("64 kbit"), Ok(64_000));
        assert_eq!(parse_rate("9600bit"), Ok(9_600));
        assert_eq!(parse_rate("1G"), Ok(1_000_000_000));
        assert_eq!(parse_rate("1G/s"), Ok(1_000_000_000));
        assert_eq!(parse_rate("1.5m"), Ok(1_500_000));
        for bad in [
            "", "1", "gbit", "-1gbit", "0gbit", "1gbps", "1..2gbit", "1e99gbit", "9e9tbit",
            "1MB/s", "10mbps",
        ] {
            assert!(parse_rate(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn times() {
        assert_eq!(parse_time("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!(parse_time("500us"), Ok(Duration::from_micros(500)));
        assert_eq!(parse_time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_time("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_time("0"), Ok(Duration::ZERO));
        for bad in ["", "20", "-20ms", "20m", "ms", "NaNms", "99999999999999s"] {
            assert!(parse_time(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn durations() {
        for (text, seconds) in
            [("10", 10.0), ("0.2", 0.2), ("0", 0.0), ("2m", 120.0), ("1h", 3600.0), ("1d", 86400.0)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["20ms", "500us", "1.5s", "2min"] {
            assert_eq!(parse_duration(text), parse_time(text));
        }
        for bad in ["", "-1", "1w", "s", "NaN", "99999999999999d"] {
            assert!(parse_duration(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("4k"), Ok(4096));
        assert_eq!(parse_size("1M"), Ok(1 << 20));
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        assert_eq!(parse_size("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_size("4kb"), Ok(4096));
        assert_eq!(parse_size("4KiB"), Ok(4096));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        assert_eq!(parse_size("2TB"), Ok(2 << 40));
        for bad in ["", "k", "-1k", "1q", "99999999999999999999", "20000000T"] {
            assert!(parse_size(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn probabilities() {
        assert_eq!(parse_probability("1e-3"), Ok(0.001));
        assert_eq!(parse_probability("0"), Ok(0.0));
        assert_eq!(parse_probability("1"), Ok(1.0));
        for bad in ["", "-0.1", "1.01", "NaN", "2%", "inf"] {
            assert!(parse_probability(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn an_error_says_what_where_and_what_is_allowed() {
        let message = parse_time("-20ms").unwrap_err().to_string();
        assert!(message.contains("time \"-20ms\": is negative"), "{message}");
        assert!(message.contains("as in 20ms"), "{message}");
        let message = parse_probability("1.5").unwrap_err().to_string();
        assert!(message.contains("is above 1") && message.contains("from 0 to 1"), "{message}");
    }

    proptest! {
        #[test]
        fn no_input_panics(input in "\\PC*") {
            let _ = (parse_rate(&input), parse_time(&input), parse_size(&input));
            let _ = (parse_probability(&input), parse_duration(&input));
        }

        #[test]
        fn whole_sizes_are_exact(bytes: u64) {
            prop_assert_eq!(parse_size(&bytes.to_string()), Ok(bytes));
        }
    }
}
