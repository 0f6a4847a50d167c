//! What a path was like last time, and how far to believe it: Careful Resume
//! (draft-ietf-tsvwg-careful-resume). Pure: whoever has a file reads and writes it.
//!
//! Phases have the draft's names. *Reconnaissance* looks whether the round trip is that of the path
//! remembered. *Unvalidated* goes at half of what was remembered. *Validating* waits for the round
//! trip that shows it; losses of the load lead to *safe retreat*, half of what was carried.
//! *Normal* is the rest.

use super::model::Estimate;

/// What is older than this is forgotten, in seconds: networks are rebuilt by night.
const LIFETIME_S: f64 = 86400.0;
/// The jump is this part of what was remembered (draft §4.2: at most half of the saved window).
const JUMP: f64 = 0.5;
/// The round trip may be that many times the remembered one (draft §4.1: from half to ten times).
const RTT_FACTORS: (f64, f64) = (0.5, 10.0);

/// What a path was like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remembered {
    /// What the line carried, in bytes a second.
    pub bandwidth: f64,
    /// Round trip without queues, in seconds.
    pub rtt_s: f64,
    /// Share of segments lost.
    pub loss: f64,
    /// Connections that carried it.
    pub connections: u32,
    /// Seconds since then.
    pub age_s: f64,
}

impl Remembered {
    /// What is worth keeping of a transfer; none if the line was never seen saturated.
    pub fn of(now: &Estimate) -> Option<Self> {
        let (bandwidth, rtt_s) = now.bandwidth.zip(now.rtt_s)?;
        let (loss, connections) = (now.loss, now.connections);
        (bandwidth > 0.0).then_some(Self { bandwidth, rtt_s, loss, connections, age_s: 0.0 })
    }

    /// It may be used for a path of this round trip.
    fn is_of(&self, rtt_s: f64) -> bool {
        let factor = rtt_s / self.rtt_s;
        let known = self.bandwidth.is_finite() && self.bandwidth > 0.0;
        known && self.age_s <= LIFETIME_S && factor >= RTT_FACTORS.0 && factor <= RTT_FACTORS.1
    }
}

/// Phases of Careful Resume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Nothing was sent yet.
    #[default]
    Reconnaissance,
    /// The jump is made, and not yet acknowledged.
    Unvalidated,
    /// The jump is being acknowledged.
    Validating,
    /// It was too much.
    SafeRetreat,
    /// Nothing is believed any more, or it was confirmed.
    Normal,
}

/// Goes from one phase to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resume {
    saved: Option<Remembered>,
    phase: Phase,
    jump: f64,
    validated_s: f64,
}

impl Resume {
    /// With what was remembered, if anything was.
    pub fn new(saved: Option<Remembered>) -> Self {
        Self { saved, ..Self::default() }
    }

    /// The present phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The round trip of this path is known: the bandwidth to open connections for, in bytes a
    /// second.
    pub fn begin(&mut self, rtt_s: f64) -> Option<f64> {
        let saved = self.saved.filter(|saved| saved.is_of(rtt_s));
        self.phase = if saved.is_some() { Phase::Unvalidated } else { Phase::Normal };
        self.jump = saved.map_or(0.0, |saved| JUMP * saved.bandwidth);
        saved.map(|saved| saved.bandwidth)
    }

    /// Takes what is known now. What the path is to be filled with from here on, in bytes a second,
    /// where that is not what was carried.
    pub fn handle(&mut self, now: &Estimate) -> Option<f64> {
        match self.phase {
            Phase::Reconnaissance | Phase::Normal => None,
            Phase::SafeRetreat => {
                self.phase = Phase::Normal;
                None
            }
            Phase::Unvalidated => {
                self.validated_s = now.t_s + now.round_s();
                self.phase = Phase::Validating;
                Some(self.jump)
            }
            Phase::Validating if now.lossy => {
                self.phase = Phase::SafeRetreat;
                Some(now.carried / 2.0)
            }
            Phase::Validating => {
                if now.t_s >= self.validated_s && now.full {
                    self.phase = Phase::Normal;
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: Remembered =
        Remembered { bandwidth: 100e6, rtt_s: 0.1, loss: 0.0, connections: 8, age_s: 60.0 };

    fn now(t_s: f64, lossy: bool) -> Estimate {
        let (carried, rtt_s, full) = (30e6, Some(0.1), true);
        Estimate { t_s, carried, rtt_s, full, lossy, ..Estimate::default() }
    }

    #[test]
    fn what_is_old_or_of_another_path_is_not_believed() {
        assert_eq!(Resume::new(Some(SAVED)).begin(0.1), Some(100e6));
        assert_eq!(Resume::new(Some(SAVED)).begin(0.04), None);
        assert_eq!(Resume::new(Some(SAVED)).begin(1.1), None);
        let old = Remembered { age_s: 1e6, ..SAVED };
        assert_eq!(Resume::new(Some(old)).begin(0.1), None);
        let wrong = Remembered { bandwidth: f64::NAN, ..SAVED };
        assert_eq!(Resume::new(Some(wrong)).begin(0.1), None);
        assert_eq!(Resume::new(None).begin(0.1), None);
    }

    #[test]
    fn a_jump_is_half_and_is_confirmed_or_taken_back() {
        let mut resume = Resume::new(Some(SAVED));
        resume.begin(0.1);
        assert_eq!(resume.handle(&now(0.1, false)), Some(50e6));
        assert_eq!((resume.handle(&now(0.2, false)), resume.phase()), (None, Phase::Validating));
        assert_eq!((resume.handle(&now(0.4, false)), resume.phase()), (None, Phase::Normal));
        let mut resume = Resume::new(Some(SAVED));
        resume.begin(0.1);
        resume.handle(&now(0.1, false));
        assert_eq!(resume.handle(&now(0.2, true)), Some(15e6));
        assert_eq!((resume.handle(&now(0.3, true)), resume.phase()), (None, Phase::Normal));
    }
}
