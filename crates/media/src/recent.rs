//! [`Recent`]: what came of a home's files a short time ago, for others who watch the same. A piece
//! that several want goes over the line once, if they want it within a minute, or while it comes.
//!
//! As soon as somebody is known to have written to the volume, all of it is forgotten, and what is
//! still on its way is for those who wait for it already: they ask again how the volume is before
//! they hand it on, as they do with what they have read themselves ([`View`](crate::view::View)).

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use block::layer::{ReadOnlyLayer, Reads};
use block::{BlockError, Buf, Device, DeviceInfo, Extent, Io};
use bytes::Bytes;
use futures_util::future::{FutureExt, Shared, WeakShared};
use tokio::time::Instant;

/// Most bytes that are kept of a home: a minute of 8 Mbit/s.
const BYTES_MAX: u64 = 64 << 20;

/// How long. Whoever starts to watch later reads for himself; and what is written over in its place
/// while the file says that it is the same is seen after this time.
const AGE_MAX: Duration = Duration::from_secs(60);

/// What came of a home's files.
#[derive(Clone, Default)]
pub(crate) struct Recent(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The moment of the volume behind which all of it was asked for; stays 0 where writes are not
    /// counted.
    moment: u64,
    /// By file and place on the device.
    pieces: BTreeMap<Key, Piece>,
    /// Those that are here, oldest first, and when they came.
    ages: VecDeque<(Instant, Key)>,
    bytes: u64,
}

/// The version of a file, and an offset on the device.
type Key = (Arc<str>, u64);

enum Piece {
    /// On its way as long as somebody waits for it; how long it is.
    Coming(WeakShared<Coming>, u64),
    Here(Came),
}

/// What came, and the greatest place of a read that had ended then.
#[derive(Clone)]
struct Came {
    bytes: Bytes,
    place: u64,
}

type Coming = Pin<Box<dyn Future<Output = Result<Came, Arc<BlockError>>> + Send>>;

/// What a reader finds.
enum Found {
    Here(Came),
    Coming(Shared<Coming>),
}

/// Who reads, and wants to know whether it is still so.
pub(crate) trait Reader: Send + Sync {
    /// The reader wants `len` bytes that another one has begun to read.
    fn met(&self, len: u64);

    /// The greatest place of a read that has ended by now.
    fn place(&self) -> u64;

    /// Bytes are here that had come when this was the greatest.
    fn came(&self, place: u64);
}

impl Recent {
    /// The device as the reader of this version of a file shares it with others: another text for
    /// other content.
    pub(crate) fn shared(&self, device: Device, version: &str, reader: Arc<dyn Reader>) -> Device {
        let (recent, version) = (self.clone(), version.into());
        Arc::new(ReadOnlyLayer::new(Sharing { device, recent, version, reader }))
    }

    /// The volume is at this moment, or was when somebody asked. Of a greater one than before,
    /// nothing that was asked for earlier may be what is there now.
    pub(crate) fn move_to(&self, moment: u64) {
        let mut state = self.lock();
        if moment > state.moment {
            *state = State { moment, ..State::default() };
        }
    }

    /// Forgets what is too old.
    pub(crate) fn forget_old(&self) {
        self.lock().shrink(BYTES_MAX);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The piece that has `len` bytes from there, and where it begins; else that which `read` is
    /// going to bring. And the moment of the volume behind which it was asked for.
    fn find(&self, key: Key, len: u64, read: impl FnOnce() -> Coming) -> (u64, Found, u64) {
        let mut state = self.lock();
        let moment = state.moment;
        let before = state.pieces.range((Arc::clone(&key.0), 0)..=key.clone()).next_back();
        if let Some(((_, at), piece)) = before
            && at + piece.len() >= key.1 + len
            && let Some(found) = piece.found()
        {
            return (*at, found, moment);
        }
        let coming = read().shared();
        if let Some(weak) = coming.downgrade() {
            state.put(key.clone(), Piece::Coming(weak, len));
        }
        (key.1, Found::Coming(coming), moment)
    }

    /// A piece has come that was asked for behind this moment.
    fn keep(&self, key: Key, came: &Came, moment: u64) {
        let mut state = self.lock();
        if state.moment != moment {
            return; // it may be of before or after what was written
        }
        let len = came.bytes.len() as u64;
        let is_there = |piece: &Piece| match piece {
            Piece::Here(_) => piece.len() >= len, // another one who waited for it has kept it
            Piece::Coming(..) => piece.len() > len,
        };
        if state.pieces.get(&key).is_some_and(is_there) {
            return;
        }
        state.put(key.clone(), Piece::Here(came.clone()));
        state.bytes += len;
        state.ages.push_back((Instant::now(), key));
        state.shrink(BYTES_MAX);
    }

    /// A piece will not come.
    fn failed(&self, key: &Key, moment: u64) {
        let mut state = self.lock();
        if state.moment == moment && matches!(state.pieces.get(key), Some(Piece::Coming(..))) {
            state.pieces.remove(key);
        }
    }
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Self::Coming(_, len) => *len,
            Self::Here(came) => came.bytes.len() as u64,
        }
    }

    fn found(&self) -> Option<Found> {
        match self {
            Self::Coming(weak, _) => weak.upgrade().map(Found::Coming),
            Self::Here(came) => Some(Found::Here(came.clone())),
        }
    }
}

