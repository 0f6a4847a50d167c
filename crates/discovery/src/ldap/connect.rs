//! The way to a server: TCP, and TLS at once (`ldaps`) or after StartTLS (RFC 4511 §4.14, RFC 4513
//! §3.1). ldap3 gets what comes of it; its own TLS would be behind the gate.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::gate::{self, Asked, Message};
use super::{LdapError, Settings};

/// Bytes of the answer to StartTLS.
const ANSWER_BYTES_MAX: usize = 4096;
/// An extended request of 1.3.6.1.4.1.1466.20037, number 1.
const START_TLS: &[u8] = b"\x30\x1d\x02\x01\x01\x77\x18\x80\x161.3.6.1.4.1.1466.20037";

/// What messages go over.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Opens it.
pub(super) async fn connect(settings: &Settings) -> Result<Box<dyn Stream>, LdapError> {
    let server = settings.address.server();
    let broken = |source| LdapError::Connection { server: server.clone(), source };
    let mut stream = TcpStream::connect(&server).await.map_err(broken)?;
    stream.set_nodelay(true).map_err(broken)?;
    if !settings.address.is_tls && !settings.is_starttls {
        return Ok(Box::new(stream));
    }
    let tls = |why: String| LdapError::Tls { server: server.clone(), why };
    if settings.is_starttls {
        start_tls(&mut stream).await.map_err(|error| tls(format!("StartTLS: {error}")))?;
    }
    let name = ServerName::try_from(settings.address.host.clone());
    let name = name.map_err(|error| tls(error.to_string()))?;
    let connector = TlsConnector::from(Arc::new(config(settings.ca.as_deref())?));
    let stream = connector.connect(name, stream).await.map_err(|error| {
        let hint = match (&settings.ca, error.to_string().contains("UnknownIssuer")) {
            (None, true) => " (--directory-ca names a certificate to be trusted)",
            _ => "",
        };
        tls(format!("{error}{hint}"))
    })?;
    Ok(Box::new(stream))
}

/// Asks for TLS, in the clear.
async fn start_tls(stream: &mut TcpStream) -> io::Result<()> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    stream.write_all(START_TLS).await?;
    let mut answer = Vec::new();
    let len = loop {
        match gate::length(&answer).map_err(wrong)? {
            Some(len) if len > ANSWER_BYTES_MAX => return Err(wrong("an answer that is none")),
            Some(len) if answer.len() >= len => break len,
            _ => {}
        }
        // One byte at a time: what follows is TLS's.
        answer.push(stream.read_u8().await?);
    };
    let answer = gate::check(&answer[..len]).map_err(wrong)?;
    let mut asked = Asked::default();
    asked.ask(START_TLS).and_then(|()| asked.answer(&answer)).map_err(wrong)?;
    match answer {
        Message::Result { code: 0, .. } => Ok(()),
        Message::Result { code, text, .. } => {
            Err(wrong(&format!("it refuses: result {code} {}", gate::shown(text))))
        }
        _ => Err(wrong("an answer that is none")),
    }
}

/// Who is trusted: the certificates of a file and no others, or else those of the system.
fn config(ca: Option<&Path>) -> Result<ClientConfig, LdapError> {
    let wrong = |problem: String| LdapError::Settings {
        place: ca.map_or("certificates of the system".into(), |path| path.display().to_string()),
        problem,
    };
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            let read = CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect::<Result<Vec<CertificateDer<'static>>, _>>);
            let read = read.map_err(|error| wrong(format!("no certificate in PEM: {error}")))?;
            for certificate in read {
                roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
            }
        }
        // One of them that is odd is no reason to trust none.
        None => {
            let _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(wrong("there is none that could be trusted".into()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(error.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
