//! What a cache may use and what it may promise.

use std::time::Duration;

use super::sabotage::Mistakes;

/// What is cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// Nothing: every operation goes to the device as it is.
    None,
    /// Reads ahead of sequential readers. Writes complete when the device's do.
    #[default]
    Read,
    /// Also completes writes when they are in memory: a volatile cache.
    WriteBack,
}

/// Smallest unit of the cache in bytes: the largest block of a device.
const CHUNK_BYTES_MIN: u64 = 64 << 10;

/// Largest unit of the cache in bytes: more in one transfer gains nothing and costs latency.
const CHUNK_BYTES_MAX: u64 = 16 << 20;

/// Limits of a cache. The defaults are for a link of 1 Gbit/s with a round trip of up to 200 ms:
/// 25 MB under way, twice that ahead of the reader, and as much again for what was read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CacheConfig {
    /// What is cached.
    pub mode: CacheMode,
    /// Most bytes read ahead or kept after reading.
    pub read_bytes_max: u64,
    /// Bytes per read-ahead, a power of two. Small enough that a reader who stops early wastes
    /// little, large enough that a thousand commands per second fill 1 Gbit/s twice.
    pub read_chunk_bytes: u64,
    /// Most bytes ahead of one stream.
    pub read_window_bytes_max: u64,
    /// Most bytes that are acknowledged and not yet written.
    pub write_bytes_max: u64,
    /// Writes are gathered into pieces of this size, aligned to it; a power of two.
    pub write_chunk_bytes: u64,
    /// How long a write waits for neighbours before it goes out.
    pub write_delay: Duration,
    /// Most writes to the device under way at once.
    pub writes_in_flight_max: usize,
    /// None but in tests.
    pub(super) mistakes: Mistakes,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            mode: CacheMode::Read,
            read_bytes_max: 128 << 20,
            read_chunk_bytes: 256 << 10,
            read_window_bytes_max: 64 << 20,
            write_bytes_max: 64 << 20,
            write_chunk_bytes: 1 << 20,
            write_delay: Duration::from_millis(20),
            writes_in_flight_max: 128,
            mistakes: Mistakes::default(),
        }
    }
}

impl CacheConfig {
    /// What is cached.
    #[must_use]
    pub fn mode(mut self, mode: CacheMode) -> Self {
        self.mode = mode;
        self
    }

    /// Most memory in all: all of it for reading, or half for reading and half for writing.
    #[must_use]
    pub fn bytes_max(mut self, bytes: u64) -> Self {
        self.write_bytes_max = bytes / 2;
        self.read_bytes_max = if self.mode == CacheMode::WriteBack { bytes / 2 } else { bytes };
        self
    }

    /// Bytes per read-ahead; rounded up to a power of two.
    #[must_use]
    pub fn read_chunk_bytes(mut self, bytes: u64) -> Self {
        self.read_chunk_bytes = bytes;
        self
    }

    /// Bytes that writes are gathered into; rounded up to a power of two.
    #[must_use]
    pub fn write_chunk_bytes(mut self, bytes: u64) -> Self {
        self.write_chunk_bytes = bytes;
        self
    }

    /// How long a write waits for neighbours.
    #[must_use]
    pub fn write_delay(mut self, delay: Duration) -> Self {
        self.write_delay = delay;
        self
    }

    /// Most writes to the device under way at once.
    #[must_use]
    pub fn writes_in_flight_max(mut self, writes: usize) -> Self {
        self.writes_in_flight_max = writes;
        self
    }

    /// The same with every field in the range that the cache can work with.
    pub(super) fn checked(mut self) -> Self {
        let chunk = |bytes: u64| bytes.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX).next_power_of_two();
        self.read_chunk_bytes = chunk(self.read_chunk_bytes);
        self.write_chunk_bytes = chunk(self.write_chunk_bytes);
        self.write_bytes_max =
            self.write_bytes_max.clamp(2 * self.write_chunk_bytes, u64::from(u32::MAX));
        self.read_bytes_max = self.read_bytes_max.max(4 * self.read_chunk_bytes);
        self.writes_in_flight_max = self.writes_in_flight_max.max(1);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_values_become_possible_ones() {
        let odd = CacheConfig::default().read_chunk_bytes(0).write_chunk_bytes(100_000);
        let checked = odd.bytes_max(0).writes_in_flight_max(0).checked();
        assert_eq!(checked.read_chunk_bytes, CHUNK_BYTES_MIN);
        assert_eq!(checked.write_chunk_bytes, 128 << 10);
        assert_eq!(checked.write_bytes_max, 256 << 10);
        assert_eq!(checked.read_bytes_max, 4 * CHUNK_BYTES_MIN);
        assert_eq!(checked.writes_in_flight_max, 1);
    }

    #[test]
    fn memory_is_shared_between_reading_and_writing() {
        let read = CacheConfig::default().mode(CacheMode::Read).bytes_max(64 << 20);
        assert_eq!(read.read_bytes_max, 64 << 20);
        let both = CacheConfig::default().mode(CacheMode::WriteBack).bytes_max(64 << 20);
        assert_eq!((both.read_bytes_max, both.write_bytes_max), (32 << 20, 32 << 20));
    }
}
