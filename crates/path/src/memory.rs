//! What a path was like last time, and how far to believe it: Careful Resume (RFC 9959,
//! "Convergence of Congestion Control from Retained State"). Pure: [`super::paths`] is the table of
//! all peers, and whoever has a file reads and writes it.
//!
//! Phases have the RFC's names. *Reconnaissance* looks whether the round trip is that of the path
//! remembered. *Unvalidated* has as many connections as carried it, and takes the line for what it
//! was. *Validating* waits until half of that is carried; a queue or losses of the load before it
//! lead to *safe retreat*, half of what was carried, on a line that is what was seen of it.
//! *Normal* is the rest. What differs from the RFC: congestion windows are the kernel's and begin
//! small, so the jump is one of the number, not of a window, and validating it takes as long as
//! slow start.

use super::model::Estimate;
use super::rate::STARTUP_GAIN;
use super::tcp::OTHER_SHARE;

/// What is older than this is forgotten, in seconds: networks are rebuilt by night.
pub(crate) const LIFETIME_S: f64 = 86400.0;
/// This part of what was remembered confirms it, and is the most that the RFC lets go before: a
/// round of slow start less than all.
const JUMP: f64 = 1.0 / STARTUP_GAIN;
/// The round trip may be that many times the remembered one: from half to ten times (RFC 9959).
const RTT_FACTORS: (f64, f64) = (0.5, 10.0);

/// What a path was like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remembered {
    /// What the line carried, in bytes a second.
    pub bandwidth: f64,
    /// The line was saturated; otherwise it may carry more.
    pub measured: bool,
    /// The shortest round trip, in seconds.
    pub rtt_s: f64,
    /// Share of segments lost.
    pub loss: f64,
    /// Connections that carried it; 0 if that number tells nothing.
    pub connections: u32,
    /// Seconds since then.
    pub age_s: f64,
}

impl Remembered {
    /// What is worth keeping of a transfer; none if nothing was carried, or if others filled the
    /// queue: what they leave is theirs to change.
    pub fn of(now: &Estimate, connections: u32) -> Option<Self> {
        let (bandwidth, rtt_s) = now.bandwidth.zip(now.least_rtt_s)?;
        let (loss, measured) = (now.loss, now.measured);
        let known = Self { bandwidth, measured, rtt_s, loss, connections, age_s: 0.0 };
        (known.is_possible() && !now.shared).then_some(known)
    }

    /// Every value is one that a path can have.
    pub fn is_possible(&self) -> bool {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        positive(self.bandwidth) && positive(self.rtt_s) && (0.0..=1.0).contains(&self.loss)
    }

    /// It may be used for a path of this round trip. What is from the future has no age.
    pub fn is_of(&self, rtt_s: f64) -> bool {
        let factor = rtt_s / self.rtt_s;
        self.is_possible()
            && (0.0..=LIFETIME_S).contains(&self.age_s)
            && (RTT_FACTORS.0..=RTT_FACTORS.1).contains(&factor)
    }
}

/// Phases of Careful Resume; its *normal* one by what became of the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing was sent yet.
    #[default]
    Reconnaissance,
    /// The jump is made, and nothing of it can have come back.
    Unvalidated,
    /// The jump is being acknowledged.
    Validating,
    /// It was too much.
    SafeRetreat,
    /// It was carried.
    Confirmed,
    /// Nothing is believed any more, or nothing was remembered.
    GivenUp,
}

/// Goes from one phase to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resume {
    saved: Option<Remembered>,
    phase: Phase,
    /// What was carried when it was too much.
    retreat: Option<f64>,
    phase_ends_s: Option<f64>,
}

impl Resume {
    /// With what was remembered, if anything was.
    pub(crate) fn new(saved: Option<Remembered>) -> Self {
        Self { saved, ..Self::default() }
    }

    /// What is remembered of this path, from the time on when its round trip is known.
    pub(crate) fn saved(&self) -> Option<&Remembered> {
        self.saved.as_ref().filter(|_| self.phase != Phase::Reconnaissance)
    }

