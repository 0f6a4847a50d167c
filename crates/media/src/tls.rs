//! [`Tls`]: the certificate and key that the page is served with, given by its owner or made here:
//! then it is one for the server's names that signs itself, kept in the state folder, and browsers
//! are shown its fingerprint.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

use crate::state::{StateError, StateFolder, check_is_private, load, save, write_private};
use crate::text::unix_now;

/// How long a certificate of ours is valid: Apple's systems take none of more than 825 days, even
/// if its owner trusts it.
const LIFE_S: u64 = 800 * 24 * 3600;
/// So long before its end, another one is made.
const RENEWED_BEFORE_S: u64 = 30 * 24 * 3600;
/// It begins yesterday, for clocks that are late.
const BEGUN_BEFORE_S: u64 = 24 * 3600;

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const ABOUT: &str = "tls.json";

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// One of its files.
    #[error(transparent)]
    File(#[from] StateError),
    /// Certificate and key do not fit together, or a certificate cannot be made.
    #[error("TLS: {0}")]
    Wrong(String),
}

/// How browsers are spoken to.
#[derive(Clone)]
pub struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    fingerprint: String,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("fingerprint", &self.fingerprint).finish()
    }
}

/// What is known of a certificate that was made here.
#[derive(Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    names: Vec<String>,
    until: u64,
}

impl Tls {
    /// With a chain of certificates and a key in PEM.
    ///
    /// # Errors
    /// They cannot be read or do not fit together, or others can read the key.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let wrong = |path: &Path, what: &str, error: &dyn std::fmt::Display| {
            StateError::new(path, format!("it is no {what} in PEM: {error}"))
        };
        check_is_private(key)?;
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<CertificateDer<'static>>, _>>)
            .map_err(|error| wrong(certificate, "certificate", &error))?;
        let Some(first) = chain.first() else {
            return Err(wrong(certificate, "certificate", &"there is none in it").into());
        };
        let fingerprint = fingerprint(first);
        let secret =
            PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, "key", &error))?;
        let told = |error: rustls::Error| {
            let (certificate, key) = (certificate.display(), key.display());
            TlsError::Wrong(format!("{certificate} and {key}: {error}"))
        };
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(told)?;
        let mut config =
            config.with_no_client_auth().with_single_cert(chain, secret).map_err(told)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), fingerprint })
    }

    /// With a certificate of our own for these names and addresses, which is made if there is none,
    /// or if it is about to end.
    ///
    /// # Errors
    /// The folder cannot be used, or a name is none.
    pub fn self_signed(folder: &StateFolder, names: &[String]) -> Result<Self, TlsError> {
        let files = [CERTIFICATE, KEY, ABOUT].map(|name| folder.file(name));
        let [certificate, key, about] = &files;
        let known: About = load(about)?;
        let is_usable = known.names == names && known.until > unix_now() + RENEWED_BEFORE_S;
        if !is_usable || !certificate.exists() || !key.exists() {
            make(&files, names)?;
        }
        Self::from_files(certificate, key)
    }

    /// SHA-256 of the certificate, as browsers show it.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// Makes a certificate. What says that it is whole is written last.
fn make([certificate, key, about]: &[PathBuf; 3], names: &[String]) -> Result<(), TlsError> {
    let wrong = |error: rcgen::Error| TlsError::Wrong(format!("no certificate: {error}"));
    let mut params = CertificateParams::new(names.to_vec()).map_err(wrong)?;
    let now = unix_now();
    let time = |seconds| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    params.not_before = time(now.saturating_sub(BEGUN_BEFORE_S));
    params.not_after = time(now + LIFE_S);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "enkaku media");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let pair = KeyPair::generate().map_err(wrong)?;
    let signed = params.self_signed(&pair).map_err(wrong)?;
    let write = |path: &Path, text: &str| {
        write_private(path, text.as_bytes()).map_err(|error| StateError::new(path, error))
    };
    write(key, &zeroize::Zeroizing::new(pair.serialize_pem()))?;
    write(certificate, &signed.pem())?;
    save(about, &About { names: names.to_vec(), until: now + LIFE_S })?;
    Ok(())
}

fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    let hash = Sha256::digest(certificate.as_ref());
    let bytes: Vec<String> = hash.iter().map(|byte| format!("{byte:02X}")).collect();
    bytes.join(":")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_certificate_of_our_own_is_kept_as_long_as_its_names_are_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::open(&folder.path().join("state")).unwrap();
        let some = names(&["films.example", "127.0.0.1", "::1"]);
        let first = Tls::self_signed(&state, &some).unwrap();
        assert_eq!(first.fingerprint().len(), 32 * 3 - 1);
        let again = Tls::self_signed(&state, &some).unwrap();
        assert_eq!(first.fingerprint(), again.fingerprint());
        let mode = std::fs::metadata(state.file(KEY)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = Tls::self_signed(&state, &names(&["other.example"])).unwrap();
        assert_ne!(first.fingerprint(), other.fingerprint());
        // One that is about to end is made anew.
        let until = unix_now() + RENEWED_BEFORE_S - 1;
        save(&state.file(ABOUT), &About { names: names(&["other.example"]), until }).unwrap();
        let renewed = Tls::self_signed(&state, &names(&["other.example"])).unwrap();
        assert_ne!(renewed.fingerprint(), other.fingerprint());
    }

    #[test]
    fn files_that_are_none_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| {
            let state = StateFolder::open(&folder.path().join(name)).unwrap();
            Tls::self_signed(&state, &names(&["films.example"])).unwrap();
            state
        });
        let said = |certificate: &Path, key: &Path| {
            Tls::from_files(certificate, key).unwrap_err().to_string()
        };
        let (certificate, key) = (one.file(CERTIFICATE), one.file(KEY));
        let mixed = said(&certificate, &other.file(KEY));
        assert!(mixed.contains("tls.crt and ") && mixed.starts_with("TLS: "), "{mixed}");
        assert!(said(&key, &key).contains("no certificate in PEM"), "{}", said(&key, &key));
        let swapped = said(&certificate, &certificate);
        assert!(swapped.contains("no key in PEM"), "{swapped}");
        assert!(said(&certificate, &folder.path().join("x")).contains("No such file"));
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(said(&certificate, &key).contains("mode 640"), "{}", said(&certificate, &key));
    }
}
