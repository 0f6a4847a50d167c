//! Ceilings of TCP and below: buffers, scaling, losses, the device. This host's own settings are
//! calculated; of the other end's only what the counters name is told ([`super::measured`]).

use path::CongestionControl;
use path::limit::LOSS_MIN;

use super::case::{
    Case, Ceiling, evidence, in_flight_of_send_buffer, line, round_up, window_of_receive_buffer,
};
use super::commands::{login, now, option, quote, record, sysctl};
use super::{Cause, Change, GoalFrom, Place, Wanted};
use crate::facts::{Role, Tcp};
use crate::units::{rate, share, size, time};

/// `node.conn[0].tcp.window_size` of open-iscsi, unless the record says otherwise: it is set on the
/// socket (SO_RCVBUF, SO_SNDBUF), cut to rmem_max and wmem_max, and the kernel stops to adapt it.
const OPEN_ISCSI_WINDOW: f64 = 524_288.0;
/// The kernel doubles what SO_RCVBUF and SO_SNDBUF ask for (socket(7)).
const DOUBLED: f64 = 2.0;
/// Larger buffers than this are no cure.
const BUFFER_MAX: f64 = 1024.0 * 1024.0 * 1024.0;
/// A window that is not scaled (RFC 9293 §3.1).
const UNSCALED: f64 = 65_535.0;

/// Those of this host.
pub(super) fn ceilings(case: &Case<'_>) -> Vec<Ceiling> {
    [buffer(case), scaling(case), losses(case), device(case)].into_iter().flatten().collect()
}

/// One end's buffer, as this direction uses it.
struct Buffer {
    cause: Cause,
    /// `tcp_rmem` or `tcp_wmem`, and the limit of what a program asks for.
    by_itself: &'static str,
    asked_max: &'static str,
    holds: fn(f64) -> f64,
    word: &'static str,
}

const RECEIVE: Buffer = Buffer {
    cause: Cause::ReceiveWindow,
    by_itself: "net.ipv4.tcp_rmem",
    asked_max: "net.core.rmem_max",
    holds: window_of_receive_buffer,
    word: "receive",
};

const SEND: Buffer = Buffer {
    cause: Cause::SendBuffer,
    by_itself: "net.ipv4.tcp_wmem",
    asked_max: "net.core.wmem_max",
    holds: in_flight_of_send_buffer,
    word: "send",
};

fn buffer(case: &Case<'_>) -> Option<Ceiling> {
    let kind = if case.sends() { &SEND } else { &RECEIVE };
    let of =
        |tcp: &Tcp| if case.sends() { tcp.send_buffer_bytes } else { tcp.receive_buffer_bytes };
    let seen = case.session.sockets.iter().filter_map(of).min().map(|bytes| bytes as f64);
    match fixed(case, kind, seen) {
        Some(bytes) => Some(fixed_buffer(case, kind, bytes, seen.is_some())),
        None => grown_buffer(case, kind, seen),
    }
}

/// The size of a buffer that open-iscsi has set, so that it does not grow.
fn fixed(case: &Case<'_>, kind: &Buffer, seen: Option<f64>) -> Option<f64> {
    if !case.is_open_iscsi() || case.session.role != Role::Initiator {
        return None;
    }
    let max = case.facts.host.number(kind.asked_max)?;
    let asked = DOUBLED * OPEN_ISCSI_WINDOW.min(max);
    match seen {
        None => Some(asked),
        Some(seen) if (seen - asked).abs() < 1.0 => Some(seen),
        // Above what the kernel gives by itself, somebody has asked for it.
        Some(seen) => {
            let grows_to = case.facts.host.buffer_max(kind.by_itself)?;
            (seen > grows_to).then_some(seen)
        }
    }
}

/// A size for both directions: open-iscsi has one setting for them.
fn open_iscsi_window(case: &Case<'_>) -> f64 {
    let plan = case.plan(0.0).outcome(CongestionControl::Bbr);
    let wanted = plan.wmem_wanted_bytes.max(plan.rmem_wanted_bytes);
    round_up(wanted / DOUBLED).min(BUFFER_MAX)
}

