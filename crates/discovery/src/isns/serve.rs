//! The server's shell: sockets, time, and the file that outlasts a restart. What is answered, and
//! who is told, [`Directory`] decides.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::{debug, error, info, warn};

use super::attr::PortalKey;
use super::file;
use super::message::{Notice, Response};
use super::network::Network;
use super::pdu::{Assembler, Function, Message, ProtocolError, Sender, Status};
use super::server::{Directory, DomainsFile, Now, Settings};

/// Connections at once: every host of a directory, and people with tools.
pub const CONNECTIONS_MAX: usize = 1024;

/// How long a connection may say nothing at all: longer than any client's renewals.
const IDLE_MAX: Duration = Duration::from_secs(3600);

/// How long a new connection may take for its first message.
const FIRST_MAX: Duration = Duration::from_secs(30);

/// Messages that wait to be sent on one connection; who does not read them is left.
const OUT_MAX: usize = 256;

/// How long a peer may take to take what is sent, or to be connected to and answer.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// Calls to clients at once.
const CALLS_MAX: usize = 32;

/// How exact expiry and inquiries are.
const TICK: Duration = Duration::from_millis(500);

/// Pauses after a failed accept, and after a state file that could not be written.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
const STORE_RETRY: Duration = Duration::from_secs(10);

/// Free space that a read is offered.
const READ_LEN: usize = 16 << 10;

/// What a server is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where it keeps what is registered; without it that ends with the process.
    pub state: Option<PathBuf>,
    /// From where it is used; from everywhere if there are none.
    pub allow: Vec<Network>,
    /// Connections at once.
    pub connections_max: usize,
    /// Limits and control nodes.
    pub settings: Settings,
    /// The operator's domains.
    pub domains: DomainsFile,
}

/// A server that does not start, or could not keep what it knew.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The port is not to be had.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// Where.
        listen: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The state file is not to be had, or is none.
    #[error("state file {}: {what}", path.display())]
    State {
        /// Which.
        path: PathBuf,
        /// Why.
        what: String,
    },
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
    config: Config,
}

/// What all tasks share.
#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    started: Instant,
    store: Notify,
    calls: Arc<Semaphore>,
}

#[derive(Debug)]
struct Inner {
    directory: Directory,
    lines: HashMap<u64, Line>,
    /// The connection over which a registered node was last heard.
    speakers: HashMap<String, u64>,
    next_line: u64,
    next_xid: u16,
}

/// A connection.
#[derive(Debug)]
struct Line {
    peer: SocketAddr,
    out: mpsc::Sender<Bytes>,
}

impl Server {
    /// Listens, and takes up what was kept.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn bind(config: Config) -> Result<Self, ServeError> {
        let started = Instant::now();
        let mut directory = Directory::new(config.settings.clone(), &config.domains);
        if let Some(path) = &config.state {
            let wrong = |what: String| ServeError::State { path: path.clone(), what };
            if let Some(bytes) = file::read(path).map_err(|error| wrong(error.to_string()))? {
                let restored = directory.restore(&bytes, now_since(started));
                for left_out in restored.map_err(|error| wrong(error.to_string()))? {
                    warn!(state = %path.display(), "left out: {left_out}");
                }
            }
            // What cannot be written is better known now than when it is needed.
            let written = file::replace(path, &directory.store());
            written.map_err(|error| wrong(error.to_string()))?;
        }
        let listen = config.listen;
        let failed = |source| ServeError::Listen { listen, source };
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let (entities, objects) = directory.counts();
        info!(entities, objects, "directory");
        let inner = Inner {
            directory,
            lines: HashMap::new(),
            speakers: HashMap::new(),
            next_line: 0,
            next_xid: 0,
        };
        let calls = Arc::new(Semaphore::new(CALLS_MAX));
        let inner = Mutex::new(inner);
        let shared = Arc::new(Shared { inner, started, store: Notify::new(), calls });
        Ok(Self { listener, shared, config })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is done; what is known then has been written.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Self { listener, shared, config } = self;
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&shared), config.clone()));
        tasks.spawn(tick(Arc::clone(&shared)));
        let (end, ended) = oneshot::channel();
        let storing =
            config.state.clone().map(|path| tokio::spawn(store(Arc::clone(&shared), path, ended)));
        stop.await;
        tasks.shutdown().await;
        // A file that is being written is written to its end, before its last version is.
        drop(end);
        if let Some(storing) = storing {
            let _ = storing.await; // it says itself what went wrong
        }
        if let Some(path) = config.state {
            let bytes = shared.lock().directory.store();
            let written = file::replace(&path, &bytes);
            written.map_err(|error| ServeError::State { path, what: error.to_string() })?;
        }
        info!("stopped");
        Ok(())
    }
}

