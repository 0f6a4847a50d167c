//! Login of one connection: drives `iscsi_proto::login::target` over the socket and attaches the
//! connection to its session.

use std::sync::Arc;

use bytes::Bytes;
use iscsi_proto::connection::Transmit;
use iscsi_proto::frame::{Framing, Limits};
use iscsi_proto::ids::Cid;
use iscsi_proto::keys::Key;
use iscsi_proto::keys::send_targets::{self, SendTargets, TargetRecord};
use iscsi_proto::keys::text::{TextWriter, parse};
use iscsi_proto::login::Outcome;
use iscsi_proto::login::chap::ChapRandom;
use iscsi_proto::login::target::{Login, LoginFailure, Step, TargetConfig};
use iscsi_proto::names::TargetAddress;
use iscsi_proto::pdu::{LoginStatus, Pdu};
use iscsi_proto::target::{Attach, ConnId, Session};
use tokio::net::TcpStream;
use tracing::{info, warn};

use super::access::PORTAL_GROUP;
use super::connection::TargetConnection;
use super::server::Shared;
use super::session::{SharedSession, now};
use crate::driver::{CloseReason, drive};
use crate::transport::login::{ReadError, read_pdu, write_pdu};

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
    #[error("refused with {0}")]
    Rejected(LoginStatus),
    #[error("no random numbers from the system: {0}")]
    Random(getrandom::Error),
}

/// A connection in its full-feature phase, not yet running.
pub(super) struct LoggedIn {
    shared: Arc<Shared>,
    stream: TcpStream,
    session: Arc<SharedSession>,
    conn: ConnId,
    framing: Framing,
    limits: Limits,
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
    mut stream: TcpStream,
) -> Result<LoggedIn, LoginError> {
    let mut random = [0; 1 + iscsi_proto::login::chap::CHALLENGE_LEN];
    getrandom::fill(&mut random).map_err(LoginError::Random)?;
    let mut login = Login::new(TargetConfig {
        offer: shared.config.offer,
        authenticator: shared.access(),
        random: ChapRandom::from_bytes(random),
    });
    let mut started = false;
    loop {
        let (header, text) = read_pdu(&mut stream, Limits::LOGIN).await?;
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
            Ok(Step::Ready(outcome)) => return attach(shared, stream, login, *outcome).await,
            Err(failure) => {
                let (response, text) = login.failure_response(&failure);
                send(&mut stream, response, text).await?;
                //= https://www.rfc-editor.org/rfc/rfc7143#section-7.12
                //# During login, any failure in negotiation MUST be considered a login process
                //# failure; the Login Phase, along with the connection, MUST be terminated.
                return Err(failure.into());
            }
        }
    }
}

async fn send(
    stream: &mut TcpStream,
    response: iscsi_proto::pdu::LoginResponse,
    text: Bytes,
) -> Result<(), LoginError> {
    let header = response.encode(u32::try_from(text.len()).unwrap_or(u32::MAX));
    Ok(write_pdu(stream, &Transmit { header, payload: text }).await?)
}

/// Login has succeeded: finds or makes the session, then says so to the initiator.
async fn attach(
    shared: &Arc<Shared>,
    mut stream: TcpStream,
    mut login: Login,
    outcome: Outcome,
) -> Result<LoggedIn, LoginError> {
    let session = match find_session(shared, &outcome).await {
        Ok(session) => session,
        Err(status) => {
            send(&mut stream, login.reject(status), Bytes::new()).await?;
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.5
            //# If the Status-Class is not 0, the initiator and target MUST close the TCP
            //# connection.
            return Err(LoginError::Rejected(status));
        }
    };
    let (conn, (exp_cmd_sn, max_cmd_sn)) = session.with(|core| {
        (core.add_connection(&outcome, outcome.next_stat_sn, now()), core.command_window())
    });
    let (response, text) = login.accept(session.tsih, exp_cmd_sn, max_cmd_sn);
    let logged_in = LoggedIn {
        shared: Arc::clone(shared),
        stream,
        session,
        conn,
        framing: outcome.connection.framing(),
        limits: outcome.connection.limits(),
    };
    logged_in.answer(response, text).await
}

