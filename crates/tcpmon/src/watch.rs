//! Watches chosen connections of this host: finds them, samples them as often as their round trips
//! need, and hands out what it saw.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::diag::{DiagError, Filter, Owner, Owners, SockDiag, same_network_namespace, sockets_of};
use crate::sample::{Connection, Sample, State};
use crate::verdict::from_samples::{Role, Watched};

/// Connections that are sampled between two looks at the table, the busiest first.
pub const FAST_MAX: usize = 64;
/// Samples in a round trip that show bursts and silences.
const SAMPLES_PER_RTT: u32 = 8;
/// More often than this costs more than it tells.
const PACE_MIN: Duration = Duration::from_millis(2);
/// Rarer than this misses short transfers.
const PACE_MAX: Duration = Duration::from_millis(25);
/// Samples of a connection that are kept between two harvests; about 2 MB.
const SAMPLES_MAX: usize = 4096;

/// Which connections to watch.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// By addresses and states.
    pub filter: Filter,
    /// Only those of this process.
    pub pid: Option<u32>,
}

/// Why there is nothing to watch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The kernel's table cannot be read.
    #[error(transparent)]
    Diag(#[from] DiagError),
    /// The process does not exist, or belongs to somebody else.
    #[error("process {pid}: {source}")]
    Process {
        /// Which process.
        pid: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its connections are not in this network namespace.
    #[error(
        "process {0} is in another network namespace; run this there (nsenter --target {0} --net)"
    )]
    OtherNamespace(u32),
}

/// The chosen connections and their samples since the last harvest.
pub struct Watcher {
    diag: SockDiag,
    selection: Selection,
    owners: Owners,
    listening: HashSet<u16>,
    tracks: BTreeMap<Connection, Vec<Sample>>,
    /// Connections that ended since the last harvest.
    ended: Vec<Watched>,
    /// Connections that were chosen and not looked at, for their number.
    pub left_out: usize,
    epoch_us: u64,
}

impl Watcher {
    /// Begins to watch, with a first look.
    ///
    /// # Errors
    /// The table cannot be read, or the process is not there or not ours to see.
    pub fn new(selection: Selection) -> Result<Self, WatchError> {
        if let Some(pid) = selection.pid {
            let same = same_network_namespace(pid);
            if !same.map_err(|source| WatchError::Process { pid, source })? {
                return Err(WatchError::OtherNamespace(pid));
            }
        }
        let diag = SockDiag::open()?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        let mut watcher = Self {
            epoch_us: unix_us.saturating_sub(diag.now_us()),
            diag,
            selection,
            owners: Owners::default(),
            listening: HashSet::new(),
            tracks: BTreeMap::new(),
            ended: Vec::new(),
            left_out: 0,
        };
        watcher.look()?;
        Ok(watcher)
    }

    /// Looks at the whole table: takes up new connections and lets go of those that have ended.
    ///
    /// # Errors
    /// The table cannot be read, or the process has ended.
    pub fn look(&mut self) -> Result<(), WatchError> {
        let listeners = Filter { states: vec![State::LISTEN], ..self.selection.filter.clone() };
        // Listeners have no address of another end, and rarely one of their own.
        let listeners = Filter { address: None, ..listeners };
        let listening = self.diag.look(&listeners)?;
        self.listening = listening.samples.iter().map(|s| s.connection.local.port()).collect();
        let mut look = self.diag.look(&self.selection.filter)?;
        if let Some(pid) = self.selection.pid {
            let sockets = sockets_of(pid).map_err(|source| WatchError::Process { pid, source })?;
            look.samples.retain(|sample| sockets.contains(&sample.inode));
        }
        self.left_out = look.left_out;
        self.owners.find(look.samples.iter().map(|sample| sample.inode));
        let mut before = std::mem::take(&mut self.tracks);
        for sample in look.samples {
            let mut track = before.remove(&sample.connection).unwrap_or_default();
            keep(&mut track, sample);
            self.tracks.insert(track[0].connection, track);
        }
        for samples in before.into_values().take(FAST_MAX.saturating_sub(self.ended.len())) {
            self.ended.push(self.watched(samples));
        }
        Ok(())
    }

