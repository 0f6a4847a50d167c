//! The network device below a connection, and its knobs that S0 tuned: offloads, interrupt
//! coalescing, rings. They are read for the evidence, and set only where somebody asked for it.

mod ioctl;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::Serialize;

use self::ioctl::Requests;

const GET_DRIVER: u32 = 0x03;
const GET_COALESCE: u32 = 0x0e;
const SET_COALESCE: u32 = 0x0f;
const GET_RING: u32 = 0x10;
const SET_RING: u32 = 0x11;
/// Words of `ethtool_drvinfo`, `ethtool_coalesce` and `ethtool_ringparam`.
const DRIVER_WORDS: usize = 49;
const COALESCE_WORDS: usize = 23;
const RING_WORDS: usize = 9;
/// Names of drivers that have a device only in memory.
const VIRTUAL: [&str; 7] = ["veth", "tun", "bridge", "bonding", "vxlan", "dummy", "macvlan"];

/// An offload that can be switched by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// Its short name, as ethtool(8)'s.
    pub name: &'static str,
    get: u32,
    set: u32,
}

/// The offloads that matter to a stream of large writes.
pub const OFFLOADS: [Offload; 6] = [
    Offload { name: "rx", get: 0x14, set: 0x15 },
    Offload { name: "tx", get: 0x16, set: 0x17 },
    Offload { name: "sg", get: 0x18, set: 0x19 },
    Offload { name: "tso", get: 0x1e, set: 0x1f },
    Offload { name: "gso", get: 0x23, set: 0x24 },
    Offload { name: "gro", get: 0x2b, set: 0x2c },
];

/// Words of `ethtool_coalesce`: a delay or a count before an interrupt.
pub const COALESCING: [(&str, usize); 4] =
    [("rx-usecs", 1), ("rx-frames", 2), ("tx-usecs", 5), ("tx-frames", 6)];

/// Words of `ethtool_ringparam`: the largest and the present size.
pub const RINGS: [(&str, usize, usize); 2] = [("rx", 1, 5), ("tx", 4, 8)];

/// A knob and what it stands at; the largest value where there is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Knob {
    /// Its name.
    pub name: &'static str,
    /// Its value; switches are 0 and 1.
    pub value: u32,
    /// The largest value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its driver, where it has one.
    pub driver: Option<String>,
    /// There is hardware behind it (of a machine or of a hypervisor).
    pub hardware: bool,
    /// Bits per second of its line; absent where it has none or no carrier.
    pub bits_per_s: Option<u64>,
    /// Largest IP packet.
    pub mtu_bytes: Option<u32>,
    /// Offloads that it can be asked about.
    pub offloads: Vec<Knob>,
    /// Interrupt coalescing, empty where it has none.
    pub coalescing: Vec<Knob>,
    /// Rings, empty where it has none.
    pub rings: Vec<Knob>,
    /// What it does not have, in words.
    pub note: Option<&'static str>,
}

