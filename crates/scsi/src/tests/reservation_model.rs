//! Persistent reservations against a model: three initiators do anything in any order; after every
//! step keys, holder, generation and everybody's access are what SPC-4 §5.12 says.

use proptest::prelude::*;

use super::reservations::{Cluster, prout};
use super::*;

const NEXUSES: usize = 3;
const KINDS: [u8; 6] = [1, 3, 5, 6, 7, 8];

#[derive(Clone, Debug)]
enum Step {
    Register { key: u64, new_key: u64, ignore: bool },
    Reserve { key: u64, kind: u8 },
    Release { key: u64, kind: u8 },
    Clear { key: u64 },
    Preempt { key: u64, victim: u64, kind: u8, abort: bool },
    Move { key: u64, new_key: u64, to: usize, unregister: bool },
    Reset,
}

fn any_step() -> impl Strategy<Value = Step> {
    let key = || 0u64..4;
    let kind = || prop::sample::select(&KINDS[..]);
    prop_oneof![
        4 => (key(), key(), any::<bool>())
            .prop_map(|(key, new_key, ignore)| Step::Register { key, new_key, ignore }),
        4 => (key(), kind()).prop_map(|(key, kind)| Step::Reserve { key, kind }),
        2 => (key(), kind()).prop_map(|(key, kind)| Step::Release { key, kind }),
        1 => key().prop_map(|key| Step::Clear { key }),
        3 => (key(), key(), kind(), any::<bool>())
            .prop_map(|(key, victim, kind, abort)| Step::Preempt { key, victim, kind, abort }),
        2 => (key(), key(), 0..NEXUSES, any::<bool>())
            .prop_map(|(key, new_key, to, unregister)| Step::Move { key, new_key, to, unregister }),
        1 => Just(Step::Reset),
    ]
}

/// What ought to be.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    generation: u32,
    keys: [Option<u64>; NEXUSES],
    held: Option<(usize, u8)>,
}

#[derive(Debug, PartialEq)]
enum Answer {
    Good,
    Conflict,
    Check(u8, u8),
}
use Answer::{Check, Conflict, Good};

fn all_registrants(kind: u8) -> bool {
    kind >= 7
}

impl Model {
    fn holds(&self, who: usize) -> bool {
        match self.held {
            Some((_, kind)) if all_registrants(kind) => self.keys[who].is_some(),
            Some((holder, _)) => holder == who,
            None => false,
        }
    }

    /// A reservation without anybody who holds it is none.
    fn settle(&mut self) {
        if !(0..NEXUSES).any(|who| self.holds(who) && self.keys[who].is_some()) {
            self.held = None;
        }
    }

