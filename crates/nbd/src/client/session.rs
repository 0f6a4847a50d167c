//! Connections to a server: setting them up, and the two tasks of each, one that reads replies and
//! one that writes requests.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, trace};

use super::command::ServerCommand;
use super::error::ConnectError;
use super::handshake::{Agreed, Handshake, Progress};
use super::reply::{Place, Violation};
use super::shared::Shared;
use super::state::{After, Link, Outgoing};
use crate::inbox::Inbox;
use crate::stream::Stream;
use crate::url::{Address, Url};
use crate::wire::{
    ChunkHeader, Command, CommandFlags, RequestHeader, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
    SimpleReply, TransmissionFlags,
};

/// Time for a connection and its handshake, which takes a few round trips.
pub(super) const CONNECT_TIME_MAX: Duration = Duration::from_secs(15);

/// Idle time after which a server is probed, and the time between probes: a host that vanished is
/// noticed after half a minute.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(15))
    .with_interval(Duration::from_secs(5))
    .with_retries(3);

/// How long sent data may stay unacknowledged, or untaken by a server that is there: a disk that is
/// slow to flush is no reason to connect again.
const USER_TIMEOUT: Duration = Duration::from_secs(120);

/// Requests per system call; each takes two of the 1024 slices the kernel accepts.
const REQUESTS_PER_WRITE: usize = 64;

/// Where a server is.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// It runs already.
    Url(Url),
    /// We start it.
    Command(Arc<ServerCommand>),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url(url) => url.fmt(f),
            Self::Command(command) => command.fmt(f),
        }
    }
}

/// A connection whose handshake is over.
struct Connected {
    stream: Arc<Stream>,
    inbox: Inbox,
}

/// Connections to one export.
pub(super) struct Session {
    pub(super) agreed: Agreed,
    connections: Vec<Connected>,
}

impl Session {
    /// Connects: once, and if the server knows about several connections, up to `connections_max`
    /// times.
    pub(super) async fn connect(
        source: &Source,
        connections_max: usize,
    ) -> Result<Self, ConnectError> {
        let (first, agreed) = connect_in_time(source).await?;
        let mut connections = vec![first];
        if agreed.flags.contains(TransmissionFlags::CAN_MULTI_CONN) {
            let mut others = JoinSet::new();
            for _ in 1..connections_max {
                let source = source.clone();
                others.spawn(async move { connect_in_time(&source).await });
            }
            while let Some(other) = others.join_next().await {
                match other {
                    Ok(Ok((connected, other))) if other == agreed => connections.push(connected),
                    // Fewer connections do as well.
                    Ok(Ok(_)) => debug!("a further connection agrees on something else"),
                    Ok(Err(error)) => debug!(%error, "no further connection"),
                    Err(error) => debug!(%error, "no further connection"),
                }
            }
        }
        Ok(Self { agreed, connections })
    }

    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Starts the tasks of all connections in `tasks`; the first that ends says why.
    pub(super) fn start(
        self,
        shared: &Arc<Shared>,
        generation: u64,
        tasks: &mut JoinSet<String>,
    ) -> Vec<Link> {
        let structured = self.agreed.structured_replies;
        let mut links = Vec::new();
        for (index, Connected { stream, inbox }) in self.connections.into_iter().enumerate() {
            let (queue, outgoing) = mpsc::unbounded_channel();
            links.push(Link { queue, under_way: 0 });
            let shared = Arc::clone(shared);
            tasks.spawn(async move {
                let mut replies =
                    Replies { shared: &shared, generation, link: index, structured, inbox };
                let Err(error) = replies.receive().await;
                error.to_string()
            });
            tasks.spawn(async move {
                match send(&stream, outgoing).await {
                    Ok(()) => "disconnected".to_owned(),
                    Err(error) => format!("sending: {error}"),
                }
            });
        }
        links
    }
}

async fn connect_in_time(source: &Source) -> Result<(Connected, Agreed), ConnectError> {
    let connecting = async {
        match source {
            Source::Url(url) => handshake(open(&url.address).await?, &url.export).await,
            Source::Command(command) => {
                let path = command.ready().await?;
                let stream = UnixStream::connect(path).await.map_err(ConnectError::Io)?;
                tokio::select! {
                    result = handshake(Stream::unix(stream), "") => result,
                    error = command.ended() => Err(error),
                }
            }
        }
    };
    timeout(CONNECT_TIME_MAX, connecting).await.unwrap_or(Err(ConnectError::TimedOut))
}

async fn open(address: &Address) -> Result<Stream, ConnectError> {
    let stream = async {
        match address {
            Address::Unix(path) => Ok(Stream::unix(UnixStream::connect(path).await?)),
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                // Requests are batched here already; what is written should leave at once.
                stream.set_nodelay(true)?;
                let socket = SockRef::from(&stream);
                socket.set_tcp_keepalive(&KEEPALIVE)?;
                socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
                let peer = stream.peer_addr()?;
                Ok(Stream::tcp(stream, peer))
            }
        }
    };
    stream.await.map_err(ConnectError::Io)
}

