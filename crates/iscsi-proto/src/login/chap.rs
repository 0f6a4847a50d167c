//! CHAP: proof of a shared secret without sending it, one way or both (RFC 7143 §12.1.3, RFC 1994,
//! §9.2.1). It draws no random number: challenges come in as arguments. It keeps no state: the two
//! logins do.

use std::fmt;

use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::Sha256;
use sha3::Sha3_256;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::keys::value::{parse_binary, parse_number};

/// Length of the challenges we send: as long as the longest hash, so that none is cut short.
pub const CHALLENGE_LEN: usize = 32;

/// Random bytes of a secret that we make.
pub const SECRET_BYTES: usize = 16;

/// A new secret as text: hexadecimal digits stand in every configuration file, and every peer takes
/// their bytes for the secret. No random number is drawn here.
//= https://www.rfc-editor.org/rfc/rfc7143#section-9.2.1
//# Implementations MUST support the use of up to 128-bit random CHAP secrets, including the means to
//# generate such secrets and to accept them from an external generation source.
pub fn secret_text(random: [u8; SECRET_BYTES]) -> String {
    random.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Longest challenge a peer may send (§12.1.3).
//= https://www.rfc-editor.org/rfc/rfc7143#section-12.1.3
//# Their binary length (not the length of the character string that represents them in encoded
//# form) MUST NOT exceed 1024 bytes.
pub const CHALLENGE_MAX: usize = 1024;

/// A hash, by its number in the IANA registry "iSCSI CHAP algorithms" (CHAP_A).
//= https://www.rfc-editor.org/rfc/rfc7143#section-9.2.1
//# Compliant iSCSI initiators and targets MUST implement the CHAP authentication method [RFC1994]
//# (according to Section 12.1.3, including the target authentication option).
//= https://www.rfc-editor.org/rfc/rfc7143#section-12.1
//# Authentication is OPTIONAL to use but MUST be supported by the target and initiator.
//= https://www.rfc-editor.org/rfc/rfc7143#section-12.1
//# The initiator and target MUST implement CHAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// MD5: the one every implementation has.
    Md5,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA3-256.
    Sha3_256,
}

impl Algorithm {
    /// All of them, the strongest first.
    pub const ALL: [Self; 4] = [Self::Sha3_256, Self::Sha256, Self::Sha1, Self::Md5];

    /// What an initiator offers if nothing else is configured; a target takes the first one it
    /// knows. SHA-256 comes last: targets that have it have SHA3-256 too (LIO), while tgt 1.0.85
    /// answers to its number with SHA-1, and a login with it fails.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-12.1.3
    //# To guarantee interoperability, initiators MUST always offer it as one of the proposed
    //# algorithms.
    pub const OFFERED: [Self; 4] = [Self::Sha3_256, Self::Sha1, Self::Md5, Self::Sha256];

    /// Its name, as in a configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Md5 => "MD5",
            Self::Sha1 => "SHA-1",
            Self::Sha256 => "SHA-256",
            Self::Sha3_256 => "SHA3-256",
        }
    }

    /// The number on the wire.
    pub const fn number(self) -> u8 {
        match self {
            Self::Md5 => 5,
            Self::Sha1 => 6,
            Self::Sha256 => 7,
            Self::Sha3_256 => 8,
        }
    }

    /// Length of a response in bytes.
    pub const fn response_len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 | Self::Sha3_256 => 32,
        }
    }

    /// The first algorithm of a CHAP_A list that is allowed.
    pub fn choose(list: &str, allowed: &[Self]) -> Option<Self> {
        list.split(',').find_map(|item| {
            let number = parse_number(item)?;
            allowed.iter().copied().find(|algorithm| u64::from(algorithm.number()) == number)
        })
    }

    /// CHAP_A for a list of algorithms.
    pub fn list(algorithms: &[Self]) -> String {
        let numbers: Vec<_> = algorithms.iter().map(|a| a.number().to_string()).collect();
        numbers.join(",")
    }

    /// The response to a challenge: hash of identifier, secret and challenge.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-9.2
    //# Therefore, a method using cleartext (or equivalent) passwords MUST NOT be used; on the other
    //# hand, identity protection is not strictly required.
    pub fn respond(self, identifier: u8, secret: &Secret, challenge: &[u8]) -> Vec<u8> {
        fn hash<H: Digest>(identifier: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
            let hash = H::new().chain_update([identifier]).chain_update(secret);
            hash.chain_update(challenge).finalize().to_vec()
        }
        let compute = match self {
            Self::Md5 => hash::<Md5>,
            Self::Sha1 => hash::<Sha1>,
            Self::Sha256 => hash::<Sha256>,
            Self::Sha3_256 => hash::<Sha3_256>,
        };
        compute(identifier, &secret.0, challenge)
    }

    /// Whether `response` answers the challenge. Takes the same time and the same path whether the
    /// user is unknown (`secret` is `None`) or the response is wrong.
    pub fn verify(
        self,
        identifier: u8,
        secret: Option<&Secret>,
        challenge: &[u8],
        response: &[u8],
    ) -> bool {
        let nobody = Secret::new(vec![0; 16]);
        let expected = self.respond(identifier, secret.unwrap_or(&nobody), challenge);
        let fits: bool = expected.ct_eq(response).into();
        fits & secret.is_some()
    }
}

