//! The options that say what a line is, shared by all that build or change one. The grammar is
//! `wanlab`'s, as in profile files; nothing is parsed here.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "clap prints these comments as help; their brackets are the command line's"
)]

use std::path::PathBuf;

use clap::Args;
use wanlab::{
    CaptureConfig, LabConfig, Profile, SNAP_BYTES_DEFAULT, SettingError, Settings, Topology,
};

use crate::cmd::Usage;

/// Defines a parser per option, as clap wants it.
macro_rules! setting {
    ($($name:ident),*) => {
        $(pub(crate) fn $name(value: &str) -> Result<Settings, SettingError> {
            Settings::one(stringify!($name), value)
        })*
    };
}

setting!(rate, rtt, delay, jitter, loss, burst, police, queue, ecn, classes, node);
setting!(seed, mtu, wmem, rmem, sysctl);

/// What a line can be set to.
#[derive(Debug, Clone, Args)]
pub(crate) struct LineArgs {
    /// Bits per second on the wire, Ethernet framing included: 1gbit, or 1gbit:100mbit for near to
    /// far and back; so do all options whose value is for a direction
    #[arg(long, value_parser = rate, allow_hyphen_values = true)]
    rate: Option<Settings>,
    /// Delay there and back, half of it each way: 20ms, 500us, 0
    #[arg(long, value_parser = rtt, value_name = "TIME", allow_hyphen_values = true,
          conflicts_with = "delay")]
    rtt: Option<Settings>,
    /// Delay one way instead: 10ms, 15ms:5ms
    #[arg(long, value_parser = delay, value_name = "TIME", allow_hyphen_values = true)]
    delay: Option<Settings>,
    /// How the delay varies: 2ms, or TIME[,uniform|normal|exponential][,hold=TIME][,reorder];
    /// packets keep their order unless it says reorder
    #[arg(long, value_parser = jitter, allow_hyphen_values = true)]
    jitter: Option<Settings>,
    /// Probability of each packet to be lost on the line [default: 0]
    #[arg(long, value_parser = loss, value_name = "P", allow_hyphen_values = true)]
    loss: Option<Settings>,
    /// Loss in bursts (Gilbert-Elliott): P,R[,H[,K]], the probabilities per packet to go from good
    /// to bad, to go back, to arrive in the bad state [0] and in the good one [1]
    #[arg(long, value_parser = burst, value_name = "P,R[,H[,K]]", allow_hyphen_values = true)]
    burst: Option<Settings>,
    /// Drops what exceeds a rate and a burst, before the queue: 200mbit, or RATE[,BURST] as in
    /// 200mbit,1M [default: none; a burst of 50 ms, at least 64k]
    #[arg(long, value_parser = police, value_name = "RATE[,BURST]", allow_hyphen_values = true)]
    police: Option<Settings>,
    /// What waits for the line before more is dropped: packets, or bytes as in 256k
    /// [default: 2000]
    #[arg(long, value_parser = queue, allow_hyphen_values = true)]
    queue: Option<Settings>,
    /// What may wait before congestion is told (RFC 3168): packets, or bytes as in 30k. Above it
    /// packets of ECN-capable senders are marked, others dropped [default: none]
    #[arg(long, value_parser = ecn, value_name = "THRESHOLD", allow_hyphen_values = true)]
    ecn: Option<Settings>,
    /// Classes by DSCP, each with a --queue and an --ecn of its own: strict,CLASS,... (the most
    /// urgent first) or weighted,CLASS=WEIGHT,...; CLASS is rest or DSCPs joined by + (ef, cs0 to
    /// cs7, af11 to af43, va, le, 0 to 63), as in strict,ef,rest or weighted,ef=4,rest=2,cs1+le=1
    /// [default: fifo]
    #[arg(long, value_parser = classes, allow_hyphen_values = true)]
    classes: Option<Settings>,
    /// Lines of some nodes of a star that are not as those of all: 3.rate=100mbit, 5-8.queue=64k;
    /// may be repeated
    #[arg(long, value_parser = node, value_name = "NODES.NAME=VALUE", allow_hyphen_values = true)]
    node: Vec<Settings>,
    /// Same seed, same losses [default: 1]
    #[arg(long, value_parser = seed, value_name = "N", allow_hyphen_values = true)]
    seed: Option<Settings>,
    /// Largest IP packet in bytes [default: 1500]
    #[arg(long, value_parser = mtu, value_name = "BYTES", allow_hyphen_values = true)]
    mtu: Option<Settings>,
    /// TCP send buffers (tcp_wmem): "min default max", or the max alone [default: 4k 16k 4M]
    #[arg(long, value_name = "SIZES", value_parser = wmem)]
    wmem: Option<Settings>,
    /// TCP receive buffers (tcp_rmem): "min default max", or the max alone [default: 4k 128k 6M]
    #[arg(long, value_name = "SIZES", value_parser = rmem)]
    rmem: Option<Settings>,
    /// Another sysctl of both ends, or of one: net.ipv4.tcp_sack=0, far.net.ipv4.tcp_ecn=1
    #[arg(long, value_name = "NAME=VALUE", value_parser = sysctl)]
    sysctl: Vec<Settings>,
}

impl LineArgs {
    /// All of them as one.
    pub(crate) fn settings(&self) -> Settings {
        let mut all = Settings::default();
        let given = [
            &self.rate,
            &self.rtt,
            &self.delay,
            &self.jitter,
            &self.loss,
            &self.burst,
            &self.police,
            &self.queue,
            &self.ecn,
            &self.classes,
            &self.seed,
            &self.mtu,
            &self.wmem,
            &self.rmem,
        ];
        for settings in given.into_iter().flatten().chain(&self.node).chain(&self.sysctl) {
            all.merge(settings.clone());
        }
        all
    }

    /// A new line, whose rate and delay must be given.
    pub(crate) fn config(&self) -> anyhow::Result<LabConfig> {
        if self.rate.is_none() {
            return Err(Usage::error("a rate is needed, as in --rate 1gbit (see --help)"));
        }
        if self.rtt.is_none() && self.delay.is_none() {
            return Err(Usage::error("a delay is needed, as in --rtt 20ms (see --help)"));
        }
        let config = self.settings().applied_to(&LabConfig::default());
        config.map_err(|error| Usage::error(error.to_string()))
    }
}

/// What goes with a line that is being built.
#[derive(Debug, Clone, Args)]
pub(crate) struct RecordArgs {
    /// Change the line with time: a file of lines like "10s loss=1e-3 rate=1gbit:10mbit"
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Log every packet into this pcapng file, an interface per direction, drops with their reason
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Bytes kept of each logged packet, Ethernet header included
    #[arg(long, value_name = "BYTES", default_value_t = SNAP_BYTES_DEFAULT, requires = "pcap",
          value_parser = clap::value_parser!(u32).range(34..=65_589))]
    snaplen: u32,
}

impl RecordArgs {
    /// Reads and checks the whole profile.
    pub(crate) fn profile(&self, line: &LabConfig, topology: Topology) -> anyhow::Result<Profile> {
        let Some(path) = &self.profile else {
            return Ok(Profile::default());
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| Usage::error(format!("profile {}: {error}", path.display())))?;
        Profile::parse(&text, line, topology)
            .map_err(|error| Usage::error(format!("{}: {error}", path.display())))
    }

    /// Where packets are logged.
    pub(crate) fn capture(&self) -> Option<CaptureConfig> {
        let path = self.pcap.clone()?;
        Some(CaptureConfig { path, snap_bytes: self.snaplen })
    }
}
