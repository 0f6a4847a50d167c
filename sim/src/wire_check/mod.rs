//! A passive observer of every connection: sees each PDU as it is sent, and holds both ends to
//! RFC 7143. It shares the codec with them and nothing else; what it knows of a session it has
//! seen on the wire or heard at login.

mod data;
mod delivery;
mod received;
mod recovery;
mod request;
mod response;
mod task;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use iscsi_proto::frame::{DIGEST_LEN, DataDigest, Framing, Limits, parse_header};
use iscsi_proto::ids::{Cid, Itt, Lun};
use iscsi_proto::keys::{ConnectionParams, DigestKind, SessionParams};
use iscsi_proto::login::Outcome;
use iscsi_proto::pdu::{Header, LogoutReason, Pdu, SnackKind, Stage, TaskManagementFunction};
use iscsi_proto::serial::{CmdSn, StatSn};
use iscsi_proto::time::Instant;

use self::received::Received;
use self::recovery::{Asked, Image};
use self::task::TaskCheck;
use crate::coverage::Coverage;
use crate::damage::Fate;
use crate::net::{Link, Side};
use crate::sabotage::Occasion;

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
    cid: Cid,
    framing: Framing,
    /// As agreed, seen from the target; the defaults during login.
    params: ConnectionParams,
    next_stat_sn: Option<StatSn>,
    /// Statuses that have arrived before another that is missing.
    arrived: BTreeSet<u32>,
    /// Statuses sent, as far as they may be asked for again.
    statuses: BTreeMap<u32, SentStatus>,
    /// Statuses that were asked for again.
    status_asked: Asked,
    /// SNACKs that may be rejected because they come too late.
    late_snacks: u32,
    /// Tasks that SNACKs were about: a function for their unit may end them before these arrive.
    snacked: BTreeSet<Itt>,
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
    /// Something from either side was damaged.
    damaged: [bool; 2],
    /// What comes after a damaged header is not understood any more.
    unreadable: [bool; 2],
    /// Damaged data segments that the target has to answer with a Reject.
    rejects_due: u32,
    /// Stage of the login, as the last PDU of it said.
    stage: Option<Stage>,
}

/// A status as it was sent first.
#[derive(Clone, Copy, Debug)]
struct SentStatus {
    image: Image,
    told: Told,
}

/// What a PDU of the target tells.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// The StatSN that it uses.
    stat_sn: Option<StatSn>,
    /// Tasks that a task management function has ended.
    ended: Option<Ended>,
    /// A Data-In PDU.
    data_in: Option<(Itt, u32)>,
}

/// Where in the target's stream something becomes known.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: u64,
    /// ExpCmdSN and MaxCmdSN.
    window: Option<(CmdSn, CmdSn)>,
    told: Told,
    /// It is the last Login Response.
    is_login: bool,
}

/// A PDU on its way: where, what, and whether it gets there.
#[derive(Clone, Copy, Debug)]
struct Sight {
    at: Instant,
    link: Link,
    data_len: u32,
    image: Image,
    /// It arrives as it was sent, if the connection holds.
    intact: bool,
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
    image: Image,
}

#[derive(Clone, Copy, Debug)]
enum RequestKind {
    Management(Ended),
    Nop,
    Text,
    Logout(LogoutReason, Cid),
    /// TASK REASSIGN of a task, which has all data before a DataSN.
    Reassign(Itt, u32),
}

#[derive(Debug)]
struct SessionCheck {
    params: SessionParams,
    window: u32,
    /// The CmdSN that the next command carries.
    next_cmd_sn: CmdSn,
    /// The highest MaxCmdSN and ExpCmdSN that have arrived at the initiator.
    known_max_cmd_sn: CmdSn,
    known_exp_cmd_sn: CmdSn,
    /// As last sent by the target.
    exp_cmd_sn: CmdSn,
    max_cmd_sn: CmdSn,
    /// Commands that the target has got, or not.
    received: Received,
    /// The connections by their CIDs.
    cids: BTreeMap<Cid, Link>,
    /// Connections that were logged out for recovery, or taken the place of: their tasks may go
    /// elsewhere.
    released: BTreeSet<Link>,
    /// Connections that the target has lost: it asks for nothing on them.
    gone: BTreeSet<Link>,
    tasks: BTreeMap<Itt, TaskCheck>,
    requests: BTreeMap<Itt, Request>,
    solicited_max: u64,
    data_timeout: Duration,
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
    pub(crate) data_timeout: Duration,
}

