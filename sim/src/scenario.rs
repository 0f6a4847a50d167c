//! What a seed means: the keys both sides offer, the limits they run with, the network, the medium,
//! the work, and how much trouble there is.

use std::time::Duration;

use iscsi_proto::initiator::Config;
use iscsi_proto::keys::{DigestPreference, Offer, SessionParams, TaskReporting};
use iscsi_proto::target::SessionConfig;

use crate::cuts::{Cut, Moment};
use crate::damage::Plan;
use crate::net::Profile;
use crate::rng::Rng;
use crate::workload::{BLOCKS, Mix};

/// Everything about a run that is decided before it begins.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) initiator: Config,
    pub(crate) target: SessionConfig,
    pub(crate) target_offer: Offer,
    /// ErrorRecoveryLevel that the initiator offers.
    pub(crate) recovery_level: u8,
    /// Connections that the application would like at most.
    pub(crate) connections_max: u16,
    pub(crate) mix: Mix,
    pub(crate) medium: Medium,
    pub(crate) path: Path,
    pub(crate) trouble: Trouble,
    pub(crate) damage: Plan,
    /// Connections broken at certain moments, in addition.
    pub(crate) cuts: Vec<Cut>,
    /// The target has limits, which hold a command back for up to so long.
    pub(crate) holding: Option<Duration>,
    /// CHAP is required.
    pub(crate) chap: bool,
    /// Connections of a target are served in any order, as threads would, not as they were woken.
    pub(crate) shuffled: bool,
    /// Digests make every byte of a PDU count, which sabotage on the wire has to avoid.
    pub(crate) digests_allowed: bool,
}

/// How the medium behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Medium {
    pub(crate) delay_max: Duration,
    /// Commands that end as soon as they start, in percent.
    pub(crate) immediate: u32,
    /// Commands that end with CHECK CONDITION, in percent.
    pub(crate) errors: u32,
}

/// What connections are drawn from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    latency_max: Duration,
    jitter_max: Duration,
    /// Pieces of a few bytes now and then.
    crumbs: bool,
}

/// What goes wrong or changes, and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    /// Connections broken in all.
    pub(crate) faults: u32,
    pub(crate) fault_every: Duration,
    /// Changes of the number of connections.
    pub(crate) memberships: u32,
    pub(crate) membership_every: Duration,
    /// Task management functions.
    pub(crate) managements: u32,
    pub(crate) management_every: Duration,
    /// Sessions closed in order while there is work left.
    pub(crate) restarts: u32,
}

/// ErrorRecoveryLevel as the initiator offers it, and the target: the lower one holds.
const LEVELS: [u8; 4] = [0, 1, 2, 2];
const TARGET_LEVELS: [u8; 6] = [0, 1, 2, 2, 2, 2];

const BURSTS: [u32; 7] = [512, 1024, 3000, 8192, 65_536, 262_144, 1 << 20];
const SEGMENTS: [u32; 6] = [512, 1000, 4096, 8192, 65_536, 262_144];

