//! A session of any number of connections, as the checks drive it: it counts CmdSN, tags and
//! StatSN, answers the target's pings, and judges nothing but StatSN.

use std::collections::VecDeque;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;
use iscsi_proto::ids::{Cid, Isid, Itt, Lun, Tsih, Ttt};
use iscsi_proto::pdu::{
    AsyncMessage, Header, LoginStatus, LogoutReason, LogoutRequest, LogoutResponse, NopIn, NopOut,
    Pdu,
};
use iscsi_proto::serial::{CmdSn, StatSn};

use crate::context::Context;
use crate::login::{Answer, Dialogue, LoggedIn, Login};
use crate::offer::{Agreed, Offer};
use crate::verdict::{Stop, ensure, failed};
use crate::wire::{Received, Wire};

/// How soon a login that came too early is tried again.
const RETRY: Duration = Duration::from_millis(50);

/// A PDU as it came.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) pdu: Pdu,
    pub(crate) header: Header,
    pub(crate) data: Bytes,
}

/// What came on a connection.
#[derive(Debug)]
pub(crate) enum Event {
    Pdu(Box<Arrived>),
    Closed,
    Nothing,
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pdu(arrived) => match &arrived.pdu {
                Pdu::Reject(reject) => write!(f, "REJECT with reason {:#04x}", reject.reason.0),
                Pdu::ScsiResponse(response) => {
                    write!(f, "SCSI_RESPONSE with status {:#04x}", response.status)
                }
                Pdu::TaskManagementResponse(response) => {
                    write!(f, "TASK_MANAGEMENT_RESPONSE {}", response.response.0)
                }
                _ => write!(f, "{}", arrived.header.opcode()),
            },
            Self::Closed => f.write_str("a closed connection"),
            Self::Nothing => f.write_str("nothing"),
        }
    }
}

/// One connection of the session.
pub(crate) struct Link {
    pub(crate) wire: Wire,
    pub(crate) cid: Cid,
    /// Next StatSN, which is what we acknowledge.
    pub(crate) exp_stat_sn: StatSn,
    /// A StatSN other than the next one is a failure. Off where a check asks for repetitions.
    pub(crate) strict: bool,
    /// MaxRecvDataSegmentLength of the target on this connection.
    pub(crate) send_max: u32,
    /// Asynchronous Messages so far.
    pub(crate) events: Vec<AsyncMessage>,
    /// PDUs that came while another was awaited.
    pub(crate) stash: VecDeque<Box<Arrived>>,
}

/// A normal session in full-feature phase.
pub(crate) struct Session<'a> {
    pub(crate) context: &'a Context,
    pub(crate) isid: Isid,
    pub(crate) tsih: Tsih,
    pub(crate) agreed: Agreed,
    pub(crate) links: Vec<Link>,
    /// CmdSN of the next command.
    pub(crate) cmd_sn: CmdSn,
    next_itt: u32,
    /// Latest values from the target, on any connection.
    pub(crate) exp_cmd_sn: CmdSn,
    pub(crate) max_cmd_sn: CmdSn,
}

impl<'a> Session<'a> {
    /// Logs in, and waits until the unit is ready: its first answers may be unit attentions.
    pub(crate) fn open(context: &'a Context, offer: Offer) -> Result<Self, Stop> {
        Self::open_as(context, context.new_isid(), offer)
    }

    /// The same with an ISID that was used before.
    pub(crate) fn open_as(context: &'a Context, isid: Isid, offer: Offer) -> Result<Self, Stop> {
        let mut session = Self::log_in(context, isid, &offer)?;
        session.until_ready()?;
        Ok(session)
    }

    /// The same without a command: what the unit has to tell first is not heard yet.
    pub(crate) fn log_in(context: &'a Context, isid: Isid, offer: &Offer) -> Result<Self, Stop> {
        let first = CmdSn(1);
        let dialogue = Dialogue::with(context, isid, Tsih(0), Cid(0), first)?;
        let logged_in = dialogue.log_in(false, offer)?.established()?;
        Self::of(context, isid, Cid(0), first, logged_in)
    }

