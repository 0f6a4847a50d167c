//! The home's sockets: keeps the control connection, and dials what it is asked for.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use iscsi::transport::Stream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use crate::control::{DEAD_AFTER, Ended, Home as Core, HomeEvent};
use crate::identity::told;
use crate::pause::Pause;
use crate::reader::Reader;
use crate::tokens::VALID;
use crate::wire::{Message, Token};
use crate::{Identity, Pin};

/// How long TCP and TLS may take for one address of the server: its first packet is lost once, and
/// its second takes 300 ms.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

/// What TLS calls the server, which goes by its key and is told no name.
const SERVER_NAME: &str = "uplink.invalid";

/// What a home knows of its server.
#[derive(Clone, Debug)]
pub struct Config {
    /// HOST:PORT.
    pub server: String,
    /// The server's key.
    pub pin: Pin,
    /// The home's own.
    pub identity: Arc<Identity>,
}

/// How it stands with the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The server knows us by this name now.
    pub known_as: Option<String>,
    /// Why not.
    pub problem: Option<String>,
    /// How often it has welcomed us.
    pub welcomes: u64,
    /// Data connections that were made for it.
    pub dialled: u64,
}

/// Takes a data connection, and the server's address. What comes next on it is what the server
/// says.
pub type Deliver = Arc<dyn Fn(Stream, SocketAddr) + Send + Sync>;

/// Why a control connection is over, or was not made.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Ended(#[from] Ended),
    #[error("no answer within {} s", CONNECT_TIMEOUT.as_secs())]
    Silent,
    #[error("{0}: cannot resolve: {1}")]
    Resolve(String, io::Error),
    #[error("the server has closed the connection")]
    Closed,
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("no random numbers from the system: {0}")]
    Random(getrandom::Error),
}

/// Keeps it up until it is dropped; data connections that were delivered go on.
pub async fn keep(config: Config, deliver: Deliver, standing: watch::Sender<Standing>) {
    let mut pause = Pause::default();
    loop {
        let failed = match once(&config, &deliver, &standing, &mut pause).await {
            Ok(never) => match never {},
            Err(failed) => failed.to_string(),
        };
        let server = &config.server;
        let known = standing.borrow().clone();
        if known.known_as.is_some() || known.problem.as_deref() != Some(&failed) {
            warn!(server, problem = failed, "uplink: no connection to the server");
        }
        standing.send_modify(|standing| {
            (standing.known_as, standing.problem) = (None, Some(failed));
        });
        sleep(pause.take(chance().unwrap_or(u8::MAX))).await;
    }
}

fn chance() -> Result<u8, Failed> {
    let mut byte = [0];
    getrandom::fill(&mut byte).map_err(Failed::Random)?;
    Ok(byte[0])
}

/// What does not come back but by an error.
enum Never {}

async fn once(
    config: &Config,
    deliver: &Deliver,
    standing: &watch::Sender<Standing>,
    pause: &mut Pause,
) -> Result<Never, Failed> {
    let dialler = Dialler { tls: config.identity.at_home(config.pin)?, deliver: deliver.clone() };
    let resolved = tokio::net::lookup_host(&config.server).await;
    let addresses = resolved.map_err(|error| Failed::Resolve(config.server.clone(), error))?;
    let mut last = Failed::Io(io::ErrorKind::AddrNotAvailable.into());
    for address in addresses {
        match dialler.connect(address).await {
            Ok(stream) => {
                let mut link = Link::new(stream, address, dialler);
                let result = link.hold(standing).await;
                if let Some(since) = link.welcomed {
                    pause.note_held(since.elapsed());
                }
                return result;
            }
            Err(failed) => last = failed,
        }
    }
    Err(last)
}

/// How connections to the server are made, and what becomes of them.
#[derive(Clone)]
struct Dialler {
    tls: Arc<ClientConfig>,
    deliver: Deliver,
}

