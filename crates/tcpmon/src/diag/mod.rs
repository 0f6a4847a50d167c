//! The kernel's table of TCP connections, by NETLINK_SOCK_DIAG (sock_diag(7)): no root needed, and
//! nothing is changed. It sees the network namespace that the process was in when it opened the
//! socket.

mod filter;
mod owner;
mod wire;

use std::io;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};

pub use self::filter::Filter;
pub use self::owner::{Owner, Owners, same_network_namespace, sockets_of};
use crate::sample::{Connection, Sample};

/// Connections that one look returns; more are counted, not kept.
pub const CONNECTIONS_MAX: usize = 4096;
/// A kernel that has not answered by then will not.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A table that changed under the kernel's hands is read again this often.
const DUMP_TRIES: u32 = 3;

/// Why the kernel's table could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiagError {
    /// The socket or a request failed.
    #[error("sock_diag: {0}")]
    Io(#[from] io::Error),
    /// The answer is no netlink message.
    #[error("sock_diag: an answer of {0} bytes makes no sense")]
    Garbled(usize),
}

/// What one look saw.
#[derive(Debug, Default)]
pub struct Look {
    /// The connections, in the kernel's order.
    pub samples: Vec<Sample>,
    /// Connections beyond [`CONNECTIONS_MAX`].
    pub left_out: usize,
    /// The table changed while it was read, so that a connection may be missing or there twice.
    pub interrupted: bool,
}

/// A socket to the kernel's table.
pub struct SockDiag {
    socket: Socket,
    sequence: u32,
    begin: Instant,
    /// Kernels before 4.16 do not know the port conditions of the filter's program.
    filters_in_kernel: bool,
}

impl SockDiag {
    /// Opens it in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel has no NETLINK_SOCK_DIAG, or a sandbox refuses it.
    pub fn open() -> Result<Self, DiagError> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        set_receive_timeout(&socket)?;
        Ok(Self { socket, sequence: 0, begin: Instant::now(), filters_in_kernel: true })
    }

    /// Microseconds since it was opened: the clock of [`Sample::at_us`].
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// All connections that the filter wants, of IPv4 and IPv6.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub fn look(&mut self, filter: &Filter) -> Result<Look, DiagError> {
        let mut look = Look::default();
        for _ in 0..DUMP_TRIES {
            look = self.dump(filter)?;
            if !look.interrupted {
                break;
            }
        }
        Ok(look)
    }

    fn dump(&mut self, filter: &Filter) -> Result<Look, DiagError> {
        let mut look = Look::default();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let family = u8::try_from(family).unwrap_or_default();
            match self.dump_family(family, filter, &mut look) {
                Err(DiagError::Io(error))
                    if self.filters_in_kernel && error.raw_os_error() == Some(libc::EINVAL) =>
                {
                    self.filters_in_kernel = false;
                    self.dump_family(family, filter, &mut look)?;
                }
                other => other?,
            }
        }
        Ok(look)
    }

    fn dump_family(
        &mut self,
        family: u8,
        filter: &Filter,
        look: &mut Look,
    ) -> Result<(), DiagError> {
        let sequence = self.next_sequence();
        self.send(&wire::dump(family, filter, self.filters_in_kernel, sequence))?;
        let at_us = self.now_us();
        self.answers(sequence, |flags, payload| {
            look.interrupted |= flags & NLM_F_DUMP_INTR != 0;
            if let Some(sample) = wire::sample(payload, at_us)
                && filter.wants(&sample.connection)
            {
                if look.samples.len() < CONNECTIONS_MAX {
                    look.samples.push(sample);
                } else {
                    look.left_out += 1;
                }
            }
            true
        })
    }

    /// One connection, much cheaper than the table; `None` if it is gone.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub fn one(&mut self, connection: &Connection) -> Result<Option<Sample>, DiagError> {
        let sequence = self.next_sequence();
        self.send(&wire::one(connection, sequence))?;
        let at_us = self.now_us();
        let mut found = None;
        let asked = self.answers(sequence, |_, payload| {
            found = wire::sample(payload, at_us);
            false
        });
        match asked {
            Err(DiagError::Io(error))
                if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) =>
            {
                Ok(None)
            }
            asked => asked.map(|()| found),
        }
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    fn send(&self, message: &[u8]) -> Result<(), DiagError> {
        self.socket.send(message, 0)?;
        Ok(())
    }

    /// Hands the answers to `each` until it says that it was the last or the kernel does.
    fn answers(
        &self,
        sequence: u32,
        mut each: impl FnMut(u16, &[u8]) -> bool,
    ) -> Result<(), DiagError> {
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let message =
                    NetlinkBuffer::new_checked(rest).map_err(|_| DiagError::Garbled(rest.len()))?;
                let length = usize::try_from(message.length()).unwrap_or(usize::MAX);
                // What is left of a request that failed half-way is not for this one.
                if message.sequence_number() == sequence {
                    match message.message_type() {
                        NLMSG_DONE => return ended(message.payload()),
                        NLMSG_ERROR => return ended(message.payload()),
                        _ if !each(message.flags(), message.payload()) => return Ok(()),
                        _ => {}
                    }
                }
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

/// An error or the end of a table carries a negative error number, or 0 where all is well.
fn ended(payload: &[u8]) -> Result<(), DiagError> {
    let code = payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
    if code >= 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code.saturating_neg()).into()) }
}

fn set_receive_timeout(socket: &Socket) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let timeout = libc::timeval {
        tv_sec: i64::try_from(ANSWER_TIMEOUT.as_secs()).unwrap_or(i64::MAX),
        tv_usec: 0,
    };
    let length = u32::try_from(size_of_val(&timeout)).unwrap_or_default();
    // SAFETY: the descriptor is the socket's own, and the option's value is a `timeval` that lives
    // across the call and has the given length.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const timeout).cast(),
            length,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
