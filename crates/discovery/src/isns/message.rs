//! What messages say (RFC 4171 §5.6, §5.7): requests, responses, and the two that the server sends
//! by itself. What becomes of them is decided elsewhere.

use std::net::{IpAddr, Ipv6Addr};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::attr::{self, Attr, Tag};
use super::pdu::{Function, Message, ProtocolError, Status};

/// Events of a node (§6.4.4), and for whom a notification is meant.
pub mod scn {
    /// A node came into a discovery domain.
    pub const DD_MEMBER_ADDED: u32 = 0x01;
    /// A node left one.
    pub const DD_MEMBER_REMOVED: u32 = 0x02;
    /// An object has changed.
    pub const OBJECT_UPDATED: u32 = 0x04;
    /// An object is new.
    pub const OBJECT_ADDED: u32 = 0x08;
    /// An object is gone.
    pub const OBJECT_REMOVED: u32 = 0x10;
    /// A control node that is told everything.
    pub const MANAGEMENT: u32 = 0x20;
    /// A node is notified of targets and of itself only.
    pub const TARGET_AND_SELF_ONLY: u32 = 0x40;
    /// A node is notified of initiators and of itself only.
    pub const INITIATOR_AND_SELF_ONLY: u32 = 0x80;
    /// Everything that can happen to a node.
    pub const EVENTS: u32 = 0x1f;
}

/// A client's request (§5.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked for.
    pub function: Function,
    /// What is registered takes the place of what was.
    pub replace: bool,
    /// The node that asks.
    pub source: Option<Attr>,
    /// The object that is meant.
    pub key: Vec<Attr>,
    /// What is registered, asked for or taken away.
    pub operating: Vec<Attr>,
}

impl Request {
    /// A request of the node `source`.
    #[must_use]
    pub fn new(function: Function, source: &str) -> Self {
        let source = Some(Attr::new_text(Tag::ISCSI_NAME, source));
        Self { function, replace: false, source, key: Vec::new(), operating: Vec::new() }
    }

    /// As a message.
    #[must_use]
    pub fn encode(&self, xid: u16) -> Message {
        let mut payload = BytesMut::new();
        attr::encode(&self.source, &mut payload);
        attr::encode(&self.key, &mut payload);
        if !matches!(self.function, Function::SCN_DEREG) {
            attr::encode([&Attr::empty(Tag::DELIMITER)], &mut payload);
        }
        attr::encode(&self.operating, &mut payload);
        let (function, replace) = (self.function, self.replace);
        Message { function, xid, replace, payload: payload.freeze() }
    }

    /// From a message. A deregistration has no key (§5.6.5.4), whether or not it has the delimiter
    /// that tgt and Open-iSNS put behind the source.
    ///
    /// # Errors
    /// Attributes that do not fit, or have values that their tags do not have.
    pub fn decode(message: &Message) -> Result<Self, ProtocolError> {
        let function = message.function;
        let attrs = attrs(message, message.payload.clone())?;
        let mut attrs = attrs.into_iter().peekable();
        let source = attrs.next_if(|attr| attr.tag == Tag::ISCSI_NAME && !attr.is_empty());
        let rest: Vec<Attr> = attrs.collect();
        let (key, operating) = match split(rest) {
            (rest, None) if function == Function::DEV_DEREG => (Vec::new(), rest),
            (key, operating) => (key, operating.unwrap_or_default()),
        };
        Ok(Self { function, replace: message.replace, source, key, operating })
    }
}

/// An answer to a request (§5.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// What was asked for: the function of the request.
    pub function: Function,
    /// How it went.
    pub status: Status,
    /// The object that was meant.
    pub key: Vec<Attr>,
    /// What was asked for.
    pub operating: Vec<Attr>,
}

impl Response {
    /// A bare status.
    #[must_use]
    pub fn new(function: Function, status: Status) -> Self {
        Self { function, status, key: Vec::new(), operating: Vec::new() }
    }

    /// As a message.
    #[must_use]
    pub fn encode(&self, xid: u16) -> Message {
        let mut payload = BytesMut::new();
        payload.put_u32(self.status.0);
        attr::encode(&self.key, &mut payload);
        if !self.key.is_empty() || !self.operating.is_empty() {
            attr::encode([&Attr::empty(Tag::DELIMITER)], &mut payload);
        }
        attr::encode(&self.operating, &mut payload);
        let function = self.function.response();
        Message { function, xid, replace: false, payload: payload.freeze() }
    }

    /// From a message.
    ///
    /// # Errors
    /// No status; attributes that do not fit, or have values that their tags do not have.
    pub fn decode(message: &Message) -> Result<Self, ProtocolError> {
        let function = message.function.request();
        let mut payload = message.payload.clone();
        if payload.len() < 4 {
            let what = format!("{} bytes without a status (4 at least)", payload.len());
            return Err(format_error(message, what));
        }
        let status = Status(payload.get_u32());
        let (key, operating) = match split(attrs(message, payload)?) {
            // Without a delimiter, what follows is the result.
            (all, None) => (Vec::new(), all),
            (key, Some(operating)) => (key, operating),
        };
        Ok(Self { function, status, key, operating })
    }
}

/// What happened to one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Bits of [`scn`].
    pub bitmap: u32,
    /// The node, or what else is named.
    pub about: Vec<Attr>,
}

impl Event {
    /// The names of nodes that it is about.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let names = self.about.iter().filter(|attr| attr.tag == Tag::ISCSI_NAME);
        names.filter_map(|attr| attr.text().ok())
    }
}