impl WireCheck {
    pub(crate) fn connect(&mut self, link: Link) {
        let check = LinkCheck {
            session: None,
            cid: Cid(0),
            framing: Framing::default(),
            params: ConnectionParams::default(),
            next_stat_sn: None,
            arrived: BTreeSet::new(),
            statuses: BTreeMap::new(),
            status_asked: Asked::default(),
            late_snacks: 0,
            snacked: BTreeSet::new(),
            delivered_stat_sn: StatSn(0),
            exp_stat_sn: StatSn(0),
            sent: 0,
            delivered: 0,
            marks: VecDeque::new(),
            logout_requested: false,
            logout_answered: false,
            gone: false,
            damaged: [false; 2],
            unreadable: [false; 2],
            rejects_due: 0,
            stage: None,
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
            known_exp_cmd_sn: window.0,
            exp_cmd_sn: window.0,
            max_cmd_sn: window.1,
            received: Received::new(window.0),
            cids: BTreeMap::new(),
            released: BTreeSet::new(),
            gone: BTreeSet::new(),
            tasks: BTreeMap::new(),
            requests: BTreeMap::new(),
            solicited_max: promises.solicited_bytes_max,
            data_timeout: promises.data_timeout,
            logout_requested: false,
        });
        let params = &check.params;
        ensure!(
            params.first_burst_length <= params.max_burst_length,
            "FirstBurstLength exceeds MaxBurstLength: {params:?}"
        );
        let is_member = |l: &&LinkCheck| {
            l.session == Some(session) && !l.gone && !l.logout_answered && l.cid != login.cid
        };
        let members = self.links.values().filter(is_member).count();
        // A connection more may come to clean up after one that the target does not miss yet.
        let spare = usize::from(params.error_recovery_level == 2);
        ensure!(
            members < usize::from(params.max_connections) + spare,
            "more connections than MaxConnections={}",
            params.max_connections
        );
        if let Some(replaced) = check.cids.insert(login.cid, link) {
            check.released.insert(replaced);
        }
        let Some(link) = self.links.get_mut(&link) else { return Ok(()) };
        link.cid = login.cid;
        link.session = Some(session);
        link.framing = login.connection.framing();
        link.params = login.connection;
        link.delivered_stat_sn = login.next_stat_sn;
        link.exp_stat_sn = login.next_stat_sn;
        let (at, window, told) = (link.sent, Some(window), Told::default());
        link.marks.push_back(Mark { at, window, told, is_login: true });
        Ok(())
    }

    /// The target no longer has this connection.
    pub(crate) fn gone(&mut self, link: Link) {
        let Some(check) = self.links.get_mut(&link) else { return };
        check.gone = true;
        if let Some(session) = check.session.and_then(|key| self.sessions.get_mut(&key)) {
            session.gone.insert(link);
        }
    }

    /// CmdSN of a task, and whether it needed data that the target had to ask for or wait for: data
    /// in its own PDU, too, unless that may be discarded whole or sent again elsewhere.
    pub(crate) fn command(&self, session: SessionKey, itt: Itt) -> Option<(CmdSn, bool)> {
        let session = self.sessions.get(&session)?;
        let task = session.tasks.get(&itt)?;
        let digest = |link: &LinkCheck| link.params.data_digest != DigestKind::None;
        let at_header = session.params.error_recovery_level < 2
            && !self.links.get(&task.link).is_some_and(digest);
        Some((task.cmd_sn, task.needed_more_data() || at_header && task.had_immediate))
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

    /// The session on this connection can make good for a PDU that is lost.
    pub(crate) fn survives_loss(&self, link: Link) -> bool {
        let session = self.session(link).and_then(|key| self.sessions.get(&key));
        session.is_some_and(SessionCheck::recovers)
    }

    /// PDUs of this session can be had again.
    pub(crate) fn recovers(&self, session: SessionKey) -> bool {
        self.sessions.get(&session).is_some_and(SessionCheck::recovers)
    }

    /// Something that `from` sent on this connection was damaged.
    pub(crate) fn is_damaged(&self, link: Link, from: Side) -> bool {
        self.links.get(&link).is_some_and(|link| link.damaged[from as usize])
    }

    /// The counter for a connection that breaks now.
    pub(crate) fn activity(&self, link: Link) -> &'static str {
        let Some(check) = self.links.get(&link) else { return "cut: not connected" };
        match check.stage {
            _ if check.logout_answered => "cut: logout answered",
            _ if check.logout_requested => "cut: logout asked for",
            _ if check.session.is_some() && check.marks.iter().any(|mark| mark.is_login) => {
                "cut: last login response under way"
            }
            _ if check.session.is_some() => "cut: full feature phase",
            None => "cut: before login",
            Some(Stage::SECURITY_NEGOTIATION) => "cut: login, security stage",
            Some(_) => "cut: login, operational stage",
        }
    }

    /// Data of this write was damaged on its way, and at level 0 it cannot be had again.
    pub(crate) fn may_fail(&self, session: SessionKey, itt: Itt) -> bool {
        let Some(session) = self.sessions.get(&session) else { return false };
        !session.recovers() && session.tasks.get(&itt).is_some_and(|task| task.data_damaged)
    }

    /// What a PDU that is about to be sent is about.
    pub(crate) fn occasion(&self, link: Link, header: &Header) -> Occasion {
        let Some(check) = self.links.get(&link) else { return Occasion::Ordinary };
        let session = check.session.and_then(|key| self.sessions.get(&key));
        let (Some(session), Ok(pdu)) = (session, Pdu::parse(header)) else {
            return Occasion::Ordinary;
        };
        let task = session.tasks.get(&header.itt());
        let again = |stat_sn: StatSn| check.next_stat_sn.is_some_and(|n| stat_sn.is_before(n));
        match pdu {
            Pdu::SnackRequest(pdu) if pdu.kind == SnackKind::DATA_OR_R2T => Occasion::DataSnack,
            Pdu::R2t(pdu) if task.is_some_and(|t| t.asks_again(&pdu)) => Occasion::RecoveryR2t,
            Pdu::ScsiResponse(pdu) if again(pdu.stat_sn) => Occasion::StatusAgain,
            Pdu::DataIn(_) if task.is_some_and(TaskCheck::resumes) => Occasion::Resumed,
            _ => Occasion::Ordinary,
        }
    }

    /// One whole PDU is sent. Returns it decoded.
    pub(crate) fn sent(
        &mut self,
        link: Link,
        from: Side,
        bytes: &[u8],
        fate: Fate,
        now: Instant,
        coverage: &mut Coverage,
    ) -> Result<Pdu, String> {
        let check = self.links.get_mut(&link).ok_or("PDU on an unknown connection")?;
        let (pdu, data_len, header_len) = decode(check, from, bytes)?;
        let at = check.sent + header_len as u64;
        if from == Side::Target && fate != Fate::Lost {
            check.sent += bytes.len() as u64;
        }
        let marks = check.marks.len();
        let intact = fate == Fate::Arrives && !check.unreadable[from as usize];
        let data = &bytes[header_len..header_len + data_len as usize];
        let sight = Sight { at: now, link, data_len, image: Image::new(&pdu, bytes, data), intact };
        let session = check.session.and_then(|key| self.sessions.get_mut(&key));
        let verdict = match (from, session) {
            (Side::Initiator, Some(session)) => {
                request::check(sight, check, session, &pdu, coverage)
            }
            (Side::Target, Some(session)) => {
                response::check(sight, check, session, &pdu, at, coverage)
            }
            (_, None) => login(check, &pdu),
        };
        verdict
            .map_err(|what| format!("{link} {from:?} sent {pdu:?} ({data_len} bytes): {what}"))?;
        let session = check.session.and_then(|key| self.sessions.get_mut(&key));
        let recovers = session.as_ref().is_some_and(|session| session.recovers());
        check.suffers(from, fate, marks, recovers);
        if let (Side::Initiator, Some(session)) = (from, session) {
            session.suffers(&pdu, fate, check.unreadable[from as usize]);
        }
        Ok(pdu)
    }
}

impl SessionCheck {
    /// PDUs can be had again.
    fn recovers(&self) -> bool {
        self.params.error_recovery_level > 0
    }

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
        Pdu::LoginRequest(request) => {
            check.stage = Some(request.csg);
            Ok(())
        }
        Pdu::LoginResponse(response) => {
            let expected = check.next_stat_sn.unwrap_or(response.stat_sn);
            ensure!(response.stat_sn == expected, "StatSN, expected {expected}");
            check.next_stat_sn = Some(expected.next());
            Ok(())
        }
        _ => Err("not a login PDU before the end of login".into()),
    }
}
