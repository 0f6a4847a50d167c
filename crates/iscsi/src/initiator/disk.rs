//! [`RemoteDisk`]: a logical unit behind iSCSI as a [`BlockDevice`]. Turns block operations into
//! SCSI commands, several where one would be too long; knows nothing of connections.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use block::{
    BlockDevice, BlockError, Buf, Bytes, DeviceInfo, Extent, Io, Result, WriteFlags, ZeroFlags,
};
use futures_util::future::try_join_all;
use iscsi_proto::initiator::Command;
use iscsi_proto::initiator::durability::{Content, Effect};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::Config;
use super::cdb;
use super::config::AfterLoss;
use super::connect::ConnectError;
use super::isid::ChosenIsid;
use super::op::{Pending, Reply};
use super::path::{self, PathReport};
use super::probe::{Unit, UnitIdentity};
use super::report::{self, SessionReport};
use super::shared::Shared;
use super::state::{Phase, State, command};
use super::supervisor::{bring_up, keep_time, supervise};
use super::url::Url;
use ::path::PolicyConfig;
use iscsi_proto::keys::{ConnectionParams, SessionParams};

/// How long an orderly end may take before the connections are simply closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes asked for with GET LBA STATUS: 256 descriptors.
const LBA_STATUS_LEN: u32 = 8 + 256 * 16;

/// A remote disk. Reconnects by itself; an operation fails for lack of a target only after the
/// configured replacement timeout. Clones are handles to the same disk; when the last one goes,
/// its connections are closed at once, without a flush.
#[derive(Clone)]
pub struct RemoteDisk(Arc<Inner>);

pub(super) struct Inner {
    shared: Arc<Shared>,
    /// Supervisor and timers; aborted with the disk.
    _tasks: JoinSet<()>,
}

impl std::fmt::Debug for RemoteDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteDisk({})", self.0.shared.url)
    }
}

impl RemoteDisk {
    /// Logs in and probes the unit. Must run inside a tokio runtime, which then drives the
    /// connections; operations may be started from any thread. Where that runtime has one thread,
    /// as a [`Poller`](crate::poll::Poller) has, none has to wake another for each command.
    ///
    /// # Errors
    /// [`ConnectError`]; only a target that has no place for a login just then is tried again.
    pub async fn connect(url: Url, config: Config) -> std::result::Result<Self, ConnectError> {
        let isid = ChosenIsid::choose(&url, &config).map_err(ConnectError::Random)?;
        Self::connect_as(url, config, Arc::new(isid)).await.map(|(disk, _)| disk)
    }

