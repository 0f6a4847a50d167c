//! From counters to a sample: what every connection carried since the last one, and what its socket
//! says. Measures only.
//!
//! TCP's own numbers about windows and buffers are those of the side that sends. For writes that is
//! us; for reads our socket knows the round trip and the window that it announces, and whether
//! there is enough to do is known from the commands under way.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use iscsi_proto::ids::Cid;
use iscsi_proto::initiator::{ConnectionId as CoreId, Pace, slowness};
use iscsi_proto::keys::{ConnectionParams, SessionParams};
use iscsi_proto::time::Instant;
use path::limit::of_connection;
use path::{Connection, ConnectionId, Sample, Tcp, TcpInfo, is_burst};
use tokio::net::TcpStream;

use super::disorder::Disorder;
use super::report::PathConnection;
use crate::initiator::growth::Ceiling;
use crate::initiator::state::{Phase, State};
use crate::transport::socket_options::{
    automatic_receive_buffer, buffer_sizes, congestion_control,
};
use crate::transport::tcp_info::tcp_info;

/// Commands under way that hold no more than this many times rate × round trip leave the path
/// idle: it is the application that asks for too little at once (Little's law).
const APPLICATION_LIMITED_FACTOR: f64 = 1.3;

/// Without commands under way, less than this is what keeps the connections alive.
const IDLE_BYTES_PER_S: f64 = 64_000.0;

/// Weight of the newest interval in a connection's pace: a few hundred milliseconds count.
const PACE_SMOOTHING: f64 = 0.3;

/// A disk's connections at one moment.
pub(super) struct View {
    /// Commands of the user go out.
    pub(super) up: bool,
    /// Counts the set-ups of its sessions.
    pub(super) incarnation: u64,
    /// Commands that are under way or wait.
    pub(super) commands: usize,
    /// Time in which commands have waited for the rate, all in all.
    pub(super) waited: Duration,
    pub(super) open: u32,
    pub(super) opening: u32,
    /// Connections that may be asked for.
    pub(super) most: u32,
    pub(super) ceiling: Option<Ceiling>,
    /// What was agreed on the leading connection.
    pub(super) agreed: Option<(SessionParams, ConnectionParams)>,
    pub(super) seen: Vec<Seen>,
}

/// One of them.
pub(super) struct Seen {
    pub(super) serial: u32,
    pub(super) session: usize,
    pub(super) id: CoreId,
    pub(super) cid: Cid,
    pub(super) age: Duration,
    pub(super) stream: Arc<TcpStream>,
    /// Payload of its unfinished commands, and their number.
    pub(super) outstanding_bytes: u64,
    pub(super) in_flight: u32,
}

impl View {
    pub(super) fn of(state: &State, now: Instant) -> Self {
        let mut seen = Vec::new();
        for (session, member) in state.members.iter().enumerate() {
            for (id, cid) in member.active() {
                let Some(stream) = member.streams[id.index()].upgrade() else { continue };
                let opened = member.opened[id.index()];
                let load = member.session.load(id);
                seen.push(Seen {
                    serial: opened.serial,
                    session,
                    id,
                    cid,
                    age: now.since(opened.at),
                    stream,
                    outstanding_bytes: load.map_or(0, |load| load.outstanding_bytes),
                    in_flight: load.map_or(0, |load| load.in_flight),
                });
            }
        }
        Self {
            up: state.phase == Phase::Up && state.ended.is_none(),
            incarnation: state.incarnation,
            commands: state.commands(),
            waited: state.throttle.waited(now),
            open: state.connections_open(),
            opening: state.connections_opening(),
            most: state.connections_max(),
            ceiling: state.growth.ceiling().cloned(),
            agreed: state.agreed(),
            seen,
        }
    }

    /// Whom the connections lead to.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        self.seen.iter().find_map(|seen| peer_of(&seen.stream))
    }
}

/// The address at the other end, in the form that is remembered.
pub(super) fn peer_of(stream: &TcpStream) -> Option<IpAddr> {
    stream.peer_addr().ok().map(|peer| peer.ip().to_canonical())
}

