//! [`Marks`]: does somebody else write to a volume? All who read from it ask together: whoever asks
//! while a question is under way waits for the next one, since that one's answer may be of before.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use block::BlockError;
use iscsi::initiator::{RemoteDisk, WriteMark};
use tokio::time::Instant;

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

/// What can be asked. One question at a time.
pub(crate) trait Asked: Send + Sync {
    /// How it is at some moment from now on.
    fn ask(&self) -> Answer<'_>;
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
}

/// The questions to one volume.
pub(crate) struct Marks {
    asked: Option<Box<dyn Asked>>,
    /// Questions that were begun.
    begun: AtomicU64,
    /// Held by the question that is under way.
    last: tokio::sync::Mutex<Last>,
}

#[derive(Default)]
struct Last {
    /// Which question the outcome is of.
    question: u64,
    outcome: Option<Result<Option<Look>, String>>,
    look: Option<Look>,
}

impl Marks {
    /// Of a volume that can be asked, or of one that cannot.
    pub(crate) fn new(asked: Option<Box<dyn Asked>>) -> Self {
        Self { asked, begun: AtomicU64::new(0), last: tokio::sync::Mutex::default() }
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
            Ok(told) => Ok(told.map(|told| last.note(told))),
            Err(error) => Err(error.to_string()),
        };
        (last.question, last.outcome) = (question, Some(outcome.clone()));
        outcome
    }
}

impl Last {
    fn note(&mut self, told: Told) -> Look {
        let now = Instant::now();
        let look = match self.look {
            Some(before) if before.told.moment == told.moment => Look { told, ..before },
            before => Look { told, quiet_since: now, has_moved: before.is_some() },
        };
        self.look = Some(look);
        look
    }
}

/// A unit of an iSCSI target.
pub(crate) struct Unit {
    disk: RemoteDisk,
    last: Mutex<(Option<WriteMark>, u64)>,
}

impl Unit {
    pub(crate) fn new(disk: RemoteDisk) -> Self {
        Self { disk, last: Mutex::new((None, 0)) }
    }

    fn told(&self, mark: WriteMark) -> Option<Told> {
        if !mark.is_counted() && !mark.is_reserved() {
            return None;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0.replace(mark) != Some(mark) {
            last.1 += 1;
        }
        let (is_reserved, is_untouched) = (mark.is_reserved(), mark.is_untouched());
        Some(Told { moment: last.1, is_reserved, is_untouched })
    }
}

impl Asked for Unit {
    fn ask(&self) -> Answer<'_> {
        Box::pin(async move { Ok(self.told(self.disk.write_mark().await?)) })
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
