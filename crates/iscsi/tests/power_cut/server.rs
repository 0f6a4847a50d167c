//! The far end: the product's device server over a slow disk with a volatile cache, logged.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use block::backend::MemoryDevice;
use block::layer::{Log, LogLayer};
use block::{BlockDevice, Buf, Bytes, DeviceInfo, Extent, Io, Result, WriteFlags, ZeroFlags};
use scsi::{Cdb, Command, Execution, LunOptions, Nexus, Response, Target, TargetConfig};

use super::Random;
use super::mistakes::{Liar, Mistake};
use super::oracle::{SECTOR, SECTORS};

const PORT: &str = "iqn.2026-11.org.example:host,i,0x800000000001";

/// A target from its start to the next power cut.
pub struct Server {
    pub log: Log,
    target: Target,
    mistake: Option<Mistake>,
    /// What its disk held at the start.
    pub before: Vec<u8>,
}

impl Server {
    /// Powered on with this on its disk.
    pub fn new(image: Vec<u8>, seed: u64, can_fua: bool, mistake: Option<Mistake>) -> Self {
        let memory = MemoryDevice::new(SECTORS * SECTOR, 512).unwrap();
        let written = memory.write(0, Bytes::copy_from_slice(&image), WriteFlags::NONE);
        assert!(matches!(written.try_ready(), Ok(Ok(()))));
        let slow = Slow { memory: Arc::new(memory), can_fua, random: Mutex::new(Random(seed)) };
        let logged = LogLayer::new(Arc::new(slow));
        let log = logged.log();
        let target = Target::new(TargetConfig::new("iqn.2026-11.org.example:disk"));
        let disk = Arc::new(Liar::new(Arc::new(logged), mistake));
        target.add_lun(0, disk, LunOptions::default()).unwrap();
        Self { log, target, mistake, before: image }
    }

    /// A session of the initiator's port.
    pub fn log_in(&self) -> Nexus {
        self.target.nexus(PORT)
    }

    /// TEST UNIT READY: true when the unit told of a power-on, `None` with GOOD. Whether the answer
    /// is acknowledged is up to the initiator.
    pub fn ask(&self, nexus: &Nexus, acknowledges: bool) -> Option<bool> {
        let response = finish(nexus.execute(Command::new(0, Cdb::new(&[0; 6]))));
        if let Some(receipt) = response.receipt
            && (acknowledges || self.mistake == Some(Mistake::PowerOnToldOnce))
        {
            nexus.received(receipt);
        }
        response.sense.map(|sense| sense.to_bytes()[13] == 0)
    }

    /// What a reader sees.
    pub fn read(&self, nexus: &Nexus) -> Vec<u8> {
        let mut cdb = [0; 16];
        cdb[0] = 0x88; // READ(16)
        cdb[10..14].copy_from_slice(&(SECTORS as u32).to_be_bytes());
        let len = (SECTORS * SECTOR) as usize;
        let read = Command::new(0, Cdb::new(&cdb)).with_data_in_max(len);
        let response = finish(nexus.execute(read));
        assert_eq!(response.data_in.len(), len, "{response:?}");
        response.data_in.to_vec()
    }
}

/// Polls once.
pub fn poll(execution: &mut Execution) -> Option<Response> {
    let polled = std::pin::Pin::new(execution).poll(&mut Context::from_waker(Waker::noop()));
    match polled {
        Poll::Ready(response) => Some(response),
        Poll::Pending => None,
    }
}

/// Polls to the end. The disk needs a few polls for an operation and nothing else.
pub fn finish(mut execution: Execution) -> Response {
    for _ in 0..10_000 {
        if let Some(response) = poll(&mut execution) {
            return response;
        }
    }
    panic!("a command does not end");
}

/// WRITE(16), with FUA or without.
pub fn write(lba: u64, data: Bytes, fua: bool) -> Command {
    let mut cdb = ranged(0x8a, lba, data.len() as u64 / SECTOR);
    cdb[1] = u8::from(fua) << 3;
    Command::new(0, Cdb::new(&cdb)).with_data_out(data)
}

/// WRITE SAME(16) of zeroes without data (NDOB).
pub fn zero(lba: u64, count: u64) -> Command {
    let mut cdb = ranged(0x93, lba, count);
    cdb[1] = 1;
    Command::new(0, Cdb::new(&cdb))
}

/// UNMAP of one range.
pub fn unmap(lba: u64, count: u64) -> Command {
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend(lba.to_be_bytes());
    list.extend((count as u32).to_be_bytes());
    list.extend([0; 4]);
    let cdb = [0x42, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
    Command::new(0, Cdb::new(&cdb)).with_data_out(list.into())
}

/// SYNCHRONIZE CACHE(16) of everything.
pub fn flush() -> Command {
    Command::new(0, Cdb::new(&ranged(0x91, 0, 0)))
}

fn ranged(opcode: u8, lba: u64, count: u64) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&(count as u32).to_be_bytes());
    cdb
}

/// A disk whose operations take a few polls, and take effect at their end.
struct Slow {
    memory: Arc<MemoryDevice>,
    can_fua: bool,
    random: Mutex<Random>,
}

impl Slow {
    fn later<T: Send + Unpin + 'static>(
        &self,
        operation: impl Fn(&MemoryDevice) -> Io<T> + Send + 'static,
    ) -> Io<T> {
        let mut polls = self.random.lock().unwrap().below(4);
        let memory = self.memory.clone();
        Io::later(std::future::poll_fn(move |_| {
            if polls == 0 {
                let done: Result<T> = operation(&memory).try_ready().unwrap_or_else(|_| panic!());
                return Poll::Ready(done);
            }
            polls -= 1;
            Poll::Pending
        }))
    }
}

impl BlockDevice for Slow {
    fn info(&self) -> DeviceInfo {
        let mut info = self.memory.info();
        (info.volatile_cache, info.can_fua) = (true, self.can_fua);
        info
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.memory.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        self.later(move |memory| memory.write(offset, data.clone(), flags))
    }

    fn flush(&self) -> Io<()> {
        self.later(|memory| memory.flush())
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.later(move |memory| memory.trim(offset, len))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.later(move |memory| memory.zero(offset, len, flags))
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.memory.extents(offset, len)
    }
}
