//! A client's connection to a server: requests are answered, and what the server says by itself is
//! (RFC 4171 §2.9, §6.3.5). It keeps nothing registered; that is [`super::registrar`].

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::debug;

use super::message::{Notice, Request, Response, scn};
use super::pdu::{Assembler, Function, Message, ProtocolError, Sender, Status};
use super::registration::{self, Entity, FoundTarget, Node, node_type};
use super::{Attr, Tag};

/// How long a server may take to accept a connection, or to answer. With the pauses between
/// attempts it is well below the 45 s in which a server that came back is to know us again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Notices that wait for somebody to take them; a server that sends more is not in its senses.
const NOTICES_MAX: usize = 1024;

/// Servers that call at a time: one, and the one before it that has not hung up yet.
const CALLERS_MAX: usize = 4;

/// How long a caller may say nothing: its place is another's.
const CALLER_IDLE_MAX: Duration = Duration::from_secs(30);

/// Free space that a read is offered.
const READ_LEN: usize = 16 << 10;

/// A request that did not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No connection.
    #[error("cannot connect to the iSNS server {server}: {source}")]
    Connect {
        /// Where.
        server: String,
        /// Why.
        source: io::Error,
    },
    /// It broke.
    #[error("connection to the iSNS server {server}: {source}")]
    Connection {
        /// Where.
        server: SocketAddr,
        /// How.
        source: io::Error,
    },
    /// It does not answer.
    #[error("iSNS server {server}: no answer to {function} for {} s", ANSWER_TIMEOUT.as_secs())]
    Silent {
        /// Where.
        server: SocketAddr,
        /// What was asked.
        function: Function,
    },
    /// It does not speak iSNS as we do.
    #[error("iSNS server {server}: {source}")]
    Protocol {
        /// Where.
        server: SocketAddr,
        /// What is wrong.
        source: ProtocolError,
    },
    /// It says no.
    #[error("iSNS server {server} refuses {function}: {status}")]
    Refused {
        /// Where.
        server: SocketAddr,
        /// What was asked.
        function: Function,
        /// Its reason.
        status: Status,
    },
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    link: Link,
    next_xid: u16,
    notices: VecDeque<Notice>,
    callers: Option<Callers>,
}

/// The bytes of a connection.
#[derive(Debug)]
struct Link {
    server: SocketAddr,
    stream: TcpStream,
    assembler: Assembler,
    /// What is to be sent yet.
    out: BytesMut,
}

/// The port beside the connection, at which a server may call.
#[derive(Debug)]
struct Callers {
    port: u16,
    heard: mpsc::Receiver<Notice>,
    _tasks: JoinSet<()>,
}

impl Client {
    /// Connects to the first address of `server` that answers. With `callable`, a server may also
    /// call at the connection's local port, as Open-iSNS does for every notice.
    ///
    /// # Errors
    /// [`ClientError::Connect`].
    pub async fn connect(server: &str, callable: bool) -> Result<Self, ClientError> {
        let connect = async {
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
            for address in tokio::net::lookup_host(server).await? {
                match open(address, callable).await {
                    Ok(opened) => return Ok((address, opened)),
                    Err(error) => last = error,
                }
            }
            Err(last)
        };
        let connected = tokio::time::timeout(ANSWER_TIMEOUT, connect).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let (server, (stream, callers)) = connected
            .map_err(|source| ClientError::Connect { server: server.to_owned(), source })?;
        let (assembler, out) = (Assembler::default(), BytesMut::new());
        let link = Link { server, stream, assembler, out };
        Ok(Self { link, next_xid: 1, notices: VecDeque::new(), callers })
    }

    /// The server's address.
    #[must_use]
    pub fn server(&self) -> SocketAddr {
        self.link.server
    }

