//! All pairs of short lineages against the rules written down once more, and all short lives of a
//! mirror with three legs against what each image really lacks.

use std::collections::{BTreeSet, HashSet};

use super::*;

fn id(number: u128) -> GenerationId {
    GenerationId(number)
}

fn lineage(ids: &[u128]) -> Lineage {
    let history = ids[1..].iter().map(|past| Past { id: id(*past), ended: WallMs(*past as u64) });
    Lineage::restore(id(ids[0]), history.collect())
}

/// All sequences of 1 to `depth` different ids out of `names`.
fn lineages(names: u128, depth: usize) -> Vec<Vec<u128>> {
    let mut all: Vec<Vec<u128>> = (0..names).map(|name| vec![name]).collect();
    let mut from = 0;
    for _ in 1..depth {
        let until = all.len();
        for at in from..until {
            for name in (0..names).filter(|name| !all[at].contains(name)).collect::<Vec<_>>() {
                let mut longer = all[at].clone();
                longer.push(name);
                all.push(longer);
            }
        }
        from = until;
    }
    all
}

/// The rules in the words of the manual, each asked for by itself.
fn rules(local: &[u128], base: u128, remote: &[u128]) -> Vec<&'static str> {
    let i_am_in_its_past = remote[1..].contains(&local[0]);
    let it_is_in_my_past = local[1..].contains(&remote[0]);
    let common = local.iter().any(|name| remote.contains(name));
    let parted = !i_am_in_its_past && !it_is_in_my_past && local[0] != remote[0];
    let mut rules = Vec::new();
    let mut rule = |applies: bool, name| applies.then(|| rules.push(name));
    rule(local[0] == remote[0] && !i_am_in_its_past, "same");
    rule(it_is_in_my_past && !i_am_in_its_past && remote[0] == base, "behind");
    rule(it_is_in_my_past && !i_am_in_its_past && remote[0] != base, "whole copy");
    rule(i_am_in_its_past && !it_is_in_my_past, "promoted");
    rule((i_am_in_its_past && it_is_in_my_past) || (parted && common), "split brain");
    rule(parted && !common, "unrelated");
    rules
}

fn name(relation: Relation) -> &'static str {
    match relation {
        Relation::Same => "same",
        Relation::Behind => "behind",
        Relation::WholeCopy => "whole copy",
        Relation::Promoted => "promoted",
        Relation::SplitBrain { .. } => "split brain",
        Relation::Unrelated => "unrelated",
    }
}

#[test]
fn all_pairs_of_histories_to_depth_4_have_one_outcome() {
    let all = lineages(6, 4);
    assert_eq!(all.len(), 6 + 30 + 120 + 360);
    let mut reached = BTreeSet::new();
    let mut pairs = 0u32;
    for local in &all {
        for remote in &all {
            let (ours, theirs) = (lineage(local), lineage(remote));
            // All bases of meaning: where we are, each of our past, one that is forgotten.
            for base in local.iter().copied().chain([99]) {
                let told = name(compare(&ours, id(base), &theirs));
                assert_eq!(rules(local, base, remote), [told], "{local:?} {base} {remote:?}");
                reached.insert(told);
                pairs += 1;
            }
        }
    }
    assert_eq!(reached.len(), 6, "{reached:?}");
    assert_eq!(pairs, 1_229_112);
}

#[test]
fn split_brain_tells_where_they_parted_and_when() {
    let told = compare(&lineage(&[9, 3, 2, 1]), id(3), &lineage(&[8, 2, 1]));
    let expected = Relation::SplitBrain {
        ancestor: id(2),
        left_here: Some(WallMs(2)),
        left_there: Some(WallMs(2)),
    };
    assert_eq!(told, expected);
}

#[test]
fn a_lineage_remembers_eight() {
    let mut lineage = Lineage::new(id(0));
    for next in 1..=10 {
        lineage = lineage.advanced(id(next), WallMs(next as u64 * 100));
    }
    assert_eq!(lineage.history().len(), HISTORY_MAX);
    assert_eq!(
        (lineage.ended(id(9)), lineage.ended(id(2))),
        (Some(WallMs(1000)), Some(WallMs(300)))
    );
    assert_eq!(lineage.ended(id(1)), None);
    assert_eq!(compare(&lineage, id(1), &super::Lineage::new(id(1))), Relation::Unrelated);
}

