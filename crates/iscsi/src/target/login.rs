//! Login of one connection: drives `iscsi_proto::login::target` over the socket and attaches the
//! connection to its session.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use iscsi_proto::connection::Transmit;
use iscsi_proto::frame::Limits;
use iscsi_proto::ids::{Cid, Tsih};
use iscsi_proto::keys::ConnectionParams;
use iscsi_proto::keys::text::parse;
use iscsi_proto::login::Outcome;
use iscsi_proto::login::chap::ChapRandom;
use iscsi_proto::login::target::{Login, LoginFailure, Step, TargetConfig};
use iscsi_proto::names::check_name;
use iscsi_proto::pdu::{LoginStatus, Pdu};
use iscsi_proto::serial::CmdSn;
use iscsi_proto::target::{Attach, ConnId, Session, SessionConfig};
use scsi::WriteProtection;
use tracing::{debug, info, warn};

use super::access::{Gatekeeper, NexusRights, Proof};
use super::catalog::{Catalog, TargetSpec, default_offer};
use super::connection::{Ends, TargetConnection};
use super::counters::Observed;
use super::departed;
use super::lobby::{Place, Progress};
use super::overview::{About, Link};
use super::path::Sending;
use super::session::{SharedSession, now};
use super::shared::{Sessions, Shared};
use crate::driver::{CloseReason, drive};
use crate::transport::Stream;
use crate::transport::login::{ReadError, read_pdu, write_pdu};

