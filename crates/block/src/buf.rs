//! [`Buf`]: page-aligned memory that is recycled instead of freed.
//!
//! Aligned so that O_DIRECT and io_uring can use it as it is; recycled because a fresh 256 KiB
//! buffer costs 64 page faults, more than the copy it is for.

use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

use bytes::Bytes;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// Alignment and granule of every buffer in bytes.
pub const PAGE: usize = 4096;

/// Largest buffer that is kept for reuse, in bytes. Bigger ones are rare and go back to the heap.
const RECYCLED_LEN_MAX: usize = 4 << 20;

/// Bytes kept for reuse per size class, so that an idle process shrinks to a few megabytes.
const KEPT_BYTES_PER_CLASS: usize = 32 << 20;

/// Size classes are powers of two from one page to `RECYCLED_LEN_MAX`.
const CLASSES: usize = (RECYCLED_LEN_MAX / PAGE).ilog2() as usize + 1;

#[derive(Clone, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Buffers longer than this come from the kernel as they are touched, in bytes: malloc maps them.
const EAGER_LEN_MAX: usize = 128 << 10;

/// Memory that begins on a page.
enum Memory {
    Pages(Vec<Page>),
    /// The page is looked for inside a longer run: the allocator zeroes aligned memory by hand,
    /// touching all of it, and any other by asking the kernel for fresh pages.
    Bytes {
        bytes: Vec<u8>,
        start: usize,
    },
}

impl Memory {
    /// Zeroed by the kernel as it is touched, if it is long: a buffer that is announced and never
    /// filled costs nothing.
    fn fresh(pages: usize) -> Self {
        let len = pages * PAGE;
        if len > EAGER_LEN_MAX {
            let bytes = vec![0u8; len + PAGE];
            let start = bytes.as_ptr().align_offset(PAGE).min(PAGE);
            return Self::Bytes { bytes, start };
        }
        let zeroed = Page::new_vec_zeroed(pages);
        Self::Pages(zeroed.unwrap_or_else(|_| vec![Page([0; PAGE]); pages]))
    }

    fn pages(&self) -> usize {
        match self {
            Self::Pages(pages) => pages.len(),
            Self::Bytes { bytes, .. } => (bytes.len() / PAGE).saturating_sub(1),
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Pages(pages) => pages.as_slice().as_bytes(),
            Self::Bytes { bytes, start } => &bytes[*start..],
        }
    }

    fn as_mut_bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Pages(pages) => pages.as_mut_slice().as_mut_bytes(),
            Self::Bytes { bytes, start } => &mut bytes[*start..],
        }
    }
}

static FREE: [Mutex<Vec<Memory>>; CLASSES] = [const { Mutex::new(Vec::new()) }; CLASSES];

/// An owned, page-aligned run of bytes. Returns to its pool when dropped.
///
/// A new buffer's content is unspecified (zeroes, or what its last user left): whoever takes one
/// fills all of it before anyone else sees it.
pub struct Buf {
    memory: Memory,
    len: usize,
}

impl Buf {
    /// A buffer of `len` bytes with unspecified content.
    pub fn new(len: usize) -> Self {
        let memory = match class_of(len) {
            Some(class) => take(class),
            None => Memory::fresh(len.div_ceil(PAGE)),
        };
        Self { memory, len }
    }

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::new(len);
        buf.fill(0);
        buf
    }

    /// A buffer with a copy of `data`.
    pub fn copy_from(data: &[u8]) -> Self {
        let mut buf = Self::new(data.len());
        buf.copy_from_slice(data);
        buf
    }

    /// Shortens the buffer to `len` bytes; longer than now has no effect.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes the buffer shareable without a copy. The memory is recycled with the last slice.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

fn class_of(len: usize) -> Option<usize> {
    (len <= RECYCLED_LEN_MAX)
        .then(|| len.div_ceil(PAGE).max(1).next_power_of_two().ilog2() as usize)
}

fn take(class: usize) -> Memory {
    let recycled = FREE[class].lock().unwrap_or_else(|e| e.into_inner()).pop();
    recycled.unwrap_or_else(|| Memory::fresh(1 << class))
}

impl Drop for Buf {
    fn drop(&mut self) {
        let memory = std::mem::replace(&mut self.memory, Memory::Pages(Vec::new()));
        let pages = memory.pages();
        if !pages.is_power_of_two() || pages * PAGE > RECYCLED_LEN_MAX {
            return;
        }
        let class = pages.ilog2() as usize;
        let mut free = FREE[class].lock().unwrap_or_else(|e| e.into_inner());
        if free.len() * pages * PAGE < KEPT_BYTES_PER_CLASS {
            free.push(memory);
        }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.as_bytes()[..self.len]
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory.as_mut_bytes()[..self.len]
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_and_of_the_length_asked_for() {
        for len in [0, 1, 512, 4096, 4097, 262_144, RECYCLED_LEN_MAX, RECYCLED_LEN_MAX + 1] {
            let buf = Buf::new(len);
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_ptr() as usize % PAGE, 0, "length {len}");
        }
    }

    #[test]
    fn frozen_slices_keep_the_content_until_the_last_is_dropped() {
        let mut buf = Buf::new(8192);
        buf.fill(7);
        let bytes = buf.freeze();
        let tail = bytes.slice(8000..);
        drop(bytes);
        let mut other = Buf::new(8192);
        other.fill(9);
        assert!(tail.iter().all(|b| *b == 7));
    }
}
