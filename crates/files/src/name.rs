//! [`Name`]: what a file is called on its disk, shown so that it can do a terminal no harm.

use std::fmt::{self, Write};

/// A name, a path or a link's target: bytes, since ext4 takes any. Those of FAT and exFAT are
/// UTF-8; half a pair of UTF-16 becomes the three bytes that its number has there (WTF-8).
///
/// [`Display`](fmt::Display) shows control characters, backslashes and what is not UTF-8 as `\xNN`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Vec<u8>);

impl Name {
    /// The name with these bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As text, if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// A name in UTF-16.
    pub(crate) fn from_utf16(units: impl IntoIterator<Item = u16>) -> Self {
        let mut bytes = Vec::new();
        for unit in char::decode_utf16(units) {
            match unit {
                Ok(char) => bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
                Err(half) => {
                    let half = half.unpaired_surrogate();
                    let low = |shift: u16| 0x80 | (half >> shift & 0x3f) as u8;
                    bytes.extend_from_slice(&[0xe0 | (half >> 12) as u8, low(6), low(0)]);
                }
            }
        }
        Self(bytes)
    }

    /// The same whatever the case of letters: what FAT and exFAT compare by. They have tables of
    /// their own for it, of letters that have one other form; Unicode's simple mapping is that.
    pub(crate) fn folded(&self) -> Vec<u8> {
        let fold = |char: char| {
            let mut upper = char.to_uppercase();
            match (upper.next(), upper.next()) {
                (Some(one), None) => one,
                _ => char,
            }
        };
        match self.as_str() {
            Some(text) => text.chars().map(fold).collect::<String>().into_bytes(),
            None => self.0.to_ascii_uppercase(),
        }
    }

    /// The path of `name` in the folder of this path.
    pub(crate) fn join(&self, name: &[u8]) -> Self {
        let mut path = self.0.clone();
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Self(path)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for char in chunk.valid().chars() {
                if char == '\\' || char.is_control() || is_invisible(char) {
                    let mut utf8 = [0; 4];
                    escape(f, char.encode_utf8(&mut utf8).as_bytes())?;
                } else {
                    f.write_char(char)?;
                }
            }
            escape(f, chunk.invalid())?;
        }
        Ok(())
    }
}

/// Marks that turn the direction of writing: with them, a name looks like another one.
fn is_invisible(char: char) -> bool {
    matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escape(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_harm_a_terminal_is_shown_as_numbers() {
        let name = Name::new(b"caf\xc3\xa9 \x1b[2J\\\xff\xe2\x80\xae.mp4".to_vec());
        assert_eq!(name.to_string(), r"café \x1b[2J\x5c\xff\xe2\x80\xae.mp4");
    }

    #[test]
    fn half_a_pair_of_utf16_is_a_name_of_its_own() {
        let units = |text: &str| text.encode_utf16().collect::<Vec<_>>();
        assert_eq!(Name::from_utf16(units("日本🎬")), Name::from("日本🎬"));
        let half = Name::from_utf16([0xd83c, u16::from(b'a')]);
        assert_eq!(half.as_bytes(), b"\xed\xa0\xbca");
        assert_eq!(half.as_str(), None);
    }

    #[test]
    fn the_case_of_letters_does_not_matter_where_they_have_two() {
        let folded = |text: &str| Name::from(text).folded();
        assert_eq!(folded("Straße É.MP4"), folded("straße é.mp4"));
        assert_ne!(folded("strasse"), folded("straße"));
    }
}