/// How long a connection may say nothing: an initiator sends its first PDU as soon as TCP's
/// handshake is over, and what is lost once comes again after a second.
const FIRST_PDU_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a connection never reached its full-feature phase.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoginError {
    #[error("no login request: {0}")]
    Read(#[from] ReadError),
    #[error("login response not sent: {0}")]
    Write(#[from] std::io::Error),
    #[error("{0} is not a login request")]
    NotLogin(iscsi_proto::pdu::Opcode),
    #[error("malformed login request: {0}")]
    Malformed(#[from] iscsi_proto::pdu::PduError),
    #[error("{0}")]
    Refused(#[from] LoginFailure),
    /// The peer was told that its proof is wrong; no proof would have been right.
    #[error("{failure}; whatever the proof: {status}")]
    Hidden { status: LoginStatus, failure: LoginFailure },
    #[error("refused with {0}")]
    Rejected(LoginStatus),
    #[error("no login request within {} s", FIRST_PDU_TIMEOUT.as_secs())]
    Silent,
    #[error("it gave way to others: too many logins are under way")]
    GaveWay,
    #[error("no random numbers from the system: {0}")]
    Random(getrandom::Error),
}

impl LoginError {
    /// A word for the metrics.
    pub(super) fn label(&self) -> &'static str {
        let status = match self {
            Self::Read(_) | Self::Write(_) => return "connection",
            Self::NotLogin(_) | Self::Malformed(_) => return "not_a_login",
            Self::Silent => return "timeout",
            Self::GaveWay => return "logins_limit",
            Self::Random(_) => return "internal",
            Self::Refused(failure) => failure.status,
            Self::Rejected(status) | Self::Hidden { status, .. } => *status,
        };
        match status {
            LoginStatus::AUTHENTICATION_FAILURE => "authentication",
            LoginStatus::AUTHORIZATION_FAILURE => "not_admitted",
            LoginStatus::NOT_FOUND => "no_such_target",
            LoginStatus::OUT_OF_RESOURCES | LoginStatus::TOO_MANY_CONNECTIONS => "limit",
            LoginStatus::SERVICE_UNAVAILABLE => "shutting_down",
            LoginStatus::SESSION_DOES_NOT_EXIST => "no_such_session",
            _ => "protocol",
        }
    }
}

/// Where a connection came from and to.
struct Arrival {
    stream: Stream,
    peer: SocketAddr,
    portal: Arc<str>,
}

/// A connection in its full-feature phase, not yet running.
pub(super) struct LoggedIn {
    shared: Arc<Shared>,
    stream: Stream,
    peer: SocketAddr,
    session: Arc<SharedSession>,
    conn: ConnId,
    cid: Cid,
    params: ConnectionParams,
}

/// Takes a connection through login. Nothing but login requests is answered, and nothing else is
/// even looked at: the first PDU that is none ends the connection.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.4
//# Login Requests and Responses MUST be used exclusively during login.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.4
//# On any connection, the Login Phase MUST immediately follow TCP connection establishment, and a
//# subsequent Login Phase MUST NOT occur before tearing down the connection.
pub(super) async fn login(
    shared: &Arc<Shared>,
    portal: Arc<str>,
    mut stream: Stream,
    peer: SocketAddr,
    place: Place,
) -> Result<LoggedIn, LoginError> {
    let catalog = shared.catalog();
    let mut random = [0; 1 + iscsi_proto::login::chap::CHALLENGE_LEN];
    getrandom::fill(&mut random).map_err(LoginError::Random)?;
    let first = tokio::time::timeout(FIRST_PDU_TIMEOUT, read_pdu(&mut stream, Limits::LOGIN));
    let (mut header, mut text) = first.await.map_err(|_| LoginError::Silent)??;
    place.note(Progress::Speaking);
    let gatekeeper = Gatekeeper::new(Arc::clone(shared), Arc::clone(&catalog), Arc::clone(&portal));
    let gatekeeper = Arc::new(gatekeeper);
    let mut login = Login::new(TargetConfig {
        offer: target_named(&catalog, &text).map_or_else(default_offer, |target| target.offer),
        authenticator: Arc::clone(&gatekeeper) as _,
        random: ChapRandom::from_bytes(random),
    });
    let mut started = false;
    loop {
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.4
        //# A target receiving any PDU except a Login Request before the Login Phase is started MUST
        //# immediately terminate the connection on which the PDU was received.
        let request = match Pdu::parse(&header)? {
            Pdu::LoginRequest(request) => request,
            other => {
                //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.4
                //# Once the Login Phase has started, if the target receives any PDU except a Login
                //# Request, it MUST send a Login reject (with Status "invalid during login") and
                //# then disconnect.
                if started {
                    let response = login.reject(LoginStatus::INVALID_DURING_LOGIN);
                    send(&mut stream, response, Bytes::new()).await?;
                }
                return Err(LoginError::NotLogin(other.opcode()));
            }
        };
        started = true;
        match login.handle(&request, &text) {
            Ok(Step::Send(response, text)) => send(&mut stream, response, text).await?,
            Ok(Step::Ready(outcome)) => {
                drop(place); // from here on the limits of sessions hold
                let arrival = Arrival { stream, peer, portal };
                return attach(shared, arrival, login, *outcome, gatekeeper.proof()).await;
            }
            Err(failure) => {
                let (initiator, target) = (login.initiator_name(), login.target_name());
                debug!(initiator, target, "login is refused");
                let (response, text) = login.failure_response(&failure);
                send(&mut stream, response, text).await?;
                //= https://www.rfc-editor.org/rfc/rfc7143#section-7.12
                //# During login, any failure in negotiation MUST be considered a login process
                //# failure; the Login Phase, along with the connection, MUST be terminated.
                return Err(match gatekeeper.hidden() {
                    Some(status) => LoginError::Hidden { status, failure },
                    None => failure.into(),
                });
            }
        }
        if login.has_authenticated() {
            place.note(Progress::Proved);
        }
        (header, text) = read_pdu(&mut stream, Limits::LOGIN).await?;
    }
}

/// The target that the first text of a login names: what is offered depends on it, before the login
/// machine has looked at anything. A name that comes later gets what any target offers.
fn target_named(catalog: &Catalog, text: &[u8]) -> Option<Arc<TargetSpec>> {
    let pairs = parse(text).ok()?;
    let name = pairs.into_iter().find(|pair| pair.key == "TargetName")?.value;
    catalog.targets.get(&check_name(name).ok()?).cloned()
}

async fn send(
    stream: &mut Stream,
    response: iscsi_proto::pdu::LoginResponse,
    text: Bytes,
) -> Result<(), LoginError> {
    let header = response.encode(u32::try_from(text.len()).unwrap_or(u32::MAX));
    Ok(write_pdu(stream, &Transmit { header, payload: text }).await?)
}

/// Login has succeeded: finds or makes the session, then says so to the initiator.
async fn attach(
    shared: &Arc<Shared>,
    arrival: Arrival,
    mut login: Login,
    outcome: Outcome,
    proof: Proof,
) -> Result<LoggedIn, LoginError> {
    let Arrival { mut stream, peer, portal } = arrival;
    let found = find_session(shared, &outcome, portal, proof).await;
    let entered = found.and_then(|session| enter(shared, session, &outcome));
    let Entered { session, conn, window: (exp_cmd_sn, max_cmd_sn) } = match entered {
        Ok(entered) => entered,
        Err(status) => {
            send(&mut stream, login.reject(status), Bytes::new()).await?;
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.5
            //# If the Status-Class is not 0, the initiator and target MUST close the TCP
            //# connection.
            return Err(LoginError::Rejected(status));
        }
    };
    let (response, text) = login.accept(session.tsih, exp_cmd_sn, max_cmd_sn);
    let logged_in = LoggedIn {
        shared: Arc::clone(shared),
        stream,
        session,
        conn,
        cid: outcome.cid,
        params: outcome.connection,
        peer,
    };
    logged_in.answer(response, text).await
}

async fn find_session(
    shared: &Arc<Shared>,
    outcome: &Outcome,
    portal: Arc<str>,
    proof: Proof,
) -> Result<Arc<SharedSession>, LoginStatus> {
    let session = {
        let mut sessions = shared.lock();
        // Under the lock, so that whoever replaces the catalog finds the session or is found.
        let catalog = shared.catalog();
        let admitted = admit(&catalog, outcome, &proof)?;
        if shared.stopping.load(Ordering::Acquire) {
            return Err(LoginStatus::SERVICE_UNAVAILABLE);
        }
        match sessions.registry.attach(outcome)? {
            Attach::Join { tsih } => {
                let session = sessions.live.get(&tsih).cloned();
                return session.ok_or(LoginStatus::SESSION_DOES_NOT_EXIST);
            }
            Attach::New { tsih, reinstates } => {
                let old = reinstates.and_then(|old| sessions.live.remove(&old));
                // A session that reinstates another takes its place.
                if old.is_none() && !has_room(&sessions, &catalog, &outcome.initiator_name) {
                    sessions.registry.remove(tsih);
                    return Err(LoginStatus::OUT_OF_RESOURCES);
                }
                let arrival = (portal, proof);
                let predecessor = old.map(|old| old.give_way());
                let session =
                    Arc::new(begin(shared, outcome, admitted, arrival, tsih, predecessor));
                sessions.live.insert(tsih, Arc::clone(&session));
                session
            }
        }
    };
    // This may take as long as the slowest command, and the login may be given up meanwhile.
    let guard = Unattached { shared, session: &session };
    session.outlive_predecessor().await;
    departed::outlive(shared, &session).await;
    std::mem::forget(guard);
    Ok(session)
}

/// The target of a login, if the rules of this moment still allow it.
fn admit(
    catalog: &Catalog,
    outcome: &Outcome,
    proof: &Proof,
) -> Result<Option<(Arc<TargetSpec>, WriteProtection)>, LoginStatus> {
    let Some(name) = &outcome.target_name else { return Ok(None) };
    let rule = catalog.forbids(&outcome.initiator_name, name, proof);
    let protection = rule.map_err(|_| LoginStatus::AUTHORIZATION_FAILURE)?.write_protection.clone();
    let target = catalog.targets.get(name).ok_or(LoginStatus::NOT_FOUND)?;
    Ok(Some((Arc::clone(target), protection)))
}

/// Is there room for one more session of this initiator?
fn has_room(sessions: &Sessions, catalog: &Catalog, initiator_name: &str) -> bool {
    let own = sessions.live.values().filter(|session| session.initiator_name == initiator_name);
    sessions.live.len() < catalog.limits.sessions_max
        && own.count() < catalog.limits.sessions_per_initiator_max
}

fn begin(
    shared: &Shared,
    outcome: &Outcome,
    admitted: Option<(Arc<TargetSpec>, WriteProtection)>,
    arrival: (Arc<str>, Proof),
    tsih: Tsih,
    predecessor: Option<Arc<SharedSession>>,
) -> SharedSession {
    let (portal, proof) = arrival;
    let name = outcome.initiator_name.clone();
    let port = format!("{name},i,0x{}", outcome.isid);
    let (nexus, config) = match admitted {
        Some((target, protection)) => {
            let nexus = target.scsi.nexus(&port);
            nexus.set_write_protection(protection);
            nexus.set_queries(outcome.session.has_rfc7144());
            (nexus, target.session.clone())
        }
        None => (shared.nothing.nexus(&port), SessionConfig::default()),
    };
    let about = About {
        isid: outcome.isid,
        target_name: outcome.target_name.clone(),
        portal,
        since: SystemTime::now(),
        user: outcome.authenticated_as.clone(),
        alias: outcome.peer_alias.clone(),
        proof,
    };
    let account = shared.budget.open(&name);
    let mut core = Session::new(config, outcome);
    core.set_rights(Arc::new(NexusRights(nexus.rights())));
    let target_name = outcome.target_name.as_deref();
    let throttle =
        target_name.map(|target| shared.limiters.throttle(&shared.catalog(), target, &name));
    let session = SharedSession::new(tsih, name, nexus, about, account, core, predecessor);
    throttle.into_iter().for_each(|throttle| session.set_throttle(throttle));
    session
}

/// A session that no connection has entered yet; dropped, it is forgotten. One that still waits
/// for its predecessor is kept until that is quiet, for the next login to wait for.
struct Unattached<'a> {
    shared: &'a Arc<Shared>,
    session: &'a Arc<SharedSession>,
}

impl Drop for Unattached<'_> {
    fn drop(&mut self) {
        let (shared, session) = (Arc::clone(self.shared), Arc::clone(self.session));
        tokio::spawn(async move {
            session.outlive_predecessor().await;
            shared.forget(&session);
        });
    }
}

/// A connection and the session that it is part of now.
struct Entered {
    session: Arc<SharedSession>,
    conn: ConnId,
    /// ExpCmdSN and MaxCmdSN.
    window: (CmdSn, CmdSn),
}

fn enter(
    shared: &Shared,
    session: Arc<SharedSession>,
    outcome: &Outcome,
) -> Result<Entered, LoginStatus> {
    let entered = session.with(|core| {
        if core.is_closed() {
            return Err(LoginStatus::SESSION_DOES_NOT_EXIST);
        }
        if !core.admits(outcome.cid) {
            return Err(LoginStatus::TOO_MANY_CONNECTIONS);
        }
        let conn = core.add_connection(outcome, outcome.next_stat_sn, now());
        Ok((conn, core.command_window()))
    });
    if entered.is_err() {
        shared.forget(&session); // if nobody has entered it
    }
    let (conn, window) = entered?;
    Ok(Entered { session, conn, window })
}

impl LoggedIn {
    async fn answer(
        mut self,
        response: iscsi_proto::pdu::LoginResponse,
        text: Bytes,
    ) -> Result<Self, LoginError> {
        if let Err(error) = send(&mut self.stream, response, text).await {
            self.session.with(|core| core.handle_login_lost(self.conn));
            self.shared.forget(&self.session);
            return Err(error);
        }
        self.shared.counters.logins.fetch_add(1, Ordering::Relaxed);
        // Two lines: the end of the session will be told of, too.
        if !(self.shared.may_log(self.peer) && self.shared.may_log(self.peer)) {
            self.session.leave_out();
            return Ok(self);
        }
        info!(
            initiator = self.session.initiator_name,
            target = self.session.about.target(),
            tsih = %self.session.tsih,
            connections = self.session.with(|core| core.connection_count()),
            "logged in"
        );
        Ok(self)
    }

    /// Runs the connection to its end.
    pub(super) async fn run(self) {
        let Self { shared, mut stream, peer, session, conn, cid, params } = self;
        let local = local_of(&stream);
        let ends = Ends { peer, local };
        let since = SystemTime::now();
        let (socket, sending) = (Arc::clone(stream.socket()), Sending::default());
        let link = Link { cid, peer, local, since, params, stream: socket, sending };
        session.add_link(conn, link);
        let counters = Arc::clone(&shared.counters);
        let role = TargetConnection::new(Arc::clone(&shared), Arc::clone(&session), conn, ends);
        let mut observed = Observed { role, counters };
        let reason = drive(&mut stream, params.framing(), params.limits(), &mut observed).await;
        shared.counters.closed(&reason);
        let (initiator, tsih) = (&session.initiator_name, session.tsih);
        match reason {
            _ if !shared.may_log(peer) => {}
            CloseReason::Protocol(_) | CloseReason::Frame(_) | CloseReason::TimedOut(_) => {
                warn!(initiator, %tsih, %reason, "connection ended");
            }
            _ => info!(initiator, %tsih, %reason, "connection ended"),
        }
        observed.role.finish();
        // Both ends learn of it when all is done: the peer, and its next login here.
        session.remove_link(conn);
        drop(stream);
        shared.note_end();
    }
}

/// Our end of a connection, IPv4 as such.
fn local_of(stream: &Stream) -> Option<SocketAddr> {
    let mut local = stream.socket().local_addr().ok()?;
    local.set_ip(local.ip().to_canonical());
    Some(local)
}
