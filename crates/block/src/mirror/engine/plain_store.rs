//! Stand-in for the metadata store: superblocks, pages, and extents that were ever touched.
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::super::BLOCK_BYTES;
use super::super::bitmap::{Bitmap, PAGE_BYTES};
use super::super::layout::{EXTENT_BLOCKS, EXTENT_BYTES, LocalLayout};
use super::super::superblock::{BYTES, Block, BlockFault, LocalSuperblock, Record, newest};
use super::signal::lock;
use crate::range_lock::{RangeLocks, held};
use crate::{Buf, Device, Result, WriteFlags};

pub(crate) struct Store {
    device: Device,
    turn: Arc<RangeLocks>,
    touched: Mutex<BTreeSet<u64>>,
}
pub(crate) struct Entered(#[allow(dead_code)] Arc<()>);

fn other(error: impl std::error::Error + Send + Sync + 'static) -> crate::BlockError {
    crate::BlockError::Medium(std::io::Error::other(error))
}

async fn block(device: &Device, at: u64) -> Result<Box<Block>> {
    let buf = device.read(at, Buf::new(BYTES)).await?;
    let mut block = Box::new([0; BYTES]);
    block.copy_from_slice(&buf);
    Ok(block)
}

impl Store {
    pub(crate) async fn read_superblock(
        device: &Device,
    ) -> Result<std::result::Result<LocalSuperblock, BlockFault>> {
        let first = block(device, 0).await?;
        let second = block(device, BLOCK_BYTES).await?;
        Ok(newest(&first, &second))
    }
    pub(crate) async fn format(device: &Device, superblock: &LocalSuperblock) -> Result<()> {
        put(device, LocalLayout::ring().start, Box::new([0; BYTES])).await?;
        put(device, LocalLayout::superblock(superblock.sequence + 1), Box::new([0; BYTES])).await?;
        commit(device, superblock).await
    }
    pub(crate) async fn open(
        device: Device,
        superblock: &LocalSuperblock,
    ) -> Result<(Self, Vec<Bitmap>)> {
        let layout = LocalLayout::new(superblock.size).map_err(other)?;
        let page = block(&device, LocalLayout::ring().start).await?;
        let touched: BTreeSet<u64> =
            (0..BYTES as u64 * 8).filter(|e| page[(*e / 8) as usize] >> (e % 8) & 1 != 0).collect();
        let mut bitmaps = Vec::new();
        for (number, record) in superblock.legs.iter().enumerate() {
            let Some(record) = record else { break };
            let mut bitmap = Bitmap::new(layout.blocks());
            for page in 0..layout.pages() {
                let bytes = block(&device, layout.page(number, page)).await?;
                bitmap.load_page(page, record.bitmap, &bytes);
            }
            for extent in &touched {
                bitmap.set(extent * EXTENT_BLOCKS..(extent + 1) * EXTENT_BLOCKS);
            }
            bitmaps.push(bitmap);
        }
        Ok((Self { device, turn: Arc::default(), touched: Mutex::new(touched) }, bitmaps))
    }
    pub(crate) async fn commit(&self, superblock: &LocalSuperblock) -> Result<()> {
        commit(&self.device, superblock).await
    }
    pub(crate) async fn enter(&self, bytes: Range<u64>) -> Result<Entered> {
        let extents = bytes.start / EXTENT_BYTES..bytes.end.div_ceil(EXTENT_BYTES);
        if extents.clone().all(|extent| lock(&self.touched).contains(&extent)) {
            return Ok(Entered(Arc::default()));
        }
        let _turn = held(self.turn.exclusive(0..1)).await;
        let mut page = Box::new([0u8; BYTES]);
        for extent in lock(&self.touched).iter().copied().chain(extents.clone()) {
            page[(extent / 8) as usize] |= 1 << (extent % 8);
        }
        put(&self.device, LocalLayout::ring().start, page).await?;
        lock(&self.touched).extend(extents);
        Ok(Entered(Arc::default()))
    }
    pub(crate) async fn forget(&self) -> Result<()> {
        put(&self.device, LocalLayout::ring().start, Box::new([0; BYTES])).await
    }
    pub(crate) async fn write_page(&self, at: u64, page: Box<[u8; PAGE_BYTES]>) -> Result<()> {
        put(&self.device, at, page).await
    }
}

async fn commit(device: &Device, superblock: &LocalSuperblock) -> Result<()> {
    put(device, LocalLayout::superblock(superblock.sequence), superblock.encode().map_err(other)?)
        .await
}

async fn put(device: &Device, at: u64, block: Box<Block>) -> Result<()> {
    let info = device.info();
    device.write(at, block.to_vec().into(), WriteFlags { fua: info.can_fua }).await?;
    if !info.can_fua {
        device.flush().await?;
    }
    Ok(())
}
