//! Which connection carries a command: the one that should have it done first. The choice is made
//! when the command is submitted, and once more by a connection that has nothing left to send while
//! others have (`take_from_another`); what was sent stays where it is (allegiance, RFC 7143
//! §4.2.3.1). Knows nothing of tasks or PDUs.
//!
//! A connection that has `backlog` bytes to do at `rate` is done with a command of `cost` bytes
//! after (backlog + cost) / rate. Rates cannot be taken as they are measured, though: below the
//! path's limit each connection's rate follows from what it was given (Little's law), so the one
//! that was given more would be given ever more. What tells a slow connection is that its commands
//! take longer than those of others. So a rate counts only where they do; all the rest are equal,
//! and among equals the least backlog wins.

use super::ConnectionId;

/// What is known of a connection when a command looks for one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The connection.
    pub id: ConnectionId,
    /// Payload bytes of its unfinished commands, both directions, plus a fixed cost per command.
    pub outstanding_bytes: u64,
    /// Its unfinished commands.
    pub in_flight: u32,
    /// Its time for a byte as a multiple of the fastest connection's ([`slowness`]); at least 1.
    pub slowness: f64,
}

/// What a connection did lately, the mean over the same time for both.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// What it carried.
    pub bytes_per_s: f64,
    /// What it had to do, as [`Candidate::outstanding_bytes`] counts.
    pub backlog_bytes: f64,
}

/// Cost of a command without its payload, in bytes: headers both ways and the target's work. It
/// keeps a stream of small commands from piling up on one connection.
pub const COMMAND_COST_BYTES: u64 = 512;

/// Commands that take this many times as long as the quickest connection's are slow. Less is noise:
/// they are of different lengths, and storage answers as it likes.
const SLOW_FACTOR: f64 = 1.5;
/// A connection nothing is known of yet counts as this slow beside others: its window begins small.
/// It gets its share as soon as it has shown more.
const YOUNG_SLOWNESS: f64 = 4.0;
/// Who carries less than this in a round trip was idle in between, so that its window is the
/// initial one again (RFC 5681 §4.1), or never had a larger one.
const COLD_BYTES: f64 = 65_536.0;
/// A long command takes a cold connection so many round trips more than others (its window doubles
/// with each), and the commands behind it wait. In truth it takes twice as many, but then it is
/// warm.
const COLD_ROUND_TRIPS: f64 = 2.5;
const COLD_COMMAND_BYTES: f64 = 262_144.0;
/// What is left of its slowness with each pace of a connection that is not slow any more.
const TRUST_FACTOR: f64 = 0.8;
/// No connection counts as slower: it must get a command now and then to show that it has
/// recovered.
const SLOWNESS_MAX: f64 = 64.0;

/// The slowness of connections from their paces and from what it was before, in the same order;
/// `None` is one too young to have a pace. At least 1, and 1 for all of equals. `rtt_s` is the
/// path's shortest round trip in seconds.
///
/// Who has stopped being slow is trusted again bit by bit: given its full share at once, it would
/// be slow again by the next time.
pub fn slowness(paces: &[Option<Pace>], before: &[f64], rtt_s: f64) -> Vec<f64> {
    let known = |pace: &Pace| pace.bytes_per_s > 0.0 && pace.backlog_bytes > 0.0;
    let time = |pace: &Pace| pace.backlog_bytes / pace.bytes_per_s;
    let busy = || paces.iter().flatten().filter(|pace| known(pace));
    let least = busy().map(time).fold(f64::INFINITY, f64::min);
    let fastest = busy().map(|pace| pace.bytes_per_s).fold(0.0, f64::max);
    let cold = COLD_ROUND_TRIPS * rtt_s * fastest / COLD_COMMAND_BYTES;
    let cold = cold.clamp(1.0, SLOWNESS_MAX);
    let is_cold = |pace: &Pace| pace.bytes_per_s * rtt_s < COLD_BYTES;
    let of = |(index, pace): (usize, &Option<Pace>)| match pace {
        None if fastest > 0.0 => cold.max(YOUNG_SLOWNESS),
        // It has something to do and does nothing.
        Some(pace) if fastest > 0.0 && pace.bytes_per_s <= 0.0 && pace.backlog_bytes > 0.0 => {
            SLOWNESS_MAX
        }
        Some(pace) if is_cold(pace) && cold > 1.0 => cold,
        Some(pace) if known(pace) && time(pace) > SLOW_FACTOR * least => {
            (fastest / pace.bytes_per_s).clamp(1.0, SLOWNESS_MAX)
        }
        // A young one that has begun is no longer young.
        Some(pace) if known(pace) || fastest <= 0.0 => {
            let before = before.get(index).copied().unwrap_or(1.0);
            (before * TRUST_FACTOR).clamp(1.0, SLOWNESS_MAX)
        }
        _ => 1.0,
    };
    paces.iter().enumerate().map(of).collect()
}

