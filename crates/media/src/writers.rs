//! [`Marks`]: does somebody else write to a volume? All who read from it ask together: whoever asks
//! while a question is under way waits for the next one, since that one's answer may be of before.
//!
//! What a stream begins with does not wait for a question that is sent when it has come: one goes
//! right behind each of its first reads ([`Escort`]), where the volume's target can be asked so.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use block::BlockError;
use iscsi::initiator::{RemoteDisk, WriteMark};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Behind reads, nothing is asked of a volume that was written to so short a time ago: the question
/// waits at its target until older writes of everybody have ended, and newer ones wait for it.
const UNDISTURBED: Duration = Duration::from_secs(10);

/// An answer behind reads counts for so long: what others have read of a file and is handed on from
/// memory is not confirmed by one of long ago.
const TOLD_FOR: Duration = Duration::from_secs(2);

/// What a volume tells of those who write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// The same as long as no write begins or ends, and greater then.
    pub(crate) moment: u64,
    /// Its owner has said that he writes to it.
    pub(crate) is_reserved: bool,
    /// Nobody has written to it for as long as that is known.
    pub(crate) is_untouched: bool,
}

/// An answer that is under way; `None`: the volume does not tell.
pub(crate) type Answer<'a> =
    Pin<Box<dyn Future<Output = Result<Option<Told>, BlockError>> + Send + 'a>>;

/// An answer that is under way, and its place: its moment is behind all reads of lesser ones.
pub(crate) type AnswerBehind =
    Pin<Box<dyn Future<Output = Result<(Told, u64), BlockError>> + Send>>;

/// What can be asked.
pub(crate) trait Asked: Send + Sync {
    /// How it is at some moment from now on. One question at a time.
    fn ask(&self) -> Answer<'_>;

    /// How it is at some moment behind all reads that were begun by now, where that can be asked:
    /// now, not when it is polled.
    fn ask_behind(&self) -> Option<AnswerBehind> {
        None
    }

    /// The greatest place of a read that has ended by now, where places tell something.
    fn reads_ended(&self) -> Option<u64> {
        None
    }
}

/// What was told last, and since when it is so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) told: Told,
    /// Since when nothing has been written, as far as it was looked at.
    pub(crate) quiet_since: Instant,
    /// A write was noticed before that.
    pub(crate) has_moved: bool,
}

impl Look {
    /// For how long nobody has written.
    pub(crate) fn quiet(&self) -> Duration {
        if self.told.is_untouched { Duration::MAX } else { self.quiet_since.elapsed() }
    }

    /// Nobody seems to be writing.
    fn is_undisturbed(&self) -> bool {
        !self.told.is_reserved && (!self.has_moved || self.quiet() >= UNDISTURBED)
    }
}

/// The questions to one volume.
pub(crate) struct Marks {
    asked: Option<Box<dyn Asked>>,
    /// Questions that were begun.
    begun: AtomicU64,
    /// Held by the question that is under way.
    last: tokio::sync::Mutex<Last>,
    look: Mutex<Option<Look>>,
    /// What was told of the latest place, whoever has asked, and when.
    behind: Mutex<Option<Behind>>,
    answered: Notify,
}

#[derive(Clone, Copy)]
struct Behind {
    at: Instant,
    look: Look,
    place: u64,
}

#[derive(Default)]
struct Last {
    /// Which question the outcome is of.
    question: u64,
    outcome: Option<Result<Option<Look>, String>>,
}

/// The questions of one stream that are right behind its reads.
#[derive(Default)]
pub(crate) struct Escort {
    under_way: AtomicUsize,
    /// The greatest place of a read that had ended when the last of what the stream has came.
    place: AtomicU64,
}

impl Escort {
    /// Something came for the stream when this was the greatest place.
    pub(crate) fn came(&self, place: u64) {
        self.place.fetch_max(place, Ordering::AcqRel);
    }
}

impl Marks {
    /// Of a volume that can be asked, or of one that cannot.
    pub(crate) fn new(asked: Option<Box<dyn Asked>>) -> Self {
        Self {
            asked,
            begun: AtomicU64::new(0),
            last: tokio::sync::Mutex::default(),
            look: Mutex::default(),
            behind: Mutex::default(),
            answered: Notify::new(),
        }
    }

    /// What was told last, of whatever moment that is.
    pub(crate) fn known(&self) -> Option<Look> {
        *locked(&self.look)
    }

