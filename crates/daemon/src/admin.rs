//! The admin socket: one JSON object a line, one answer to each request.
//!
//! | request | answer |
//! |---|---|
//! | `{"do":"status"}` | `{"ok":true,"status":{…}}` |
//! | `{"do":"sessions"}` | `{"ok":true,"sessions":[…]}` |
//! | `{"do":"drop","id":7}` | `{"ok":true}` |
//! | `{"do":"reload"}` | `{"ok":true,"changes":["…"]}` |
//! | `{"do":"lun_add",…}`, `lun_resize`, `lun_remove` | `{"ok":true,"changes":["…"]}` |
//! | `{"do":"lun_snapshot",…}` | `{"ok":true,"changes":["…"]}` |
//! | `{"do":"initiator_allow",…}`, `initiator_deny` | `{"ok":true,"changes":["…"]}` |
//! | `{"do":"portal_add",…}`, `portal_remove` | `{"ok":true,"changes":["…"]}` |
//! | `{"do":"access_set",…}`, `access_list` | `{"ok":true,"changes":["…"]}`, `{"ok":true,"access":[…]}` |
//! | `{"do":"lun_list"}`, `initiator_list`, `portal_list` | `{"ok":true,"luns":[…]}` |
//!
//! What fails is answered `{"ok":false,"errors":["…"]}`. A line that is too long is answered so
//! and ends the connection: where the next request begins is not known.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use iscsi::target::{ConnectionView, LimitView, SessionView};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tracing::warn;
use uplink::home::Standing;

use crate::clients::Clients;
use crate::daemon::Daemon;
use crate::isns::View;
pub use crate::life::{
    AccessSet, AccessView, InitiatorAllow, InitiatorDeny, InitiatorView, LunAdd, LunRemove,
    LunResize, LunSnapshot, LunView, PortalAdd, PortalRemove, PortalView,
};

/// Longest request taken, in bytes: that of a LUN with the longest path that Linux has (4 KiB),
/// every byte of it escaped, and some more.
const REQUEST_LEN_MAX: u64 = 32 << 10;

/// Connections at once. The one that has been there longest goes for the next.
const CLIENTS_MAX: usize = 64;

/// How long a client may take for a request, or the daemon for its answer as a client sees it. A
/// reload opens files and may wait for a disk.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an operator asks for.
// Those without fields have braces, so that unknown fields are refused there, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// How it is.
    Status {},
    /// The sessions there are.
    Sessions {},
    /// End a session.
    Drop {
        /// Its number in the list.
        id: u16,
    },
    /// Read the configuration again.
    Reload {},
    /// Serve one more logical unit.
    LunAdd(LunAdd),
    /// Give one another size.
    LunResize(LunResize),
    /// Serve one no more.
    LunRemove(LunRemove),
    /// Keep what one holds now in another file.
    LunSnapshot(LunSnapshot),
    /// The logical units there are.
    LunList {},
    /// Let an initiator log in.
    InitiatorAllow(InitiatorAllow),
    /// Take that back.
    InitiatorDeny(InitiatorDeny),
    /// Who may use what.
    InitiatorList {},
    /// Listen on one more address.
    PortalAdd(PortalAdd),
    /// Listen on one less.
    PortalRemove(PortalRemove),
    /// The portals there are.
    PortalList {},
    /// Say how well the units of a pair can be reached at one of its daemons.
    AccessSet(AccessSet),
    /// How well they can.
    AccessList {},
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// It was done.
    pub ok: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    /// What a reload or a command changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<String>>,
    /// The sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<Vec<Session>>,
    /// The daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// The logical units that were asked for, added or resized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub luns: Option<Vec<LunView>>,
    /// Who may use what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiators: Option<Vec<InitiatorView>>,
    /// The portals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub portals: Option<Vec<PortalView>>,
    /// The groups of pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<Vec<AccessView>>,
    /// Sessions that a denial ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_sessions: Option<usize>,
}

/// The daemon at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Its configuration file.
    pub config: PathBuf,
    /// Seconds since it began.
    pub uptime_s: u64,
    /// `serving` or `stopping`.
    pub state: String,
    /// LUNs that cannot be relied on, and why.
    pub failures: Vec<String>,
    /// Addresses it listens on.
    pub portals: Vec<String>,
    /// Targets it serves.
    pub targets: Vec<String>,
    /// Sessions there are.
    pub sessions: usize,
    /// Memory that commands use, in bytes.
    pub memory_bytes: u64,
    /// The limits that there are, and what they hold back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    /// Whether its targets are registered, if they are to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isns: Option<Isns>,
    /// The servers that it calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uplinks: Vec<Uplink>,
}