fn now_since(started: Instant) -> Now {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Now { since_start: started.elapsed(), unix_s: unix.map_or(0, |time| time.as_secs()) }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Now {
        now_since(self.started)
    }

    /// Sends what is to be told, and has written what has changed.
    fn follow_up(self: &Arc<Self>, inner: &mut Inner) {
        for told in inner.directory.take_notifications() {
            let nodes = std::iter::once(&told.node).chain(&told.siblings);
            let line = nodes.filter_map(|node| inner.speakers.get(node)).next().copied();
            let message = inner.message(&told.notice);
            match (line.and_then(|line| inner.lines.get(&line)), told.callbacks.first()) {
                (Some(line), _) => {
                    let sent = line.out.try_send(message.encode(Sender::Server));
                    debug!(node = told.node, peer = %line.peer, sent = sent.is_ok(), "SCN");
                }
                (None, Some(callback)) => self.call(*callback, message),
                (None, None) => debug!(node = told.node, "SCN: no way to it"),
            }
        }
        if inner.directory.take_changed() {
            self.store.notify_one();
        }
    }

    /// Calls a client that has no connection.
    fn call(self: &Arc<Self>, callback: PortalKey, message: Message) {
        let Some(address) = callback.socket() else { return };
        let Ok(permit) = Arc::clone(&self.calls).try_acquire_owned() else {
            debug!(%address, "too many calls at once: not made");
            return;
        };
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let called = timeout(PEER_TIMEOUT, exchange(address, &message)).await;
            match called.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(answer) => shared.answered(&answer),
                Err(error) => debug!(%address, function = %message.function, %error, "call"),
            }
            drop(permit);
        });
    }

    /// A client has answered the server.
    fn answered(&self, message: &Message) {
        if message.function == Function::ESI.response()
            && let Ok(answer) = Response::decode(message)
        {
            let now = self.now();
            self.lock().directory.answered(&answer.operating, now);
        }
    }
}

impl Inner {
    fn message(&mut self, notice: &Notice) -> Message {
        self.next_xid = self.next_xid.wrapping_add(1);
        notice.encode(self.next_xid)
    }
}

/// A message to a client, and its answer.
async fn exchange(address: SocketAddr, message: &Message) -> io::Result<Message> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(&message.encode(Sender::Server)).await?;
    let mut assembler = Assembler::default();
    let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    loop {
        while let Some(answer) = assembler.poll_message().map_err(wrong)? {
            if answer.xid == message.xid && answer.function == message.function.response() {
                return Ok(answer);
            }
        }
        receive(&mut stream, &mut assembler).await?;
    }
}

async fn receive(
    stream: &mut (impl tokio::io::AsyncRead + Unpin),
    assembler: &mut Assembler,
) -> io::Result<()> {
    let buffer = assembler.buffer();
    buffer.reserve(READ_LEN);
    match stream.read_buf(buffer).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, config: Config) {
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = clients.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((_, peer)) if clients.len() >= config.connections_max => {
                    warn!(%peer, connections = clients.len(), "refused: too many connections");
                }
                Ok((_, peer)) if !Network::any_has(&config.allow, peer.ip()) => {
                    warn!(%peer, "refused: its address is not allowed");
                }
                Ok((stream, peer)) => {
                    let shared = Arc::clone(&shared);
                    clients.spawn(client(stream, peer, shared));
                }
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }
}

/// Takes the connection out of the books, however its task ends.
struct Entered<'s> {
    shared: &'s Shared,
    id: u64,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner.lines.remove(&self.id);
        inner.speakers.retain(|_, line| *line != self.id);
    }
}