    /// As [`connect`](Self::connect), under this name. The receiver hears when the sockets of all
    /// its sessions have been closed, and no others follow.
    pub(super) async fn connect_as(
        url: Url,
        config: Config,
        isid: Arc<ChosenIsid>,
    ) -> std::result::Result<(Self, oneshot::Receiver<()>), ConnectError> {
        let isid_bits = isid.bits;
        let shared = Shared::new(url, config, isid);
        shared.memory.load().await;
        let mut tasks = JoinSet::new();
        tasks.spawn(keep_time(shared.clone()));
        let first = bring_up(&shared, isid_bits).await?;
        let (lives, over) = oneshot::channel::<()>();
        let supervisor = supervise(shared.clone(), isid_bits, first);
        tasks.spawn(async move {
            supervisor.await;
            drop(lives);
        });
        tasks.spawn(path::Controller::begin(&shared).run(shared.clone()));
        Ok((Self(Arc::new(Inner { shared, _tasks: tasks })), over))
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// What leads back to this disk as long as somebody has it.
    pub(super) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.0)
    }

    /// Ends all sessions at once: whatever is under way fails. For disks that die with them.
    pub(super) fn abandon(&self, reason: &str) {
        self.0.shared.with(|state, batch| state.end(reason.into(), batch));
    }

    /// Flushes, lets what is under way finish, logs out of all sessions, and closes the
    /// connections. Every later operation fails, on every handle.
    ///
    /// # Errors
    /// That of the flush; the disk is closed in any case.
    pub async fn close(&self) -> Result<()> {
        let shared = &self.0.shared;
        let info = shared.info();
        let flushed = if info.can_flush && !info.read_only { shared.flush().await } else { Ok(()) };
        let ended = async {
            shared.with(|state, batch| state.close(batch));
            shared.settled.notify_waiters();
            shared.timers.notify_one();
            while shared.lock().ended.is_none() {
                shared.closed.notified().await;
            }
        };
        if tokio::time::timeout(CLOSE_TIMEOUT, ended).await.is_err() {
            tracing::debug!("no answer to logout");
        }
        shared.memory.save().await;
        flushed
    }

    /// Draws a line: when it returns without an error, nothing that was asked for before can change
    /// the volume any more. Operations that have not ended fail; the sessions are ended, and set up
    /// again under the same names, which makes the target end their commands before it answers
    /// (RFC 7143 §6.3.5). What was acknowledged stays so: it is written again, flushed, and there
    /// when this returns. Operations begun meanwhile wait.
    ///
    /// # Errors
    /// [`BlockError::Unreachable`]: the target did not answer within the replacement timeout, or
    /// the disk is closed. Operations of before have failed all the same, but what the target has
    /// of them may still be carried out.
    pub async fn quiesce(&self) -> Result<()> {
        let shared = &self.0.shared;
        let before = shared.with(|state, batch| {
            state.quiesce(batch);
            state.incarnation
        });
        self.settled(|state| match &state.phase {
            Phase::Up if state.incarnation > before => Some(Ok(())),
            Phase::Unreachable(reason) => Some(Err(BlockError::Unreachable(reason.clone()))),
            Phase::Closed => Some(Err(BlockError::Unreachable("the disk was closed".into()))),
            Phase::Up | Phase::Down => None,
        })
        .await
    }

    /// Waits until the connections that are being opened are there, or have failed. Commands go
    /// without them: this is for whoever wants to count them.
    pub async fn gathered(&self) {
        let gathers = |state: &State| state.phase == Phase::Up && state.connections_opening() > 0;
        self.settled(|state| (!gathers(state)).then_some(())).await;
    }

    /// Waits until the disk's state is what is looked for, which is looked at whenever it settles.
    async fn settled<T>(&self, look: impl Fn(&State) -> Option<T>) -> T {
        let shared = &self.0.shared;
        loop {
            let settled = shared.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            if let Some(found) = look(&shared.lock()) {
                return found;
            }
            settled.await;
        }
    }

    /// The URL it was connected to.
    pub fn url(&self) -> &Url {
        &self.0.shared.url
    }

    /// Who the unit says it is.
    pub fn identity(&self) -> UnitIdentity {
        self.0.shared.unit().map(|unit| unit.identity.clone()).unwrap_or_default()
    }

    /// Most bytes of one READ or WRITE: the unit's limit, or the configuration's.
    pub fn transfer_len_max(&self) -> u32 {
        self.0.shared.unit().map_or(0, |unit| unit.transfer_len)
    }

    /// Sessions and connections as of now: what was agreed, and what is under way.
    pub fn sessions(&self) -> Vec<SessionReport> {
        report::sessions(&mut self.0.shared.lock())
    }

    /// Session parameters as agreed; the RFC's defaults while there is no session.
    pub fn session_params(&self) -> SessionParams {
        self.sessions().first().map(|session| session.params).unwrap_or_default()
    }

    /// Parameters of the leading connection as agreed; the RFC's defaults while there is none.
    pub fn connection_params(&self) -> ConnectionParams {
        let sessions = self.sessions();
        let leading = sessions.first().and_then(|session| session.connections.first());
        leading.map(|connection| connection.params).unwrap_or_default()
    }

    /// Connections that are up, over all sessions.
    pub fn connection_count(&self) -> usize {
        self.sessions().iter().map(|session| session.connections.len()).sum()
    }

    /// Connections that take commands, over all sessions: not those that are being closed.
    pub fn connections_open(&self) -> usize {
        self.0.shared.lock().connections_open() as usize
    }

    /// What the path carries, over how many connections, and why so many.
    pub fn path(&self) -> PathReport {
        path::report(&self.0.shared)
    }

    /// Lets another policy choose the number of connections from now on; a fixed one sets it.
    /// What it may ask for stays limited by the MaxConnections that was offered at login: that of
    /// the configuration's policy.
    pub fn set_policy(&self, policy: PolicyConfig) {
        let mut chosen = self.0.shared.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        *chosen = Some(policy);
    }

    /// Times that the sessions were set up, the first one included.
    pub fn incarnations(&self) -> u64 {
        self.0.shared.lock().incarnation
    }

    fn unit(&self) -> Result<Arc<Unit>> {
        self.0.shared.unit().ok_or_else(|| BlockError::Unreachable("not connected".into()))
    }
}

impl From<Arc<Inner>> for RemoteDisk {
    fn from(inner: Arc<Inner>) -> Self {
        Self(inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.with(|state, batch| {
            state.give_up(Phase::Closed, "the disk was closed", batch);
            state.end("closed".into(), batch);
        });
        // The name of a leg goes on to its next disk.
        if self.shared.config.after_loss == AfterLoss::GoOn {
            self.shared.isid.release();
        }
    }
}

impl Shared {
    fn command(&self, cdb: cdb::Cdb) -> Command {
        command(self.url.wire_lun(), cdb)
    }