/// An interval.
pub(super) struct Measured {
    pub(super) sample: Sample,
    /// Most of the payload came in.
    pub(super) reads: bool,
    /// Our sockets have a burst to send ([`is_burst`]).
    pub(super) bursts: bool,
    pub(super) connections: Vec<PathConnection>,
    /// How slow each connection is beside the fastest: place, and what to tell its session.
    pub(super) slowness: Vec<(usize, CoreId, u32, f64)>,
}

/// What a connection carried in an interval.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    sent: f64,
    received: f64,
}

impl Moved {
    /// Round trips were measured in the interval: of what we sent, or of what came.
    fn tells_round_trip(self, reads: bool) -> bool {
        if reads { self.received > 0.0 } else { self.sent > 0.0 }
    }
}

/// The counters of the sample before.
pub(super) struct Meter {
    /// The kernel enlarges a receive buffer to this size by itself.
    buffer_grown: u64,
    before: BTreeMap<u32, TcpInfo>,
    /// What each did lately, and how slow it counted.
    paces: BTreeMap<u32, (Pace, f64)>,
    disorder: Disorder,
    waited: Duration,
    at: Option<Instant>,
    /// Time with a session, in seconds.
    t_s: f64,
}

impl Default for Meter {
    fn default() -> Self {
        // Unless a program set it, a buffer below this may still grow; nearly full is full.
        let buffer_grown = automatic_receive_buffer() / 10 * 9;
        let (before, paces) = (BTreeMap::new(), BTreeMap::new());
        Self {
            buffer_grown,
            before,
            paces,
            disorder: Disorder::default(),
            waited: Duration::ZERO,
            at: None,
            t_s: 0.0,
        }
    }
}

impl Meter {
    /// There is no session: the time until the next sample does not count.
    pub(super) fn pause(&mut self) {
        self.before.clear();
        self.paces.clear();
        self.disorder = Disorder::default();
        self.at = None;
    }

    /// What was carried since the last time; none at the first.
    pub(super) fn measure(&mut self, view: &View, now: Instant) -> Option<Measured> {
        let mut after = BTreeMap::new();
        for seen in &view.seen {
            if let Ok(info) = tcp_info(&*seen.stream) {
                after.insert(seen.serial, info);
            }
        }
        let before = std::mem::replace(&mut self.before, after);
        let waited = view.waited.saturating_sub(std::mem::replace(&mut self.waited, view.waited));
        let interval_s = now.since(self.at.replace(now)?).as_secs_f64();
        if interval_s <= 0.0 {
            return None;
        }
        self.t_s += interval_s;
        // Whoever is new has nothing to compare with, and was not part of the interval.
        let rated = view.seen.iter().filter_map(|seen| {
            let (old, new) = (before.get(&seen.serial)?, self.before.get(&seen.serial)?);
            Some((seen, old, new, moved(old, new, interval_s)))
        });
        let rated: Vec<_> = rated.collect();
        let sent: f64 = rated.iter().map(|(.., moved)| moved.sent).sum();
        let received: f64 = rated.iter().map(|(.., moved)| moved.received).sum();
        let reads = received > sent;
        // NOPs and logins are no transfer.
        let idle = view.seen.iter().all(|seen| seen.in_flight == 0);
        let bytes_per_s = sent + received;
        let nothing = idle && bytes_per_s < IDLE_BYTES_PER_S;
        let mut sample = Sample {
            t_s: self.t_s,
            connections_open: view.open,
            bytes_per_s: if nothing { 0.0 } else { bytes_per_s },
            held_share: (waited.as_secs_f64() / interval_s).min(1.0),
            ..Sample::default()
        };
        let outstanding = view.seen.iter().map(|seen| seen.outstanding_bytes).sum();
        sample.outstanding_bytes = Some(outstanding as f64);
        sample.commands = Some(view.commands);
        let starved = is_starved(outstanding, &self.before, bytes_per_s);
        let mut connections = Vec::new();
        self.disorder.next();
        for (seen, old, new, moved) in rated {
            let rate = moved.sent + moved.received;
            let tcp = if reads {
                let losses = self.disorder.losses(seen.serial, old, new);
                let tcp = receiving(seen, new, moved.received, starved, self.buffer_grown);
                Tcp { retransmits: losses, ..tcp }
            } else {
                sending(seen, old, new, interval_s, starved)
            };
            // The smoothed round trip of a socket that moves nothing is that of its last transfer,
            // which may have met a queue that is long gone.
            let tcp = Tcp { rtt_us: tcp.rtt_us.filter(|_| moved.tells_round_trip(reads)), ..tcp };
            let (id, age_s) = (ConnectionId(seen.serial), Some(seen.age.as_secs_f64()));
            let connection = Connection { id, age_s, bytes_per_s: Some(rate), tcp };
            connections.push(path_connection(seen, old, new, &connection));
            sample.connections.push(connection);
        }
        let slowness = self.pace(view, &sample);
        let bursts = is_burst(self.before.values());
        Some(Measured { sample, reads, bursts, connections, slowness })
    }

