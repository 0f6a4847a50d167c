//! A number of commands between an initiator and a target of one process, each on a thread of its
//! own, for a profiler that counts what a command costs at each end. Prints nothing about time.
//!
//! `valgrind --tool=callgrind --separate-threads=yes commands read 128 20000`, of
//! target/release/examples.

use std::net::SocketAddr;
use std::sync::Arc;

use block::backend::MemoryDevice;
use block::{BlockDevice, Buf, Bytes, WriteFlags};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use iscsi::initiator::{Config, RemoteDisk};
use iscsi::target::{Server, ServerConfig};
use scsi::{LunOptions, Target, TargetConfig};
use tokio::runtime::Builder;

const IQN: &str = "iqn.2026-11.org.example:commands";
const BLOCK_LEN: usize = 4096;
const DEVICE_LEN: u64 = 8 << 20;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [direction, depth, commands] = words.as_slice() else {
        return Err("usage: commands read|write DEPTH COMMANDS".into());
    };
    let writes = match direction.as_str() {
        "read" => false,
        "write" => true,
        other => return Err(format!("{other} is neither read nor write").into()),
    };
    let (depth, commands) = (depth.parse()?, commands.parse()?);
    let address = serve()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let url = format!("iscsi://{address}/{IQN}/0").parse()?;
        let disk = RemoteDisk::connect(url, Config::default()).await?;
        // A task, as of a user of the library: the outermost future pays for every wake-up.
        let load = tokio::spawn(async move {
            load(&disk, writes, depth, commands).await?;
            disk.close().await
        });
        load.await??;
        Ok(())
    })
}

async fn load(disk: &RemoteDisk, writes: bool, depth: usize, commands: usize) -> block::Result<()> {
    let data = Buf::zeroed(BLOCK_LEN).freeze();
    let mut lanes = FuturesUnordered::new();
    let mut begun = 0;
    let mut spare: Vec<Buf> = Vec::new();
    loop {
        while begun < commands && lanes.len() < depth {
            let offset = (begun * 7919 * BLOCK_LEN) as u64 % DEVICE_LEN;
            lanes.push(one(disk, offset, writes.then(|| data.clone()), spare.pop()));
            begun += 1;
        }
        let Some(done) = lanes.next().await else { return Ok(()) };
        spare.extend(done?);
    }
}

fn one(
    disk: &RemoteDisk,
    offset: u64,
    data: Option<Bytes>,
    buf: Option<Buf>,
) -> impl Future<Output = block::Result<Option<Buf>>> + use<> {
    let disk = disk.clone();
    async move {
        match data {
            Some(data) => disk.write(offset, data, WriteFlags::NONE).await.map(|()| None),
            None => disk.read(offset, buf.unwrap_or_else(|| Buf::new(BLOCK_LEN))).await.map(Some),
        }
    }
}

/// A target on a thread of its own.
fn serve() -> Result<SocketAddr, Failure> {
    let (say, said) = std::sync::mpsc::channel();
    std::thread::Builder::new().name("target".into()).spawn(move || -> Result<(), Failure> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let target = Target::new(TargetConfig::new(IQN));
            let device = Arc::new(MemoryDevice::new(DEVICE_LEN, 512)?);
            // Holes would be read without a copy.
            let content = Buf::zeroed(DEVICE_LEN as usize).freeze();
            device.write(0, content, WriteFlags::NONE).await?;
            target.add_lun(0, device, LunOptions::default())?;
            let config = ServerConfig::new(IQN)?;
            let server = Server::bind(config, target, &["127.0.0.1:0".parse()?])?;
            say.send(server.local_addrs()[0])?;
            server.run(std::future::pending()).await;
            Ok(())
        })
    })?;
    Ok(said.recv()?)
}
