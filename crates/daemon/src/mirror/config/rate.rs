//! How fast copies may go, as it is written in a configuration and on the command line. What it
//! does to a copy is decided in the engine.

use block::mirror::ResyncRate;
use wanlab::units;

/// Reads how fast copies may go.
///
/// # Errors
/// What is allowed.
pub fn parse_rate(text: &str) -> Result<ResyncRate, String> {
    let percent = |text: &str| text.parse().ok().filter(|percent| (1..=100).contains(percent));
    let rate = match (text, text.strip_suffix('%')) {
        ("max", _) => Some(ResyncRate::Max),
        (_, Some(text)) => percent(text.trim()).map(ResyncRate::Percent),
        (text, None) => {
            let bits = units::parse_rate(text).ok();
            bits.map(|bits| ResyncRate::BytesPerS((bits / 8).max(1)))
        }
    };
    rate.ok_or_else(|| {
        format!(
            "{text:?} is no rate (as in \"200mbit\", \"80%\" of what copies have been seen to carry, \
             from 1% to 100%, or \"max\")"
        )
    })
}

/// As [`parse_rate`] reads it.
pub fn rate_words(rate: ResyncRate) -> String {
    match rate {
        ResyncRate::Max => "max".into(),
        ResyncRate::BytesPerS(bytes) => format!("{}bit", bytes.saturating_mul(8)),
        ResyncRate::Percent(percent) => format!("{percent}%"),
    }
}
