//! [`NbdDisk`]: an export as a [`BlockDevice`]. Turns block operations into requests, several where
//! one would be too long; knows nothing of connections.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use block::{
    BlockDevice, BlockError, Buf, Bytes, DeviceInfo, Extent, Io, Result, WriteFlags, ZeroFlags,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::warn;

use super::command::ServerCommand;
use super::error::ConnectError;
use super::geometry::{Extents, ZERO_LEN_MAX, device_info, pieces};
use super::op::{Failure, Op, Origin, Output};
use super::replay::cache;
use super::session::{CONNECT_TIME_MAX, Session, Source};
use super::shared::{Pending, Shared};
use super::state::{Phase, State};
use super::supervisor::supervise;
use super::{CONNECTIONS_MAX, Config};
use crate::url::Url;
use crate::wire::TransmissionFlags;

/// How long an orderly end may take before the connections are simply closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of zeroes per request where the server does not know WRITE_ZEROES.
const ZEROES_LEN: u64 = 1 << 20;

/// An export of an NBD server. Connects again by itself; an operation fails for lack of a server
/// only after the configured time. Clones are handles to the same disk; when the last one goes, its
/// connections are closed at once, without a flush, and a server that was started for it is killed.
#[derive(Clone)]
pub struct NbdDisk(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    closing: watch::Sender<bool>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(supervisor) = supervisor.take() {
            supervisor.abort();
        }
    }
}

impl std::fmt::Debug for NbdDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NbdDisk({})", self.0.shared.source)
    }
}

impl NbdDisk {
    /// Connects. Must run inside a tokio runtime, which then drives the connections; operations may
    /// be started from any thread.
    ///
    /// # Errors
    /// [`ConnectError`]; nothing is tried again.
    pub async fn connect(url: Url, config: Config) -> std::result::Result<Self, ConnectError> {
        Self::of(Source::Url(url), config).await
    }

    /// Starts a server, which gets a listening socket as systemd's services do (LISTEN_FDS), and
    /// connects to it. It is started again when it ends, and stopped with the disk.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn start(
        command: ServerCommand,
        config: Config,
    ) -> std::result::Result<Self, ConnectError> {
        Self::of(Source::Command(Arc::new(command)), config).await
    }

    async fn of(source: Source, mut config: Config) -> std::result::Result<Self, ConnectError> {
        config.connections = config.connections.clamp(1, CONNECTIONS_MAX);
        let session = Session::connect(&source, config.connections).await?;
        let agreed = session.agreed;
        let info = device_info(&agreed, &config)?;
        if !info.read_only && cache(agreed.flags) == durability::Cache::Unflushable {
            warn!("{source} offers neither FLUSH nor FUA: nothing written there is known to stay");
        }
        let state = State::new(agreed, info, &config);
        let shared = Arc::new(Shared::new(source, config, state));
        let (closing, closed) = watch::channel(false);
        let supervisor = tokio::spawn(supervise(Arc::clone(&shared), session, closed));
        let supervisor = Mutex::new(Some(supervisor));
        // Nothing is kept yet, so this takes no time; if they are lost at once, the next will do.
        let _ = tokio::time::timeout(CONNECT_TIME_MAX, shared.up.notified()).await;
        Ok(Self(Arc::new(Inner { shared, closing, supervisor })))
    }

    /// Flushes, says goodbye to the server, and stops it if it was started for this disk. Every
    /// later operation fails, on every handle.
    ///
    /// # Errors
    /// That of the flush; the disk is closed in any case.
    pub async fn close(&self) -> Result<()> {
        let shared = &self.0.shared;
        let flushed = if shared.info().read_only { Ok(()) } else { self.flush().await };
        shared.lock().give_up(Phase::Closed, "the disk was closed");
        let _ = self.0.closing.send(true); // or the supervisor has ended
        let supervisor = {
            let mut slot = self.0.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
            slot.take()
        };
        if let Some(mut supervisor) = supervisor
            && tokio::time::timeout(CLOSE_TIMEOUT, &mut supervisor).await.is_err()
        {
            supervisor.abort();
        }
        flushed
    }

    /// Connections that are up.
    pub fn connection_count(&self) -> usize {
        self.0.shared.lock().links.len()
    }

    /// Capacity in bytes, told anew when the server came back with more.
    pub fn growth(&self) -> watch::Receiver<u64> {
        self.0.shared.growth.subscribe()
    }

    fn ask(&self, op: Op, buf: Option<Buf>) -> Pending {
        self.0.shared.ask(op, buf, Origin::User)
    }

    fn can(&self, flag: TransmissionFlags) -> bool {
        self.0.shared.lock().agreed.flags.contains(flag)
    }

    fn payload_len_max(&self) -> u64 {
        self.0.shared.lock().agreed.payload_len_max.into()
    }

    /// FUA as it goes over the wire: also of a write that nothing else could make stable.
    fn fua(&self, wanted: bool) -> bool {
        let flags = self.0.shared.lock().agreed.flags;
        flags.contains(TransmissionFlags::SEND_FUA)
            && (wanted || !flags.contains(TransmissionFlags::SEND_FLUSH))
    }

    async fn zero_range(self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        // What was asked to stay allocated would be written again as what may be a hole; stable at
        // once, it is not written again.
        let fua = self.fua(flags.fua || !flags.may_trim);
        if self.can(TransmissionFlags::SEND_WRITE_ZEROES) {
            for (offset, len) in pieces(offset, len, ZERO_LEN_MAX) {
                let len = len as u32; // at most ZERO_LEN_MAX
                done(self.ask(Op::Zero { offset, len, fua, may_trim: flags.may_trim }, None))
                    .await?;
            }
        } else {
            let step = self.payload_len_max().min(ZEROES_LEN);
            let zeroes = Bytes::from_owner(Buf::zeroed(step.min(len) as usize));
            for (offset, len) in pieces(offset, len, step) {
                let data = zeroes.slice(..len as usize);
                done(self.ask(Op::Write { offset, data, fua }, None)).await?;
            }
        }
        if flags.fua && !fua { self.flush().await } else { Ok(()) }
    }

    async fn extents_of(self, offset: u64, len: u64) -> Result<Vec<Extent>> {
        let block_size = self.info().block_size;
        let context = self.0.shared.lock().agreed.allocation_context;
        let mut extents = Extents::new(offset, len, block_size);
        let end = offset + len;
        while let (Some(context), Some(at)) = (context, extents.next()) {
            let len = (end - at).min(ZERO_LEN_MAX) as u32;
            match answer(self.ask(Op::Status { offset: at, len, context }, None)).await? {
                Output::Extents(found) => {
                    // Each has a byte at least.
                    for extent in found {
                        if extents.next().is_some() {
                            extents.push(extent);
                        }
                    }
                }
                _ => break,
            }
        }
        Ok(extents.finish())
    }
}

