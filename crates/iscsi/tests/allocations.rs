//! How often each end asks the allocator for memory while commands are served that are like those
//! before them. Each end has a thread of its own, and a thread's own count.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;

use block::backend::MemoryDevice;
use block::{BlockDevice, Buf, WriteFlags};
use iscsi::initiator::{Config, RemoteDisk};
use iscsi::target::{Server, ServerConfig};
use scsi::{LunOptions, Target, TargetConfig};
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinSet;

const IQN: &str = "iqn.2026-11.org.example:allocations";
const BLOCK_LEN: usize = 4096;
/// Before counting: tables and pools have grown to what they need.
const WARM_UP: usize = 2_000;
const COMMANDS: usize = 4_000;
/// Timers and the like that have nothing to do with a command, per command.
const ASIDE: f64 = 0.05;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is the system allocator's; counting touches a cell of this thread without a
// destructor, and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: as promised to us.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as promised to us.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: as promised to us.
        unsafe { System.realloc(pointer, layout, len) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A target on a thread of its own, whose runtime is handed out.
fn serve() -> (SocketAddr, Handle) {
    let (say, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let target = Target::new(TargetConfig::new(IQN));
            let device = Arc::new(MemoryDevice::new(8 << 20, 512).unwrap());
            target.add_lun(0, device, LunOptions::default()).unwrap();
            let config = ServerConfig::new(IQN).unwrap();
            let server = Server::bind(config, target, &["127.0.0.1:0".parse().unwrap()]).unwrap();
            say.send((server.local_addrs()[0], Handle::current())).unwrap();
            server.run(std::future::pending()).await;
        });
    });
    said.recv().unwrap()
}

async fn counted_at(target: &Handle) -> u64 {
    target.spawn(async { COUNT.get() }).await.unwrap()
}

/// Issues `commands` commands from `lanes` tasks, each of which has one command under way.
async fn run(disk: &RemoteDisk, writes: bool, lanes: usize, commands: usize) {
    let mut running = JoinSet::new();
    for lane in 0..lanes {
        let disk = disk.clone();
        running.spawn(async move {
            let data = Buf::zeroed(BLOCK_LEN).freeze();
            let mut buf = Buf::new(BLOCK_LEN);
            for n in (lane..commands).step_by(lanes) {
                let offset = (n % 1024 * BLOCK_LEN) as u64;
                if writes {
                    disk.write(offset, data.clone(), WriteFlags::NONE).await.unwrap();
                } else {
                    buf = disk.read(offset, buf).await.unwrap();
                }
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
}

/// Allocations of client and target for each command.
async fn of_each(target: &Handle, disk: &RemoteDisk, writes: bool, lanes: usize) -> (f64, f64) {
    run(disk, writes, lanes, WARM_UP).await;
    let before = (COUNT.get(), counted_at(target).await);
    run(disk, writes, lanes, COMMANDS).await;
    let client = COUNT.get() - before.0;
    let served = counted_at(target).await - before.1;
    (client as f64 / COMMANDS as f64, served as f64 / COMMANDS as f64)
}

#[test]
fn a_warm_command_allocates_what_is_written_here() {
    let (address, target) = serve();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = format!("iscsi://{address}/{IQN}/0").parse().unwrap();
        let disk = RemoteDisk::connect(url, Config::default()).await.unwrap();
        // Client: the place where the outcome is left, and the future that the device hands out.
        // Target: what owns the data, and, of an answer, what holds the memory charged for it.
        // However many are under way: tables and queues use their memory again.
        for (writes, client_max, target_max) in [(false, 2.0, 2.0), (true, 2.0, 1.0)] {
            for lanes in [1, 32] {
                let (client, served) = of_each(&target, &disk, writes, lanes).await;
                let what = format!("writes {writes}, {lanes} under way");
                println!("{what}: client {client:.2}, target {served:.2}");
                assert!(client <= client_max + ASIDE, "{what}: client {client:.2}");
                assert!(served <= target_max + ASIDE, "{what}: target {served:.2}");
            }
        }
        disk.close().await.unwrap();
    });
}