    /// Of a leading connection that has just logged in.
    pub(crate) fn of(
        context: &'a Context,
        isid: Isid,
        cid: Cid,
        cmd_sn: CmdSn,
        logged_in: LoggedIn,
    ) -> Result<Self, Stop> {
        let last = logged_in.last()?.clone();
        let mut session = Self {
            context,
            isid,
            tsih: last.tsih,
            agreed: logged_in.agreed.clone(),
            links: Vec::new(),
            cmd_sn,
            next_itt: 0x2000,
            exp_cmd_sn: last.exp_cmd_sn,
            max_cmd_sn: last.max_cmd_sn,
        };
        session.attach(cid, logged_in);
        Ok(session)
    }

    /// A login for another connection.
    pub(crate) fn join(&self, cid: Cid, offer: &Offer) -> Result<Login, Stop> {
        Dialogue::with(self.context, self.isid, self.tsih, cid, self.cmd_sn)?.log_in(false, offer)
    }

    /// Another connection with the session's digests; returns its index.
    pub(crate) fn add(&mut self, cid: u16) -> Result<usize, Stop> {
        let kind = |on: bool| if on { "CRC32C" } else { "None" };
        let framing = self.agreed.framing;
        let offer = Offer::later()
            .with("HeaderDigest", kind(framing.header_digest))
            .with("DataDigest", kind(framing.data_digest));
        let deadline = Instant::now() + self.context.timeout();
        let logged_in = loop {
            match self.join(Cid(cid), &offer)? {
                Login::In(logged_in) => break *logged_in,
                // One that has just left may take up its place until both ends are closed.
                Login::Out(Answer::Response(response, _))
                    if response.status == LoginStatus::TOO_MANY_CONNECTIONS
                        && Instant::now() < deadline =>
                {
                    sleep(RETRY);
                }
                Login::Out(answer) => {
                    return failed(format!("the login of connection {cid} got {answer}"));
                }
            }
        };
        let tsih = logged_in.last()?.tsih;
        ensure(tsih == self.tsih, || {
            format!("connection {cid} was to join session {}, its login ended in {tsih}", self.tsih)
        })?;
        Ok(self.attach(Cid(cid), logged_in))
    }

    /// Takes a connection in that has logged in.
    pub(crate) fn attach(&mut self, cid: Cid, logged_in: LoggedIn) -> usize {
        let LoggedIn { wire, agreed, exp_stat_sn, .. } = logged_in;
        let (events, stash) = (Vec::new(), VecDeque::new());
        let send_max = agreed.send_max;
        self.links.push(Link { wire, cid, exp_stat_sn, strict: true, send_max, events, stash });
        self.links.len() - 1
    }

    /// A tag that no task has had.
    pub(crate) fn new_itt(&mut self) -> Itt {
        self.next_itt = self.next_itt.wrapping_add(1);
        Itt(self.next_itt)
    }

    pub(crate) fn lun(&self) -> Lun {
        self.context.config.lun
    }

    /// Sends a PDU.
    pub(crate) fn send(
        &mut self,
        link: usize,
        pdu: impl Into<Pdu>,
        data: &[u8],
    ) -> Result<(), Stop> {
        let header = pdu.into().encode(data.len() as u32);
        self.links[link].wire.send(&header, data)
    }

    /// What comes next on a connection, `Nothing` after the time for an answer.
    pub(crate) fn event(&mut self, link: usize) -> Result<Event, Stop> {
        self.event_within(link, self.context.timeout())
    }

