//! What a seed means here: the storage and its faults, the target over it, the path, the work, and
//! the moments at which something breaks.

use std::time::Duration;

use iscsi_proto::keys::{Offer, SessionParams};

use super::disk::{Kind, Telling, Wrongs};
use super::sabotage::Sabotage;
use super::trouble::Trouble;
use crate::net::Profile;
use crate::rng::Rng;

/// Everything about a run that is decided before it begins.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) connections: u16,
    /// Offered by both ends.
    pub(crate) recovery_level: u8,
    pub(crate) disk: Kind,
    /// Longest time of an operation of the storage that does not hang.
    pub(crate) disk_delay_max: Duration,
    /// Operations of the storage that hang for tens of seconds, in permille.
    pub(crate) hangs: u64,
    pub(crate) write_back_every: Duration,
    /// Times that the storage has no space for a while.
    pub(crate) shortages: u32,
    pub(crate) target: Foreign,
    /// Others may write to the unit: what a power-on took is told, not written again.
    pub(crate) shared: bool,
    /// The target begins with its volatile cache on.
    pub(crate) write_cache: bool,
    /// Restarts that come back with the other setting, in percent.
    pub(crate) cache_changes: u32,
    /// Another initiator's MODE SELECTs of WCE.
    pub(crate) mode_selects: u32,
    /// Bytes of unflushed data that the initiator keeps.
    pub(crate) log_limit: u64,
    pub(crate) mix: Mix,
    pub(crate) latency_max: Duration,
    pub(crate) troubles: Vec<Trouble>,
    pub(crate) downtime_max: Duration,
}

/// Ways of other people's targets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Foreign {
    /// Never tells of a power-on.
    pub(crate) silent: bool,
    /// MODE SENSE is refused, in percent.
    pub(crate) mode_sense_fails: u32,
}

/// What the application does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    pub(crate) operations: u32,
    pub(crate) depth: u32,
    /// In percent of all operations.
    pub(crate) writes: u32,
    pub(crate) flushes: u32,
    /// In percent of writes.
    pub(crate) fua: u32,
    pub(crate) zeroes: u32,
    pub(crate) trims: u32,
    pub(crate) sectors_max: u64,
    /// Sectors that most operations begin in.
    pub(crate) hot: u64,
    /// A pause before an operation, in percent.
    pub(crate) pauses: u32,
}