async fn handshake(stream: Stream, export: &str) -> Result<(Connected, Agreed), ConnectError> {
    let stream = Arc::new(stream);
    let mut handshake = Handshake::new(export);
    // Grows with what the server sends, to the longest reply and no further.
    let (mut input, mut output) = (Vec::new(), Vec::new());
    loop {
        let (used, progress) = handshake.handle(&input, &mut output)?;
        input.drain(..used);
        match progress {
            Progress::Continue => {}
            Progress::Ready(agreed) => {
                debug!(?agreed, peer = stream.peer(), "connected");
                let mut inbox = Inbox::new(Arc::clone(&stream));
                inbox.put_back(&input);
                return Ok((Connected { stream, inbox }, agreed));
            }
            Progress::Incomplete => {
                if !output.is_empty() {
                    stream
                        .write_all(&mut [IoSlice::new(&output)])
                        .await
                        .map_err(ConnectError::Io)?;
                    output.clear();
                }
                let mut received = [0; 4096];
                let mut slices = [IoSliceMut::new(&mut received)];
                match stream.read(&mut slices).await.map_err(ConnectError::Io)? {
                    0 => return Err(ConnectError::ClosedInHandshake),
                    count => input.extend_from_slice(&received[..count]),
                }
            }
        }
    }
}

/// Writes requests, many with one system call, until it is told to disconnect.
async fn send(stream: &Stream, mut outgoing: mpsc::UnboundedReceiver<Outgoing>) -> io::Result<()> {
    let mut batch = Vec::with_capacity(REQUESTS_PER_WRITE);
    loop {
        batch.clear();
        if outgoing.recv_many(&mut batch, REQUESTS_PER_WRITE).await == 0 {
            // The connections were given up together.
            return Ok(());
        }
        let disconnect = RequestHeader {
            flags: CommandFlags(0),
            command: Command::DISC,
            cookie: 0,
            offset: 0,
            length: 0,
        };
        let disconnect = disconnect.to_bytes();
        let mut slices = Vec::with_capacity(2 * batch.len());
        for message in &batch {
            match message {
                Outgoing::Request(header, payload) => {
                    slices.extend([IoSlice::new(header), IoSlice::new(payload)]);
                }
                Outgoing::Disconnect => slices.push(IoSlice::new(&disconnect)),
            }
        }
        stream.write_all(&mut slices).await?;
        if matches!(batch.last(), Some(Outgoing::Disconnect)) {
            return Ok(());
        }
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the server closed the connection")]
    Closed,
    #[error("receiving: {0}")]
    Io(#[from] io::Error),
    #[error("the server broke the protocol: the magic number of a reply is {0:#010x}")]
    BadMagic(u32),
    #[error("the server broke the protocol: a reply to {0:#x}, which was not asked here")]
    UnknownCookie(u64),
    #[error("the server broke the protocol: {0}")]
    Violation(#[from] Violation),
    #[error("the server shuts down")]
    ShutsDown,
}

/// The receiving end of a connection.
struct Replies<'a> {
    shared: &'a Shared,
    generation: u64,
    link: usize,
    structured: bool,
    inbox: Inbox,
}

impl Replies<'_> {
    /// Until the connection ends, which is always an error.
    async fn receive(&mut self) -> Result<std::convert::Infallible, Ended> {
        loop {
            let Some(magic) = self.inbox.header().await? else { return Err(Ended::Closed) };
            match u32::from_be_bytes(magic) {
                SIMPLE_REPLY_MAGIC => {
                    let rest = self.inbox.header::<{ SimpleReply::LEN }>().await?;
                    self.simple(SimpleReply::parse(&rest.ok_or(Ended::Closed)?)).await?;
                }
                STRUCTURED_REPLY_MAGIC if self.structured => {
                    let rest = self.inbox.header::<{ ChunkHeader::LEN }>().await?;
                    self.chunk(ChunkHeader::parse(&rest.ok_or(Ended::Closed)?)).await?;
                }
                other => return Err(Ended::BadMagic(other)),
            }
        }
    }

    async fn simple(&mut self, reply: SimpleReply) -> Result<(), Ended> {
        trace!(?reply, "reply");
        let mut receiving = self
            .shared
            .receive(self.generation, self.link, reply.cookie)
            .ok_or(Ended::UnknownCookie(reply.cookie))?;
        let place = receiving.answer.simple(reply.error, self.structured)?;
        self.place(place, receiving.buf.as_deref_mut()).await?;
        self.finish(reply.cookie, receiving)
    }

    async fn chunk(&mut self, header: ChunkHeader) -> Result<(), Ended> {
        trace!(?header, "chunk");
        let cookie = header.cookie;
        let mut receiving = self
            .shared
            .receive(self.generation, self.link, cookie)
            .ok_or(Ended::UnknownCookie(cookie))?;
        // At most 8 MiB, which the reply to BLOCK_STATUS may have.
        let mut head = vec![0; receiving.answer.head_len(&header)?];
        self.inbox.payload(&mut head).await?;
        let place = receiving.answer.chunk(&header, &head)?;
        self.place(place, receiving.buf.as_deref_mut()).await?;
        if header.done {
            return self.finish(cookie, receiving);
        }
        self.shared.received(self.generation, cookie, receiving);
        Ok(())
    }

    async fn place(&mut self, place: Place, buf: Option<&mut [u8]>) -> Result<(), Ended> {
        match (place, buf) {
            (Place::Data(range), Some(buf)) => self.inbox.payload(&mut buf[range]).await?,
            (Place::Zeroes(range), Some(buf)) => buf[range].fill(0),
            // Only a READ has data, and it has a buffer.
            _ => {}
        }
        Ok(())
    }

    fn finish(&self, cookie: u64, receiving: super::state::Receiving) -> Result<(), Ended> {
        let result = receiving.answer.finish()?;
        match self.shared.answered(self.generation, cookie, receiving.buf, result) {
            After::GoOn => Ok(()),
            After::Reconnect => Err(Ended::ShutsDown),
        }
    }
}
