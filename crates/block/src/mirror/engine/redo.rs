//! A batch in the redo log of a leg: its records are written, it is committed by the leg's
//! superblock, brought home, and released. What is in it is decided by whoever fills it; how it is
//! copied by the leg itself is [`home`]'s.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join;

use super::super::epoch::Piece;
use super::super::generation::WallMs;
use super::super::redo::home::Places;
use super::super::redo::{Gather, Writer, replay};
use super::super::status::{Home, HomeWay};
use super::super::superblock::Consistency;
use super::allowance::{Allowance, BYTES_FIRST};
use super::handshake::{self, Found};
use super::home::{self, Line};
use super::put::put;
use super::session::{Operation, Session, SessionDevice};
use super::shared::Shared;
use super::signs;
use super::tail;
use super::under_way::{Answered, UnderWay};
use crate::{BlockError, Result, WriteFlags};

/// Bytes of a record about, below which the allowance does not shrink.
const RECORD_BYTES: u64 = 1 << 20;

/// Records under way at most: each may be short.
const RECORDS_MAX: usize = 256;

/// A batch that is being written.
pub(crate) struct Batch {
    shared: Arc<Shared>,
    leg: usize,
    session: Arc<Session>,
    /// First byte of the log.
    log: u64,
    writer: Writer,
    /// What the leg is to copy home by itself, if it is.
    places: Option<Places>,
    /// When the first record was sent.
    began: Option<Duration>,
    line: Line,
    gather: Gather,
    /// Full, and not written yet.
    ready: Vec<Vec<Piece>>,
    /// Pieces that are not written yet, and their data.
    waiting: (u64, u64),
    under_way: UnderWay,
    /// When the next record may be sent, by the user's limit of the rate.
    next_at: Duration,
    /// Somebody waits for it: that limit does not count.
    hurries: bool,
}

