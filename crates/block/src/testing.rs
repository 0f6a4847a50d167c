//! Checks that every backend and layer must pass. For tests only: a check that fails panics.
//!
//! [`conformance`] walks through the contract of [`BlockDevice`] on a fresh or used writable
//! device; [`random_operations`] compares a device with a plain array under random operations.

use bytes::Bytes;

use crate::{BlockDevice, BlockError, Buf, DeviceInfo, WriteFlags, ZeroFlags};

/// Bytes of the device that [`random_operations`] and [`conformance`] need at least.
pub const SIZE_BYTES_MIN: u64 = 1 << 20;

/// Walks through the contract of [`BlockDevice`]. Overwrites the device.
///
/// # Panics
/// When the device breaks the contract.
#[allow(clippy::unwrap_used)] // a test's way to fail
pub async fn conformance(device: &dyn BlockDevice) {
    let info = device.info();
    assert!(info.block_size.is_power_of_two() && (512..=65536).contains(&info.block_size));
    assert!(info.preferred_block_size.is_power_of_two());
    assert!(info.preferred_block_size >= info.block_size);
    assert!(info.size >= SIZE_BYTES_MIN && info.size.is_multiple_of(u64::from(info.block_size)));
    read_after_write(device, &info).await;
    bounds(device, &info).await;
    zeroes(device, &info).await;
    extents_cover(device, &info).await;
    device.flush().await.unwrap();
}

/// Bytes that differ from block to block and from `salt` to `salt`.
pub fn pattern(len: usize, salt: u8) -> Bytes {
    let byte = |at: usize| (at as u8) ^ (at >> 8) as u8 ^ (at >> 16) as u8 ^ salt;
    (0..len).map(byte).collect()
}

#[allow(clippy::unwrap_used)]
async fn read_after_write(device: &dyn BlockDevice, info: &DeviceInfo) {
    let block = u64::from(info.block_size);
    let places = [0, block, 65536 - block, info.size - 4 * block];
    for (salt, offset) in places.into_iter().enumerate() {
        for flags in [WriteFlags::NONE, WriteFlags::FUA] {
            let len = 4 * block as usize;
            let data = pattern(len, salt as u8);
            // Off by one in memory: devices must take data of any alignment.
            let mut shifted = vec![0];
            shifted.extend_from_slice(&data);
            let shifted = Bytes::from(shifted).slice(1..);
            device.write(offset, shifted, flags).await.unwrap();
            let back = device.read(offset, Buf::new(len)).await.unwrap();
            assert!(back[..] == data[..], "what was written at {offset} does not read back");
        }
    }
    let long = pattern(SIZE_BYTES_MIN as usize, 99);
    device.write(0, long.clone(), WriteFlags::NONE).await.unwrap();
    let back = device.read(0, Buf::new(long.len())).await.unwrap();
    assert!(back[..] == long[..], "a long write does not read back");
    device.write(0, Bytes::new(), WriteFlags::NONE).await.unwrap();
    assert_eq!(device.read(info.size, Buf::new(0)).await.unwrap().len(), 0);
}

async fn bounds(device: &dyn BlockDevice, info: &DeviceInfo) {
    let block = u64::from(info.block_size);
    for offset in [info.size, info.size - block, u64::MAX - 2 * block + 1] {
        let len = 2 * block;
        let data = Bytes::from(vec![0; len as usize]);
        let results = [
            device.read(offset, Buf::new(len as usize)).await.map(drop),
            device.write(offset, data, WriteFlags::NONE).await,
            device.trim(offset, len).await,
            device.zero(offset, len, ZeroFlags::default()).await,
            device.extents(offset, len).await.map(drop),
        ];
        for (which, result) in results.into_iter().enumerate() {
            let refused = matches!(result, Err(BlockError::OutOfRange { .. }));
            assert!(refused, "operation {which} at {offset}+{len}: {result:?}");
        }
    }
    for (offset, len) in [(1, block), (0, block - 1), (block / 2, block / 2)] {
        let data = Bytes::from(vec![0; len as usize]);
        let results = [
            device.read(offset, Buf::new(len as usize)).await.map(drop),
            device.write(offset, data, WriteFlags::NONE).await,
            device.trim(offset, len).await,
            device.zero(offset, len, ZeroFlags::default()).await,
            device.extents(offset, len).await.map(drop),
        ];
        for (which, result) in results.into_iter().enumerate() {
            let refused = matches!(result, Err(BlockError::Misaligned { .. }));
            assert!(refused, "operation {which} at {offset}+{len}: {result:?}");
        }
    }
}

