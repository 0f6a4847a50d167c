//! [`Source`]: a file as ffmpeg reads it, by ranges, over a port of this machine that is there for
//! one process and as long as it runs.
//!
//! The process takes it for an HTTP proxy (RFC 9110 §3.7) whose password is in its environment,
//! which other users of this machine cannot see, as they can its words. Whatever address it may
//! come to ask for by HTTP, this file is all that there is.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{
    CONTENT_LENGTH, HeaderMap, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use sha2::{Digest, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tracing::debug;

use crate::lease::Lent;
use crate::respond::{AnyBody, respond};
use crate::text::hex;

/// Connections at once. ffmpeg has one, and for a moment the next.
const CONNECTIONS_MAX: usize = 8;
/// How long the head of a request may take, from this machine.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, as when there are too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
const USER: &str = "ffmpeg";
const PASSWORD_BYTES: usize = 16;

/// A file that one process may read. When it is dropped, nobody may, and nothing is read.
pub(super) struct Source {
    address: SocketAddr,
    password: String,
    _serving: JoinSet<()>,
}

struct Shared {
    lent: Lent,
    /// Hash of what has to be said: comparing it tells nothing of it.
    expected: [u8; 32],
}

impl Source {
    /// Lends it until it is dropped.
    ///
    /// # Errors
    /// There is no port, or there are no random numbers.
    pub(super) async fn open(lent: Lent) -> io::Result<Self> {
        let mut password = [0; PASSWORD_BYTES];
        getrandom::fill(&mut password).map_err(|error| io::Error::other(error.to_string()))?;
        let password = hex(&password);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let said = format!("Basic {}", STANDARD.encode(format!("{USER}:{password}")));
        let shared = Shared { lent, expected: Sha256::digest(said).into() };
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, Arc::new(shared)));
        Ok(Self { address, password, _serving: serving })
    }

    /// What the process is told in `http_proxy`.
    pub(super) fn proxy(&self) -> String {
        format!("http://{USER}:{}@{}", self.password, self.address)
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut clients = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY).await;
            continue;
        };
        while clients.try_join_next().is_some() {}
        if clients.len() < CONNECTIONS_MAX {
            clients.spawn(hold(stream, Arc::clone(&shared)));
        }
    }
}

async fn hold(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(|request: Request<Incoming>| {
        let answer = shared.answer(&request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        debug!(%error, "a program has left, as it does to read elsewhere");
    }
}

impl Shared {
    fn answer<B>(&self, request: &Request<B>) -> Response<AnyBody> {
        if !self.knows(request.headers()) {
            let mut answer = Response::new(Either::Right(Full::default()));
            *answer.status_mut() = StatusCode::PROXY_AUTHENTICATION_REQUIRED;
            let fields = answer.headers_mut();
            let scheme = HeaderValue::from_static("Basic realm=\"video\"");
            fields.insert(PROXY_AUTHENTICATE, scheme);
            fields.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
            return answer;
        }
        let answer = respond(request.method(), request.headers(), &self.lent.resource);
        answer.map(|body| match body {
            Either::Left(body) => Either::Left(body.with_holder(self.lent.part())),
            nothing => nothing,
        })
    }

    fn knows(&self, fields: &HeaderMap) -> bool {
        let said = fields.get(PROXY_AUTHORIZATION).map(HeaderValue::as_bytes);
        said.is_some_and(|said| <[u8; 32]>::from(Sha256::digest(said)) == self.expected)
    }
}