impl State {
    fn put(&mut self, key: Key, piece: Piece) {
        if let Some(Piece::Here(came)) = self.pieces.insert(key, piece) {
            self.bytes -= came.bytes.len() as u64;
        }
    }

    /// Forgets the oldest beyond so many bytes, all that are too old, and what comes no more.
    fn shrink(&mut self, bytes_max: u64) {
        while let Some((came, key)) = self.ages.front()
            && (self.bytes > bytes_max || came.elapsed() >= AGE_MAX)
        {
            if let Some(Piece::Here(came)) = self.pieces.get(key) {
                self.bytes -= came.bytes.len() as u64;
                self.pieces.remove(key);
            }
            self.ages.pop_front();
        }
        if self.pieces.len() > 2 * self.ages.len() + 64 {
            self.pieces.retain(|_, piece| piece.found().is_some());
        }
    }
}

/// A device of which pieces that others read as well are read once.
struct Sharing {
    device: Device,
    recent: Recent,
    version: Arc<str>,
    reader: Arc<dyn Reader>,
}

impl Reads for Sharing {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Buf> {
        let (recent, key) = (self.recent.clone(), (Arc::clone(&self.version), offset));
        let (device, reader) = (Arc::clone(&self.device), Arc::clone(&self.reader));
        Io::later(async move {
            let (len, mut is_met) = (buf.len(), true);
            let read = || -> Coming {
                is_met = false;
                let reader = Arc::clone(&reader);
                Box::pin(async move {
                    let bytes = device.read(offset, Buf::new(len)).await.map_err(Arc::new)?;
                    Ok(Came { bytes: bytes.freeze(), place: reader.place() })
                })
            };
            let (at, found, moment) = recent.find(key.clone(), len as u64, read);
            if is_met {
                reader.met(len as u64);
            }
            let Came { bytes, place } = match found {
                Found::Here(came) => came,
                Found::Coming(coming) => {
                    let key = (key.0, at);
                    match coming.await {
                        Ok(came) => {
                            recent.keep(key, &came, moment);
                            came
                        }
                        Err(error) => {
                            recent.failed(&key, moment);
                            return Err(told(&error));
                        }
                    }
                }
            };
            reader.came(place);
            let skip = (offset - at) as usize;
            buf.copy_from_slice(&bytes[skip..skip + len]);
            Ok(buf)
        })
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.device.extents(offset, len)
    }
}

