//! Ceilings of the block layer and of iSCSI above TCP: read-ahead, queue depth, the size of
//! requests, and R2Ts (RFC 7143 §11.8). Each is so many bytes in a round trip.

use super::case::{Case, Ceiling, evidence, round_up};
use super::commands::{login, of_disk, quote, record};
use super::{Cause, Change, Wanted};
use crate::facts::{Disk, Keys};
use crate::units::{rate, size, time};

const KIB: f64 = 1024.0;
/// More read-ahead than this is memory that a second reader has not got.
const READ_AHEAD_MAX: f64 = 64.0 * KIB * KIB;
/// Limits of iscsid.conf(5): `node.session.queue_depth`, and `cmds_max`, a power of two.
const QUEUE_DEPTH_MAX: f64 = 1024.0;
const COMMANDS_MAX: f64 = 2048.0;
/// Requests below this are worth being made longer before there are more of them.
const REQUEST_SMALL: f64 = 512.0 * KIB;
const REQUEST_WANTED: f64 = 1024.0 * KIB;
/// iscsid.conf(5): bursts are below 2^24 bytes; this is what open-iscsi itself has as default.
const BURST_MAX: f64 = 16_776_192.0;
/// What a read under way may differ from the window of read-ahead, to be taken for it.
const LIKE_READ_AHEAD: std::ops::RangeInclusive<f64> = 0.4..=1.25;

/// The ceilings of the disk, of which there may be none: our own sessions have no block device.
pub(super) fn ceilings(case: &Case<'_>) -> Vec<Ceiling> {
    let Some(disk) = case.disk() else { return Vec::new() };
    let mut found = Vec::new();
    if !case.writes {
        found.extend(read_ahead(case, disk));
    }
    found.extend(queue(case, disk));
    found
}

/// Whether what is under way in a disk is a window of its read-ahead.
pub(super) fn is_reading_ahead(case: &Case<'_>, disk: &Disk) -> bool {
    let Some(ahead) = disk.read_ahead_kib.map(|kib| kib as f64 * KIB) else { return false };
    // An idle disk is judged for whoever reads it in order.
    case.load().is_none_or(|load| {
        LIKE_READ_AHEAD.contains(&(load.in_flight * load.read_bytes / ahead.max(1.0)))
    })
}

/// One window of read-ahead in a round trip: the next one is asked for when the reader has got the
/// first page of this one (mm/readahead.c).
fn read_ahead(case: &Case<'_>, disk: &Disk) -> Option<Ceiling> {
    let kib = disk.read_ahead_kib?;
    if !is_reading_ahead(case, disk) {
        return None;
    }
    let bytes = kib as f64 * KIB;
    let wanted = round_up(case.product()).clamp(bytes.max(KIB), READ_AHEAD_MAX.max(bytes));
    let device = quote(&format!("/dev/{}", disk.name.replace('!', "/")));
    Some(Ceiling {
        cause: Cause::ReadAhead,
        title: format!(
            "Whoever reads {} in order has {} under way: its read-ahead.",
            disk.name,
            size(bytes)
        ),
        now: case.each_round_trip(bytes),
        formula: each(case, "read-ahead", bytes, 1.0),
        evidence: vec![evidence(attribute(disk, "queue/read_ahead_kb"), size(bytes))],
        changes: vec![of_disk(format!("blockdev --setra {:.0} {device}", wanted / 512.0))],
        wanted: Some(Wanted { name: "read_ahead_kib", value: wanted / KIB }),
        after: Some(case.each_round_trip(wanted)),
        measured: false,
    })
}

