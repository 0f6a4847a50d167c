//! From an address to a connection in full-feature phase: resolve, connect, set socket options, log
//! in, follow redirections. One connection at a time; who needs how many is `group`'s business.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use iscsi_proto::connection::Transmit;
use iscsi_proto::frame::Limits;
use iscsi_proto::ids::{Cid, Isid, Tsih};
use iscsi_proto::keys::SessionParams;
use iscsi_proto::login::Outcome;
use iscsi_proto::login::chap::{Algorithm, CHALLENGE_LEN, ChapCredentials, ChapRandom};
use iscsi_proto::login::initiator::{InitiatorConfig, Login, LoginError, Step};
use iscsi_proto::pdu::{LoginStatus, Opcode, Pdu, PduError};
use iscsi_proto::serial::{CmdSn, StatSn};
use socket2::SockRef;
use tokio::net::TcpSocket;

use super::rejoin::Backoff;
use super::shared::Shared;
use super::url::{Portal, Url};
use super::{Config, ProbeError};
use crate::transport::Stream;
use crate::transport::login::{ReadError, read_pdu, write_pdu};
use crate::transport::socket_options::keep_unsent_short;

/// Redirections followed before giving up: a cluster needs one or two.
const REDIRECTIONS_MAX: u32 = 4;

/// Attempts at a session's first login, as many as open-iscsi's initial_login_retry_max. With the
/// pauses of [`Backoff`] they take 2.3 s.
const LOGINS_MAX: u32 = 8;

/// Why a target could not be reached or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The name has no address.
    #[error("{host}: cannot resolve: {source}")]
    Resolve {
        /// The name.
        host: String,
        /// The resolver's reason.
        source: io::Error,
    },
    /// No address of the portal accepts connections.
    #[error("{portal}: cannot connect: {source}")]
    Connect {
        /// The portal.
        portal: Portal,
        /// The last address's reason.
        source: io::Error,
    },
    /// A socket option was refused.
    #[error("socket option {option}: {source}")]
    Option {
        /// Its name.
        option: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// Login failed.
    #[error("{portal}: login: {source}")]
    Login {
        /// The portal.
        portal: Portal,
        /// The reason.
        source: LoginError,
    },
    /// The connection broke, or carried something else than iSCSI.
    #[error("{portal}: {source}")]
    Read {
        /// The portal.
        portal: Portal,
        /// The reason.
        source: ReadError,
    },
    /// Something that is no answer came.
    #[error("{portal}: {opcode} instead of an answer")]
    Unexpected {
        /// The portal.
        portal: Portal,
        /// What came.
        opcode: Opcode,
    },
    /// A PDU that contradicts itself.
    #[error("{portal}: {source}")]
    Malformed {
        /// The portal.
        portal: Portal,
        /// The reason.
        source: PduError,
    },
    /// One redirection after the other.
    #[error("{portal}: more than {REDIRECTIONS_MAX} redirections")]
    Redirections {
        /// The last one.
        portal: Portal,
    },
    /// Not done in time.
    #[error("{portal}: no answer within {seconds} s")]
    TimedOut {
        /// The portal.
        portal: Portal,
        /// The limit.
        seconds: u64,
    },
    /// The system has no random numbers.
    #[error("random numbers: {0}")]
    Random(getrandom::Error),
    /// The target's list of targets is not one.
    #[error("{portal}: {reason}")]
    Discovery {
        /// The portal.
        portal: Portal,
        /// The reason.
        reason: String,
    },
    /// The unit is not a disk that can be used.
    #[error("{0}")]
    Probe(#[from] ProbeError),
}

impl ConnectError {
    /// The same attempt may succeed a little later: the target said so (§11.13.5, class 3), or it
    /// accepted the connection and closed it, as those do that have many logins under way.
    fn may_pass(&self) -> bool {
        match self {
            Self::Login { source: LoginError::Refused { status }, .. } => status.may_retry(),
            Self::Read { source: ReadError::Io(_), .. } => true,
            _ => false,
        }
    }
}

/// A connection in full-feature phase.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: Stream,
    pub(super) outcome: Outcome,
    /// Where it was accepted, redirections followed.
    pub(super) portal: Portal,
}

/// What distinguishes one login from another of the same disk.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    /// `None` is discovery.
    pub(super) target: Option<String>,
    pub(super) isid: Isid,
    pub(super) cid: Cid,
    /// Handle, parameters and next CmdSN of the session that is joined.
    pub(super) joining: Option<(Tsih, SessionParams, CmdSn)>,
    /// Next StatSN of the connection that is reinstated, else 0 (§11.12.9).
    pub(super) exp_stat_sn: StatSn,
}

