//! What is read and seen, put together as the facts of sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use block::civil;
use doctor::facts::disk::{Counters, counters};
use doctor::facts::host::add_qdiscs;
use doctor::facts::{
    Facts, Files, Host, Initiator, Read, Role, Session, Tcp, Transfer, Unread, host, open_iscsi, ss,
};
use tcpmon::ethtool::{Device, device_of};
use tcpmon::sample::{Connection, Sample};
use tcpmon::verdict::Judgement;
use tcpmon::verdict::from_samples::{Known, Role as End, Watched, judge};

use super::curves::curves;
use super::root::Root;
use super::watch::{OWN, Seen, ports, target_of, watch};
use crate::cmd::diagnose::live::payload;
use crate::cmd::diagnose::packets;

/// iSCSI's (RFC 7143 §4.2.1).
pub(super) const ISCSI_PORT: u16 = 3260;

/// What is asked.
pub(super) struct Question {
    pub(super) target: Option<SocketAddr>,
    pub(super) time: Duration,
    pub(super) line_rate: Option<u64>,
    pub(super) root: Option<PathBuf>,
}

/// Facts, and of each session the samples of its connections and what the counters say.
pub(super) struct Gathered {
    facts: Facts,
    watched: Vec<Vec<Watched>>,
    judgements: Vec<Option<Judgement>>,
    time: Duration,
}

impl Gathered {
    /// Judges by the counters; sessions that are none are dropped.
    fn new(facts: Facts, watched: Vec<Vec<Watched>>, question: &Question) -> Self {
        let judged = |(session, watched): (Session, Vec<Watched>)| {
            let judgement = judge(&watched, &known(&facts, &session));
            (session, watched, judgement)
        };
        let mut all: Vec<_> = facts.sessions.clone().into_iter().zip(watched).map(judged).collect();
        // A connection of ours that is not at iSCSI's port is somebody's page of metrics as long as
        // nothing moves.
        all.retain(|(session, _, judgement)| {
            let port = session.portal.map(|portal| portal.port());
            judgement.is_some()
                || session.initiator == Initiator::OpenIscsi
                || port == Some(ISCSI_PORT)
                || question.target.is_some()
        });
        let mut gathered =
            Self { facts, watched: Vec::new(), judgements: Vec::new(), time: question.time };
        gathered.facts.sessions.clear();
        for (session, watched, judgement) in all {
            gathered.facts.sessions.push(session);
            gathered.watched.push(watched);
            gathered.judgements.push(judgement);
        }
        gathered
    }

    pub(super) fn is_empty(&self) -> bool {
        self.facts.sessions.is_empty()
    }

    pub(super) fn looked_at(&self) -> &[String] {
        &self.facts.looked_at
    }

    /// The facts, with the verdict of the counters, and of packets where those cannot tell and this
    /// may be looked at. Root's rights are gone then.
    pub(super) fn facts(mut self) -> Facts {
        self.look_closer();
        let sessions = self.facts.sessions.iter_mut().zip(&self.watched);
        for ((session, watched), judgement) in sessions.zip(self.judgements) {
            session.curves = judgement.as_ref().and_then(|_| curves(watched));
            session.transfer = judgement.map(|one| transfer(one, writes(watched)));
        }
        self.facts
    }

    /// Packets of the busiest session; rights for a second look are not there any more.
    fn look_closer(&mut self) {
        let rate = |one: &Judgement| one.bytes_per_s;
        let all = self.judgements.iter_mut().zip(&self.watched);
        let judged = all.filter_map(|(one, watched)| Some((one.as_mut()?, watched)));
        let busiest = judged.max_by(|a, b| rate(a.0).total_cmp(&rate(b.0)));
        let Some((judgement, watched)) = busiest else { return };
        if !packets::would_tell(judgement) {
            return;
        }
        match packets::look(judgement, watched, self.time) {
            Ok(Some(found)) => *judgement = found,
            Ok(None) => {}
            Err(error) => self.facts.unread.push(Unread {
                what: "packets, which tell waits for R2Ts from too few commands".to_owned(),
                why: format!("{error}; run this as root"),
            }),
        }
    }
}