    /// How it is at some moment from now on; `None` where that is not told.
    ///
    /// # Errors
    /// The volume does not answer.
    pub(crate) async fn fresh(&self) -> Result<Option<Look>, String> {
        let Some(asked) = &self.asked else { return Ok(None) };
        let begun_before = self.begun.load(Ordering::Acquire);
        let mut last = self.last.lock().await;
        if last.question > begun_before
            && let Some(outcome) = &last.outcome
        {
            return outcome.clone();
        }
        let question = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let outcome = match asked.ask().await {
            Ok(told) => Ok(told.map(|told| self.note(told))),
            Err(error) => Err(error.to_string()),
        };
        (last.question, last.outcome) = (question, Some(outcome.clone()));
        outcome
    }

    /// Asks how it is behind all that a stream has begun to read, if that may be asked.
    pub(crate) fn ask_behind(self: &Arc<Self>, escort: &Arc<Escort>) {
        let Some(asked) = &self.asked else { return };
        if !self.known().is_some_and(|look| look.is_undisturbed()) {
            return;
        }
        let Some(answer) = asked.ask_behind() else { return };
        escort.under_way.fetch_add(1, Ordering::AcqRel);
        let (marks, escort) = (Arc::clone(self), Arc::clone(escort));
        tokio::spawn(async move {
            // Whoever waits in vain asks himself.
            if let Ok((told, place)) = answer.await {
                marks.note_behind(told, place);
            }
            escort.under_way.fetch_sub(1, Ordering::AcqRel);
            marks.answered.notify_waiters();
        });
    }

    fn note_behind(&self, told: Told, place: u64) {
        let (at, look) = (Instant::now(), self.note(told));
        let mut behind = locked(&self.behind);
        if behind.is_none_or(|before| before.place <= place) {
            *behind = Some(Behind { at, look, place });
        }
    }

    /// The greatest place of a read that has ended by now; the greatest of all where places tell
    /// nothing.
    pub(crate) fn reads_ended(&self) -> u64 {
        self.asked.as_ref().and_then(|asked| asked.reads_ended()).unwrap_or(u64::MAX)
    }

    /// How the volume was behind all that has come for a stream by now, as a question behind reads
    /// has told a moment ago, or one of the stream's is about to; `None` where that is still to be
    /// asked. What comes meanwhile is another matter.
    pub(crate) async fn look_behind(&self, escort: &Escort) -> Option<Look> {
        // Nothing has come for the stream yet: there is no place that an answer could be behind.
        let ended = Some(escort.place.load(Ordering::Acquire)).filter(|place| *place > 0)?;
        loop {
            let answered = self.answered.notified();
            tokio::pin!(answered);
            answered.as_mut().enable();
            let is_asked = escort.under_way.load(Ordering::Acquire) > 0;
            let behind = *locked(&self.behind);
            if let Some(told) = behind.filter(|told| told.place > ended)
                && told.at.elapsed() < TOLD_FOR
            {
                return Some(told.look);
            }
            if !is_asked {
                return None;
            }
            answered.await;
        }
    }