/// CHAP name and secret: the configuration's, else the URL's own.
pub(super) fn credentials(url: &Url, config: &Config) -> Option<ChapCredentials> {
    config.chap.clone().or_else(|| url.credentials(None).ok().flatten())
}

/// Connects and logs in, again where the target had no place for us just then.
pub(super) async fn connect_again(
    portal: &Portal,
    config: &Config,
    chap: Option<&ChapCredentials>,
    identity: &Identity,
) -> Result<Link, ConnectError> {
    let mut backoff = Backoff::default();
    for _ in 1..LOGINS_MAX {
        tokio::time::sleep(backoff.take()).await;
        match connect(portal, config, chap, identity).await {
            Err(error) if error.may_pass() => tracing::debug!(%error, "trying again"),
            result => return result,
        }
    }
    tokio::time::sleep(backoff.take()).await;
    connect(portal, config, chap, identity).await
}

/// Connects to the disk's target and logs in, within the time for it.
pub(super) async fn connect_in_time(
    shared: &Shared,
    portal: &Portal,
    identity: &Identity,
) -> Result<Link, ConnectError> {
    let (config, chap) = (&shared.config, credentials(&shared.url, &shared.config));
    let limit = config.login_timeout;
    let attempt = connect(portal, config, chap.as_ref(), identity);
    tokio::time::timeout(limit, attempt).await.unwrap_or_else(|_| {
        Err(ConnectError::TimedOut { portal: portal.clone(), seconds: limit.as_secs() })
    })
}

/// Connects and logs in.
pub(super) async fn connect(
    portal: &Portal,
    config: &Config,
    chap: Option<&ChapCredentials>,
    identity: &Identity,
) -> Result<Link, ConnectError> {
    let mut portal = portal.clone();
    let mut login = login_config(config, chap, identity)?;
    for _ in 0..=REDIRECTIONS_MAX {
        let mut stream = open(&portal, config).await?;
        match log_in(&mut stream, &portal, login.clone()).await? {
            Answer::Established(outcome) => {
                return Ok(Link { stream, outcome: *outcome, portal });
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.5
            //# A redirection SHOULD be accepted by an initiator, even without having the target
            //# complete a security negotiation if any security negotiation is required, and MUST be
            //# accepted by the initiator after the completion of the security negotiation if any
            //# security negotiation is required.
            Answer::Redirected(elsewhere) => {
                tracing::info!(from = %portal, to = %elsewhere, "redirected");
                portal = elsewhere;
            }
            Answer::OldAlgorithmNumbers => {
                tracing::info!(%portal, "CHAP algorithm 7 refused, going on with MD5");
                login = login_config(config, chap, identity)?; // with a challenge of its own
                login.algorithms = vec![Algorithm::Md5];
            }
        }
    }
    Err(ConnectError::Redirections { portal })
}

async fn open(portal: &Portal, config: &Config) -> Result<Stream, ConnectError> {
    if let Some(dialer) = &config.dialer {
        let failed = |source| ConnectError::Connect { portal: portal.clone(), source };
        let stream = dialer.dial(portal).await.map_err(failed)?;
        set_options(&**stream.socket(), config)?;
        return Ok(stream);
    }
    let resolved = tokio::net::lookup_host((portal.host.as_str(), portal.port)).await;
    let addresses =
        resolved.map_err(|source| ConnectError::Resolve { host: portal.host.clone(), source })?;
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match socket(address, config)?.connect(address).await {
            Ok(stream) => return Ok(stream.into()),
            Err(error) => last = error,
        }
    }
    Err(ConnectError::Connect { portal: portal.clone(), source: last })
}

/// A socket with its options; buffers count only if set before the connection is made.
fn socket(address: SocketAddr, config: &Config) -> Result<TcpSocket, ConnectError> {
    let option = |option| move |source| ConnectError::Option { option, source };
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    };
    let socket = socket.map_err(option("socket"))?;
    set_options(&socket, config)?;
    Ok(socket)
}