    /// This end of the connection, which is also where a server may call.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn local_addr(&self) -> Result<SocketAddr, ClientError> {
        self.link.stream.local_addr().map_err(|source| self.link.broken(source))
    }

    /// The port at which a server may call.
    #[must_use]
    pub fn callback_port(&self) -> Option<u16> {
        self.callers.as_ref().map(|callers| callers.port)
    }

    /// Sends a request and awaits its response, whatever its status. Notices in between are
    /// answered and kept for [`notice`](Self::notice).
    ///
    /// # Errors
    /// No response; the connection is of no more use.
    pub async fn ask(&mut self, request: &Request) -> Result<Response, ClientError> {
        let (xid, function) = (self.next_xid, request.function);
        self.next_xid = self.next_xid.wrapping_add(1);
        self.link.out.extend_from_slice(&request.encode(xid).encode(Sender::Client));
        let answer = async {
            loop {
                let message = self.link.message().await?;
                if message.xid == xid && message.function == function.response() {
                    return Response::decode(&message).map_err(|source| self.link.nonsense(source));
                }
                self.take(&message)?;
            }
        };
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, answer).await;
        answer.unwrap_or(Err(ClientError::Silent { server: self.link.server, function }))
    }

    /// As [`ask`](Self::ask), for whom only success will do.
    ///
    /// # Errors
    /// Also [`ClientError::Refused`], after which the connection goes on.
    pub async fn call(&mut self, request: &Request) -> Result<Response, ClientError> {
        let response = self.ask(request).await?;
        match response.status {
            Status::SUCCESS => Ok(response),
            status => {
                let function = request.function;
                Err(ClientError::Refused { server: self.link.server, function, status })
            }
        }
    }

    /// The next notice; it has been answered. May be given up at any time.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn notice(&mut self) -> Result<Notice, ClientError> {
        loop {
            if let Some(notice) = self.notices.pop_front() {
                return Ok(notice);
            }
            let callers = &mut self.callers;
            let heard = async {
                match callers {
                    Some(callers) => callers.heard.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                notice = heard => self.notices.extend(notice),
                message = self.link.message() => {
                    let message = message?;
                    self.take(&message)?;
                }
            }
        }
    }

    fn take(&mut self, message: &Message) -> Result<(), ClientError> {
        let notice = Notice::decode(message).map_err(|source| self.link.nonsense(source))?;
        let Some(notice) = notice else {
            debug!(server = %self.link.server, function = %message.function, xid = message.xid,
                "message that nobody waits for");
            return Ok(());
        };
        if let Some(answer) = notice.answer(message.xid) {
            self.link.out.extend_from_slice(&answer.encode(Sender::Client));
        }
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back(notice);
        }
        Ok(())
    }

    /// Has `node` told of everything that happens to nodes that it may see.
    ///
    /// # Errors
    /// The server does not.
    pub async fn watch(&mut self, node: &str) -> Result<(), ClientError> {
        let mut request = Request::new(Function::SCN_REG, node);
        request.key.push(Attr::new_text(Tag::ISCSI_NAME, node));
        request.operating.push(Attr::new_number(Tag::SCN_BITMAP, scn::EVENTS));
        self.call(&request).await.map(drop)
    }

    /// The targets that the initiator `name` may see. A server that answers only those that it
    /// knows is told of the initiator first, and to forget it afterwards.
    ///
    /// # Errors
    /// The server refuses, or does not answer.
    pub async fn targets(&mut self, name: &str) -> Result<Vec<FoundTarget>, ClientError> {
        let query = registration::targets_query(name);
        let mut response = self.ask(&query).await?;
        if response.status == Status::SOURCE_UNKNOWN {
            let ourselves = Self::visitor(name);
            self.call(&ourselves.registration(None, None)).await?;
            response = self.ask(&query).await?;
            self.call(&ourselves.deregistration()).await?;
        }
        if response.status != Status::SUCCESS {
            let (server, function, status) = (self.link.server, query.function, response.status);
            return Err(ClientError::Refused { server, function, status });
        }
        registration::found_targets(&response).map_err(|what| {
            let function = response.function.response();
            self.link.nonsense(ProtocolError::Format { function, xid: self.next_xid - 1, what })
        })
    }

    /// An initiator that is registered for as long as it asks.
    fn visitor(name: &str) -> Entity {
        let node =
            Node { name: name.to_owned(), kind: node_type::INITIATOR, alias: None, portals: None };
        Entity {
            id: format!("{name}:asking"),
            period_s: 60,
            portals: Vec::new(),
            nodes: vec![node],
        }
    }
}