/// A CHAP secret. Never printed; its memory is overwritten when it is dropped.
//= https://www.rfc-editor.org/rfc/rfc7143#section-9.2.1
//# CHAP secrets MUST be an integral number of bytes (octets).
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Shortest secret that withstands guessing from a captured login (§9.2.1): 96 bits.
    pub const LEN_RECOMMENDED: usize = 12;

    /// A secret from its bytes.
    pub fn new(secret: impl Into<Vec<u8>>) -> Self {
        Self(Zeroizing::new(secret.into()))
    }

    /// Shorter than the RFC wants where no IPsec protects the link; worth a warning.
    pub fn is_short(&self) -> bool {
        self.0.len() < Self::LEN_RECOMMENDED
    }

    /// The same secret, compared in constant time.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Who one is, and the secret that proves it.
#[derive(Clone, Debug)]
pub struct ChapCredentials {
    /// CHAP_N.
    pub user: String,
    /// The secret.
    pub secret: Secret,
}

/// Identifier and challenge for one login, from a cryptographic random source. Never used twice.
#[derive(Clone, Debug)]
pub struct ChapRandom {
    /// CHAP_I.
    pub identifier: u8,
    /// CHAP_C.
    pub challenge: [u8; CHALLENGE_LEN],
}

impl ChapRandom {
    /// From that many random bytes.
    pub fn from_bytes(bytes: [u8; 1 + CHALLENGE_LEN]) -> Self {
        let [identifier, challenge @ ..] = bytes;
        Self { identifier, challenge }
    }
}

/// Why CHAP failed. The peer is told no more than "authentication failure".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChapError {
    /// A CHAP key that has to come now is missing.
    #[error("{key} is missing")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A key that came in the wrong place, or cannot be decoded, or has an impossible length.
    #[error("{key} is not valid here")]
    Invalid {
        /// The key.
        key: &'static str,
    },
    /// None of the algorithms offered is allowed.
    #[error("no common algorithm in CHAP_A={offered}")]
    Algorithm {
        /// The peer's CHAP_A.
        offered: String,
    },
    /// The peer sent our own challenge back, to have us answer it.
    #[error("the peer reflects our challenge")]
    Reflected,
    /// Both directions use the same secret, so that one side can have the other compute its proof.
    #[error("the same secret in both directions")]
    SameSecret,
    /// The peer asks for a proof that we have no secret for.
    #[error("the peer asks for mutual authentication, which is not configured")]
    NotMutual,
    /// Unknown user, or wrong secret.
    #[error("{user:?} did not prove its identity")]
    Failed {
        /// CHAP_N.
        user: String,
    },
}

/// CHAP_I of the peer.
pub(super) fn parse_identifier(value: &str) -> Result<u8, ChapError> {
    let number = parse_number(value).and_then(|number| u8::try_from(number).ok());
    number.ok_or(ChapError::Invalid { key: "CHAP_I" })
}

/// CHAP_C of the peer; `ours` is the challenge we sent or will send.
pub(super) fn parse_challenge(value: &str, ours: &[u8]) -> Result<Vec<u8>, ChapError> {
    let challenge =
        parse_binary(value, CHALLENGE_MAX).ok_or(ChapError::Invalid { key: "CHAP_C" })?;
    //= https://www.rfc-editor.org/rfc/rfc7143#section-9.2.1
    //# Originators MUST NOT reuse the CHAP challenge sent by the responder for the other direction
    //# of a bidirectional authentication.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-9.2.1
    //# Responders MUST check for this condition and close the iSCSI TCP connection if it occurs.
    if challenge == ours {
        return Err(ChapError::Reflected);
    }
    Ok(challenge)
}