    fn read_one(&self, unit: &Unit, offset: u64, buf: Buf) -> Pending {
        let block_len = u64::from(unit.info.block_size);
        let blocks = (buf.len() as u64 / block_len) as u32; // at most one transfer
        let cdb = cdb::read(offset / block_len, blocks);
        let command = Command { data_in_len: buf.len() as u32, ..self.command(cdb) };
        self.send(command, Some(buf), Effect::None)
    }

    fn write_one(&self, unit: &Unit, offset: u64, data: Bytes, fua: bool) -> Pending {
        let block_len = u64::from(unit.info.block_size);
        let len = data.len() as u64;
        let cdb = cdb::write(offset / block_len, (len / block_len) as u32, fua);
        // Whether the cache is volatile is known when it ends, not now.
        let effect = match fua {
            true => Effect::Stable(offset, len),
            false => Effect::Volatile(offset, Content::Data(data.clone())),
        };
        self.send(Command { data_out: data, ..self.command(cdb) }, None, effect)
    }

    async fn flush(&self) -> Result<()> {
        let flush = self.send(self.command(cdb::synchronize_cache()), None, Effect::Flushed);
        match flush.await {
            Ok(_) => Ok(()),
            // Nothing to flush where there is no cache.
            Err(BlockError::Unsupported(_)) if !self.info().volatile_cache => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn trim(&self, unit: &Unit, offset: u64, len: u64) -> Result<()> {
        let block_len = u64::from(unit.info.block_size);
        for (at, len) in pieces(offset, len, unit.unmap_len) {
            let list = cdb::unmap_list(&[(at / block_len, (len / block_len) as u32)]);
            let cdb = cdb::unmap(list.len() as u16);
            let command = Command { data_out: list.into(), ..self.command(cdb) };
            self.send(command, None, Effect::Undefined(at, len)).await?;
        }
        Ok(())
    }

    async fn zero(&self, unit: &Unit, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        let mut done = 0;
        while done < len && !unit.no_write_same.load(Ordering::Relaxed) {
            let step = (len - done).min(unit.write_same_len);
            match self.write_same(unit, offset + done, step, flags.may_trim).await {
                Ok(_) => done += step,
                Err(BlockError::Unsupported(_)) => {
                    unit.no_write_same.store(true, Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        let zeroes = Bytes::from_owner(Buf::zeroed(unit.transfer_len as usize));
        for (at, len) in pieces(offset + done, len - done, unit.transfer_len.into()) {
            self.write_one(unit, at, zeroes.slice(..len as usize), false).await?;
        }
        if flags.fua { self.flush().await } else { Ok(()) }
    }

    fn write_same(&self, unit: &Unit, at: u64, len: u64, may_trim: bool) -> Pending {
        let block_len = u64::from(unit.info.block_size);
        let unmap = may_trim && unit.write_same_unmaps;
        let cdb = cdb::write_same16(at / block_len, (len / block_len) as u32, unmap, false);
        let data_out = Bytes::from(vec![0; block_len as usize]);
        let effect = Effect::Volatile(at, Content::Zeroes(len));
        self.send(Command { data_out, ..self.command(cdb) }, None, effect)
    }

    /// Extents by GET LBA STATUS; what the unit does not tell is data.
    async fn extents(&self, unit: &Unit, offset: u64, len: u64) -> Result<Vec<Extent>> {
        let block_len = u64::from(unit.info.block_size);
        let end = offset + len;
        let (mut at, mut found) = (offset, Vec::new());
        while at < end && !unit.no_lba_status.load(Ordering::Relaxed) {
            let cdb = cdb::get_lba_status(at / block_len, LBA_STATUS_LEN);
            let command = Command { data_in_len: LBA_STATUS_LEN, ..self.command(cdb) };
            let reply = match self.send_short(command).await {
                Ok(reply) => reply,
                Err(BlockError::Unsupported(_)) => {
                    unit.no_lba_status.store(true, Ordering::Relaxed);
                    break;
                }
                Err(error) => return Err(error),
            };
            let before = at;
            let buf = reply.buf.as_deref().unwrap_or(&[]);
            for (lba, blocks, mapped) in cdb::lba_status(&buf[..reply.len.min(buf.len())]) {
                let start = lba.saturating_mul(block_len);
                let stop = start.saturating_add(u64::from(blocks) * block_len).min(end);
                if start > at || stop <= at {
                    continue; // not what follows
                }
                push(&mut found, Extent { offset: at, len: stop - at, hole: !mapped });
                at = stop;
            }
            if at == before {
                break;
            }
        }
        if at < end {
            push(&mut found, Extent { offset: at, len: end - at, hole: false });
        }
        Ok(found)
    }
}

/// Appends an extent, joined with the last one if they are of a kind.
fn push(found: &mut Vec<Extent>, extent: Extent) {
    match found.last_mut() {
        Some(last) if last.hole == extent.hole => last.len += extent.len,
        _ => found.push(extent),
    }
}

/// A range cut into pieces of at most `step` bytes.
fn pieces(offset: u64, len: u64, step: u64) -> impl Iterator<Item = (u64, u64)> {
    let step = step.max(1);
    (0..len.div_ceil(step)).map(move |n| {
        let at = offset + n * step;
        (at, step.min(offset + len - at))
    })
}

fn buffer(reply: Reply) -> Result<Buf> {
    reply.buf.ok_or_else(|| BlockError::Unreachable("buffer lost with its session".into()))
}

/// Runs `op` on the unit if `check` allows it.
macro_rules! checked {
    ($self:ident, $check:ident($offset:expr, $len:expr)) => {
        match $self.unit().and_then(|unit| unit.info.$check($offset, $len).map(|()| unit)) {
            Ok(unit) => unit,
            Err(error) => return Io::err(error),
        }
    };
}

impl BlockDevice for RemoteDisk {
    fn info(&self) -> DeviceInfo {
        self.0.shared.info()
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Buf> {
        let unit = checked!(self, check(offset, buf.len() as u64));
        if buf.is_empty() {
            return Io::ok(buf);
        }
        let step = self.0.shared.stride.read(unit.transfer_len, unit.info.block_size);
        if buf.len() <= step as usize {
            let pending = self.0.shared.read_one(&unit, offset, buf);
            return Io::later(async move { buffer(pending.await?) });
        }
        let parts = pieces(offset, buf.len() as u64, step.into());
        let parts: Vec<Pending> = parts
            .map(|(at, len)| self.0.shared.read_one(&unit, at, Buf::new(len as usize)))
            .collect();
        Io::later(async move {
            let mut at = 0;
            for part in try_join_all(parts).await? {
                let part = buffer(part)?;
                buf[at..at + part.len()].copy_from_slice(&part);
                at += part.len();
            }
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        let unit = checked!(self, check_write(offset, data.len() as u64));
        if data.is_empty() {
            return Io::ok(());
        }
        let fua = flags.fua && unit.info.can_fua;
        let flush_after = flags.fua && !fua;
        let step = self.0.shared.stride.write(unit.transfer_len, unit.info.block_size);
        if data.len() <= step as usize && !flush_after {
            let pending = self.0.shared.write_one(&unit, offset, data, fua);
            return Io::later(async move { pending.await.map(drop) });
        }
        let parts = pieces(offset, data.len() as u64, step.into());
        let parts: Vec<Pending> = parts
            .map(|(at, len)| {
                let from = (at - offset) as usize;
                self.0.shared.write_one(&unit, at, data.slice(from..from + len as usize), fua)
            })
            .collect();
        let shared = self.0.shared.clone();
        Io::later(async move {
            try_join_all(parts).await?;
            if flush_after { shared.flush().await } else { Ok(()) }
        })
    }

    fn flush(&self) -> Io<()> {
        let shared = self.0.shared.clone();
        Io::later(async move { shared.flush().await })
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        let unit = checked!(self, check_write(offset, len));
        if !unit.info.can_trim || len == 0 {
            return Io::ok(());
        }
        let shared = self.0.shared.clone();
        Io::later(async move { shared.trim(&unit, offset, len).await })
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        let unit = checked!(self, check_write(offset, len));
        if len == 0 {
            return Io::ok(());
        }
        let shared = self.0.shared.clone();
        Io::later(async move { shared.zero(&unit, offset, len, flags).await })
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        let unit = checked!(self, check(offset, len));
        if len == 0 {
            return Io::ok(Vec::new());
        }
        let shared = self.0.shared.clone();
        Io::later(async move { shared.extents(&unit, offset, len).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_exactly() {
        assert_eq!(pieces(10, 25, 10).collect::<Vec<_>>(), [(10, 10), (20, 10), (30, 5)]);
        assert_eq!(pieces(0, 0, 10).count(), 0);
    }

    #[test]
    fn extents_of_a_kind_are_joined() {
        let mut found = Vec::new();
        for (offset, hole) in [(0, false), (10, false), (20, true)] {
            push(&mut found, Extent { offset, len: 10, hole });
        }
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], Extent { offset: 0, len: 20, hole: false });
    }
}