/// Commands in the queue, and what each of them carries.
fn queue(case: &Case<'_>, disk: &Disk) -> Vec<Ceiling> {
    let longest = disk.max_sectors_kib.map(|kib| kib as f64 * KIB);
    let seen = case.load().map(|load| load.request_bytes(case.writes));
    let Some(request) = seen.or(longest) else { return Vec::new() };
    let places = [disk.queue_depth, case.session.commands_max].into_iter().flatten().min();
    let Some(places) = places.filter(|places| *places > 0).map(|places| places as f64) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let longer = longer(disk, request, longest);
    found.extend(longer.map(|longer| request_size(case, disk, places, request, longer)));
    let request = longer.unwrap_or(request);
    found.push(queue_depth(case, disk, places, request));
    if case.writes {
        let under_way = case.load().map_or(places, |load| load.in_flight.clamp(1.0, places));
        found.extend(r2t(case, under_way, request));
    }
    found
}

/// What requests could be, where they are as long as they may and that is short.
fn longer(disk: &Disk, request: f64, longest: Option<f64>) -> Option<f64> {
    let hardware = disk.max_hw_sectors_kib? as f64 * KIB;
    let wanted = hardware.min(REQUEST_WANTED);
    let cut = request >= longest? * 0.9 && request < REQUEST_SMALL;
    (cut && wanted > request * 1.1).then_some(wanted)
}

fn request_size(case: &Case<'_>, disk: &Disk, places: f64, request: f64, wanted: f64) -> Ceiling {
    let kib = wanted / KIB;
    let path = format!("/{}", attribute(disk, "queue/max_sectors_kb"));
    Ceiling {
        cause: Cause::RequestSize,
        title: format!("Requests to {} are cut at {}.", disk.name, size(request)),
        now: case.each_round_trip(places * request),
        formula: each(case, "request", request, places),
        evidence: vec![evidence(attribute(disk, "queue/max_sectors_kb"), size(request))],
        changes: vec![of_disk(format!("echo {kib:.0} > {}", quote(&path)))],
        wanted: Some(Wanted { name: "max_sectors_kib", value: kib }),
        after: Some(case.each_round_trip(places * wanted)),
        measured: false,
    }
}

fn queue_depth(case: &Case<'_>, disk: &Disk, places: f64, request: f64) -> Ceiling {
    let wanted = case.depth(request).clamp(places, QUEUE_DEPTH_MAX.max(places));
    let session = case.session.commands_max.map(|count| count as f64);
    let by_session = session.is_some_and(|session| session <= places)
        && disk.queue_depth.is_none_or(|depth| depth as f64 > places);
    let (cause, whose) = match by_session {
        true => (Cause::CommandsMax, "the session"),
        false => (Cause::QueueDepth, disk.name.as_str()),
    };
    let path = attribute(disk, "device/queue_depth");
    let mut changes = Vec::new();
    if session.is_some_and(|session| wanted > session) {
        let all = round_up(wanted).min(COMMANDS_MAX);
        changes.extend(record(case, "node.session.cmds_max", &format!("{all:.0}")));
    } else if case.is_open_iscsi() {
        changes.push(of_disk(format!("echo {wanted:.0} > {}", quote(&format!("/{path}")))));
    }
    // A disk that takes more already is left as it is.
    let shallow = disk.queue_depth.is_none_or(|depth| (depth as f64) < wanted);
    if shallow {
        changes.extend(record(case, "node.session.queue_depth", &format!("{wanted:.0}")));
    }
    if session.is_some_and(|session| wanted > session) {
        changes.extend(login(case));
    }
    let mut seen =
        vec![evidence(path, disk.queue_depth.map_or("unknown".into(), |n| n.to_string()))];
    seen.extend(
        session.map(|session| evidence("can_queue of the SCSI host", format!("{session:.0}"))),
    );
    Ceiling {
        cause,
        title: format!("At most {places:.0} commands of {whose} are under way."),
        now: case.each_round_trip(places * request),
        formula: each(case, "request", request, places),
        evidence: seen,
        changes,
        wanted: Some(Wanted { name: "queue_depth", value: wanted }),
        after: Some(case.each_round_trip(wanted * request)),
        measured: false,
    }
}

