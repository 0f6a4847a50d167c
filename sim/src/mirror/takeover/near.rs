//! The old host of a takeover: it works until it ends, and gives its disk back afterwards.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::mirror::bitmap::{Bitmap, BitmapId, PAGE_BYTES};
use block::mirror::superblock::{BYTES, Block, LocalSuperblock, newest};
use block::mirror::{Host, hand_back};
use block::{BlockDevice, Buf, Bytes, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};

use super::super::disk::lock;
use super::super::guest::Habits;
use super::super::judge::Judge;
use super::super::sabotage::MADE;
use super::super::scenario::DATA_BYTES;
use super::super::subject::{Place, Subject};
use super::Board;
use super::sites::guest;
use crate::rng::Rng;

/// Attempts at anything that another one may have more luck with.
const ATTEMPTS: u32 = 100;

/// Pause of the guest before it works again.
const BREATHES: Duration = Duration::from_millis(200);

/// As long as the far host waits until it may take over: a mirror gives signs of life without a
/// guest.
const WAITS: Duration = Duration::from_secs(5);

/// The task of the host.
pub(super) struct Near {
    pub(super) subject: Arc<dyn Subject>,
    pub(super) judge: Arc<Mutex<Judge>>,
    pub(super) board: Arc<Mutex<Board>>,
    pub(super) habits: Arc<Habits>,
    pub(super) rng: Rng,
    pub(super) place: Place,
}

impl Near {
    pub(super) async fn work(self, downtime: Duration) {
        let judge = self.judge.clone();
        if let Err(wrong) = self.try_work(downtime).await {
            lock(&judge).fail(format!("the old host: {wrong}"));
        }
    }

    async fn try_work(mut self, downtime: Duration) -> Result<(), String> {
        let host = self.place.host.clone();
        host.sleep(downtime).await;
        self.create().await?;
        let opened = self.subject.open(self.place.clone()).await;
        let mirror = opened.map_err(|error| format!("it does not open: {error}"))?;
        lock(&self.board).near = Some(mirror.clone());
        // It works until it is ended: less when all that is waited for is how the far host fares.
        loop {
            let guest = guest(&self.habits, &self.judge, &mirror, &self.place, self.rng.fork());
            while !guest.finished() {
                host.sleep(Duration::from_millis(10)).await;
                mirror.look_after(0).await;
                lock(&self.board).synced |= mirror.in_sync(0);
            }
            let waits = {
                let board = lock(&self.board);
                board.begun && !board.promoted
            };
            host.sleep(if waits { WAITS } else { BREATHES }).await;
        }
    }

    async fn create(&self) -> Result<(), String> {
        let mut result = Ok(());
        for _ in 0..ATTEMPTS {
            if lock(&self.board).created {
                return Ok(());
            }
            result = self.subject.create(self.place.clone()).await;
            lock(&self.board).created = result.is_ok();
            self.place.host.sleep(Duration::from_millis(500)).await;
        }
        result.map_err(|error| format!("it cannot be made: {error}"))
    }
}

/// The task of the old site when the far one has taken over.
pub(super) struct HandBack {
    pub(super) place: Place,
    pub(super) board: Arc<Mutex<Board>>,
    pub(super) judge: Arc<Mutex<Judge>>,
    pub(super) bits_lost: bool,
}

impl HandBack {
    pub(super) async fn work(self, downtime: Duration) {
        self.place.host.sleep(downtime).await;
        let mut local: Device = self.place.local.clone();
        if let Some(name) = self.name_of_bits().await {
            local = Arc::new(BitsLost { disk: local, judge: self.judge.clone(), name });
        }
        let (metadata, host) = (self.place.metadata.clone(), self.place.host.clone());
        match hand_back(&local, &metadata, host, 0).await {
            Ok(_) => lock(&self.board).handed_back = true,
            Err(error) => lock(&self.judge).fail(format!("the disk is not given back: {error}")),
        }
    }
}

impl HandBack {
    /// The name of what differs, where that is to be lost.
    async fn name_of_bits(&self) -> Option<BitmapId> {
        let metadata = self.place.metadata.clone();
        let both = metadata.read(0, Buf::new(2 * BYTES)).await.ok().filter(|_| self.bits_lost)?;
        let block = |number: usize| <&Block>::try_from(&both[number * BYTES..][..BYTES]).ok();
        let superblock = newest::<LocalSuperblock>(block(0)?, block(1)?).ok()?;
        superblock.legs[0].as_ref().map(|record| record.bitmap)
    }
}

/// The disk, but that what is said to differ is lost: pages that tell of it say of nothing.
struct BitsLost {
    disk: Device,
    judge: Arc<Mutex<Judge>>,
    /// The name that such a page has.
    name: BitmapId,
}

impl BlockDevice for BitsLost {
    fn info(&self) -> DeviceInfo {
        self.disk.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.disk.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        let blocks = DATA_BYTES / block::mirror::BLOCK_BYTES;
        // Behind the image there is a header, and then the pages.
        let first = DATA_BYTES + block::mirror::BLOCK_BYTES;
        let pages = first..first + block::mirror::bitmap::pages(blocks) * PAGE_BYTES as u64;
        if !pages.contains(&offset) {
            return self.disk.write(offset, data, flags);
        }
        lock(&self.judge).hit(MADE);
        let mut blank = [0; PAGE_BYTES];
        let number = (offset - first) / PAGE_BYTES as u64;
        Bitmap::new(blocks).take_page(number, self.name, &mut blank);
        self.disk.write(offset, Bytes::copy_from_slice(&blank), flags)
    }

    fn flush(&self) -> Io<()> {
        self.disk.flush()
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.disk.trim(offset, len)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.disk.zero(offset, len, flags)
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.disk.extents(offset, len)
    }
}
