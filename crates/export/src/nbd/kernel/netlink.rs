//! The generic netlink family `nbd` (linux/nbd-netlink.h): messages, and the socket that they go
//! over. Every call waits for the kernel's answer, so none belongs on a thread of a runtime.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
    Nla, NlasIterator, Parseable, ParseableParametrized,
};
use netlink_packet_generic::constants::{
    CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME, CTRL_CMD_GETFAMILY, GENL_ID_CTRL,
};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};
use socket2::SockRef;

/// A kernel that has not answered by then will not.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// `NBD_GENL_FAMILY_NAME` as an attribute: with a zero at its end.
const FAMILY: &[u8] = b"nbd\0";
const VERSION: u8 = 1;

/// Version of the family that knows the others' numbers.
const CONTROL_VERSION: u8 = 2;

/// `enum` of the commands.
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;

/// `NBD_ATTR_…`.
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONN_TIMEOUT: u16 = 8;
const BACKEND_IDENTIFIER: u16 = 10;

/// `NBD_SOCK_ITEM`, one in the list of sockets, and `NBD_SOCK_FD`, what is in it.
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

/// What a device is configured with.
#[derive(Clone, Debug)]
pub(super) struct Setup<'a> {
    /// What a successor knows the device by.
    pub(super) identity: &'a str,
    /// In bytes.
    pub(super) size: u64,
    /// In bytes.
    pub(super) block_size: u32,
    /// Transmission flags of the NBD protocol.
    pub(super) flags: u16,
    /// How long requests wait for another socket when the last one is dead.
    pub(super) dead_time: Duration,
}

/// A message to the kernel or from it: a command and its attributes.
#[derive(Clone, Debug)]
struct Message {
    command: u8,
    version: u8,
    attributes: Vec<DefaultNla>,
}

impl GenlFamily for Message {
    fn family_name() -> &'static str {
        "nbd"
    }

    fn command(&self) -> u8 {
        self.command
    }

    fn version(&self) -> u8 {
        self.version
    }
}

