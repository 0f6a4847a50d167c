//! Packets of this machine: an AF_PACKET socket that a filter in the kernel limits to one TCP port
//! (packet(7)). It hands out IP packets without link headers, so every kind of device is alike.

use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// The largest packet that is taken whole: IPv4 with segmentation offload.
pub const PACKET_BYTES_MAX: usize = 65_600;
/// Packets of one system call.
const BATCH: usize = 32;
/// Room for what comes while we write: 64 MB, as far as the system allows.
const RECEIVE_BUFFER_BYTES: libc::c_int = 64 << 20;
/// Room for a timestamp beside each packet.
const CONTROL_BYTES: usize = 64;
/// Loopback devices (ARPHRD_LOOPBACK) show each packet leaving and arriving.
const ARPHRD_LOOPBACK: u16 = 772;

/// An open socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    buffers: Vec<Vec<u8>>,
}

/// One packet.
#[derive(Debug)]
pub struct Packet<'a> {
    /// When the kernel saw it, nanoseconds since 1970.
    pub time_ns: u64,
    /// Its length on the wire, from the IP header on.
    pub wire_len: u32,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl Socket {
    /// Opens it on one device or all, for TCP packets from or to `port`. Needs CAP_NET_RAW.
    ///
    /// # Errors
    /// Those of the system calls; an unknown device.
    pub fn open(interface: Option<&str>, port: u16) -> io::Result<Self> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // No protocol yet: nothing is to be received before the filter is there.
        // SAFETY: socket() takes no pointers.
        let raw = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let socket = Self { fd, buffers: vec![vec![0; PACKET_BYTES_MAX]; BATCH] };
        let filter = filter(port);
        let program =
            libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        socket.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
        let one: libc::c_int = 1;
        socket.set(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &one)?;
        let bytes = RECEIVE_BUFFER_BYTES;
        if socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes).is_err() {
            socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes)?;
        }
        socket.bind(interface)?;
        Ok(socket)
    }

    fn set<T>(&self, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
        let length = size_of::<T>() as libc::socklen_t;
        let pointer = (value as *const T).cast();
        // SAFETY: `value` outlives the call and `length` is its size.
        let done = unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, name, pointer, length) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn bind(&self, interface: Option<&str>) -> io::Result<()> {
        let index = match interface {
            None => 0,
            Some(name) => {
                let name = CString::new(name).map_err(io::Error::other)?;
                // SAFETY: the name is a string that ends with zero and outlives the call.
                match unsafe { libc::if_nametoindex(name.as_ptr()) } {
                    0 => return Err(io::Error::last_os_error()),
                    index => index,
                }
            }
        };
        // SAFETY: all zeros are a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index as i32;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        let pointer = (&raw const address).cast();
        // SAFETY: the address outlives the call and `length` is its size.
        let done = unsafe { libc::bind(self.fd.as_raw_fd(), pointer, length) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits for packets, at most so long, and hands each to `each`. Returns how many there were.
    ///
    /// # Errors
    /// Those of poll(2) and recvmsg(2); a signal is none.
    pub fn receive(
        &mut self,
        wait: Duration,
        mut each: impl FnMut(&Packet<'_>) -> io::Result<()>,
    ) -> io::Result<usize> {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let wait_ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one pollfd, which outlives the call.
        if unsafe { libc::poll(&raw mut poll, 1, wait_ms) } < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) };
        }
        let mut count = 0;
        let fd = self.fd.as_raw_fd();
        for buffer in &mut self.buffers {
            match receive_one(fd, buffer) {
                Ok(Some((time_ns, wire_len))) => {
                    let kept = buffer.len().min(wire_len as usize);
                    each(&Packet { time_ns, wire_len, bytes: &buffer[..kept] })?;
                    count += 1;
                }
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A device that went down: others may go on, and so may it.
                Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    /// Packets that the kernel had no room for since the last call.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn take_lost(&self) -> io::Result<u64> {
        let mut counts = [0_u32; 2]; // struct tpacket_stats: packets, drops
        let mut length = size_of::<[u32; 2]>() as libc::socklen_t;
        let (level, name) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        let pointer = (&raw mut counts).cast();
        // SAFETY: both pointers outlive the call and `length` is the array's size.
        let done =
            unsafe { libc::getsockopt(self.fd.as_raw_fd(), level, name, pointer, &raw mut length) };
        if done == 0 { Ok(u64::from(counts[1])) } else { Err(io::Error::last_os_error()) }
    }
}

/// Time and length of the next packet, whose bytes are in `buffer`; `None` for one that is seen
/// twice.
fn receive_one(fd: libc::c_int, buffer: &mut [u8]) -> io::Result<Option<(u64, u32)>> {
    // Aligned like a cmsghdr, which the kernel writes here.
    let mut control = [0_u64; CONTROL_BYTES / 8];
    // SAFETY: all zeros are valid for these plain structs.
    let (mut address, mut message): (libc::sockaddr_ll, libc::msghdr) =
        unsafe { (zeroed(), zeroed()) };
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    message.msg_name = (&raw mut address).cast();
    message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES;
    // SAFETY: every pointer in `message` is to a local or to `buffer`, with its length beside it.
    let length =
        unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT | libc::MSG_TRUNC) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    if address.sll_hatype == ARPHRD_LOOPBACK && address.sll_pkttype == libc::PACKET_OUTGOING {
        return Ok(None);
    }
    Ok(Some((timestamp_ns(&message), u32::try_from(length).unwrap_or(u32::MAX))))
}

