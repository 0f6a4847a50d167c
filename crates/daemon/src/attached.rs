//! A volume that is attached here (`enkaku attach`), for Prometheus: what went to it and came from
//! it, its path, its cache. Read when it is asked for; what counts are the layers and the path.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backends::Volume;
use block::layer::{CacheLayer, CacheStats, FailuresLayer, Stats, StatsLayer};
use iscsi::initiator::{PathConnection, PathReport};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

use crate::http::{MetricsListener, Pages};
use crate::metrics::{Labels, OPERATIONS, counter, gauge, histogram, labels, render};

/// The volume, and the layers above it that count.
pub struct Attached {
    /// Without user and password.
    name: String,
    volume: Volume,
    /// Right above the volume: what its session carries.
    carried: Arc<StatsLayer>,
    cache: Arc<CacheLayer>,
    /// Right below whoever uses it.
    used: Arc<FailuresLayer>,
    started: Instant,
}

impl Attached {
    /// From the volume up: `carried` on it, `cache` on that, `used` on that. `name` is what it is
    /// called in every sample, without a password.
    pub fn new(
        name: String,
        volume: Volume,
        carried: Arc<StatsLayer>,
        cache: Arc<CacheLayer>,
        used: Arc<FailuresLayer>,
    ) -> Self {
        Self { name, volume, carried, cache, used, started: Instant::now() }
    }

    /// Answers until the task is dropped.
    pub async fn serve(self, listening: MetricsListener) {
        listening.serve(Arc::new(self)).await;
    }

    fn snapshot(&self) -> Snapshot {
        let disk = self.volume.iscsi();
        Snapshot {
            name: self.name.clone(),
            uptime: self.started.elapsed(),
            size_bytes: self.volume.device().info().size,
            connections: self.volume.connection_count(),
            carried: self.carried.snapshot(),
            cache: self.cache.stats(),
            failed_operations: self.used.failures().count,
            session_starts: disk.map(|disk| disk.incarnations()),
            path: disk.map(|disk| disk.path()),
        }
    }
}

impl Pages for Attached {
    fn metrics(&self) -> Result<String, fmt::Error> {
        render(self.snapshot())
    }

    /// All is well while somebody answers, and nothing that was acknowledged waits to be written
    /// after a failure.
    fn health(&self) -> (bool, serde_json::Value) {
        let failed_bytes = self.cache.stats().failed_bytes;
        let connections = self.volume.connection_count();
        let mut failures = Vec::new();
        if connections == 0 {
            failures.push("no connection to the volume".to_owned());
        }
        if self.carried.is_failing() {
            failures.push("the last operation has failed".to_owned());
        }
        if failed_bytes > 0 {
            failures.push(format!("{failed_bytes} acknowledged bytes could not be written yet"));
        }
        let body = serde_json::json!({
            "status": if failures.is_empty() { "healthy" } else { "failed" },
            "failures": failures,
            "connections": connections,
            "uptime_s": self.started.elapsed().as_secs(),
        });
        (failures.is_empty(), body)
    }
}

#[derive(Debug)]
struct Snapshot {
    name: String,
    uptime: Duration,
    size_bytes: u64,
    connections: usize,
    carried: Stats,
    cache: CacheStats,
    failed_operations: u64,
    session_starts: Option<u64>,
    path: Option<PathReport>,
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut metric =
            encoder.encode_descriptor("build", "The program", None, MetricType::Info)?;
        metric.encode_info(&labels([("version", env!("CARGO_PKG_VERSION"))]))?;
        self.totals(&mut encoder)?;
        self.operations(&mut encoder)?;
        self.cache(&mut encoder)?;
        if let Some(path) = &self.path {
            self.path(path, &mut encoder)?;
            self.links(path, &mut encoder)?;
        }
        Ok(())
    }
}

/// How a number is read.
type Gauge<T> = (&'static str, &'static str, fn(&T) -> f64);
type Count<T> = (&'static str, &'static str, fn(&T) -> u64);

/// Gauges of the whole.
const GAUGES: [Gauge<Snapshot>; 4] = [
    ("volume_uptime_seconds", "Time since the volume was attached", |it| it.uptime.as_secs_f64()),
    ("volume_size_bytes", "Capacity", |it| it.size_bytes as f64),
    ("volume_connected", "1 while there is a connection to it", |it| {
        f64::from(u8::from(it.connections > 0))
    }),
    ("volume_connections", "Connections that are up", |it| it.connections as f64),
];