fn set_options(socket: &impl AsFd, config: &Config) -> Result<(), ConnectError> {
    let option = |option| move |source| ConnectError::Option { option, source };
    keep_unsent_short(socket).map_err(option("TCP_NOTSENT_LOWAT"))?;
    if let Some(dscp) = config.dscp {
        dscp.apply(socket).map_err(option("DSCP"))?;
    }
    let socket = SockRef::from(socket);
    // Every PDU is written whole; waiting for more would only add latency.
    socket.set_tcp_nodelay(true).map_err(option("TCP_NODELAY"))?;
    if let Some(bytes) = config.send_buffer {
        socket.set_send_buffer_size(bytes).map_err(option("SO_SNDBUF"))?;
    }
    if let Some(bytes) = config.receive_buffer {
        socket.set_recv_buffer_size(bytes).map_err(option("SO_RCVBUF"))?;
    }
    if let Some(algorithm) = &config.congestion_control {
        socket.set_tcp_congestion(algorithm.as_bytes()).map_err(option("TCP_CONGESTION"))?;
    }
    Ok(())
}

/// How a login ended that did not fail.
enum Answer {
    Established(Box<Outcome>),
    Redirected(Portal),
    /// tgt 1.0.85 says 7 and means SHA-1, where IANA has SHA-256 (and 6 for SHA-1), so that the
    /// right secret is refused. It has to be asked again without that choice.
    OldAlgorithmNumbers,
}

async fn log_in(
    stream: &mut Stream,
    portal: &Portal,
    config: InitiatorConfig,
) -> Result<Answer, ConnectError> {
    let failed = |source| ConnectError::Login { portal: portal.clone(), source };
    let has_choice = config.algorithms.len() > 1;
    let mut login = Login::new(config).map_err(failed)?;
    let mut algorithm7 = false;
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.12
    //# After establishing a TCP connection between an initiator and a target, the initiator MUST
    //# start a Login Phase to gain further access to the target's resources.
    let (mut request, mut text) = login.first();
    loop {
        let pdu = Transmit { header: request.encode(text.len() as u32), payload: text };
        write_pdu(stream, &pdu).await.map_err(|e| read_error(portal, e.into()))?;
        let received = read_pdu(stream, Limits::LOGIN).await;
        let (header, data) = received.map_err(|error| read_error(portal, error))?;
        let response = match Pdu::parse(&header) {
            Ok(Pdu::LoginResponse(response)) => response,
            //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.4
            //# If the initiator receives any PDU except a Login Response, it MUST immediately
            //# terminate the connection.
            Ok(other) => {
                let opcode = other.opcode();
                return Err(ConnectError::Unexpected { portal: portal.clone(), opcode });
            }
            Err(source) => return Err(ConnectError::Malformed { portal: portal.clone(), source }),
        };
        algorithm7 |= data.split(|byte| *byte == 0).any(|pair| pair == b"CHAP_A=7");
        match login.handle(&response, &data) {
            Ok(Step::Send(next_request, next_text)) => (request, text) = (next_request, next_text),
            Ok(Step::Established(outcome)) => return Ok(Answer::Established(outcome)),
            Ok(Step::Redirected { address, .. }) => return Ok(Answer::Redirected(address.into())),
            Err(LoginError::Refused { status })
                if has_choice && algorithm7 && is_denial(status) =>
            {
                return Ok(Answer::OldAlgorithmNumbers);
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.12
            //# During login, any failure in negotiation MUST be considered a login process failure;
            //# the Login Phase, along with the connection, MUST be terminated.
            Err(error) => return Err(failed(error)),
        }
    }
}

fn is_denial(status: LoginStatus) -> bool {
    [LoginStatus::INITIATOR_ERROR, LoginStatus::AUTHENTICATION_FAILURE].contains(&status)
}

fn read_error(portal: &Portal, source: ReadError) -> ConnectError {
    ConnectError::Read { portal: portal.clone(), source }
}

fn login_config(
    config: &Config,
    chap: Option<&ChapCredentials>,
    identity: &Identity,
) -> Result<InitiatorConfig, ConnectError> {
    let mut random = [0; 1 + CHALLENGE_LEN];
    getrandom::fill(&mut random).map_err(ConnectError::Random)?;
    let random = ChapRandom::from_bytes(random);
    let name = config.initiator_name.as_str();
    let mut login = InitiatorConfig::new(name, identity.target.clone(), identity.isid, random);
    login.cid = identity.cid;
    login.exp_stat_sn = identity.exp_stat_sn;
    login.offer = config.offer;
    login.offer.session.max_connections = config.connections_offered();
    login.chap = chap.cloned();
    login.chap_optional = config.chap_optional;
    login.mutual = config.chap_mutual.clone().filter(|_| chap.is_some());
    if let Some((tsih, params, cmd_sn)) = identity.joining {
        (login.tsih, login.joining, login.cmd_sn) = (tsih, Some(params), cmd_sn);
    }
    Ok(login)
}
