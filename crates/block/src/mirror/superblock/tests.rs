//! Round trips, torn copies, and a message of its own for each thing that may be there instead.

use proptest::prelude::*;

use super::*;

const SECTOR: usize = 512;

fn lineage(ids: &[u64]) -> Lineage {
    let first = Lineage::new(GenerationId(ids[0].into()));
    let next = |lineage: Lineage, id: &u64| {
        lineage.advanced(GenerationId(u128::from(*id) << 64), WallMs(id / 2))
    };
    ids[1..].iter().fold(first, next)
}

fn leg(number: u64, text: &str) -> LegRecord {
    LegRecord {
        id: LegId(u128::MAX - u128::from(number)),
        identity: format!("naa.{number:x}"),
        name: format!("iscsi://{text}/{number}"),
        state: LEG_STATES[(number % 10) as usize],
        base: GenerationId(number.into()),
        acked_epoch: number,
        superblock_sequence: number / 3,
        bitmap: BitmapId(u128::from(number) << 70),
        leg_bytes: number << 12,
        redo_bytes: number << 3,
        verified: Verified {
            at: WallMs(number),
            bytes: number << 20,
            mismatches: number % 5,
            next_block: number % 7,
            so_far: (number << 16, number % 3),
        },
    }
}

const LEG_STATES: [LegState; 10] = [
    LegState::Connecting,
    LegState::Copying,
    LegState::InSync,
    LegState::Lost,
    LegState::CatchingUp,
    LegState::Paused,
    LegState::Fenced,
    LegState::Diverged,
    LegState::Unrelated,
    LegState::Failed,
];

prop_compose! {
    fn local()(
        numbers in any::<[u32; 4]>(),
        size in BLOCK_BYTES..1 << 45,
        flags in any::<[bool; 5]>(),
        ids in prop::collection::vec(any::<u64>(), 1..12),
        text in "[a-zé.]{0,200}",
    ) -> LocalSuperblock {
        let [a, b, c, d] = numbers.map(u64::from);
        let legs = [(a, flags[0]), (b, flags[1]), (c, flags[2])];
        LocalSuperblock {
            uuid: MirrorId(u128::from(d) << 90),
            sequence: a,
            size,
            role: if flags[3] { Role::Primary } else { Role::Secondary },
            clean: flags[4],
            ring_from: b,
            epoch_max: c,
            lineage: lineage(&ids),
            legs: legs.map(|(number, present)| present.then(|| leg(number, &text))),
        }
    }
}

prop_compose! {
    fn remote()(
        numbers in any::<[u32; 6]>(),
        kind in 0..3,
        ids in prop::collection::vec(any::<u64>(), 1..12),
        writer in "[a-z]{0,30}",
    ) -> RemoteSuperblock {
        let [a, b, c, d, e, f] = numbers.map(u64::from);
        let consistency = match kind {
            0 => Consistency::Consistent,
            1 => Consistency::InconsistentSince(f),
            _ => Consistency::Applying(Committed {
                batch: f << 7,
                bytes: d / 4096 * 4096,
                records: (d / 4096) as u32,
                checksum: numbers[1],
                epoch: e,
                closed: WallMs(f),
            }),
        };
        RemoteSuperblock {
            uuid: MirrorId(u128::from(d) << 90),
            sequence: a,
            leg: LegId(u128::from(b) << 33),
            lineage: lineage(&ids),
            data_bytes: c,
            redo_bytes: d,
            consistency,
            writer,
            lease: WallMs(e),
        }
    }
}

fn stamp(epoch: u64) -> Stamp {
    let generation = GenerationId(77);
    Stamp { uuid: MirrorId(5), generation, epoch, closed: WallMs(epoch / 3) }
}

