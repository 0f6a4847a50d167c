//! When a mirror that runs compares its legs by itself: `verify` of the configuration.

use std::time::Duration;

use block::mirror::{ResyncRate, VerifyEvery};
use toml_span::value::ValueInner;
use wanlab::units;

use super::rate_words;
use crate::config::reader::{Section, string};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// What is taken for meant.
const EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(366 * 24 * 3600));

/// How fast unless the configuration says so: a week is long enough for it.
const RATE: ResyncRate = ResyncRate::Percent(20);

/// Its table.
pub(super) fn verify(mut section: Section<'_, '_>) -> VerifyEvery {
    let every = section.required("every", every);
    let rate = section.get("rate", super::rate).unwrap_or(RATE);
    section.finish();
    // Where it is missing the configuration is not used.
    VerifyEvery { every: every.map_or(7 * DAY, |(_, every)| every), rate }
}

/// Its line.
pub(super) fn verify_toml(wish: &VerifyEvery) -> String {
    let (every, rate) = (wish.every.as_millis(), rate_words(wish.rate));
    format!("verify = {{ every = \"{every}ms\", rate = \"{rate}\" }}\n")
}

/// `"7d"`, `"12h"`, or a shorter time.
fn every(value: ValueInner<'_>) -> Result<Duration, String> {
    let text = string(value)?;
    let of_unit = |unit: char, length: Duration| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        Duration::try_from_secs_f64(number * length.as_secs_f64()).ok()
    };
    let time = of_unit('d', DAY).or_else(|| of_unit('h', DAY / 24));
    let time = time.or_else(|| units::parse_time(&text).ok());
    let allowed = time.filter(|time| (EVERY.0..=EVERY.1).contains(time));
    allowed.ok_or_else(|| {
        format!("{text:?} is not allowed (\"1s\" to \"366d\" is, as in \"7d\", \"12h\")")
    })
}
