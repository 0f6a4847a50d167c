//! The TUN device of one namespace: offload, addresses, sysctls.
//!
//! Links are set up with `ioctl`. It needs a dozen lines where the asynchronous `rtnetlink` needs
//! a runtime, which would have to be started inside the namespace's thread; and a TUN device takes
//! no further netlink.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

use tracing::debug;

use crate::config::LabConfig;
use crate::lab::LabError;
use crate::sys;

/// The name of the device in both namespaces.
pub const DEVICE: &str = "wan0";

/// The near end.
pub const NEAR_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The far end.
pub const FAR_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The near end.
pub const NEAR_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// The far end.
pub const FAR_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);

const NETMASK_V4: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 252);
const PREFIX_V6: u32 = 64;

/// Packets between the kernel and the emulator. The emulator empties this at once and keeps its
/// own queue, so that senders meet DropTail and never this limit; it must only last while the
/// emulator's thread waits for a processor. The kernel's default of 500 is 8 ms at 700 kpps.
const DEVICE_QUEUE_PACKETS: libc::c_int = 16_384;

/// Takes the kernel some microseconds; on a machine with much else to do, more.
const ADDRESS_USABLE_WITHIN: Duration = Duration::from_secs(5);

/// A TUN device that ends with its descriptor.
#[derive(Debug)]
pub(crate) struct Tun {
    fd: OwnedFd,
}

impl Tun {
    /// Creates and configures the device in the namespace of the calling thread.
    pub(crate) fn new(v4: Ipv4Addr, v6: Ipv6Addr, config: &LabConfig) -> Result<Self, LabError> {
        let tun = Self::create().map_err(|source| LabError::Tun { source })?;
        // Before the device goes up: neither link-local addresses nor router solicitations, which
        // would be counted as traffic. A kernel without IPv6 has none of this, and no address.
        let ipv6 = fs::exists("/proc/sys/net/ipv6").unwrap_or(false);
        if ipv6 {
            set_sysctl(&format!("net/ipv6/conf/{DEVICE}/addr_gen_mode"), "1")?;
            set_sysctl(&format!("net/ipv6/conf/{DEVICE}/router_solicitations"), "0")?;
            set_sysctl(&format!("net/ipv6/conf/{DEVICE}/disable_ipv6"), "0")?;
        }
        set_sysctl("net/ipv4/tcp_wmem", &config.tcp_wmem.sysctl())?;
        set_sysctl("net/ipv4/tcp_rmem", &config.tcp_rmem.sysctl())?;
        let step = |what| move |source| LabError::Configure { what, source };
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(step("a socket"))?;
        let links = Links { socket: socket.as_raw_fd() };
        links.up("lo").map_err(step("loopback"))?;
        links.set_number(DEVICE, libc::SIOCSIFMTU, config.mtu as i32).map_err(step("mtu"))?;
        // Refused in a user namespace, where the kernel's default must do.
        if let Err(error) = links.set_number(DEVICE, libc::SIOCSIFTXQLEN, DEVICE_QUEUE_PACKETS) {
            debug!(%error, "device queue keeps its default length");
        }
        links.set_address(DEVICE, libc::SIOCSIFADDR, v4).map_err(step("IPv4 address"))?;
        links.set_address(DEVICE, libc::SIOCSIFNETMASK, NETMASK_V4).map_err(step("netmask"))?;
        links.up(DEVICE).map_err(step("the device"))?;
        if ipv6 {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).map_err(step("a socket"))?;
            let links = Links { socket: socket.as_raw_fd() };
            links.add_address_v6(DEVICE, v6).map_err(step("IPv6 address"))?;
            wait_until_usable(v6).map_err(step("IPv6 address"))?;
        }
        Ok(tun)
    }

    fn create() -> io::Result<Self> {
        let fd = sys::open(c"/dev/net/tun", libc::O_RDWR | libc::O_NONBLOCK)?;
        let mut request = request(DEVICE);
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
        // SAFETY: the request lives until the call returns.
        sys::check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
        let offload = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        // SAFETY: this request takes a number.
        sys::check(unsafe {
            libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offload))
        })?;
        Ok(Self { fd })
    }

    /// The next packet that the namespace sent, if there is one.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        sys::read(self.fd.as_fd(), buffer)
    }

    /// Hands a packet to the namespace.
    pub(crate) fn send(&self, packet: &[u8]) -> io::Result<usize> {
        sys::write(self.fd.as_fd(), packet)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits until the kernel lets sockets use a new address. There is nobody on this link to detect a
/// duplicate, but the kernel decides so in a work queue of its own.
fn wait_until_usable(v6: Ipv6Addr) -> io::Result<()> {
    let deadline = Instant::now() + ADDRESS_USABLE_WITHIN;
    loop {
        match UdpSocket::bind((v6, 0)) {
            Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(1));
            }
            bound => return bound.map(drop),
        }
    }
}

