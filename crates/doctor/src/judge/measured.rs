//! What the kernel's counters named while something moved (`enkaku diagnose`): it goes first, with
//! the rate that was measured as its ceiling.

use path::{Bottleneck, CongestionControl};

use super::block::{bursts, is_reading_ahead, rounds, said};
use super::case::{Case, Ceiling, evidence, round_up};
use super::commands::{option, sysctl};
use super::windows::{after_larger_buffer, larger_buffer, loss_law, with_bbr};
use super::{Cause, GoalFrom, Wanted};
use crate::facts::Transfer;
use crate::units::{rate, share, size, time};

/// Nobody is asked for more commands at once than this.
const DEPTH_MAX: f64 = 10_000.0;

/// Less than this part of what somebody said of the line is not all of it.
const SAID: f64 = 0.8;

/// Data that came this much faster for some milliseconds have shown a faster line.
const FASTER: f64 = 2.0;

/// The counters name the line: there is nothing to gain but another line.
pub(super) fn is_line(case: &Case<'_>) -> bool {
    let cause = case.transfer().map(|transfer| transfer.cause);
    matches!(cause, Some(Bottleneck::LineRate | Bottleneck::Share))
        && !is_below_what_was_said(case)
        && !has_come_faster(case)
}

/// A receiver sees that data come and not why no more do: a host that is busy with other things
/// takes them in pieces, and then neither gaps nor full windows show. What is calculated stands.
fn has_come_faster(case: &Case<'_>) -> bool {
    let Some(transfer) = case.transfer().filter(|_| !case.sends()) else { return false };
    let peak = transfer.number("peak_bytes_per_s");
    peak.is_some_and(|peak| peak > FASTER * transfer.bytes_per_s)
}

/// BBR takes for the line what it was given to send; who said that there is more may be right.
fn is_below_what_was_said(case: &Case<'_>) -> bool {
    case.goal.from == GoalFrom::Said
        && case.transfer().is_some_and(|one| one.bytes_per_s < SAID * case.goal.bytes_per_s)
}

/// Marks the ceiling that is meant, or adds it; the sentences of `diagnose` where there is nothing
/// to add.
pub(super) fn apply(case: &Case<'_>, ceilings: &mut Vec<Ceiling>) -> Option<String> {
    let transfer = case.transfer()?;
    let Some(cause) = cause(case, transfer) else { return Some(transfer.advice.clone()) };
    if let Some(own) = ceilings.iter_mut().find(|one| one.cause == cause) {
        own.measured = true;
        own.now = transfer.bytes_per_s;
        own.evidence.push(evidence("measured", rate(transfer.bytes_per_s)));
        return None;
    }
    ceilings.extend(ceiling(case, transfer, cause));
    None
}

/// In this crate's words.
fn cause(case: &Case<'_>, transfer: &Transfer) -> Option<Cause> {
    let reads_ahead = !case.writes
        && case.load().is_some()
        && case.disk().is_some_and(|disk| is_reading_ahead(case, disk));
    Some(match transfer.cause {
        Bottleneck::SendBuffer => Cause::SendBuffer,
        Bottleneck::ReceiveWindow => Cause::ReceiveWindow,
        Bottleneck::CongestionLoss => Cause::CongestionLoss,
        Bottleneck::CongestionWindow => Cause::CongestionWindow,
        Bottleneck::R2t => Cause::R2t,
        Bottleneck::QueueDepth if reads_ahead => Cause::ReadAhead,
        Bottleneck::QueueDepth => Cause::Depth,
        Bottleneck::Storage => Cause::Storage,
        Bottleneck::Application => Cause::Application,
        Bottleneck::LineRate if is_below_what_was_said(case) => Cause::SlowerLine,
        _ => return None,
    })
}

fn ceiling(case: &Case<'_>, transfer: &Transfer, cause: Cause) -> Option<Ceiling> {
    let mut one = Ceiling {
        cause,
        title: String::new(),
        now: transfer.bytes_per_s,
        formula: format!("what was measured: {}", rate(transfer.bytes_per_s)),
        evidence: Vec::new(),
        changes: Vec::new(),
        wanted: None,
        after: None,
        measured: true,
    };
    match cause {
        Cause::Depth => depth(case, transfer, &mut one),
        Cause::SendBuffer | Cause::ReceiveWindow => buffer(case, transfer, &mut one),
        Cause::CongestionLoss => losses(case, transfer, &mut one),
        Cause::CongestionWindow => {
            one.title = "The congestion window is full without losses: it is still growing, or it \
                         was closed while nothing was sent."
                .to_owned();
            let name = "net.ipv4.tcp_slow_start_after_idle";
            one.changes = vec![sysctl(case.sender(), name, "0")];
            one.evidence.extend(number(transfer, "cwnd_bytes", "congestion window", size));
        }
        Cause::R2t => r2t(case, transfer, &mut one),
        Cause::Storage => {
            let part = transfer.number("share_storage")?.clamp(0.0, 0.95);
            one.title = format!("The target is silent for {}: its storage.", share(part));
            let after = transfer.bytes_per_s / (1.0 - part);
            one.formula = format!(
                "without its silence: {} / (1 − {part:.2}) = {}",
                rate(transfer.bytes_per_s),
                rate(after)
            );
            one.after = Some(after);
        }
        Cause::SlowerLine => {
            one.title = format!(
                "TCP takes {} for the line, and you said {}: something on the path is slower, or \
                 too little is under way for TCP to find more. Twice as much under way (--depth, \
                 --iodepth) tells: if that is no faster, it is the path.",
                rate(transfer.bytes_per_s),
                rate(case.goal.bits_per_s / 8.0),
            );
        }
        Cause::Application => {
            let part = transfer.number("share_application")?;
            one.title = format!("Nothing is asked for in {} of the time.", share(part));
        }
        _ => return None,
    }
    Some(one)
}

