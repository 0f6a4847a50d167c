//! A passive observer of every connection: sees each PDU as it is sent, and holds both ends to
//! RFC 7143. It shares the codec with them and nothing else; what it knows of a session it has
//! seen on the wire or heard at login.

mod request;
mod response;
mod task;

use std::collections::{BTreeMap, VecDeque};

use iscsi_proto::frame::{DIGEST_LEN, DataDigest, Framing, Limits, parse_header};
use iscsi_proto::ids::{Itt, Lun};
use iscsi_proto::keys::{ConnectionParams, SessionParams};
use iscsi_proto::login::Outcome;
use iscsi_proto::pdu::{Pdu, TaskManagementFunction};
use iscsi_proto::serial::{CmdSn, StatSn};

use self::task::TaskCheck;
use crate::coverage::Coverage;
use crate::net::{Link, Side};

/// A session as the simulation counts them: never reused, unlike a TSIH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionKey(pub(crate) u32);

/// What is wrong, in words.
pub(crate) type Verdict = Result<(), String>;

/// Fails with a message unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            return Err(format!($($message)*));
        }
    };
}
use ensure;

#[derive(Debug)]
struct LinkCheck {
    session: Option<SessionKey>,
    framing: Framing,
    /// As agreed, seen from the target; the defaults during login.
    params: ConnectionParams,
    next_stat_sn: Option<StatSn>,
    /// StatSN up to which statuses have arrived at the initiator.
    delivered_stat_sn: StatSn,
    exp_stat_sn: StatSn,
    /// Bytes sent by the target, and how many have arrived.
    sent: u64,
    delivered: u64,
    /// Where PDUs of the target end that change what the initiator knows.
    marks: VecDeque<Mark>,
    logout_requested: bool,
    logout_answered: bool,
    gone: bool,
}

/// What a PDU of the target tells, once its header has arrived.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: u64,
    max_cmd_sn: CmdSn,
    /// StatSN after it.
    stat_sn: StatSn,
    /// Tasks that a task management function has ended.
    ended: Option<Ended>,
}

/// Which tasks a task management function has ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    function: TaskManagementFunction,
    lun: Lun,
    referenced: Itt,
    cmd_sn: CmdSn,
}

/// A request other than a SCSI command.
#[derive(Clone, Copy, Debug)]
struct Request {
    link: Link,
    kind: RequestKind,
}

#[derive(Clone, Copy, Debug)]
enum RequestKind {
    Management(Ended),
    Nop,
    Text,
    Logout,
}

#[derive(Debug)]
struct SessionCheck {
    params: SessionParams,
    window: u32,
    /// The CmdSN that the next command carries.
    next_cmd_sn: CmdSn,
    /// The highest MaxCmdSN that has arrived at the initiator.
    known_max_cmd_sn: CmdSn,
    /// As last sent by the target.
    exp_cmd_sn: CmdSn,
    max_cmd_sn: CmdSn,
    tasks: BTreeMap<Itt, TaskCheck>,
    requests: BTreeMap<Itt, Request>,
    solicited_max: u64,
    /// A logout of the whole session was asked for.
    logout_requested: bool,
}

/// The observer.
#[derive(Debug, Default)]
pub(crate) struct WireCheck {
    links: BTreeMap<Link, LinkCheck>,
    sessions: BTreeMap<SessionKey, SessionCheck>,
}

/// What the target's configuration promises.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promises {
    pub(crate) command_window: u32,
    pub(crate) solicited_bytes_max: u64,
}

impl WireCheck {
    pub(crate) fn connect(&mut self, link: Link) {
        let check = LinkCheck {
            session: None,
            framing: Framing::default(),
            params: ConnectionParams::default(),
            next_stat_sn: None,
            delivered_stat_sn: StatSn(0),
            exp_stat_sn: StatSn(0),
            sent: 0,
            delivered: 0,
            marks: VecDeque::new(),
            logout_requested: false,
            logout_answered: false,
            gone: false,
        };
        self.links.insert(link, check);
    }

    /// The target accepts a login: `window` is what the last response announces.
    pub(crate) fn attach(
        &mut self,
        link: Link,
        session: SessionKey,
        login: &Outcome,
        window: (CmdSn, CmdSn),
        promises: Promises,
    ) -> Verdict {
        let check = self.sessions.entry(session).or_insert_with(|| SessionCheck {
            params: login.session,
            window: promises.command_window,
            next_cmd_sn: login.cmd_sn,
            known_max_cmd_sn: window.1,
            exp_cmd_sn: window.0,
            max_cmd_sn: window.1,
            tasks: BTreeMap::new(),
            requests: BTreeMap::new(),
            solicited_max: promises.solicited_bytes_max,
            logout_requested: false,
        });
        let params = &check.params;
        ensure!(
            params.first_burst_length <= params.max_burst_length,
            "FirstBurstLength exceeds MaxBurstLength: {params:?}"
        );
        let is_member =
            |l: &&LinkCheck| l.session == Some(session) && !l.gone && !l.logout_answered;
        let members = self.links.values().filter(is_member).count();
        ensure!(
            members < usize::from(params.max_connections),
            "more connections than MaxConnections={}",
            params.max_connections
        );
        let Some(link) = self.links.get_mut(&link) else { return Ok(()) };
        link.session = Some(session);
        link.framing = login.connection.framing();
        link.params = login.connection;
        link.delivered_stat_sn = login.next_stat_sn;
        link.exp_stat_sn = login.next_stat_sn;
        let (at, max_cmd_sn, stat_sn) = (link.sent, window.1, login.next_stat_sn);
        link.marks.push_back(Mark { at, max_cmd_sn, stat_sn, ended: None });
        Ok(())
    }

