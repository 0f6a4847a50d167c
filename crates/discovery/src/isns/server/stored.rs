//! A directory as bytes, and back. They are what a client would send to have it so, behind a line
//! that says what it is: what can be registered can be stored, and one decoder reads both.

use bytes::{BufMut, Bytes, BytesMut};

use super::super::attr::{Attr, Tag};
use super::super::message::Request;
use super::super::pdu::{Assembler, Function, ProtocolError, Sender, Status};
use super::super::registration::PG_TAG_DEFAULT;
use super::directory::{Attrs, Directory, Held, Now};

/// What the bytes begin with.
const MAGIC: &str = "enkaku isns directory 1\n";

/// In whose name what is stored is registered; it need not be a node.
const OPERATOR: &str = "iqn.2026-11.io.enkaku:isns";

/// Bytes that are no directory.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoredError {
    /// Something else, or a later version.
    #[error("is no directory of an iSNS server (it has to begin with {MAGIC:?})")]
    Magic,
    /// Damaged.
    #[error("behind byte {at}: {source}")]
    Damaged {
        /// Where the message begins that is damaged.
        at: usize,
        /// How.
        source: ProtocolError,
    },
    /// Cut.
    #[error("ends in the middle of a message, {0} bytes behind the last whole one")]
    Cut(usize),
    /// It says what a directory cannot hold.
    #[error("message {number} ({function}): {status}")]
    Refused {
        /// Which message, from 1.
        number: usize,
        /// What for.
        function: Function,
        /// Why.
        status: Status,
    },
}

impl Directory {
    /// All of it but the domains of the operator's file.
    #[must_use]
    pub fn store(&self) -> Bytes {
        let mut out = BytesMut::from(MAGIC);
        let mut put = |request: Request| out.put_slice(&request.encode(0).encode(Sender::Client));
        for (id, held) in &self.entities {
            put(entity(id, held));
        }
        for (id, domain) in self.domains.domains.iter().filter(|(_, domain)| !domain.fixed) {
            let mut request = Request::new(Function::DD_REG, OPERATOR);
            let members = domain.members.iter();
            request.operating = vec![
                Attr::new_number(Tag::DD_ID, *id),
                Attr::new_text(Tag::DD_NAME, &domain.name),
                Attr::new_number(Tag::DD_FEATURES, domain.features),
            ];
            request.operating.extend(members.map(|it| Attr::new_text(Tag::DD_MEMBER_NAME, it)));
            put(request);
        }
        for (id, set) in &self.domains.sets {
            let mut request = Request::new(Function::DDS_REG, OPERATOR);
            request.operating = vec![
                Attr::new_number(Tag::DDS_ID, *id),
                Attr::new_text(Tag::DDS_NAME, &set.name),
                Attr::new_number(Tag::DDS_STATUS, set.enabled.into()),
            ];
            request
                .operating
                .extend(set.members.iter().map(|id| Attr::new_number(Tag::DD_ID, *id)));
            put(request);
        }
        out.freeze()
    }

    /// Takes up what was stored. Registrations live for one more period from `now`. What does not
    /// fit any more, as the operator's file or the limits have changed, is left out and told of.
    ///
    /// # Errors
    /// The bytes are no directory.
    pub fn restore(&mut self, bytes: &[u8], now: Now) -> Result<Vec<StoredError>, StoredError> {
        let Some(rest) = bytes.strip_prefix(MAGIC.as_bytes()) else {
            return Err(StoredError::Magic);
        };
        let mut assembler = Assembler::default();
        assembler.buffer().extend_from_slice(rest);
        let (mut left_out, mut number) = (Vec::new(), 0);
        self.loading = true;
        let ended = loop {
            let at = bytes.len() - assembler.buffer().len();
            match assembler.poll_message() {
                Ok(Some(message)) => {
                    number += 1;
                    let (response, _) = self.handle(&message, now);
                    if response.status != Status::SUCCESS {
                        let (function, status) = (message.function, response.status);
                        left_out.push(StoredError::Refused { number, function, status });
                    }
                }
                Ok(None) => break Ok(()),
                Err(source) => break Err(StoredError::Damaged { at, source }),
            }
        };
        self.loading = false;
        self.changed = false;
        self.notifications.clear();
        self.next_index = self.highest_index().checked_add(1).unwrap_or(1);
        ended?;
        match assembler.buffer().len() {
            0 => Ok(left_out),
            cut => Err(StoredError::Cut(cut)),
        }
    }

    fn highest_index(&self) -> u32 {
        let numbers = self.entities.values().flat_map(|held| {
            let objects = held.portals.values().chain(held.nodes.values()).chain([&held.attrs]);
            objects.flat_map(|attrs| {
                let tags = [Tag::ENTITY_INDEX, Tag::PORTAL_INDEX, Tag::NODE_INDEX];
                tags.map(|tag| super::directory::number(attrs, tag).unwrap_or(0))
            })
        });
        numbers.max().unwrap_or(0)
    }
}

fn entity(id: &str, held: &Held) -> Request {
    let stored = |attrs: &Attrs| -> Vec<Attr> {
        let attrs = attrs.iter().filter(|(tag, _)| **tag != Tag::TIMESTAMP);
        attrs.map(|(tag, value)| Attr { tag: *tag, value: value.clone() }).collect()
    };
    let mut request = Request::new(Function::DEV_ATTR_REG, OPERATOR);
    request.key.push(Attr::new_text(Tag::ENTITY_ID, id));
    let out = &mut request.operating;
    out.push(Attr::new_text(Tag::ENTITY_ID, id));
    out.extend(stored(&held.attrs));
    for (key, attrs) in &held.portals {
        out.extend(Attr::portal(*key));
        out.extend(stored(attrs));
    }
    for (name, attrs) in &held.nodes {
        out.push(Attr::new_text(Tag::ISCSI_NAME, name));
        out.extend(stored(attrs));
        for ((_, portal), tag) in held.groups.iter().filter(|((node, _), _)| node == name) {
            if *tag == Some(PG_TAG_DEFAULT) {
                continue; // what it is without being said
            }
            let tag = tag.map(|tag| Attr::new_number(Tag::PG_TAG, tag));
            out.push(tag.unwrap_or_else(|| Attr::empty(Tag::PG_TAG)));
            out.push(Attr::new_address(Tag::PG_PORTAL_ADDRESS, portal.address));
            out.push(Attr::new_number(Tag::PG_PORTAL_PORT, portal.port));
        }
    }
    request
}
