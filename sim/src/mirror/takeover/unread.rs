//! A promotion that does not look again at what it has written, as a mistake made on purpose: the
//! superblock is read from memory then, and no time passes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use block::mirror::Host;
use block::mirror::host::BoxFuture;
use block::mirror::layout::LegLayout;
use block::mirror::superblock::BYTES;
use block::{BlockDevice, Buf, Bytes, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};

use super::super::disk::lock;
use super::super::executor::SimHost;

/// What was written, by place.
type Written = Arc<Mutex<Option<(u64, Bytes)>>>;

/// A leg, and the host that promotes it.
pub(super) fn unread(leg: Device, host: Arc<SimHost>) -> (Device, Arc<dyn Host>) {
    let written = Written::default();
    let first = LegLayout::new(leg.info().size, 0).map_or(0, |layout| layout.superblock(0));
    let device = Arc::new(Remembered { leg, first, written: written.clone() });
    let host = Hasty { host, written, skipped: Mutex::default() };
    (device, Arc::new(host))
}

struct Remembered {
    leg: Device,
    /// Where both copies of the superblock begin.
    first: u64,
    written: Written,
}

impl BlockDevice for Remembered {
    fn info(&self) -> DeviceInfo {
        self.leg.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        let written = lock(&self.written).clone().filter(|_| offset == self.first);
        let Some((at, block)) = written else { return self.leg.read(offset, buf) };
        let mut both = Buf::zeroed(buf.len());
        let at = (at - offset) as usize; // one of two blocks
        if let Some(place) = both.get_mut(at..at + BYTES) {
            place.copy_from_slice(&block);
        }
        Io::ok(both)
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        let (write, written) = (self.leg.write(offset, data.clone(), flags), self.written.clone());
        let both = self.first..self.first + 2 * BYTES as u64;
        Io::later(async move {
            write.await?;
            if both.contains(&offset) {
                *lock(&written) = Some((offset, data));
            }
            Ok(())
        })
    }

    fn flush(&self) -> Io<()> {
        self.leg.flush()
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.leg.trim(offset, len)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.leg.zero(offset, len, flags)
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.leg.extents(offset, len)
    }
}

/// Does not wait once the superblock is written.
struct Hasty {
    host: Arc<SimHost>,
    written: Written,
    skipped: Mutex<Duration>,
}

impl Host for Hasty {
    fn spawn(&self, task: BoxFuture) {
        self.host.spawn(task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture {
        if lock(&self.written).is_none() {
            return self.host.sleep(duration);
        }
        *lock(&self.skipped) += duration;
        Box::pin(std::future::ready(()))
    }

    fn now(&self) -> Duration {
        self.host.now() + *lock(&self.skipped)
    }

    fn wall_clock(&self) -> SystemTime {
        self.host.wall_clock()
    }

    fn name(&self) -> String {
        self.host.name()
    }

    fn random(&self) -> u128 {
        self.host.random()
    }
}
