//! Metrics and health over HTTP/1.1: two pages, read only.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, warn};

use crate::clients::Clients;
use crate::daemon::Daemon;
use crate::metrics;

/// Clients at once: a few scrapers, and nobody who opens connections for fun.
const CLIENTS_MAX: usize = 32;

/// How long a client may take for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a connection may be used at all.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(120);

/// Pause after a failed accept, and how often it is told of.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
const COMPLAINT_EVERY: Duration = Duration::from_secs(60);

/// A port that is bound.
pub(crate) struct Listening(TcpListener, SocketAddr);

impl Listening {
    pub(crate) async fn bind(address: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self(listener, address))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.1
    }

    /// Answers until the task is dropped.
    pub(crate) async fn serve(self, daemon: Arc<Daemon>) {
        let mut clients = Clients::new(CLIENTS_MAX);
        let mut complained: Option<tokio::time::Instant> = None;
        loop {
            match self.0.accept().await {
                Ok((stream, _)) => {
                    let talk = talk(Arc::clone(&daemon), stream);
                    clients.enter(async {
                        // Whoever is not done by then is not worth a word.
                        let _ = tokio::time::timeout(CONNECTION_TIMEOUT, talk).await;
                    });
                }
                Err(error) => {
                    if complained.is_none_or(|since| since.elapsed() >= COMPLAINT_EVERY) {
                        warn!(%error, "cannot accept a connection to the metrics");
                        complained = Some(tokio::time::Instant::now());
                    }
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }
}

async fn talk(daemon: Arc<Daemon>, stream: TcpStream) {
    let answer = move |request: Request<Incoming>| {
        let daemon = Arc::clone(&daemon);
        async move { Ok::<_, Infallible>(answer(&daemon, request.method(), request.uri().path())) }
    };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .await;
    if let Err(error) = served {
        debug!(%error, "metrics client");
    }
}

fn answer(daemon: &Daemon, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let known = matches!(path, "/metrics" | "/health");
    if known && method != Method::GET && method != Method::HEAD {
        let mut response = page(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "GET only\n".into());
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/metrics" => match metrics::render(daemon) {
            Ok(text) => page(StatusCode::OK, metrics::CONTENT_TYPE, text),
            Err(_) => page(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", String::new()),
        },
        "/health" => health(daemon),
        _ => page(StatusCode::NOT_FOUND, "text/plain", "/metrics, /health\n".into()),
    }
}

/// 200 while everything that is configured is served, 503 otherwise.
fn health(daemon: &Daemon) -> Response<Full<Bytes>> {
    let failures = daemon.lock().failures();
    let state = match (daemon.is_stopping(), failures.is_empty()) {
        (true, _) => "stopping",
        (false, true) => "healthy",
        (false, false) => "failed",
    };
    let body = serde_json::json!({
        "status": state,
        "failures": failures,
        "sessions": daemon.server.sessions().len(),
        "uptime_s": daemon.started.elapsed().as_secs(),
    });
    let status = if state == "healthy" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    page(status, "application/json", format!("{body}\n"))
}

fn page(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let value = hyper::header::HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, value);
    response
}
