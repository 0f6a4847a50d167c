//! What a mirror costs beside its devices:
//! `cargo run --release -p enkaku-block --example mirror_cost`.
//!
//! Local device, leg and metadata forget all but what is written to the metadata and the leg's
//! tail, at once, so what is measured is the mirror. In turn, five times: writes of 4 KiB to the
//! local device alone, and through a mirror in sync; and memory for a tebibyte after writes all
//! over it.
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use block::mirror::{
    Config, CreateOptions, LegSource, LegState, Mirror, Mode, OpenLeg, Parts, TokioHost,
};
use block::{
    BlockDevice, Buf, Bytes, Device, DeviceInfo, Extent, Io, Result, WriteFlags, ZeroFlags,
};

const TIB: u64 = 1 << 40;
const BLOCK: usize = 4096;
const ROUNDS: usize = 5;
const WRITES: u64 = 200_000;

/// A device whose first `forgets` bytes read as zeroes whatever is written there.
struct Forgetful {
    info: DeviceInfo,
    forgets: u64,
    kept: Mutex<BTreeMap<u64, Bytes>>,
}

impl Forgetful {
    fn device(size: u64, forgets: u64) -> Result<Device> {
        let mut info = block::backend::MemoryDevice::new(BLOCK as u64, 512)?.info();
        info.size = size;
        Ok(Arc::new(Self { info, forgets, kept: Mutex::default() }))
    }
}

impl BlockDevice for Forgetful {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Buf> {
        buf.fill(0);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, part) in buf.chunks_mut(BLOCK).enumerate() {
            if let Some(block) = kept.get(&(offset + (number * BLOCK) as u64)) {
                part.copy_from_slice(&block[..part.len()]);
            }
        }
        Io::ok(buf)
    }

    fn write(&self, offset: u64, data: Bytes, _: WriteFlags) -> Io<()> {
        if offset >= self.forgets {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            for number in 0..data.len() / BLOCK {
                let at = number * BLOCK;
                kept.insert(offset + at as u64, Bytes::copy_from_slice(&data[at..at + BLOCK]));
            }
        }
        Io::ok(())
    }

    fn flush(&self) -> Io<()> {
        Io::ok(())
    }

    fn trim(&self, _: u64, _: u64) -> Io<()> {
        Io::ok(())
    }

    fn zero(&self, _: u64, _: u64, _: ZeroFlags) -> Io<()> {
        Io::ok(())
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        Io::ok(vec![Extent { offset, len, hole: true }])
    }
}

struct Leg(Device);

impl LegSource for Leg {
    fn name(&self) -> String {
        "leg".to_owned()
    }

    fn connect(&self) -> Pin<Box<dyn Future<Output = Result<OpenLeg>> + Send>> {
        let open = OpenLeg::of(self.0.clone());
        Box::pin(async { Ok(open) })
    }
}

async fn mirror(
    mode: Mode,
    local: &Device,
) -> std::result::Result<Mirror, Box<dyn std::error::Error>> {
    let size = local.info().size;
    let config = Config { mode, ..Config::default() };
    let parts = || -> Result<Parts> {
        let metadata = Forgetful::device(256 << 20, 0)?;
        let leg = Arc::new(Leg(Forgetful::device(size + (1 << 20), size)?));
        let (local, host) = (local.clone(), Arc::new(TokioHost::current()));
        Ok(Parts { local, metadata, legs: vec![leg], host })
    };
    let parts = parts()?;
    let again = Parts {
        local: parts.local.clone(),
        metadata: parts.metadata.clone(),
        legs: parts.legs.clone(),
        host: parts.host.clone(),
    };
    let options = CreateOptions { skip_initial_copy: true, force: true };
    Mirror::create(&parts, &config, options).await?;
    let mirror = Mirror::open(again, config).await?;
    while mirror.status().legs[0].state != LegState::InSync {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(mirror)
}

/// Nanoseconds a write, with so many under way.
async fn writes(device: &Device, depth: u64, area: u64) -> Result<f64> {
    let data = Bytes::from(vec![7; BLOCK]);
    let start = Instant::now();
    let tasks = (0..depth).map(|task| {
        let (device, data) = (device.clone(), data.clone());
        tokio::spawn(async move {
            for round in 0..WRITES / depth {
                let block = (round * depth + task).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let at = block % (area / BLOCK as u64) * BLOCK as u64;
                device.write(at, data.clone(), WriteFlags::NONE).await?;
            }
            Ok::<_, block::BlockError>(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.map_err(std::io::Error::other)??;
    }
    Ok(start.elapsed().as_nanos() as f64 / (WRITES / depth * depth) as f64)
}

fn resident_mib() -> std::result::Result<f64, Box<dyn std::error::Error>> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = statm.split(' ').nth(1).ok_or("no second field")?.parse()?;
    Ok(pages * 4096.0 / f64::from(1 << 20))
}

fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let before = resident_mib()?;
    let tebibyte = mirror(Mode::Sync, &Forgetful::device(TIB, TIB)?).await?;
    writes(&tebibyte.device(), 32, TIB).await?;
    println!(
        "a tebibyte, one leg, {WRITES} writes all over it: {:.1} MiB",
        resident_mib()? - before
    );
    drop(tebibyte);
    for (name, mode) in [("sync", Mode::Sync), ("async", Mode::Async)] {
        let local = Forgetful::device(1 << 30, 1 << 30)?;
        let mirror = mirror(mode, &local).await?;
        for depth in [1, 32] {
            let (mut alone, mut through) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                alone.push(writes(&local, depth, 1 << 30).await?);
                through.push(writes(&mirror.device(), depth, 1 << 30).await?);
            }
            let ((alone, ..), (through, least, most)) = (median(alone), median(through));
            println!(
                "{name:>5}, depth {depth:>2}: {:.2} µs a write of 4 KiB beside its devices ({:.2} to {:.2})",
                (through - alone) / 1e3,
                (least - alone) / 1e3,
                (most - alone) / 1e3,
            );
        }
    }
    Ok(())
}
