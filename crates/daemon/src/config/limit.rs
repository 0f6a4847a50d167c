//! `max_rate`, `max_iops` and `burst`: how fast an initiator may go, or how fast all of them may
//! use a logical unit. The command line of `serve` reads them the same way.

use std::time::Duration;

use iscsi::target::{BURST_MAX, BYTES_PER_S_MIN, Limit};
use wanlab::units;

use super::reader::{Section, number, string, time};

/// Most commands per second that are taken for a limit.
const IOPS_MAX: u64 = 1_000_000_000;

/// Reads the keys; `None` where none is there, or none is right.
pub(super) fn limit(section: &mut Section<'_, '_>) -> Option<Limit> {
    let is_meant = section.has("max_rate") || section.has("max_iops");
    let bytes_per_s = section.get("max_rate", |value| parse_max_rate(&string(value)?));
    let iops = section.get("max_iops", number(1, IOPS_MAX));
    let burst = section.with("burst", time(BURST_MAX));
    let limit = Limit::new(bytes_per_s, iops);
    match burst {
        Some((place, _)) if !is_meant => {
            section.complain_at(&place, "limits nothing by itself (max_rate or max_iops with it)");
            None
        }
        Some((_, burst)) => Some(limit.with_burst(burst)).filter(Limit::is_some),
        None => Some(limit).filter(Limit::is_some),
    }
}

/// A rate in bytes per second, from one in bits.
///
/// # Errors
/// What is allowed.
pub fn parse_max_rate(text: &str) -> Result<u64, String> {
    let bits = units::parse_rate(text).map_err(|error| error.to_string())?;
    let (bytes, bits_min) = (bits / 8, BYTES_PER_S_MIN * 8);
    if bytes < BYTES_PER_S_MIN {
        return Err(format!(
            "{text:?} is not allowed ({bits_min}bit, 4 KiB a second, and above is)"
        ));
    }
    Ok(bytes)
}

/// A number of commands per second.
///
/// # Errors
/// What is allowed.
pub fn parse_max_iops(text: &str) -> Result<u64, String> {
    let iops = text.parse().ok().filter(|iops| (1..=IOPS_MAX).contains(iops));
    iops.ok_or_else(|| format!("{text:?} is not a number from 1 to {IOPS_MAX}"))
}

/// A burst.
///
/// # Errors
/// What is allowed.
pub fn parse_burst(text: &str) -> Result<Duration, String> {
    let time = units::parse_time(text).map_err(|error| error.to_string())?;
    let allowed = !time.is_zero() && time <= BURST_MAX;
    allowed
        .then_some(time)
        .ok_or_else(|| format!("{text:?} is not allowed (above 0, up to {BURST_MAX:?} is)"))
}

/// A limit in words.
pub(crate) fn words(limit: &Limit) -> String {
    let rate = limit.bytes_per_s.map(|bytes| format!("{} bit/s", bytes.saturating_mul(8)));
    let iops = limit.iops.map(|iops| format!("{iops} commands/s"));
    let limits: Vec<String> = rate.into_iter().chain(iops).collect();
    match limits.is_empty() {
        true => "no limit".to_owned(),
        false => format!("{}, burst {:?}", limits.join(", "), limit.burst),
    }
}
