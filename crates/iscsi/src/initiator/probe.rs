//! Asks a logical unit what it is: readiness, identity, size, cache, what it can do. Runs on every
//! new session before the user's commands do, and turns the answers into a `DeviceInfo`.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use block::{BlockError, Buf, DeviceInfo};
use iscsi_proto::initiator::Command;
use iscsi_proto::initiator::durability::Cache;

use super::cdb::{self, BlockLimits, Capacity, Cdb, Inquiry, Mode, Provisioning};
use super::op::Reply;
use super::sense::{Sense, Verdict, judge, status};
use super::shared::Shared;
use super::state::command;

/// Unit attentions a unit may have queued for a new session before it counts as broken.
const ATTENTIONS_MAX: u32 = 32;

/// Pause between two questions to a unit that is not ready yet.
const READY_PAUSE: Duration = Duration::from_millis(250);

/// Bytes asked for with READ CAPACITY (16).
const CAPACITY16_LEN: u32 = 32;

/// Longest WRITE SAME in bytes for units that set no limit: short enough to be interrupted by
/// other commands, long enough to be worth it.
const WRITE_SAME_LEN: u64 = 64 << 20;

/// Why a logical unit cannot be used as a disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// No unit has this number.
    #[error("the target has no LUN {0}")]
    NoUnit(u16),
    /// It is a tape, a changer, …
    #[error("LUN {lun} is of device type {kind:#04x}, not a disk")]
    NotADisk {
        /// The LUN.
        lun: u16,
        /// Peripheral device type (SPC-4 §6.6.2).
        kind: u8,
    },
    /// An answer without what it has to contain.
    #[error("{0}: the unit's answer is too short")]
    Short(&'static str),
    /// Block size, or number of blocks, that no disk has.
    #[error("the unit reports {blocks} blocks of {block_len} bytes")]
    Geometry {
        /// Number of blocks.
        blocks: u64,
        /// Bytes per block.
        block_len: u32,
    },
    /// Another unit answers where ours was.
    #[error("another device answers: {found} instead of {expected}")]
    OtherDevice {
        /// What answers now.
        found: String,
        /// What answered before.
        expected: String,
    },
    /// A command failed.
    #[error("{command}: {source}")]
    Command {
        /// Its name.
        command: &'static str,
        /// Why.
        source: BlockError,
    },
}

/// Who a logical unit says it is (INQUIRY, VPD 80 and 83).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitIdentity {
    /// Vendor.
    pub vendor: String,
    /// Product.
    pub product: String,
    /// Revision; a firmware update changes it, so it does not tell units apart.
    pub revision: String,
    /// Serial number (VPD 80), empty if there is none.
    pub serial: String,
    /// Its designator (VPD 83): NAA or EUI-64 in hex, else text; empty if there is none.
    pub name: String,
}

impl UnitIdentity {
    fn is_same_unit(&self, other: &Self) -> bool {
        self.serial == other.serial && self.name == other.name
    }
}

impl std::fmt::Display for UnitIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { vendor, product, serial, name, .. } = self;
        write!(f, "{vendor} {product} (serial {serial:?}, name {name:?})")
    }
}

/// What probing found.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) identity: UnitIdentity,
    pub(super) info: DeviceInfo,
    /// What is known of its cache.
    pub(super) cache: Cache,
    /// Most bytes of one READ or WRITE.
    pub(super) transfer_len: u32,
    /// Most bytes of one UNMAP descriptor, and descriptors of one UNMAP.
    pub(super) unmap_len: u64,
    /// Most bytes of one WRITE SAME.
    pub(super) write_same_len: u64,
    /// WRITE SAME may unmap, and what is unmapped reads as zeroes.
    pub(super) write_same_unmaps: bool,
    /// WRITE SAME has been refused: zeroes are written.
    pub(super) no_write_same: AtomicBool,
    /// GET LBA STATUS has been refused: everything is data.
    pub(super) no_lba_status: AtomicBool,
}