    /// Adds an interval to what each connection did lately, and compares them.
    fn pace(&mut self, view: &View, sample: &Sample) -> Vec<(usize, CoreId, u32, f64)> {
        self.paces.retain(|serial, _| view.seen.iter().any(|seen| seen.serial == *serial));
        for connection in &sample.connections {
            let Some(seen) = view.seen.iter().find(|seen| seen.serial == connection.id.0) else {
                continue;
            };
            let rate = connection.bytes_per_s.unwrap_or(0.0);
            let backlog = seen.outstanding_bytes as f64;
            let new = Pace { bytes_per_s: rate, backlog_bytes: backlog };
            let (pace, _) = self.paces.entry(seen.serial).or_insert((new, 1.0));
            pace.bytes_per_s += PACE_SMOOTHING * (rate - pace.bytes_per_s);
            pace.backlog_bytes += PACE_SMOOTHING * (backlog - pace.backlog_bytes);
        }
        let known = view.seen.iter().map(|seen| self.paces.get(&seen.serial).copied());
        let (paces, before): (Vec<_>, Vec<_>) =
            known.map(|known| (known.map(|(pace, _)| pace), known.map_or(1.0, |(_, s)| s))).unzip();
        let rtt_us = sample.connections.iter().filter_map(|c| c.tcp.min_rtt_us);
        let slow = slowness(&paces, &before, rtt_us.reduce(f64::min).unwrap_or(0.0) / 1e6);
        for (seen, slow) in view.seen.iter().zip(&slow) {
            if let Some((_, before)) = self.paces.get_mut(&seen.serial) {
                *before = *slow;
            }
        }
        let named = |(seen, slow): (&Seen, f64)| (seen.session, seen.id, seen.serial, slow);
        view.seen.iter().zip(slow).map(named).collect()
    }
}

/// The connections, with what each carried on average since it was opened.
pub(super) fn since_opening(view: &View) -> Vec<PathConnection> {
    let zero = TcpInfo { acked_bytes: Some(0), received_bytes: Some(0), ..TcpInfo::default() };
    let connection = |seen: &Seen| {
        let new = tcp_info(&*seen.stream).ok()?;
        let age_s = seen.age.as_secs_f64();
        let moved = moved(&zero, &new, age_s.max(1e-3));
        let connection = Connection {
            id: ConnectionId(seen.serial),
            age_s: Some(age_s),
            bytes_per_s: Some(moved.sent + moved.received),
            tcp: Tcp::default(),
        };
        Some(path_connection(seen, &zero, &new, &connection))
    };
    view.seen.iter().filter_map(connection).collect()
}

fn moved(old: &TcpInfo, new: &TcpInfo, interval_s: f64) -> Moved {
    let rate = |old: Option<u64>, new: Option<u64>| {
        let bytes = old.zip(new).map_or(0, |(old, new)| new.saturating_sub(old));
        bytes as f64 / interval_s
    };
    Moved {
        sent: rate(old.acked_bytes, new.acked_bytes),
        received: rate(old.received_bytes, new.received_bytes),
    }
}

/// The commands under way do not fill the path.
fn is_starved(outstanding: u64, infos: &BTreeMap<u32, TcpInfo>, bytes_per_s: f64) -> bool {
    let least_us = infos.values().filter_map(TcpInfo::least_rtt_us).min().unwrap_or_default();
    let on_the_way = bytes_per_s * f64::from(least_us) / 1e6;
    outstanding == 0 || (outstanding as f64) < APPLICATION_LIMITED_FACTOR * on_the_way
}