/// A copy of an error of a read for another viewer who waited for that read.
fn told(error: &BlockError) -> BlockError {
    match error {
        BlockError::Medium(error) => {
            BlockError::Medium(io::Error::new(error.kind(), error.to_string()))
        }
        BlockError::Fenced => BlockError::Fenced,
        BlockError::Unreachable(why) => BlockError::Unreachable(why.clone()),
        error => BlockError::Unreachable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use files::{FileExtent, FileReader, ReadConfig};

    use super::*;
    use crate::testing::{self, byte_at};

    const PIECE: u64 = 256 << 10;

    /// Who wants to know nothing.
    struct Nobody;

    impl Reader for Nobody {
        fn met(&self, _: u64) {}

        fn place(&self) -> u64 {
            0
        }

        fn came(&self, _: u64) {}
    }

    /// A disk, and what came of it.
    struct Home {
        disk: testing::Disk,
        recent: Recent,
    }

    impl Home {
        fn new(turns: usize) -> Self {
            Self { disk: testing::Disk::new(turns), recent: Recent::default() }
        }

        /// A file of 20 MiB that begins a little behind a multiple of a piece.
        fn file(&self, version: &str) -> FileReader {
            let extent = FileExtent { offset: 0, len: 20 << 20, at: Some(PIECE + 4096) };
            let config = ReadConfig { bytes_max: 2 << 20, ..ReadConfig::default() };
            let reader = Arc::new(Nobody);
            let device = self.recent.shared(Arc::clone(&self.disk.device), version, reader);
            FileReader::new(device, vec![extent]).with_config(config)
        }

        fn bytes(&self) -> u64 {
            self.disk.counts.bytes()
        }
    }

    async fn check(file: &FileReader, range: std::ops::Range<u64>) {
        let (mut reading, mut at) = (file.read(range.clone()), range.start);
        while let Some(bytes) = reading.next().await {
            let bytes = bytes.unwrap();
            let good =
                |(place, byte): (usize, &u8)| *byte == byte_at(PIECE + 4096 + at + place as u64);
            assert!(bytes.iter().enumerate().all(good), "{at}");
            at += bytes.len() as u64;
        }
        assert_eq!(at, range.end);
    }

    #[tokio::test(start_paused = true)]
    async fn eight_who_watch_the_same_read_it_once() {
        let home = Home::new(100_000);
        let viewers = (0..8).map(|number| {
            let file = home.file("a");
            tokio::spawn(async move {
                // Not all from the beginning, and not all at the same moment.
                tokio::time::sleep(Duration::from_secs(5 * number)).await;
                check(&file, number * 12_345..file.size()).await;
            })
        });
        for viewer in viewers.collect::<Vec<_>>() {
            viewer.await.unwrap();
        }
        let size = home.file("a").size();
        assert!(home.bytes() <= size + PIECE, "{} of {size}", home.bytes());
    }

    #[tokio::test(start_paused = true)]
    async fn another_version_is_another_file_and_old_pieces_are_forgotten() {
        let home = Home::new(100_000);
        check(&home.file("a"), 0..PIECE).await;
        let once = home.bytes();
        check(&home.file("a"), 0..PIECE).await;
        assert_eq!(home.bytes(), once);
        check(&home.file("b"), 0..PIECE).await;
        assert_eq!(home.bytes(), 2 * once);
        tokio::time::advance(AGE_MAX).await;
        home.recent.forget_old();
        let state = |home: &Home| {
            let state = home.recent.lock();
            (state.pieces.len(), state.ages.len(), state.bytes)
        };
        assert_eq!(state(&home), (0, 0, 0));
        check(&home.file("a"), 0..PIECE).await;
        assert_eq!(home.bytes(), 3 * once);
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_after_a_write_reads_anew_also_what_was_on_its_way_to_others() {
        let home = Home::new(0);
        let read = || {
            let file = home.file("a");
            tokio::spawn(async move { file.read_at(0, 4096).await.unwrap() })
        };
        home.recent.move_to(1);
        let first = read();
        tokio::task::yield_now().await;
        assert_eq!(home.disk.counts.under_way(), 1);
        // Somebody writes; whoever waits for a piece of before does not get it from a later one.
        home.recent.move_to(2);
        let second = read();
        tokio::task::yield_now().await;
        assert_eq!(home.disk.counts.under_way(), 2);
        home.disk.turns.add_permits(1);
        first.await.unwrap();
        let (third, before) = (read(), home.bytes());
        home.disk.turns.add_permits(1);
        second.await.unwrap();
        third.await.unwrap();
        assert_eq!(home.bytes(), before, "it waited for the second one");
        // What came is for all as long as nobody writes, and an answer of before says nothing.
        home.recent.move_to(1);
        check(&home.file("a"), 0..4096).await;
        assert_eq!(home.bytes(), before);
        home.recent.move_to(3);
        home.disk.turns.add_permits(1);
        check(&home.file("a"), 0..4096).await;
        assert!(home.bytes() > before);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_is_kept_than_allowed() {
        let home = Home::new(100_000);
        for version in ["a", "b", "c", "d", "e"] {
            check(&home.file(version), 0..20 << 20).await;
            let state = home.recent.lock();
            let kept: u64 = state.pieces.values().map(Piece::len).sum();
            assert_eq!(kept, state.bytes);
            assert!(kept <= BYTES_MAX, "{kept}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_takes_nothing_from_who_stays_and_the_last_one_ends_the_read() {
        let home = Home::new(0);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut first = home.file("a").read(0..PIECE / 2);
        let mut second = home.file("a").read(0..PIECE / 2);
        assert!(first.poll_next(&mut context).is_pending());
        assert!(second.poll_next(&mut context).is_pending());
        assert_eq!(home.disk.counts.under_way(), 1);
        drop(first);
        home.disk.turns.add_permits(1);
        assert_eq!(second.next().await.unwrap().unwrap().len() as u64, PIECE / 2);
        let mut alone = home.file("b").read(0..PIECE / 2);
        assert!(alone.poll_next(&mut context).is_pending());
        assert_eq!(home.disk.counts.under_way(), 1);
        drop(alone);
        assert_eq!(home.disk.counts.under_way(), 0);
        // It left nothing that somebody would wait for.
        home.disk.turns.add_permits(1);
        check(&home.file("b"), 0..PIECE / 2).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_told_to_all_who_wait_and_not_kept() {
        let home = Home::new(0);
        home.disk.counts.set_fails(true);
        let read = |home: &Home| {
            let file = home.file("a");
            tokio::spawn(async move { file.read_at(0, 4096).await })
        };
        let (first, second) = (read(&home), read(&home));
        tokio::task::yield_now().await;
        home.disk.turns.add_permits(1);
        for reader in [first, second] {
            let error = reader.await.unwrap().unwrap_err().to_string();
            assert!(error.contains("scratched"), "{error}");
        }
        home.disk.counts.set_fails(false);
        home.disk.turns.add_permits(1);
        check(&home.file("a"), 0..4096).await;
    }
}