/// Gauges and counters of the cache.
const CACHE_GAUGES: [Gauge<CacheStats>; 3] = [
    ("cache_dirty_bytes", "Acknowledged and not yet written", |it| it.dirty_bytes as f64),
    ("cache_failed_bytes", "Acknowledged bytes that could not be written", |it| {
        it.failed_bytes as f64
    }),
    ("cache_window_bytes", "How far the fastest stream is read ahead of", |it| {
        it.window_bytes as f64
    }),
];
const CACHE_COUNTERS: [Count<CacheStats>; 9] = [
    ("cache_hits", "Reads answered from memory", |it| it.hits),
    ("cache_misses", "Reads that the volume had to answer", |it| it.misses),
    ("cache_read_ahead_bytes", "Bytes asked for ahead", |it| it.read_ahead_bytes),
    ("cache_read_ahead_used_bytes", "Of these, bytes that were read", |it| {
        it.read_ahead_used_bytes
    }),
    ("cache_read_ahead_wasted_bytes", "Of these, bytes that were dropped unread", |it| {
        it.read_ahead_wasted_bytes
    }),
    ("cache_writes_in", "Writes acknowledged from memory", |it| it.writes_in),
    ("cache_writes_out", "Writes that these became", |it| it.writes_out),
    ("cache_deferred_errors", "Writes that failed after they had been acknowledged", |it| {
        it.deferred_errors
    }),
    ("cache_flushes", "Flushes that have ended", |it| it.flushes),
];

/// Gauges of a connection.
const LINK_GAUGES: [Gauge<PathConnection>; 7] = [
    ("volume_link_bytes_per_second", "Carried both ways", |it| it.bytes_per_s),
    ("volume_link_rtt_seconds", "Smoothed round-trip time of TCP", |it| it.rtt.as_secs_f64()),
    ("volume_link_rtt_min_seconds", "Smallest round-trip time", |it| {
        it.min_rtt.unwrap_or(it.rtt).as_secs_f64()
    }),
    ("volume_link_cwnd_bytes", "Congestion window", |it| it.congestion_window as f64),
    ("volume_link_in_flight_bytes", "Sent and not acknowledged", |it| it.unacked as f64),
    ("volume_link_commands", "Commands under way", |it| f64::from(it.in_flight)),
    ("volume_link_queue_bytes", "Payload of the commands under way", |it| {
        it.outstanding_bytes as f64
    }),
];

fn seconds(metric: &mut MetricEncoder<'_>, labels: &Labels, value: f64) -> fmt::Result {
    metric.encode_family(labels)?.encode_counter(&value, None::<&Exemplar<NoLabelSet, f64>>)
}

impl Snapshot {
    fn own(&self) -> Labels {
        labels([("volume", &self.name)])
    }

