//! The options that choose connections, shared by `monitor` and `diagnose`.

use std::net::IpAddr;

use tcpmon::diag::Filter;
use tcpmon::watch::{Selection, WatchError};

use crate::cmd::Usage;

/// Which connections; all that is given must hold.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SelectArgs {
    /// Connections from or to this TCP port (iSCSI's is 3260).
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Connections from or to this address, IPv4 or IPv6.
    #[arg(long, value_name = "ADDRESS")]
    addr: Option<IpAddr>,
    /// Connections of this process; must be in the same network namespace.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
}

impl SelectArgs {
    /// Whether nothing was chosen, so that it is all.
    pub(crate) fn is_all(&self) -> bool {
        self.port.is_none() && self.addr.is_none() && self.pid.is_none()
    }

    /// The port, if it was given.
    pub(crate) fn port(&self) -> Option<u16> {
        self.port
    }

    /// As the monitor takes it.
    pub(crate) fn selection(&self) -> Selection {
        let filter = Filter { port: self.port, address: self.addr, ..Filter::default() };
        Selection { filter, pid: self.pid }
    }

    /// For messages: what was looked for.
    pub(crate) fn describe(&self) -> String {
        let mut words = Vec::new();
        words.extend(self.port.map(|port| format!("port {port}")));
        words.extend(self.addr.map(|address| format!("address {address}")));
        words.extend(self.pid.map(|pid| format!("process {pid}")));
        if words.is_empty() { "any".to_owned() } else { words.join(", ") }
    }
}

/// A process that cannot be watched was a wrong request.
pub(crate) fn usage(error: WatchError) -> anyhow::Error {
    match error {
        WatchError::Process { .. } | WatchError::OtherNamespace(_) => {
            Usage::error(error.to_string())
        }
        other => other.into(),
    }
}
