//! What breaks, and at which moment: counted in PDUs and in operations of the storage, so that
//! every point of a set-up, of a replay and of a flush has its turn.

use std::time::Duration;

use crate::net::Fault;
use crate::rng::Rng;

/// What breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breakage {
    /// The power of the target fails: its cache and its process are gone.
    PowerCut,
    /// The target's process ends and another one starts; the cache below lives on.
    Restart,
    /// The connection in question breaks.
    Connection(Fault),
    /// All of them do.
    AllConnections(Fault),
}

/// A kind of moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Any PDU.
    Pdu,
    /// A PDU of a login.
    Login,
    /// A PDU between the login and the application's first command.
    SetUp,
    /// A PDU of the replay, the flush behind it among them.
    Replay,
    /// A SCSI response.
    Answer,
    /// An operation of the storage begins.
    Storage,
    /// A flush, or a write with FUA, is asked for by the application.
    Flush,
}

/// One thing that breaks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    moment: Moment,
    /// Moments of the kind that pass before.
    left: u64,
    breakage: Breakage,
    /// Longest time from the moment to the breakage.
    delay_max: Duration,
}

impl Trouble {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        use Moment as M;
        let moments =
            [M::Pdu, M::Pdu, M::Login, M::SetUp, M::SetUp, M::Replay, M::Replay, M::Answer];
        let moment = match rng.percent(80) {
            true => rng.pick(&moments),
            false => rng.pick(&[M::Storage, M::Flush]),
        };
        let high = match moment {
            M::Pdu | M::Answer | M::Storage => 400,
            M::Login => 12,
            M::SetUp | M::Replay | M::Flush => 20,
        };
        let fault = rng.pick(&[Fault::Reset, Fault::Reset, Fault::ALL[1], Fault::TargetCloses]);
        let breakage = match rng.below(10) {
            0..=3 => Breakage::PowerCut,
            4 => Breakage::Restart,
            5..=7 => Breakage::Connection(fault),
            _ => Breakage::AllConnections(fault),
        };
        let delay_max = Duration::from_millis(rng.pick(&[0, 0, 1, 40]));
        Self { moment, left: rng.skewed(high), breakage, delay_max }
    }
}

impl Trouble {
    /// Power cuts, one after a few answers each.
    pub(crate) fn power_cuts(count: u64, every: u64) -> impl Iterator<Item = Self> {
        let (moment, breakage) = (Moment::Answer, Breakage::PowerCut);
        let delay_max = Duration::ZERO;
        (1..=count).map(move |n| Self { moment, left: n * every, breakage, delay_max })
    }
}

/// What is still to come.
#[derive(Debug)]
pub(crate) struct Troubles(Vec<Trouble>);

impl Troubles {
    pub(crate) fn new(troubles: Vec<Trouble>) -> Self {
        Self(troubles)
    }

    /// Such a moment has come: what breaks, and after what time.
    pub(crate) fn due(&mut self, moment: Moment, rng: &mut Rng) -> Option<(Breakage, Duration)> {
        let at = self.0.iter_mut().position(|trouble| {
            trouble.moment == moment && {
                let now = trouble.left == 0;
                trouble.left = trouble.left.saturating_sub(1);
                now
            }
        })?;
        let trouble = self.0.remove(at);
        let delay = Duration::from_micros(rng.skewed(trouble.delay_max.as_micros() as u64));
        Some((trouble.breakage, delay))
    }
}
