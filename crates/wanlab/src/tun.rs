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
use crate::settings::Side;
use crate::sys;

/// The name of the device in both namespaces; the second network's of a star is `wan1`.
pub const DEVICE: &str = "wan0";

/// The near end.
pub const NEAR_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The far end.
pub const FAR_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The near end.
pub const NEAR_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// The far end.
pub const FAR_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);

/// Of a pair: four addresses.
const PAIR_PREFIX_V4: u32 = 30;
/// Of a star's network.
const STAR_PREFIX_V4: u32 = 24;
const PREFIX_V6: u32 = 64;

/// What a device is called and which addresses it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Port {
    network: u8,
    prefix_v4: u32,
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Ipv6Addr,
}

impl Port {
    pub(crate) const NEAR: Self =
        Self { network: 0, prefix_v4: PAIR_PREFIX_V4, v4: NEAR_V4, v6: NEAR_V6 };
    pub(crate) const FAR: Self =
        Self { network: 0, prefix_v4: PAIR_PREFIX_V4, v4: FAR_V4, v6: FAR_V6 };

    /// Of a star: network k is `10.(77+k).0.0/24` and `fd(77+k)::/64`, node n (from 1) ends in n.
    pub(crate) const fn star(network: u8, node: u8) -> Self {
        let group = 0xfd77 + network as u16;
        Self {
            network,
            prefix_v4: STAR_PREFIX_V4,
            v4: Ipv4Addr::new(10, 77 + network, 0, node),
            v6: Ipv6Addr::new(group, 0, 0, 0, 0, 0, 0, node as u16),
        }
    }

    fn device(&self) -> String {
        format!("wan{}", self.network)
    }

    fn netmask_v4(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::MAX << (32 - self.prefix_v4))
    }
}

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
    pub(crate) fn new(port: Port, mtu: u32) -> Result<Self, LabError> {
        let device = port.device();
        let device = device.as_str();
        let tun = Self::create(device).map_err(|source| LabError::Tun { source })?;
        // Before the device goes up: neither link-local addresses nor router solicitations, which
        // would be counted as traffic. A kernel without IPv6 has none of this, and no address.
        let ipv6 = fs::exists("/proc/sys/net/ipv6").unwrap_or(false);
        if ipv6 {
            set_sysctl(&format!("net/ipv6/conf/{device}/addr_gen_mode"), "1")?;
            set_sysctl(&format!("net/ipv6/conf/{device}/router_solicitations"), "0")?;
            set_sysctl(&format!("net/ipv6/conf/{device}/disable_ipv6"), "0")?;
        }
        let step = |what| move |source| LabError::Configure { what, source };
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(step("a socket"))?;
        let links = Links { socket: socket.as_raw_fd() };
        links.up("lo").map_err(step("loopback"))?;
        links.set_number(device, libc::SIOCSIFMTU, mtu as i32).map_err(step("mtu"))?;
        // Refused in a user namespace, where the kernel's default must do.
        if let Err(error) = links.set_number(device, libc::SIOCSIFTXQLEN, DEVICE_QUEUE_PACKETS) {
            debug!(%error, "device queue keeps its default length");
        }
        links.set_address(device, libc::SIOCSIFADDR, port.v4).map_err(step("IPv4 address"))?;
        links
            .set_address(device, libc::SIOCSIFNETMASK, port.netmask_v4())
            .map_err(step("netmask"))?;
        links.up(device).map_err(step("the device"))?;
        if ipv6 {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).map_err(step("a socket"))?;
            let links = Links { socket: socket.as_raw_fd() };
            links.add_address_v6(device, port.v6).map_err(step("IPv6 address"))?;
            wait_until_usable(port.v6).map_err(step("IPv6 address"))?;
        }
        Ok(tun)
    }

    fn create(device: &str) -> io::Result<Self> {
        let fd = sys::open(c"/dev/net/tun", libc::O_RDWR | libc::O_NONBLOCK)?;
        let mut request = request(device);
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

/// Sets the TCP buffers and other sysctls of the calling thread's network namespace.
pub(crate) fn set_sysctls(config: &LabConfig, sides: &[Side]) -> Result<(), LabError> {
    set_sysctl("net/ipv4/tcp_wmem", &config.tcp_wmem.sysctl())?;
    set_sysctl("net/ipv4/tcp_rmem", &config.tcp_rmem.sysctl())?;
    for wanted in config.sysctls.iter().filter(|wanted| sides.contains(&wanted.side)) {
        set_sysctl(&wanted.path(), &wanted.value)?;
    }
    Ok(())
}

/// Changes the MTU of all devices of the calling thread's network namespace that are the lab's.
pub(crate) fn set_mtu(ports: &[Port], mtu: u32) -> Result<(), LabError> {
    let step = |source| LabError::Configure { what: "mtu", source };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(step)?;
    let links = Links { socket: socket.as_raw_fd() };
    for port in ports {
        links.set_number(&port.device(), libc::SIOCSIFMTU, mtu as i32).map_err(step)?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stars_addresses() {
        let port = Port::star(1, 5);
        assert_eq!(port.device(), "wan1");
        assert_eq!(
            (port.v4.to_string(), port.v6.to_string()),
            ("10.78.0.5".into(), "fd78::5".into())
        );
        assert_eq!(port.netmask_v4().to_string(), "255.255.255.0");
        assert_eq!(Port::NEAR.netmask_v4().to_string(), "255.255.255.252");
    }
}
