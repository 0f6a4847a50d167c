//! One logical unit: a device, who it says it is, and the ranges under exclusive use.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::range_lock::RangeLocks;
use block::{Device, DeviceInfo};

use crate::Receipt;
use crate::extended_copy::Copies;
use crate::limits::Limits;
use crate::lun::Lun;
use crate::medium::Medium;
use crate::mode_pages::ModeParameters;
use crate::nexus::NexusId;
use crate::reservation::{Reservations, SharedStore, StateStore};
use crate::sanitize::Sanitize;
use crate::space::Space;
use crate::statistics::Statistics;
use crate::target::AddLunError;
use crate::task_set::TaskSet;

/// How a logical unit presents itself. Defaults identify it by target name and number, which is
/// stable as long as both are.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LunOptions {
    /// T10 VENDOR IDENTIFICATION: at most 8 printable ASCII characters.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION: at most 16 printable ASCII characters.
    pub product: String,
    /// PRODUCT REVISION LEVEL: at most 4 printable ASCII characters.
    pub revision: String,
    /// Unit serial number (VPD page 80h), at most 128 printable ASCII characters. Set it where the
    /// same data is served under several names, so that initiators see one disk.
    pub serial: Option<String>,
    /// 8-byte NAA designator (VPD page 83h); its first hex digit is 2, 3 or 5.
    pub naa: Option<u64>,
    /// Physical block size in bytes to report instead of the device's preferred one: a power of
    /// two, at least its block size. For initiators that cannot do with 512-byte blocks on 4 KiB
    /// ones.
    pub physical_block_size: Option<u32>,
    /// The medium can be ejected (RMB). Off, as a rule: a disk that can go away is treated with
    /// caution by operating systems.
    pub removable: bool,
    /// Bytes that the storage below writes all or not at all, whenever the power may fail: offers
    /// WRITE ATOMIC up to that. 0, the default, does not.
    pub atomic_write_bytes: u32,
    /// Initiators are warned when less space than this is available for a thin unit; see
    /// [`Target::report_space`](crate::Target::report_space). 0 never warns.
    pub space_threshold_bytes: u64,
    /// Most bytes a second that SANITIZE overwrites: what it leaves is for the other units on the
    /// same storage. `None` sets no limit.
    pub sanitize_bytes_per_s: Option<NonZeroU32>,
    /// Where persistent reservations outlive a restart (APTPL). Without one, initiators are told
    /// that they do not.
    pub state: Option<Arc<dyn StateStore>>,
    /// Where the persistent reservations are that other targets keep together with this one: in
    /// place of `state`. They are offered then although `shared_beyond`.
    pub shared_state: Option<Arc<dyn SharedStore>>,
    /// Others may reach the same data by other ways than this target. What would hold among this
    /// target's initiators only is not offered then: persistent reservations, RESERVE, and COMPARE
    /// AND WRITE.
    pub shared_beyond: bool,
}

impl Default for LunOptions {
    fn default() -> Self {
        Self {
            vendor: "ENKAKU".into(),
            product: "VIRTUAL DISK".into(),
            revision: "1".into(),
            serial: None,
            naa: None,
            physical_block_size: None,
            removable: false,
            atomic_write_bytes: 0,
            space_threshold_bytes: 0,
            sanitize_bytes_per_s: None,
            state: None,
            shared_state: None,
            shared_beyond: false,
        }
    }
}

impl LunOptions {
    /// With this vendor and product.
    pub fn with_product(mut self, vendor: impl Into<String>, product: impl Into<String>) -> Self {
        (self.vendor, self.product) = (vendor.into(), product.into());
        self
    }

    /// With this serial number.
    pub fn with_serial(mut self, serial: impl Into<String>) -> Self {
        self.serial = Some(serial.into());
        self
    }

    /// With this physical block size.
    pub fn with_physical_block_size(mut self, bytes: u32) -> Self {
        self.physical_block_size = Some(bytes);
        self
    }

    /// With a medium that can be ejected.
    pub fn with_removable(mut self, removable: bool) -> Self {
        self.removable = removable;
        self
    }

    /// With WRITE ATOMIC of so many bytes.
    pub fn with_atomic_write_bytes(mut self, bytes: u32) -> Self {
        self.atomic_write_bytes = bytes;
        self
    }