    fn note(&self, told: Told) -> Look {
        let mut known = locked(&self.look);
        let now = Instant::now();
        let look = match *known {
            Some(before) if before.told.moment == told.moment => Look { told, ..before },
            before => Look { told, quiet_since: now, has_moved: before.is_some() },
        };
        *known = Some(look);
        look
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A unit of an iSCSI target.
pub(crate) struct Unit {
    disk: RemoteDisk,
    moments: Arc<Mutex<Moments>>,
}

/// Marks by numbers that never come back: of two questions that are under way together, the earlier
/// one may be answered last.
#[derive(Default)]
struct Moments {
    mark: Option<WriteMark>,
    number: u64,
}

impl Unit {
    pub(crate) fn new(disk: RemoteDisk) -> Self {
        Self { disk, moments: Arc::default() }
    }
}

fn told(moments: &Mutex<Moments>, mark: WriteMark) -> Option<Told> {
    if !mark.is_counted() && !mark.is_reserved() {
        return None;
    }
    let mut moments = locked(moments);
    if moments.mark.replace(mark) != Some(mark) {
        moments.number += 1;
    }
    let (is_reserved, is_untouched) = (mark.is_reserved(), mark.is_untouched());
    Some(Told { moment: moments.number, is_reserved, is_untouched })
}

impl Asked for Unit {
    fn ask(&self) -> Answer<'_> {
        Box::pin(async move { Ok(told(&self.moments, self.disk.write_mark().await?)) })
    }

    fn ask_behind(&self) -> Option<AnswerBehind> {
        let moments = Arc::clone(&self.moments);
        let answer = self.disk.write_mark_behind()?;
        Some(Box::pin(async move {
            let (mark, place) = answer.await?;
            let told = told(&moments, mark).ok_or(BlockError::Unsupported("a count of writes"))?;
            Ok((told, place))
        }))
    }

    fn reads_ended(&self) -> Option<u64> {
        self.disk.reads_ended()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    /// Answers with its number of writes, when it may.
    #[derive(Clone, Default)]
    struct Counter {
        writes: Arc<AtomicU64>,
        questions: Arc<AtomicU64>,
        turns: Option<Arc<Semaphore>>,
    }

    impl Asked for Counter {
        fn ask(&self) -> Answer<'_> {
            self.questions.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                let moment = self.writes.load(Ordering::Relaxed);
                if let Some(turns) = &self.turns {
                    turns.acquire().await.unwrap().forget();
                }
                Ok(Some(Told { moment, is_reserved: false, is_untouched: moment == 0 }))
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_never_of_before_the_question_and_one_is_for_all_who_wait() {
        let turns = Arc::new(Semaphore::new(0));
        let counter = Counter { turns: Some(Arc::clone(&turns)), ..Counter::default() };
        let marks = Arc::new(Marks::new(Some(Box::new(counter.clone()))));
        let ask = || {
            let marks = Arc::clone(&marks);
            tokio::spawn(async move { marks.fresh().await.unwrap().unwrap().told.moment })
        };
        let first = ask();
        while counter.questions.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        // The answer that is under way is of before this.
        counter.writes.store(1, Ordering::Relaxed);
        let others: Vec<_> = (0..8).map(|_| ask()).collect();
        tokio::time::sleep(Duration::from_millis(1)).await;
        turns.add_permits(1);
        assert_eq!(first.await.unwrap(), 0);
        turns.add_permits(1);
        for other in others {
            assert_eq!(other.await.unwrap(), 1);
        }
        assert_eq!(counter.questions.load(Ordering::Relaxed), 2);
        // Somebody who gives up leaves the question to the next.
        let gone = ask();
        tokio::time::sleep(Duration::from_millis(1)).await;
        gone.abort();
        turns.add_permits(1);
        assert_eq!(ask().await.unwrap(), 1);
    }

    /// A volume on which nothing is written, whose commands are counted.
    #[derive(Default)]
    struct Ordered(AtomicU64);

    impl Asked for Ordered {
        fn ask(&self) -> Answer<'_> {
            let told = Told { moment: 1, is_reserved: false, is_untouched: true };
            Box::pin(async move { Ok(Some(told)) })
        }

        fn ask_behind(&self) -> Option<AnswerBehind> {
            let place = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            let told = Told { moment: 1, is_reserved: false, is_untouched: true };
            Some(Box::pin(async move { Ok((told, place)) }))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_for_all_that_had_come_before_it_was_asked_for() {
        let marks = Arc::new(Marks::new(Some(Box::<Ordered>::default())));
        marks.fresh().await.unwrap();
        let (first, beside) = (Arc::new(Escort::default()), Arc::new(Escort::default()));
        first.came(1);
        beside.came(1);
        assert!(marks.look_behind(&first).await.is_none(), "nobody has asked");
        for _ in 0..2 {
            marks.ask_behind(&first);
        }
        assert!(marks.look_behind(&first).await.is_some());
        assert!(marks.look_behind(&beside).await.is_some(), "asked by another one");
        // What came later is not behind it; nor is what has come for nobody, as a hole.
        beside.came(2);
        assert!(marks.look_behind(&beside).await.is_none());
        assert!(marks.look_behind(&Escort::default()).await.is_none());
        tokio::time::advance(TOLD_FOR).await;
        assert!(marks.look_behind(&first).await.is_none(), "it is of long ago");
    }

    #[tokio::test(start_paused = true)]
    async fn how_long_it_is_quiet_begins_anew_with_each_write() {
        let counter = Counter::default();
        let marks = Marks::new(Some(Box::new(counter.clone())));
        let look = async || marks.fresh().await.unwrap().unwrap();
        assert_eq!((look().await.quiet(), look().await.has_moved), (Duration::MAX, false));
        counter.writes.store(3, Ordering::Relaxed);
        let moved = look().await;
        assert!(moved.has_moved && moved.quiet() < Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert!(look().await.quiet() >= Duration::from_secs(7));
        assert!(Marks::new(None).fresh().await.unwrap().is_none());
    }
}