/// Looks, and watches for as long as was asked.
///
/// # Errors
/// The kernel's table of connections cannot be read.
pub(super) fn gather(question: &Question) -> anyhow::Result<Gathered> {
    let files = Root::new(question.root.clone());
    let mut facts = Facts {
        host: host::host(&files),
        sessions: open_iscsi::sessions(&files),
        line_bits_per_s: question.line_rate.map(|bits| bits as f64),
        ..Facts::default()
    };
    facts.looked_at.push("/sys/class/iscsi_session".to_owned());
    facts.sessions.retain(|session| {
        question
            .target
            .is_none_or(|target| [session.portal, session.record].contains(&Some(target)))
    });
    qdiscs(&mut facts, &files, question.root.is_none());
    let watched = match question.root {
        None => live(&mut facts, &files, question)?,
        Some(_) => saved(&mut facts, &files),
    };
    if let Some((first, others)) = files.denied().split_first() {
        let more =
            if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
        facts.unread.push(Unread {
            what: format!("{first}{more}"),
            why: "not permitted; run this as root".to_owned(),
        });
    }
    Ok(Gathered::new(facts, watched, question))
}

/// The disciplines of all devices: what `tc` prints, which is where iproute2 keeps their names.
fn qdiscs(facts: &mut Facts, files: &Root, live: bool) {
    let unread = |why: String| Unread { what: "queueing disciplines (fq for BBR)".to_owned(), why };
    let text = match live {
        false => match files.read("tc") {
            Read::Text(text) => text,
            _ => return,
        },
        true => match Command::new("tc").args(["-j", "qdisc", "show"]).output() {
            Ok(output) if output.status.success() => {
                String::from_utf8_lossy(&output.stdout).into_owned()
            }
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                let why = format!("tc: {}", said.lines().next().unwrap_or("failed"));
                return facts.unread.push(unread(why));
            }
            Err(error) => {
                return facts.unread.push(unread(format!("tc: {error}; it is in iproute2")));
            }
        },
    };
    if !add_qdiscs(&mut facts.host, &text) {
        facts.unread.push(unread("what tc printed is no JSON".to_owned()));
    }
}

/// A folder that looks like a host: its sockets are those that `ss` has printed.
fn saved(facts: &mut Facts, files: &Root) -> Vec<Vec<Watched>> {
    facts.looked_at.push("ss".to_owned());
    let sockets = match files.read("ss") {
        Read::Text(text) => ss::sockets(&text),
        _ => Vec::new(),
    };
    let mut lines = facts.host.devices.iter().filter(|nic| nic.mbit_per_s.is_some());
    // Which device an address has is not in sysfs; if only one has a line, it is that.
    let device = lines.next().map(|nic| nic.name.clone()).filter(|_| lines.next().is_none());
    for session in &mut facts.sessions {
        let of = |tcp: &&Tcp| Some(tcp.remote) == session.portal;
        session.sockets = sockets.iter().filter(of).cloned().collect();
        session.device.clone_from(&device);
    }
    vec![Vec::new(); facts.sessions.len()]
}

/// Watches connections and disks of this host.
fn live(facts: &mut Facts, files: &Root, question: &Question) -> anyhow::Result<Vec<Vec<Watched>>> {
    let portals = facts.sessions.iter().filter_map(|session| session.portal);
    let mut named: BTreeSet<u16> = portals.map(|portal| portal.port()).collect();
    named.insert(ISCSI_PORT);
    let ports = match question.target {
        Some(target) => BTreeSet::from([target.port()]),
        None => ports(&named.into_iter().collect::<Vec<_>>())?,
    };
    let shown: Vec<String> = ports.iter().map(ToString::to_string).collect();
    facts.looked_at.push(format!("TCP port {}", shown.join(", ")));
    facts.looked_at.push("connections of enkaku".to_owned());
    let disks: Vec<String> = facts
        .sessions
        .iter()
        .flat_map(|session| session.disks.iter().map(|disk| disk.name.clone()))
        .collect();
    let look = || -> BTreeMap<String, Counters> {
        disks.iter().filter_map(|name| Some((name.clone(), counters(files, name)?))).collect()
    };
    let (before, begin) = (look(), Instant::now());
    // Nobody has a connection: nothing is there to wait for.
    let (mut seen, hidden) = watch(&ports, Duration::ZERO)?;
    if !seen.is_empty() || !disks.is_empty() {
        (seen, _) = watch(&ports, question.time)?;
    }
    facts.seconds = begin.elapsed().as_secs_f64();
    facts.unread.extend(hidden.map(|why| Unread { what: "names of processes".to_owned(), why }));
    let after = look();
    for disk in facts.sessions.iter_mut().flat_map(|session| &mut session.disks) {
        let pair = before.get(&disk.name).zip(after.get(&disk.name));
        disk.load = pair.and_then(|(before, after)| after.since(before, facts.seconds));
    }
    Ok(with_sockets(facts, seen, question.target))
}

