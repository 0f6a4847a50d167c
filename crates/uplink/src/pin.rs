//! [`Pin`]: by what the other end is known: the SHA-256 of its public key, as it stands in a
//! certificate (SubjectPublicKeyInfo, RFC 5280 §4.1), which RFC 7469 pins, too. A certificate that
//! is made anew with the same key has the same.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;
use rustls::server::ParsedCertificate;
use sha2::{Digest, Sha256};

/// The hash of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pin([u8; 32]);

/// Why a text is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no hash of a key: 64 hexadecimal digits are allowed, with colons between or without"
)]
pub struct PinError(String);

impl Pin {
    /// The pin of the key in a certificate.
    ///
    /// # Errors
    /// It is no certificate.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Self, rustls::Error> {
        let key = ParsedCertificate::try_from(certificate)?.subject_public_key_info();
        Ok(Self(Sha256::digest(key.as_ref()).into()))
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({self})")
    }
}

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let wrong = || PinError(text.chars().take(100).collect());
        let digits: Option<Vec<u8>> = text
            .trim()
            .chars()
            .filter(|letter| *letter != ':')
            .map(|letter| letter.to_digit(16).map(|digit| digit as u8))
            .collect();
        let digits = digits.filter(|digits| digits.len() == 64).ok_or_else(wrong)?;
        let mut hash = [0; 32];
        hash.iter_mut().zip(digits.chunks(2)).for_each(|(byte, two)| *byte = two[0] << 4 | two[1]);
        Ok(Self(hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let text = "00ff".repeat(16);
        let pin: Pin = text.parse().unwrap();
        assert_eq!(pin.to_string(), text);
        let pairs: Vec<String> = (0..32).map(|at| text[at * 2..][..2].to_uppercase()).collect();
        assert_eq!(pairs.join(":").parse(), Ok(pin));
        for wrong in ["", "00", &"0".repeat(63), &"0".repeat(65), &"g".repeat(64)] {
            let error = wrong.parse::<Pin>().unwrap_err().to_string();
            assert!(error.contains("64 hexadecimal digits"), "{error}");
        }
    }
}
