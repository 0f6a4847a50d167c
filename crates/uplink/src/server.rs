//! The server's sockets: homes call it, and whoever wants a connection to one asks it
//! ([`Uplinks::dialer`]).

mod strangers;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use iscsi::initiator::{Dial, Dialling, Portal};
use iscsi::transport::Stream;
use rustls::{ServerConfig, ServerConnection};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use crate::control::{DEAD_AFTER, Server as Core, ServerEvent};
use crate::identity::told;
use crate::reader::Reader;
use crate::tokens::{OPEN_MAX, Tokens, VALID};
use crate::wire::{Message, Token};
use crate::{Identity, Pin};
use strangers::{Complaints, STRANGERS_MAX, Stranger, Strangers, TurnedAway};

/// How long a connection may take to prove whose it is, and to say what it is for.
const FIRST_TIMEOUT: Duration = Duration::from_secs(5);

/// Control connections at once.
const LINES_MAX: usize = 1024;

/// Pause after a failed accept, as when there are too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Homes by their keys.
pub type Homes = BTreeMap<Pin, String>;

/// Whether a home is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It has not called since the server began.
    Never,
    /// It has a control connection.
    Up {
        /// Since when.
        since: SystemTime,
    },
    /// It had one.
    Gone {
        /// Until when.
        since: SystemTime,
    },
}

/// Why a server cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The address cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The key cannot be used.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// A port that homes call.
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
    tls: Arc<ServerConfig>,
    uplinks: Uplinks,
}

impl Listener {
    /// Opens it for these homes, as who has this key.
    ///
    /// # Errors
    /// [`ServerError`].
    pub async fn bind(
        address: SocketAddr,
        identity: &Identity,
        homes: Homes,
    ) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let uplinks = Uplinks(Arc::new(Shared {
            homes: RwLock::new(homes),
            state: Mutex::default(),
            begun: Instant::now(),
        }));
        let known = Arc::downgrade(&uplinks.0);
        let allowed = move |pin: &Pin| known.upgrade().is_some_and(|it| it.name(pin).is_some());
        let tls = identity.at_server(Arc::new(allowed))?;
        Ok(Self { listener, address, tls, uplinks })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The homes that call it.
    pub fn uplinks(&self) -> Uplinks {
        self.uplinks.clone()
    }

    /// Answers until it is dropped, which ends all control connections.
    pub async fn run(self) {
        let mut callers = JoinSet::new();
        let strangers = Strangers::default();
        let mut complaints = Complaints::default();
        let (say, mut said) = mpsc::channel(STRANGERS_MAX);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                Some(why) = said.recv() => {
                    complaints.note(why);
                    continue;
                }
            };
            while callers.try_join_next().is_some() {}
            let (socket, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    complaints.note(format!("cannot accept: {error}"));
                    sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let Some(place) = strangers.enter(peer.ip()) else {
                complaints.note(format!("{peer}: too many have not said yet who they are"));
                continue;
            };
            let (uplinks, tls, say) = (self.uplinks.clone(), Arc::clone(&self.tls), say.clone());
            callers.spawn(async move {
                if let Err(why) = uplinks.answer(socket, peer, tls, place).await {
                    // One that is not told of changes nothing.
                    let _ = say.try_send(format!("{peer}: {why}"));
                }
            });
        }
    }
}

/// The homes that call a server, for those who want connections to them.
#[derive(Clone)]
pub struct Uplinks(Arc<Shared>);

impl fmt::Debug for Uplinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.0.lock();
        f.debug_set().entries(lines.lines.keys()).finish()
    }
}

struct Shared {
    homes: RwLock<Homes>,
    state: Mutex<State>,
    begun: Instant,
}

#[derive(Default)]
struct State {
    tokens: Tokens,
    /// Who waits for the connections that homes were asked for.
    waiting: BTreeMap<Token, Waiting>,
    /// Control connections, by name of the home.
    lines: BTreeMap<String, Line>,
    /// Homes that have gone.
    gone: BTreeMap<String, SystemTime>,
    serial_next: u64,
}

struct Waiting {
    /// Over which line it was asked for.
    line: u64,
    tell: oneshot::Sender<Result<Stream, String>>,
}

struct Line {
    serial: u64,
    pin: Pin,
    since: SystemTime,
    orders: mpsc::Sender<Order>,
}

enum Order {
    /// Ask for a data connection.
    Dial(Token),
    /// Say why, and close.
    Leave(&'static str),
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn name(&self, pin: &Pin) -> Option<String> {
        self.homes.read().unwrap_or_else(PoisonError::into_inner).get(pin).cloned()
    }
}

impl Uplinks {
    /// Who may call from now on. A control connection of any other ends.
    pub fn set_homes(&self, homes: Homes) {
        let mut known = self.0.homes.write().unwrap_or_else(PoisonError::into_inner);
        if *known == homes {
            return;
        }
        for (name, line) in &self.0.lock().lines {
            if homes.get(&line.pin) != Some(name) {
                // One whose orders are full has been dead for long, and ends by that.
                let _ = line.orders.try_send(Order::Leave("this home was removed"));
            }
        }
        *known = homes;
    }

