//! The security keys of one text, each at most once.

use super::chap::ChapError;
use crate::keys::Key;

/// What came of AuthMethod and the CHAP keys.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SecurityKeys<'a> {
    pub(super) auth_method: Option<&'a str>,
    pub(super) chap_a: Option<&'a str>,
    pub(super) chap_i: Option<&'a str>,
    pub(super) chap_c: Option<&'a str>,
    pub(super) chap_n: Option<&'a str>,
    pub(super) chap_r: Option<&'a str>,
}

impl<'a> SecurityKeys<'a> {
    /// Sorts the pairs that the negotiation handed back.
    pub(super) fn collect(pairs: Vec<(Key, &'a str)>) -> Result<Self, ChapError> {
        let mut keys = Self::default();
        for (key, value) in pairs {
            let place = match key {
                Key::AuthMethod => &mut keys.auth_method,
                Key::ChapA => &mut keys.chap_a,
                Key::ChapI => &mut keys.chap_i,
                Key::ChapC => &mut keys.chap_c,
                Key::ChapN => &mut keys.chap_n,
                Key::ChapR => &mut keys.chap_r,
                _ => continue,
            };
            if place.replace(value).is_some() {
                return Err(ChapError::Invalid { key: key.name() });
            }
        }
        Ok(keys)
    }

    /// A CHAP key is there.
    pub(super) fn has_chap(&self) -> bool {
        let keys = [self.chap_a, self.chap_i, self.chap_c, self.chap_n, self.chap_r];
        keys.iter().any(Option::is_some)
    }
}

/// The value, or "missing".
pub(super) fn required<'a>(
    value: Option<&'a str>,
    key: &'static str,
) -> Result<&'a str, ChapError> {
    value.ok_or(ChapError::Missing { key })
}