/// Two places; each new copy is written over the older one, torn after any number of sectors: what
/// is found is the state before or the state after.
fn torn_at_every_sector<T: Record + Clone + std::fmt::Debug>(history: &[T]) {
    let mut places = [[0; BYTES]; 2];
    let mut before: Option<&T> = None;
    for record in history {
        let place = (record.sequence() % 2) as usize;
        let new = record.encode().unwrap();
        for torn in 0..=BYTES / SECTOR {
            // Any prefix, and any suffix: a disk is free in the order of sectors.
            for range in [0..torn * SECTOR, torn * SECTOR..BYTES] {
                let mut cut = places;
                cut[place][range.clone()].copy_from_slice(&new[range.clone()]);
                let found = newest::<T>(&cut[0], &cut[1]);
                match (found, before) {
                    (Ok(found), _) if cut[place] == *new => assert_eq!(found, *record),
                    (Ok(found), Some(before)) => assert_eq!(found, *before, "{range:?}"),
                    (Err(fault), None) => {
                        let named = fault.is_blank() || matches!(fault, BlockFault::Neither { .. });
                        assert!(named, "{range:?}: {fault}");
                    }
                    (found, before) => panic!("{range:?}: {found:?} instead of {before:?}"),
                }
            }
        }
        places[place] = *new;
        before = Some(record);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_reads_back(local in local(), remote in remote(), epoch: u64) {
        prop_assert_eq!(LocalSuperblock::decode(&local.encode().unwrap()), Ok(local));
        prop_assert_eq!(RemoteSuperblock::decode(&remote.encode().unwrap()), Ok(remote));
        prop_assert_eq!(Stamp::decode(&stamp(epoch).encode().unwrap()), Ok(stamp(epoch)));
    }

    #[test]
    fn every_torn_write_of_a_history_leaves_the_state_before_or_after(
        mut locals in prop::collection::vec(local(), 1..6),
        mut remotes in prop::collection::vec(remote(), 1..6),
        first in 0u64..1000,
    ) {
        let uuid = MirrorId(3);
        for (sequence, superblock) in (first..).zip(&mut locals) {
            (superblock.sequence, superblock.uuid) = (sequence, uuid);
        }
        for (sequence, superblock) in (first..).zip(&mut remotes) {
            (superblock.sequence, superblock.uuid) = (sequence, uuid);
        }
        torn_at_every_sector(&locals);
        torn_at_every_sector(&remotes);
        torn_at_every_sector(&(first..first + 6).map(stamp).collect::<Vec<_>>());
    }

    #[test]
    fn no_flipped_bit_goes_unnoticed(local in local(), at in 0..BYTES, bit in 0u8..8) {
        let mut block = *local.encode().unwrap();
        block[at] ^= 1u8 << bit;
        prop_assert!(LocalSuperblock::decode(&block).is_err());
    }

    #[test]
    fn any_bytes_with_a_right_checksum_are_read_or_refused(bytes: Vec<u8>, at in 0usize..3000) {
        // What a hostile or a buggy writer may leave.
        let mut block = *plain().encode().unwrap();
        let end = (32 + at + bytes.len()).min(BYTES);
        block[32 + at..end].copy_from_slice(&bytes[..end - 32 - at]);
        block[16..20].fill(0);
        let checksum = crc32c::crc32c(&block);
        block[16..20].copy_from_slice(&checksum.to_le_bytes());
        let _ = LocalSuperblock::decode(&block);
    }
}

fn plain() -> LocalSuperblock {
    LocalSuperblock {
        uuid: MirrorId(0x0123_4567_89ab_cdef << 64),
        sequence: 4,
        size: 1 << 30,
        role: Role::Primary,
        clean: true,
        ring_from: 1,
        epoch_max: 0,
        lineage: lineage(&[1]),
        legs: [Some(leg(1, "a")), None, None],
    }
}

#[test]
fn each_thing_found_instead_has_its_message() {
    let block = *plain().encode().unwrap();
    let told = |block: &Block| LocalSuperblock::decode(block).unwrap_err().to_string();
    let changed = |at: usize, bytes: &[u8], seal: bool| {
        let mut block = block;
        block[at..at + bytes.len()].copy_from_slice(bytes);
        if seal {
            block[16..20].fill(0);
            let checksum = crc32c::crc32c(&block);
            block[16..20].copy_from_slice(&checksum.to_le_bytes());
        }
        told(&block)
    };
    let blank = "the block is all zeroes: there is no metadata of a mirror";
    assert_eq!(told(&[0; BYTES]), blank);
    assert_eq!(
        changed(0, b"LABELONE", true),
        "the block holds data of another kind (it begins with [4c, 41, 42, 45, 4c, 4f, 4e, 45])"
    );
    assert_eq!(
        told(&stamp(1).encode().unwrap()),
        "found the stamp of a mirror's leg, where the superblock of a mirror's metadata was expected"
    );
    // The checksum of a newer version need not be ours.
    assert_eq!(
        changed(12, &7u32.to_le_bytes(), false),
        "the superblock of a mirror's metadata has version 7; this program knows versions up to 1 \
         and leaves it alone"
    );
    let damaged = changed(2000, b"x", false);
    assert!(
        damaged
            .starts_with("the superblock of a mirror's metadata is torn or damaged: checksum 0x"),
        "{damaged}"
    );
    // Behind header, uuid and four numbers.
    assert_eq!(
        changed(32 + 16 + 32, &9u32.to_le_bytes(), true),
        "the superblock of a mirror's metadata has a right checksum and an impossible role (9)"
    );
    assert!(changed(32 + 16 + 8, &[0; 8], true).ends_with("impossible size (0)"));
}

#[test]
fn the_other_copy_helps_against_damage_but_not_against_a_newer_version() {
    let even = plain();
    let odd = LocalSuperblock { sequence: 3, ..plain() };
    let (first, second) = (*even.encode().unwrap(), *odd.encode().unwrap());
    let found = |first: &Block, second: &Block| newest::<LocalSuperblock>(first, second);
    assert_eq!(found(&first, &second), Ok(even.clone()));
    let mut damaged = first;
    damaged[99] ^= 1;
    assert_eq!(found(&damaged, &second), Ok(odd.clone()));
    assert_eq!(found(&[0; BYTES], &second), Ok(odd));
    assert_eq!(found(&first, &[7; BYTES]), Ok(even));

    let mut newer = second;
    newer[12] = 2;
    assert!(matches!(found(&first, &newer), Err(BlockFault::Newer { found: 2, .. })));

    let other = LocalSuperblock { uuid: MirrorId(9 << 96), sequence: 3, ..plain() };
    assert_eq!(
        found(&first, &other.encode().unwrap()).unwrap_err().to_string(),
        "one copy of the superblock of a mirror's metadata is of mirror 01234567-89ab, the other \
         of mirror 00000009-0000"
    );
    let swapped = found(&second, &first).unwrap_err();
    assert!(swapped.to_string().contains("impossible sequence number (3)"), "{swapped}");
    assert_eq!(found(&[0; BYTES], &[0; BYTES]), Err(BlockFault::Blank));
    let neither = found(&damaged, &[0; BYTES]).unwrap_err();
    assert!(!neither.is_blank() && neither.to_string().starts_with("neither copy can be used: "));
}

#[test]
fn texts_that_do_not_fit_are_refused() {
    let mut superblock = plain();
    superblock.legs[0] = Some(LegRecord { name: "n".repeat(NAME_BYTES_MAX + 1), ..leg(1, "") });
    assert_eq!(
        superblock.encode().unwrap_err().to_string(),
        "the name of a leg has 513 bytes; 512 are possible"
    );
}
