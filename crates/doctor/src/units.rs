//! Numbers with their units, as a report shows them.

/// Bits per second of so many bytes per second.
pub fn rate(bytes_per_s: f64) -> String {
    let bits = bytes_per_s * 8.0;
    match bits {
        bits if bits >= 9.995e9 => format!("{:.0} Gbit/s", bits / 1e9),
        bits if bits >= 9.995e8 => format!("{:.1} Gbit/s", bits / 1e9),
        bits if bits >= 9.95e6 => format!("{:.0} Mbit/s", bits / 1e6),
        bits if bits >= 99.5e3 => format!("{:.1} Mbit/s", bits / 1e6),
        bits => format!("{:.0} kbit/s", bits / 1e3),
    }
}

/// A size in the powers of 1024 that settings have; others with three digits.
pub fn size(bytes: f64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let digits = match value {
        value if value.fract() == 0.0 || value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A time in milliseconds or seconds.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 0.0995 => format!("{:.0} ms", s * 1e3),
        s if s >= 0.001 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

/// A share in percent; a small one as a power of ten, as losses are told.
pub fn share(part: f64) -> String {
    match part {
        0.0 => "0 %".to_owned(),
        part if part >= 0.001 => format!("{:.1} %", part * 100.0),
        part => format!("{part:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units_and_no_more_digits_than_mean_something() {
        assert_eq!(rate(125e6), "1.0 Gbit/s");
        assert_eq!(rate(117.68e6), "941 Mbit/s");
        assert_eq!(rate(2.6e6), "21 Mbit/s");
        assert_eq!(rate(1250.0), "10 kbit/s");
        assert_eq!(rate(5e9), "40 Gbit/s");
        assert_eq!(size(131_072.0), "128 KiB");
        assert_eq!(size(425_984.0), "416 KiB");
        assert_eq!(size(6_250_000.0), "5.96 MiB");
        assert_eq!(size(512.0), "512 B");
        assert_eq!(time(0.0502), "50.2 ms");
        assert_eq!(time(0.2), "200 ms");
        assert_eq!(time(0.000_08), "80 µs");
        assert_eq!(share(0.25), "25.0 %");
        assert_eq!(share(2e-5), "2.0e-5");
    }
}