/// What holds the connections of a session together.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// One of /sys/class/iscsi_session.
    Known(usize),
    /// Of a process here, to a target.
    Asks(SocketAddr, Option<u32>),
    /// From a host, to a target here.
    Serves(SocketAddr, IpAddr),
}

/// Gives sessions their connections, and makes sessions of those that have none; returns the
/// samples of each session.
fn with_sockets(
    facts: &mut Facts,
    seen: Vec<Seen>,
    target: Option<SocketAddr>,
) -> Vec<Vec<Watched>> {
    let mut groups: BTreeMap<Key, Vec<Seen>> = BTreeMap::new();
    let (mut far_ends, mut near_ends) = (Vec::new(), Vec::new());
    for one in seen {
        let Some(sample) = one.watched.samples.last() else { continue };
        let (connection, at) = (sample.connection, target_of(&one.watched));
        let Some(at) = at.filter(|at| target.is_none_or(|target| target == *at)) else { continue };
        let known = known_session(&facts.sessions, connection.local.port(), at, &groups);
        let key = match (one.watched.role, known) {
            (End::Initiator, Some(known)) => Key::Known(known),
            (End::Initiator, None) => Key::Asks(at, one.process.as_ref().map(|(pid, _)| *pid)),
            (End::Target, _) => Key::Serves(at, connection.remote.ip()),
        };
        match one.watched.role {
            End::Initiator => near_ends.push(connection),
            End::Target => far_ends.push(one.watched.clone()),
        }
        groups.entry(key).or_default().push(one);
    }
    let mut samples = vec![Vec::new(); facts.sessions.len()];
    for (key, group) in groups {
        let both_here = matches!(key, Key::Serves(..))
            && group.iter().all(|one| {
                one.watched.samples.last().is_some_and(|sample| {
                    near_ends
                        .iter()
                        .any(|near: &Connection| near.is_other_end_of(&sample.connection))
                })
            });
        // The other end of a session that is already told of.
        if both_here {
            continue;
        }
        let at = match key {
            Key::Known(at) => at,
            _ => {
                facts.sessions.push(session(&group));
                samples.push(Vec::new());
                facts.sessions.len() - 1
            }
        };
        describe(&mut facts.sessions[at], &mut facts.host, &group);
        let own = group.into_iter().map(|one| one.watched);
        samples[at].extend(own);
        // Whoever sends knows more, so that both ends are judged where both are here.
        let others = far_ends.iter().filter(|far| is_other_end(far, &samples[at])).cloned();
        let others: Vec<Watched> = others.collect();
        samples[at].extend(others);
    }
    samples
}

/// Which session of /sys/class a connection is: by its own port where the kernel tells it, else
/// one of those with this target that has none yet.
fn known_session(
    sessions: &[Session],
    port: u16,
    at: SocketAddr,
    groups: &BTreeMap<Key, Vec<Seen>>,
) -> Option<usize> {
    let there = || (0..sessions.len()).filter(|one| sessions[*one].portal == Some(at));
    let by_port = there().find(|one| sessions[*one].local_port == Some(port));
    let open = |one: &usize| sessions[*one].local_port.is_none();
    let free = || there().filter(open).find(|one| !groups.contains_key(&Key::Known(*one)));
    by_port.or_else(free).or_else(|| there().find(open))
}

fn is_other_end(far: &Watched, own: &[Watched]) -> bool {
    let Some(far) = far.samples.last() else { return false };
    let mut own = own.iter().filter_map(|one| one.samples.last());
    own.any(|one| one.connection.is_other_end_of(&far.connection))
}

/// A session of which only connections are seen.
fn session(group: &[Seen]) -> Session {
    let first = group.first();
    let at = first.and_then(|one| target_of(&one.watched));
    let serves = first.is_some_and(|one| one.watched.role == End::Target);
    let own = first.and_then(|one| one.process.as_ref()).is_some_and(|(_, name)| name == OWN);
    let connection = first.and_then(|one| one.watched.samples.last()).map(|one| one.connection);
    let name = match (serves, connection) {
        (true, Some(connection)) => {
            format!("from {} to {}", connection.remote.ip(), connection.local)
        }
        (_, Some(connection)) => format!("to {}", connection.remote),
        _ => "unknown".to_owned(),
    };
    Session {
        name,
        initiator: if own && !serves { Initiator::Enkaku } else { Initiator::Unknown },
        role: if serves { Role::Target } else { Role::Initiator },
        portal: at,
        ..Session::default()
    }
}