    /// The same with another limit.
    pub(crate) fn event_within(&mut self, link: usize, timeout: Duration) -> Result<Event, Stop> {
        if let Some(arrived) = self.links[link].stash.pop_front() {
            return Ok(Event::Pdu(arrived));
        }
        loop {
            let (header, data) = match self.links[link].wire.receive(timeout)? {
                Received::Pdu(header, data) => (header, data),
                Received::Closed => return Ok(Event::Closed),
                Received::Nothing => return Ok(Event::Nothing),
            };
            let pdu = match Pdu::parse(&header) {
                Ok(pdu) => pdu,
                Err(error) => return failed(format!("a PDU of the target: {error}")),
            };
            self.count(link, &pdu)?;
            match pdu {
                Pdu::NopIn(ping) if ping.itt == Itt::NONE => self.answer_ping(link, &ping)?,
                Pdu::AsyncMessage(message) => self.links[link].events.push(message),
                pdu => return Ok(Event::Pdu(Box::new(Arrived { pdu, header, data }))),
            }
        }
    }

    /// The next PDU, which has to come.
    pub(crate) fn next(&mut self, link: usize) -> Result<Arrived, Stop> {
        let cid = self.links[link].cid.0;
        match self.event(link)? {
            Event::Pdu(arrived) => Ok(*arrived),
            Event::Closed => {
                let last = self.links[link].wire.last_sent();
                failed(format!("connection {cid} was closed by the target; {last}"))
            }
            Event::Nothing => failed(format!(
                "nothing came on connection {cid} within {} s",
                self.context.timeout().as_secs_f32()
            )),
        }
    }

    /// Takes StatSN and the command window from a PDU (§4.2.2).
    fn count(&mut self, link: usize, pdu: &Pdu) -> Result<(), Stop> {
        let (status, exp, max) = numbers(pdu);
        if let Some(exp) = exp
            && self.exp_cmd_sn.is_before(exp)
        {
            self.exp_cmd_sn = exp;
        }
        if let Some(max) = max
            && self.max_cmd_sn.is_before(max)
        {
            self.max_cmd_sn = max;
        }
        let link = &mut self.links[link];
        let Some(status) = status else { return Ok(()) };
        if status == link.exp_stat_sn {
            link.exp_stat_sn = status.next();
        } else if link.strict {
            return failed(format!(
                "{} on connection {} has StatSN {status}, the next one was {}",
                pdu.opcode(),
                link.cid.0,
                link.exp_stat_sn
            ));
        }
        Ok(())
    }

    fn answer_ping(&mut self, link: usize, ping: &NopIn) -> Result<(), Stop> {
        if ping.ttt == Ttt::NONE {
            return Ok(());
        }
        let answer = NopOut {
            immediate: true,
            lun: ping.lun,
            itt: Itt::NONE,
            ttt: ping.ttt,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.links[link].exp_stat_sn,
        };
        self.send(link, answer, &[])
    }

    /// An immediate ping and its answer: the target has seen all that was sent on the connection
    /// before. What comes meanwhile waits in the stash.
    pub(crate) fn barrier(&mut self, link: usize) -> Result<NopIn, Stop> {
        let ping = NopOut {
            immediate: true,
            lun: Lun(0),
            itt: self.new_itt(),
            ttt: Ttt::NONE,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.links[link].exp_stat_sn,
        };
        let itt = ping.itt;
        self.send(link, ping, &[])?;
        let mut aside = VecDeque::new();
        loop {
            let arrived = self.next(link)?;
            match arrived.pdu {
                Pdu::NopIn(answer) if answer.itt == itt => {
                    self.links[link].stash.extend(aside);
                    return Ok(answer);
                }
                _ => aside.push_back(Box::new(arrived)),
            }
        }
    }

    /// Nothing for this task has come on the connection when a ping has been answered.
    pub(crate) fn ensure_silent(&mut self, link: usize, itt: Itt, why: &str) -> Result<(), Stop> {
        self.barrier(link)?;
        let cid = self.links[link].cid.0;
        let early = self.links[link].stash.iter().find(|arrived| arrived.header.itt() == itt);
        ensure(early.is_none(), || {
            let what = early.map_or("?".into(), |a| a.header.opcode().to_string());
            format!("{what} came on connection {cid}: {why}")
        })
    }

