//! [`Conversation`]: one browser's connection, with TLS or without, from its first byte to its end.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HOST;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use crate::answers::{Answer, elsewhere, text};
use crate::guard::Guarded;
use crate::route::{App, answer, is_own};

/// Bytes of the head of a request. Browsers send one or two thousand.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Fields of it.
const FIELDS_MAX: usize = 64;
/// Bytes of answers in the kernel for one client: what is there is lost when it seeks.
const SEND_BUFFER_BYTES: usize = 1 << 20;
/// First byte of TLS: a record of the handshake (RFC 8446 §5.1). No method of HTTP begins so.
const HANDSHAKE: u8 = 22;

/// What all connections have in common.
#[derive(Clone)]
pub(crate) struct Conversation {
    pub(crate) app: Arc<App>,
    /// With TLS alone, if there is some.
    pub(crate) tls: Option<TlsAcceptor>,
    /// How long a client may take for the head of a request, and for a handshake.
    pub(crate) head_timeout: Duration,
    /// How long a client may take nothing of what it has asked for.
    pub(crate) patience: Duration,
}

impl Conversation {
    /// Answers one client until it leaves or is left.
    pub(crate) async fn hold(self, stream: TcpStream, peer: IpAddr) {
        // Without these it works as well.
        let _ = stream.set_nodelay(true);
        let _ = socket2::SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER_BYTES);
        let Some(tls) = &self.tls else {
            return self.serve(Guarded::new(stream, self.patience), peer, false).await;
        };
        let mut first = [0];
        match timeout(self.head_timeout, stream.peek(&mut first)).await {
            Ok(Ok(1)) if first[0] == HANDSHAKE => {}
            Ok(Ok(1)) => {
                return self.serve(Guarded::new(stream, self.patience), peer, true).await;
            }
            _ => return,
        }
        let stream = Guarded::new(stream, self.patience);
        match timeout(self.head_timeout, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.serve(stream, peer, false).await,
            Ok(Err(error)) => debug!(%peer, %error, "handshake"),
            Err(_) => debug!(%peer, "no handshake"),
        }
    }

    /// Who speaks in the clear where TLS is expected is told where to go.
    async fn serve<S>(&self, stream: S, peer: IpAddr, is_astray: bool)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let service = service_fn(|request| {
            let app = Arc::clone(&self.app);
            async move {
                Ok::<_, Infallible>(match is_astray {
                    true => astray(&app, &request),
                    false => answer(&app, peer, request).await,
                })
            }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.head_timeout)
            .keep_alive(!is_astray)
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(FIELDS_MAX)
            .serve_connection(TokioIo::new(stream), service)
            .await;
        if let Err(error) = served {
            debug!(%peer, %error, "client");
        }
    }
}

/// Redirects to the address with https, unless the request names a host that is not this server.
fn astray<B>(app: &App, request: &Request<B>) -> Answer {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    match host.filter(|host| is_own(host, &app.names)) {
        Some(host) => elsewhere(StatusCode::PERMANENT_REDIRECT, &format!("https://{host}{path}")),
        None => text(StatusCode::BAD_REQUEST, "this port speaks TLS alone: https://"),
    }
}
