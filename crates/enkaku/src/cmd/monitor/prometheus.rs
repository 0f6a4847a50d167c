//! The latest interval as OpenMetrics text over HTTP: one page, read only.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::Context;
use daemon::Clients;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tcpmon::row::Row;

use super::rounds::{Published, Round};
use crate::cmd::Usage;

const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Clients at once: a few scrapers.
const CLIENTS_MAX: usize = 16;
/// How long a client may take in all.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    local: String,
    remote: String,
    process: String,
    congestion_control: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Limit {
    local: String,
    remote: String,
    cause: &'static str,
}

type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;

/// Listens, says so, and answers in a thread of its own until the process ends.
pub(super) fn serve(address: SocketAddr) -> anyhow::Result<Published> {
    let published = Published::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = runtime
        .block_on(tokio::net::TcpListener::bind(address))
        .with_context(|| Usage(format!("cannot listen on {address}")))?;
    eprintln!("enkaku: metrics on http://{}/metrics", listener.local_addr()?);
    let shown = Arc::clone(&published);
    std::thread::Builder::new().name("metrics".into()).spawn(move || {
        runtime.block_on(accept(listener, shown));
    })?;
    Ok(published)
}

async fn accept(listener: tokio::net::TcpListener, published: Published) {
    let mut clients = Clients::new(CLIENTS_MAX);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let published = Arc::clone(&published);
        clients.enter(async move {
            let _ = tokio::time::timeout(CLIENT_TIMEOUT, talk(stream, published)).await;
        });
    }
}

async fn talk(stream: tokio::net::TcpStream, published: Published) -> hyper::Result<()> {
    let answer = move |request: Request<Incoming>| {
        let response = answer(&request, &published);
        async move { Ok::<_, Infallible>(response) }
    };
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CLIENT_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .await
}

fn answer(request: &Request<Incoming>, published: &Published) -> Response<Full<Bytes>> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            let round = published.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match render(&round) {
                Ok(text) => (StatusCode::OK, text),
                Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            }
        }
        (&Method::GET | &Method::HEAD, _) => (StatusCode::NOT_FOUND, "see /metrics\n".into()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "GET /metrics\n".into()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let kind = if status == StatusCode::OK { TEXT } else { "text/plain" };
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

/// Name, help and value.
type GaugeOf = (&'static str, &'static str, fn(&Row) -> f64);

/// The gauges of a connection.
const GAUGES: [GaugeOf; 9] = [
    ("sent_bytes_per_second", "Payload sent", |row| row.sent_bytes_per_s),
    ("received_bytes_per_second", "Payload received", |row| row.received_bytes_per_s),
    ("rtt_seconds", "Smoothed round-trip time", |row| f64::from(row.rtt_us) / 1e6),
    ("rtt_min_seconds", "Smallest round-trip time", |row| f64::from(row.rtt_min_us) / 1e6),
    ("cwnd_bytes", "Congestion window", |row| count(row.cwnd_bytes)),
    ("in_flight_bytes", "Sent and not acknowledged", |row| count(row.in_flight_bytes)),
    ("send_queue_bytes", "Written and not acknowledged", |row| row.send_queue_bytes.into()),
    ("receive_queue_bytes", "Received and not read", |row| row.receive_queue_bytes.into()),
    ("retransmitted_segments", "Sent again in the last interval", |row| {
        row.retransmitted_segments.into()
    }),
];

fn render(round: &Round) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("enkaku_tcp");
    for (name, help, value) in GAUGES {
        let family = Gauges::default();
        for row in &round.connections {
            family.get_or_create(&labels(row)).set(value(row));
        }
        registry.register(name, help, family);
    }
    let limits: Family<Limit, Gauge> = Family::default();
    for row in &round.connections {
        let (local, remote) = (row.connection.local.to_string(), row.connection.remote.to_string());
        let cause = row.cause.map_or("idle", tcpmon::verdict::Bottleneck::as_str);
        limits.get_or_create(&Limit { local, remote, cause }).set(1);
    }
    registry.register("limit", "What limits the connection, 1 for the cause", limits);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn labels(row: &Row) -> Labels {
    Labels {
        local: row.connection.local.to_string(),
        remote: row.connection.remote.to_string(),
        process: row.process.as_ref().map(|owner| owner.comm.clone()).unwrap_or_default(),
        congestion_control: row.congestion_control.clone(),
    }
}

#[allow(clippy::cast_precision_loss, reason = "windows are far below 2^53")]
fn count(bytes: u64) -> f64 {
    bytes as f64
}