#[allow(clippy::unwrap_used)]
async fn zeroes(device: &dyn BlockDevice, info: &DeviceInfo) {
    let block = u64::from(info.block_size);
    let area = SIZE_BYTES_MIN;
    let ones = Bytes::from(vec![0xff; area as usize]);
    for (offset, len) in [(0, block), (block, 3 * block), (block, 262_144), (0, area)] {
        for flags in [(false, false), (true, false), (false, true), (true, true)] {
            device.write(0, ones.clone(), WriteFlags::NONE).await.unwrap();
            device.zero(offset, len, ZeroFlags::new(flags.0, flags.1)).await.unwrap();
            check_zeroed(device, offset, len, area).await;
        }
        device.write(0, ones.clone(), WriteFlags::NONE).await.unwrap();
        let trimmed = device.trim(offset, len).await;
        if info.can_trim {
            trimmed.unwrap();
        }
        if info.can_trim && info.trim_zeroes {
            check_zeroed(device, offset, len, area).await;
        }
    }
}

/// `offset..offset + len` is zero, the rest of the first `area` bytes is 0xff.
#[allow(clippy::unwrap_used)]
async fn check_zeroed(device: &dyn BlockDevice, offset: u64, len: u64, area: u64) {
    let back = device.read(0, Buf::new(area as usize)).await.unwrap();
    let (start, end) = (offset as usize, (offset + len) as usize);
    assert!(back[start..end].iter().all(|b| *b == 0), "{offset}+{len} is not zero");
    let around = back[..start].iter().chain(&back[end..]);
    assert!(around.into_iter().all(|b| *b == 0xff), "more than {offset}+{len} was cleared");
}

#[allow(clippy::unwrap_used)]
async fn extents_cover(device: &dyn BlockDevice, info: &DeviceInfo) {
    let block = u64::from(info.block_size);
    device.zero(0, SIZE_BYTES_MIN, ZeroFlags::new(false, true)).await.unwrap();
    device.write(262_144, pattern(65536, 1), WriteFlags::NONE).await.unwrap();
    for (offset, len) in [(0, info.size), (block, SIZE_BYTES_MIN - 2 * block), (262_144, block)] {
        let extents = device.extents(offset, len).await.unwrap();
        let mut at = offset;
        for extent in &extents {
            assert_eq!(extent.offset, at, "gap or overlap in {extents:?}");
            assert!(extent.len > 0);
            at += extent.len;
        }
        assert_eq!(at, offset + len, "{extents:?} does not end at {}", offset + len);
        let data = |byte: u64| {
            extents.iter().any(|e| !e.hole && e.offset <= byte && byte < e.offset + e.len)
        };
        for byte in (262_144..262_144 + 65536).step_by(512) {
            assert!(data(byte) || byte < offset || byte >= offset + len, "data called a hole");
        }
    }
    assert!(device.extents(0, 0).await.unwrap().is_empty());
}

pub use model::random_operations;

mod model {
    //! A device against a plain array.

    use super::*;

    /// Deterministic pseudo-random numbers (xorshift), so that this crate's users need no
    /// generator of their own.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }
    }

    /// Runs random reads, writes, zeroes and trims on fresh all-zero devices and on an array.
    ///
    /// # Panics
    /// When they differ; the message names the seed.
    pub fn random_operations<D: BlockDevice>(device: impl Fn() -> D) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.unwrap_or_else(|error| panic!("no runtime: {error}"));
        for seed in 1..=8 {
            runtime.block_on(run(&device(), seed));
        }
    }

    #[allow(clippy::unwrap_used)]
    async fn run(device: &dyn BlockDevice, seed: u64) {
        let info = device.info();
        let block = u64::from(info.block_size);
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut model = vec![0u8; info.size as usize];
        for step in 0..200 {
            // Mostly short, now and then up to a quarter of the device.
            let longest = if random.below(8) == 0 { info.size / block / 4 } else { 40 };
            let offset = random.below(info.size / block) * block;
            let len = (1 + random.below(longest)) * block;
            let len = len.min(info.size - offset);
            let range = offset as usize..(offset + len) as usize;
            match random.below(5) {
                0 | 1 => {
                    let data = pattern(len as usize, step as u8);
                    model[range].copy_from_slice(&data);
                    let flags = WriteFlags { fua: random.below(4) == 0 };
                    device.write(offset, data, flags).await.unwrap();
                }
                2 => {
                    let flags = ZeroFlags::new(false, random.below(2) == 0);
                    model[range].fill(0);
                    device.zero(offset, len, flags).await.unwrap();
                }
                3 if info.can_trim && info.trim_zeroes => {
                    model[range].fill(0);
                    device.trim(offset, len).await.unwrap();
                }
                _ => {
                    let back = device.read(offset, Buf::new(len as usize)).await.unwrap();
                    assert!(back[..] == model[range], "seed {seed}, step {step}, read {offset}");
                }
            }
        }
        let all = device.read(0, Buf::new(model.len())).await.unwrap();
        assert!(all[..] == model[..], "seed {seed}: the device differs from the model");
        for extent in device.extents(0, info.size).await.unwrap() {
            let part = &model[extent.offset as usize..(extent.offset + extent.len) as usize];
            assert!(
                !extent.hole || part.iter().all(|b| *b == 0),
                "seed {seed}: data in {extent:?}"
            );
        }
    }
}
