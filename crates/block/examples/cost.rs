//! What one operation of a file costs:
//! `cargo run --release -p enkaku-block --example cost -- FILE`.
use std::time::Instant;

use block::backend::{FileDevice, FileOptions};
use block::{BlockDevice, Buf, WriteFlags};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which FILE? (64 MiB are written to it)")?;
    let size = 64u64 << 20;
    let device = FileDevice::open(&path, &FileOptions::default().with_create(size))?;
    let device = std::sync::Arc::new(device);
    device.write(0, Buf::zeroed(size as usize).freeze(), WriteFlags::NONE).await?;
    for (name, write, len, depth) in [
        ("read 4k", false, 4096u64, 1u64),
        ("read 4k", false, 4096, 32),
        ("write 4k", true, 4096, 1),
        ("write 4k", true, 4096, 32),
        ("read 256k", false, 262_144, 8),
        ("write 256k", true, 262_144, 8),
    ] {
        let rounds = ((1u64 << 30) / len).min(100_000) / depth;
        let start = Instant::now();
        let data = Buf::zeroed(len as usize).freeze();
        let tasks = (0..depth).map(|task| {
            let (device, data) = (device.clone(), data.clone());
            tokio::spawn(async move {
                for round in 0..rounds {
                    let offset = (round * 7919 + task * 104_729) % (size / len) * len;
                    if write {
                        device.write(offset, data.clone(), WriteFlags::NONE).await?;
                    } else {
                        device.read(offset, Buf::new(len as usize)).await?;
                    }
                }
                Ok::<_, block::BlockError>(())
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await??;
        }
        let each = start.elapsed().as_nanos() as f64 / (rounds * depth) as f64;
        println!("{name:>10} depth {depth:>2}: {each:>8.0} ns each, {:.2} GB/s", len as f64 / each);
    }
    Ok(())
}