#[test]
fn an_older_superblock_or_stamp_is_noticed() {
    assert!(!was_put_back((5, 7), (5, 7)) && !was_put_back((5, 7), (6, 9)));
    assert!(was_put_back((5, 7), (4, 9)) && was_put_back((5, 7), (6, 6)));
}

#[test]
fn names_and_times_for_people() {
    assert_eq!(id(0x0123_4567_89ab_cdef << 64).to_string(), "01234567");
    let time = WallMs(1_700_000_000_123);
    assert_eq!(WallMs::from(SystemTime::from(time)), time);
}

/// A world of one local device and three legs that follows the engine's rules for generations:
/// every image is the set of the writes in it. Checked after every event: whatever a leg lacks of
/// the local image is told by bits, or the relation has it copied whole or touches nothing.
#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    /// Writes so far; also the next number of a write.
    writes: u8,
    names: u8,
    local: Vec<u8>,
    image: u32,
    legs: [Leg; 3],
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Leg {
    lineage: Vec<u8>,
    image: u32,
    base: u8,
    /// Followed: a write goes there as well.
    followed: bool,
    /// Writes that the leg may lack: the bitmap.
    dirty: u32,
    /// Somebody promoted it, and wrote to it.
    taken: bool,
    /// What an array's snapshot of it holds: lineage, image, stamp.
    snapshot: Option<(Vec<u8>, u32, u64)>,
    /// Counts our changes of the leg: as it stands there, and as we know it.
    stamp: u64,
    known: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// Of all followed legs one may miss it for ever, when it is lost right then.
    Write,
    Lose(usize),
    /// As `Lose`, with a write under way that is not at the leg and that is told complete after.
    LoseWithWrite(usize),
    /// Out of reach in asynchronous mode: followed within the lag, in the same generation.
    Unreachable(usize),
    /// An unreachable one is followed no longer.
    GiveUp(usize),
    Return(usize),
    Promote(usize),
    Snapshot(usize),
    PutBack(usize),
    /// Another unit in its place.
    Replace(usize),
}

impl Leg {
    fn changed(&mut self) {
        self.known += 1;
        self.stamp = self.known;
    }
}

impl World {
    fn new() -> Self {
        let leg = Leg {
            lineage: vec![0],
            image: 0,
            base: 0,
            followed: true,
            dirty: 0,
            taken: false,
            snapshot: None,
            stamp: 0,
            known: 0,
        };
        Self {
            writes: 0,
            names: 1,
            local: vec![0],
            image: 0,
            legs: [leg.clone(), leg.clone(), leg],
        }
    }

    fn fresh(&mut self) -> u8 {
        self.names += 1;
        self.names - 1
    }

    fn write(&mut self) {
        let bit = 1 << self.writes;
        self.writes += 1;
        self.image |= bit;
        for leg in &mut self.legs {
            if leg.followed {
                leg.image |= bit;
                leg.changed();
            } else {
                leg.dirty |= bit;
            }
        }
    }

    fn lose(&mut self, which: usize) {
        let next = self.fresh();
        let current = self.local[0];
        self.local.insert(0, next);
        for (number, leg) in self.legs.iter_mut().enumerate() {
            match (leg.followed, number == which) {
                (true, true) => (leg.followed, leg.base) = (false, current),
                // The others are told of the new generation.
                (true, false) => {
                    (leg.lineage, leg.base) = (self.local.clone(), next);
                    leg.changed();
                }
                (false, _) => {}
            }
        }
    }

    fn relation(&self, which: usize) -> Relation {
        let leg = &self.legs[which];
        let ids = |names: &[u8]| lineage(&names.iter().map(|n| u128::from(*n)).collect::<Vec<_>>());
        let relation = compare(&ids(&self.local), id(leg.base.into()), &ids(&leg.lineage));
        let put_back = was_put_back((leg.known, 0), (leg.stamp, 0));
        match relation {
            Relation::Same | Relation::Behind if put_back => Relation::WholeCopy,
            relation => relation,
        }
    }

