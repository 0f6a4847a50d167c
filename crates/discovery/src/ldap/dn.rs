//! Names of entries as text (RFC 4514): made of values that may hold anything, and read.

/// The name of an entry directly below `base`, whose own attribute has this value.
#[must_use]
pub fn below(attribute: &str, value: &str, base: &str) -> String {
    format!("{attribute}={},{base}", ldap3::dn_escape(value.to_owned()))
}

/// The value that an attribute has in the entry's own (first) part of a name: `anna` for `uid` in
/// `uid=anna,ou=people,dc=example`. Nothing if it has none, or if it is no text.
#[must_use]
pub fn first(dn: &str, attribute: &str) -> Option<String> {
    let mut rest = dn.trim_start();
    loop {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = value(after.trim_start_matches(' '))?;
        if name.trim().eq_ignore_ascii_case(attribute) {
            return Some(value).filter(|value| !value.is_empty());
        }
        rest = after.strip_prefix('+')?.trim_start();
    }
}

/// A value, and what follows it: nothing, or what begins with `,` or `+`.
fn value(text: &str) -> Option<(String, &str)> {
    if text.starts_with(['#', '"']) {
        return None; // BER in hexadecimal digits; RFC 2253's quotes
    }
    let (bytes, mut value, mut at) = (text.as_bytes(), Vec::new(), 0);
    // A space that is not escaped belongs to the value only if something follows it.
    let mut kept = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b',' | b'+' | b';' => break,
            b'\\' => {
                let pair = text.get(at + 1..at + 3);
                let code = pair.filter(|pair| pair.bytes().all(|digit| digit.is_ascii_hexdigit()));
                match code.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
                    Some(code) => (value.push(code), at += 3).1,
                    None => (value.push(*bytes.get(at + 1)?), at += 2).1,
                }
                kept = value.len();
            }
            _ => {
                value.push(byte);
                at += 1;
                if byte != b' ' {
                    kept = value.len();
                }
            }
        }
    }
    value.truncate(kept);
    Some((String::from_utf8(value).ok()?, text.get(at..)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_account_is_the_first_part() {
        let uid = |dn: &str| first(dn, "uid");
        assert_eq!(uid("uid=anna,ou=people,dc=example").as_deref(), Some("anna"));
        assert_eq!(uid("UID = anna , dc=example").as_deref(), Some("anna"));
        assert_eq!(uid("cn=Anna+uid=an\\2cna,dc=example").as_deref(), Some("an,na"));
        assert_eq!(uid("uid=\\C3\\BC\\ ,dc=example").as_deref(), Some("ü "));
        for none in ["", "uid", "cn=x,uid=anna", "uid=#04024869", "uid=", "uid=a\\", "uid=\\ff"] {
            assert_eq!(uid(none), None, "{none}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(value in "(\\PC|[ ,+\"\\\\<>;=#*()\0]){1,12}") {
            let dn = below("cn", &value, "dc=example");
            prop_assert_eq!(first(&dn, "cn"), Some(value));
        }

        #[test]
        fn anything_can_be_looked_at(dn in "\\PC*") {
            let _ = first(&dn, "uid");
        }
    }
}