    fn totals(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, value) in GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge(&mut metric, &self.own(), value(self))?;
        }
        let failed = ("volume_failed_operations", "Operations that failed for who uses it");
        let starts = ("volume_session_starts", "Sessions that were set up, the first one included");
        for ((name, help), value) in
            [(failed, Some(self.failed_operations)), (starts, self.session_starts)]
        {
            let Some(value) = value else { continue };
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            counter(&mut metric, &self.own(), value)?;
        }
        Ok(())
    }

    /// What the session carried: below the cache, where there is one.
    fn operations(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let of = |operation: &str| labels([("volume", &self.name), ("operation", operation)]);
        let help = "Bytes of operations of the volume that succeeded";
        let mut metric =
            encoder.encode_descriptor("volume_bytes", help, None, MetricType::Counter)?;
        for (kind, name) in OPERATIONS {
            counter(&mut metric, &of(name), self.carried.of(kind).bytes)?;
        }
        let help = "Operations of the volume that failed";
        let mut metric =
            encoder.encode_descriptor("volume_errors", help, None, MetricType::Counter)?;
        for (kind, name) in OPERATIONS {
            counter(&mut metric, &of(name), self.carried.of(kind).errors)?;
        }
        let (help, kind) = ("Duration of operations of the volume", MetricType::Histogram);
        let mut metric = encoder.encode_descriptor("volume_latency_seconds", help, None, kind)?;
        for (kind, name) in OPERATIONS {
            histogram(&mut metric, &of(name), self.carried.of(kind))?;
        }
        Ok(())
    }

    fn cache(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, value) in CACHE_GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge(&mut metric, &self.own(), value(&self.cache))?;
        }
        for (name, help, value) in CACHE_COUNTERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            counter(&mut metric, &self.own(), value(&self.cache))?;
        }
        let (help, kind) = ("Time that flushes took", MetricType::Counter);
        let mut metric = encoder.encode_descriptor("cache_flush_wait_seconds", help, None, kind)?;
        seconds(&mut metric, &self.own(), self.cache.flush_wait_us as f64 / 1e6)
    }

    fn path(&self, path: &PathReport, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Connections that there should be";
        let (name, kind) = ("volume_connections_wanted", MetricType::Gauge);
        let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
        gauge(&mut metric, &self.own(), f64::from(path.connections_wanted))?;
        let help = "Carried both ways in the last interval, with headers of iSCSI";
        let name = "volume_bytes_per_second";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        gauge(&mut metric, &self.own(), path.bytes_per_s)?;
        if let Some(rate) = path.line_rate {
            let help = "What the line was found to carry";
            let name = "volume_line_bytes_per_second";
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge(&mut metric, &self.own(), rate)?;
        }
        let help = "What limits the typical connection, 1 for the cause";
        let mut metric =
            encoder.encode_descriptor("volume_limit", help, None, MetricType::Gauge)?;
        let cause = labels([("volume", &self.name), ("cause", path.limit.as_str())]);
        gauge(&mut metric, &cause, 1.0)?;
        let help = "Carried both ways, with headers of iSCSI";
        let mut metric =
            encoder.encode_descriptor("volume_carried_bytes", help, None, MetricType::Counter)?;
        seconds(&mut metric, &self.own(), path.carried_bytes)
    }

    /// Each connection, by its number since the volume was attached: one that is opened again has
    /// another, so that its counters begin at zero.
    fn links(&self, path: &PathReport, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let of = |link: &PathConnection| {
            let (id, session) = (link.id.to_string(), link.session.to_string());
            labels([("volume", &self.name), ("session", &session), ("link", &id)])
        };
        for (name, help, value) in LINK_GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for link in &path.connections {
                gauge(&mut metric, &of(link), value(link))?;
            }
        }
        let (help, kind) = ("Segments that TCP sent again", MetricType::Counter);
        let mut metric = encoder.encode_descriptor("volume_link_retransmits", help, None, kind)?;
        for link in &path.connections {
            counter(&mut metric, &of(link), link.retransmits)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use block::backend::MemoryDevice;

    use super::*;

    fn snapshot(name: &str) -> Snapshot {
        let device = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
        Snapshot {
            name: name.into(),
            uptime: Duration::from_secs(60),
            size_bytes: 1 << 20,
            connections: 0,
            carried: StatsLayer::new(device).snapshot(),
            cache: CacheStats::default(),
            failed_operations: 0,
            session_starts: None,
            path: None,
        }
    }

    #[test]
    fn every_number_has_its_sample() {
        let mut snapshot = snapshot("iscsi://far/x/0");
        (snapshot.connections, snapshot.failed_operations) = (2, 1);
        (snapshot.session_starts, snapshot.path) = (Some(2), Some(PathReport::default()));
        (snapshot.cache.hits, snapshot.cache.dirty_bytes) = (3, 4096);
        snapshot.cache.flush_wait_us = 1_500_000;
        let text = render(snapshot).unwrap();
        let own = r#"volume="iscsi://far/x/0""#;
        for line in [
            format!("enkaku_volume_connected{{{own}}} 1.0"),
            format!("enkaku_volume_session_starts_total{{{own}}} 2"),
            format!("enkaku_volume_failed_operations_total{{{own}}} 1"),
            format!("enkaku_volume_bytes_total{{{own},operation=\"read\"}} 0"),
            format!("enkaku_cache_hits_total{{{own}}} 3"),
            format!("enkaku_cache_dirty_bytes{{{own}}} 4096.0"),
            format!("enkaku_cache_flush_wait_seconds_total{{{own}}} 1.5"),
            format!("enkaku_volume_carried_bytes_total{{{own}}} 0.0"),
            "# EOF".into(),
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }

    #[test]
    fn an_nbd_volume_tells_nothing_of_a_path() {
        let text = render(snapshot("nbd://far/x")).unwrap();
        assert!(text.contains("enkaku_volume_connected{volume=\"nbd://far/x\"} 0.0"));
        assert!(!text.contains("volume_link") && !text.contains("session_starts"), "{text}");
    }
}