/// One session of an incarnation, for commands past the gate.
pub(super) struct Prober<'a> {
    pub(super) shared: &'a Shared,
    pub(super) incarnation: u64,
    pub(super) member: usize,
}

impl Prober<'_> {
    /// Waits until the unit is ready and has told all unit attentions; whether it was ready from
    /// the beginning. What they say is noted where every answer is (`State::collect`), so that it
    /// outlives this session.
    pub(super) async fn settle(&self) -> Result<bool, ProbeError> {
        let name = "TEST UNIT READY";
        let ask = || self.raw(name, cdb::TEST_UNIT_READY, 0);
        let (mut attentions, mut at_once) = (0, true);
        loop {
            // Two at once: a new session is told of a power-on first, mostly of nothing else.
            let (first, reply) = tokio::try_join!(ask(), ask())?;
            let is_attention =
                |reply: &Reply| matches!(judge(reply.status, &reply.sense, 0), Verdict::Again(_));
            attentions += u32::from(is_attention(&first)) + u32::from(is_attention(&reply));
            match judge(reply.status, &reply.sense, 0) {
                Verdict::Done => return Ok(at_once),
                Verdict::Again(_) if attentions < ATTENTIONS_MAX => {}
                // LOGICAL UNIT NOT SUPPORTED
                _ if is_no_unit(&reply) => return Err(ProbeError::NoUnit(self.shared.url.lun)),
                Verdict::Later(_) | Verdict::Full(_) => {
                    at_once = false;
                    tokio::time::sleep(READY_PAUSE).await;
                }
                Verdict::Failed(source) => {
                    return Err(ProbeError::Command { command: name, source });
                }
                Verdict::Again(sense) => {
                    let source = BlockError::Unreachable(format!("no end of {sense}"));
                    return Err(ProbeError::Command { command: name, source });
                }
            }
        }
    }

    /// Asks for everything, all at once: one round trip instead of seven.
    pub(super) async fn describe(&self) -> Result<Unit, ProbeError> {
        let (identity, capacity, mode, limits, provisioning) = tokio::try_join!(
            self.identify(),
            self.capacity(),
            self.mode(),
            self.vpd(0xb0),
            self.vpd(0xb2),
        )?;
        let limits = limits.map(|body| BlockLimits::parse(&body));
        let provisioning = provisioning.map(|body| Provisioning::parse(&body));
        self.unit(identity, capacity, mode, limits.unwrap_or_default(), provisioning)
    }

    fn unit(
        &self,
        identity: UnitIdentity,
        capacity: Capacity,
        (mode, cache): (Mode, Cache),
        limits: BlockLimits,
        provisioning: Option<Provisioning>,
    ) -> Result<Unit, ProbeError> {
        let Capacity { blocks, block_len, .. } = capacity;
        let geometry = ProbeError::Geometry { blocks, block_len };
        if !block_len.is_power_of_two() || !(512..=65536).contains(&block_len) {
            return Err(geometry);
        }
        let Some(size) = blocks.checked_mul(block_len.into()) else { return Err(geometry) };
        let bytes = |blocks: u64| blocks.saturating_mul(block_len.into());
        let or = |limit: u64, default: u64| if limit == 0 { default } else { limit };
        let wanted = self.shared.config.transfer_len_max.max(block_len) / block_len * block_len;
        let transfer = or(bytes(limits.max_transfer_blocks.into()), wanted.into());
        let provisioning = provisioning.unwrap_or_default();
        let mut info = DeviceInfo::new(size, block_len);
        let physical = u64::from(block_len) << capacity.physical_exponent;
        info.preferred_block_size = physical.clamp(4096.max(block_len.into()), 1 << 20) as u32;
        info.read_only = mode.write_protected;
        info.can_fua = mode.fua;
        info.volatile_cache = cache != Cache::Absent;
        info.can_trim = capacity.thin && provisioning.unmap && limits.max_unmap_ranges != 0;
        // UNMAP may skip what does not fill a unit of allocation, so it promises no zeroes.
        info.trim_zeroes = false;
        info.can_zero = true;
        // Where what is not allocated may read as anything, a map of it tells nothing of the
        // content.
        info.can_extents = capacity.thin && capacity.thin_reads_zeroes;
        let one_unmap = u64::from(u32::MAX).min(or(limits.max_unmap_blocks.into(), 1 << 16));
        let write_same = or(bytes(limits.max_write_same_blocks), WRITE_SAME_LEN);
        Ok(Unit {
            identity,
            info,
            cache,
            transfer_len: transfer.min(wanted.into()) as u32,
            unmap_len: bytes(one_unmap),
            write_same_len: write_same.min(WRITE_SAME_LEN),
            write_same_unmaps: provisioning.write_same_unmap && capacity.thin_reads_zeroes,
            no_write_same: AtomicBool::new(false),
            no_lba_status: AtomicBool::new(!capacity.thin),
        })
    }

    /// What the unit says about itself, and whether its cache is volatile. A unit that knows no
    /// such page has none; one that does not answer now may have one.
    async fn mode(&self) -> Result<(Mode, Cache), ProbeError> {
        let sensed = self.data("MODE SENSE", cdb::mode_sense_caching(), cdb::ALLOCATION_LEN.into());
        let data = match sensed.await {
            Ok(data) => data,
            Err(ProbeError::Command { source, .. }) if !is_lost(&source) => {
                let is_without_page = matches!(source, BlockError::Unsupported(_));
                let cache = if is_without_page { Cache::Absent } else { Cache::Unknown };
                return Ok((Mode::default(), cache));
            }
            Err(error) => return Err(error),
        };
        Ok(match Mode::parse6(&data) {
            Some(mode) if mode.write_cache => (mode, Cache::Volatile),
            Some(mode) => (mode, Cache::Absent),
            None => (Mode::default(), Cache::Unknown),
        })
    }

    /// The standard data of INQUIRY.
    pub(super) async fn inquiry(&self) -> Result<Inquiry, ProbeError> {
        let name = "INQUIRY";
        let data = self.data(name, cdb::inquiry(None), cdb::ALLOCATION_LEN.into()).await?;
        Inquiry::parse(&data).ok_or(ProbeError::Short(name))
    }

    async fn identify(&self) -> Result<UnitIdentity, ProbeError> {
        let (inquiry, serial, designators) =
            tokio::try_join!(self.inquiry(), self.vpd(0x80), self.vpd(0x83))?;
        let lun = self.shared.url.lun;
        match inquiry.peripheral {
            0 => {}
            // Qualifier 001b or 011b: nothing there.
            kind if kind & 0xe0 != 0 => return Err(ProbeError::NoUnit(lun)),
            kind => return Err(ProbeError::NotADisk { lun, kind }),
        }
        let serial = serial.map(|body| cdb::ascii(&body));
        let name = designators.and_then(|body| cdb::device_name(&body));
        Ok(UnitIdentity {
            vendor: inquiry.vendor,
            product: inquiry.product,
            revision: inquiry.revision,
            serial: serial.unwrap_or_default(),
            name: name.unwrap_or_default(),
        })
    }

    /// READ CAPACITY (16), or (10) where the unit does not know it.
    pub(super) async fn capacity(&self) -> Result<Capacity, ProbeError> {
        let name = "READ CAPACITY";
        if let Some(data) = self.optional(name, cdb::read_capacity16(), CAPACITY16_LEN).await? {
            return Capacity::parse16(&data).ok_or(ProbeError::Short(name));
        }
        let data = self.data(name, cdb::read_capacity10(), 8).await?;
        Capacity::parse10(&data).ok_or(ProbeError::Short(name))
    }

    /// The payload of a VPD page, `None` if the unit has none.
    pub(super) async fn vpd(&self, page: u8) -> Result<Option<Vec<u8>>, ProbeError> {
        let cdb = cdb::inquiry(Some(page));
        let data = self.optional("INQUIRY", cdb, cdb::ALLOCATION_LEN.into()).await?;
        Ok(data.and_then(|data| cdb::vpd(page, &data).map(<[u8]>::to_vec)))
    }

    /// The data of a command that a unit may refuse.
    async fn optional(
        &self,
        name: &'static str,
        cdb: Cdb,
        len: u32,
    ) -> Result<Option<Vec<u8>>, ProbeError> {
        match self.data(name, cdb, len).await {
            Ok(data) => Ok(Some(data)),
            Err(ProbeError::Command { source, .. }) if !is_lost(&source) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The data of a command that has to end with GOOD.
    async fn data(&self, name: &'static str, cdb: Cdb, len: u32) -> Result<Vec<u8>, ProbeError> {
        let mut attempts = 0;
        loop {
            let reply = self.raw(name, cdb, len).await?;
            match judge(reply.status, &reply.sense, attempts) {
                Verdict::Done => return Ok(filled(&reply)),
                Verdict::Failed(source) => {
                    return Err(ProbeError::Command { command: name, source });
                }
                _ if attempts >= ATTENTIONS_MAX => {
                    let source = BlockError::Unreachable("not ready".into());
                    return Err(ProbeError::Command { command: name, source });
                }
                Verdict::Again(_) => {}
                Verdict::Later(pause) | Verdict::Full(pause) => tokio::time::sleep(pause).await,
            }
            attempts += 1;
        }
    }

    /// What a command brings that is sent until there is an answer that counts.
    pub(super) async fn answer(&self, command: Command) -> Result<Vec<u8>, BlockError> {
        self.answer_by(command, judge).await
    }

    /// As [`answer`](Self::answer), by what counts as one.
    pub(super) async fn answer_by(
        &self,
        command: Command,
        judge: fn(u8, &[u8], u32) -> Verdict,
    ) -> Result<Vec<u8>, BlockError> {
        for attempts in 0..ATTENTIONS_MAX {
            let reply = self.send(command.clone()).await?;
            match judge(reply.status, &reply.sense, attempts) {
                Verdict::Done => return Ok(filled(&reply)),
                Verdict::Again(_) => {}
                Verdict::Later(pause) | Verdict::Full(pause) => tokio::time::sleep(pause).await,
                Verdict::Failed(error) => return Err(error),
            }
        }
        Err(BlockError::Unreachable("the unit does not become ready".into()))
    }

    async fn raw(&self, name: &'static str, cdb: Cdb, len: u32) -> Result<Reply, ProbeError> {
        let lun = self.shared.url.wire_lun();
        let command = Command { data_in_len: len, ..command(lun, cdb) };
        self.send(command).await.map_err(|source| ProbeError::Command { command: name, source })
    }

    /// Sends one command past the gate; the reply holds whatever status it ended with.
    pub(super) async fn send(&self, command: Command) -> Result<Reply, BlockError> {
        let buf = (command.data_in_len > 0).then(|| Buf::zeroed(command.data_in_len as usize));
        self.shared.send_on((self.incarnation, self.member), command, buf).await
    }
}

impl Unit {
    /// Refuses to go on with another unit than before: it would mix two disks' contents.
    pub(super) fn check_same(&self, before: &Self) -> Result<(), ProbeError> {
        let resized = self.info.block_size != before.info.block_size;
        if resized || !self.identity.is_same_unit(&before.identity) {
            return Err(ProbeError::OtherDevice {
                found: self.identity.to_string(),
                expected: before.identity.to_string(),
            });
        }
        Ok(())
    }
}

/// The session ended before there was an answer.
const fn is_lost(error: &BlockError) -> bool {
    matches!(error, BlockError::Unreachable(_))
}

fn is_no_unit(reply: &Reply) -> bool {
    let sense = Sense::parse(&reply.sense);
    reply.status == status::CHECK_CONDITION && (sense.key, sense.asc) == (0x5, 0x25)
}

/// What the target filled of a reply's buffer.
fn filled(reply: &Reply) -> Vec<u8> {
    let buf = reply.buf.as_deref().unwrap_or(&[]);
    buf[..reply.len.min(buf.len())].to_vec()
}