impl Batch {
    /// An empty one, for the log of a leg.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        leg: usize,
        session: &Arc<Session>,
        found: &Found,
    ) -> Self {
        let (config, log) = (shared.config(), found.redo_log());
        let bounds = (RECORD_BYTES, config.resync_window_bytes);
        let allowed = Allowance::new(BYTES_FIRST, bounds, config.remote_timeout);
        let name = shared.host().random() as u64;
        Self {
            shared: shared.clone(),
            leg,
            session: session.clone(),
            log: log.start,
            writer: Writer::new(shared.books().uuid(), name, log.end - log.start),
            places: None,
            began: None,
            line: Line::default(),
            gather: Gather::default(),
            ready: Vec::new(),
            waiting: (0, 0),
            under_way: UnderWay::new(shared.host(), session, allowed),
            next_at: Duration::ZERO,
            hurries: false,
        }
    }

    /// Remembers what the leg can copy home by itself, if it copies.
    pub(crate) fn copied_inside(mut self) -> Self {
        self.places = self.session.inside().is_ok().then(Places::default);
        self
    }

    /// Bytes that it takes, but for what waits.
    pub(crate) fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    /// Bytes that the leg takes within a time, by what it has taken so far.
    pub(crate) fn taken_within(&self, time: Duration) -> u64 {
        let sent = self.line.sent.as_secs_f64();
        if sent > 0.0 { (self.bytes() as f64 / sent * time.as_secs_f64()) as u64 } else { 0 }
    }

    /// Changes wait for it from now on, or no longer.
    pub(crate) fn hurry(&mut self, hurries: bool) {
        self.hurries = hurries;
    }

    fn rate(&self) -> Option<u64> {
        self.shared.resync_limit(self.leg).filter(|_| !self.hurries)
    }

    /// Whether the log has room for another piece, of so many bytes of data.
    pub(crate) fn has_room(&self, data_bytes: u64) -> bool {
        self.writer.has_room(self.waiting.0 + 1, self.waiting.1 + data_bytes)
    }

    /// Adds a piece, for which there is room.
    pub(crate) fn add(&mut self, piece: Piece) {
        self.waiting = (self.waiting.0 + 1, self.waiting.1 + piece.content.data_bytes());
        self.ready.extend(self.gather.add(piece));
    }

    /// Has the records sent that are full; waits while enough is under way.
    ///
    /// # Errors
    /// The leg's.
    pub(crate) async fn send(&mut self) -> Result<()> {
        for pieces in std::mem::take(&mut self.ready) {
            self.has_room_for_more().await?;
            self.send_record(&pieces).await?;
        }
        Ok(())
    }

    /// Has all of it sent, and waits for the answers.
    ///
    /// # Errors
    /// The leg's.
    pub(crate) async fn send_all(&mut self) -> Result<()> {
        self.send().await?;
        let rest = self.gather.take();
        if !rest.is_empty() {
            self.send_record(&rest).await?;
        }
        self.all_answered().await
    }

    /// Waits while as much is under way as may be.
    async fn has_room_for_more(&mut self) -> Result<()> {
        while self.under_way.is_full(RECORDS_MAX) {
            self.answer().await?;
        }
        Ok(())
    }

    async fn all_answered(&mut self) -> Result<()> {
        while !self.under_way.is_empty() {
            self.answer().await?;
        }
        Ok(())
    }

    async fn send_record(&mut self, pieces: &[Piece]) -> Result<()> {
        let Some((at, record)) = self.writer.record(pieces) else {
            return Err(BlockError::Medium(std::io::Error::other("the redo log is too small")));
        };
        self.waiting.0 -= pieces.len() as u64;
        self.waiting.1 -= pieces.iter().map(|piece| piece.content.data_bytes()).sum::<u64>();
        let bytes = record.len() as u64;
        self.pause(bytes).await?;
        let at = self.log + at;
        self.remember(at, pieces);
        self.began.get_or_insert(self.shared.host().now());
        let write = self.session.run(|device| device.write(at, record, WriteFlags::NONE));
        self.sent(write, bytes);
        Ok(())
    }

    async fn answer(&mut self) -> Result<()> {
        if let Some(answered) = self.under_way.answer().await? {
            let sent = self.began.map(|began| self.shared.host().now().saturating_sub(began));
            self.line.note(&answered, sent);
        }
        Ok(())
    }

    /// Does `work` of this side, and takes what the leg answers meanwhile.
    ///
    /// # Errors
    /// The leg's.
    pub(crate) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> Result<T> {
        let Self { shared, line, began, under_way, .. } = self;
        let note = |answered: Answered| {
            line.note(&answered, began.map(|began| shared.host().now().saturating_sub(began)));
        };
        under_way.beside(work, note).await
    }

    fn remember(&mut self, at: u64, pieces: &[Piece]) {
        if self.places.as_mut().is_none_or(|places| places.note(at, pieces)) {
            return;
        }
        self.places = None;
        let why = "the last batch had more pieces than are remembered".to_owned();
        self.shared.legs().note_home(self.leg, Home { way: HomeWay::SentAgain, why });
    }

    /// Waits until the next record may be sent.
    async fn pause(&mut self, bytes: u64) -> Result<()> {
        if self.hurries {
            return Ok(());
        }
        let now = self.shared.host().now();
        if self.next_at > now {
            let over = self.shared.host().sleep(self.next_at - now);
            self.beside(over).await?;
        }
        self.next_at = self.shared.pace(self.leg, self.next_at.max(now), bytes);
        Ok(())
    }

    /// All of it counts from now on: whoever takes up the leg copies it home. It is the image of
    /// the time `closed`, and makes the epochs through this one stable.
    ///
    /// # Errors
    /// The leg's; it may be committed or not.
    pub(crate) async fn commit(
        &mut self,
        found: &mut Found,
        epoch: u64,
        closed: Duration,
    ) -> Result<()> {
        self.send_all().await?;
        if self.writer.bytes() == 0 {
            return Ok(()); // Nothing changes there.
        }
        let host = self.shared.host();
        let (closed_at, age) = (closed, host.now().saturating_sub(closed));
        let closed = host.wall_clock().checked_sub(age).map_or(WallMs(0), WallMs::from);
        let committed = self.writer.committed(epoch, closed);
        handshake::say(&self.shared, self.leg, &self.session, found, |superblock| {
            superblock.consistency = Consistency::Applying(committed);
        })
        .await?;
        self.shared.legs().committed(self.leg, &self.session, closed_at);
        Ok(())
    }

    /// Copies it home from the log, after [`commit`](Self::commit): within the leg, where it is
    /// [copied inside](Self::copied_inside) and can be. Nothing of it is flushed.
    ///
    /// # Errors
    /// The leg's.
    pub(crate) async fn copy_home(&mut self, found: &mut Found) -> Result<()> {
        let Some(batch) = found.batch() else { return Ok(()) };
        let (shared, leg, session) = (self.shared.clone(), self.leg, self.session.clone());
        signs::beside(&shared, leg, &session, found, self.copy_batch_home(batch)).await
    }

    async fn copy_batch_home(&mut self, batch: replay::Batch) -> Result<()> {
        if let Some(places) = self.places.take() {
            let line = Line { hurries: self.hurries, ..self.line };
            if home::copy_inside(&self.shared, self.leg, &self.session, places, line).await? {
                return Ok(());
            }
        }
        let device = SessionDevice(self.session.clone());
        let pace = self.rate().map(|rate| (&**self.shared.host(), rate));
        let (legs, leg) = (self.shared.legs(), self.leg);
        replay::copy_home(&device, batch, pace, &|bytes| legs.gets_home(leg, bytes)).await?;
        self.shared.legs().sends(self.leg, batch.committed.bytes);
        Ok(())
    }

    /// Copies it home from memory: what was put into it, where no piece overlaps with another. The
    /// stamp goes with it, since it holds already for whoever finds the batch named.
    ///
    /// The leg is not asked to copy: that takes as many round trips, and where epochs go in batches
    /// the target is not our own, and may take one small copy at a time.
    ///
    /// # Errors
    /// The leg's.
    pub(crate) async fn put_home(
        &mut self,
        found: &mut Found,
        pieces: impl Iterator<Item = Piece> + Send,
    ) -> Result<()> {
        let stamp = found.stamp_of_batch();
        let (device, layout) = (SessionDevice(self.session.clone()), found.layout());
        let stamped = async {
            match &stamp {
                Some(stamp) => tail::write_stamp(&device, &layout, stamp).await,
                None => Ok(()),
            }
        };
        let (shared, leg, session) = (self.shared.clone(), self.leg, self.session.clone());
        let put = try_join(self.write_all(pieces), stamped);
        signs::beside(&shared, leg, &session, found, put).await?;
        if let Some(stamp) = stamp {
            found.note_stamp(stamp.epoch);
        }
        Ok(())
    }

    async fn write_all(&mut self, pieces: impl Iterator<Item = Piece> + Send) -> Result<()> {
        for piece in pieces {
            self.has_room_for_more().await?;
            let bytes = piece.content.data_bytes();
            let write = self.session.run(|device| put(&**device, piece));
            self.sent(write, bytes);
        }
        self.all_answered().await
    }

    fn sent(&mut self, write: Operation<()>, bytes: u64) {
        self.shared.legs().sends(self.leg, bytes);
        self.under_way.sent(write, bytes, bytes);
    }

    /// It is home: makes that stable, and the superblock names it no more.
    ///
    /// # Errors
    /// The leg's; it may be released or not.
    pub(crate) async fn release(&mut self, found: &mut Found) -> Result<()> {
        if found.batch().is_none() {
            return Ok(());
        }
        let device = SessionDevice(self.session.clone());
        if let Some(stamp) = found.stamp_of_batch().filter(|new| new.epoch > found.stamp()) {
            // It holds already for whoever finds the batch named, since he copies it home first.
            tail::write_stamp(&device, &found.layout(), &stamp).await?;
            found.note_stamp(stamp.epoch);
        }
        handshake::say(&self.shared, self.leg, &self.session, found, |superblock| {
            superblock.consistency = Consistency::Consistent;
        })
        .await
    }
}
