//! What Prometheus scrapes, as OpenMetrics text. Everything is read when it is asked for: nothing
//! is counted here.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use block::BlockDevice;
use block::layer::{OpKind, OpStats, Stats};
use iscsi::target::{CounterView, LimitView, SessionView};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;

use crate::daemon::Daemon;
use crate::http::Pages;
use crate::isns::View;
use crate::mirror::metrics::encode as mirrors;
use crate::mirror::report::Report;
use crate::state::RunningTarget;
use crate::{admin, limits};

/// Upper ends of the latency buckets: from a page cache to a disk in trouble.
const LATENCIES: [Duration; 14] = [
    Duration::from_micros(10),
    Duration::from_micros(25),
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(10),
];

/// Operations that are shown, by their names for users of a disk.
pub(crate) const OPERATIONS: [(OpKind, &str); 5] = [
    (OpKind::Read, "read"),
    (OpKind::Write, "write"),
    (OpKind::Flush, "flush"),
    (OpKind::Trim, "unmap"),
    (OpKind::Zero, "zero"),
];

/// The text of this moment.
pub(crate) fn render(snapshot: impl Collector) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("enkaku");
    registry.register_collector(Box::new(snapshot));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

impl Pages for Daemon {
    fn metrics(&self) -> Result<String, fmt::Error> {
        render(Snapshot::take(self))
    }

    /// All is well while everything that is configured is served.
    fn health(&self) -> (bool, serde_json::Value) {
        let failures = self.lock().failures();
        let state = match (self.is_stopping(), failures.is_empty()) {
            (true, _) => "stopping",
            (false, true) => "healthy",
            (false, false) => "failed",
        };
        let mut body = serde_json::json!({
            "status": state,
            "failures": failures,
            "sessions": self.server.sessions().len(),
            "uptime_s": self.started.elapsed().as_secs(),
        });
        // Targets that nobody finds there are served all the same.
        if let Some(view) = self.isns.view() {
            body["isns"] = serde_json::json!(admin::Isns::from(view));
        }
        let uplinks = self.uplinks.views();
        if !uplinks.is_empty() {
            let uplinks: Vec<admin::Uplink> = uplinks.into_iter().map(Into::into).collect();
            body["uplinks"] = serde_json::json!(uplinks);
        }
        (state == "healthy", body)
    }
}

#[derive(Debug)]
struct LunSnapshot {
    target: String,
    lun: String,
    size_bytes: u64,
    failed: bool,
    stats: Stats,
}

#[derive(Debug)]
struct Snapshot {
    counters: CounterView,
    sessions: Vec<SessionView>,
    connections: usize,
    memory_bytes: u64,
    memory_refusals: u64,
    memory_bytes_max: u64,
    uptime: Duration,
    poll_burned: BTreeMap<String, Duration>,
    luns: Vec<LunSnapshot>,
    limits: Vec<LimitView>,
    mirrors: Vec<Report>,
    isns: Option<View>,
    uplinks: Vec<crate::uplink::View>,
}

/// Labels of one sample.
pub(crate) type Labels = Vec<(&'static str, String)>;

impl Snapshot {
    fn take(daemon: &Daemon) -> Self {
        let (memory_bytes, memory_refusals) = daemon.server.memory();
        let targets = daemon.lock().targets.clone();
        let luns = targets.iter().flat_map(|(target, running)| {
            running.luns.iter().map(|(number, lun)| LunSnapshot {
                target: target.clone(),
                lun: number.to_string(),
                size_bytes: lun.stats.info().size,
                failed: lun.failure().is_some(),
                stats: lun.stats.snapshot(),
            })
        });
        Self {
            counters: daemon.server.counters(),
            sessions: daemon.server.sessions(),
            connections: daemon.server.connection_count(),
            memory_bytes,
            memory_refusals,
            memory_bytes_max: daemon.server.limits().memory_bytes_max,
            uptime: daemon.started.elapsed(),
            poll_burned: daemon.server.poll_burned(),
            luns: luns.collect(),
            limits: daemon.server.limit_views(),
            mirrors: targets.values().flat_map(RunningTarget::mirrors).collect(),
            isns: daemon.isns.view(),
            uplinks: daemon.uplinks.views(),
        }
    }
}

/// Labels from pairs.
pub(crate) fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    pairs.into_iter().map(|(name, value)| (name, value.to_owned())).collect()
}

pub(crate) fn gauge(metric: &mut MetricEncoder<'_>, labels: &Labels, value: f64) -> fmt::Result {
    metric.encode_family(labels)?.encode_gauge(&value)
}

pub(crate) fn counter(metric: &mut MetricEncoder<'_>, labels: &Labels, value: u64) -> fmt::Result {
    metric.encode_family(labels)?.encode_counter(&value, None::<&Exemplar<NoLabelSet, u64>>)
}

