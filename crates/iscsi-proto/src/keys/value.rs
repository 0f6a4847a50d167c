//! Values of keys: numbers, booleans, lists, binary strings (RFC 7143 §6.1).

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Padding is optional on input: RFC 7143 asks for it, some peers leave it out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

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
pub fn format_binary(bytes: &[u8]) -> String {
    bytes.iter().fold(String::from("0x"), |text, byte| text + &format!("{byte:02x}"))
}

/// What follows `0` and the letter, in either case.
fn strip_prefix(value: &str, letter: u8) -> Option<&str> {
    match value.as_bytes() {
        [b'0', second, ..] if second.eq_ignore_ascii_case(&letter) => value.get(2..),
        _ => None,
    }
}