impl Emitable for Message {
    fn buffer_len(&self) -> usize {
        self.attributes.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.attributes.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Message {
    fn parse_with_param(bytes: &[u8], header: GenlHeader) -> Result<Self, DecodeError> {
        let attributes = NlasIterator::new(bytes);
        let attributes = attributes.map(|found| found.and_then(|nla| DefaultNla::parse(&nla)));
        let attributes = attributes.collect::<Result<_, _>>()?;
        Ok(Self { command: header.cmd, version: header.version, attributes })
    }
}

impl Message {
    /// The value of an attribute of a few bytes.
    fn value<const N: usize>(&self, kind: u16) -> Option<[u8; N]> {
        let found = self.attributes.iter().find(|attribute| attribute.kind() == kind)?;
        let mut value = vec![0; found.value_len()];
        found.emit_value(&mut value);
        value.try_into().ok()
    }
}

fn u32_of(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

fn u64_of(kind: u16, value: u64) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

fn nest(kind: u16, inner: &[DefaultNla]) -> DefaultNla {
    let mut value = vec![0; inner.buffer_len()];
    inner.emit(&mut value);
    DefaultNla::new(kind, value)
}

fn identity_of(identity: &str) -> DefaultNla {
    DefaultNla::new(BACKEND_IDENTIFIER, [identity.as_bytes(), &[0]].concat())
}

fn socket_list(socket: BorrowedFd<'_>) -> DefaultNla {
    // A descriptor that is open is not negative.
    let fd = socket.as_raw_fd().unsigned_abs();
    nest(SOCKETS, &[nest(SOCKET_ITEM, &[u32_of(SOCKET_FD, fd)])])
}

/// The way to the kernel's NBD client.
pub(super) struct Netlink {
    socket: Socket,
    family: u16,
    sequence: u32,
}

impl Netlink {
    /// Finds the kernel's NBD client.
    ///
    /// # Errors
    /// Of the kind `NotFound`: this kernel has no NBD client, or its module is not loaded.
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        SockRef::from(&socket).set_read_timeout(Some(ANSWER_TIME_MAX))?;
        let mut netlink = Self { socket, family: GENL_ID_CTRL, sequence: 0 };
        let name = DefaultNla::new(CTRL_ATTR_FAMILY_NAME, FAMILY.to_vec());
        let message = Message {
            command: CTRL_CMD_GETFAMILY,
            version: CONTROL_VERSION,
            attributes: vec![name],
        };
        let answers = netlink.exchange(message)?;
        let number = answers.iter().find_map(|answer| answer.value(CTRL_ATTR_FAMILY_ID));
        netlink.family = number.map(u16::from_ne_bytes).ok_or(io::ErrorKind::InvalidData)?;
        Ok(netlink)
    }

    /// Makes a device of a socket on which requests are answered: its number.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn connect(&mut self, it: &Setup<'_>, socket: BorrowedFd<'_>) -> io::Result<u32> {
        let answers = self.ask(
            CONNECT,
            vec![
                u64_of(SIZE_BYTES, it.size),
                u64_of(BLOCK_SIZE_BYTES, it.block_size.into()),
                // No request is too old: one that the kernel sends again while the first may yet be
                // carried out could put old data over newer.
                u64_of(TIMEOUT, 0),
                u64_of(DEAD_CONN_TIMEOUT, it.dead_time.as_secs()),
                u64_of(SERVER_FLAGS, it.flags.into()),
                identity_of(it.identity),
                socket_list(socket),
            ],
        )?;
        let index = answers.iter().find_map(|answer| answer.value(INDEX));
        index.map(u32::from_ne_bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Gives a device a socket in the place of one that is dead. The kernel says nothing if none
    /// is, and closes the new one. Nothing else is said with it: for another size, or other times,
    /// the kernel would first wait for the requests that the dead socket has not answered.
    ///
    /// # Errors
    /// The kernel refuses: the device is another's, for instance.
    pub(super) fn give_socket(
        &mut self,
        index: u32,
        identity: &str,
        socket: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let it = vec![u32_of(INDEX, index), identity_of(identity), socket_list(socket)];
        self.ask(RECONFIGURE, it).map(drop)
    }

    /// Gives a device another size, when the requests that are under way are answered.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn resize(
        &mut self,
        index: u32,
        identity: &str,
        size: u64,
        block_size: u32,
    ) -> io::Result<()> {
        let sizes = [u64_of(SIZE_BYTES, size), u64_of(BLOCK_SIZE_BYTES, block_size.into())];
        let mut it = vec![u32_of(INDEX, index), identity_of(identity)];
        it.extend(sizes);
        self.ask(RECONFIGURE, it).map(drop)
    }

    /// Ends a device; what it was asked and has not answered fails.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn disconnect(&mut self, index: u32) -> io::Result<()> {
        self.ask(DISCONNECT, vec![u32_of(INDEX, index)]).map(drop)
    }

    fn ask(&mut self, command: u8, attributes: Vec<DefaultNla>) -> io::Result<Vec<Message>> {
        self.exchange(Message { command, version: VERSION, attributes })
    }

    /// Asks, and takes the answers up to the acknowledgement.
    fn exchange(&mut self, message: Message) -> io::Result<Vec<Message>> {
        self.sequence += 1;
        let mut generic = GenlMessage::from_payload(message);
        generic.set_resolved_family_id(self.family);
        let mut request = NetlinkMessage::from(generic);
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK;
        request.header.sequence_number = self.sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let garbled = |error: DecodeError| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut answers = Vec::new();
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let answer: NetlinkMessage<GenlMessage<Message>> =
                    NetlinkMessage::deserialize(rest).map_err(garbled)?;
                let length = answer.header.length as usize;
                // What is left of a request that was given up is not for this one.
                if answer.header.sequence_number == self.sequence {
                    match answer.payload {
                        NetlinkPayload::Error(end) => {
                            let code = end.code.map(|code| code.get().unsigned_abs().cast_signed());
                            return code.map_or(Ok(answers), |code| {
                                Err(io::Error::from_raw_os_error(code))
                            });
                        }
                        NetlinkPayload::InnerMessage(inner) => answers.push(inner.payload),
                        _ => {}
                    }
                }
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn sockets_are_a_list_within_a_list() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let list = socket_list(one.as_fd());
        let mut bytes = vec![0; list.buffer_len()];
        list.emit(&mut bytes);
        let fd = one.as_raw_fd().to_ne_bytes();
        let expected: Vec<u8> = [[16_u16, SOCKETS], [12, SOCKET_ITEM], [8, SOCKET_FD]]
            .iter()
            .flatten()
            .flat_map(|word| word.to_ne_bytes())
            .chain(fd)
            .collect();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn an_answer_is_read_as_the_kernel_writes_it() {
        let attributes = [8_u16.to_ne_bytes(), INDEX.to_ne_bytes(), [7, 0], [0, 0]].concat();
        let header = GenlHeader { cmd: CONNECT, version: VERSION };
        let message = Message::parse_with_param(&attributes, header).unwrap();
        assert_eq!(message.value(INDEX).map(u32::from_ne_bytes), Some(7));
        assert_eq!(message.value::<8>(INDEX), None);
        assert_eq!(message.value::<4>(SIZE_BYTES), None);
        // Cut short.
        assert!(Message::parse_with_param(&attributes[..6], header).is_err());
    }

    /// Where the kernel has no such family, that is what is said.
    #[test]
    fn a_kernel_without_nbd_is_told_from_one_that_refuses() {
        match Netlink::open() {
            Ok(netlink) => assert_ne!(netlink.family, GENL_ID_CTRL),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}"),
        }
    }
}
