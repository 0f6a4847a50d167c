//! Attributes: tag, length, value (RFC 4171 §5.6.1, §6). Unknown tags are kept as they are.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use bytes::{BufMut, Bytes, BytesMut};

/// Tag and length.
pub const ATTR_HEADER_LEN: usize = 8;

/// Most attributes of one message: as many as the largest one could hold of portals and nodes; a
/// peer could otherwise make us hold 40 bytes for 8 of its own.
pub const ATTRS_MAX: usize = 1 << 17;

/// Longest text, with its NUL: 256 for what people write (§6.2.1).
pub const TEXT_MAX: usize = 256;

/// What a value is (§6.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u32);

macro_rules! tags {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $kind:ident, $text:literal;)*) => {
        impl Tag {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            /// How its values are written; bytes, where the tag is not known.
            #[must_use]
            pub fn kind(self) -> Kind {
                match self.0 { $($number => Kind::$kind,)* _ => Kind::Opaque }
            }

            fn name(self) -> Option<&'static str> {
                match self.0 { $($number => Some($text),)* _ => None }
            }
        }
    };
}

tags! {
    /// Between the key and what it is about.
    DELIMITER = 0, Nothing, "delimiter";
    /// Key of a network entity.
    ENTITY_ID = 1, Text, "entity identifier";
    /// 2 is iSCSI.
    ENTITY_PROTOCOL = 2, Number, "entity protocol";
    /// Where the entity is managed.
    MANAGEMENT_ADDRESS = 3, Address, "management IP address";
    /// Seconds since 1970.
    TIMESTAMP = 4, Long, "timestamp";
    /// Highest and lowest version of iSCSI.
    VERSION_RANGE = 5, Number, "protocol version range";
    /// Seconds without a message after which the entity is gone.
    REGISTRATION_PERIOD = 6, Number, "registration period";
    /// Number of an entity.
    ENTITY_INDEX = 7, Number, "entity index";
    /// The next one.
    ENTITY_NEXT_INDEX = 8, Number, "entity next index";
    /// With the port, the key of a portal.
    PORTAL_ADDRESS = 16, Address, "portal IP address";
    /// TCP port of a portal.
    PORTAL_PORT = 17, Number, "portal TCP/UDP port";
    /// For people.
    PORTAL_NAME = 18, Text, "portal symbolic name";
    /// Seconds between two inquiries.
    ESI_INTERVAL = 19, Number, "ESI interval";
    /// Where inquiries go.
    ESI_PORT = 20, Number, "ESI port";
    /// Number of a portal.
    PORTAL_INDEX = 22, Number, "portal index";
    /// Where notifications go.
    SCN_PORT = 23, Number, "SCN port";
    /// The next number of a portal.
    PORTAL_NEXT_INDEX = 24, Number, "portal next index";
    /// How IPsec is to be used.
    PORTAL_SECURITY = 27, Number, "portal security bitmap";
    /// Key of a node.
    ISCSI_NAME = 32, Text, "iSCSI name";
    /// Target 1, initiator 2, control 4.
    NODE_TYPE = 33, Number, "iSCSI node type";
    /// For people.
    ALIAS = 34, Text, "iSCSI alias";
    /// Which changes a node is told of.
    SCN_BITMAP = 35, Number, "iSCSI SCN bitmap";
    /// Number of a node.
    NODE_INDEX = 36, Number, "iSCSI node index";
    /// For bridges to Fibre Channel.
    WWNN_TOKEN = 37, Long, "WWNN token";
    /// The next number of a node.
    NODE_NEXT_INDEX = 38, Number, "iSCSI node next index";
    /// AuthMethod of login, for people.
    AUTH_METHOD = 42, Text, "iSCSI AuthMethod";
    /// Node of a portal group.
    PG_ISCSI_NAME = 48, Text, "PG iSCSI name";
    /// Portal of a portal group: address.
    PG_PORTAL_ADDRESS = 49, Address, "PG portal IP address";
    /// Portal of a portal group: port.
    PG_PORTAL_PORT = 50, Number, "PG portal TCP/UDP port";
    /// Tag of a portal group; without a value the node is not reached through the portal.
    PG_TAG = 51, Number, "PG tag";
    /// Number of a portal group.
    PG_INDEX = 52, Number, "PG index";
    /// The next one.
    PG_NEXT_INDEX = 53, Number, "PG next index";
    /// Key of a set of discovery domains.
    DDS_ID = 2049, Number, "DD set ID";
    /// Its name.
    DDS_NAME = 2050, Text, "DD set symbolic name";
    /// Bit 0: it is enabled.
    DDS_STATUS = 2051, Number, "DD set status";
    /// The next ID.
    DDS_NEXT_ID = 2052, Number, "DD set next ID";
    /// Key of a discovery domain.
    DD_ID = 2065, Number, "DD ID";
    /// Its name.
    DD_NAME = 2066, Text, "DD symbolic name";
    /// A member, by the number of a node.
    DD_MEMBER_INDEX = 2067, Number, "DD member iSCSI index";
    /// A member, by name.
    DD_MEMBER_NAME = 2068, Text, "DD member iSCSI name";
    /// A member of Fibre Channel.
    DD_MEMBER_FC = 2069, Long, "DD member FC port name";
    /// A member, by the number of a portal.
    DD_MEMBER_PORTAL_INDEX = 2070, Number, "DD member portal index";
    /// A member, by the address of a portal.
    DD_MEMBER_PORTAL_ADDRESS = 2071, Address, "DD member portal IP address";
    /// Its port.
    DD_MEMBER_PORTAL_PORT = 2072, Number, "DD member portal TCP/UDP port";
    /// Bit 0: boot list.
    DD_FEATURES = 2078, Number, "DD features";
    /// The next ID.
    DD_NEXT_ID = 2079, Number, "DD next ID";
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} (tag {})", self.0),
            None => write!(f, "tag {}", self.0),
        }
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No value at all.
    Nothing,
    /// UTF-8, ended by NULs.
    Text,
    /// 32 bits.
    Number,
    /// 64 bits.
    Long,
    /// IPv6, or IPv4 mapped into it.
    Address,
    /// Whatever it is.
    Opaque,
}