pub(crate) fn histogram(
    metric: &mut MetricEncoder<'_>,
    labels: &Labels,
    stats: &OpStats,
) -> fmt::Result {
    let mut below = 0;
    let mut buckets: Vec<(f64, u64)> = Vec::with_capacity(LATENCIES.len() + 1);
    for (bound, seen) in LATENCIES.iter().zip(stats.cumulative(&LATENCIES)) {
        buckets.push((bound.as_secs_f64(), seen - below));
        below = seen;
    }
    // Counters of one kind are not read at the same instant.
    let count = stats.operations.max(below);
    buckets.push((f64::MAX, count - below));
    let sum = stats.latency_total.as_secs_f64();
    metric.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.build(&mut encoder)?;
        self.server(&mut encoder)?;
        self.logins(&mut encoder)?;
        self.sessions(&mut encoder)?;
        self.connections(&mut encoder)?;
        self.luns(&mut encoder)?;
        if !self.limits.is_empty() {
            limits::encode(&self.limits, &mut encoder)?;
        }
        if let Some(view) = &self.isns {
            isns(view, &mut encoder)?;
        }
        uplinks(&self.uplinks, &mut encoder)?;
        if self.mirrors.is_empty() { Ok(()) } else { mirrors(&self.mirrors, &mut encoder) }
    }
}

/// Whether the daemon's targets are registered in its iSNS server.
fn isns(view: &View, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let labels = labels([("server", &view.server), ("entity", &view.entity)]);
    let help = "1 while the targets are registered in the iSNS server";
    let mut metric = encoder.encode_descriptor("isns_registered", help, None, MetricType::Gauge)?;
    gauge(&mut metric, &labels, f64::from(view.standing.registered))?;
    for (name, help, value) in [
        ("isns_registrations", "Registrations that went well", view.standing.registrations),
        ("isns_inquiries", "Inquiries of the server that were answered", view.standing.inquiries),
    ] {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        counter(&mut metric, &labels, value)?;
    }
    Ok(())
}

/// Whether servers that the daemon calls are connected.
fn uplinks(views: &[crate::uplink::View], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    if views.is_empty() {
        return Ok(());
    }
    let of =
        |view: &crate::uplink::View| labels([("uplink", &view.name), ("server", &view.server)]);
    let help = "1 while the server that is called is connected";
    let mut metric =
        encoder.encode_descriptor("uplink_connected", help, None, MetricType::Gauge)?;
    for view in views {
        gauge(&mut metric, &of(view), f64::from(view.standing.known_as.is_some()))?;
    }
    let help = "Connections that were made for the server";
    let kind = MetricType::Counter;
    let mut metric = encoder.encode_descriptor("uplink_dialled", help, None, kind)?;
    for view in views {
        counter(&mut metric, &of(view), view.standing.dialled)?;
    }
    Ok(())
}

impl Snapshot {
    fn build(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut metric =
            encoder.encode_descriptor("build", "The program", None, MetricType::Info)?;
        metric.encode_info(&labels([("version", env!("CARGO_PKG_VERSION"))]))
    }

