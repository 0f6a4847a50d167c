//! [`Identity`]: a key of an end, and the TLS (1.3, RFC 8446) that it speaks with it. Who has the
//! key is the peer; names, dates and authorities of certificates say nothing here.

use std::sync::Arc;
use std::{fmt, io};

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct,
    DistinguishedName as RawName, Error, ServerConfig, SignatureScheme,
};
use zeroize::Zeroizing;

use crate::{ALPN, Pin};

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The text is no private key.
    #[error("it is no private key in PEM: {0}")]
    Key(rcgen::Error),
    /// No key can be made, or no certificate of one.
    #[error("cannot make a key: {0}")]
    Make(rcgen::Error),
    /// The key cannot be used for TLS.
    #[error("the key cannot be used: {0}")]
    Use(#[from] Error),
}

/// A key, and what it is known by.
pub struct Identity {
    pin: Pin,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("pin", &self.pin).finish_non_exhaustive()
    }
}

impl Identity {
    /// A new key, as PEM, for a file that nobody else can read.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate() -> Result<Zeroizing<String>, IdentityError> {
        let pair = KeyPair::generate().map_err(IdentityError::Make)?;
        Ok(Zeroizing::new(pair.serialize_pem()))
    }

    /// That of a key in PEM.
    ///
    /// # Errors
    /// It is none.
    pub fn from_pem(pem: &str) -> Result<Self, IdentityError> {
        let pair = KeyPair::from_pem(pem).map_err(IdentityError::Key)?;
        // TLS wants the key in a certificate. Made anew each time: nobody looks at the rest of it.
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "enkaku uplink");
        let certificate = params.self_signed(&pair).map_err(IdentityError::Make)?;
        let certificate = CertificateDer::from(certificate);
        let pin = Pin::of(&certificate)?;
        let key = PrivateKeyDer::try_from(pair.serialize_der())
            .map_err(|what| Error::General(what.to_owned()))?;
        Ok(Self { pin, certificate, key })
    }

    /// By what others know it.
    pub fn pin(&self) -> Pin {
        self.pin
    }

    /// TLS of a home whose server has this key.
    pub(crate) fn at_home(&self, server: Pin) -> Result<Arc<ClientConfig>, Error> {
        let provider = Arc::new(ring::default_provider());
        let peer = Peers { allowed: Arc::new(move |pin| *pin == server), provider };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&peer.provider))
            .with_protocol_versions(&[&TLS13])?;
        let mut config = builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(peer))
            .with_client_auth_cert(vec![self.certificate.clone()], self.key.clone_key())?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// TLS of a server that lets in who has a key that is allowed at that moment.
    pub(crate) fn at_server(&self, allowed: Allowed) -> Result<Arc<ServerConfig>, Error> {
        let provider = Arc::new(ring::default_provider());
        let peers = Peers { allowed, provider };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&peers.provider))
            .with_protocol_versions(&[&TLS13])?;
        let mut config = builder
            .with_client_cert_verifier(Arc::new(peers))
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Who resumes a session shows no key, and may have been removed since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// Which keys may be the peer's.
pub(crate) type Allowed = Arc<dyn Fn(&Pin) -> bool + Send + Sync>;

/// Takes who has one of these keys, and shows so: the handshake's signature is by it.
struct Peers {
    allowed: Allowed,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peers")
    }
}

impl Peers {
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let pin = Pin::of(certificate)?;
        match (self.allowed)(&pin) {
            true => Ok(()),
            false => {
                let refused = Unpinned(pin);
                let error = rustls::OtherError(Arc::new(refused));
                Err(Error::InvalidCertificate(CertificateError::Other(error)))
            }
        }
    }

    fn check_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The peer has a key that is not the one, or not one of those, that it is to have.
#[derive(Debug, thiserror::Error)]
#[error("its key is {0}, which is not known here")]
struct Unpinned(Pin);

/// What a failed handshake or the first read behind it says, in words of ours where a key is why.
pub(crate) fn told(error: io::Error) -> io::Error {
    let why = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let text = match why {
        Some(Error::InvalidCertificate(CertificateError::Other(rustls::OtherError(other)))) => {
            other.to_string()
        }
        Some(Error::AlertReceived(AlertDescription::CertificateUnknown)) => {
            "the other end does not know our key".to_owned()
        }
        _ => return error,
    };
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// TLS 1.2 is not spoken, so nothing of it is ever to be checked.
fn not_spoken() -> Error {
    Error::General("TLS 1.2 is not spoken".into())
}

impl ServerCertVerifier for Peers {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(certificate).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(not_spoken())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Peers {
    fn root_hint_subjects(&self) -> &[RawName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(certificate).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(not_spoken())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_by_the_same_hash_whenever_it_is_read() {
        let pem = Identity::generate().unwrap();
        let (one, again) = (Identity::from_pem(&pem).unwrap(), Identity::from_pem(&pem).unwrap());
        assert_eq!(one.pin(), again.pin());
        let other = Identity::from_pem(&Identity::generate().unwrap()).unwrap();
        assert_ne!(one.pin(), other.pin());
        let error = Identity::from_pem("-----BEGIN NOTHING-----").unwrap_err().to_string();
        assert!(error.starts_with("it is no private key in PEM"), "{error}");
    }
}