    /// May a home of this name call?
    pub fn is_known(&self, home: &str) -> bool {
        let known = self.0.homes.read().unwrap_or_else(PoisonError::into_inner);
        known.values().any(|name| name == home)
    }

    /// Is this home there?
    pub fn presence(&self, home: &str) -> Presence {
        let state = self.0.lock();
        match (state.lines.get(home), state.gone.get(home)) {
            (Some(line), _) => Presence::Up { since: line.since },
            (None, Some(since)) => Presence::Gone { since: *since },
            (None, None) => Presence::Never,
        }
    }

    /// Makes connections to a home, whether it is there now or later.
    pub fn dialer(&self, home: &str) -> Arc<dyn Dial> {
        Arc::new(Way { uplinks: self.clone(), home: home.to_owned() })
    }

    /// A connection to a home.
    async fn connect(&self, home: &str) -> io::Result<Stream> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
        let (token, told) = self.ask(home, random)?;
        let _given_up = GivenUp(self, token);
        let gone = || io::Error::new(io::ErrorKind::ConnectionAborted, "the home has gone");
        match timeout(VALID, told).await {
            Ok(Ok(Ok(stream))) => Ok(stream),
            Ok(Ok(Err(why))) => Err(io::Error::other(format!("the home cannot dial: {why}"))),
            Ok(Err(_)) => Err(gone()),
            Err(_) => {
                let why = format!("the home has not dialled within {} s", VALID.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, why))
            }
        }
    }

    fn ask(
        &self,
        home: &str,
        random: [u8; 16],
    ) -> io::Result<(Token, oneshot::Receiver<Result<Stream, String>>)> {
        let mut state = self.0.lock();
        let State { tokens, waiting, lines, .. } = &mut *state;
        let line = lines.get(home).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotConnected, "the home is not connected")
        })?;
        let now = self.0.begun.elapsed();
        let token = tokens.issue(now, home, random).map_err(io::Error::other)?;
        if line.orders.try_send(Order::Dial(token)).is_err() {
            tokens.withdraw(token);
            return Err(io::Error::other("the home does not take what it is asked for"));
        }
        let (tell, told) = oneshot::channel();
        waiting.insert(token, Waiting { line: line.serial, tell });
        Ok((token, told))
    }

    fn withdraw(&self, token: Token) {
        let mut state = self.0.lock();
        state.tokens.withdraw(token);
        state.waiting.remove(&token);
    }

    /// Finds out who calls and what for, and takes it in.
    async fn answer(
        &self,
        socket: TcpStream,
        peer: SocketAddr,
        tls: Arc<ServerConfig>,
        stranger: Stranger,
    ) -> Result<(), TurnedAway> {
        let mut reader = Reader::default();
        let meet = async {
            socket.set_nodelay(true)?;
            let connection = ServerConnection::new(tls)?;
            let mut stream = Stream::secure(socket, connection.into()).await.map_err(told)?;
            let first = reader.next(&mut stream).await?;
            let first = first.ok_or(io::ErrorKind::UnexpectedEof);
            Ok::<_, TurnedAway>((stream, first.map_err(io::Error::from)?))
        };
        let met = timeout(FIRST_TIMEOUT, meet).await;
        let (stream, first) = met.map_err(|_| TurnedAway::Silent)??;
        let pin = stream.peer_certificate().map(Pin::of).ok_or(TurnedAway::Nobody)??;
        // It may have been removed since the handshake.
        let name = self.0.name(&pin).ok_or(TurnedAway::Nobody)?;
        drop(stranger);
        match first {
            Message::Hello { version } => {
                self.hold(stream, reader, peer, (pin, name), version).await
            }
            Message::Token(_) if !reader.is_empty() => Err(TurnedAway::Talkative(name)),
            Message::Token(token) => self.take_in(stream, name, token),
            other => Err(TurnedAway::Unexpected(name, other.name())),
        }
    }

    /// A data connection.
    fn take_in(&self, stream: Stream, name: String, token: Token) -> Result<(), TurnedAway> {
        let mut state = self.0.lock();
        let redeemed = state.tokens.redeem(self.0.begun.elapsed(), &name, token);
        redeemed.map_err(|refusal| TurnedAway::Token(name, token, refusal))?;
        if let Some(waiting) = state.waiting.remove(&token) {
            // Who does not wait any more has no use for it, and it closes.
            drop(waiting.tell.send(Ok(stream)));
        }
        Ok(())
    }

    /// A control connection, to its end.
    async fn hold(
        &self,
        mut stream: Stream,
        mut reader: Reader,
        peer: SocketAddr,
        (pin, name): (Pin, String),
        version: u16,
    ) -> Result<(), TurnedAway> {
        let begun = Instant::now();
        let ended = |ended| TurnedAway::Ended(name.clone(), ended);
        let mut core = match Core::new(Duration::ZERO, &name, version) {
            Ok(core) => core,
            Err(error) => {
                send(&mut stream, &Message::Refused { why: error.to_string() }).await?;
                return Err(ended(error));
            }
        };
        let (entered, mut orders) = self.enter(&name, pin)?;
        info!(home = name, %peer, "uplink: connected");
        let result = async {
            loop {
                while let Some(message) = core.poll_transmit() {
                    send(&mut stream, &message).await?;
                }
                while let Some(ServerEvent::Failed { token, why }) = core.poll_event() {
                    self.note_failed(&name, token, why);
                }
                tokio::select! {
                    message = reader.next(&mut stream) => match message? {
                        Some(message) => core.handle(begun.elapsed(), message).map_err(ended)?,
                        None => return Ok(()),
                    },
                    () = sleep_until(begun + core.poll_timeout()) => {
                        core.handle_timeout(begun.elapsed()).map_err(ended)?;
                    }
                    order = orders.recv() => match order {
                        Some(Order::Dial(token)) => core.ask(token, VALID),
                        Some(Order::Leave(why)) => {
                            send(&mut stream, &Message::Refused { why: why.to_owned() }).await?;
                            return Ok(());
                        }
                        None => return Ok(()),
                    },
                }
            }
        };
        let result: Result<(), TurnedAway> = result.await;
        drop(entered);
        match &result {
            Ok(()) => info!(home = name, "uplink: gone"),
            Err(error) => warn!(home = name, %error, "uplink: gone"),
        }
        Ok(())
    }

    /// Notes that a home is there. An older line of it, which may be a dead one, ends.
    fn enter(
        &self,
        name: &str,
        pin: Pin,
    ) -> Result<(Entered<'_>, mpsc::Receiver<Order>), TurnedAway> {
        let (orders, ordered) = mpsc::channel(OPEN_MAX);
        let mut state = self.0.lock();
        if state.lines.len() >= LINES_MAX && !state.lines.contains_key(name) {
            return Err(TurnedAway::Full(name.to_owned()));
        }
        let serial = state.serial_next;
        state.serial_next += 1;
        let line = Line { serial, pin, since: SystemTime::now(), orders };
        if let Some(old) = state.lines.insert(name.to_owned(), line) {
            let _ = old.orders.try_send(Order::Leave("this home has called again"));
        }
        state.gone.remove(name);
        Ok((Entered { uplinks: self, name: name.to_owned(), serial }, ordered))
    }

    /// A home says that it cannot make a connection.
    fn note_failed(&self, name: &str, token: Token, why: String) {
        let mut state = self.0.lock();
        if !state.tokens.is_open(name, token) {
            return; // nobody waits for it, or it is none of its
        }
        state.tokens.withdraw(token);
        if let Some(waiting) = state.waiting.remove(&token) {
            drop(waiting.tell.send(Err(why)));
        }
    }
}

