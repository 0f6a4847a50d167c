//! The mirror as a [`BlockDevice`]: reads come from the local device, changes go to it and to the
//! legs. Decides nothing.

use std::sync::Arc;

use bytes::Bytes;

use super::engine::change::{self, Change, What};
use super::engine::logged;
use super::engine::read;
use super::engine::shared::Shared;
use super::engine::signal::answer;
use crate::{BlockDevice, BlockError, Buf, DeviceInfo, Extent, Io, Result, WriteFlags, ZeroFlags};

/// What the user reads and writes.
pub(crate) struct MirrorDevice {
    shared: Arc<Shared>,
}

impl MirrorDevice {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Carries out each piece as a task of its own, one after the other.
    fn change(&self, change: Change) -> Io<()> {
        if let Err(error) = self.info().check_write(change.offset, change.len) {
            return Io::err(error);
        }
        let shared = self.shared.clone();
        self.spawn(async move {
            for piece in change.pieces(logged::change_bytes_max(&shared)) {
                change::carry_out(&shared, piece).await?;
            }
            Ok(())
        })
    }

    /// Begins `task` at once, and carries it through whatever becomes of the caller.
    fn spawn(&self, task: impl Future<Output = Result<()>> + Send + 'static) -> Io<()> {
        let (teller, answer) = answer();
        self.shared.host().spawn(Box::pin(async move { teller.tell(task.await) }));
        let ended = || Err(BlockError::Unreachable("the mirror's runtime has ended".to_owned()));
        Io::later(async move { answer.await.unwrap_or_else(ended) })
    }
}

impl BlockDevice for MirrorDevice {
    fn info(&self) -> DeviceInfo {
        let local = self.shared.local().info();
        let mut info = DeviceInfo::new(self.shared.size(), local.block_size);
        info.preferred_block_size = info.preferred_block_size.max(local.preferred_block_size);
        info.read_only = local.read_only;
        info.can_fua = true;
        info.can_trim = local.can_trim;
        info.trim_zeroes = true;
        info.can_zero = true;
        info.can_extents = local.can_extents;
        info
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        if let Err(error) = self.info().check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        read::read(&self.shared, offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        let len = data.len() as u64;
        self.change(Change { offset, len, what: What::Write(data), fua: flags.fua })
    }

    fn flush(&self) -> Io<()> {
        let shared = self.shared.clone();
        self.spawn(async move { change::flush(&shared).await })
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.change(Change { offset, len, what: What::Trim, fua: false })
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        let what = What::Zero { may_trim: flags.may_trim };
        self.change(Change { offset, len, what, fua: flags.fua })
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        if let Err(error) = self.info().check(offset, len) {
            return Io::err(error);
        }
        self.shared.local().extents(offset, len)
    }
}