    /// With a warning when less space than this is available.
    pub fn with_space_threshold_bytes(mut self, bytes: u64) -> Self {
        self.space_threshold_bytes = bytes;
        self
    }

    /// With a limit to the rate of SANITIZE.
    pub fn with_sanitize_bytes_per_s(mut self, rate: Option<NonZeroU32>) -> Self {
        self.sanitize_bytes_per_s = rate;
        self
    }

    /// With a place where persistent reservations outlive a restart.
    pub fn with_state(mut self, store: impl StateStore + 'static) -> Self {
        self.state = Some(Arc::new(store));
        self
    }

    /// With persistent reservations that other targets keep together with this one.
    pub fn with_shared_state(mut self, store: impl SharedStore + 'static) -> Self {
        self.shared_state = Some(Arc::new(store));
        self
    }

    /// With data that others may reach by other ways.
    pub fn with_shared_beyond(mut self, shared: bool) -> Self {
        self.shared_beyond = shared;
        self
    }

    /// With this NAA designator.
    pub fn with_naa(mut self, naa: u64) -> Self {
        self.naa = Some(naa);
        self
    }
}

/// Checked and padded identification.
pub(crate) struct Identity {
    pub(crate) vendor: [u8; 8],
    pub(crate) product: [u8; 16],
    pub(crate) revision: [u8; 4],
    pub(crate) serial: String,
    pub(crate) naa: u64,
}

/// Longest serial number taken: T10 vendor designator and page 80h both have one-byte lengths.
const SERIAL_LEN_MAX: usize = 128;

impl Identity {
    fn new(target_name: &str, lun: Lun, options: &LunOptions) -> Result<Self, AddLunError> {
        let derived = fnv1a(target_name, lun);
        let serial = options.serial.clone().unwrap_or_else(|| format!("{derived:016x}"));
        ascii("serial number", &serial, SERIAL_LEN_MAX)?;
        // NAA 3h: locally assigned (SPC-4 §7.8.6.6.4), as there is no company identifier to use.
        let naa = options.naa.unwrap_or(derived >> 4 | 0x3 << 60);
        if !matches!(naa >> 60, 2 | 3 | 5) {
            return Err(AddLunError::Naa(naa));
        }
        Ok(Self {
            vendor: padded("vendor", &options.vendor)?,
            product: padded("product", &options.product)?,
            revision: padded("revision", &options.revision)?,
            serial,
            naa,
        })
    }
}

impl Identity {
    /// A designator of VPD page 83h that belongs to the unit is this one's.
    pub(crate) fn is(&self, kind: u8, designator: &[u8]) -> bool {
        const T10_VENDOR_ID: u8 = 1;
        const NAA: u8 = 3;
        match kind {
            T10_VENDOR_ID => designator
                .strip_prefix(&self.vendor[..])
                .is_some_and(|serial| serial == self.serial.as_bytes()),
            NAA => designator == self.naa.to_be_bytes(),
            _ => false,
        }
    }
}

fn ascii(what: &'static str, text: &str, max: usize) -> Result<(), AddLunError> {
    let printable = text.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
    if !printable || text.len() > max || text.is_empty() {
        return Err(AddLunError::Text { what, text: text.to_owned(), max });
    }
    Ok(())
}

/// Left-aligned, padded with spaces (SPC-4 §4.3.1).
fn padded<const N: usize>(what: &'static str, text: &str) -> Result<[u8; N], AddLunError> {
    ascii(what, text, N)?;
    let mut out = [b' '; N];
    out[..text.len()].copy_from_slice(text.as_bytes());
    Ok(out)
}

