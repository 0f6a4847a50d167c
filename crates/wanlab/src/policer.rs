//! A policer: a token bucket that drops what exceeds a rate and a burst, and delays nothing
//! (RFC 2697's two colours; many providers sell a fast line with one before it). No queue: that of
//! the line is [`crate::link`]'s.
//!
//! Bytes count as for the line's rate, with what Ethernet adds, so that the two rates compare.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::{ETHERNET_OVERHEAD_BYTES, RATE_MAX_BITS_PER_S};
use crate::link::NANOS_PER_S;
use crate::units::{UnitError, parse_rate, parse_size};

/// A burst that nobody gave: a twentieth of a second at the rate, and at least what a sender with
/// offload gives away at once.
const BURST_PARTS_OF_S: u64 = 20;
const BURST_LEAST_BYTES: u64 = 65_536;

/// What passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policer {
    /// Bits per second in the long run, counted as on the wire.
    pub rate_bits_per_s: u64,
    /// What may come at once after a silence.
    pub burst_bytes: u64,
}

impl Policer {
    /// `RATE` or `RATE,BURST`: `200mbit`, `200mbit,1M`.
    ///
    /// # Errors
    /// When there are not one or two values, or one of them is none of its kind.
    pub fn parse(input: &str) -> Result<Self, PolicerError> {
        let (rate, burst) = match *input.split(',').collect::<Vec<_>>().as_slice() {
            [rate] => (rate, None),
            [rate, burst] => (rate, Some(burst)),
            _ => return Err(PolicerError::Count(input.to_owned())),
        };
        let rate_bits_per_s = parse_rate(rate)?;
        let burst_bytes = match burst {
            Some(burst) => parse_size(burst)?,
            None => (rate_bits_per_s / 8 / BURST_PARTS_OF_S).max(BURST_LEAST_BYTES),
        };
        Ok(Self { rate_bits_per_s, burst_bytes })
    }

    pub(crate) fn validate(&self, mtu: u32) -> Result<(), &'static str> {
        if !(1..=RATE_MAX_BITS_PER_S).contains(&self.rate_bits_per_s) {
            return Err("policer's rate must lie between 1bit and 10tbit");
        }
        if self.burst_bytes < u64::from(mtu) + u64::from(ETHERNET_OVERHEAD_BYTES) {
            return Err("policer's burst must hold a packet of the MTU and 38 bytes of Ethernet");
        }
        Ok(())
    }

    /// Nanoseconds until an empty bucket is full.
    fn burst_ns(&self) -> u64 {
        let bits = u128::from(self.burst_bytes) * 8 * u128::from(NANOS_PER_S);
        u64::try_from(bits / u128::from(self.rate_bits_per_s)).unwrap_or(u64::MAX)
    }
}

/// A policer that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PolicerError {
    /// One of the values.
    #[error("policer's {0}")]
    Unit(#[from] UnitError),
    /// Neither one value nor two.
    #[error("policer {0:?}: give RATE or RATE,BURST, as in 200mbit,1M")]
    Count(String),
}

/// The bucket at work: what it lacks is kept as the time that fills it.
#[derive(Debug)]
pub(crate) struct Bucket {
    policer: Policer,
    burst_ns: u64,
    /// When it is full again, if nothing comes before.
    full_at_ns: u64,
    /// What division by the rate left over, in bits × 1e9, as in the line's serialisation.
    remainder: u64,
}

impl Bucket {
    /// A full one.
    pub(crate) fn new(policer: Policer) -> Self {
        Self { policer, burst_ns: policer.burst_ns(), full_at_ns: 0, remainder: 0 }
    }

    /// Another rate and burst from now on; what the bucket lacks, it lacks still, up to all of it.
    pub(crate) fn set(&mut self, now_ns: u64, policer: Policer) {
        if policer == self.policer {
            return;
        }
        let lacks_ns = u128::from(self.full_at_ns.saturating_sub(now_ns))
            * u128::from(self.policer.rate_bits_per_s)
            / u128::from(policer.rate_bits_per_s);
        let lacks_ns = u64::try_from(lacks_ns).unwrap_or(u64::MAX).min(policer.burst_ns());
        let full_at_ns = now_ns.saturating_add(lacks_ns);
        *self = Self { policer, burst_ns: policer.burst_ns(), full_at_ns, remainder: 0 };
    }

