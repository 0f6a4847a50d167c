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
            let operation = self.session.run(|device| device.flush());
            self.commands.push(Command { operation, sent: None });
        }
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
