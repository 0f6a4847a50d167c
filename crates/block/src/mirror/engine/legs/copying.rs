//! The part of [`Legs`] that copies use: what is owed, and what became of it.

use std::ops::Range;
use std::sync::Arc;

use super::super::super::BLOCK_BYTES;
use super::super::session::Session;
use super::Legs;

impl Legs {
    /// Blocks that a copy has to bring to a leg.
    pub(crate) fn owed(&self, leg: usize) -> u64 {
        self.lock()[leg].tracking.owed()
    }

    /// The first run of blocks among `blocks` that are owed and not being copied.
    pub(crate) fn first_to_copy(&self, leg: usize, blocks: Range<u64>) -> Option<Range<u64>> {
        self.lock()[leg].tracking.first_to_copy(blocks)
    }

    /// A copy is about to send `blocks`, which are owed. The caller holds their range, and may give
    /// it back before it reports with [`copy_ended`](Self::copy_ended).
    pub(crate) fn begin_copy(
        &self,
        leg: usize,
        session: &Arc<Session>,
        blocks: Range<u64>,
    ) -> bool {
        let mut legs = self.lock();
        let Some(leg) = legs[leg].used_by(session) else { return false };
        leg.tracking.copies(blocks);
        true
    }

    /// The copy of `blocks` has ended. What was changed meanwhile is owed again.
    pub(crate) fn copy_ended(
        &self,
        leg: usize,
        session: &Arc<Session>,
        blocks: Range<u64>,
        well: bool,
    ) {
        let mut legs = self.lock();
        let number = leg;
        let Some(leg) = legs[number].used_by(session) else { return };
        for blocks in leg.tracking.copied(blocks, well) {
            self.journal.copied(number, &blocks);
        }
    }

    /// Bytes of data that went to the leg so far, or came from it to be compared.
    pub(crate) fn moved_bytes(&self, leg: usize) -> u64 {
        let leg = &self.lock()[leg];
        leg.sent_bytes + leg.compared_bytes
    }

    /// `bytes` more came from the leg to be compared.
    pub(crate) fn compared(&self, leg: usize, bytes: u64) {
        self.lock()[leg].compared_bytes += bytes;
    }

    /// `blocks` more were copied, for which `sent_bytes` bytes of data went to the leg.
    pub(crate) fn copied(&self, leg: usize, blocks: u64, sent_bytes: u64) {
        let mut legs = self.lock();
        let leg = &mut legs[leg];
        leg.copied_blocks += blocks;
        leg.note_rate(self.host.now());
        leg.sent_bytes += sent_bytes;
    }

    /// `blocks` that were owed are at the leg as they are here: there is nothing to send, nor to
    /// bring home from its redo log.
    pub(crate) fn found_there(&self, leg: usize, blocks: u64) {
        let mut legs = self.lock();
        let leg = &mut legs[leg];
        leg.copied_blocks += blocks;
        (leg.home_bytes, leg.home_before) =
            (leg.home_bytes + blocks * BLOCK_BYTES, leg.home_before + blocks * BLOCK_BYTES);
        leg.note_rate(self.host.now());
    }

    /// A leg that was far behind is not any more: what is not owed to it is sent there at once.
    pub(crate) fn is_near(&self, leg: usize, session: &Arc<Session>) {
        if let Some(leg) = self.lock()[leg].used_by(session) {
            leg.far_behind = false;
        }
    }

    /// Changes are left to the copy for now.
    pub(crate) fn is_far_behind(&self, leg: usize) -> bool {
        self.lock()[leg].far_behind
    }

    /// Until the leg is in sync, copies to it look before they send: most of what is owed to it is
    /// only not known to be equal.
    pub(crate) fn compare(&self, leg: usize) {
        self.lock()[leg].compares = true;
    }

    /// Whether copies to it look before they send.
    pub(crate) fn compares(&self, leg: usize) -> bool {
        self.lock()[leg].compares
    }
}