    fn server(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, value) in [
            ("uptime_seconds", "Time since the daemon began", self.uptime.as_secs_f64()),
            ("sessions", "Sessions", self.sessions.len() as f64),
            ("connections", "Connections, logging in or further", self.connections as f64),
            ("memory_used_bytes", "Memory that commands use", self.memory_bytes as f64),
            ("memory_limit_bytes", "Memory that commands may use", self.memory_bytes_max as f64),
        ] {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            metric.encode_gauge(&value)?;
        }
        for (name, help, value) in [
            ("memory_refusals", "Commands that found no memory", self.memory_refusals),
            ("pdus_received", "PDUs received after login", self.counters.pdus_in),
            ("pdus_sent", "PDUs sent after login", self.counters.pdus_out),
        ] {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            metric.encode_counter(&value, None::<&Exemplar<NoLabelSet, u64>>)?;
        }
        let help = "Processor time burned by polling, instead of sleeping";
        let kind = MetricType::Counter;
        let mut metric = encoder.encode_descriptor("poll_seconds", help, None, kind)?;
        for (portal, burned) in &self.poll_burned {
            metric
                .encode_family(&labels([("portal", portal)]))?
                .encode_counter(&burned.as_secs_f64(), None::<&Exemplar<NoLabelSet, f64>>)?;
        }
        Ok(())
    }

    fn logins(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counters = &self.counters;
        let help = "Connections that have logged in";
        let mut metric = encoder.encode_descriptor("logins", help, None, MetricType::Counter)?;
        metric.encode_counter(&counters.logins, None::<&Exemplar<NoLabelSet, u64>>)?;
        let help = "Logins that failed";
        let mut metric =
            encoder.encode_descriptor("login_failures", help, None, MetricType::Counter)?;
        for (reason, value) in &counters.login_failures {
            counter(&mut metric, &labels([("reason", reason)]), *value)?;
        }
        let help = "Errors of connections, and recoveries from them";
        let mut metric =
            encoder.encode_descriptor("protocol_events", help, None, MetricType::Counter)?;
        for (kind, value) in &counters.events {
            counter(&mut metric, &labels([("kind", kind)]), *value)?;
        }
        let help = "PDUs rejected, by reason code of RFC 7143 11.17.1";
        let mut metric =
            encoder.encode_descriptor("pdus_rejected", help, None, MetricType::Counter)?;
        for (reason, value) in &counters.rejects {
            counter(&mut metric, &labels([("reason", &format!("{reason:#04x}"))]), *value)?;
        }
        Ok(())
    }

    /// What each session has moved; a discovery session moves nothing.
    fn sessions(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Bytes that a session read and wrote";
        let mut metric =
            encoder.encode_descriptor("session_bytes", help, None, MetricType::Counter)?;
        for session in &self.sessions {
            let Some(target) = &session.target_name else { continue };
            let id = session.id.to_string();
            for (direction, bytes) in
                [("read", session.read_bytes), ("write", session.written_bytes)]
            {
                let labels = labels([
                    ("initiator", &session.initiator_name),
                    ("session", &id),
                    ("target", target),
                    ("direction", direction),
                ]);
                counter(&mut metric, &labels, bytes)?;
            }
        }
        Ok(())
    }

    fn connections(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let links = || {
            self.sessions.iter().flat_map(|session| {
                session.connections.iter().filter_map(move |connection| {
                    let labels = labels([
                        ("initiator", &session.initiator_name),
                        ("session", &session.id.to_string()),
                        ("cid", &connection.cid.to_string()),
                        ("peer", &connection.peer.to_string()),
                    ]);
                    Some((labels, connection.tcp?))
                })
            })
        };
        let help = "Smoothed round-trip time of TCP";
        let mut metric =
            encoder.encode_descriptor("tcp_rtt_seconds", help, None, MetricType::Gauge)?;
        for (labels, tcp) in links() {
            gauge(&mut metric, &labels, f64::from(tcp.rtt_us) / 1e6)?;
        }
        let help = "Segments that TCP sent again";
        let mut metric =
            encoder.encode_descriptor("tcp_retransmits", help, None, MetricType::Counter)?;
        for (labels, tcp) in links() {
            counter(&mut metric, &labels, tcp.total_retrans_segments.into())?;
        }
        Ok(())
    }

    fn luns(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let of = |lun: &LunSnapshot| labels([("target", &lun.target), ("lun", &lun.lun)]);
        for (name, help, value) in [
            (
                "lun_size_bytes",
                "Capacity",
                (|lun| lun.size_bytes as f64) as fn(&LunSnapshot) -> f64,
            ),
            ("lun_failed", "1 when the storage cannot be relied on", |lun| f64::from(lun.failed)),
        ] {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for lun in &self.luns {
                gauge(&mut metric, &of(lun), value(lun))?;
            }
        }
        for (name, help, value) in [
            (
                "lun_bytes",
                "Bytes of operations that succeeded",
                (|stats| stats.bytes) as fn(&OpStats) -> u64,
            ),
            ("lun_errors", "Operations that failed", |stats| stats.errors),
        ] {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            self.each_operation(|labels, stats| counter(&mut metric, labels, value(stats)))?;
        }
        let help = "Duration of operations";
        let kind = MetricType::Histogram;
        let mut metric = encoder.encode_descriptor("lun_latency_seconds", help, None, kind)?;
        self.each_operation(|labels, stats| histogram(&mut metric, labels, stats))?;
        let help = "Commands that ended with CHECK CONDITION, by sense key";
        let mut metric =
            encoder.encode_descriptor("lun_check_conditions", help, None, MetricType::Counter)?;
        for ((target, lun, key), value) in &self.counters.sense {
            let key = format!("{:?}", scsi::SenseKey(*key)).to_lowercase().replace(' ', "_");
            let labels =
                labels([("target", target), ("lun", &lun.to_string()), ("sense_key", &key)]);
            counter(&mut metric, &labels, *value)?;
        }
        Ok(())
    }

    fn each_operation(
        &self,
        mut write: impl FnMut(&Labels, &OpStats) -> fmt::Result,
    ) -> fmt::Result {
        for lun in &self.luns {
            for (kind, name) in OPERATIONS {
                let labels =
                    labels([("target", &lun.target), ("lun", &lun.lun), ("operation", name)]);
                write(&labels, lun.stats.of(kind))?;
            }
        }
        Ok(())
    }
}