async fn find_session(
    shared: &Arc<Shared>,
    outcome: &Outcome,
) -> Result<Arc<SharedSession>, LoginStatus> {
    let session = {
        let mut sessions = shared.lock();
        match sessions.registry.attach(outcome)? {
            Attach::Join { tsih } => {
                let session = sessions.live.get(&tsih).cloned();
                return join(session.ok_or(LoginStatus::SESSION_DOES_NOT_EXIST)?, outcome.cid);
            }
            Attach::New { tsih, reinstates } => {
                let old = reinstates.and_then(|old| sessions.live.remove(&old));
                let name = outcome.initiator_name.clone();
                let port = format!("{name},i,0x{}", outcome.isid);
                let nexus = shared.scsi.nexus(&port);
                let core = Session::new(shared.config.session.clone(), outcome);
                let session = Arc::new(SharedSession::new(tsih, name, nexus, core, old));
                sessions.live.insert(tsih, Arc::clone(&session));
                session
            }
        }
    };
    // This may take as long as the slowest command, and the login may be given up meanwhile.
    let guard = Unattached { shared, session: &session };
    session.outlive_predecessor().await;
    std::mem::forget(guard);
    Ok(session)
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

fn join(session: Arc<SharedSession>, cid: Cid) -> Result<Arc<SharedSession>, LoginStatus> {
    session.with(|core| {
        if core.is_closed() {
            Err(LoginStatus::SESSION_DOES_NOT_EXIST)
        } else if !core.admits(cid) {
            Err(LoginStatus::TOO_MANY_CONNECTIONS)
        } else {
            Ok(())
        }
    })?;
    Ok(session)
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
        info!(
            initiator = self.session.initiator_name,
            tsih = %self.session.tsih,
            connections = self.session.with(|core| core.connection_count()),
            "logged in"
        );
        Ok(self)
    }

    /// Runs the connection to its end.
    pub(super) async fn run(self) {
        let Self { shared, stream, session, conn, framing, limits } = self;
        let portal = portal_of(&stream);
        let mut role =
            TargetConnection::new(Arc::clone(&shared), Arc::clone(&session), conn, portal);
        let reason = drive(&stream, framing, limits, &mut role).await;
        let (initiator, tsih) = (&session.initiator_name, session.tsih);
        match reason {
            CloseReason::Protocol(_) | CloseReason::Frame(_) | CloseReason::TimedOut(_) => {
                warn!(initiator, %tsih, %reason, "connection ended");
            }
            _ => info!(initiator, %tsih, %reason, "connection ended"),
        }
        drop(stream);
        role.finish();
    }
}

/// Answers a text request of the full-feature phase: SendTargets. Everything else was settled at
/// login.
pub(super) fn answer_text(
    shared: &Shared,
    local: Option<TargetAddress>,
    discovery: bool,
    text: &[u8],
) -> Bytes {
    let Ok(pairs) = parse(text) else { return Bytes::new() };
    let mut out = TextWriter::default();
    for pair in pairs {
        if pair.key != "SendTargets" {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.12
            //# The operational parameters of the session or the connection MUST continue to be the
            //# values agreed upon during an earlier successful negotiation (i.e., any partial
            //# results of this unsuccessful negotiation MUST NOT take effect and MUST be
            //# discarded).
            if let Some(refusal) = refusal_of(pair.key) {
                out.push(pair.key, refusal);
            }
            continue;
        }
        let wanted = match SendTargets::from_value(pair.value) {
            //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
            //# This value MUST be supported on Discovery sessions.
            //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
            //# A Discovery session MUST be capable of returning addresses for those targets that
            //# would have been returned had value=All been designated.
            Ok(SendTargets::Named(name)) => name == shared.config.target_name,
            //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
            //# This value MUST be supported on a Discovery session and MUST NOT be supported on an
            //# operational session.
            Ok(SendTargets::All) if !discovery => {
                out.push(pair.key, "Reject");
                continue;
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
            //# A target MUST support the SendTargets command on operational sessions; these will
            //# only return path information about the target to which the session is connected and
            //# do not need to return information about other target names that may be defined in
            //# the responding system.
            //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
            //# This MUST be supported on operational sessions and MUST NOT return targets other
            //# than the one to which the session is logged in.
            Ok(SendTargets::All | SendTargets::This) => true,
            Err(_) => false,
        };
        //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
        //# A SendTargets response MUST NOT contain target names if there are no targets for the
        //# requesting initiator to access.
        if wanted {
            let name = shared.config.target_name.clone();
            let portals = shared.portals_for(local);
            return send_targets::encode(&[TargetRecord { name, portals }]);
        }
    }
    out.finish()
}

/// The answer to a key of the full-feature phase other than SendTargets: what was agreed at login
/// stays. What is only declared needs no answer.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//# If used as specified, these keys MUST NOT be answered with NotUnderstood.
fn refusal_of(key: &str) -> Option<&'static str> {
    match Key::from_name(key) {
        Some(Key::InitiatorAlias | Key::NodeArchitecture) => None,
        Some(_) => Some("Reject"),
        None => Some("NotUnderstood"),
    }
}

/// The portal a connection came in on, as SendTargets names it.
fn portal_of(stream: &TcpStream) -> Option<TargetAddress> {
    let mut local = stream.local_addr().ok()?;
    local.set_ip(local.ip().to_canonical());
    Some(TargetAddress::new(local, PORTAL_GROUP))
}
