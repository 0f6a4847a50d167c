//! What every check works with: where the target is, what it may be asked, and what an ordinary
//! login found out about it.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;
use std::time::Duration;

use iscsi_proto::ids::{Isid, Lun};
use iscsi_proto::login::chap::ChapCredentials;

use crate::offer::Offer;
use crate::session::Session;
use crate::verdict::Stop;

/// Bytes that a piece of I/O is made of, unless a block is longer: a page, which every target can
/// read and write, and which MaxBurstLength and FirstBurstLength can be set to.
const UNIT_BYTES: u32 = 4096;

/// Units of the scratch area at the end of the volume: the longest write of a check, and one more
/// place beside it.
const SCRATCH_UNITS: u32 = 32;

/// Connections that the probe asks for, and so the most that a check uses.
const CONNECTIONS_ASKED: u32 = 8;

/// Which checks may write, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// None: checks that write are skipped.
    Forbidden,
    /// To the last 128 KiB of the volume (32 blocks, if longer), whose content is read first and
    /// written back after each check.
    Restoring,
    /// The same, and nobody needs the content.
    Free,
}

/// What to test, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses of the portal; the first that accepts is used.
    pub addresses: Vec<SocketAddr>,
    /// TargetName.
    pub target: String,
    /// Logical unit for I/O.
    pub lun: Lun,
    /// Who we say we are.
    pub initiator_name: String,
    /// CHAP name and secret, if the target wants them.
    pub credentials: Option<ChapCredentials>,
    /// Longest wait for each answer.
    pub timeout: Duration,
    /// Which checks may write.
    pub writes: Writes,
}

/// A target under test.
pub(crate) struct Context {
    pub(crate) config: Config,
    /// Random part of every ISID of this run, so that two runs do not end each other's sessions.
    isid_bits: u32,
    isid_next: Cell<u16>,
    /// Bytes of a block.
    pub(crate) block: u32,
    /// Blocks of the volume.
    blocks: u64,
    write_protected: bool,
    /// MaxConnections granted when [`CONNECTIONS_ASKED`] are asked for.
    pub(crate) max_connections: u32,
    /// ErrorRecoveryLevel granted when 2 is asked for.
    pub(crate) level: u32,
}

impl Context {
    /// Logs in and looks around.
    pub(crate) fn probe(config: Config) -> Result<Self, String> {
        let mut context = Self {
            config,
            isid_bits: RandomState::new().build_hasher().finish() as u32 & 0x00ff_ffff,
            isid_next: Cell::new(1),
            block: 0,
            blocks: 0,
            write_protected: false,
            max_connections: 1,
            level: 0,
        };
        let found = context.look_around().map_err(|stop| match stop {
            Stop::Failed(why) | Stop::Skipped(why) => {
                format!("an ordinary session does not work, nothing can be checked: {why}")
            }
        })?;
        (context.block, context.blocks, context.write_protected) = found.0;
        (context.max_connections, context.level) = found.1;
        let needed = u64::from(SCRATCH_UNITS * context.unit_blocks());
        if context.blocks < needed {
            return Err(format!(
                "the volume has {} blocks of {} bytes, the suite needs {needed}",
                context.blocks, context.block
            ));
        }
        Ok(context)
    }

    #[allow(clippy::type_complexity, reason = "two groups of numbers, taken apart at once")]
    fn look_around(&self) -> Result<((u32, u64, bool), (u32, u32)), Stop> {
        let offer = Offer::leading()
            .with("MaxConnections", CONNECTIONS_ASKED)
            .with("ErrorRecoveryLevel", 2);
        let mut session = Session::open(self, offer)?;
        let agreed = session.agreed.clone();
        let disk = session.disk()?;
        session.close()?;
        Ok((disk, (agreed.max_connections.min(CONNECTIONS_ASKED), agreed.level)))
    }

    /// An ISID that no session of this run has had.
    pub(crate) fn new_isid(&self) -> Isid {
        let qualifier = self.isid_next.get();
        self.isid_next.set(qualifier.wrapping_add(1));
        Isid::random(self.isid_bits, qualifier)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// Bytes of a unit of I/O.
    pub(crate) fn unit(&self) -> u32 {
        UNIT_BYTES.max(self.block)
    }

    /// Blocks of a unit of I/O.
    pub(crate) fn unit_blocks(&self) -> u32 {
        self.unit() / self.block
    }

    /// Units of the scratch area.
    pub(crate) fn scratch_units(&self) -> u32 {
        SCRATCH_UNITS
    }

    /// First block of unit `index` of the scratch area.
    pub(crate) fn scratch(&self, index: u32) -> u64 {
        self.blocks - u64::from((SCRATCH_UNITS - index) * self.unit_blocks())
    }

    /// Why nothing may be written, if so.
    pub(crate) fn no_writes(&self) -> Option<&'static str> {
        match self.config.writes {
            Writes::Forbidden => Some("it writes, and --read-only was given"),
            _ if self.write_protected => Some("it writes, and the volume is write-protected"),
            _ => None,
        }
    }
}