    /// Waits for the target to close a connection; PDUs before that are dropped.
    pub(crate) fn ensure_closed(&mut self, link: usize) -> Result<(), Stop> {
        let cid = self.links[link].cid.0;
        for _ in 0..100 {
            match self.event(link)? {
                Event::Pdu(_) => {}
                Event::Closed => return Ok(()),
                Event::Nothing => break,
            }
        }
        failed(format!("connection {cid} is still open"))
    }

    /// Closes a connection without a word.
    pub(crate) fn drop_link(&mut self, link: usize) {
        drop(self.links.remove(link));
    }

    /// A logout request, not sent yet.
    pub(crate) fn logout(&mut self, link: usize, reason: LogoutReason, cid: Cid) -> LogoutRequest {
        LogoutRequest {
            immediate: false,
            reason,
            itt: self.new_itt(),
            cid,
            cmd_sn: self.cmd_sn.take(),
            exp_stat_sn: self.links[link].exp_stat_sn,
        }
    }

    /// Sends a logout and waits for its answer. What comes before stays in the stash.
    pub(crate) fn log_out(
        &mut self,
        link: usize,
        reason: LogoutReason,
        cid: Cid,
    ) -> Result<LogoutResponse, Stop> {
        let request = self.logout(link, reason, cid);
        let itt = request.itt;
        self.send(link, request, &[])?;
        let mut aside = VecDeque::new();
        loop {
            let arrived = self.next(link)?;
            match arrived.pdu {
                Pdu::LogoutResponse(response) if response.itt == itt => {
                    self.links[link].stash.extend(aside);
                    return Ok(response);
                }
                Pdu::Reject(reject) => {
                    return failed(format!(
                        "the logout got REJECT, reason {:#04x}",
                        reject.reason.0
                    ));
                }
                _ => aside.push_back(Box::new(arrived)),
            }
        }
    }

    /// Ends the session in order, over its first connection. How the target takes a logout is no
    /// other check's business (`logout.response` looks at it): a connection that is closed without
    /// an answer fails nothing here.
    ///
    /// # Errors
    /// What comes before is no PDU, or is numbered wrong.
    pub(crate) fn close(mut self) -> Result<(), Stop> {
        self.close_and_see().map(|_| ())
    }

    /// The same; what the logout got.
    pub(crate) fn close_and_see(&mut self) -> Result<Event, Stop> {
        let request = self.logout(0, LogoutReason::CLOSE_SESSION, self.links[0].cid);
        let itt = request.itt;
        self.send(0, request, &[])?;
        self.links[0].stash.clear();
        loop {
            match self.event(0)? {
                Event::Pdu(arrived)
                    if !matches!(arrived.pdu, Pdu::Reject(_)) && arrived.header.itt() != itt => {}
                event => return Ok(event),
            }
        }
    }
}

/// StatSN if the PDU uses it up, ExpCmdSN and MaxCmdSN.
fn numbers(pdu: &Pdu) -> (Option<StatSn>, Option<CmdSn>, Option<CmdSn>) {
    let window = |stat: Option<StatSn>, exp: CmdSn, max: CmdSn| (stat, Some(exp), Some(max));
    match pdu {
        Pdu::NopIn(p) => {
            window((p.itt != Itt::NONE).then_some(p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn)
        }
        Pdu::ScsiResponse(p) => window(Some(p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn),
        Pdu::TaskManagementResponse(p) => window(Some(p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn),
        Pdu::TextResponse(p) => window(Some(p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn),
        Pdu::DataIn(p) => window(p.status.map(|_| p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn),
        Pdu::LogoutResponse(p) => window(Some(p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn),
        Pdu::R2t(p) => window(None, p.exp_cmd_sn, p.max_cmd_sn),
        Pdu::AsyncMessage(p) => window(Some(p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn),
        Pdu::Reject(p) => window(Some(p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn),
        _ => (None, None, None),
    }
}