impl Scenario {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let connections_max = if rng.percent(25) { 1 } else { rng.range(2, 8) as u16 };
        let ms = Duration::from_millis;
        let path = Path {
            latency_max: ms(rng.pick(&[0, 1, 20, 150])),
            jitter_max: ms(rng.pick(&[0, 1, 5, 50, 400])),
            crumbs: rng.percent(15),
        };
        let troubled = rng.percent(75);
        let trouble = Trouble {
            faults: if troubled { rng.range(1, 5) as u32 } else { 0 },
            fault_every: ms(rng.pick(&[5, 50, 300, 1500])),
            memberships: if connections_max > 1 { rng.range(0, 12) as u32 } else { 0 },
            membership_every: ms(rng.pick(&[5, 50, 300])),
            managements: if rng.percent(60) { rng.range(1, 12) as u32 } else { 0 },
            management_every: ms(rng.pick(&[1, 20, 150])),
            restarts: if rng.percent(20) { rng.range(1, 2) as u32 } else { 0 },
        };
        let damaged = rng.percent(45);
        let damage = Plan {
            count: if damaged { rng.range(1, 12) as u32 } else { 0 },
            one_in: rng.pick(&[4, 25, 100, 400]),
            losses: rng.coin(),
        };
        let cut_count = if troubled && rng.percent(60) { rng.range(1, 3) } else { 0 };
        let recovery_level = rng.pick(&LEVELS);
        let cuts = (0..cut_count).map(|_| {
            let recovers = recovery_level == 2 && rng.percent(70);
            Cut::new(rng, if recovers { &Moment::RECOVERY } else { &Moment::COMMON })
        });
        let cuts = cuts.collect();
        let mix = Mix {
            operations: rng.range(30, 150) as u32,
            depth: rng.pick(&[1, 2, 4, 8, 16, 40, 100]),
            writes: rng.range(20, 80) as u32,
            blocks_max: rng.pick(&[1, 4, 16, 64, BLOCKS]),
            hot_blocks: rng.range(1, 40) as u32,
        };
        let target_offer = offer(rng, rng_connections(connections_max), damaged);
        Self {
            initiator: Config::default(),
            target: session_config(rng),
            target_offer: Offer {
                session: SessionParams {
                    // Mostly the level that the initiator would like.
                    error_recovery_level: rng.pick(&TARGET_LEVELS),
                    ..target_offer.session
                },
                ..target_offer
            },
            recovery_level,
            connections_max,
            mix,
            medium: Medium {
                delay_max: ms(rng.pick(&[0, 1, 10, 200, 2500])),
                immediate: rng.pick(&[0, 20, 90]),
                errors: rng.pick(&[0, 0, 3]),
            },
            path,
            trouble,
            damage,
            cuts,
            holding: None,
            chap: rng.percent(15),
            shuffled: rng.coin(),
            digests_allowed: true,
        }
    }

    /// The same without anything that could hide or excuse a mistake made on purpose.
    pub(crate) fn undisturbed(mut self) -> Self {
        self.digests_allowed = false;
        self.trouble.faults = 0;
        self.trouble.managements = 0;
        self.trouble.restarts = 0;
        self.damage.count = 0;
        self.cuts.clear();
        self.medium.errors = 0;
        self
    }

    /// The same with damage that a session has to recover from, and nothing else that goes wrong.
    pub(crate) fn recovering(mut self) -> Self {
        self = self.undisturbed();
        self.digests_allowed = true;
        self.recovery_level = 2;
        self.target_offer.session.error_recovery_level = 2;
        self.target_offer.session.default_time2retain = 60;
        self.trouble.faults = 3;
        self.trouble.fault_every = Duration::from_millis(50);
        self.damage = Plan { count: 60, one_in: 12, losses: true };
        self.mix.blocks_max = BLOCKS;
        self
    }

    /// What the initiator offers for its next session or connection.
    pub(crate) fn offer(&self, rng: &mut Rng) -> Offer {
        let mut offer = offer(rng, self.connections_max, self.damage.count > 0);
        offer.session.error_recovery_level = self.recovery_level;
        if !self.digests_allowed {
            offer.header_digest = DigestPreference::Never;
            offer.data_digest = DigestPreference::Never;
        }
        offer
    }

    /// How the next connection behaves.
    pub(crate) fn profile(&self, rng: &mut Rng) -> Profile {
        let micros = |duration: Duration| duration.as_micros() as u64;
        // A few bytes at a time, but not megabytes that way: it would take minutes.
        let pieces = match (self.path.crumbs, self.mix.blocks_max) {
            (true, 0..=4) => &[3, 50, 700][..],
            (true, _) => &[200, 700],
            (false, _) => &[1460, 9000, 65_536],
        };
        Profile {
            latency: Duration::from_micros(rng.range(10, micros(self.path.latency_max) + 20)),
            jitter: Duration::from_micros(rng.below(micros(self.path.jitter_max) + 1)),
            piece_max: rng.pick(pieces),
            capacity: rng.pick(&[600, 4096, 20_000, 262_144]),
        }
    }
}

/// A target that allows fewer connections than the initiator would like is not rare; most allow
/// more.
const fn rng_connections(initiator: u16) -> u16 {
    if initiator.is_multiple_of(3) { initiator - 1 } else { 64 }
}

fn session_config(rng: &mut Rng) -> SessionConfig {
    let mut config = SessionConfig::default();
    config.command_window = rng.pick(&[1, 2, 3, 8, 32, 128]);
    config.buffered_bytes_max = rng.pick(&[512, 4096, 70_000, 128 << 20]);
    config.ping_after = Duration::from_secs(rng.pick(&[3, 30]));
    config.ping_timeout = Duration::from_secs(10);
    config
}

fn offer(rng: &mut Rng, max_connections: u16, damaged: bool) -> Offer {
    let max_burst_length = rng.pick(&BURSTS);
    let first: Vec<u32> = BURSTS.into_iter().filter(|first| *first <= max_burst_length).collect();
    // The digest of choice need not be that of the other side; a login that fails for it would
    // only be a dull run.
    let digest = |rng: &mut Rng| match rng.percent(if damaged { 85 } else { 50 }) {
        true => DigestPreference::Prefer,
        false => DigestPreference::Avoid,
    };
    Offer {
        session: SessionParams {
            max_connections,
            // No if both say so.
            data_pdu_in_order: rng.percent(30),
            data_sequence_in_order: rng.percent(30),
            default_time2wait: rng.pick(&[0, 0, 1, 3]),
            default_time2retain: rng.pick(&[0, 4, 20, 60, 60]),
            // The outcome is the OR of both; so that both values come out often:
            initial_r2t: rng.percent(25),
            immediate_data: rng.percent(75),
            max_burst_length,
            first_burst_length: rng.pick(&first),
            max_outstanding_r2t: rng.pick(&[1, 1, 2, 3, 16]),
            task_reporting: rng.pick(&TaskReporting::ALL),
            protocol_level: rng.pick(&[1, 2, 2]),
            ..Offer::default().session
        },
        header_digest: digest(rng),
        data_digest: digest(rng),
        max_recv_data_segment_length: rng.pick(&SEGMENTS),
    }
}
