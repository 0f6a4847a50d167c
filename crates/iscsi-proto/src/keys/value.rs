//! Values of keys: numbers, booleans, lists, binary strings (RFC 7143 §6.1).

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Padding is optional on input: RFC 7143 asks for it, some peers leave it out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Answer to a key we do not know.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//# The constants "None", "Reject", "Irrelevant", and "NotUnderstood" are reserved and MUST ONLY be
//# used as described here.
pub(super) const NOT_UNDERSTOOD: &str = "NotUnderstood";
/// Answer to a key that means nothing here.
pub(super) const IRRELEVANT: &str = "Irrelevant";
/// Answer to a value we cannot accept.
pub(super) const REJECT: &str = "Reject";

/// A numerical value: decimal, or hex with 0x.
pub fn parse_number(value: &str) -> Option<u64> {
    let (digits, radix) = match strip_prefix(value, b'x') {
        Some(digits) => (digits, 16),
        None => (value, 10),
    };
    // `from_str_radix` takes a sign, the RFC does not.
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// A number within a range, both ends included.
pub fn parse_in_range(value: &str, (min, max): (u32, u32)) -> Option<u32> {
    let number = u32::try_from(parse_number(value)?).ok()?;
    (min..=max).contains(&number).then_some(number)
}

/// `Yes` or `No`.
pub fn parse_bool(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// `Yes` or `No`.
pub fn bool_str(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// A binary value of at most `max` bytes: hex with 0x or base64 with 0b. The length is checked
/// before anything is decoded.
pub fn parse_binary(value: &str, max: usize) -> Option<Vec<u8>> {
    if let Some(digits) = strip_prefix(value, b'x') {
        if digits.is_empty() || !digits.len().is_multiple_of(2) || digits.len() / 2 > max {
            return None;
        }
        let nibble = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
        let byte = |pair: &[u8]| Some(nibble(pair[0])? << 4 | nibble(pair[1])?);
        return digits.as_bytes().chunks_exact(2).map(byte).collect();
    }
    let digits = strip_prefix(value, b'b')?;
    if digits.is_empty() || digits.len() > max.div_ceil(3) * 4 {
        return None;
    }
    BASE64.decode(digits).ok().filter(|bytes| bytes.len() <= max)
}

/// A binary value in hex.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.1
//# Decimal-constants MUST NOT be used for parameter values if the values can be equal to or greater
//# than 2**64 (numerical) or for binary strings that can be longer than 64 bits.
pub fn format_binary(bytes: &[u8]) -> String {
    bytes.iter().fold(String::from("0x"), |text, byte| text + &format!("{byte:02x}"))
}

/// One of the three answers that are no value (§6.2).
pub(super) fn is_refusal(value: &str) -> bool {
    matches!(value, NOT_UNDERSTOOD | IRRELEVANT | REJECT)
}

/// What follows `0` and the letter, in either case.
fn strip_prefix(value: &str, letter: u8) -> Option<&str> {
    match value.as_bytes() {
        [b'0', second, ..] if second.eq_ignore_ascii_case(&letter) => value.get(2..),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers() {
        for (text, number) in [
            ("0", Some(0)),
            ("00512", Some(512)),
            ("0x1F", Some(31)),
            ("0Xff", Some(255)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("0x10000000000000000", None),
            ("", None),
            ("0x", None),
            ("-1", None),
            ("+1", None),
            ("0x+1", None),
            ("1 ", None),
            ("1f", None),
            ("0bAQ==", None),
            ("1~2", None),
        ] {
            assert_eq!(parse_number(text), number, "{text:?}");
        }
        assert_eq!(parse_in_range("512", (512, 1024)), Some(512));
        assert_eq!(parse_in_range("511", (512, 1024)), None);
        assert_eq!(parse_in_range("1025", (512, 1024)), None);
        assert_eq!(parse_in_range("4294967808", (512, 1024)), None);
    }

    #[test]
    fn booleans_are_spelled_exactly() {
        assert_eq!(
            ["Yes", "No", "yes", "1", ""].map(parse_bool).map(|b| b.map(bool_str)),
            [Some("Yes"), Some("No"), None, None, None]
        );
    }

    #[test]
    fn binaries_are_measured_before_they_are_decoded() {
        assert_eq!(parse_binary("0x00ff", 2), Some(vec![0, 255]));
        assert_eq!(parse_binary("0x00ff00", 2), None);
        assert_eq!(parse_binary("0X0g", 2), None);
        assert_eq!(parse_binary("0x0", 2), None);
        assert_eq!(parse_binary("0x", 2), None);
        assert_eq!(parse_binary("0bAP8=", 2), Some(vec![0, 255]));
        assert_eq!(parse_binary("0bAP8", 2), Some(vec![0, 255]));
        assert_eq!(parse_binary("0bAP8A", 2), None);
        assert_eq!(parse_binary("0bAP8AAAAA", 2), None);
        assert_eq!(parse_binary("0b", 2), None);
        assert_eq!(parse_binary("0bA!8=", 2), None);
        assert_eq!(parse_binary("00ff", 2), None);
        assert_eq!(parse_binary("0xéé", 4), None);
    }

    proptest! {
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.1
        //= type=test
        //# Decimal-constants MUST NOT be used for parameter values if the values can be equal to or
        //# greater than 2**64 (numerical) or for binary strings that can be longer than 64 bits.
        #[test]
        fn binaries_there_and_back(bytes in proptest::collection::vec(any::<u8>(), 1..64)) {
            prop_assert_eq!(parse_binary(&format_binary(&bytes), 64), Some(bytes.clone()));
            let base64 = format!("0b{}", BASE64.encode(&bytes));
            prop_assert_eq!(parse_binary(&base64, bytes.len()), Some(bytes));
        }

        #[test]
        fn any_text(text in ".{0,40}") {
            let _ = parse_number(&text);
            if let Some(bytes) = parse_binary(&text, 8) {
                prop_assert!((1..=8).contains(&bytes.len()));
            }
        }
    }
}