    /// Samples the busiest connections, without the table.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn sample(&mut self) -> Result<(), WatchError> {
        let mut chosen: Vec<Connection> = self.tracks.keys().copied().collect();
        if chosen.len() > FAST_MAX {
            chosen.sort_by_key(|connection| std::cmp::Reverse(moved(&self.tracks[connection])));
            chosen.truncate(FAST_MAX);
        }
        for connection in chosen {
            let sample = self.diag.one(&connection)?;
            match (sample, self.tracks.get_mut(&connection)) {
                (Some(sample), Some(track)) if sample.connection == connection => {
                    keep(track, sample);
                }
                // It ended; its samples stay until the next look.
                _ => {}
            }
        }
        Ok(())
    }

    /// Microseconds from 1970 to the zero of [`Sample::at_us`], as the system's clock had it when
    /// the watch began; a capture's times are on that clock.
    pub fn epoch_us(&self) -> u64 {
        self.epoch_us
    }

    /// How long to wait between two samples, so that the shortest round trip shows its bursts.
    pub fn pace(&self) -> Duration {
        let latest = self.tracks.values().filter_map(|track| track.last());
        let rtt_us = latest.filter_map(|sample| sample.tcp.base_rtt_us()).min();
        let rtt = rtt_us.map_or(PACE_MAX, |us| Duration::from_micros(us.into()));
        // Many connections take longer, each costs a call.
        let cost = Duration::from_micros(40)
            .saturating_mul(u32::try_from(self.tracks.len().min(FAST_MAX)).unwrap_or_default() * 2);
        (rtt / SAMPLES_PER_RTT).clamp(PACE_MIN, PACE_MAX).max(cost)
    }

    /// Everything since the last harvest; the last sample of each is the first of the next.
    pub fn harvest(&mut self) -> Vec<Watched> {
        let mut harvest = std::mem::take(&mut self.ended);
        let tracks: Vec<_> = self
            .tracks
            .values_mut()
            .map(|track| {
                let last = track.last().cloned();
                std::mem::replace(track, Vec::from_iter(last))
            })
            .collect();
        harvest.extend(tracks.into_iter().map(|samples| self.watched(samples)));
        harvest
    }

    fn watched(&self, samples: Vec<Sample>) -> Watched {
        let port = samples.last().map(|sample| sample.connection.local.port());
        let serves = port.is_some_and(|port| self.listening.contains(&port));
        Watched { samples, role: if serves { Role::Target } else { Role::Initiator } }
    }

    /// Whether a connection was among the chosen ones at the latest look.
    pub fn watches(&self, connection: &Connection) -> bool {
        self.tracks.contains_key(connection)
    }

    /// What was chosen.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// The process of a connection, where it may be seen.
    pub fn owner(&self, sample: &Sample) -> Option<&Owner> {
        self.owners.of(sample.inode)
    }

    /// What the names of processes cannot show, for a note; `None` if nothing is hidden.
    pub fn hidden(&self) -> Option<String> {
        let named = |sample: &Sample| self.owners.of(sample.inode).is_some();
        let unnamed =
            self.tracks.values().filter_map(|track| track.last()).filter(|s| !named(s)).count();
        let hidden = self.owners.hidden_processes;
        (unnamed > 0 && (hidden > 0 || self.owners.cut_short)).then(|| {
            let why = if self.owners.cut_short {
                "too many descriptors are open on this host".to_owned()
            } else {
                format!("{hidden} processes are other users' (root sees them)")
            };
            format!("{unnamed} connections have no process to show: {why}")
        })
    }
}

/// The largest send buffer that the kernel gives a connection of this network namespace by itself.
pub fn send_buffer_max_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").ok()?;
    text.split_whitespace().nth(2)?.parse().ok()
}

/// Keeps a sample, and of too many every second one.
fn keep(track: &mut Vec<Sample>, sample: Sample) {
    if track.last().is_some_and(|last| last.at_us >= sample.at_us) {
        return;
    }
    if track.len() >= SAMPLES_MAX {
        let mut index = 0;
        track.retain(|_| {
            index += 1;
            index % 2 == 1
        });
    }
    track.push(sample);
}

/// Payload since the beginning of the track.
fn moved(track: &[Sample]) -> u64 {
    let total = |sample: &Sample| {
        sample.tcp.sent_bytes.unwrap_or_default() + sample.tcp.received_bytes.unwrap_or_default()
    };
    match (track.first(), track.last()) {
        (Some(first), Some(last)) => total(last).saturating_sub(total(first)),
        _ => 0,
    }
}
