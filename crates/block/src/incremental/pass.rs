//! One walk over a device and the state file: the update, the verification, and learning what the
//! destination holds. What may be done when is decided in `books`; here it is done.

use std::collections::VecDeque;
use std::ops::Range;

use tokio::task::JoinSet;

use super::books::{Books, Run};
use super::format::PAGE_HASHES;
use super::hash::{Hash, Hasher};
use super::scan::{Piece, Scan};
use super::state::{Saver, State};
use super::{Among, Checked, IncrementalError, OFFSETS_MAX, Options, Updated};
use crate::copy::{CopyError, write_zeroes};
use crate::{BlockError, Buf, Bytes, Device, WriteFlags};

/// Pages of the state file that are read at once.
const PAGES_AT_ONCE: u64 = 64;

/// Makes the destination hold what the source does. `progress` is told the bytes of the source that
/// are done with.
///
/// # Errors
/// The first thing that went wrong. What was done until then is kept, but for the last
/// few MiB, which are sent again the next time.
pub async fn update(
    source: &Device,
    destination: &Device,
    state: &State,
    options: &Options,
    among: Among,
    progress: impl FnMut(u64),
) -> Result<Updated, IncrementalError> {
    let mut done = Updated::default();
    let job = Job::Update { destination: destination.clone(), done: &mut done };
    let wanted = match among {
        Among::All => Wanted::All,
        Among::Unknown => Wanted::Unknown,
    };
    let damaged = Pass::new(source, state, options, wanted, job, progress).run().await?;
    done.damaged_pages = damaged;
    Ok(done)
}

/// Reads the destination and compares it with the hashes. Where it differs nothing is known of it
/// any more, so that the next [`update`] sends it again.
///
/// # Errors
/// The first thing that went wrong.
pub async fn verify(
    destination: &Device,
    state: &State,
    options: &Options,
    progress: impl FnMut(u64),
) -> Result<Checked, IncrementalError> {
    let mut found = Checked::default();
    let job = Job::Verify(&mut found);
    Pass::new(destination, state, options, Wanted::Known, job, progress).run().await?;
    Ok(found)
}

/// Reads the destination where nothing is known of it, and notes what it holds: for one that was
/// filled otherwise, such as by a disk that was carried there.
///
/// # Errors
/// The first thing that went wrong.
pub async fn learn(
    destination: &Device,
    state: &State,
    options: &Options,
    progress: impl FnMut(u64),
) -> Result<Checked, IncrementalError> {
    learn_all_or_holes(destination, state, options, false, progress).await
}

/// As [`learn`], only its holes, so that nothing is read: they are zero.
///
/// # Errors
/// The first thing that went wrong.
pub async fn learn_holes(
    destination: &Device,
    state: &State,
    options: &Options,
) -> Result<Checked, IncrementalError> {
    learn_all_or_holes(destination, state, options, true, |_| ()).await
}

async fn learn_all_or_holes(
    destination: &Device,
    state: &State,
    options: &Options,
    holes_only: bool,
    progress: impl FnMut(u64),
) -> Result<Checked, IncrementalError> {
    // What is read may be in a volatile cache still; what the file says has to be stable.
    destination.flush().await.map_err(CopyError::Flush)?;
    let mut found = Checked::default();
    let job = Job::Learn { found: &mut found, holes_only };
    Pass::new(destination, state, options, Wanted::Unknown, job, progress).run().await?;
    Ok(found)
}

/// What is done with the blocks that were read.
enum Job<'a> {
    Update { destination: Device, done: &'a mut Updated },
    Verify(&'a mut Checked),
    Learn { found: &'a mut Checked, holes_only: bool },
}

/// Which blocks are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    All,
    Known,
    Unknown,
}

impl Wanted {
    fn has(self, known: Hash) -> bool {
        match self {
            Self::All => true,
            Self::Known => known.is_known(),
            Self::Unknown => !known.is_known(),
        }
    }
}

/// What has ended.
enum Event {
    Read { blocks: Range<u64>, hashes: Vec<Hash>, data: Bytes },
    Saved,
    Written { blocks: Range<u64>, hashes: Vec<Hash>, bytes: u64 },
    Flushed,
}

fn unreadable(reads_back: bool, offset: u64, source: BlockError) -> CopyError {
    match reads_back {
        true => CopyError::ReadBack { offset, source },
        false => CopyError::Read { offset, source },
    }
}

struct Pass<'a, P> {
    /// What is read.
    device: Device,
    length: u64,
    block_bytes: u64,
    state: &'a State,
    saver: Saver,
    hasher: Hasher,
    options: Options,
    wanted: Wanted,
    job: Job<'a>,
    progress: P,
    scan: Scan,
    /// What was cut and not begun.
    pieces: VecDeque<Piece>,
    books: Books,
    /// The first page that is not in the books yet.
    next_page: u64,
    damaged: u64,
    tasks: JoinSet<Result<Event, IncrementalError>>,
    /// Reads and writes under way.
    moving: usize,
    ended: bool,
}