async fn client(stream: TcpStream, peer: SocketAddr, shared: Arc<Shared>) {
    let (out, mut to_send) = mpsc::channel::<Bytes>(OUT_MAX);
    let _ = stream.set_nodelay(true); // slower without, and no more
    let id = {
        let mut inner = shared.lock();
        let id = inner.next_line;
        inner.next_line += 1;
        inner.lines.insert(id, Line { peer, out: out.clone() });
        id
    };
    let _entered = Entered { shared: &shared, id };
    let (mut from, mut to) = stream.into_split();
    let send = async {
        while let Some(bytes) = to_send.recv().await {
            let sent = timeout(PEER_TIMEOUT, to.write_all(&bytes)).await;
            sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        }
        io::Result::Ok(())
    };
    let receive_all = async {
        let mut assembler = Assembler::default();
        let mut patience = FIRST_MAX;
        loop {
            while let Some(message) = assembler.poll_message().map_err(|error| told(error, peer))? {
                patience = IDLE_MAX;
                if let Some(answer) = answer(&shared, id, peer, &message) {
                    // Who does not take answers gets none, and is left by the other branch.
                    let _ = out.send(answer).await;
                }
            }
            let received = timeout(patience, receive(&mut from, &mut assembler)).await;
            received.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        }
    };
    let ended: io::Result<()> = tokio::select! {
        ended = send => ended,
        ended = receive_all => ended,
    };
    if let Err(error) = ended {
        debug!(%peer, %error, "connection ended");
    }
}

fn told(error: ProtocolError, peer: SocketAddr) -> io::Error {
    info!(%peer, %error, "connection ended: it does not speak iSNS");
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn answer(shared: &Arc<Shared>, id: u64, peer: SocketAddr, message: &Message) -> Option<Bytes> {
    if message.function.is_response() {
        shared.answered(message);
        return None;
    }
    if message.function == Function::HEARTBEAT {
        return None;
    }
    let now = shared.now();
    let mut inner = shared.lock();
    let (response, source) = inner.directory.handle(message, now);
    if let Some(source) = source {
        let (function, status) = (message.function, response.status);
        let is_query = matches!(function, Function::DEV_ATTR_QRY | Function::DEV_GET_NEXT);
        match (status, is_query) {
            (Status::SUCCESS, true) => debug!(%peer, source, %function, "answered"),
            (Status::SUCCESS, false) => info!(%peer, source, %function, "done"),
            _ => info!(%peer, source, %function, %status, "refused"),
        }
        if inner.directory.has_node(&source) {
            inner.speakers.insert(source, id);
        }
    } else {
        debug!(%peer, function = %message.function, status = %response.status, "refused");
    }
    shared.follow_up(&mut inner);
    Some(response.encode(message.xid).encode(Sender::Server))
}

/// Sends inquiries, and ends what has expired.
async fn tick(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(TICK);
    loop {
        ticks.tick().await;
        let now = shared.now();
        let mut inner = shared.lock();
        for inquiry in inner.directory.tick(now) {
            let message = inner.message(&inquiry.notice);
            // The connection from the port that was registered, if there is one (§6.3.5).
            let lines = inquiry.nodes.iter().filter_map(|node| inner.speakers.get(node));
            let mut lines = lines.filter_map(|line| inner.lines.get(line));
            match lines.find(|line| u32::from(line.peer.port()) == inquiry.callback.port) {
                Some(line) => drop(line.out.try_send(message.encode(Sender::Server))),
                None => shared.call(inquiry.callback, message),
            }
        }
        shared.follow_up(&mut inner);
    }
}

/// Writes what has changed. A registration is answered before it is written: a client whose
/// registration is lost by a crash finds that out by its next renewal.
async fn store(shared: Arc<Shared>, path: PathBuf, mut ended: oneshot::Receiver<()>) {
    loop {
        tokio::select! {
            _ = &mut ended => return,
            () = shared.store.notified() => {}
        }
        let bytes = shared.lock().directory.store();
        let place = path.clone();
        let written = tokio::task::spawn_blocking(move || file::replace(&place, &bytes)).await;
        let written = written.unwrap_or_else(|error| Err(io::Error::other(error)));
        if let Err(error) = written {
            error!(state = %path.display(), %error, "not written; tried again later");
            tokio::select! {
                _ = &mut ended => return,
                () = tokio::time::sleep(STORE_RETRY) => shared.store.notify_one(),
            }
        }
    }
}
