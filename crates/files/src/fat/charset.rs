//! The character set of short names: code page 437, that of the first PCs, which Linux takes as
//! well. The disk does not say which one it was.

/// The upper half.
const UPPER: &str = "\
    ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒ\
    áíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐\
    └┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀\
    αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";

/// A character of a short name.
pub(super) fn decode(byte: u8) -> char {
    match byte.checked_sub(128) {
        None => char::from(byte),
        Some(upper) => UPPER.chars().nth(usize::from(upper)).unwrap_or(char::REPLACEMENT_CHARACTER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_a_character() {
        assert_eq!(UPPER.chars().count(), 128);
        assert_eq!([0x41, 0x80, 0x82, 0xe1, 0xff].map(decode), ['A', 'Ç', 'é', 'ß', '\u{a0}']);
    }
}