/// What a socket says that receives: the peer knows the rest.
fn receiving(seen: &Seen, new: &TcpInfo, received: f64, starved: bool, buffer_grown: u64) -> Tcp {
    let rtt_s = f64::from(new.least_rtt_us().unwrap_or(new.rtt_us)) / 1e6;
    let buffer = buffer_sizes(&*seen.stream).1;
    // While the kernel still enlarges the buffer, the window is on its way, not a limit.
    let grown = buffer.is_some_and(|bytes| bytes as u64 >= buffer_grown);
    Tcp {
        // The window that limits is ours; what is under way towards us fills it.
        in_flight_bytes: Some(received * rtt_s),
        peer_window_bytes: new
            .receive_window_bytes
            .map(f64::from)
            .filter(|bytes| grown && *bytes > 0.0),
        send_buffer_bytes: buffer.map(|bytes| bytes as f64),
        app_limited: Some(starved),
        // The round trip of what we send is that of requests, which the target may acknowledge with
        // its answer: the storage's time would pass for a queue in the network. That of what we
        // receive includes pauses of the sender. A queue is in both.
        rtt_us: new.rtt_of_received_us().map(|us| f64::from(us.min(new.rtt_us))),
        ..new.round_trip()
    }
}

/// What a socket says that sends.
fn sending(seen: &Seen, old: &TcpInfo, new: &TcpInfo, interval_s: f64, starved: bool) -> Tcp {
    let tcp = new.sending_since(old, interval_s);
    let name = congestion_control(&*seen.stream);
    Tcp {
        // TCP takes every pause of iSCSI (R2T, command window) for one of the application.
        busy_share: tcp.busy_share.filter(|_| starved),
        app_limited: Some(starved && new.app_limited),
        peer_window_bytes: new.send_window_bytes.map(f64::from),
        send_buffer_bytes: buffer_sizes(&*seen.stream).0.map(|bytes| bytes as f64),
        congestion_control: name.and_then(|name| name.parse().ok()),
        ..tcp
    }
}

fn path_connection(
    seen: &Seen,
    old: &TcpInfo,
    new: &TcpInfo,
    connection: &Connection,
) -> PathConnection {
    let (send_buffer, receive_buffer) = buffer_sizes(&*seen.stream);
    let micros = |us: u32| Duration::from_micros(us.into());
    let retransmits_new = new.total_retrans_segments.saturating_sub(old.total_retrans_segments);
    PathConnection {
        id: seen.serial,
        session: seen.session,
        cid: seen.cid,
        age: seen.age,
        bytes_per_s: connection.bytes_per_s.unwrap_or(0.0),
        rtt: micros(new.rtt_us),
        min_rtt: new.least_rtt_us().map(micros),
        congestion_window: new.cwnd_bytes(),
        unacked: new.unacked_bytes(),
        retransmits: new.total_retrans_segments.into(),
        retransmits_new: retransmits_new.into(),
        congestion_control: congestion_control(&*seen.stream).unwrap_or_default(),
        send_buffer,
        receive_buffer,
        in_flight: seen.in_flight,
        outstanding_bytes: seen.outstanding_bytes,
        limit: of_connection(connection),
    }
}

#[cfg(test)]
mod tests {
    use path::Bottleneck;

    use super::*;

    fn info(acked: u64, received: u64, busy_ms: u64) -> TcpInfo {
        TcpInfo {
            rtt_us: 50_000,
            min_rtt_us: Some(40_000),
            acked_bytes: Some(acked),
            received_bytes: Some(received),
            busy_us: Some(1000 * busy_ms),
            app_limited: true,
            mss_bytes: 1000,
            cwnd_segments: 10,
            receive_window_bytes: Some(65_536),
            ..TcpInfo::default()
        }
    }