/// Its connections, their device and processes.
fn describe(session: &mut Session, host: &mut Host, group: &[Seen]) {
    let latest = group.iter().filter_map(|one| one.watched.samples.last());
    session.sockets = latest.map(tcp).collect();
    let mut names: Vec<String> =
        group.iter().filter_map(|one| Some(one.process.as_ref()?.1.clone())).collect();
    names.sort();
    names.dedup();
    session.processes = names;
    session.device = session.sockets.first().and_then(|tcp| device_of(tcp.local.ip()));
    let Some(device) = session.device.as_deref().and_then(|name| Device::read(name).ok()) else {
        return;
    };
    if let Some(nic) = host.devices.iter_mut().find(|nic| nic.name == device.name) {
        let off = device.offloads.iter().filter(|knob| knob.value == 0);
        nic.offloads_off = off.map(|knob| knob.name.to_owned()).collect();
    }
}

fn tcp(sample: &Sample) -> Tcp {
    let info = &sample.tcp;
    let measured = |us: u32| Some(f64::from(us)).filter(|us| *us > 0.0);
    Tcp {
        congestion_control: sample.congestion_control.clone(),
        rtt_us: measured(info.rtt_us),
        rtt_min_us: info.base_rtt_us().and_then(measured),
        segment_bytes: Some(info.mss_bytes.into()),
        path_mtu_bytes: Some(u64::from(info.path_mtu_bytes)).filter(|bytes| *bytes > 0),
        cwnd_bytes: Some(info.cwnd_bytes()),
        receive_buffer_bytes: sample.memory.map(|memory| memory.receive_buffer_bytes.into()),
        send_buffer_bytes: sample.memory.map(|memory| memory.send_buffer_bytes.into()),
        send_window_bytes: info.send_window_bytes.map(u64::from),
        window_scaling: None,
        retransmitted_segments: info.total_retrans_segments.into(),
        data_segments_out: info.data_segments_out.map(u64::from),
        timeouts_in_a_row: info.retransmits.into(),
        unacked_segments: info.unacked_segments.into(),
        ..Tcp::between(sample.connection.local, sample.connection.remote)
    }
}

/// What is known besides the samples.
fn known(facts: &Facts, session: &Session) -> Known {
    let nic = session.device.as_deref().and_then(|name| facts.host.device(name));
    let speed = nic.and_then(|nic| nic.mbit_per_s);
    let said = facts.line_bits_per_s;
    Known {
        line_bytes_per_s: said.map(|bits| payload(bits as u64)),
        device_bytes_per_s: speed.map(|mbit| payload(mbit.saturating_mul(1_000_000))),
        send_buffer_max_bytes: tcpmon::watch::send_buffer_max_bytes(),
        own_initiator: session.initiator == Initiator::Enkaku,
    }
}

/// A counter of a connection.
type Counter = fn(&Sample) -> Option<u64>;

/// More leaves the initiator than comes to it.
fn writes(watched: &[Watched]) -> bool {
    let moved = |of: Counter, role: End| {
        let ends = watched.iter().filter(|one| one.role == role);
        let pair =
            ends.filter_map(|one| Some((of(one.samples.first()?)?, of(one.samples.last()?)?)));
        pair.map(|(before, after)| after.saturating_sub(before)).sum::<u64>()
    };
    let sent: Counter = |sample| sample.tcp.sent_bytes.or(sample.tcp.acked_bytes);
    let received: Counter = |sample| sample.tcp.received_bytes;
    let outward = moved(sent, End::Initiator) + moved(received, End::Target);
    outward > moved(received, End::Initiator) + moved(sent, End::Target)
}

fn transfer(judgement: Judgement, writes: bool) -> Transfer {
    let verdict = judgement.verdict;
    let doubt = |one: tcpmon::verdict::CannotTell| {
        format!("Not excluded: {}. {} What tells: {}", one.cause.as_str(), one.why, one.command)
    };
    Transfer {
        writes,
        bytes_per_s: judgement.bytes_per_s,
        cause: verdict.cause,
        advice: verdict.advice,
        evidence: verdict
            .evidence
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        cannot_tell: judgement.cannot_tell.into_iter().map(doubt).collect(),
    }
}

/// The time, for the page.
pub(super) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (year, month, day) = civil(i64::try_from(since / 86_400).unwrap_or_default());
    let (hour, minute) = (since / 3600 % 24, since / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}