impl Link {
    /// The next message of any kind. What is to be sent is sent meanwhile.
    async fn message(&mut self) -> Result<Message, ClientError> {
        loop {
            match self.assembler.poll_message() {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(source) => return Err(self.nonsense(source)),
            }
            let moved = step(&mut self.stream, &mut self.assembler, &mut self.out).await;
            moved.map_err(|source| self.broken(source))?;
        }
    }

    fn broken(&self, source: io::Error) -> ClientError {
        ClientError::Connection { server: self.server, source }
    }

    fn nonsense(&self, source: ProtocolError) -> ClientError {
        ClientError::Protocol { server: self.server, source }
    }
}

/// Sends something, or receives something. Nothing of it is lost when it is given up.
async fn step(
    stream: &mut TcpStream,
    assembler: &mut Assembler,
    out: &mut BytesMut,
) -> io::Result<()> {
    let buffer = assembler.buffer();
    buffer.reserve(READ_LEN);
    let (mut from, mut to) = stream.split();
    tokio::select! {
        sent = to.write(out), if !out.is_empty() => {
            out.advance(sent?);
            Ok(())
        }
        received = from.read_buf(buffer) => match received? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        },
    }
}

async fn open(address: SocketAddr, callable: bool) -> io::Result<(TcpStream, Option<Callers>)> {
    if !callable {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        return Ok((stream, None));
    }
    // Two sockets of one port: one listens, the other connects.
    let any: SocketAddr =
        if address.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = |at: SocketAddr| {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.bind(&at.into())?;
        socket.set_nonblocking(true)?;
        io::Result::Ok(socket)
    };
    let listener = socket(any)?;
    listener.listen(CALLERS_MAX as i32)?;
    let listener = TcpListener::from_std(listener.into())?;
    let at = listener.local_addr()?;
    let stream = TcpSocket::from_std_stream(socket(at)?.into()).connect(address).await?;
    stream.set_nodelay(true)?;
    let (tell, heard) = mpsc::channel(NOTICES_MAX);
    let mut tasks = JoinSet::new();
    tasks.spawn(answer_callers(listener, tell));
    Ok((stream, Some(Callers { port: at.port(), heard, _tasks: tasks })))
}

/// Takes calls of servers until it is dropped.
async fn answer_callers(listener: TcpListener, tell: mpsc::Sender<Notice>) {
    let mut calls = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = calls.join_next() => {}
            accepted = listener.accept(), if calls.len() < CALLERS_MAX => match accepted {
                Ok((stream, peer)) => {
                    let tell = tell.clone();
                    calls.spawn(async move {
                        if let Err(error) = answer_caller(stream, tell).await {
                            debug!(%peer, %error, "a call of an iSNS server ended");
                        }
                    });
                }
                Err(error) => {
                    debug!(%error, "cannot accept a call of an iSNS server");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }
}

async fn answer_caller(mut stream: TcpStream, tell: mpsc::Sender<Notice>) -> io::Result<()> {
    let (mut assembler, mut out) = (Assembler::default(), BytesMut::new());
    loop {
        let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        while let Some(message) = assembler.poll_message().map_err(wrong)? {
            let Some(notice) = Notice::decode(&message).map_err(wrong)? else { continue };
            if let Some(answer) = notice.answer(message.xid) {
                out.extend_from_slice(&answer.encode(Sender::Client));
            }
            // Whoever does not take them will ask the server instead.
            let _ = tell.try_send(notice);
        }
        let moved = step(&mut stream, &mut assembler, &mut out);
        let moved = tokio::time::timeout(CALLER_IDLE_MAX, moved).await;
        moved.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    }
}