/// CHAP_R of the peer, exactly as long as the hash.
pub(super) fn parse_response(value: &str, algorithm: Algorithm) -> Result<Vec<u8>, ChapError> {
    parse_binary(value, algorithm.response_len())
        .filter(|response| response.len() == algorithm.response_len())
        .ok_or(ChapError::Invalid { key: "CHAP_R" })
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-9.2.1
//# Any CHAP secret used for initiator authentication MUST NOT be configured for authentication of
//# any target, and any CHAP secret used for target authentication MUST NOT be configured for
//# authentication of any initiator.
//= https://www.rfc-editor.org/rfc/rfc7143#section-9.2.1
//# If the CHAP response received by one end of an iSCSI connection is the same as the CHAP response
//# that the receiving endpoint would have generated for the same CHAP challenge, the response MUST
//# be treated as an authentication failure and cause the connection to close (this ensures that the
//# same CHAP secret is not used for authentication in both directions).
pub(super) fn check_secrets_differ(one: &Secret, other: &Secret) -> Result<(), ChapError> {
    if one.is_same(other) { Err(ChapError::SameSecret) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with Python's hashlib over 0x2a, "correct horse" and the bytes 0 to 15.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-9.2
    //= type=test
    //# Therefore, a method using cleartext (or equivalent) passwords MUST NOT be used; on the other
    //# hand, identity protection is not strictly required.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-9.2.1
    //= type=test
    //# CHAP secrets MUST be an integral number of bytes (octets).
    #[test]
    fn responses_are_hashes_of_identifier_secret_challenge() {
        let challenge: Vec<u8> = (0..16).collect();
        let secret = Secret::new("correct horse");
        for (algorithm, expected) in VECTORS {
            let response = algorithm.respond(0x2a, &secret, &challenge);
            assert_eq!(parse_binary(expected, 32), Some(response.clone()), "{algorithm:?}");
            assert_eq!(response.len(), algorithm.response_len());
            assert!(algorithm.verify(0x2a, Some(&secret), &challenge, &response));
            assert!(!algorithm.verify(0x2b, Some(&secret), &challenge, &response));
            assert!(!algorithm.verify(0x2a, Some(&Secret::new("x")), &challenge, &response));
            assert!(!algorithm.verify(0x2a, None, &challenge, &response));
            assert!(!algorithm.verify(0x2a, Some(&secret), &challenge, &response[1..]));
            assert!(!algorithm.verify(0x2a, Some(&secret), &challenge, &[]));
        }
    }

    const VECTORS: [(Algorithm, &str); 4] = [
        (Algorithm::Md5, "0xfc73c22f9704f64cbb0c3fa1b242791e"),
        (Algorithm::Sha1, "0x870a1a8fbcadb9a684b53cfe8839fb36c4a72944"),
        (Algorithm::Sha256, "0x0062c8896cddd4635141c07841fe8cd9d08764cd1b08b3cd3c10e34077e8ced3"),
        (Algorithm::Sha3_256, "0xc87508e42c9a18a157ecaf58885e8e697982108d7bc3650b9a3fb6471b8302eb"),
    ];

    #[test]
    fn an_unknown_user_is_not_the_one_with_the_dummy_secret() {
        let dummy = Secret::new(vec![0; 16]);
        let response = Algorithm::Md5.respond(1, &dummy, b"challenge");
        assert!(!Algorithm::Md5.verify(1, None, b"challenge", &response));
    }

    #[test]
    fn secrets_are_not_printed() {
        let credentials =
            ChapCredentials { user: "alice".to_owned(), secret: Secret::new("hunter2hunter2") };
        assert!(!format!("{credentials:?}").contains("hunter2"));
        assert!(!credentials.secret.is_short());
        assert!(Secret::new("hunter2").is_short());
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-12.1.3
    //= type=test
    //# Their binary length (not the length of the character string that represents them in encoded
    //# form) MUST NOT exceed 1024 bytes.
    #[test]
    fn values_of_the_wrong_length_are_refused() {
        assert!(parse_challenge("0x01", &[]).is_ok());
        assert!(parse_challenge(&format!("0x{}", "00".repeat(1024)), &[]).is_ok());
        assert!(parse_challenge(&format!("0x{}", "00".repeat(1025)), &[]).is_err());
        assert!(parse_response(&format!("0x{}", "00".repeat(16)), Algorithm::Md5).is_ok());
        assert!(parse_response(&format!("0x{}", "00".repeat(15)), Algorithm::Md5).is_err());
        assert!(parse_response(&format!("0x{}", "00".repeat(16)), Algorithm::Sha1).is_err());
        assert_eq!(parse_identifier("255"), Ok(255));
        assert!(parse_identifier("256").is_err());
    }
}