/// A server that the daemon calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Uplink {
    /// What it is called here.
    pub name: String,
    /// Where it is.
    pub server: String,
    /// What this host is called there, while it is connected.
    pub known_as: Option<String>,
    /// Why it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// How often it was connected.
    pub welcomes: u64,
    /// Connections that were made for it.
    pub dialled: u64,
}

impl From<crate::uplink::View> for Uplink {
    fn from(view: crate::uplink::View) -> Self {
        let (name, server) = (view.name, view.server);
        let Standing { known_as, problem, welcomes, dialled } = view.standing;
        Self { name, server, known_as, problem, welcomes, dialled }
    }
}

/// A limit at one moment: of one initiator with a target, or of a logical unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// The target.
    pub target: String,
    /// Whose limit it is; none: that of a logical unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator: Option<String>,
    /// The logical unit; none: the limit of an initiator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lun: Option<u16>,
    /// Bytes per second that it allows.
    pub max_bytes_per_s: Option<u64>,
    /// Commands per second that it allows.
    pub max_iops: Option<u64>,
    /// What may be saved up of both, as the time that it would take.
    pub burst_s: f64,
    /// Commands that wait now.
    pub waiting: usize,
    /// Commands that were let through so far.
    pub commands: u64,
    /// Bytes that these move.
    pub bytes: u64,
    /// Those of them that had to wait.
    pub delayed: u64,
    /// Seconds that they waited, all together.
    pub waited_s: f64,
}

impl From<LimitView> for Limit {
    fn from(view: LimitView) -> Self {
        Self {
            target: view.target_name,
            initiator: view.initiator_name,
            lun: view.lun,
            max_bytes_per_s: view.limit.bytes_per_s,
            max_iops: view.limit.iops,
            burst_s: view.limit.burst.as_secs_f64(),
            waiting: view.waiting,
            commands: view.commands,
            bytes: view.bytes,
            delayed: view.delayed,
            waited_s: view.waited.as_secs_f64(),
        }
    }
}

/// A registration at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Isns {
    /// HOST:PORT of the iSNS server.
    pub server: String,
    /// What the host is called there.
    pub entity: String,
    /// Are the targets registered, as far as is known?
    pub registered: bool,
    /// Why not, or what else is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl From<View> for Isns {
    fn from(View { server, entity, standing }: View) -> Self {
        Self { server, entity, registered: standing.registered, problem: standing.problem }
    }
}

/// A session at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Its number for `drop`: the TSIH.
    pub id: u16,
    /// iSCSI name.
    pub initiator: String,
    /// What the initiator calls itself for people.
    pub initiator_alias: Option<String>,
    /// In hexadecimal digits.
    pub isid: String,
    /// Target; none in a discovery session.
    pub target: Option<String>,
    /// Portal it came to.
    pub portal: String,
    /// CHAP user it has proved to be.
    pub user: Option<String>,
    /// Seconds since 1970.
    pub since: u64,
    /// Commands under way.
    pub commands: usize,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Memory that its commands use.
    pub memory_bytes: u64,
    /// Negotiated for the session, by the RFC's names.
    pub parameters: serde_json::Map<String, serde_json::Value>,
    /// Its connections.
    pub connections: Vec<Connection>,
}

/// A connection at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    /// The initiator's number for it.
    pub cid: u16,
    /// The initiator's end.
    pub peer: String,
    /// Our end.
    pub local: Option<String>,
    /// Seconds since 1970.
    pub since: u64,
    /// Negotiated for the connection, by the RFC's names.
    pub parameters: serde_json::Map<String, serde_json::Value>,
    /// Smoothed round-trip time of TCP in microseconds.
    pub rtt_us: Option<u64>,
    /// Segments that TCP sent again.
    pub retransmits: Option<u64>,
}

impl Answer {
    /// Done.
    pub(crate) fn ok() -> Self {
        Self { ok: true, ..Self::default() }
    }

