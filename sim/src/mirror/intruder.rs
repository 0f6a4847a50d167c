//! Somebody who writes to a leg what its mirror would write too early: a mistake that no change of
//! what the engine asks for could make.

use block::mirror::layout::{LegLayout, LocalLayout};
use block::mirror::superblock::{
    BYTES, Block, Consistency, LocalSuperblock, Record, RemoteSuperblock, newest,
};
use block::mirror::{LEGS_MAX, LegState};

use super::content::{Content, SECTOR, SECTOR_BYTES};
use super::disk::store::{Session, Store, Work};
use super::disk::{lock, write_work};
use super::leg::Leg;

/// Calls the image of a leg a legal one when the mirror has noted that nothing is owed to the leg
/// any more: what was copied is of many moments then, and the log has not brought the end of them.
#[derive(Default)]
pub(super) struct Hasty {
    /// Where each leg stood by the mirror's metadata.
    before: [Option<LegState>; LEGS_MAX],
    pub(super) made: u64,
}

impl Hasty {
    pub(super) fn look(&mut self, metadata: &Store, legs: &[Leg]) {
        let Ok(noted) = newest::<LocalSuperblock>(
            &visible(metadata, LocalLayout::superblock(0)),
            &visible(metadata, LocalLayout::superblock(1)),
        ) else {
            return;
        };
        for ((record, before), leg) in noted.legs.iter().zip(&mut self.before).zip(legs) {
            let state = record.as_ref().map(|record| record.state);
            let before = std::mem::replace(before, state);
            if before != state && state == Some(LegState::InSync) && call_legal(leg) {
                self.made += 1;
            }
        }
    }
}

fn call_legal(leg: &Leg) -> bool {
    let Ok(layout) = LegLayout::new(leg.kind().bytes, 0) else { return false };
    let mut store = lock(leg.store());
    let found = newest::<RemoteSuperblock>(
        &visible(&store, layout.superblock(0)),
        &visible(&store, layout.superblock(1)),
    );
    let Ok(found) = found else { return false };
    if found.consistency == Consistency::Consistent {
        return false;
    }
    let legal = RemoteSuperblock { consistency: Consistency::Consistent, ..found };
    let Ok(block) = legal.encode() else { return false };
    put(&mut store, leg.login(), write_work(layout.superblock(legal.sequence), &block[..], true));
    true
}

/// Does it at once, for good.
fn put(store: &mut Store, session: Session, work: Work) {
    let id = store.begin(session, work);
    drop(store.perform(id));
    store.answered(id);
}

/// A block as a read would see it.
fn visible(store: &Store, offset: u64) -> Block {
    let mut block = [0; BYTES];
    let places = block.chunks_exact_mut(SECTOR).zip(offset / SECTOR_BYTES..);
    places.for_each(|(out, at)| Content::fill(&store.visible(at), at, out));
    block
}
