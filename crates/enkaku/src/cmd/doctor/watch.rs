//! Which connections may be iSCSI, and some seconds of each: found by one look at the kernel's
//! table, then sampled as `diagnose` does it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tcpmon::diag::Filter;
use tcpmon::verdict::from_samples::{Role, Watched};
use tcpmon::watch::{Selection, WatchError, Watcher};

/// New connections are looked for this often.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// Ports that are watched at a time.
const PORTS_MAX: usize = 8;
/// The name of our own processes (proc(5), comm).
pub(super) const OWN: &str = "enkaku";

/// A connection with what was seen of it.
pub(super) struct Seen {
    pub(super) watched: Watched,
    /// The process that has it open, where it may be seen.
    pub(super) process: Option<(u32, String)>,
}

/// Where a target listens, as this connection shows it.
pub(super) fn target_of(watched: &Watched) -> Option<SocketAddr> {
    let connection = watched.samples.last()?.connection;
    Some(match watched.role {
        Role::Initiator => connection.remote,
        Role::Target => connection.local,
    })
}

/// Ports of targets that are worth watching: those that were named, and those to which our own
/// processes have connections.
///
/// # Errors
/// The kernel's table cannot be read.
pub(super) fn ports(named: &[u16]) -> Result<BTreeSet<u16>, WatchError> {
    let mut all = Watcher::new(Selection::default())?;
    let mut ports: BTreeSet<u16> = named.iter().copied().collect();
    for watched in all.harvest() {
        let own = watched.samples.last().and_then(|sample| all.owner(sample));
        if own.is_some_and(|owner| owner.comm == OWN) && ports.len() < PORTS_MAX {
            ports.extend(watched.target_port());
        }
    }
    Ok(ports)
}

/// Watches the connections of these ports; what is hidden from us is said.
///
/// # Errors
/// The kernel's table cannot be read.
pub(super) fn watch(
    ports: &BTreeSet<u16>,
    time: Duration,
) -> Result<(Vec<Seen>, Option<String>), WatchError> {
    let selection = |port: u16| Selection {
        filter: Filter { port: Some(port), ..Filter::default() },
        pid: None,
    };
    let watchers: Result<Vec<Watcher>, WatchError> =
        ports.iter().map(|port| Watcher::new(selection(*port))).collect();
    let mut watchers = watchers?;
    let begin = Instant::now();
    let mut looked = begin;
    while begin.elapsed() < time {
        let pace = watchers.iter().map(Watcher::pace).min().unwrap_or(time);
        std::thread::sleep(pace.min(time.saturating_sub(begin.elapsed())));
        let looks = looked.elapsed() >= LOOK_PERIOD;
        if looks {
            looked = Instant::now();
        }
        for watcher in &mut watchers {
            if looks {
                watcher.look()?;
            }
            watcher.sample()?;
        }
    }
    let hidden = watchers.iter().find_map(Watcher::hidden);
    let mut seen = Vec::new();
    for watcher in &mut watchers {
        for watched in watcher.harvest() {
            let owner = watched.samples.last().and_then(|sample| watcher.owner(sample));
            let process = owner.map(|owner| (owner.pid, owner.comm.clone()));
            seen.push(Seen { watched, process });
        }
    }
    Ok((seen, hidden))
}
