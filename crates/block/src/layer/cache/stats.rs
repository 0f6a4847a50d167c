//! What a cache did and how well.

/// Counters of a cache since it began, and its memory now. As JSON: one flat object of numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct CacheStats {
    /// Reads answered from memory, also if they had to wait for a read-ahead under way.
    pub hits: u64,
    /// Reads that the device had to answer, at least in part.
    pub misses: u64,
    /// Of the hits, those that waited for a read-ahead under way.
    pub hits_waited: u64,
    /// Streams that are read ahead of now.
    pub streams: u64,
    /// How far ahead of the fastest of them, in bytes.
    pub window_bytes: u64,
    /// Bytes asked for ahead.
    pub read_ahead_bytes: u64,
    /// Of these, bytes that were read.
    pub read_ahead_used_bytes: u64,
    /// Of these, bytes that were dropped unread.
    pub read_ahead_wasted_bytes: u64,
    /// Memory of the read-ahead now, in bytes.
    pub read_bytes: u64,
    /// Bytes acknowledged and not yet written.
    pub dirty_bytes: u64,
    /// Writes acknowledged from memory.
    pub writes_in: u64,
    /// Writes that these became on the device.
    pub writes_out: u64,
    /// Writes that had to wait for memory before they were acknowledged.
    pub writes_waited: u64,
    /// Writes on the device that failed after they had been acknowledged.
    pub deferred_errors: u64,
    /// Acknowledged bytes that could not be written; a flush tries them again.
    pub failed_bytes: u64,
    /// Flushes that have ended.
    pub flushes: u64,
    /// Time that these took in all, in microseconds.
    pub flush_wait_us: u64,
    /// Rate that the path to the device was seen to have, in bytes per second.
    pub path_bytes_per_s: u64,
    /// Bytes under way that fill that path.
    pub path_product_bytes: u64,
}

impl CacheStats {
    /// Acknowledged writes per write on the device; 0 without one.
    pub fn coalescing_ratio(&self) -> f64 {
        if self.writes_out == 0 { 0.0 } else { self.writes_in as f64 / self.writes_out as f64 }
    }
}
