//! Bitmap pages on their way to the device. Whoever calls has the turn.

use std::collections::BTreeSet;

use super::super::LEGS_MAX;
use super::super::bitmap::{Bitmap, BitmapId, PAGE_BYTES};
use super::write::write_all_stable;
use super::{Image, Inner};
use crate::{Bytes, Result};

/// Pages that are under way at once: enough to be quick, few enough that memory does not count.
const PAGES_AT_ONCE: usize = 256;

/// A page that was taken out of a bitmap: leg, number, content.
type Taken = (usize, u64, Bytes);

fn take(bits: &mut Bitmap, leg: usize, id: BitmapId, number: u64) -> Taken {
    let mut page = Box::new([0; PAGE_BYTES]);
    bits.take_page(number, id, &mut page);
    (leg, number, Bytes::copy_from_slice(&page[..]))
}

impl Inner {
    /// Saves the pages that lack bits of one of these extents.
    pub(super) async fn save_missing_bits(&self, image: &dyn Image, extents: &[u32]) -> Result<()> {
        let mut taken = Vec::new();
        image.look_at_bits(&mut |leg, id, bits| {
            let missing = extents.iter().filter_map(|extent| bits.page_missing_bits_of(*extent));
            let missing: BTreeSet<u64> = missing.collect();
            taken.extend(missing.into_iter().map(|number| take(bits, leg, id, number)));
        });
        self.save_taken(image, taken).await
    }

    /// Saves all pages of one leg or of all that are not the same on the device.
    pub(super) async fn save(&self, leg: Option<usize>) -> Result<()> {
        let image = self.image()?;
        let mut from = [0; LEGS_MAX];
        loop {
            let mut taken = Vec::new();
            image.look_at_bits(&mut |number, id, bits| {
                if leg.is_some_and(|leg| leg != number) {
                    return;
                }
                while taken.len() < PAGES_AT_ONCE
                    && let Some(page) = bits.next_page_unsaved(from[number])
                {
                    taken.push(take(bits, number, id, page));
                    // Once each: bits change all the time.
                    from[number] = page + 1;
                }
            });
            if taken.is_empty() {
                return Ok(());
            }
            self.save_taken(&*image, taken).await?;
        }
    }

    async fn save_taken(&self, image: &dyn Image, taken: Vec<Taken>) -> Result<()> {
        let place = |(leg, number, page): &Taken| (self.layout.page(*leg, *number), page.clone());
        let writes: Vec<_> = taken.iter().map(place).collect();
        let (pages, bytes) = (writes.len() as u64, (writes.len() * PAGE_BYTES) as u64);
        let written = write_all_stable(&self.device, writes).await;
        if written.is_err() {
            image.look_at_bits(&mut |leg, _, bits| {
                for (_, number, _) in taken.iter().filter(|taken| taken.0 == leg) {
                    bits.page_not_saved(*number);
                }
            });
        }
        let mut state = self.lock();
        state.metrics.pages += pages;
        state.metrics.bytes += bytes;
        self.noted(&mut state, written)
    }
}
