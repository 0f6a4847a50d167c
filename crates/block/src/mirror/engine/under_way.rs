//! [`UnderWay`]: what a leg is asked for at once of a batch, on its way into the redo log or home:
//! no more than the line and the leg's disk are quick with, and a flush now and then.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::super::host::Host;
use super::allowance::{Allowance, Sent};
use super::session::{Operation, Session};
use super::settling::Settling;
use super::signal::{Either, either};
use crate::Result;

/// Commands to a leg. Each is counted until its answer was taken.
pub(super) struct UnderWay {
    host: Arc<dyn Host>,
    session: Arc<Session>,
    commands: FuturesUnordered<Command>,
    allowed: Allowance,
    settling: Settling,
}

/// A command that was answered well.
pub(super) struct Answered {
    pub(super) took: Duration,
    /// Bytes that a flush is to make stable.
    pub(super) bytes: u64,
}

struct Command {
    operation: Operation<()>,
    /// What it counts for, and its bytes; `None`: it is a flush.
    sent: Option<(Sent, u64)>,
}

impl Future for Command {
    type Output = Result<Option<(Sent, u64)>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let done = Pin::new(&mut self.operation).poll(context);
        done.map_ok(|()| self.sent)
    }
}

impl UnderWay {
    /// Nothing is, and as much may be as is allowed.
    pub(super) fn new(host: &Arc<dyn Host>, session: &Arc<Session>, allowed: Allowance) -> Self {
        let (commands, settling) = Default::default();
        Self { host: host.clone(), session: session.clone(), commands, allowed, settling }
    }

    /// Nothing is.
    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// What may be under way.
    pub(super) fn allowed(&self) -> Allowance {
        self.allowed
    }

    /// An answer has to come before more may be asked for, of which `count` may be under way.
    pub(super) fn is_full(&self, count: usize) -> bool {
        let has_room = self.allowed.has_room() && self.settling.has_room();
        !self.is_empty() && (!has_room || self.commands.len() >= count)
    }

    /// The leg was asked for this, which costs so much of what is allowed, and leaves `bytes` to be
    /// made stable.
    pub(super) fn sent(&mut self, operation: Operation<()>, cost: u64, bytes: u64) {
        let sent = self.allowed.sent(cost, self.host.now());
        self.commands.push(Command { operation, sent: Some((sent, bytes)) });
        if self.settling.sent(bytes) {
            let operation = self.session.flush();
            self.commands.push(Command { operation, sent: None });
        }
    }

    /// Does `work`, for which something else is waited for, and takes answers meanwhile: one that
    /// is not taken looks as if the leg did not answer.
    ///
    /// # Errors
    /// The leg's; `work` is given up then.
    pub(super) async fn beside<T>(
        &mut self,
        work: impl Future<Output = T>,
        mut answered: impl FnMut(Answered),
    ) -> Result<T> {
        let mut work = std::pin::pin!(work);
        while !self.is_empty() {
            match either(work.as_mut(), self.answer()).await {
                Either::Left(output) => return Ok(output),
                Either::Right(answer) => answer?.into_iter().for_each(&mut answered),
            }
        }
        Ok(work.await)
    }

    /// Waits for the next answer. `None`: it was that of a flush, or nothing is under way.
    ///
    /// # Errors
    /// The leg's.
    pub(super) async fn answer(&mut self) -> Result<Option<Answered>> {
        let Some(answer) = self.commands.next().await else { return Ok(None) };
        let Some((sent, bytes)) = answer? else {
            self.settling.flushed();
            return Ok(None);
        };
        let now = self.host.now();
        self.allowed.answered(sent, now);
        Ok(Some(Answered { took: now.saturating_sub(sent.since), bytes }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::MemoryDevice;
    use crate::mirror::TokioHost;
    use crate::mirror::link::OpenLeg;
    use crate::{Buf, WriteFlags};

    /// The local disk is slow: what the leg has answered long ago is not taken for unanswered.
    #[tokio::test(start_paused = true)]
    async fn a_leg_that_answers_is_kept_while_something_else_is_waited_for() {
        let second = Duration::from_secs(1);
        let host: Arc<dyn Host> = Arc::new(TokioHost::current());
        let leg = OpenLeg::of(Arc::new(MemoryDevice::new(1 << 20, 512).unwrap()));
        let session = Session::new(leg, host.clone(), second);
        let allowed = Allowance::new(1 << 20, (4096, 1 << 20), second);
        let mut under_way = UnderWay::new(&host, &session, allowed);
        let mut answered = 0;
        let work = async {
            for _ in 0..3 {
                let data = Buf::zeroed(4096).freeze();
                let write = session.run(|device| device.write(0, data, WriteFlags::NONE));
                under_way.sent(write, 4096, 4096);
            }
            under_way.beside(host.sleep(second * 5), |_| answered += 1).await.unwrap();
        };
        session.watched(work).await;
        assert_eq!((session.why_ended(), answered), (None, 3));
        assert!(under_way.is_empty());
    }
}
