//! [`CacheLayer`]: reads ahead of sequential readers and, if asked to, completes writes before they
//! are on the device. Needs a tokio runtime.
//!
//! What each part decides is in its own file: `streams` who reads in sequence, `window` how far
//! ahead, `path` what the way to the device can do, `chunks` what is kept, `dirty` what is not yet
//! written and in which order it may be. `reading` and `writing` do it. See docs/cache.md.

mod chunks;
mod config;
mod credit;
mod dirty;
mod path;
mod reading;
mod sabotage;
mod shared;
mod stats;
mod streams;
mod strides;
mod window;
mod writing;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;

pub use config::{CacheConfig, CacheMode};
pub use stats::CacheStats;

use crate::{BlockDevice, Buf, Device, DeviceInfo, Extent, Io, Result, WriteFlags, ZeroFlags};
use sabotage::Sabotage;
use shared::Shared;

/// A device behind a cache.
pub struct CacheLayer {
    shared: Arc<Shared>,
}

impl CacheLayer {
    /// Puts a cache before `device`, which nobody else changes meanwhile.
    ///
    /// # Panics
    /// Outside a tokio runtime. Background work runs in the one it was made in.
    pub fn new(device: Device, config: CacheConfig) -> Self {
        Self { shared: Arc::new(Shared::new(device, config.checked())) }
    }

    /// Counters as of now.
    pub fn stats(&self) -> CacheStats {
        let state = self.shared.lock();
        let (used, wasted) = state.chunks.used_and_wasted();
        CacheStats {
            streams: state.streams.established() as u64,
            read_ahead_used_bytes: used,
            read_ahead_wasted_bytes: wasted,
            read_bytes: state.chunks.bytes(),
            dirty_bytes: state.dirty.bytes(),
            failed_bytes: state.dirty.failed_bytes(),
            window_bytes: state.streams.window_bytes(),
            path_bytes_per_s: state.path.rate(),
            path_product_bytes: state.path.product_bytes(),
            ..state.stats
        }
    }

    /// Writes everything out and makes it stable, at the end of use. A second attempt is made for
    /// what has failed before.
    ///
    /// # Errors
    /// That of the flush. What could not be written is lost when the layer is dropped.
    pub async fn close(&self) -> Result<()> {
        if !self.writes_behind() {
            return Ok(());
        }
        let result = writing::flush(self.shared.clone()).await;
        let lost = self.shared.lock().dirty.bytes();
        if result.is_err() && lost > 0 {
            tracing::error!(bytes = lost, "acknowledged writes could not be written");
        }
        result
    }

    fn writes_behind(&self) -> bool {
        self.shared.config.mode == CacheMode::WriteBack && !self.shared.device.info().read_only
    }
}

impl Drop for CacheLayer {
    /// Without a [`close`](CacheLayer::close), the rest goes out in the background as long as the
    /// runtime lives.
    fn drop(&mut self) {
        if self.shared.lock().dirty.bytes() == 0 {
            return;
        }
        let shared = self.shared.clone();
        self.shared.runtime.spawn(async move {
            if let Err(error) = writing::flush(shared).await {
                tracing::error!(%error, "acknowledged writes could not be written");
            }
        });
    }
}

impl BlockDevice for CacheLayer {
    fn info(&self) -> DeviceInfo {
        // What is cached would not be what is compared.
        let info = DeviceInfo { can_compare_and_write: false, ..self.shared.device.info() };
        if self.writes_behind() {
            return DeviceInfo { volatile_cache: true, can_flush: true, ..info };
        }
        info
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        let info = self.shared.device.info();
        if self.shared.config.mode == CacheMode::None || buf.is_empty() {
            return self.shared.device.read(offset, buf);
        }
        match info.check(offset, buf.len() as u64) {
            Ok(()) => reading::read(&self.shared, offset, buf, info.size),
            Err(error) => Io::err(error),
        }
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        let len = data.len() as u64;
        if self.shared.config.mode == CacheMode::None || data.is_empty() {
            return self.shared.device.write(offset, data, flags);
        }
        if let Err(error) = self.shared.device.info().check_write(offset, len) {
            return Io::err(error);
        }
        // What would fill half of the memory goes its own way.
        let large = len > self.shared.config.write_bytes_max / 2;
        let forced = flags.fua && !self.shared.config.mistakes.has(Sabotage::FuaIsBehind);
        if self.writes_behind() && !forced && !large {
            return writing::write_behind(&self.shared, offset, data);
        }
        writing::exclusive(&self.shared, offset..offset + len, move |device| {
            device.write(offset, data, flags)
        })
    }

    fn flush(&self) -> Io<()> {
        if self.writes_behind() {
            return Io::later(writing::flush(self.shared.clone()));
        }
        self.shared.device.flush()
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        if self.shared.config.mode == CacheMode::None {
            return self.shared.device.trim(offset, len);
        }
        match self.shared.device.info().check_write(offset, len) {
            Ok(()) => writing::replace(&self.shared, offset..offset + len, move |device| {
                device.trim(offset, len)
            }),
            Err(error) => Io::err(error),
        }
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        if self.shared.config.mode == CacheMode::None {
            return self.shared.device.zero(offset, len, flags);
        }
        match self.shared.device.info().check_write(offset, len) {
            Ok(()) => writing::replace(&self.shared, offset..offset + len, move |device| {
                device.zero(offset, len, flags)
            }),
            Err(error) => Io::err(error),
        }
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        if !self.writes_behind() {
            return self.shared.device.extents(offset, len);
        }
        if let Err(error) = self.shared.device.info().check(offset, len) {
            return Io::err(error);
        }
        let shared = self.shared.clone();
        Io::later(async move {
            writing::settle(&shared, &(offset..offset + len)).await?;
            shared.device.extents(offset, len).await
        })
    }
}
