//! How far a leg may be behind: `lag` of the configuration.

use std::time::Duration;

use block::mirror::Lag;
use toml_span::value::ValueInner;

use super::ON_LAG;
use crate::config::reader::{Section, one_of, size};

/// Longest age of the lag that is taken for meant.
const LAG_S_MAX: f64 = 3600.0;

/// Least bytes of the lag: a few of the largest writes.
const LAG_BYTES_MIN: u64 = 4 << 20;

/// Most bytes of the lag: they are held in memory.
const LAG_BYTES_MAX: u64 = 64 << 30;

/// Its table.
pub(super) fn lag(mut section: Section<'_, '_>, default: Lag) -> Lag {
    let mut lag = default;
    if let Some(age) = section.get("seconds", seconds) {
        lag.age = age;
    }
    if let Some(bytes) = section.get("bytes", size(LAG_BYTES_MIN, LAG_BYTES_MAX)) {
        lag.bytes = bytes;
    }
    if let Some(on) = section.get("on", one_of(ON_LAG)) {
        lag.on = on;
    }
    section.finish();
    lag
}

fn seconds(value: ValueInner<'_>) -> Result<Duration, String> {
    let seconds = match value {
        ValueInner::Integer(number) => number as f64,
        ValueInner::Float(number) => number,
        other => return Err(format!("is {}, not a number of seconds", other.type_str())),
    };
    match seconds > 0.0 && seconds <= LAG_S_MAX {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(format!("{seconds} is not allowed (above 0, up to {LAG_S_MAX} is)")),
    }
}
