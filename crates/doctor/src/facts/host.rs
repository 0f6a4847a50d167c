//! The host: sysctls of TCP (Documentation/networking/ip-sysctl.rst), network devices
//! (Documentation/ABI/testing/sysfs-class-net), queueing disciplines as `tc -j qdisc show` prints
//! them, and whether the processor can sum CRC32C by itself.

use std::collections::BTreeMap;

use serde::Serialize;

use super::files::{Files, Read, clean, number, word};

/// The settings that are looked at, as sysctl(8) names them.
pub const SYSCTLS: [&str; 13] = [
    "net.core.default_qdisc",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.tcp_allowed_congestion_control",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
];
/// Devices that are looked at: a host with containers has thousands.
const DEVICES_MAX: usize = 64;

/// A host.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Host {
    /// Settings by name.
    pub sysctls: BTreeMap<String, String>,
    /// Network devices.
    pub devices: Vec<Nic>,
    /// The processor has an instruction for CRC32C; absent where that could not be read.
    pub crc_in_hardware: Option<bool>,
}

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// Its driver.
    pub driver: Option<String>,
    /// Rate of its line in Mbit/s; absent where it has none: virtual devices make one up.
    pub mbit_per_s: Option<u64>,
    /// False: one direction at a time.
    pub full_duplex: Option<bool>,
    /// Largest packet.
    pub mtu_bytes: Option<u64>,
    /// Packets that came in damaged.
    pub receive_errors: Option<u64>,
    /// Packets that came in and found no room.
    pub receive_drops: Option<u64>,
    /// Packets that came in, all of them.
    pub received_packets: Option<u64>,
    /// The discipline at its root, or that of its queues.
    pub qdisc: Option<String>,
    /// Offloads that are off, as ethtool(8) names them.
    pub offloads_off: Vec<String>,
}

impl Host {
    /// A setting that is one number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.sysctls.get(name)?.parse().ok()
    }

    /// The third number of `tcp_rmem` or `tcp_wmem`: the most that a socket gets by itself.
    pub fn buffer_max(&self, name: &str) -> Option<f64> {
        self.sysctls.get(name)?.split_whitespace().nth(2)?.parse().ok()
    }

    /// Whether a setting has a word in it.
    pub fn has_word(&self, name: &str, wanted: &str) -> Option<bool> {
        Some(self.sysctls.get(name)?.split_whitespace().any(|word| word == wanted))
    }

    /// A device by its name.
    pub fn device(&self, name: &str) -> Option<&Nic> {
        self.devices.iter().find(|device| device.name == name)
    }
}

/// Reads settings, devices and processor.
pub fn host(files: &dyn Files) -> Host {
    let setting = |name: &str| {
        let path = format!("proc/sys/{}", name.replace('.', "/"));
        Some((
            name.to_owned(),
            word(files, &path)?.split_whitespace().collect::<Vec<_>>().join(" "),
        ))
    };
    let names = files.names("sys/class/net");
    Host {
        sysctls: SYSCTLS.into_iter().filter_map(setting).collect(),
        devices: names.iter().take(DEVICES_MAX).map(|name| device(files, name)).collect(),
        crc_in_hardware: crc_in_hardware(files),
    }
}

fn device(files: &dyn Files, name: &str) -> Nic {
    let path = |attribute: &str| format!("sys/class/net/{name}/{attribute}");
    let count = |attribute: &str| number(files, &path(&format!("statistics/{attribute}")));
    let driver = files.link(&path("device/driver"));
    Nic {
        name: name.to_owned(),
        // -1 is the kernel's "unknown", and no number here.
        mbit_per_s: number(files, &path("speed")).filter(|mbit| driver.is_some() && *mbit > 0),
        driver,
        full_duplex: match word(files, &path("duplex")).as_deref() {
            Some("full") => Some(true),
            Some("half") => Some(false),
            _ => None,
        },
        mtu_bytes: number(files, &path("mtu")),
        receive_errors: count("rx_errors"),
        receive_drops: count("rx_dropped"),
        received_packets: count("rx_packets"),
        qdisc: None,
        offloads_off: Vec::new(),
    }
}