/// A portal's key: address, and TCP port in the low half, with bit 16 for UDP (§6.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortalKey {
    /// IPv4 addresses are those, not mapped ones.
    pub address: IpAddr,
    /// As on the wire.
    pub port: u32,
}

impl PortalKey {
    /// What a session connects to; nothing for UDP. Port 0 is iSCSI's own.
    #[must_use]
    pub fn socket(&self) -> Option<SocketAddr> {
        match u16::try_from(self.port).ok()? {
            0 => Some(SocketAddr::new(self.address, 3260)),
            port => Some(SocketAddr::new(self.address, port)),
        }
    }
}

impl From<SocketAddr> for PortalKey {
    fn from(address: SocketAddr) -> Self {
        Self { address: address.ip().to_canonical(), port: address.port().into() }
    }
}

impl fmt::Display for PortalKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.socket(), self.address) {
            (Some(socket), _) => write!(f, "{socket}"),
            (None, address) => write!(f, "{address} UDP port {}", self.port & 0xffff),
        }
    }
}

/// One attribute. Without a value it asks for one, or stands for all objects of its kind.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Attr {
    /// What.
    pub tag: Tag,
    /// As on the wire, without padding.
    pub value: Bytes,
}

impl fmt::Debug for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=", self.tag)?;
        match (self.tag.kind(), self.text(), self.number(), self.address()) {
            (Kind::Text, Ok(text), ..) => write!(f, "{text:?}"),
            (Kind::Number, _, Ok(number), _) => write!(f, "{number}"),
            (Kind::Address, .., Ok(address)) => write!(f, "{address}"),
            _ => write!(f, "{:02x?}", &self.value[..]),
        }
    }
}

impl Attr {
    /// Asks for a value.
    #[must_use]
    pub fn empty(tag: Tag) -> Self {
        Self { tag, value: Bytes::new() }
    }

    /// Text; longer than [`TEXT_MAX`] is what no peer takes, so it is cut, between letters.
    #[must_use]
    pub fn new_text(tag: Tag, text: &str) -> Self {
        let end = text.floor_char_boundary_at(TEXT_MAX - 1);
        let mut value = BytesMut::from(&text.as_bytes()[..end]);
        value.put_bytes(0, 4 - end % 4);
        Self { tag, value: value.freeze() }
    }

    /// 32 bits.
    #[must_use]
    pub fn new_number(tag: Tag, number: u32) -> Self {
        Self { tag, value: Bytes::copy_from_slice(&number.to_be_bytes()) }
    }

    /// 64 bits.
    #[must_use]
    pub fn new_long(tag: Tag, number: u64) -> Self {
        Self { tag, value: Bytes::copy_from_slice(&number.to_be_bytes()) }
    }

    /// An address.
    #[must_use]
    pub fn new_address(tag: Tag, address: IpAddr) -> Self {
        let octets = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        Self { tag, value: Bytes::copy_from_slice(&octets) }
    }