impl<'a, P: FnMut(u64)> Pass<'a, P> {
    fn new(
        device: &Device,
        state: &'a State,
        options: &Options,
        wanted: Wanted,
        job: Job<'a>,
        progress: P,
    ) -> Self {
        let header = state.header();
        let (length, block) = (header.length, header.block_bytes);
        let block_bytes = u64::from(block);
        let last = (length - 1) % block_bytes + 1;
        Self {
            device: device.clone(),
            length,
            block_bytes,
            state,
            saver: state.saver(),
            hasher: Hasher::new(header.salt, block as usize, last as usize),
            options: *options,
            wanted,
            job,
            progress,
            scan: Scan::new(device.clone(), length, block, options.transfer_size),
            pieces: VecDeque::new(),
            books: Books::new(options.checkpoint_bytes),
            next_page: 0,
            damaged: 0,
            tasks: JoinSet::new(),
            moving: 0,
            ended: false,
        }
    }

    /// How many pages were damaged.
    async fn run(mut self) -> Result<u64, IncrementalError> {
        loop {
            while !self.ended && self.moving + self.books.waiting() < self.options.depth.max(1) {
                match self.next_piece().await? {
                    Some(piece) => self.begin(piece),
                    None => self.ended = true,
                }
                self.save();
            }
            self.save();
            let at_end = self.ended && self.moving == 0 && self.books.waiting() == 0;
            if self.books.take_flush(at_end) {
                self.flush();
            }
            let Some(event) = self.tasks.join_next().await else { break };
            match event.map_err(CopyError::Lost)?? {
                Event::Read { blocks, hashes, data } => {
                    self.moving -= 1;
                    self.decide(blocks, hashes, Some(&data));
                }
                Event::Saved => {
                    let runs = self.books.saved();
                    runs.into_iter().for_each(|run| self.write(run));
                }
                Event::Written { blocks, hashes, bytes } => {
                    self.moving -= 1;
                    (self.progress)(bytes);
                    self.books.written(blocks, hashes, bytes);
                }
                Event::Flushed => self.books.flushed(),
            }
        }
        debug_assert!(self.books.is_settled(), "blocks were forgotten");
        Ok(self.damaged)
    }