/// One burst in a round trip: the commands that are under way together.
fn depth(case: &Case<'_>, transfer: &Transfer, one: &mut Ceiling) {
    let of_disk =
        case.load().map(|load| (load.in_flight.max(1.0), load.request_bytes(case.writes)));
    let of_packets = transfer
        .number("outstanding_mean")
        .map(|count| count.max(1.0))
        .zip(transfer.number("block_bytes"));
    let of_tcp = transfer.number("burst_bytes").map(|bytes| (1.0, bytes * case.connections));
    let commands = of_disk.or(of_packets);
    let Some((now, bytes)) = commands.or(of_tcp).filter(|(_, bytes)| *bytes > 0.0) else {
        one.title = "Too little is asked for at a time.".to_owned();
        return;
    };
    let wanted = case.depth(bytes).clamp(2.0, DEPTH_MAX);
    let limit = case.each_round_trip(now * bytes);
    one.title = match commands {
        Some(_) => format!("{now:.1} requests of {} are under way at a time.", size(bytes)),
        None => format!("Each round trip of {} carries {}.", time(case.rtt_s), size(bytes)),
    };
    one.formula = format!("{} / {} = {}", size(now * bytes), time(case.rtt_s), rate(limit));
    one.evidence.push(evidence("measured", rate(transfer.bytes_per_s)));
    one.evidence.extend(number(transfer, "share_queue_depth", "time spent so", share));
    one.wanted = Some(Wanted { name: "depth", value: wanted });
    one.after = Some(case.each_round_trip(wanted * bytes));
    one.changes = option(case, &format!("enkaku bench … --depth {wanted:.0}"));
    one.changes.extend(option(case, "enkaku attach … --cache write-back"));
    if of_disk.is_some() {
        one.changes.push(super::Change {
            place: case.initiator(),
            step: super::Step::Option,
            command: format!("fio … --ioengine=libaio --direct=1 --iodepth={wanted:.0}"),
        });
    }
}

/// A buffer of the other end, or one of which the settings are not known.
fn buffer(case: &Case<'_>, transfer: &Transfer, one: &mut Ceiling) {
    let sending = one.cause == Cause::SendBuffer;
    let (end, name, word) = match sending {
        true => (case.sender(), "in_flight_bytes_max", "in flight at most"),
        false if case.sends() => (case.receiver(), "send_window_bytes", "announced window"),
        false => (case.receiver(), "receive_window_bytes", "announced window"),
    };
    let what = if sending { "send buffer" } else { "receive window" };
    one.title = format!(
        "The {what} of the {} is full.",
        if end == case.initiator() { "initiator" } else { "target" }
    );
    one.evidence.extend(number(transfer, name, word, size));
    if let Some(bytes) = transfer.number(name).filter(|bytes| *bytes > 0.0) {
        let limit = case.connections * bytes / case.rtt_s;
        one.formula = format!("{} / {} = {}", size(bytes), time(case.rtt_s), rate(limit));
    }
    one.changes = larger_buffer(case, one.cause);
    one.changes.extend(option(case, "enkaku … --connections auto"));
    one.after = Some(after_larger_buffer(case, one.cause));
}

fn losses(case: &Case<'_>, transfer: &Transfer, one: &mut Ceiling) {
    let loss = transfer.number("loss").unwrap_or_default();
    one.title =
        format!("{} of the segments are lost: the congestion window stays small.", share(loss));
    one.evidence.push(evidence("loss", share(loss)));
    one.changes = with_bbr(case, case.sender());
    one.after = Some(loss_law(case, loss, CongestionControl::Bbr));
}

fn r2t(case: &Case<'_>, transfer: &Transfer, one: &mut Ceiling) {
    let keys = &case.session.keys;
    let bytes = transfer.number("block_bytes").or(transfer.number("burst_bytes")).unwrap_or(0.0);
    one.title = "Writes wait for R2Ts of the target, a round trip each.".to_owned();
    one.evidence.extend(number(transfer, "block_bytes", "size of a write", size));
    one.evidence.extend(said(keys));
    one.changes = bursts(case, bytes);
    let burst = round_up(bytes);
    let options =
        format!("enkaku … --initial-r2t no --first-burst {burst:.0} --max-burst {burst:.0}");
    one.changes.extend(option(case, &options));
    let waits = transfer.number("share_r2t").map(|part| part.clamp(0.0, 0.95));
    let by_keys = rounds(keys, bytes).map(|trips| 1.0 - 1.0 / trips);
    if let Some(part) = waits.or(by_keys).filter(|part| *part > 0.0) {
        let after = transfer.bytes_per_s / (1.0 - part);
        let now = rate(transfer.bytes_per_s);
        one.formula = format!("without the waits: {now} / (1 − {part:.2}) = {}", rate(after));
        one.after = Some(after);
    }
}

fn number(
    transfer: &Transfer,
    name: &str,
    word: &str,
    shown: fn(f64) -> String,
) -> Option<super::Evidence> {
    transfer.number(name).map(|value| evidence(word, shown(value)))
}
