//! A server for tests: a disk with a volatile cache, which forgets, fails, hangs up and lies when
//! it is told to.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::url::{Address, Url};
use crate::wire::{
    ALLOCATION_CONTEXT, ChunkType, Command, CommandFlags, ErrorCode, InfoType, OPTION_MAGIC,
    OptionCode, OptionReply, REQUEST_HEADER_LEN, RequestHeader, TransmissionFlags as Flags,
    chunk_header, put_option_reply, simple_reply,
};

pub(super) const SIZE: u64 = 1 << 20;

/// An answer out of a cookie.
pub(super) type Lie = Box<dyn Fn(u64) -> Vec<u8> + Send>;

/// What the disk is, and what it does next.
pub(super) struct World {
    pub(super) stable: Vec<u8>,
    pub(super) cached: Vec<u8>,
    pub(super) flags: Flags,
    pub(super) structured: bool,
    pub(super) block_sizes: [u32; 3],
    pub(super) size: u64,
    /// So many flushes fail.
    pub(super) failing_flushes: u32,
    /// What is sent in place of the next answer, to a request with this cookie.
    pub(super) lie: Option<Lie>,
    /// The connection ends in place of an answer to this command, so many times.
    pub(super) hangs_up_on: Option<(Command, u32)>,
    /// Answers are kept back until there are two, and come in the other order.
    pub(super) swaps: bool,
    /// Nobody is let in.
    pub(super) is_away: bool,
    pub(super) seen: Vec<RequestHeader>,
    pub(super) connections: usize,
}

impl World {
    pub(super) fn count(&self, command: Command) -> usize {
        self.seen.iter().filter(|header| header.command == command).count()
    }
}

pub(super) struct Server {
    world: Arc<Mutex<World>>,
    tasks: Arc<Mutex<JoinSet<()>>>,
    path: PathBuf,
    _folder: tempfile::TempDir,
    _accepting: JoinSet<()>,
}

pub(super) const ALL: Flags = Flags::HAS_FLAGS
    .with(Flags::SEND_FLUSH)
    .with(Flags::SEND_FUA)
    .with(Flags::SEND_TRIM)
    .with(Flags::SEND_WRITE_ZEROES)
    .with(Flags::CAN_MULTI_CONN);

impl Server {
    pub(super) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let world = Arc::new(Mutex::new(World {
            stable: vec![0; SIZE as usize],
            cached: vec![0; SIZE as usize],
            flags: ALL,
            structured: true,
            block_sizes: [1, 4096, 32 << 20],
            size: SIZE,
            failing_flushes: 0,
            lie: None,
            hangs_up_on: None,
            swaps: false,
            is_away: false,
            seen: Vec::new(),
            connections: 0,
        }));
        let tasks = Arc::new(Mutex::new(JoinSet::new()));
        let mut accepting = JoinSet::new();
        accepting.spawn({
            let (world, tasks) = (Arc::clone(&world), Arc::clone(&tasks));
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    if !world.lock().unwrap().is_away {
                        let world = Arc::clone(&world);
                        tasks.lock().unwrap().spawn(async move {
                            let _ = serve(stream, &world).await; // the client's end of it
                        });
                    }
                }
            }
        });
        Self { world, tasks, path, _folder: folder, _accepting: accepting }
    }

    pub(super) fn url(&self) -> Url {
        Url { address: Address::Unix(self.path.clone()), export: "disk".into() }
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// Ends all connections; what was in the cache is gone.
    pub(super) fn power_cut(&self) {
        self.tasks.lock().unwrap().abort_all();
        let mut world = self.world();
        world.cached = world.stable.clone();
    }
}

async fn serve(mut stream: UnixStream, world: &Mutex<World>) -> std::io::Result<()> {
    if !shake_hands(&mut stream, world).await? {
        return Ok(());
    }
    world.lock().unwrap().connections += 1;
    let mut kept = Vec::new();
    loop {
        let mut header = [0; REQUEST_HEADER_LEN];
        stream.read_exact(&mut header).await?;
        let header = RequestHeader::parse(&header).unwrap();
        let mut payload = Vec::new();
        if header.command == Command::WRITE {
            payload.resize(header.length as usize, 0);
            stream.read_exact(&mut payload).await?;
        }
        if header.command == Command::DISC {
            return Ok(());
        }
        let answer = {
            let mut world = world.lock().unwrap();
            world.seen.push(header);
            match &mut world.hangs_up_on {
                Some((command, times)) if *command == header.command && *times > 0 => {
                    *times -= 1;
                    return Ok(());
                }
                _ => {}
            }
            let answer = carry_out(&mut world, &header, &payload);
            kept.insert(0, answer);
            if world.swaps && kept.len() < 2 { Vec::new() } else { kept.concat() }
        };
        if !answer.is_empty() {
            kept.clear();
            stream.write_all(&answer).await?;
        }
    }
}