    /// The next piece with nothing in it but wanted blocks.
    async fn next_piece(&mut self) -> Result<Option<Piece>, IncrementalError> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Ok(Some(piece));
            }
            let next = self.scan.next().await;
            let next = next.map_err(|(at, why)| unreadable(self.reads_back(), at, why))?;
            let Some(piece) = next else { return Ok(None) };
            let page = piece.blocks.start / PAGE_HASHES;
            if page >= self.next_page {
                self.load_pages().await?;
            }
            let mut at = piece.blocks.start;
            while at < piece.blocks.end {
                let wanted = self.wanted.has(self.books.known(at));
                let same = |block: &u64| self.wanted.has(self.books.known(*block)) == wanted;
                let end = at + (at..piece.blocks.end).take_while(same).count() as u64;
                match wanted {
                    true => self.pieces.push_back(Piece { blocks: at..end, ..piece }),
                    false => {
                        let bytes = self.bytes(&(at..end)).1;
                        (self.progress)(bytes);
                        self.books.leave(at..end);
                    }
                }
                at = end;
            }
        }
    }

    async fn load_pages(&mut self) -> Result<(), IncrementalError> {
        let first = self.next_page;
        let numbers = first..(first + PAGES_AT_ONCE).min(self.state.pages());
        let (pages, damaged) = self.state.load(numbers.clone()).await?;
        self.damaged += damaged;
        let blocks = self.length.div_ceil(self.block_bytes);
        for (number, page) in numbers.clone().zip(pages) {
            let in_page = (blocks - number * PAGE_HASHES).min(PAGE_HASHES);
            self.books.add_page(number, page, in_page);
        }
        self.next_page = numbers.end;
        Ok(())
    }

    /// Offset and length of blocks, in bytes; the last block of the source may be short.
    fn bytes(&self, blocks: &Range<u64>) -> (u64, u64) {
        let offset = blocks.start * self.block_bytes;
        (offset, (blocks.end * self.block_bytes).min(self.length) - offset)
    }

    /// What is read is the destination.
    fn reads_back(&self) -> bool {
        !matches!(self.job, Job::Update { .. })
    }

    fn begin(&mut self, piece: Piece) {
        let Piece { blocks, hole } = piece;
        let (offset, len) = self.bytes(&blocks);
        if hole {
            let of_zeroes =
                |block| self.hasher.of_zeroes(self.bytes(&(block..block + 1)).1 as usize);
            let hashes = blocks.clone().map(of_zeroes).collect();
            return self.decide(blocks, hashes, None);
        }
        if matches!(self.job, Job::Learn { holes_only: true, .. }) {
            return self.books.leave(blocks);
        }
        if let Job::Update { done, .. } = &mut self.job {
            done.read_bytes += len;
        }
        let (hasher, block_bytes) = (self.hasher.clone(), self.block_bytes as usize);
        let read = self.device.read(offset, Buf::new(len as usize));
        let reads_back = self.reads_back();
        self.moving += 1;
        self.tasks.spawn(async move {
            let read = read.await.map_err(|source| unreadable(reads_back, offset, source))?;
            let hashes = read.chunks(block_bytes).map(|block| hasher.hash(block)).collect();
            Ok(Event::Read { blocks, hashes, data: read.freeze() })
        });
    }

    /// What becomes of blocks whose content is known; no data means zeroes.
    fn decide(&mut self, blocks: Range<u64>, hashes: Vec<Hash>, data: Option<&Bytes>) {
        let bytes = self.bytes(&blocks).1;
        let known: Vec<Hash> = blocks.clone().map(|block| self.books.known(block)).collect();
        match &mut self.job {
            Job::Update { .. } => return self.send(blocks, &hashes, &known, data),
            Job::Verify(found) => {
                found.bytes += bytes;
                let each = blocks.clone().zip(hashes.iter().zip(&known));
                for (block, _) in each.filter(|(_, (is, was))| is != was) {
                    found.mismatches += 1;
                    // Reads end in any order.
                    let at = block * self.block_bytes;
                    let place = found.offsets.partition_point(|other| *other < at);
                    found.offsets.insert(place, at);
                    found.offsets.truncate(OFFSETS_MAX);
                    self.books.set(block, Hash::UNKNOWN);
                }
            }
            Job::Learn { found, .. } => {
                found.bytes += bytes;
                for (block, hash) in blocks.clone().zip(hashes) {
                    self.books.set(block, hash);
                }
            }
        }
        (self.progress)(bytes);
        self.books.leave(blocks);
    }

    /// Sends what differs of these blocks, in runs of data and of zeroes.
    fn send(&mut self, blocks: Range<u64>, hashes: &[Hash], known: &[Hash], data: Option<&Bytes>) {
        let first = blocks.start;
        let kind = |block: u64| {
            let at = (block - first) as usize;
            let len = self.bytes(&(block..block + 1)).1 as usize;
            let zero = data.is_none() || hashes[at] == self.hasher.of_zeroes(len);
            (hashes[at] != known[at], zero)
        };
        let mut runs = Vec::new();
        let mut at = first;
        while at < blocks.end {
            let this = kind(at);
            let end = at + (at..blocks.end).take_while(|block| kind(*block) == this).count() as u64;
            runs.push((at..end, this));
            at = end;
        }
        let base = first * self.block_bytes;
        for (blocks, (differs, zero)) in runs {
            let (offset, len) = self.bytes(&blocks);
            let Job::Update { done, .. } = &mut self.job else { return };
            match (differs, zero) {
                (false, _) => done.same_bytes += len,
                (true, false) => done.sent_bytes += len,
                (true, true) => done.zero_bytes += len,
            }
            if !differs {
                (self.progress)(len);
                self.books.leave(blocks);
                continue;
            }
            let hashes =
                hashes[(blocks.start - first) as usize..(blocks.end - first) as usize].to_vec();
            let place = (offset - base) as usize..(offset - base + len) as usize;
            let data = data.filter(|_| !zero).map(|data| data.slice(place));
            let run = self.books.send(Run { blocks, hashes, data, bytes: len });
            run.into_iter().for_each(|run| self.write(run));
        }
    }

    fn write(&mut self, run: Run) {
        let Job::Update { destination, .. } = &self.job else { return };
        let destination = destination.clone();
        let (offset, step) = (run.blocks.start * self.block_bytes, self.options.transfer_size);
        self.moving += 1;
        self.tasks.spawn(async move {
            let Run { blocks, hashes, data, bytes } = run;
            match data {
                None => write_zeroes(&destination, offset, bytes, step).await?,
                Some(data) => {
                    let written = destination.write(offset, data, WriteFlags::NONE).await;
                    written.map_err(|source| CopyError::Write { offset, source })?;
                }
            }
            Ok(Event::Written { blocks, hashes, bytes })
        });
    }

    fn save(&mut self) {
        let Some(pages) = self.books.take_save() else { return };
        let saver = self.saver.clone();
        self.tasks.spawn(async move {
            saver.save(&pages).await?;
            Ok(Event::Saved)
        });
    }

    fn flush(&mut self) {
        let Job::Update { destination, .. } = &self.job else { return };
        let destination = destination.clone();
        self.tasks.spawn(async move {
            destination.flush().await.map_err(CopyError::Flush)?;
            Ok(Event::Flushed)
        });
    }
}
