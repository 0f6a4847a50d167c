//! How much of the path we take: all of it, a rate, or a part of what the path gives. Turns the
//! user's wish into a limit in bytes a second; `throttle` holds the commands back.
//!
//! A part needs to know the whole: for a short while at first, and now and then later, nothing is
//! held back, and the most that was carried then is the whole until the next look.

use std::fmt;
use std::str::FromStr;

/// A look lasts this long, and at least so many round trips: a slow start has ended by then.
const LOOK_S: f64 = 2.0;
const LOOK_ROUND_TRIPS: f64 = 20.0;
/// A look ends here even if the round trip is absurd.
const LOOK_MAX_S: f64 = 6.0;
/// Time between two looks: what is taken too much then is 2 s of 60.
const LOOK_AGAIN_S: f64 = 60.0;
/// Weight of the newest interval in the rate that counts as carried.
const SMOOTHING: f64 = 0.3;
/// From this part of the limit on, it is the limit that holds us.
const BINDS_SHARE: f64 = 0.85;

/// What we may take.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Share {
    /// So many bytes a second.
    Rate(f64),
    /// This part of what the path gives, above 0 and at most 1.
    Part(f64),
}

/// A share that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no share: above 0 and at most 1, such as 0.5")]
pub struct ShareError(String);

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        match text.parse::<f64>() {
            Ok(part) if part > 0.0 && part <= 1.0 => Ok(Self::Part(part)),
            _ => Err(ShareError(text.to_owned())),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(rate) => write!(f, "{rate} bytes/s"),
            Self::Part(part) => write!(f, "{part}"),
        }
    }
}

/// The limit as of now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Held {
    /// None: nothing is held back.
    pub(super) bytes_per_s: Option<f64>,
    /// It is the limit that holds us, not the path.
    pub(super) binds: bool,
}

/// A share, metered.
#[derive(Debug)]
pub(super) struct Meted {
    share: Option<Share>,
    carried: f64,
    /// The most that was carried in this look.
    most: f64,
    /// Until when nothing is held back; none: no traffic has come yet.
    look_until_s: Option<f64>,
    look_again_s: f64,
    held: Held,
}

impl Meted {
    pub(super) fn new(share: Option<Share>) -> Self {
        let share = share.filter(|share| *share != Share::Part(1.0));
        let bytes_per_s = match share {
            Some(Share::Rate(rate)) => Some(rate),
            _ => None,
        };
        let held = Held { bytes_per_s, binds: false };
        Self { share, carried: 0.0, most: 0.0, look_until_s: None, look_again_s: 0.0, held }
    }

    /// The limit from here on, when so much was carried in the interval that ended at `t_s`.
    pub(super) fn limit(&mut self, t_s: f64, bytes_per_s: f64, rtt_us: f64) -> Held {
        self.carried += SMOOTHING * (bytes_per_s - self.carried);
        let rate = match self.share {
            None => None,
            Some(Share::Rate(rate)) => Some(rate),
            Some(Share::Part(part)) => self.look(t_s, rtt_us).then_some(part * self.most),
        };
        let binds = rate.is_some_and(|rate| self.carried >= BINDS_SHARE * rate);
        self.held = Held { bytes_per_s: rate, binds };
        self.held
    }

    /// Looks what the path gives; true when that is known.
    fn look(&mut self, t_s: f64, rtt_us: f64) -> bool {
        let Some(until_s) = self.look_until_s else {
            if self.carried > 0.0 {
                let long = (LOOK_ROUND_TRIPS * rtt_us / 1e6).clamp(LOOK_S, LOOK_MAX_S);
                self.look_until_s = Some(t_s + long);
                self.look_again_s = t_s + long + LOOK_AGAIN_S;
                self.most = self.carried;
            }
            return false;
        };
        if t_s < until_s {
            self.most = self.most.max(self.carried);
            return false;
        }
        // Only where the limit is felt: an idle path is not worth a look.
        if t_s >= self.look_again_s && self.held.binds {
            self.look_until_s = None;
        }
        self.most > 0.0
    }

    pub(super) fn rate(&self) -> Option<f64> {
        self.held.bytes_per_s
    }

    pub(super) fn binds(&self) -> bool {
        self.held.binds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs ten intervals a second until `to_s`; the path gives `most`.
    fn run(meted: &mut Meted, t_s: &mut f64, to_s: f64, most: f64) -> Held {
        let mut held = meted.held;
        while *t_s < to_s {
            *t_s += 0.1;
            let carried = held.bytes_per_s.map_or(most, |rate| rate.min(most));
            held = meted.limit(*t_s, carried, 20_000.0);
        }
        held
    }

    #[test]
    fn a_rate_holds_from_the_first_moment_and_binds_where_it_is_reached() {
        let mut meted = Meted::new(Some(Share::Rate(1e6)));
        assert_eq!(meted.limit(0.1, 0.0, 0.0).bytes_per_s, Some(1e6));
        assert!(run(&mut meted, &mut 0.1, 5.0, 9e6).binds);
        assert!(!run(&mut Meted::new(Some(Share::Rate(1e6))), &mut 0.0, 5.0, 5e5).binds);
    }

    #[test]
    fn a_part_follows_what_the_path_gives() {
        let (mut meted, mut t_s) = (Meted::new(Some(Share::Part(0.5))), 0.0);
        assert_eq!(run(&mut meted, &mut t_s, 1.9, 1e8).bytes_per_s, None);
        let held = run(&mut meted, &mut t_s, 10.0, 1e8);
        assert!(held.binds && (held.bytes_per_s.unwrap() / 5e7 - 1.0).abs() < 0.01, "{held:?}");
        // The path gets faster: seen at the next look.
        let held = run(&mut meted, &mut t_s, 80.0, 2e8);
        assert!((held.bytes_per_s.unwrap() / 1e8 - 1.0).abs() < 0.05, "{held:?}");
        assert!("0".parse::<Share>().is_err() && "1.1".parse::<Share>().is_err());
        assert_eq!("0.25".parse(), Ok(Share::Part(0.25)));
    }

    #[test]
    fn without_a_share_nothing_is_held_back() {
        for share in [None, Some(Share::Part(1.0))] {
            let held = run(&mut Meted::new(share), &mut 0.0, 5.0, 1e9);
            assert_eq!(held, Held::default());
        }
    }
}