async fn send(stream: &mut Stream, message: &Message) -> Result<(), TurnedAway> {
    let sent = async {
        stream.write_all(&message.encode()).await?;
        stream.flush().await
    };
    match timeout(DEAD_AFTER, sent).await {
        Ok(sent) => Ok(sent?),
        Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
    }
}

/// A home that is there, until this is dropped.
struct Entered<'a> {
    uplinks: &'a Uplinks,
    name: String,
    serial: u64,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut state = self.uplinks.0.lock();
        if state.lines.get(&self.name).is_some_and(|line| line.serial == self.serial) {
            state.lines.remove(&self.name);
            state.gone.insert(self.name.clone(), SystemTime::now());
        }
        // What it was asked for, it will not dial any more.
        let State { tokens, waiting, .. } = &mut *state;
        let lost: Vec<Token> = waiting
            .iter()
            .filter(|(_, waiting)| waiting.line == self.serial)
            .map(|(token, _)| *token)
            .collect();
        for token in lost {
            tokens.withdraw(token);
            waiting.remove(&token);
        }
    }
}

/// Takes back what was asked for, if it has not come.
struct GivenUp<'a>(&'a Uplinks, Token);

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.0.withdraw(self.1);
    }
}

/// The way to one home.
#[derive(Debug)]
struct Way {
    uplinks: Uplinks,
    home: String,
}

impl Dial for Way {
    fn dial<'a>(&'a self, _: &'a Portal) -> Dialling<'a> {
        Box::pin(self.uplinks.connect(&self.home))
    }
}