    pub(crate) fn failed(errors: Vec<String>) -> Self {
        Self { errors, ..Self::default() }
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn map(value: serde_json::Value) -> serde_json::Map<String, serde_json::Value> {
    match value {
        serde_json::Value::Object(map) => map,
        _ => serde_json::Map::new(),
    }
}

impl From<SessionView> for Session {
    fn from(view: SessionView) -> Self {
        let params = view.params;
        let parameters = serde_json::json!({
            "MaxConnections": params.max_connections,
            "InitialR2T": params.initial_r2t,
            "ImmediateData": params.immediate_data,
            "MaxBurstLength": params.max_burst_length,
            "FirstBurstLength": params.first_burst_length,
            "MaxOutstandingR2T": params.max_outstanding_r2t,
            "ErrorRecoveryLevel": params.error_recovery_level,
        });
        Self {
            id: view.id,
            initiator: view.initiator_name,
            initiator_alias: view.initiator_alias,
            isid: view.isid.to_string(),
            target: view.target_name,
            portal: view.portal,
            user: view.user,
            since: seconds(view.since),
            commands: view.commands,
            read_bytes: view.read_bytes,
            written_bytes: view.written_bytes,
            memory_bytes: view.memory_bytes,
            parameters: map(parameters),
            connections: view.connections.into_iter().map(Connection::from).collect(),
        }
    }
}

impl From<ConnectionView> for Connection {
    fn from(view: ConnectionView) -> Self {
        let params = view.params;
        let parameters = serde_json::json!({
            "HeaderDigest": params.header_digest.as_str(),
            "DataDigest": params.data_digest.as_str(),
            "MaxRecvDataSegmentLength": params.max_recv_data_segment_length,
            "InitiatorMaxRecvDataSegmentLength": params.max_send_data_segment_length,
        });
        Self {
            cid: view.cid,
            peer: view.peer.to_string(),
            local: view.local.map(|local| local.to_string()),
            since: seconds(view.since),
            parameters: map(parameters),
            rtt_us: view.tcp.map(|tcp| tcp.rtt_us.into()),
            retransmits: view.tcp.map(|tcp| tcp.total_retrans_segments.into()),
        }
    }
}

/// Answers until the task is dropped.
pub(crate) async fn serve(daemon: Arc<Daemon>, listener: UnixListener) {
    let mut clients = Clients::new(CLIENTS_MAX);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let daemon = Arc::clone(&daemon);
                clients.enter(async move {
                    // A client that goes away in the middle is nobody's error.
                    let _ = talk(daemon, stream).await;
                });
            }
            Err(error) => {
                warn!(%error, "admin socket");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn talk(daemon: Arc<Daemon>, stream: UnixStream) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    loop {
        let mut line = Vec::new();
        let mut limited = (&mut read).take(REQUEST_LEN_MAX);
        let reading = limited.read_until(b'\n', &mut line);
        let len = tokio::time::timeout(PATIENCE, reading).await??;
        if len == 0 {
            return Ok(());
        }
        let is_cut = line.last() != Some(&b'\n') && len as u64 == REQUEST_LEN_MAX;
        let answer = match serde_json::from_slice(&line) {
            _ if is_cut => {
                let what = format!("not a request: longer than {REQUEST_LEN_MAX} bytes");
                Answer::failed(vec![what])
            }
            Ok(request) => daemon.answer(request).await,
            Err(error) => Answer::failed(vec![format!("not a request: {error}")]),
        };
        let mut text = serde_json::to_string(&answer).map_err(io::Error::other)?;
        text.push('\n');
        tokio::time::timeout(PATIENCE, write.write_all(text.as_bytes())).await??;
        if is_cut {
            return Ok(());
        }
    }
}

/// Asks a daemon, as its clients do.
///
/// # Errors
/// There is no daemon, or it does not answer with an [`Answer`].
pub async fn ask(socket: &Path, request: Request) -> io::Result<Answer> {
    let asking = async {
        let stream = UnixStream::connect(socket).await?;
        let (read, mut write) = stream.into_split();
        let mut text = serde_json::to_string(&request).map_err(io::Error::other)?;
        text.push('\n');
        write.write_all(text.as_bytes()).await?;
        let mut line = String::new();
        BufReader::new(read).read_line(&mut line).await?;
        serde_json::from_str(&line).map_err(io::Error::other)
    };
    let answered = tokio::time::timeout(PATIENCE, asking).await;
    answered.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
