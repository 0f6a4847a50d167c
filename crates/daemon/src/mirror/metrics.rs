//! A mirror's numbers for Prometheus, as OpenMetrics text: those of its [`Report`], nothing is
//! counted here.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

use super::report::{LegReport, Report, VerdictReport};
use crate::metrics::{Labels, counter, gauge, labels};

/// How a number is read from a leg.
type Number = fn(&LegReport) -> f64;

/// Gauges of each leg.
const GAUGES: &[(&str, &str, Number)] = &[
    ("mirror_lag_seconds", "Age of the oldest write on its way to the leg", |leg| leg.lag_s),
    ("mirror_lag_bytes", "Bytes written that are on their way", |leg| leg.lag_bytes as f64),
    ("mirror_dirty_bytes", "Blocks that may differ and have to be copied", |leg| {
        leg.dirty_bytes as f64
    }),
    ("mirror_state_since_seconds", "How long the leg has been where it is", |leg| leg.since_s),
    ("mirror_consistent", "1 when the image there is one of one moment", |leg| {
        f64::from(leg.consistent)
    }),
    ("mirror_epochs_in_flight", "Epochs on their way", |leg| leg.epochs as f64),
];

impl Collector for Report {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut metric =
            encoder.encode_descriptor("build", "The program", None, MetricType::Info)?;
        metric.encode_info(&labels([("version", &self.version)]))?;
        encode(std::slice::from_ref(self), &mut encoder)
    }
}

/// The numbers of several mirrors, each under its name once.
pub(crate) fn encode(mirrors: &[Report], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    totals(mirrors, encoder)?;
    let legs = || mirrors.iter().flat_map(|it| it.legs.iter().map(move |leg| (it, leg)));
    let help = "1 with the state that the leg is in";
    let mut metric = encoder.encode_descriptor("mirror_state", help, None, MetricType::Gauge)?;
    for (mirror, leg) in legs() {
        let mut labels = mirror.labels_of(leg);
        labels.push(("state", leg.state_word()));
        gauge(&mut metric, &labels, 1.0)?;
    }
    for (name, help, number) in GAUGES {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (mirror, leg) in legs() {
            gauge(&mut metric, &mirror.labels_of(leg), number(leg))?;
        }
    }
    let help = "Seconds since the moment whose image is at the leg";
    let mut metric =
        encoder.encode_descriptor("mirror_image_age_seconds", help, None, MetricType::Gauge)?;
    for (mirror, leg, at) in legs().filter_map(|(it, leg)| Some((it, leg, leg.image_time_s?))) {
        gauge(&mut metric, &mirror.labels_of(leg), (mirror.time_s - at).max(0.0))?;
    }
    verified(mirrors, encoder)?;
    let help = "Bytes sent to the leg";
    let mut metric =
        encoder.encode_descriptor("mirror_wire_bytes", help, None, MetricType::Counter)?;
    for (mirror, leg) in legs() {
        counter(&mut metric, &mirror.labels_of(leg), leg.sent_bytes)?;
    }
    Ok(())
}

/// Of the last verification of each leg, where there was one.
fn verified(mirrors: &[Report], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    type Verified = fn(&Report, &VerdictReport) -> f64;
    const NUMBERS: &[(&str, &str, Verified)] = &[
        ("mirror_verify_age_seconds", "Time since the leg was last verified", |mirror, last| {
            (mirror.time_s - last.time_s).max(0.0)
        }),
        ("mirror_verify_compared_bytes", "Bytes compared then", |_, last| {
            last.compared_bytes as f64
        }),
        ("mirror_verify_mismatches", "Blocks of 4 KiB that differed then", |_, last| {
            last.mismatches as f64
        }),
    ];
    let legs = || mirrors.iter().flat_map(|it| it.legs.iter().map(move |leg| (it, leg)));
    for (name, help, number) in NUMBERS {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (mirror, leg, last) in legs().filter_map(|(it, leg)| Some((it, leg, leg.verified?))) {
            gauge(&mut metric, &mirror.labels_of(leg), number(mirror, &last))?;
        }
    }
    Ok(())
}