    /// What became of the memory: the name of its phase, or its end; none without one.
    pub(crate) fn outcome(&self) -> Option<&'static str> {
        self.saved.and(match self.phase {
            Phase::Reconnaissance => None,
            Phase::Unvalidated => Some("unvalidated"),
            Phase::Validating => Some("validating"),
            Phase::SafeRetreat => Some("safe retreat"),
            Phase::Confirmed => Some("confirmed"),
            Phase::GivenUp => Some("given up"),
        })
    }

    /// The round trip of this path is known: what is remembered of it, if that is the same path.
    pub(crate) fn begin(&mut self, rtt_s: f64) -> Option<Remembered> {
        self.saved = self.saved.filter(|saved| saved.is_of(rtt_s));
        self.phase = if self.saved.is_some() { Phase::Unvalidated } else { Phase::GivenUp };
        self.saved
    }

    /// What the line is believed to carry now, in bytes a second: a path that fills needs no more.
    /// Nothing is believed of a line that was never seen saturated.
    pub(crate) fn belief(&self) -> Option<f64> {
        let saved = self.saved()?;
        match self.phase {
            // The line is as slow as it was seen to be.
            Phase::SafeRetreat | Phase::GivenUp => self.retreat,
            _ => saved.measured.then_some(saved.bandwidth),
        }
    }

    /// Takes what is known now. Answers what to go back to, in bytes a second, when the jump was
    /// too much.
    pub(crate) fn handle(&mut self, now: &Estimate) -> Option<f64> {
        let carries = now.carried >= (1.0 - OTHER_SHARE) * JUMP * self.saved()?.bandwidth;
        let round_ends_s = now.t_s + now.round_s();
        let ended = now.t_s >= *self.phase_ends_s.get_or_insert(round_ends_s);
        // A queue alone is the path's, or others', where nothing of ours is under way.
        let overruns = now.lossy || now.full && now.queue_s > now.queue_target_s;
        self.phase = match self.phase {
            Phase::Unvalidated | Phase::Validating if carries => Phase::Confirmed,
            Phase::Unvalidated | Phase::Validating if overruns => {
                (self.phase, self.phase_ends_s) = (Phase::SafeRetreat, Some(round_ends_s));
                self.retreat = Some(now.carried);
                return Some(now.carried / 2.0);
            }
            Phase::Unvalidated if ended => Phase::Validating,
            Phase::SafeRetreat if ended => Phase::GivenUp,
            unchanged => unchanged,
        };
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: Remembered = Remembered {
        bandwidth: 100e6,
        measured: true,
        rtt_s: 0.1,
        loss: 0.0,
        connections: 8,
        age_s: 60.0,
    };

    fn now(t_s: f64, carried: f64) -> Estimate {
        let (rtt_s, full, queue_target_s) = (Some(0.1), true, 0.004);
        Estimate { t_s, carried, rtt_s, full, queue_target_s, ..Estimate::default() }
    }

    fn begun() -> Resume {
        let mut resume = Resume::new(Some(SAVED));
        assert_eq!((resume.phase, resume.belief()), (Phase::Reconnaissance, None));
        resume.begin(0.1);
        assert_eq!(resume.phase, Phase::Unvalidated);
        assert_eq!(resume.belief(), Some(100e6));
        resume
    }

    #[test]
    fn what_is_old_or_of_another_path_is_not_believed() {
        assert_eq!(Resume::new(Some(SAVED)).begin(0.1), Some(SAVED));
        assert_eq!(Resume::new(Some(SAVED)).begin(0.04), None);
        assert_eq!(Resume::new(Some(SAVED)).begin(1.1), None);
        for age_s in [1e6, -1.0, f64::NAN] {
            assert_eq!(Resume::new(Some(Remembered { age_s, ..SAVED })).begin(0.1), None);
        }
        for bandwidth in [f64::NAN, f64::INFINITY, 0.0] {
            assert_eq!(Resume::new(Some(Remembered { bandwidth, ..SAVED })).begin(0.1), None);
        }
        let mut none = Resume::new(None);
        assert_eq!((none.begin(0.1), none.phase, none.outcome()), (None, Phase::GivenUp, None));
        assert_eq!(none.handle(&now(0.1, 9e9)), None);
    }

    #[test]
    fn a_jump_that_is_carried_is_confirmed() {
        let mut resume = begun();
        for (t_s, carried, phase) in [
            (0.1, 1e6, Phase::Unvalidated),
            (0.2, 3e6, Phase::Unvalidated),
            (0.31, 9e6, Phase::Validating),
            (0.41, 30e6, Phase::Validating),
            (0.5, 46e6, Phase::Confirmed),
        ] {
            assert_eq!((resume.handle(&now(t_s, carried)), resume.phase), (None, phase), "{t_s}");
        }
        assert_eq!(resume.belief(), Some(100e6));
        assert_eq!(resume.outcome(), Some("confirmed"));
        // What comes later is the path's, not the memory's.
        assert_eq!(resume.handle(&Estimate { lossy: true, ..now(0.6, 46e6) }), None);
        assert_eq!(resume.outcome(), Some("confirmed"));
    }

    #[test]
    fn losses_or_a_queue_before_that_lead_back_to_half_of_what_was_carried() {
        let lossy = Estimate { lossy: true, ..now(0.2, 10e6) };
        let queued = Estimate { queue_s: 0.005, ..now(0.2, 10e6) };
        for overrun in [lossy, queued] {
            let mut resume = begun();
            resume.handle(&now(0.1, 5e6));
            assert_eq!(resume.handle(&overrun), Some(5e6));
            let seen = Some(10e6);
            assert_eq!((resume.phase, resume.belief()), (Phase::SafeRetreat, seen));
            assert_eq!((resume.handle(&now(0.3, 9e6)), resume.phase), (None, Phase::SafeRetreat));
            assert_eq!((resume.handle(&now(0.41, 9e6)), resume.phase), (None, Phase::GivenUp));
            assert_eq!((resume.belief(), resume.outcome()), (seen, Some("given up")));
        }
        // A longer round trip of a path on which we have nothing to send is not our queue.
        let mut resume = begun();
        assert_eq!(resume.handle(&Estimate { full: false, ..queued }), None);
        assert_eq!(resume.phase, Phase::Unvalidated);
    }

    #[test]
    fn what_an_application_asked_for_is_no_limit_of_the_line() {
        let slow = Remembered { bandwidth: 1e6, measured: false, connections: 0, ..SAVED };
        let mut resume = Resume::new(Some(slow));
        assert_eq!((resume.begin(0.1), resume.belief()), (Some(slow), None));
        let first = |known: Option<Remembered>| {
            let mut count = crate::Count::new(4, 64);
            count.first(0.1, 3e6, known.as_ref());
            count.n
        };
        assert_eq!(first(Some(slow)), first(None));
        assert!(first(Some(Remembered { measured: true, ..slow })) < first(None));
        assert_eq!(first(Some(Remembered { connections: 36, ..SAVED })), 36);
    }

    #[test]
    fn what_others_leave_or_nothing_is_not_worth_keeping() {
        let (bandwidth, least_rtt_s) = (Some(1e6), Some(0.1));
        let known = Estimate { bandwidth, least_rtt_s, measured: true, ..now(1.0, 1e6) };
        assert!(Remembered::of(&known, 4).is_some_and(|kept| kept.measured && kept.age_s == 0.0));
        assert_eq!(Remembered::of(&Estimate { shared: true, ..known }, 4), None);
        assert_eq!(Remembered::of(&Estimate { bandwidth: Some(0.0), ..known }, 4), None);
        assert_eq!(Remembered::of(&Estimate { least_rtt_s: None, ..known }, 4), None);
    }
}
