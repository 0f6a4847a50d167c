//! Tests of whole commands through a nexus, one file per topic.

mod aborting;
mod any_bytes;
mod attention;
mod compare_write;
mod errors;
mod extended_copy;
mod identity;
mod medium;
mod mode;
mod mode_select;
mod opcodes;
mod or_write;
mod pair;
mod provisioning;
mod read_write;
mod reservation_model;
mod reservations;
mod sanitize;
mod slow;
mod statistics;
mod surroundings;
mod task_attributes;
mod task_management;
mod verify;
mod write_protection;
mod write_same;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use block::backend::MemoryDevice;
use block::layer::FaultLayer;
use block::{BlockDevice, Buf, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};
use bytes::Bytes;

use crate::sense::{AdditionalSense, Sense, SenseKey};
use crate::*;

pub(super) const NAME: &str = "iqn.2026-11.org.example:disk";
pub(super) const INITIATOR: &str = "iqn.2026-11.org.example:host,i,0x000000000001";

/// A target with one unit of `BLOCKS` blocks, and a nexus that has had its unit attention.
pub(super) struct Fixture {
    pub(super) target: Target,
    pub(super) nexus: Nexus,
    pub(super) device: Device,
    pub(super) faults: Arc<FaultLayer>,
    pub(super) block_size: usize,
}

pub(super) const BLOCKS: u64 = 4096;

impl Fixture {
    pub(super) fn new() -> Self {
        Self::with_block_size(512)
    }

    pub(super) fn with_block_size(block_size: u32) -> Self {
        let memory = MemoryDevice::new(BLOCKS * u64::from(block_size), block_size).unwrap();
        Self::on(Arc::new(memory))
    }

    pub(super) fn on(device: Device) -> Self {
        let faults = Arc::new(FaultLayer::new(device.clone(), 1));
        let block_size = device.info().block_size as usize;
        let target = Target::new(TargetConfig::new(NAME));
        target.add_lun(0, faults.clone(), LunOptions::default()).unwrap();
        let nexus = ready(target.nexus(INITIATOR));
        Self { target, nexus, device, faults, block_size }
    }

    /// Runs a command that must not wait for anything.
    pub(super) fn run(&self, cdb: &[u8], data_out: impl Into<Bytes>, room: usize) -> Response {
        run_on(&self.nexus, 0, cdb, data_out, room)
    }

    /// Data-in of a command that must succeed.
    pub(super) fn data(&self, cdb: &[u8], room: usize) -> Vec<u8> {
        let response = self.run(cdb, Bytes::new(), room);
        assert_eq!(response.status, Status::GOOD, "{cdb:x?}: {response:?}");
        response.data_in.to_vec()
    }

    /// Content of blocks, read behind the device server's back.
    pub(super) fn blocks(&self, lba: u64, count: usize) -> Vec<u8> {
        let buf = Buf::new(count * self.block_size);
        match self.device.read(lba * self.block_size as u64, buf).try_ready() {
            Ok(result) => result.unwrap().to_vec(),
            Err(_) => panic!("memory is always ready"),
        }
    }

    pub(super) fn fill(&self, lba: u64, count: usize, byte: u8) {
        let data = Bytes::from(vec![byte; count * self.block_size]);
        let offset = lba * self.block_size as u64;
        assert!(self.device.write(offset, data, WriteFlags::NONE).try_ready().is_ok());
    }

    pub(super) fn block(&self, byte: u8) -> Vec<u8> {
        vec![byte; self.block_size]
    }
}

/// A memory device that says something else of itself, and counts flushes.
pub(super) struct Disguised<F> {
    memory: MemoryDevice,
    info: F,
    flushes: AtomicU32,
}

impl<F: Fn(&mut DeviceInfo) + Send + Sync + 'static> Disguised<F> {
    /// `info` changes what the device says of itself, each time it is asked.
    pub(super) fn new(size: u64, info: F) -> Arc<Self> {
        let memory = MemoryDevice::new(size, 512).unwrap();
        Arc::new(Self { memory, info, flushes: 0.into() })
    }

    /// Flushes since last asked.
    pub(super) fn flushes(&self) -> u32 {
        self.flushes.swap(0, Ordering::Relaxed)
    }
}

impl<F: Fn(&mut DeviceInfo) + Send + Sync + 'static> BlockDevice for Disguised<F> {
    fn info(&self) -> DeviceInfo {
        let mut info = self.memory.info();
        (self.info)(&mut info);
        info
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.memory.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        assert!(!self.info().read_only, "a write got through");
        self.memory.write(offset, data, flags)
    }

    fn flush(&self) -> Io<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.memory.flush()
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        assert!(self.info().can_trim && !self.info().read_only, "a trim got through");
        self.memory.trim(offset, len)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        assert!(!self.info().read_only, "zeroing got through");
        self.memory.zero(offset, len, flags)
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.memory.extents(offset, len)
    }
}

/// Takes the POWER ON attention of LUN 0.
pub(super) fn ready(nexus: Nexus) -> Nexus {
    let response = run_on(&nexus, 0, &[0; 6], Bytes::new(), 0);
    // 29/00, or 29/07 for a port that was here before.
    let key = response.sense.as_ref().map(|sense| sense.key);
    assert_eq!(key, Some(SenseKey::UNIT_ATTENTION), "{response:?}");
    nexus
}

pub(super) fn run_on(
    nexus: &Nexus,
    lun: u64,
    cdb: &[u8],
    data_out: impl Into<Bytes>,
    room: usize,
) -> Response {
    let command =
        Command::new(lun, Cdb::new(cdb)).with_data_out(data_out.into()).with_data_in_max(room);
    now(nexus.execute(command))
}

/// The response of an execution that waits for nothing.
pub(super) fn now(mut execution: Execution) -> Response {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(&mut execution).poll(&mut context) {
        std::task::Poll::Ready(response) => response,
        std::task::Poll::Pending => panic!("the command waits"),
    }
}

#[track_caller]
pub(super) fn assert_sense(response: &Response, key: u8, asc: u8, ascq: u8) {
    assert_eq!(response.status, Status::CHECK_CONDITION, "{response:?}");
    let sense = response.sense.unwrap();
    let codes = (sense.key, sense.additional);
    assert_eq!(codes, (SenseKey(key), AdditionalSense(asc, ascq)), "{sense:?}");
}

#[track_caller]
pub(super) fn assert_invalid_cdb(response: &Response, byte: u16, bit: u8) {
    assert_eq!(response.sense, Some(Sense::invalid_cdb(byte, bit)), "{response:?}");
}

#[track_caller]
pub(super) fn assert_good(response: &Response) {
    assert_eq!(response.status, Status::GOOD, "{response:?}");
}

/// A CDB of READ, WRITE, VERIFY … with opcode, flags, address and number of blocks.
pub(super) fn cdb(opcode: u8, flags: u8, lba: u64, count: u32) -> Vec<u8> {
    let mut cdb = vec![opcode, flags];
    match opcode >> 5 {
        0 => {
            cdb = vec![opcode, (lba >> 16) as u8, (lba >> 8) as u8, lba as u8, count as u8, 0];
        }
        4 => {
            cdb.extend(lba.to_be_bytes());
            cdb.extend(count.to_be_bytes());
            cdb.extend([0, 0]);
        }
        5 => {
            cdb.extend((lba as u32).to_be_bytes());
            cdb.extend(count.to_be_bytes());
            cdb.extend([0, 0]);
        }
        _ => {
            cdb.extend((lba as u32).to_be_bytes());
            cdb.push(0);
            cdb.extend((count as u16).to_be_bytes());
            cdb.push(0);
        }
    }
    cdb
}