    async fn seen(serial: u32, outstanding_bytes: u64) -> Seen {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, cid, age) = (Arc::new(stream), Cid(1), Duration::from_secs(3));
        let id = crate::initiator::state::a_connection();
        Seen { serial, session: 0, id, cid, age, stream, outstanding_bytes, in_flight: 1 }
    }

    #[tokio::test]
    async fn the_side_that_receives_says_nothing_of_the_sender() {
        let seen = seen(7, 1 << 20).await;
        let tcp = receiving(&seen, &info(0, 0, 0), 1e6, false, u64::MAX);
        assert_eq!(tcp.peer_window_bytes, None, "the kernel may still enlarge it");
        let tcp = receiving(&seen, &info(0, 0, 0), 1e6, false, 0);
        assert_eq!((tcp.busy_share, tcp.cwnd_bytes, tcp.congestion_control), (None, None, None));
        assert_eq!(tcp.in_flight_bytes, Some(40_000.0));
        assert_eq!(tcp.peer_window_bytes, Some(65_536.0));
    }

    #[tokio::test]
    async fn storage_that_takes_its_time_is_no_queue_of_the_path() {
        let seen = seen(7, 1 << 20).await;
        let limit = |receive_ms: Option<u32>| {
            // A request is acknowledged with the answer, 35 ms after the round trip of 40.
            let receive_rtt_us = 1000 * receive_ms.unwrap_or(0);
            let info = TcpInfo { rtt_us: 75_000, receive_rtt_us, ..info(0, 0, 0) };
            let tcp = receiving(&seen, &info, 1e6, false, u64::MAX);
            of_connection(&Connection { tcp, ..Connection::default() })
        };
        assert_eq!(limit(Some(41)), Bottleneck::Unknown);
        assert_eq!(limit(None), Bottleneck::Unknown);
        assert_eq!(limit(Some(75)), Bottleneck::LineRate, "the data wait, too");
    }

    #[tokio::test]
    async fn the_side_that_sends_says_what_held_it_up() {
        let seen = seen(7, 1 << 20).await;
        let tcp = sending(&seen, &info(0, 0, 0), &info(9, 0, 50), 0.1, false);
        // With enough to do it is iSCSI that paused, not the application.
        assert_eq!((tcp.busy_share, tcp.cwnd_bytes), (None, Some(10_000.0)));
        assert_eq!(tcp.app_limited, Some(false));
        let tcp = sending(&seen, &info(0, 0, 0), &info(9, 0, 50), 0.1, true);
        assert_eq!((tcp.busy_share, tcp.app_limited), (Some(0.5), Some(true)));
    }

    #[test]
    fn too_few_commands_for_the_path_are_the_application() {
        let infos = BTreeMap::from([(1, info(0, 0, 0))]);
        // 25 MB/s over 40 ms: a megabyte is on the way.
        assert!(is_starved(1_000_000, &infos, 25e6));
        assert!(!is_starved(8_000_000, &infos, 25e6));
        assert!(is_starved(0, &infos, 0.0));
    }

    #[tokio::test]
    async fn an_interval_counts_what_was_carried_and_outages_do_not_count() {
        let view = |up, seen| {
            let (ceiling, agreed) = (None, None);
            View {
                up,
                incarnation: 1,
                commands: 0,
                waited: Duration::ZERO,
                open: 1,
                opening: 0,
                most: 64,
                ceiling,
                agreed,
                seen,
            }
        };
        let at = |ms| Instant(Duration::from_millis(ms));
        let mut meter = Meter::default();
        assert!(meter.measure(&view(true, vec![seen(1, 0).await]), at(0)).is_none());
        let first = meter.measure(&view(true, vec![seen(2, 0).await]), at(100)).unwrap();
        assert_eq!((first.sample.t_s, first.sample.bytes_per_s), (0.1, 0.0));
        assert!(first.sample.connections.is_empty(), "it is new");
        meter.pause();
        assert!(meter.measure(&view(true, Vec::new()), at(5000)).is_none());
        let later = meter.measure(&view(true, Vec::new()), at(5200)).unwrap();
        assert!((later.sample.t_s - 0.3).abs() < 1e-9, "{}", later.sample.t_s);
    }

    #[test]
    fn who_moves_nothing_tells_no_round_trip() {
        let moved = |sent, received| Moved { sent, received };
        let told = |reads: bool| {
            [moved(0.0, 0.0), moved(1.0, 0.0), moved(0.0, 1.0)].map(|m| m.tells_round_trip(reads))
        };
        assert_eq!((told(false), told(true)), ([false, true, false], [false, false, true]));
    }

    #[test]
    fn rates_are_differences_over_the_interval() {
        let moved = moved(&info(100, 50, 0), &info(1100, 150, 0), 0.1);
        assert!((moved.sent - 10_000.0).abs() < 1e-6 && (moved.received - 1000.0).abs() < 1e-6);
    }
}