impl Dialler {
    /// TCP and TLS: both ends know each other behind it, or at the first message.
    async fn connect(&self, address: SocketAddr) -> Result<Stream, Failed> {
        let connect = async {
            let socket = TcpStream::connect(address).await?;
            socket.set_nodelay(true)?;
            let name = ServerName::try_from(SERVER_NAME)
                .map_err(|error| rustls::Error::General(error.to_string()))?;
            let connection = ClientConnection::new(Arc::clone(&self.tls), name)?;
            Ok(Stream::secure(socket, connection.into()).await.map_err(told)?)
        };
        timeout(CONNECT_TIMEOUT, connect).await.map_err(|_| Failed::Silent)?
    }

    /// Makes a data connection.
    async fn dial(self, address: SocketAddr, token: Token) -> Result<(), Failed> {
        let mut stream = self.connect(address).await?;
        stream.write_all(&Message::Token(token).encode()).await?;
        stream.flush().await?;
        (self.deliver)(stream, address);
        Ok(())
    }
}

/// A control connection.
struct Link {
    stream: Stream,
    address: SocketAddr,
    reader: Reader,
    core: Core,
    begun: Instant,
    welcomed: Option<Instant>,
    dialler: Dialler,
    /// Data connections that are being made; given up with this one, as the server does.
    dialling: JoinSet<(Token, Result<(), String>)>,
}

impl Link {
    fn new(stream: Stream, address: SocketAddr, dialler: Dialler) -> Self {
        Self {
            stream,
            address,
            reader: Reader::default(),
            core: Core::new(Duration::ZERO),
            begun: Instant::now(),
            welcomed: None,
            dialler,
            dialling: JoinSet::new(),
        }
    }

    async fn hold(&mut self, standing: &watch::Sender<Standing>) -> Result<Never, Failed> {
        loop {
            while let Some(message) = self.core.poll_transmit() {
                self.send(&message).await?;
            }
            while let Some(event) = self.core.poll_event() {
                self.act(event, standing);
            }
            tokio::select! {
                message = self.reader.next(&mut self.stream) => {
                    let message = message.map_err(told)?.ok_or(Failed::Closed)?;
                    self.core.handle(self.begun.elapsed(), message)?;
                }
                () = sleep_until(self.begun + self.core.poll_timeout()) => {
                    self.core.handle_timeout(self.begun.elapsed())?;
                }
                Some(done) = self.dialling.join_next() => match done {
                    Ok((token, result)) => {
                        standing.send_modify(|it| it.dialled += u64::from(result.is_ok()));
                        self.core.note_dialled(token, result);
                    }
                    Err(error) => warn!(%error, "uplink: dialling ended"),
                },
            }
        }
    }

    /// A socket that takes nothing for so long leads nowhere.
    async fn send(&mut self, message: &Message) -> Result<(), Failed> {
        let stream = &mut self.stream;
        let send = async {
            stream.write_all(&message.encode()).await?;
            stream.flush().await
        };
        Ok(timeout(DEAD_AFTER, send).await.map_err(|_| Ended::Dead)??)
    }

    fn act(&mut self, event: HomeEvent, standing: &watch::Sender<Standing>) {
        match event {
            HomeEvent::Up { name } => {
                info!(server = %self.address, name, "uplink: connected");
                self.welcomed = Some(Instant::now());
                standing.send_modify(|standing| {
                    (standing.known_as, standing.problem) = (Some(name), None);
                    standing.welcomes += 1;
                });
            }
            HomeEvent::Dial { token, valid } => {
                let dial = self.dialler.clone().dial(self.address, token);
                let limit = valid.min(VALID);
                self.dialling.spawn(async move {
                    let result = match timeout(limit, dial).await {
                        Ok(result) => result.map_err(|failed| failed.to_string()),
                        Err(_) => Err(format!("not done within {limit:?}")),
                    };
                    debug!(%token, ?result, "uplink: dialled");
                    (token, result)
                });
            }
        }
    }
}