    /// The event, if it can happen here.
    fn after(&self, event: Event) -> Option<Self> {
        let mut world = self.clone();
        match event {
            Event::Write => world.write(),
            Event::Lose(which) if self.legs[which].followed => world.lose(which),
            Event::LoseWithWrite(which) if self.legs[which].followed => {
                world.lose(which);
                world.write();
            }
            Event::Unreachable(which) if self.legs[which].followed => {
                (world.legs[which].followed, world.legs[which].base) = (false, self.local[0]);
            }
            Event::GiveUp(which)
                if !self.legs[which].followed && self.legs[which].base == self.local[0] =>
            {
                world.lose(which);
            }
            Event::Return(which) if !self.legs[which].followed => {
                let image = world.image;
                let local = world.local.clone();
                let relation = world.relation(which);
                let leg = &mut world.legs[which];
                match relation {
                    Relation::Same | Relation::Behind => {
                        leg.image |= leg.dirty;
                    }
                    Relation::WholeCopy => leg.image = image,
                    _ => return Some(world),
                }
                let base = local[0];
                (leg.lineage, leg.base, leg.dirty, leg.followed) = (local, base, 0, true);
                leg.changed();
            }
            Event::Promote(which) if !self.legs[which].followed => {
                let next = world.fresh();
                let leg = &mut world.legs[which];
                leg.lineage.insert(0, next);
                leg.image |= 1 << 31;
                leg.taken = true;
            }
            Event::Snapshot(which) => {
                let leg = &mut world.legs[which];
                leg.snapshot = Some((leg.lineage.clone(), leg.image, leg.stamp));
            }
            Event::PutBack(which) if !self.legs[which].followed => {
                let leg = &mut world.legs[which];
                let (lineage, image, stamp) = leg.snapshot.clone()?;
                (leg.lineage, leg.image, leg.stamp) = (lineage, image, stamp);
                leg.taken = image >> 31 != 0;
            }
            Event::Replace(which) if !self.legs[which].followed => {
                let next = world.fresh();
                let leg = &mut world.legs[which];
                (leg.lineage, leg.image, leg.taken) = (vec![next], 1 << 30, true);
            }
            _ => return None,
        }
        Some(world)
    }

    fn check(&self, trail: &[Event], reached: &mut BTreeSet<&'static str>) {
        for (which, leg) in self.legs.iter().enumerate() {
            let relation = self.relation(which);
            reached.insert(name(relation));
            let lacks = self.image & !leg.image;
            if matches!(relation, Relation::Same | Relation::Behind) {
                assert_eq!(lacks & !leg.dirty, 0, "leg {which} lacks a write: {trail:?}");
                assert!(!leg.taken, "somebody else's leg {which} is used: {trail:?}");
            }
            assert!(!(relation == Relation::WholeCopy && leg.taken), "overwritten: {trail:?}");
            if leg.followed {
                assert_eq!(lacks, 0, "a followed leg {which} lacks a write: {trail:?}");
            }
        }
    }
}

fn walk(
    world: &World,
    depth: usize,
    trail: &mut Vec<Event>,
    seen: &mut HashSet<(World, usize)>,
    reached: &mut BTreeSet<&'static str>,
) {
    if depth == 0 || !seen.insert((world.clone(), depth)) {
        return;
    }
    let per_leg: [fn(usize) -> Event; 9] = [
        Event::Lose,
        Event::LoseWithWrite,
        Event::Unreachable,
        Event::GiveUp,
        Event::Return,
        Event::Promote,
        Event::Snapshot,
        Event::PutBack,
        Event::Replace,
    ];
    let events = per_leg.iter().flat_map(|event| (0..3).map(event)).chain([Event::Write]);
    for event in events {
        let Some(next) = world.after(event) else { continue };
        trail.push(event);
        next.check(trail, reached);
        walk(&next, depth - 1, trail, seen, reached);
        trail.pop();
    }
}

#[test]
fn no_life_of_three_legs_ends_in_same_or_behind_while_a_leg_lacks_what_no_bit_tells() {
    let mut seen = HashSet::new();
    let mut reached = BTreeSet::new();
    walk(&World::new(), 6, &mut Vec::new(), &mut seen, &mut reached);
    assert_eq!(reached.len(), 6, "{reached:?}");
    assert!(seen.len() > 50_000, "{} states", seen.len());
}