/// FNV-1a, 64 bits: the same identity after a restart, without storing one.
fn fnv1a(target_name: &str, lun: Lun) -> u64 {
    let bytes = target_name.bytes().chain(lun.number().to_be_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Whole blocks, at most what one command transfers and the 16-bit field can say.
fn atomic_blocks(options: &LunOptions, block_size: u32) -> u32 {
    let blocks = options.atomic_write_bytes / block_size;
    blocks.min(Limits::new(block_size).transfer_blocks).min(u32::from(u16::MAX))
}

/// One logical unit of a target.
pub(crate) struct LogicalUnit {
    /// Like no other unit's of the process, so that one added later is not taken for this one.
    pub(crate) power_on: Receipt,
    pub(crate) lun: Lun,
    pub(crate) device: Device,
    pub(crate) identity: Identity,
    pub(crate) limits: Limits,
    pub(crate) physical_block_size: Option<u32>,
    pub(crate) ranges: Arc<RangeLocks>,
    /// Held by the one command that looks for holes.
    pub(crate) scans: Arc<RangeLocks>,
    pub(crate) tasks: Arc<TaskSet>,
    pub(crate) reservations: Reservations,
    pub(crate) mode: ModeParameters,
    pub(crate) medium: Medium,
    pub(crate) sanitize: Sanitize,
    pub(crate) copies: Copies,
    pub(crate) space: Space,
    pub(crate) statistics: Arc<Statistics>,
    /// MAXIMUM ATOMIC TRANSFER LENGTH; 0 without WRITE ATOMIC.
    pub(crate) atomic_blocks: u32,
    /// What this target decides between initiators holds for all who reach the data.
    pub(crate) is_arbiter: bool,
    /// Capacity in bytes that initiators know.
    size_known: AtomicU64,
}

impl LogicalUnit {
    pub(crate) fn new(
        target_name: &str,
        lun: Lun,
        device: Device,
        options: &LunOptions,
    ) -> Result<Self, AddLunError> {
        let info = device.info();
        let identity = Identity::new(target_name, lun, options)?;
        if !info.block_size.is_power_of_two() || !(512..=65536).contains(&info.block_size) {
            return Err(AddLunError::BlockSize(info.block_size));
        }
        if info.size == 0 {
            return Err(AddLunError::Empty);
        }
        let physical_block_size = options.physical_block_size;
        let fits = |size: &u32| size.is_power_of_two() && *size >= info.block_size;
        if let Some(size) = physical_block_size.filter(|size| !fits(size)) {
            return Err(AddLunError::PhysicalBlockSize { size, block_size: info.block_size });
        }
        static POWER_ONS: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            power_on: Receipt(POWER_ONS.fetch_add(1, Ordering::Relaxed)),
            lun,
            identity,
            limits: Limits::new(info.block_size),
            physical_block_size,
            ranges: Arc::default(),
            scans: Arc::default(),
            tasks: Arc::default(),
            reservations: match &options.shared_state {
                Some(store) => Reservations::open_shared(Arc::clone(store))?,
                None => Reservations::open(options.state.clone())?,
            },
            mode: ModeParameters::default(),
            medium: Medium::new(options.removable),
            sanitize: Sanitize::new(options.sanitize_bytes_per_s),
            copies: Copies::default(),
            space: Space::new(options.space_threshold_bytes),
            statistics: Arc::default(),
            atomic_blocks: atomic_blocks(options, info.block_size),
            is_arbiter: !options.shared_beyond,
            size_known: AtomicU64::new(info.size),
            device,
        })
    }

    /// Takes note of the device's size; true when it has changed since the last time.
    pub(crate) fn size_changed(&self, size: u64) -> bool {
        self.size_known.load(Ordering::Relaxed) != size
            && self.size_known.swap(size, Ordering::Relaxed) != size
    }

    /// Most blocks of one COMPARE AND WRITE that is one step for everybody who reaches the data:
    /// many where all of them come by this target, one where the storage sees to it, else none.
    pub(crate) fn compare_blocks(&self, info: &DeviceInfo) -> u8 {
        match (self.is_arbiter, info.can_compare_and_write) {
            (true, _) => self.limits.compare_blocks,
            (false, can) => u8::from(can),
        }
    }

    /// Writes are refused, by the device or by SWP of the Control mode page.
    pub(crate) fn is_write_protected(&self, info: &DeviceInfo) -> bool {
        info.read_only || self.mode.software_write_protect()
    }

    /// A reset of the unit (SAM-5 §6.3.3): what is not kept through it goes.
    pub(crate) fn reset(&self) {
        self.reservations.reset();
        self.mode.reset();
        self.medium.reset();
        self.sanitize.reset();
        self.copies.reset();
    }

    /// A nexus has ended (SAM-5 §6.3.4).
    pub(crate) fn nexus_lost(&self, nexus: NexusId) {
        self.reservations.nexus_lost(nexus);
        self.medium.nexus_lost(nexus);
        self.copies.nexus_lost(nexus);
    }
}
