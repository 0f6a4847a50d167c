//! [`Host`]: what the device server needs of the transport it runs under.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::nexus::NexusId;

/// A future without a result.
pub type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The transport, as far as commands reach beyond their own nexus.
pub trait Host: Send + Sync {
    /// Ends all commands of these nexuses on a logical unit (PREEMPT AND ABORT, SPC-4 §5.12.11.5).
    /// Completes when none of them can reach the medium any more. Their initiators get no answer.
    fn abort_tasks(&self, lun: u64, nexuses: Vec<NexusId>) -> BoxFuture;

    /// Waits: background work that is to leave something to others.
    fn pause(&self, time: Duration) -> BoxFuture;

    /// Runs work that no command waits for to its end.
    fn spawn(&self, work: BoxFuture);

    /// Is there a rule that names this initiator (its iSCSI name, in lower case)? It may be
    /// registered for a persistent reservation before it comes.
    fn expects(&self, initiator_name: &str) -> bool {
        let _ = initiator_name;
        false
    }
}

/// A target without a transport: nothing to abort, background work on threads.
pub(crate) struct NoHost;

impl Host for NoHost {
    fn abort_tasks(&self, _: u64, _: Vec<NexusId>) -> BoxFuture {
        Box::pin(std::future::ready(()))
    }

    fn pause(&self, time: Duration) -> BoxFuture {
        Box::pin(crate::blocking::run(move || std::thread::sleep(time)))
    }

    fn spawn(&self, work: BoxFuture) {
        let run = move || block_on(work);
        if let Err(error) = std::thread::Builder::new().name("scsi-work".into()).spawn(run) {
            tracing::error!(%error, "no thread for background work");
        }
    }
}

fn block_on(mut work: BoxFuture) {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    while work.as_mut().poll(&mut context).is_pending() {
        std::thread::park();
    }
}