    fn step(&mut self, who: usize, step: &Step) -> Answer {
        let known = |key: u64| self.keys[who] == Some(key);
        match *step {
            Step::Reset => return Good,
            Step::Register { key, new_key, ignore } => {
                if !ignore && self.keys[who].unwrap_or(0) != key {
                    return Conflict;
                }
                if self.keys[who].is_none() && new_key == 0 {
                    return Good;
                }
                self.keys[who] = Some(new_key).filter(|key| *key != 0);
                self.settle();
            }
            Step::Reserve { key, .. } | Step::Release { key, .. } | Step::Clear { key }
                if !known(key) =>
            {
                return Conflict;
            }
            Step::Reserve { kind, .. } => {
                return match self.held {
                    None => {
                        self.held = Some((who, kind));
                        Good
                    }
                    Some((_, held)) if held == kind && self.holds(who) => Good,
                    Some(_) => Conflict,
                };
            }
            Step::Release { kind, .. } => {
                return match self.held {
                    Some((_, held)) if self.holds(who) && held != kind => Check(0x26, 0x04),
                    Some(_) if self.holds(who) => {
                        self.held = None;
                        Good
                    }
                    _ => Good,
                };
            }
            Step::Clear { .. } => {
                self.keys = Default::default();
                self.held = None;
            }
            Step::Preempt { key, victim, kind, .. } => {
                if !known(key) {
                    return Conflict;
                }
                let takes_over = match self.held {
                    Some((_, held)) if all_registrants(held) => victim == 0,
                    Some((holder, _)) => self.keys[holder] == Some(victim),
                    None => false,
                };
                if victim == 0 && !takes_over {
                    return Check(0x26, 0x00);
                }
                if !takes_over && !self.keys.contains(&Some(victim)) {
                    return Conflict;
                }
                for other in 0..NEXUSES {
                    let hit = victim == 0 || self.keys[other] == Some(victim);
                    if hit && !(takes_over && other == who) {
                        self.keys[other] = None;
                    }
                }
                if takes_over {
                    self.held = Some((who, kind));
                }
                self.settle();
            }
            Step::Move { key, new_key, to, unregister } => {
                let movable =
                    self.held.is_some_and(|(holder, kind)| holder == who && !all_registrants(kind));
                if !known(key) || !movable {
                    return Conflict;
                }
                if new_key == 0 || to == who {
                    return Check(0x26, 0x00);
                }
                self.keys[to] = Some(new_key);
                self.held = self.held.map(|(_, kind)| (to, kind));
                if unregister {
                    self.keys[who] = None;
                }
            }
        }
        self.generation += 1;
        Good
    }

    /// SBC-3 table 13: may read, may write.
    fn access(&self, who: usize) -> (bool, bool) {
        let Some((_, kind)) = self.held else { return (true, true) };
        let insider = self.holds(who) || kind >= 5 && self.keys[who].is_some();
        (insider || matches!(kind, 1 | 5 | 7), insider)
    }
}

fn send(cluster: &Cluster, who: usize, step: &Step) -> Answer {
    let response = match *step {
        Step::Reset => {
            cluster.nexuses[who].lun_reset(0).unwrap();
            return Good;
        }
        Step::Register { key, new_key, ignore } => {
            cluster.out(who, if ignore { 6 } else { 0 }, 0, key, new_key)
        }
        Step::Reserve { key, kind } => cluster.out(who, 1, kind, key, 0),
        Step::Release { key, kind } => cluster.out(who, 2, kind, key, 0),
        Step::Clear { key } => cluster.out(who, 3, 0, key, 0),
        Step::Preempt { key, victim, kind, abort } => {
            cluster.out(who, if abort { 5 } else { 4 }, kind, key, victim)
        }
        Step::Move { key, new_key, to, unregister } => {
            let list = cluster.move_list(key, new_key, to, unregister);
            run_on(&cluster.nexuses[who], 0, &prout(7, 0, list.len()), list, 0)
        }
    };
    match response.sense {
        Some(sense) => Check(sense.additional.0, sense.additional.1),
        None if response.status == Status::RESERVATION_CONFLICT => Conflict,
        None => Good,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn behaves_as_the_model(
        steps in prop::collection::vec((0..NEXUSES, any_step()), 1..60),
    ) {
        let cluster = Cluster::new(NEXUSES);
        let mut model = Model::default();
        for (who, step) in steps {
            cluster.settle();
            let expected = model.step(who, &step);
            prop_assert_eq!(send(&cluster, who, &step), expected, "{} {:?}", who, step);
            cluster.settle();
            let (generation, mut keys) = cluster.keys();
            let mut wanted: Vec<u64> = model.keys.iter().flatten().copied().collect();
            keys.sort_unstable();
            wanted.sort_unstable();
            prop_assert_eq!((generation, keys), (model.generation, wanted), "{:?}", step);
            let held = model.held.map(|(holder, kind)| {
                (if all_registrants(kind) { 0 } else { model.keys[holder].unwrap() }, kind)
            });
            prop_assert_eq!(cluster.reservation(), held);
            for nexus in 0..NEXUSES {
                prop_assert_eq!(cluster.access(nexus), model.access(nexus), "nexus {}", nexus);
            }
        }
    }
}