    /// The target no longer has this connection.
    pub(crate) fn gone(&mut self, link: Link) {
        if let Some(link) = self.links.get_mut(&link) {
            link.gone = true;
        }
    }

    /// CmdSN of a task, and whether it needed data that the target had to ask for or wait for.
    pub(crate) fn command(&self, session: SessionKey, itt: Itt) -> Option<(CmdSn, bool)> {
        let task = self.sessions.get(&session)?.tasks.get(&itt)?;
        Some((task.cmd_sn, task.needed_more_data()))
    }

    /// The session that a connection belongs to.
    pub(crate) fn session(&self, link: Link) -> Option<SessionKey> {
        self.links.get(&link)?.session
    }

    /// A task management function was sent that ends this task: one that names it, or one for its
    /// unit with a later CmdSN.
    pub(crate) fn may_be_aborted(&self, session: SessionKey, itt: Itt) -> bool {
        let tasks = self.sessions.get(&session).map(|session| &session.tasks);
        tasks.and_then(|tasks| tasks.get(&itt)).is_some_and(|task| task.ending)
    }

    /// One whole PDU is sent. Returns it decoded.
    pub(crate) fn sent(
        &mut self,
        link: Link,
        from: Side,
        bytes: &[u8],
        coverage: &mut Coverage,
    ) -> Result<Pdu, String> {
        let check = self.links.get_mut(&link).ok_or("PDU on an unknown connection")?;
        let (pdu, data_len, header_len) = decode(check, from, bytes)?;
        let at = check.sent + header_len as u64;
        if from == Side::Target {
            check.sent += bytes.len() as u64;
        }
        let session = check.session.and_then(|key| self.sessions.get_mut(&key));
        let verdict = match (from, session) {
            (Side::Initiator, Some(session)) => {
                request::check(link, check, session, &pdu, data_len, coverage)
            }
            (Side::Target, Some(session)) => {
                response::check(link, check, session, &pdu, data_len, at, coverage)
            }
            (_, None) => login(check, &pdu),
        };
        verdict
            .map_err(|what| format!("{link} {from:?} sent {pdu:?} ({data_len} bytes): {what}"))?;
        Ok(pdu)
    }

    /// Bytes from the target have arrived at the initiator.
    pub(crate) fn delivered(&mut self, link: Link, len: usize) {
        let Some(check) = self.links.get_mut(&link) else { return };
        check.delivered += len as u64;
        let Some(session) = check.session.and_then(|key| self.sessions.get_mut(&key)) else {
            return;
        };
        while let Some(mark) = check.marks.front().filter(|mark| mark.at <= check.delivered) {
            if session.known_max_cmd_sn.is_before(mark.max_cmd_sn) {
                session.known_max_cmd_sn = mark.max_cmd_sn;
            }
            check.delivered_stat_sn = mark.stat_sn;
            if let Some(ended) = mark.ended {
                session.each_ended(ended, |task| task.end_is_known = true);
            }
            check.marks.pop_front();
        }
    }
}

impl SessionCheck {
    fn each_ended(&mut self, ended: Ended, mut visit: impl FnMut(&mut TaskCheck)) {
        use TaskManagementFunction as F;
        for (itt, task) in &mut self.tasks {
            let hit = match ended.function {
                F::ABORT_TASK => *itt == ended.referenced,
                _ => task.lun == ended.lun && task.cmd_sn.is_before(ended.cmd_sn),
            };
            if hit {
                visit(task);
            }
        }
    }
}

/// Lengths, padding, digests, and which end sends which PDU.
fn decode(check: &LinkCheck, from: Side, bytes: &[u8]) -> Result<(Pdu, u32, usize), String> {
    let segment_max = match from {
        Side::Initiator => check.params.max_recv_data_segment_length,
        Side::Target => check.params.max_send_data_segment_length,
    };
    let limits = match check.session {
        Some(_) => Limits::full_feature(segment_max),
        None => Limits::LOGIN,
    };
    let frame = parse_header(bytes, check.framing, limits)
        .map_err(|error| format!("{from:?}: {error}"))?
        .ok_or("half a header")?;
    ensure!(frame.total_len() == bytes.len(), "{from:?}: lengths do not add up: {frame:?}");
    let (data, trailer) = bytes[frame.header_len..].split_at(frame.data_len);
    let (padding, digest) = trailer.split_at(frame.pad_len);
    ensure!(padding.iter().all(|byte| *byte == 0), "padding is not zero: {padding:?}");
    if let Some(digest) = digest.first_chunk::<DIGEST_LEN>() {
        let mut computed = DataDigest::new();
        computed.update(data);
        computed.update(padding);
        computed.verify(*digest).map_err(|error| error.to_string())?;
    }
    let is_request = frame.header.opcode().0 < 0x20;
    ensure!(is_request == (from == Side::Initiator), "{from:?} sent {}", frame.header.opcode());
    let pdu = Pdu::parse(&frame.header).map_err(|error| error.to_string())?;
    Ok((pdu, frame.header.data_segment_length(), frame.header_len))
}

fn login(check: &mut LinkCheck, pdu: &Pdu) -> Verdict {
    match pdu {
        Pdu::LoginRequest(_) => Ok(()),
        Pdu::LoginResponse(response) => {
            let expected = check.next_stat_sn.unwrap_or(response.stat_sn);
            ensure!(response.stat_sn == expected, "StatSN, expected {expected}");
            check.next_stat_sn = Some(expected.next());
            Ok(())
        }
        _ => Err("not a login PDU before the end of login".into()),
    }
}
