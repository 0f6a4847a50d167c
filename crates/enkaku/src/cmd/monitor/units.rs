//! Numbers in few columns.

use tcpmon::verdict::Bottleneck;

/// Bits per second in at most six columns: `950k`, `12.3M`, `1.25G`.
pub(super) fn bits(bytes_per_s: f64) -> String {
    short(bytes_per_s * 8.0)
}

/// Bytes in at most five columns: `0`, `64k`, `1.5M`.
pub(super) fn bytes(count: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
    short(count as f64)
}

/// A time in at most six columns: `85µs`, `20.1ms`, `1.2s`.
pub(super) fn time(us: u32) -> String {
    let us = f64::from(us);
    if us <= 0.0 {
        "-".into()
    } else if us < 1000.0 {
        format!("{us:.0}µs")
    } else if us < 100_000.0 {
        format!("{:.1}ms", us / 1e3)
    } else if us < 1e6 {
        format!("{:.0}ms", us / 1e3)
    } else {
        format!("{:.1}s", us / 1e6)
    }
}

fn short(value: f64) -> String {
    for (unit, suffix) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value >= unit {
            let scaled = value / unit;
            let digits = if scaled < 10.0 { 2 } else { usize::from(scaled < 100.0) };
            return format!("{scaled:.digits$}{suffix}");
        }
    }
    format!("{value:.0}")
}

/// A cause in at most eleven columns.
pub(super) fn cause(cause: Option<Bottleneck>) -> &'static str {
    match cause {
        None => "idle",
        Some(Bottleneck::SendBuffer) => "send buffer",
        Some(Bottleneck::ReceiveWindow) => "recv window",
        Some(Bottleneck::CongestionLoss) => "losses",
        Some(Bottleneck::CongestionWindow) => "cwnd",
        Some(Bottleneck::R2t) => "R2T",
        Some(Bottleneck::QueueDepth) => "queue depth",
        Some(Bottleneck::Storage) => "storage",
        Some(Bottleneck::LineRate) => "line full",
        Some(Bottleneck::Application) => "application",
        Some(other) => other.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_their_columns() {
        assert_eq!(bits(0.0), "0");
        assert_eq!(bits(118_750.0), "950k");
        assert_eq!(bits(125e6), "1.00G");
        assert_eq!(bytes(65_536), "65.5k");
        assert_eq!(time(0), "-");
        assert_eq!(time(85), "85µs");
        assert_eq!(time(20_149), "20.1ms");
        assert_eq!(time(1_234_567), "1.2s");
        for power in 0..12 {
            let value = 9.994 * 10_f64.powi(power);
            assert!(short(value).len() <= 5, "{value} {}", short(value));
        }
    }
}