fn timestamp_ns(message: &libc::msghdr) -> u64 {
    // SAFETY: the kernel filled the control data; the CMSG functions stay within its length.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let kind = ((*header).cmsg_level, (*header).cmsg_type);
            if kind == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
                let time: libc::timespec = std::ptr::read_unaligned(libc::CMSG_DATA(header).cast());
                return time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_nanos() as u64
}

/// Classic BPF: TCP over IPv4 (no fragments but the first) or IPv6, from or to the port.
fn filter(port: u16) -> Vec<libc::sock_filter> {
    const LD_B: u16 = 0x30; // A = byte at k
    const LD_H: u16 = 0x28; // A = half word at k
    const LD_H_X: u16 = 0x48; // A = half word at X + k
    const LDX_IHL: u16 = 0xb1; // X = 4 * (byte at k & 15)
    const RSH: u16 = 0x74;
    const JEQ: u16 = 0x15;
    const JSET: u16 = 0x45;
    const RET: u16 = 0x06;
    let port = u32::from(port);
    let tcp = libc::IPPROTO_TCP as u32;
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    vec![
        op(LD_B, 0, 0, 0),
        op(RSH, 0, 0, 4),
        op(JEQ, 0, 9, 4), // IPv4, else to 12
        op(LD_B, 0, 0, 9),
        op(JEQ, 0, 15, tcp), // else to 20
        op(LD_H, 0, 0, 6),
        op(JSET, 13, 0, 0x1fff), // a later fragment: to 20
        op(LDX_IHL, 0, 0, 0),
        op(LD_H_X, 0, 0, 0),
        op(JEQ, 9, 0, port), // to 19
        op(LD_H_X, 0, 0, 2),
        op(JEQ, 7, 8, port), // to 19, else to 20
        op(JEQ, 0, 7, 6),    // IPv6, else to 20
        op(LD_B, 0, 0, 6),
        op(JEQ, 0, 5, tcp), // else to 20
        op(LD_H, 0, 0, 40),
        op(JEQ, 2, 0, port), // to 19
        op(LD_H, 0, 0, 42),
        op(JEQ, 0, 1, port), // to 19, else to 20
        op(RET, 0, 0, u32::MAX),
        op(RET, 0, 0, 0),
    ]
}

/// Gives up root for the user who called sudo, or for nobody: what comes from the network is
/// decoded without rights. Call it when everything is open.
///
/// # Errors
/// Those of the system calls; nothing happens for whoever is not root.
pub fn drop_privileges() -> io::Result<()> {
    const NOBODY: u32 = 65_534;
    // SAFETY: takes nothing, cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(());
    }
    let id = |name| {
        let value = std::env::var(name).ok().and_then(|value| value.parse().ok());
        value.filter(|&id| id != 0).unwrap_or(NOBODY)
    };
    let (user, group) = (id("SUDO_UID"), id("SUDO_GID"));
    let check = |done: libc::c_int| match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: no pointers but an empty list; glibc changes all threads alike.
    unsafe {
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(group, group, group))?;
        check(libc::setresuid(user, user, user))?;
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    }
}