fn crc_in_hardware(files: &dyn Files) -> Option<bool> {
    let Read::Text(text) = files.read("proc/cpuinfo") else { return None };
    let is_flags = |line: &&str| line.starts_with("flags") || line.starts_with("Features");
    let flags = text.lines().find(is_flags)?;
    Some(flags.split_whitespace().any(|flag| flag == "sse4_2" || flag == "crc32"))
}

/// Sets each device's discipline from what `tc -j qdisc show` printed; false if that is not it.
pub fn add_qdiscs(host: &mut Host, text: &str) -> bool {
    let Ok(serde_json::Value::Array(list)) = serde_json::from_str(text) else { return false };
    for one in &list {
        let word = |field: &str| one[field].as_str().unwrap_or_default();
        let Some(device) = host.devices.iter_mut().find(|device| device.name == word("dev")) else {
            continue;
        };
        // A device of many queues has one each below a root that only holds them together.
        let is_root = one["root"].as_bool() == Some(true);
        let below = device.qdisc.as_deref() == Some("mq");
        if is_root || below {
            device.qdisc = Some(clean(word("kind")));
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::files::tests::Tree;
    use super::*;

    #[test]
    fn a_host_is_read() {
        let tree = Tree::of(
            "proc/sys/net/ipv4/tcp_rmem: 4096\t131072\t6291456
             proc/sys/net/ipv4/tcp_available_congestion_control: reno cubic bbr
             proc/sys/net/core/rmem_max: 212992
             proc/sys/net/core/wmem_max: !
             proc/cpuinfo: flags\t\t: fpu sse4_2 avx
             sys/class/net/eth0/speed: 1000
             sys/class/net/eth0/duplex: full
             sys/class/net/eth0/mtu: 1500
             sys/class/net/eth0/device/driver: ->../../../../bus/pci/drivers/igb
             sys/class/net/eth0/statistics/rx_dropped: 12
             sys/class/net/veth1/speed: 10000
             sys/class/net/wlan0/speed: -1
             sys/class/net/wlan0/device/driver: ->drivers/x",
        );
        let mut host = host(&tree);
        assert_eq!(host.buffer_max("net.ipv4.tcp_rmem"), Some(6_291_456.0));
        assert_eq!(host.number("net.core.rmem_max"), Some(212_992.0));
        assert_eq!(host.number("net.core.wmem_max"), None);
        assert_eq!(host.has_word("net.ipv4.tcp_available_congestion_control", "bbr"), Some(true));
        assert_eq!(host.crc_in_hardware, Some(true));
        let eth0 = host.device("eth0").unwrap();
        assert_eq!((eth0.mbit_per_s, eth0.full_duplex), (Some(1000), Some(true)));
        assert_eq!((eth0.driver.as_deref(), eth0.receive_drops), (Some("igb"), Some(12)));
        assert_eq!(host.device("veth1").unwrap().mbit_per_s, None, "it has no line");
        assert_eq!(host.device("wlan0").unwrap().mbit_per_s, None);
        let tc = r#"[{"kind":"noqueue","dev":"lo","root":true},
            {"kind":"mq","handle":"0:","dev":"eth0","root":true},
            {"kind":"fq_codel","handle":"0:","dev":"eth0","parent":":1"},
            {"kind":"pfifo_fast","handle":"0:","dev":"veth1","root":true},
            {"kind":"ingress","handle":"ffff:","dev":"veth1","parent":"ffff:fff1"}]"#;
        assert!(add_qdiscs(&mut host, tc));
        assert_eq!(host.device("eth0").unwrap().qdisc.as_deref(), Some("fq_codel"));
        assert_eq!(host.device("veth1").unwrap().qdisc.as_deref(), Some("pfifo_fast"));
        for broken in ["", "{}", "[1, null, {\"dev\": 7}]", "Cannot open netlink socket"] {
            let read = add_qdiscs(&mut host, broken);
            assert_eq!(read, broken.starts_with('['), "{broken}");
        }
    }
}