    /// The two attributes of a portal's key.
    #[must_use]
    pub fn portal(key: PortalKey) -> [Self; 2] {
        [
            Self::new_address(Tag::PORTAL_ADDRESS, key.address),
            Self::new_number(Tag::PORTAL_PORT, key.port),
        ]
    }

    /// Is it without a value?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.value.is_empty()
    }

    /// Its text, without NULs. Some clients end theirs with none (tgt does, where the length is a
    /// multiple of four).
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn text(&self) -> Result<&str, String> {
        let end = self.value.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        if self.value.len() > TEXT_MAX || end == TEXT_MAX {
            let (len, max) = (self.value.len(), TEXT_MAX - 1);
            return Err(format!("{} of {len} bytes (up to {max} and a NUL are allowed)", self.tag));
        }
        let text = std::str::from_utf8(&self.value[..end])
            .map_err(|error| format!("{} is not UTF-8: {error}", self.tag))?;
        if text.chars().any(char::is_control) {
            return Err(format!("{} {text:?} has control characters", self.tag));
        }
        Ok(text)
    }

    /// Its number.
    ///
    /// # Errors
    /// It has not four bytes.
    pub fn number(&self) -> Result<u32, String> {
        let bytes = self.value[..].try_into().map_err(|_| self.wrong_length(4))?;
        Ok(u32::from_be_bytes(bytes))
    }

    /// Its long number.
    ///
    /// # Errors
    /// It has not eight bytes.
    pub fn long(&self) -> Result<u64, String> {
        let bytes = self.value[..].try_into().map_err(|_| self.wrong_length(8))?;
        Ok(u64::from_be_bytes(bytes))
    }

    /// Its address; a mapped one is IPv4.
    ///
    /// # Errors
    /// It has not sixteen bytes.
    pub fn address(&self) -> Result<IpAddr, String> {
        let octets: [u8; 16] = self.value[..].try_into().map_err(|_| self.wrong_length(16))?;
        Ok(Ipv6Addr::from(octets).to_canonical())
    }

    fn wrong_length(&self, allowed: usize) -> String {
        format!("{} of {} bytes ({allowed} are allowed)", self.tag, self.value.len())
    }

    /// Is it, unless empty, what its tag says?
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.is_empty() {
            return Ok(());
        }
        match self.tag.kind() {
            Kind::Nothing => Err(format!("{} with a value (none is allowed)", self.tag)),
            Kind::Text => self.text().map(drop),
            Kind::Number => self.number().map(drop),
            Kind::Long => self.long().map(drop),
            Kind::Address => self.address().map(drop),
            Kind::Opaque => Ok(()),
        }
    }
}

/// Where text can be cut without cutting a letter.
trait CharBoundary {
    fn floor_char_boundary_at(&self, at: usize) -> usize;
}

impl CharBoundary for str {
    fn floor_char_boundary_at(&self, at: usize) -> usize {
        (0..=at.min(self.len())).rev().find(|at| self.is_char_boundary(*at)).unwrap_or(0)
    }
}

/// All attributes of a payload.
///
/// # Errors
/// Where one does not fit, and why.
pub fn decode(payload: &Bytes) -> Result<Vec<Attr>, String> {
    let (mut attrs, mut at) = (Vec::new(), 0);
    while at < payload.len() {
        let Some(header) = payload[at..].first_chunk::<ATTR_HEADER_LEN>() else {
            return Err(format!("{} bytes at byte {at} are no attribute", payload.len() - at));
        };
        let [t0, t1, t2, t3, len @ ..] = *header;
        let tag = Tag(u32::from_be_bytes([t0, t1, t2, t3]));
        let len = u32::from_be_bytes(len) as usize;
        let start = at + ATTR_HEADER_LEN;
        let room = payload.len() - start;
        let padded = len.checked_next_multiple_of(4).filter(|padded| *padded <= room);
        let Some(padded) = padded else {
            return Err(format!("{tag} at byte {at} has length {len} ({room} bytes are left)"));
        };
        if attrs.len() == ATTRS_MAX {
            return Err(format!("more than {ATTRS_MAX} attributes"));
        }
        attrs.push(Attr { tag, value: payload.slice(start..start + len) });
        at = start + padded;
    }
    Ok(attrs)
}

/// Puts attributes behind what is there.
pub fn encode<'a>(attrs: impl IntoIterator<Item = &'a Attr>, out: &mut BytesMut) {
    for Attr { tag, value } in attrs {
        out.put_u32(tag.0);
        out.put_u32(value.len() as u32);
        out.put_slice(value);
        out.put_bytes(0, value.len().next_multiple_of(4) - value.len());
    }
}