/// Round trips of a write of so many bytes: one for the command and what may be sent with it, and
/// one for each R2T that cannot be outstanding beside another (RFC 7143 §11.8, §13.10 to §13.17).
pub(super) fn rounds(keys: &Keys, bytes: f64) -> Option<f64> {
    let first = keys.first_burst_bytes? as f64;
    let burst = (keys.max_burst_bytes? as f64).max(1.0);
    let together = keys.max_outstanding_r2t.unwrap_or(1).max(1) as f64;
    let unasked = match (keys.initial_r2t.unwrap_or(true), keys.immediate_data.unwrap_or(true)) {
        (false, _) => first,
        // In the command's own PDU, which is a segment at most.
        (true, true) => first.min(keys.send_segment_bytes.unwrap_or(8192) as f64),
        (true, false) => 0.0,
    };
    let bursts = ((bytes - unasked).max(0.0) / burst).ceil();
    Some(1.0 + (bursts / together).ceil())
}

fn r2t(case: &Case<'_>, under_way: f64, request: f64) -> Option<Ceiling> {
    let keys = &case.session.keys;
    let rounds = rounds(keys, request).filter(|rounds| *rounds > 1.0)?;
    let once = case.each_round_trip(under_way * request);
    Some(Ceiling {
        cause: Cause::R2t,
        title: format!(
            "A write of {} takes {rounds:.0} round trips: its data wait for R2Ts of the target.",
            size(request)
        ),
        now: once / rounds,
        formula: format!(
            "{under_way:.0} × {} / ({rounds:.0} × {}) = {}",
            size(request),
            time(case.rtt_s),
            rate(once / rounds)
        ),
        evidence: said(keys),
        changes: bursts(case, request),
        wanted: Some(Wanted { name: "first_burst_bytes", value: round_up(request).min(BURST_MAX) }),
        after: Some(once),
        measured: false,
    })
}

/// What was negotiated about bursts.
pub(super) fn said(keys: &Keys) -> Vec<super::Evidence> {
    let yes_no = |value: bool| if value { "Yes" } else { "No" };
    let words = [
        ("InitialR2T", keys.initial_r2t.map(|value| yes_no(value).to_owned())),
        ("ImmediateData", keys.immediate_data.map(|value| yes_no(value).to_owned())),
        ("FirstBurstLength", keys.first_burst_bytes.map(|bytes| size(bytes as f64))),
        ("MaxBurstLength", keys.max_burst_bytes.map(|bytes| size(bytes as f64))),
        ("MaxOutstandingR2T", keys.max_outstanding_r2t.map(|count| count.to_string())),
    ];
    words.into_iter().filter_map(|(name, value)| Some(evidence(name, value?))).collect()
}

/// The keys with which a write of so many bytes takes one round trip; the target has to offer them,
/// too, because the smaller value holds.
pub(super) fn bursts(case: &Case<'_>, request: f64) -> Vec<Change> {
    let keys = &case.session.keys;
    let first = round_up(request).min(BURST_MAX);
    let mut changes = Vec::new();
    let mut set = |key: &str, value: &str| {
        changes.extend(record(case, &format!("node.session.iscsi.{key}"), value));
    };
    if keys.initial_r2t == Some(true) {
        set("InitialR2T", "No");
    }
    if keys.immediate_data == Some(false) {
        set("ImmediateData", "Yes");
    }
    if keys.first_burst_bytes.is_none_or(|bytes| (bytes as f64) < first) {
        set("FirstBurstLength", &format!("{first:.0}"));
    }
    if keys.max_burst_bytes.is_some_and(|bytes| (bytes as f64) < first) {
        set("MaxBurstLength", &format!("{first:.0}"));
    }
    changes.extend(login(case));
    changes
}

fn attribute(disk: &Disk, name: &str) -> String {
    format!("sys/block/{}/{name}", disk.name)
}

fn each(case: &Case<'_>, what: &str, bytes: f64, count: f64) -> String {
    let times = if count > 1.0 { format!("{count:.0} × ") } else { String::new() };
    let all = case.each_round_trip(count * bytes);
    format!("{times}{what} / RTT = {times}{} / {} = {}", size(bytes), time(case.rtt_s), rate(all))
}