/// What the server says by itself (§5.6.5.8, .13, .14).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// State change notification.
    Scn {
        /// The node that is told.
        destination: Attr,
        /// Seconds since 1970.
        timestamp: u64,
        /// What happened.
        events: Vec<Event>,
    },
    /// Entity status inquiry: are you there?
    Esi {
        /// As they came: they go back in the answer.
        attrs: Vec<Attr>,
    },
    /// The server is there.
    Heartbeat(Heartbeat),
}

/// Where the active server is (§5.6.5.14). Backups behind it are not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Its address.
    pub address: IpAddr,
    /// Its TCP port.
    pub tcp_port: u16,
    /// Its UDP port, or 0.
    pub udp_port: u16,
    /// Seconds to the next one.
    pub interval_s: u32,
    /// How many it has sent.
    pub counter: u32,
}

impl Notice {
    /// As a message.
    #[must_use]
    pub fn encode(&self, xid: u16) -> Message {
        let mut payload = BytesMut::new();
        let function = match self {
            Self::Scn { destination, timestamp, events } => {
                attr::encode([destination], &mut payload);
                attr::encode([&Attr::new_long(Tag::TIMESTAMP, *timestamp)], &mut payload);
                for event in events {
                    let bitmap = Attr::new_number(Tag::SCN_BITMAP, event.bitmap);
                    attr::encode(std::iter::once(&bitmap).chain(&event.about), &mut payload);
                }
                Function::SCN
            }
            Self::Esi { attrs } => {
                attr::encode(attrs, &mut payload);
                Function::ESI
            }
            Self::Heartbeat(beat) => {
                payload.put_slice(&Attr::new_address(Tag::PORTAL_ADDRESS, beat.address).value);
                payload.put_u16(beat.tcp_port);
                payload.put_u16(beat.udp_port);
                payload.put_u32(beat.interval_s);
                payload.put_u32(beat.counter);
                payload.put_u32(0); // no backup servers
                Function::HEARTBEAT
            }
        };
        Message { function, xid, replace: false, payload: payload.freeze() }
    }

    /// From a message; nothing if the message is none of them.
    ///
    /// # Errors
    /// It is one, but cannot be read.
    pub fn decode(message: &Message) -> Result<Option<Self>, ProtocolError> {
        let wrong = |what: String| format_error(message, what);
        match message.function {
            Function::ESI => {
                Ok(Some(Self::Esi { attrs: attrs(message, message.payload.clone())? }))
            }
            Function::SCN => {
                let mut attrs = attrs(message, message.payload.clone())?.into_iter();
                let destination = attrs.next().filter(|attr| attr.tag == Tag::ISCSI_NAME);
                let destination = destination
                    .ok_or_else(|| wrong(format!("has no destination ({})", Tag::ISCSI_NAME)))?;
                let timestamp = attrs.next().filter(|attr| attr.tag == Tag::TIMESTAMP);
                let timestamp = timestamp
                    .ok_or_else(|| wrong("has no timestamp behind its destination".into()))?;
                let timestamp = timestamp.long().map_err(wrong)?;
                let mut events: Vec<Event> = Vec::new();
                for attr in attrs {
                    if attr.tag == Tag::SCN_BITMAP {
                        let bitmap = attr.number().map_err(wrong)?;
                        events.push(Event { bitmap, about: Vec::new() });
                    } else if let Some(event) = events.last_mut() {
                        event.about.push(attr);
                    } else {
                        return Err(wrong(format!("{} before any event bitmap", attr.tag)));
                    }
                }
                Ok(Some(Self::Scn { destination, timestamp, events }))
            }
            Function::HEARTBEAT => {
                let mut payload = message.payload.clone();
                if payload.len() < 32 {
                    let what = format!("{} bytes (32 at least are allowed)", payload.len());
                    return Err(wrong(what));
                }
                let address = Ipv6Addr::from(payload.get_u128()).to_canonical();
                Ok(Some(Self::Heartbeat(Heartbeat {
                    address,
                    tcp_port: payload.get_u16(),
                    udp_port: payload.get_u16(),
                    interval_s: payload.get_u32(),
                    counter: payload.get_u32(),
                })))
            }
            _ => Ok(None),
        }
    }

    /// The answer that a client owes (§5.7.5.8, .13); none to a heartbeat.
    #[must_use]
    pub fn answer(&self, xid: u16) -> Option<Message> {
        let (function, attrs) = match self {
            Self::Scn { destination, .. } => (Function::SCN, std::slice::from_ref(destination)),
            Self::Esi { attrs } => (Function::ESI, &attrs[..]),
            Self::Heartbeat(_) => return None,
        };
        let mut payload = BytesMut::new();
        payload.put_u32(Status::SUCCESS.0);
        attr::encode(attrs, &mut payload);
        let function = function.response();
        Some(Message { function, xid, replace: false, payload: payload.freeze() })
    }
}

/// The first part, and what is behind the delimiter if there is one.
fn split(mut attrs: Vec<Attr>) -> (Vec<Attr>, Option<Vec<Attr>>) {
    let Some(at) = attrs.iter().position(|attr| attr.tag == Tag::DELIMITER) else {
        return (attrs, None);
    };
    let behind = attrs.split_off(at + 1);
    attrs.pop();
    (attrs, Some(behind))
}

fn attrs(message: &Message, payload: Bytes) -> Result<Vec<Attr>, ProtocolError> {
    let read = attr::decode(&payload).and_then(|attrs| {
        attrs.iter().try_for_each(Attr::check)?;
        Ok(attrs)
    });
    read.map_err(|what| format_error(message, what))
}

fn format_error(message: &Message, what: String) -> ProtocolError {
    ProtocolError::Format { function: message.function, xid: message.xid, what }
}