/// Why a device could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EthtoolError {
    /// There is no such device in this network namespace.
    #[error("there is no network device {0}")]
    NoDevice(String),
    /// The kernel or the driver refused.
    #[error("{device}: {what}: {source}")]
    Refused {
        /// Which device.
        device: String,
        /// Which knob.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

/// What is to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// An offload on or off.
    Offload(Offload, bool),
    /// A word of [`COALESCING`] by its name.
    Coalescing(&'static str, u32),
    /// A ring of [`RINGS`] by its name.
    Ring(&'static str, u32),
}

/// The device that has an address, `None` if none of this namespace has.
pub fn device_of(address: IpAddr) -> Option<String> {
    addresses().into_iter().find(|(_, own)| *own == address.to_canonical()).map(|(name, _)| name)
}

impl Device {
    /// Reads what the device tells; what it cannot tell is absent.
    ///
    /// # Errors
    /// There is no such device, or no socket to ask through.
    pub fn read(name: &str) -> Result<Self, EthtoolError> {
        let folder = folder(name)?;
        let refused = |source| EthtoolError::Refused { device: name.into(), what: "ioctl", source };
        let requests = Requests::open().map_err(refused)?;
        let driver = driver(&requests, name);
        let hardware = folder.join("device").exists();
        let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok();
        // Virtual devices make up a speed: it is not a line's.
        let mbit = number("speed").filter(|mbit: &i64| hardware && *mbit > 0);
        Ok(Self {
            name: name.to_owned(),
            note: note(name, driver.as_deref(), hardware),
            driver,
            hardware,
            bits_per_s: mbit.and_then(|mbit| u64::try_from(mbit * 1_000_000).ok()),
            mtu_bytes: number("mtu").and_then(|mtu: i64| u32::try_from(mtu).ok()),
            offloads: offloads(&requests, name),
            coalescing: coalescing(&requests, name),
            rings: rings(&requests, name),
        })
    }
}

/// Changes one knob, and nothing else.
///
/// # Errors
/// There is no such device, it has no such knob, or the caller may not (CAP_NET_ADMIN).
pub fn change(name: &str, change: Change) -> Result<(), EthtoolError> {
    folder(name)?;
    let apply = || -> io::Result<()> {
        let requests = Requests::open()?;
        match change {
            Change::Offload(offload, on) => requests.call(name, &mut [offload.set, on.into()]),
            Change::Coalescing(knob, value) => {
                let mut words = [0; COALESCE_WORDS];
                words[0] = GET_COALESCE;
                requests.call(name, &mut words)?;
                words[0] = SET_COALESCE;
                let found = COALESCING.iter().find(|(own, _)| *own == knob);
                words[found.ok_or(io::ErrorKind::InvalidInput)?.1] = value;
                requests.call(name, &mut words)
            }
            Change::Ring(knob, value) => {
                let mut words = [0; RING_WORDS];
                words[0] = GET_RING;
                requests.call(name, &mut words)?;
                words[0] = SET_RING;
                let found = RINGS.iter().find(|(own, ..)| *own == knob);
                words[found.ok_or(io::ErrorKind::InvalidInput)?.2] = value;
                requests.call(name, &mut words)
            }
        }
    };
    let what = match change {
        Change::Offload(offload, _) => offload.name,
        Change::Coalescing(knob, _) | Change::Ring(knob, _) => knob,
    };
    apply().map_err(|source| EthtoolError::Refused { device: name.into(), what, source })
}

/// The device's folder in sysfs, which is that of this network namespace only where sysfs is
/// mounted in it; so the ioctl has the last word.
fn folder(name: &str) -> Result<PathBuf, EthtoolError> {
    let known = addresses().iter().any(|(own, _)| own == name);
    let folder = PathBuf::from("/sys/class/net").join(name);
    let plain = !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != "..";
    if plain && (known || folder.exists()) {
        Ok(folder)
    } else {
        Err(EthtoolError::NoDevice(name.to_owned()))
    }
}

fn driver(requests: &Requests, name: &str) -> Option<String> {
    let mut words = [0; DRIVER_WORDS];
    words[0] = GET_DRIVER;
    requests.call(name, &mut words).ok()?;
    let bytes: Vec<u8> = words[1..9].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    Some(String::from_utf8_lossy(name).into_owned()).filter(|name| !name.is_empty())
}

fn note(name: &str, driver: Option<&str>, hardware: bool) -> Option<&'static str> {
    if name == "lo" {
        return Some("loopback: no line, no interrupts, no rings");
    }
    let virtual_driver = driver.is_some_and(|driver| VIRTUAL.contains(&driver));
    (virtual_driver || !hardware)
        .then_some("a virtual device: no interrupts to coalesce, no rings, its speed is no line's")
}

fn offloads(requests: &Requests, name: &str) -> Vec<Knob> {
    let read = |offload: &Offload| {
        let mut words = [offload.get, 0];
        requests.call(name, &mut words).ok()?;
        Some(Knob { name: offload.name, value: words[1], max: None })
    };
    OFFLOADS.iter().filter_map(read).collect()
}

fn coalescing(requests: &Requests, name: &str) -> Vec<Knob> {
    let mut words = [0; COALESCE_WORDS];
    words[0] = GET_COALESCE;
    if requests.call(name, &mut words).is_err() {
        return Vec::new();
    }
    COALESCING.iter().map(|(name, at)| Knob { name, value: words[*at], max: None }).collect()
}

fn rings(requests: &Requests, name: &str) -> Vec<Knob> {
    let mut words = [0; RING_WORDS];
    words[0] = GET_RING;
    if requests.call(name, &mut words).is_err() {
        return Vec::new();
    }
    let knob = |(name, max, now): &(&'static str, usize, usize)| Knob {
        name,
        value: words[*now],
        max: Some(words[*max]),
    };
    RINGS.iter().map(knob).collect()
}

/// Every device of this network namespace with each of its addresses.
fn addresses() -> Vec<(String, IpAddr)> {
    let mut found = Vec::new();
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the kernel's list is written to a pointer of ours, and freed below by its own
    // function.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return found;
    }
    let mut next = list;
    while !next.is_null() {
        // SAFETY: not null, so it is an element of the list, which is not yet freed.
        let entry = unsafe { &*next };
        // SAFETY: every element has a name that ends with a zero.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
        if let Some(address) = address(entry.ifa_addr) {
            found.push((name.to_string_lossy().into_owned(), address));
        }
        next = entry.ifa_next;
    }
    // SAFETY: it came from `getifaddrs`, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    found
}

fn address(socket: *const libc::sockaddr) -> Option<IpAddr> {
    if socket.is_null() {
        return None;
    }
    // SAFETY: not null, so it begins with a family, which says what structure it is.
    match i32::from(unsafe { (*socket).sa_family }) {
        libc::AF_INET => {
            // SAFETY: an address of AF_INET is a `sockaddr_in`.
            let bits = unsafe { (*socket.cast::<libc::sockaddr_in>()).sin_addr.s_addr };
            Some(IpAddr::from(bits.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: an address of AF_INET6 is a `sockaddr_in6`.
            let octets = unsafe { (*socket.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr };
            Some(IpAddr::from(octets))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_says_what_it_is() {
        assert_eq!(device_of("127.0.0.1".parse().unwrap()).as_deref(), Some("lo"));
        assert_eq!(device_of("192.0.2.77".parse().unwrap()), None);
        let device = Device::read("lo").unwrap();
        assert!(!device.hardware);
        assert_eq!((device.bits_per_s, device.mtu_bytes), (None, Some(65_536)));
        assert!(device.note.unwrap().contains("loopback"));
        assert!(device.coalescing.is_empty() && device.rings.is_empty());
        assert!(device.offloads.iter().any(|knob| knob.name == "tso" && knob.value == 1));
    }

    #[test]
    fn what_is_not_there_is_refused() {
        for name in ["", ".", "..", "a/b", "nosuchdev0", "a-name-that-is-far-too-long"] {
            assert!(matches!(Device::read(name), Err(EthtoolError::NoDevice(_))), "{name}");
        }
        let refused = change("lo", Change::Coalescing("rx-usecs", 50)).unwrap_err();
        assert!(matches!(refused, EthtoolError::Refused { what: "rx-usecs", .. }), "{refused}");
    }
}
