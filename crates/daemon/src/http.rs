//! Metrics and health over HTTP/1.1: two pages, read only. Whose they are, [`Pages`] says.

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

/// Clients at once: a few scrapers, and nobody who opens connections for fun.
const CLIENTS_MAX: usize = 32;

/// How long a client may take for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a connection may be used at all.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(120);

/// Pause after a failed accept, and how often it is told of.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
const COMPLAINT_EVERY: Duration = Duration::from_secs(60);

/// What the metrics page is.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Somebody who has both pages.
pub(crate) trait Pages: Send + Sync + 'static {
    /// OpenMetrics text of this moment.
    fn metrics(&self) -> Result<String, std::fmt::Error>;

    /// Is all well? And more about it.
    fn health(&self) -> (bool, serde_json::Value);
}

/// An address on which metrics will be served: its port is bound.
pub struct MetricsListener(TcpListener, SocketAddr);

impl MetricsListener {
    /// Binds it.
    ///
    /// # Errors
    /// The system's.
    pub async fn bind(address: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self(listener, address))
    }

    /// The address it has.
    pub fn address(&self) -> SocketAddr {
        self.1
    }

    /// Answers until the task is dropped.
    pub(crate) async fn serve(self, pages: Arc<dyn Pages>) {
        let mut clients = Clients::new(CLIENTS_MAX);
        let mut complained: Option<tokio::time::Instant> = None;
        loop {
            match self.0.accept().await {
                Ok((stream, _)) => {
                    let talk = talk(Arc::clone(&pages), stream);
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

async fn talk(pages: Arc<dyn Pages>, stream: TcpStream) {
    let answer = move |request: Request<Incoming>| {
        let pages = Arc::clone(&pages);
        async move { Ok::<_, Infallible>(answer(&*pages, request.method(), request.uri().path())) }
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

fn answer(pages: &dyn Pages, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let known = matches!(path, "/metrics" | "/health");
    if known && method != Method::GET && method != Method::HEAD {
        let mut response = page(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "GET only\n".into());
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/metrics" => match pages.metrics() {
            Ok(text) => page(StatusCode::OK, OPENMETRICS, text),
            Err(_) => page(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", String::new()),
        },
        "/health" => health(pages),
        _ => page(StatusCode::NOT_FOUND, "text/plain", "/metrics, /health\n".into()),
    }
}

/// 200 while all is well, 503 otherwise.
fn health(pages: &dyn Pages) -> Response<Full<Bytes>> {
    let (well, body) = pages.health();
    let status = if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    page(status, "application/json", format!("{body}\n"))
}

fn page(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let value = hyper::header::HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, value);
    response
}