/// Reads a sysctl of the calling thread's network namespace, `net/ipv4/tcp_wmem` for example.
pub(crate) fn sysctl(name: &str) -> Result<String, LabError> {
    fs::read_to_string(format!("/proc/sys/{name}"))
        .map(|value| value.split_whitespace().collect::<Vec<_>>().join(" "))
        .map_err(|source| LabError::Sysctl { name: name.replace('/', "."), source })
}

fn set_sysctl(name: &str, value: &str) -> Result<(), LabError> {
    fs::write(format!("/proc/sys/{name}"), value)
        .map_err(|source| LabError::Sysctl { name: name.replace('/', "."), source })
}

/// The `ioctl` requests of netdevice(7), which go through any socket of the namespace.
struct Links {
    socket: RawFd,
}

impl Links {
    fn up(&self, device: &str) -> io::Result<()> {
        let mut request = request(device);
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        self.ioctl(libc::SIOCSIFFLAGS, &mut request)
    }

    fn set_number(&self, device: &str, what: libc::c_ulong, number: i32) -> io::Result<()> {
        let mut request = request(device);
        request.ifr_ifru.ifru_metric = number;
        self.ioctl(what, &mut request)
    }

    fn set_address(&self, device: &str, what: libc::c_ulong, v4: Ipv4Addr) -> io::Result<()> {
        let mut request = request(device);
        let mut address = [0; 14];
        address[2..6].copy_from_slice(&v4.octets().map(|byte| byte as libc::c_char));
        request.ifr_ifru.ifru_addr =
            libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: address };
        self.ioctl(what, &mut request)
    }

    fn add_address_v6(&self, device: &str, v6: Ipv6Addr) -> io::Result<()> {
        let mut request = request(device);
        self.ioctl(libc::SIOCGIFINDEX, &mut request)?;
        // SAFETY: the call above filled in the index.
        let index = unsafe { request.ifr_ifru.ifru_ifindex };
        let mut address = libc::in6_ifreq {
            ifr6_addr: libc::in6_addr { s6_addr: v6.octets() },
            ifr6_prefixlen: PREFIX_V6,
            ifr6_ifindex: index,
        };
        // SAFETY: an IPv6 socket takes an `in6_ifreq`, which lives until the call returns.
        let done =
            unsafe { libc::ioctl(self.socket, libc::SIOCSIFADDR as libc::Ioctl, &raw mut address) };
        sys::check(done).map(drop)
    }

    fn ioctl(&self, what: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: each request used here takes an `ifreq`, which lives until the call returns.
        let done =
            unsafe { libc::ioctl(self.socket, what as libc::Ioctl, std::ptr::from_mut(request)) };
        sys::check(done).map(drop)
    }
}

/// An empty request about a device; names are shorter than `IFNAMSIZ`.
fn request(device: &str) -> libc::ifreq {
    // SAFETY: all-zero bytes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request
}