fn fixed_buffer(case: &Case<'_>, kind: &Buffer, bytes: f64, seen: bool) -> Ceiling {
    let window = (kind.holds)(bytes);
    let wanted = open_iscsi_window(case);
    let max = case.facts.host.number(kind.asked_max);
    let mut changes = Vec::new();
    if max.is_none_or(|max| max < wanted) {
        changes.push(sysctl(Place::Here, kind.asked_max, &format!("{wanted:.0}")));
    }
    changes.extend(record(case, "node.conn[0].tcp.window_size", &format!("{wanted:.0}")));
    changes.extend(login(case));
    let source = if seen { "SO_RCVBUF, SO_SNDBUF of the socket" } else { "as open-iscsi sets it" };
    let mut says = vec![evidence(source, size(bytes))];
    says.extend(max.map(|max| evidence(kind.asked_max, size(max))));
    Ceiling {
        cause: kind.cause,
        title: format!(
            "open-iscsi has fixed the {} buffer at {}, of which {} are window.",
            kind.word,
            size(bytes),
            size(window)
        ),
        now: case.connections * window / case.rtt_s,
        formula: windows(case, window),
        evidence: says,
        changes,
        wanted: Some(Wanted { name: "window_size_bytes", value: wanted }),
        after: Some(case.connections * (kind.holds)(DOUBLED * wanted) / case.rtt_s),
        measured: false,
    }
}

/// A buffer that the kernel lets grow up to a limit.
fn grown_buffer(case: &Case<'_>, kind: &Buffer, seen: Option<f64>) -> Option<Ceiling> {
    let limit = case.facts.host.buffer_max(kind.by_itself)?;
    let bytes = seen.unwrap_or(limit).max(limit);
    let window = (kind.holds)(bytes);
    let mut changes = vec![larger(case, kind, Place::Here)];
    changes.extend(option(case, "enkaku … --connections auto"));
    Some(Ceiling {
        cause: kind.cause,
        title: format!(
            "The {} buffer grows to {} at most, of which {} are window.",
            kind.word,
            size(bytes),
            size(window)
        ),
        now: case.connections * window / case.rtt_s,
        formula: windows(case, window),
        evidence: vec![evidence(format!("{}, maximum", kind.by_itself), size(limit))],
        wanted: Some(Wanted { name: "buffer_bytes", value: buffer_wanted(case) }),
        changes,
        after: Some(case.connections * (kind.holds)(buffer_wanted(case)) / case.rtt_s),
        measured: false,
    })
}

fn buffer_wanted(case: &Case<'_>) -> f64 {
    let plan = case.plan(0.0).outcome(CongestionControl::Bbr);
    let wanted = if case.sends() { plan.wmem_wanted_bytes } else { plan.rmem_wanted_bytes };
    round_up(wanted).min(BUFFER_MAX)
}

/// The sysctl of a larger maximum, for the end that it is about.
fn larger(case: &Case<'_>, kind: &Buffer, place: Place) -> Change {
    let here = case.facts.host.sysctls.get(kind.by_itself).filter(|_| place == Place::Here);
    let mut words = here.into_iter().flat_map(|text| text.split_whitespace());
    let (least, first) = (words.next().unwrap_or("4096"), words.next().unwrap_or("131072"));
    sysctl(place, kind.by_itself, &format!("{least} {first} {:.0}", buffer_wanted(case)))
}

/// What is to be done where the counters name a buffer or window of either end.
pub(super) fn larger_buffer(case: &Case<'_>, cause: Cause) -> Vec<Change> {
    match cause {
        Cause::SendBuffer => vec![larger(case, &SEND, case.sender())],
        _ => vec![larger(case, &RECEIVE, case.receiver())],
    }
}

/// How much of such a window a larger buffer is.
pub(super) fn after_larger_buffer(case: &Case<'_>, cause: Cause) -> f64 {
    let kind = if cause == Cause::SendBuffer { &SEND } else { &RECEIVE };
    case.connections * (kind.holds)(buffer_wanted(case)) / case.rtt_s
}

/// Without scaling a window is 64 KiB, whatever the buffers are.
fn scaling(case: &Case<'_>) -> Option<Ceiling> {
    const NAME: &str = "net.ipv4.tcp_window_scaling";
    let off_here = case.facts.host.number(NAME) == Some(0.0);
    let unscaled = case.session.sockets.iter().any(|tcp| tcp.window_scaling == Some(false));
    if !off_here && !unscaled {
        return None;
    }
    let place = match off_here {
        true => Place::Here,
        false if case.session.role == Role::Initiator => Place::AtTarget,
        false => Place::AtInitiator,
    };
    let mut changes = vec![sysctl(place, NAME, "1")];
    changes.extend(login(case));
    let says = if off_here { "0 on this host" } else { "1 here, and yet not in use" };
    Some(Ceiling {
        cause: Cause::WindowScaling,
        title: "Windows are not scaled (RFC 7323): each is 64 KiB at most.".to_owned(),
        now: case.connections * UNSCALED / case.rtt_s,
        formula: windows(case, UNSCALED),
        evidence: vec![evidence(NAME, says)],
        changes,
        wanted: None,
        after: Some(case.line()),
        measured: false,
    })
}