async fn answer(pending: Pending) -> Result<Output> {
    let gone = || Failure::Unreachable("the disk is gone".into());
    Ok(pending.await.unwrap_or_else(|_| Err(gone()))?)
}

async fn done(pending: Pending) -> Result<()> {
    answer(pending).await.map(drop)
}

async fn data(pending: Pending) -> Result<Buf> {
    match answer(pending).await? {
        Output::Data(buf) => Ok(buf),
        _ => Err(BlockError::Unreachable("the buffer is gone".into())),
    }
}

/// Waits for all, and tells the first failure.
async fn all_done(pending: Vec<Pending>) -> Result<()> {
    let mut result = Ok(());
    for one in pending {
        result = result.and(done(one).await);
    }
    result
}

impl BlockDevice for NbdDisk {
    fn info(&self) -> DeviceInfo {
        self.0.shared.info()
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Buf> {
        if let Err(error) = self.info().check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        if buf.is_empty() {
            return Io::ok(buf);
        }
        let step = self.payload_len_max();
        let len = buf.len() as u64;
        if len <= step {
            let pending = self.ask(Op::Read { offset, len: len as u32 }, Some(buf));
            return Io::later(data(pending));
        }
        let parts: Vec<Pending> = pieces(offset, len, step)
            .map(|(offset, len)| self.ask(Op::Read { offset, len: len as u32 }, None))
            .collect();
        Io::later(async move {
            let mut at = 0;
            for part in parts {
                let part = data(part).await?;
                buf[at..at + part.len()].copy_from_slice(&part);
                at += part.len();
            }
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        if let Err(error) = self.info().check_write(offset, data.len() as u64) {
            return Io::err(error);
        }
        if data.is_empty() {
            return Io::ok(());
        }
        let fua = self.fua(flags.fua);
        let parts: Vec<Pending> = pieces(offset, data.len() as u64, self.payload_len_max())
            .map(|(at, len)| {
                let from = (at - offset) as usize;
                let data = data.slice(from..from + len as usize);
                self.ask(Op::Write { offset: at, data, fua }, None)
            })
            .collect();
        let disk = self.clone();
        Io::later(async move {
            all_done(parts).await?;
            if flags.fua && !fua { disk.flush().await } else { Ok(()) }
        })
    }

    fn flush(&self) -> Io<()> {
        if self.can(TransmissionFlags::SEND_FLUSH) {
            return Io::later(done(self.ask(Op::Flush, None)));
        }
        Io::done(self.0.shared.lock().flush_in_name().map_err(BlockError::from))
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        if let Err(error) = self.info().check_write(offset, len) {
            return Io::err(error);
        }
        if !self.can(TransmissionFlags::SEND_TRIM) {
            return Io::ok(());
        }
        let parts = pieces(offset, len, ZERO_LEN_MAX)
            .map(|(offset, len)| self.ask(Op::Trim { offset, len: len as u32 }, None))
            .collect();
        Io::later(all_done(parts))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        if let Err(error) = self.info().check_write(offset, len) {
            return Io::err(error);
        }
        Io::later(self.clone().zero_range(offset, len, flags))
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        if let Err(error) = self.info().check(offset, len) {
            return Io::err(error);
        }
        if len == 0 {
            return Io::ok(Vec::new());
        }
        Io::later(self.clone().extents_of(offset, len))
    }
}