fn carry_out(world: &mut World, header: &RequestHeader, payload: &[u8]) -> Vec<u8> {
    if let Some(lie) = world.lie.take() {
        return lie(header.cookie);
    }
    let range = header.offset as usize..header.offset as usize + header.length as usize;
    let fua = header.flags.contains(CommandFlags::FUA);
    match header.command {
        Command::READ => return read(world, header, range),
        Command::BLOCK_STATUS => {
            let mut extents = 1u32.to_be_bytes().to_vec();
            for (len, state) in [(4096u32, 3u32), (header.length, 0)] {
                extents.extend([len.to_be_bytes(), state.to_be_bytes()].concat());
            }
            let chunk = chunk_header(ChunkType::BLOCK_STATUS, header.cookie, extents.len() as u32);
            return [&chunk[..], &extents].concat();
        }
        Command::FLUSH if world.failing_flushes > 0 => {
            world.failing_flushes -= 1;
            return simple_reply(Some(ErrorCode::EIO), header.cookie).to_vec();
        }
        Command::FLUSH => world.stable.clone_from(&world.cached),
        Command::WRITE => world.cached[range.clone()].copy_from_slice(payload),
        Command::WRITE_ZEROES => world.cached[range.clone()].fill(0),
        _ => {}
    }
    if fua {
        let cached = world.cached[range.clone()].to_vec();
        world.stable[range].copy_from_slice(&cached);
    }
    simple_reply(None, header.cookie).to_vec()
}

/// In two pieces, the last one first, where there are structured replies.
fn read(world: &World, header: &RequestHeader, range: std::ops::Range<usize>) -> Vec<u8> {
    let data = &world.cached[range];
    if !world.structured {
        return [&simple_reply(None, header.cookie)[..], data].concat();
    }
    let half = data.len() / 2;
    let piece = |at: usize, data: &[u8]| {
        let len = 8 + data.len() as u32;
        let offset = (header.offset + at as u64).to_be_bytes();
        [&chunk_header(ChunkType::OFFSET_DATA, header.cookie, len)[..], &offset, data].concat()
    };
    let mut first = piece(half, &data[half..]);
    first[4..6].fill(0); // not the last one
    [first, piece(0, &data[..half])].concat()
}

async fn shake_hands(stream: &mut UnixStream, world: &Mutex<World>) -> std::io::Result<bool> {
    let mut greeting = b"NBDMAGIC".to_vec();
    greeting.extend(OPTION_MAGIC.to_be_bytes());
    greeting.extend(3u16.to_be_bytes());
    stream.write_all(&greeting).await?;
    stream.read_exact(&mut [0; 4]).await?;
    loop {
        let mut header = [0; 16];
        stream.read_exact(&mut header).await?;
        let option = OptionCode(u32::from_be_bytes(header[8..12].try_into().unwrap()));
        let length = u32::from_be_bytes(header[12..].try_into().unwrap());
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data).await?;
        let mut output = Vec::new();
        let mut reply = |kind, data: &[u8]| put_option_reply(&mut output, option, kind, data);
        let (size, flags, structured, sizes) = {
            let world = world.lock().unwrap();
            (world.size, world.flags, world.structured, world.block_sizes)
        };
        match option {
            OptionCode::STRUCTURED_REPLY if structured => reply(OptionReply::ACK, &[]),
            OptionCode::SET_META_CONTEXT => {
                let context = [&1u32.to_be_bytes(), ALLOCATION_CONTEXT.as_bytes()].concat();
                reply(OptionReply::META_CONTEXT, &context);
                reply(OptionReply::ACK, &[]);
            }
            OptionCode::GO => {
                let kind = InfoType::EXPORT.0.to_be_bytes();
                let info = [&kind[..], &size.to_be_bytes(), &flags.0.to_be_bytes()].concat();
                reply(OptionReply::INFO, &info);
                let kind = InfoType::BLOCK_SIZE.0.to_be_bytes();
                let sizes = sizes.map(u32::to_be_bytes);
                reply(OptionReply::INFO, &[&kind[..], sizes.as_flattened()].concat());
                reply(OptionReply::ACK, &[]);
            }
            _ => reply(OptionReply::ERR_UNSUP, b"no"),
        }
        stream.write_all(&output).await?;
        if option == OptionCode::GO {
            return Ok(true);
        }
    }
}