    /// Whether a segment of so many bytes on the wire passes; if so, its tokens are gone.
    pub(crate) fn passes(&mut self, now_ns: u64, wire_bytes: u32) -> bool {
        let (full_at_ns, left_over) = match self.full_at_ns {
            at_ns if at_ns < now_ns => (now_ns, 0),
            at_ns => (at_ns, self.remainder),
        };
        let numerator = u64::from(wire_bytes) * 8 * NANOS_PER_S + left_over;
        let full_at_ns = full_at_ns.saturating_add(numerator / self.policer.rate_bits_per_s);
        if full_at_ns > now_ns.saturating_add(self.burst_ns) {
            return false;
        }
        (self.full_at_ns, self.remainder) = (full_at_ns, numerator % self.policer.rate_bits_per_s);
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn bucket(text: &str) -> Bucket {
        Bucket::new(Policer::parse(text).unwrap())
    }

    /// How many of so many packets pass that come at once.
    fn passing(bucket: &mut Bucket, now_ns: u64, packets: usize) -> usize {
        (0..packets).filter(|_| bucket.passes(now_ns, 1000)).count()
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        // 8 Mbit/s are a packet of 1000 bytes in a millisecond.
        let mut bucket = bucket("8mbit,10000b");
        assert_eq!(passing(&mut bucket, 5 * MS, 50), 10);
        assert_eq!(passing(&mut bucket, 6 * MS - 1, 50), 0);
        assert_eq!(passing(&mut bucket, 6 * MS, 50), 1);
        assert_eq!(passing(&mut bucket, 9 * MS, 50), 3);
        // A silence fills it, and no more than that.
        assert_eq!(passing(&mut bucket, 900 * MS, 50), 10);
    }

    #[test]
    fn what_the_bucket_lacks_it_lacks_at_another_rate_too() {
        let mut bucket = bucket("8mbit,10000b");
        assert_eq!(passing(&mut bucket, 0, 50), 10);
        bucket.set(4 * MS, Policer::parse("80mbit,10000b").unwrap());
        assert_eq!(passing(&mut bucket, 4 * MS, 50), 4);
        assert_eq!(passing(&mut bucket, 4 * MS + 200_000, 50), 2);
        // A smaller one is empty at most.
        bucket.set(5 * MS, Policer::parse("8mbit,1000b").unwrap());
        assert_eq!(passing(&mut bucket, 6 * MS, 50), 1);
        // To set the same again refills nothing.
        bucket.set(6 * MS, Policer::parse("8mbit,1000b").unwrap());
        assert_eq!(passing(&mut bucket, 6 * MS, 50), 0);
    }

    #[test]
    fn values_and_what_is_wrong_with_them() {
        let policer = |text: &str| Policer::parse(text);
        let of = |rate_bits_per_s, burst_bytes| Ok(Policer { rate_bits_per_s, burst_bytes });
        assert_eq!(policer("200mbit,1M"), of(200_000_000, 1 << 20));
        assert_eq!(policer("200mbit"), of(200_000_000, 1_250_000));
        assert_eq!(policer("1mbit"), of(1_000_000, 65_536));
        let message = |text: &str| policer(text).unwrap_err().to_string();
        assert!(
            message("200").contains("policer's rate \"200\": has no unit"),
            "{}",
            message("200")
        );
        assert!(message("1mbit,x").contains("size"));
        assert!(message("1mbit,2k,3").contains("RATE,BURST"));
        let small = Policer { rate_bits_per_s: 1, burst_bytes: 1537 };
        assert!(small.validate(1500).is_err() && small.validate(1499).is_ok());
    }

    proptest! {
        /// Whatever comes whenever: in no span passes more than its burst and the rate's share of
        /// it; and nothing is dropped that a bucket counted in bytes would let pass.
        #[test]
        fn no_span_carries_more_than_burst_and_rate(
            rate in 1_000_000_u64..20_000_000_000,
            burst in 1538_u64..100_000,
            offers in prop::collection::vec((0_u64..200_000, 84_u32..1538), 1..300),
        ) {
            let mut bucket = Bucket::new(Policer { rate_bits_per_s: rate, burst_bytes: burst });
            let (mut now_ns, mut tokens) = (0_u64, burst as f64);
            let mut passed: Vec<(u64, u32)> = Vec::new();
            for (gap_ns, bytes) in offers {
                now_ns += gap_ns;
                let filled = gap_ns as f64 * rate as f64 / 8e9;
                tokens = (tokens + filled).min(burst as f64);
                let (passes, spare) = (bucket.passes(now_ns, bytes), tokens - f64::from(bytes));
                // A nanosecond of rounding, in bytes, decides either way.
                let doubt = rate as f64 / 8e9 * 2.0 + 1e-3;
                prop_assert!(passes || spare < doubt, "{spare} bytes to spare and dropped");
                prop_assert!(!passes || spare > -doubt, "{spare} bytes to spare and passed");
                if passes {
                    tokens = spare;
                    passed.push((now_ns, bytes));
                }
            }
            for (at, (from_ns, _)) in passed.iter().enumerate() {
                let mut sum = 0;
                for (to_ns, bytes) in &passed[at..] {
                    sum += u64::from(*bytes);
                    let most = burst as f64 + (to_ns - from_ns + 2) as f64 * rate as f64 / 8e9;
                    prop_assert!(sum as f64 <= most + 1e-3, "{sum} of {most}");
                }
            }
        }
    }
}
