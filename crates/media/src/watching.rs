//! [`Watchers`]: who is being sent what at this moment, for the owner, who can end it.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::SystemTime;

use tokio::sync::oneshot;

/// Whose stream it is, and of what.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stream {
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) video: String,
    pub(crate) home: String,
}

/// All streams.
#[derive(Clone, Default)]
pub(crate) struct Watchers(Arc<Mutex<All>>);

#[derive(Default)]
struct All {
    next: u64,
    streams: BTreeMap<u64, Entry>,
}

struct Entry {
    stream: Stream,
    since: SystemTime,
    bytes: Arc<AtomicU64>,
    end: Option<oneshot::Sender<String>>,
}

/// A stream that counts, until it is dropped.
pub(crate) struct Watching {
    watchers: Watchers,
    number: u64,
    bytes: Arc<AtomicU64>,
    end: oneshot::Receiver<String>,
}

/// What one viewer is being sent of one video, by one answer or by several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) stream: Stream,
    pub(crate) since: SystemTime,
    pub(crate) bytes: u64,
    pub(crate) answers: usize,
}

impl Watchers {
    /// Somebody is being sent something.
    pub(crate) fn enter(&self, stream: Stream) -> Watching {
        let (sender, end) = oneshot::channel();
        let bytes = Arc::new(AtomicU64::new(0));
        let entry = Entry {
            stream,
            since: SystemTime::now(),
            bytes: Arc::clone(&bytes),
            end: Some(sender),
        };
        let mut all = self.lock();
        let number = all.next;
        all.next += 1;
        all.streams.insert(number, entry);
        drop(all);
        Watching { watchers: self.clone(), number, bytes, end }
    }

    /// Who is being sent what, by name.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        let mut seen: BTreeMap<Stream, Seen> = BTreeMap::new();
        for entry in self.lock().streams.values() {
            let (since, stream) = (entry.since, &entry.stream);
            let one = seen.entry(stream.clone()).or_insert_with(|| Seen {
                stream: stream.clone(),
                since,
                bytes: 0,
                answers: 0,
            });
            one.since = one.since.min(since);
            one.bytes += entry.bytes.load(Ordering::Relaxed);
            one.answers += 1;
        }
        seen.into_values().collect()
    }

    /// Ends all streams of a home; tells how many.
    pub(crate) fn end(&self, home: &str, why: &str) -> usize {
        let mut all = self.lock();
        let of_home = all.streams.values_mut().filter(|entry| entry.stream.home == home);
        let ends: Vec<_> = of_home.filter_map(|entry| entry.end.take()).collect();
        drop(all);
        // Whoever has gone in between does not need it.
        ends.into_iter().filter_map(|end| end.send(why.to_owned()).ok()).count()
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watching {
    pub(crate) fn sent(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Why it ends, once somebody ends it.
    pub(crate) fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<String> {
        if self.end.is_terminated() {
            return Poll::Pending;
        }
        match Pin::new(&mut self.end).poll(context) {
            Poll::Ready(Ok(why)) => Poll::Ready(why),
            // Its sender is kept as long as this is.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.watchers.lock().streams.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(name: &str, home: &str) -> Stream {
        let address = IpAddr::from([192, 0, 2, 1]);
        Stream { name: name.into(), address, video: "a".into(), home: home.into() }
    }

    #[test]
    fn answers_of_one_viewer_are_seen_together_and_gone_when_they_end() {
        let watchers = Watchers::default();
        let (one, two) = (watchers.enter(stream("anna", "x")), watchers.enter(stream("anna", "x")));
        let ben = watchers.enter(stream("ben", "y"));
        one.sent(3);
        two.sent(4);
        let seen = watchers.seen();
        assert_eq!(seen.len(), 2);
        assert_eq!((seen[0].bytes, seen[0].answers), (7, 2));
        assert_eq!(seen[1].stream, stream("ben", "y"));
        drop((one, two, ben));
        assert!(watchers.seen().is_empty());
    }

    #[tokio::test]
    async fn the_streams_of_a_home_are_ended_with_a_reason() {
        let watchers = Watchers::default();
        let mut one = watchers.enter(stream("anna", "x"));
        let mut other = watchers.enter(stream("anna", "y"));
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(one.poll_end(&mut context).is_pending());
        assert_eq!(watchers.end("x", "unplugged"), 1);
        let why = std::future::poll_fn(|context| one.poll_end(context)).await;
        assert_eq!(why, "unplugged");
        assert!(one.poll_end(&mut context).is_pending(), "it can be asked again");
        assert!(other.poll_end(&mut context).is_pending());
        assert_eq!(watchers.end("x", "unplugged"), 0);
    }
}