impl Scenario {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let ms = Duration::from_millis;
        let telling = rng.pick(&[Telling::Once, Telling::UntilRestart]);
        let can_fua = rng.percent(60);
        // Without a cache every write is a write and a flush there, and the failure of one may be
        // told to another, while we take each for stable.
        let keeps_cache = telling == Telling::Once && !can_fua;
        let connections = rng.pick(&[1, 1, 2, 3, 4]);
        let silent = rng.percent(25);
        let wrongs = if rng.percent(55) { wrongs(rng) } else { Wrongs::default() };
        let count = if rng.percent(90) { rng.range(1, 9) } else { 0 };
        Self {
            connections,
            recovery_level: rng.pick(&[0, 0, 1, 2, 2]),
            disk: Kind { telling, can_fua, fua_is_told: true, wrongs },
            disk_delay_max: ms(rng.pick(&[0, 1, 10, 100])),
            hangs: rng.pick(&[0, 0, 0, 4]),
            write_back_every: ms(rng.pick(&[10, 100, 1000])),
            shortages: rng.pick(&[0, 0, 0, 2]),
            // A loss that nobody tells of cannot be told on.
            shared: !silent && telling == Telling::UntilRestart && rng.percent(20),
            target: Foreign { silent, mode_sense_fails: rng.pick(&[0, 0, 30]) },
            write_cache: rng.percent(85) || keeps_cache,
            cache_changes: if keeps_cache { 0 } else { rng.pick(&[0, 30, 70]) },
            // A target that tells a failure once may tell it to the other initiator. Over several
            // connections a write can be answered before we are told that the cache was turned on.
            mode_selects: match (telling, connections) {
                (Telling::UntilRestart, 1) => rng.pick(&[0, 3]),
                _ => 0,
            },
            log_limit: rng.pick(&[8 << 10, 32 << 10, 1 << 20]),
            mix: Mix {
                operations: rng.range(40, 160) as u32,
                depth: rng.pick(&[1, 2, 4, 8, 16]),
                writes: rng.range(40, 90) as u32,
                flushes: rng.pick(&[1, 5, 15]),
                fua: rng.pick(&[0, 10, 40]),
                zeroes: rng.pick(&[0, 10]),
                trims: rng.pick(&[0, 0, 10]),
                sectors_max: rng.pick(&[1, 4, 16, 48]),
                hot: rng.pick(&[4, 16, 64]),
                pauses: rng.pick(&[0, 2, 10]),
            },
            latency_max: ms(rng.pick(&[0, 1, 20, 120])),
            troubles: (0..count).map(|_| Trouble::new(rng)).collect(),
            downtime_max: ms(rng.pick(&[100, 2000, 30_000])),
        }
    }

    /// The same with more of the occasions at which a mistake made on purpose shows, and without
    /// what would excuse it.
    pub(crate) fn inviting(mut self, sabotage: Sabotage) -> Self {
        use Sabotage as S;
        self.mix.fua = self.mix.fua.max(10);
        self.mix.flushes = self.mix.flushes.max(5);
        self.write_cache |= sabotage != S::CacheDenied;
        match sabotage {
            S::FailedFuaForgotten => {
                (self.connections, self.shared, self.mode_selects) = (1, false, 0);
                self.disk.telling = Telling::Once;
                (self.disk.can_fua, self.disk.fua_is_told) = (true, true);
                self.disk.wrongs = Wrongs { write_back: 20, fua: 20, ..Wrongs::default() };
            }
            S::FlushHidesFailure | S::WriteBackFailsInSilence => {
                self.disk.wrongs = Wrongs { flush: 20, write_back: 20, ..Wrongs::default() };
            }
            // A flush that fails is answered before a write that it covered, over another
            // connection.
            S::DoubtForgotten => {
                (self.connections, self.shared, self.mode_selects) = (4, false, 0);
                self.disk.telling = Telling::Once;
                (self.disk.can_fua, self.disk.fua_is_told) = (true, false);
                self.disk.wrongs = Wrongs { flush: 50, ..Wrongs::default() };
                self.latency_max = Duration::from_millis(120);
                (self.mix.depth, self.mix.writes, self.mix.flushes) = (16, 90, 5);
                self.log_limit = 1 << 20;
                self.troubles.clear();
            }
            S::GoodNotHeld => {
                (self.connections, self.shared, self.mode_selects) = (4, false, 0);
                self.disk.telling = Telling::Once;
                self.disk.wrongs = Wrongs { flush: 30, write_back: 20, ..Wrongs::default() };
                self.latency_max = Duration::from_millis(120);
                (self.mix.depth, self.mix.flushes) = (16, 15);
            }
            S::OwnFailureSwallowed => {
                self.disk.telling = Telling::Once;
                self.disk.can_fua = true;
                self.shared = false;
                self.disk.wrongs = Wrongs { flush: 20, write_back: 20, ..Wrongs::default() };
                self.log_limit = 8 << 10;
                self.mode_selects = 0;
            }
            // A write is acknowledged while a flush is under way, and lost before the next one.
            S::MarkTakenLate => {
                self.shared = false;
                (self.mix.depth, self.mix.writes) = (16, 90);
                // One that is under way with it would cover the write.
                (self.mix.flushes, self.mix.fua) = (5, 0);
                self.disk_delay_max = Duration::from_millis(100);
                self.write_back_every = Duration::from_secs(1);
                self.troubles = Trouble::power_cuts(12, 9).collect();
            }
            S::FuaIgnored => self.disk.can_fua = true,
            S::PowerOnTakenBack => (self.shared, self.target.silent) = (true, false),
            S::CacheDenied => self.write_cache = false,
            S::NoReplay | S::ReplayCutShort | S::ReplayBehindUsers => self.shared = false,
            // The next flush makes up for it, unless the power fails before.
            S::ReplayNotFlushed => {
                self.shared = false;
                self.troubles = Trouble::power_cuts(12, 9).collect();
            }
            S::ReplayOnlyIfTold => (self.shared, self.target.silent) = (false, true),
            S::LogDroppedWithoutCache => {
                (self.shared, self.write_cache, self.cache_changes) = (false, true, 70);
            }
            _ => {}
        }
        self
    }

    /// What either end offers.
    pub(crate) fn offer(&self, rng: &mut Rng) -> Offer {
        let max_burst_length = rng.pick(&[1024, 8192, 262_144]);
        Offer {
            session: SessionParams {
                max_connections: self.connections,
                error_recovery_level: self.recovery_level,
                default_time2wait: rng.pick(&[0, 0, 1]),
                default_time2retain: rng.pick(&[0, 4, 20]),
                initial_r2t: rng.percent(25),
                immediate_data: rng.percent(75),
                max_burst_length,
                first_burst_length: rng.pick(&[512, 1024]),
                max_outstanding_r2t: rng.pick(&[1, 3]),
                ..Offer::default().session
            },
            max_recv_data_segment_length: rng.pick(&[512, 4096, 65_536]),
            ..Offer::default()
        }
    }

    /// How the next connection behaves.
    pub(crate) fn profile(&self, rng: &mut Rng) -> Profile {
        let micros = self.latency_max.as_micros() as u64;
        Profile {
            latency: Duration::from_micros(rng.range(10, micros + 20)),
            jitter: Duration::from_micros(rng.below(micros / 2 + 100)),
            piece_max: rng.pick(&[1460, 9000, 65_536]),
            capacity: rng.pick(&[4096, 20_000, 262_144]),
        }
    }
}

fn wrongs(rng: &mut Rng) -> Wrongs {
    Wrongs {
        flush: rng.pick(&[0, 5, 30]),
        write_back: rng.pick(&[0, 5, 20]),
        fua: rng.pick(&[0, 5, 20]),
        write: rng.pick(&[0, 0, 5]),
        read: rng.pick(&[0, 0, 5]),
    }
}