/// Losses, under the law of the congestion control in use, where this host sends.
fn losses(case: &Case<'_>) -> Option<Ceiling> {
    let loss = case.session.loss().filter(|loss| *loss >= LOSS_MIN)?;
    if !case.sends() {
        return None;
    }
    let name = congestion_control(case)?;
    if name == "bbr" {
        return None;
    }
    // Of the others that Linux has, most grow as cubic does or slower.
    let control = name.parse().unwrap_or(CongestionControl::Cubic);
    let (now, after) =
        (loss_law(case, loss, control), loss_law(case, loss, CongestionControl::Bbr));
    Some(Ceiling {
        cause: Cause::CongestionLoss,
        title: format!("{} of the segments are lost, and {name} halts at each.", share(loss)),
        now,
        formula: format!(
            "the law of {name}: {} connection(s), loss {}, RTT {} = {}",
            case.connections,
            share(loss),
            time(case.rtt_s),
            rate(now)
        ),
        evidence: vec![
            evidence("loss (segments sent again)", share(loss)),
            evidence("congestion control", name),
        ],
        changes: with_bbr(case, Place::Here),
        wanted: None,
        after: Some(after),
        measured: false,
    })
}

/// Of all connections, by the plan.
pub(super) fn loss_law(case: &Case<'_>, loss: f64, control: CongestionControl) -> f64 {
    case.plan(loss).outcome(control).session_bytes_per_s
}

fn congestion_control(case: &Case<'_>) -> Option<String> {
    let of_socket = case.session.sockets.iter().map(|tcp| tcp.congestion_control.clone());
    let of_host = || case.facts.host.sysctls.get("net.ipv4.tcp_congestion_control").cloned();
    of_socket.into_iter().find(|name| !name.is_empty()).or_else(of_host)
}

/// BBR for connections to come, and fq, which paces for it with less work than TCP itself.
pub(super) fn with_bbr(case: &Case<'_>, place: Place) -> Vec<Change> {
    let host = &case.facts.host;
    let here = place == Place::Here;
    let mut changes = Vec::new();
    let missing = host.has_word("net.ipv4.tcp_available_congestion_control", "bbr") == Some(false);
    if here && missing {
        changes.push(now("modprobe tcp_bbr".to_owned()));
    }
    changes.push(sysctl(place, "net.ipv4.tcp_congestion_control", "bbr"));
    let device = case.session.device.as_deref().and_then(|name| host.device(name)).filter(|_| here);
    let paced =
        |nic: &&crate::facts::Nic| !matches!(nic.qdisc.as_deref(), None | Some("fq" | "noqueue"));
    if let Some(nic) = device.filter(paced) {
        changes.push(sysctl(place, "net.core.default_qdisc", "fq"));
        changes.push(now(format!("tc qdisc replace dev {} root fq", quote(&nic.name))));
    }
    changes.extend(login(case));
    changes.extend(option(case, "enkaku … --congestion-control bbr"));
    changes
}

/// A device that is slower than the line that somebody has told of.
fn device(case: &Case<'_>) -> Option<Ceiling> {
    if case.goal.from != GoalFrom::Said {
        return None;
    }
    let nic = case.facts.host.device(case.session.device.as_deref()?)?;
    let mbit = nic.mbit_per_s?;
    let now_bytes = line(mbit as f64 * 1e6).limit_bytes_per_s();
    let name = quote(&nic.name);
    Some(Ceiling {
        cause: Cause::Device,
        title: format!("{} runs at {mbit} Mbit/s.", nic.name),
        now: now_bytes,
        formula: format!("payload of {mbit} Mbit/s = {}", rate(now_bytes)),
        evidence: vec![evidence(
            format!("sys/class/net/{}/speed", nic.name),
            format!("{mbit} Mbit/s"),
        )],
        changes: vec![now(format!("ethtool {name}")), now(format!("ethtool -s {name} autoneg on"))],
        wanted: None,
        after: Some(case.line()),
        measured: false,
    })
}

fn windows(case: &Case<'_>, window: f64) -> String {
    let times = match case.connections {
        many if many > 1.0 => format!("{many:.0} × "),
        _ => String::new(),
    };
    let all = case.connections * window / case.rtt_s;
    format!("{times}window / RTT = {times}{} / {} = {}", size(window), time(case.rtt_s), rate(all))
}
