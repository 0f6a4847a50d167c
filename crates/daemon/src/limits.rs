//! Limits of a running daemon: what a reload changed, what an operator sees, and the metrics. What
//! a limit does is decided in [`iscsi::target`].

use std::collections::BTreeMap;
use std::fmt;

use iscsi::target::{Catalog, Limit, LimitView};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

use crate::config::limit::words;
use crate::metrics::{Labels, counter, gauge, labels};

/// The limits of a catalog, by what they are for, in words.
pub(crate) fn of(catalog: &Catalog) -> BTreeMap<String, Limit> {
    let mut limits = BTreeMap::new();
    for (name, target) in &catalog.targets {
        for (number, limit) in &target.lun_limits {
            limits.insert(format!("{name} LUN {number}"), *limit);
        }
        for (initiator, rule) in &target.access.initiators {
            limits.insert(format!("{name} for {initiator}"), rule.limit);
        }
        if let Some(rule) = &target.access.anyone {
            limits.insert(format!("{name} for anyone"), rule.limit);
        }
    }
    limits.retain(|_, limit| limit.is_some());
    limits
}

/// What has changed, a line each.
pub(crate) fn changes(
    before: &BTreeMap<String, Limit>,
    now: &BTreeMap<String, Limit>,
) -> Vec<String> {
    let gone = before.keys().filter(|key| !now.contains_key(*key));
    let gone = gone.map(|key| format!("{key}: no limit"));
    let changed = now.iter().filter(|(key, limit)| before.get(*key) != Some(limit));
    gone.chain(changed.map(|(key, limit)| format!("{key}: {}", words(limit)))).collect()
}

/// The metrics of all limits.
pub(crate) fn encode(limits: &[LimitView], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    for (name, help, value) in [
        (
            "limit_bytes_per_second",
            "Bytes that a limit allows",
            (|view| view.limit.bytes_per_s.map(|rate| rate as f64))
                as fn(&LimitView) -> Option<f64>,
        ),
        ("limit_commands_per_second", "Commands that a limit allows", |view| {
            view.limit.iops.map(|rate| rate as f64)
        }),
        ("limit_waiting", "Commands that a limit holds back now", |view| Some(view.waiting as f64)),
    ] {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for view in limits {
            if let Some(value) = value(view) {
                gauge(&mut metric, &of_view(view), value)?;
            }
        }
    }
    for (name, help, value) in [
        (
            "limit_commands",
            "Commands that a limit has let through",
            (|view| view.commands) as fn(&LimitView) -> u64,
        ),
        ("limit_bytes", "Bytes of these commands", |view| view.bytes),
        ("limit_delayed", "Those of them that had to wait", |view| view.delayed),
    ] {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for view in limits {
            counter(&mut metric, &of_view(view), value(view))?;
        }
    }
    let help = "How long they waited";
    let kind = MetricType::Counter;
    let mut metric = encoder.encode_descriptor("limit_waited_seconds", help, None, kind)?;
    limits.iter().try_for_each(|view| seconds(&mut metric, &of_view(view), view))
}

fn seconds(metric: &mut MetricEncoder<'_>, labels: &Labels, view: &LimitView) -> fmt::Result {
    metric
        .encode_family(labels)?
        .encode_counter(&view.waited.as_secs_f64(), None::<&Exemplar<NoLabelSet, f64>>)
}

fn of_view(view: &LimitView) -> Labels {
    let lun = view.lun.map(|lun| lun.to_string()).unwrap_or_default();
    let initiator = view.initiator_name.as_deref().unwrap_or_default();
    labels([("target", &view.target_name), ("initiator", initiator), ("lun", &lun)])
}