fn totals(mirrors: &[Report], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let own = |mirror: &Report| labels([("mirror", &mirror.name)]);
    for (name, help, value) in [
        (
            "mirror_size_bytes",
            "Size of what is offered",
            (|mirror| mirror.size_bytes as f64) as fn(&Report) -> f64,
        ),
        ("mirror_uptime_seconds", "Time since the mirror was opened", |mirror| mirror.uptime_s),
    ] {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for mirror in mirrors {
            gauge(&mut metric, &own(mirror), value(mirror))?;
        }
    }
    for (name, help, value) in [
        (
            "mirror_written_bytes",
            "Bytes written by the user",
            (|mirror| mirror.written_bytes) as fn(&Report) -> u64,
        ),
        ("mirror_failed_operations", "Operations that failed", |mirror| mirror.failed_operations),
    ] {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for mirror in mirrors {
            counter(&mut metric, &own(mirror), value(mirror))?;
        }
    }
    let help = "Time that writes of the user waited for legs";
    let kind = MetricType::Counter;
    let mut metric = encoder.encode_descriptor("mirror_guest_wait_seconds", help, None, kind)?;
    for mirror in mirrors {
        for (why, seconds) in [("leg", mirror.guest_wait_s), ("lag", mirror.lag_wait_s)] {
            let labels = labels([("mirror", mirror.name.as_str()), ("why", why)]);
            let mut metric = metric.encode_family(&labels)?;
            metric.encode_counter(&seconds, None::<&Exemplar<NoLabelSet, f64>>)?;
        }
    }
    Ok(())
}

impl Report {
    fn labels_of(&self, leg: &LegReport) -> Labels {
        labels([("mirror", &self.name), ("leg", &leg.number.to_string()), ("name", &leg.name)])
    }
}

#[cfg(test)]
mod tests {
    use block::mirror::{LegState, Mode};

    use super::*;
    use crate::metrics::render;

    #[test]
    fn every_number_has_its_sample() {
        let leg = LegReport {
            number: 1,
            name: "iscsi://far/x/0".into(),
            state: LegState::CatchingUp,
            since_s: 3.0,
            message: None,
            consistent: false,
            lag_s: 1.5,
            lag_bytes: 4096,
            dirty_bytes: 8192,
            epochs: 2,
            image_time_s: Some(1000.0),
            loss: None,
            copy: None,
            sent_bytes: 77,
            redo_bytes: 0,
            home: None,
            redo_overflows: 0,
            batches: 0,
            gathered: None,
            verified: Some(VerdictReport { time_s: 950.0, compared_bytes: 7, mismatches: 3 }),
            verifying_bytes: None,
            guard: block::mirror::Guard::Reservation,
            sending: None,
        };
        let report = Report {
            name: "vm1".into(),
            version: "1".into(),
            pid: 1,
            time_s: 1010.0,
            uptime_s: 60.0,
            front: String::new(),
            size_bytes: 1 << 30,
            mode: Mode::Async,
            generation: String::new(),
            written_bytes: 12,
            guest_wait_s: 0.25,
            lag_wait_s: 1.75,
            failed_operations: 0,
            local_failure: None,
            legs: vec![leg],
        };
        let text = render(report).unwrap();
        let leg = r#"mirror="vm1",leg="1",name="iscsi://far/x/0""#;
        for line in [
            format!("enkaku_mirror_lag_seconds{{{leg}}} 1.5"),
            format!("enkaku_mirror_lag_bytes{{{leg}}} 4096.0"),
            format!("enkaku_mirror_dirty_bytes{{{leg}}} 8192.0"),
            format!("enkaku_mirror_state{{{leg},state=\"catching-up\"}} 1.0"),
            format!("enkaku_mirror_consistent{{{leg}}} 0.0"),
            format!("enkaku_mirror_image_age_seconds{{{leg}}} 10.0"),
            format!("enkaku_mirror_wire_bytes_total{{{leg}}} 77"),
            format!("enkaku_mirror_verify_age_seconds{{{leg}}} 60.0"),
            format!("enkaku_mirror_verify_compared_bytes{{{leg}}} 7.0"),
            format!("enkaku_mirror_verify_mismatches{{{leg}}} 3.0"),
            "enkaku_mirror_guest_wait_seconds_total{mirror=\"vm1\",why=\"leg\"} 0.25".into(),
            "enkaku_mirror_guest_wait_seconds_total{mirror=\"vm1\",why=\"lag\"} 1.75".into(),
            "enkaku_mirror_written_bytes_total{mirror=\"vm1\"} 12".into(),
            "# EOF".into(),
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }
}
