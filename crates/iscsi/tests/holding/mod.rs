//! A disk that holds whoever reads a certain block, and a target that has it.

#![allow(clippy::unwrap_used, unreachable_pub)] // in a test a panic is the result

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use block::backend::MemoryDevice;
use block::{BlockDevice, Buf, Bytes, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};
use iscsi::target::{Server, ServerConfig};
use scsi::{LunOptions, Target, TargetConfig};
use tokio::task::JoinHandle;

use crate::hostile_common::{IQN, PATIENCE};

/// Reads from here hold their thread until they are let go.
pub const HELD: u64 = 1 << 20;

/// A disk of 16 MiB.
pub struct Holding {
    memory: MemoryDevice,
    is_held: AtomicBool,
    go: Mutex<mpsc::Receiver<()>>,
}

impl Holding {
    /// The disk, and what lets the next reader go.
    pub fn new() -> (Self, mpsc::Sender<()>) {
        let (let_go, go) = mpsc::channel();
        let memory = MemoryDevice::new(16 << 20, 512).unwrap();
        (Self { memory, is_held: AtomicBool::new(false), go: Mutex::new(go) }, let_go)
    }

    /// Somebody was or is held.
    #[allow(dead_code)] // not every user of this module asks
    pub fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }
}

impl BlockDevice for Holding {
    fn info(&self) -> DeviceInfo {
        self.memory.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        if offset == HELD {
            self.is_held.store(true, Ordering::Release);
            let go = self.go.lock().unwrap();
            // Tasks that this worker was to run next must not be held with it.
            tokio::task::block_in_place(|| go.recv_timeout(PATIENCE)).unwrap();
        }
        self.memory.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        self.memory.write(offset, data, flags)
    }

    fn flush(&self) -> Io<()> {
        self.memory.flush()
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.memory.trim(offset, len)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.memory.zero(offset, len, flags)
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.memory.extents(offset, len)
    }
}

/// A target with this disk, until the task is aborted.
pub fn serve(device: Arc<Holding>) -> (SocketAddr, JoinHandle<()>) {
    let scsi = Target::new(TargetConfig::new(IQN));
    scsi.add_lun(0, device, LunOptions::default()).unwrap();
    let config = ServerConfig::new(IQN).unwrap();
    let server = Server::bind(config, scsi, &["127.0.0.1:0".parse().unwrap()]).unwrap();
    (server.local_addrs()[0], tokio::spawn(server.run(std::future::pending())))
}