impl Candidate {
    /// When a command of `cost` would be done here, in the time that the fastest connection needs
    /// for a byte.
    pub fn completion(&self, cost: u64) -> f64 {
        self.outstanding_bytes.saturating_add(cost) as f64 * self.slowness
    }
}

/// The candidate that is expected to be done first with a command of `cost`; of equals the one with
/// fewer commands, then the first. `None` without candidates.
pub(super) fn choose(
    candidates: impl Iterator<Item = Candidate>,
    cost: u64,
) -> Option<(ConnectionId, f64)> {
    let mut best: Option<(Candidate, f64)> = None;
    for candidate in candidates {
        let completion = candidate.completion(cost);
        let better = best.is_none_or(|(other, least)| {
            completion < least || (completion == least && candidate.in_flight < other.in_flight)
        });
        if better {
            best = Some((candidate, completion));
        }
    }
    best.map(|(candidate, completion)| (candidate.id, completion))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidate(id: u8, outstanding_bytes: u64, slowness: f64) -> Candidate {
        Candidate { id: ConnectionId(id), outstanding_bytes, in_flight: 0, slowness }
    }

    fn chosen(candidates: &[Candidate], cost: u64) -> Option<ConnectionId> {
        choose(candidates.iter().copied(), cost).map(|(id, _)| id)
    }

    #[test]
    fn among_equals_the_least_backlog_wins_and_ties_go_to_the_first() {
        let all = [candidate(0, 900, 1.0), candidate(1, 512, 1.0), candidate(2, 512, 1.0)];
        assert_eq!(chosen(&all, 512), Some(ConnectionId(1)));
        assert_eq!(chosen(&[], 512), None);
    }

    #[test]
    fn a_slow_connection_gets_a_command_when_the_others_have_more_than_its_factor() {
        let all = |fast| [candidate(0, fast, 1.0), candidate(1, 0, 4.0)];
        assert_eq!(chosen(&all(2900), 1000), Some(ConnectionId(0)));
        assert_eq!(chosen(&all(3100), 1000), Some(ConnectionId(1)));
    }

    #[test]
    fn only_who_takes_longer_counts_as_slow() {
        let pace = |bytes_per_s, backlog_bytes| Some(Pace { bytes_per_s, backlog_bytes });
        // The same time for a command, whatever each was given.
        let slowness = |paces: &[Option<Pace>]| slowness(paces, &[], 0.0);
        assert_eq!(slowness(&[pace(8e6, 4e5), pace(2e6, 1e5), pace(5e6, 3e5)]), [1.0; 3]);
        // A quarter of the rate with as much to do.
        assert_eq!(slowness(&[pace(8e6, 4e5), pace(2e6, 4e5)]), [1.0, 4.0]);
        // Young, stuck, idle.
        let idle = Some(Pace::default());
        assert_eq!(slowness(&[pace(8e6, 4e5), None, pace(0.0, 1e5), idle]), [1.0, 4.0, 64.0, 1.0]);
        // Nothing is known of anybody.
        assert_eq!(slowness(&[None, None, pace(0.0, 1e5)]), [1.0; 3]);
        // As quick as the other again, with little to do: trusted bit by bit.
        let again = super::slowness(&[pace(8e6, 4e5), pace(2e6, 1e5)], &[1.0, 10.0], 0.0);
        assert_eq!(again, [1.0, 8.0]);
    }

    #[test]
    fn a_cold_connection_gets_a_command_when_the_windows_of_the_others_do_not_suffice() {
        let pace = |bytes_per_s, backlog_bytes| Some(Pace { bytes_per_s, backlog_bytes });
        let cold = |rtt_s| slowness(&[pace(10e6, 3e6), pace(1e5, 1e4)], &[], rtt_s)[1];
        // 2 MB in a round trip; two and a half of that behind it, and it is not worth waiting.
        assert_eq!(cold(0.2), 5e6 / COLD_COMMAND_BYTES);
        let all = |fast| [candidate(0, fast, 1.0), candidate(1, 0, cold(0.2))];
        assert_eq!(chosen(&all(4_000_000), 262_144), Some(ConnectionId(0)));
        assert_eq!(chosen(&all(6_000_000), 262_144), Some(ConnectionId(1)));
        // Nobody waits for a window on a short path, nor where all are idle.
        assert_eq!(cold(0.0005), 1.0);
        assert_eq!(slowness(&[pace(1e5, 1e4), pace(1e4, 1e3)], &[], 0.2), [1.0; 2]);
    }

    /// Commands of one size at a constant depth over connections of these rates (bytes per tick),
    /// with paces told every `sample` ticks, as by a path controller. What each carried, and its
    /// mean backlog.
    fn run(rates: &[f64], told: bool) -> (Vec<f64>, Vec<f64>) {
        const COST: u64 = 1000;
        const DEPTH: u64 = 64;
        let n = rates.len();
        let (mut backlog, mut served) = (vec![0_u64; n], vec![0.0; n]);
        let (mut carried, mut held, mut weights) = (vec![0.0; n], vec![0.0; n], vec![1.0; n]);
        let (mut since, mut mean) = (vec![0.0; n], vec![0.0; n]);
        for tick in 1..=20_000_u32 {
            while backlog.iter().sum::<u64>() < DEPTH * COST {
                let all: Vec<Candidate> =
                    (0..n).map(|i| candidate(i as u8, backlog[i], weights[i])).collect();
                let id = chosen(&all, COST).unwrap();
                backlog[id.index()] += COST;
            }
            for i in 0..n {
                served[i] += if backlog[i] > 0 { rates[i] } else { 0.0 };
                while served[i] >= COST as f64 && backlog[i] > 0 {
                    served[i] -= COST as f64;
                    backlog[i] -= COST;
                    carried[i] += COST as f64;
                    since[i] += COST as f64;
                }
                held[i] += backlog[i] as f64;
                mean[i] += backlog[i] as f64;
            }
            if told && tick % 200 == 0 {
                let pace = |i: usize| {
                    let (bytes_per_s, backlog_bytes) = (since[i] / 200.0, mean[i] / 200.0);
                    Some(Pace { bytes_per_s, backlog_bytes })
                };
                weights = slowness(&(0..n).map(pace).collect::<Vec<_>>(), &weights, 0.0);
                (since, mean) = (vec![0.0; n], vec![0.0; n]);
            }
        }
        (carried, held.iter().map(|sum| sum / 20_000.0).collect())
    }

    #[test]
    fn unequal_connections_carry_what_they_can_and_their_commands_take_alike_long() {
        let rates = [100.0, 100.0, 50.0, 10.0];
        let longest = |told| {
            let (carried, backlog) = run(&rates, told);
            assert!(carried.iter().sum::<f64>() > 0.97 * 20_000.0 * 260.0, "{carried:?}");
            let times = backlog.iter().zip(rates).map(|(backlog, rate)| backlog / rate);
            times.fold(0.0, f64::max)
        };
        let (least_backlog, expected) = (longest(false), longest(true));
        assert!(expected < 0.5 * least_backlog, "{expected} ticks against {least_backlog}");
    }

    proptest! {
        #[test]
        fn equal_connections_are_chosen_by_backlog_alone(
            backlogs in prop::collection::vec(0_u64..1 << 32, 1..64), cost in 1_u64..1 << 24,
        ) {
            let all: Vec<Candidate> =
                backlogs.iter().enumerate().map(|(i, b)| candidate(i as u8, *b, 1.0)).collect();
            let least = backlogs.iter().min().unwrap();
            let first = backlogs.iter().position(|b| b == least).unwrap();
            prop_assert_eq!(chosen(&all, cost), Some(ConnectionId(first as u8)));
        }

        #[test]
        fn nobody_else_would_be_done_earlier(
            all in prop::collection::vec((0_u64..1 << 32, 1.0..64.0_f64), 1..64),
            cost in 1_u64..1 << 24,
        ) {
            let all: Vec<Candidate> = all.iter().enumerate()
                .map(|(i, (backlog, slowness))| candidate(i as u8, *backlog, *slowness)).collect();
            let id = chosen(&all, cost).unwrap();
            let done = all[id.index()].completion(cost);
            prop_assert!(all.iter().all(|other| other.completion(cost) >= done));
        }

        #[test]
        fn slowness_is_a_finite_factor_whatever_was_measured(
            paces in prop::collection::vec(
                prop::option::of((0.0..1e12_f64, 0.0..1e12_f64)), 0..64),
            rtt_s in 0.0..10.0_f64,
        ) {
            let pace = |(bytes_per_s, backlog_bytes)| Pace { bytes_per_s, backlog_bytes };
            let paces: Vec<Option<Pace>> = paces.into_iter().map(|p| p.map(pace)).collect();
            let slow = slowness(&paces, &[3.0; 5], rtt_s);
            prop_assert_eq!(slow.len(), paces.len());
            prop_assert!(slow.iter().all(|factor| (1.0..=SLOWNESS_MAX).contains(factor)));
        }

        #[test]
        fn whoever_answers_in_the_same_time_is_equal(
            rates in prop::collection::vec(1.0..1e9_f64, 1..64), seconds in 1e-4..10.0_f64,
        ) {
            let pace = |rate: &f64| Some(Pace { bytes_per_s: *rate, backlog_bytes: rate * seconds });
            let paces: Vec<Option<Pace>> = rates.iter().map(pace).collect();
            prop_assert!(slowness(&paces, &[], 0.0).iter().all(|factor| *factor == 1.0));
        }
    }
}
