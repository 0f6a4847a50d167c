//! How much one command may ask for. Reported in VPD page B0h and enforced by the handlers.

/// Most bytes that one READ, WRITE or VERIFY transfers: enough that a command amortises a round
/// trip of 100 ms at 1 Gbit/s, little enough that a full queue does not exhaust memory.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 16 << 20;

/// Transfer that suits disk and network best.
const TRANSFER_BYTES_OPTIMAL: u32 = 1 << 20;

/// Most bytes that one WRITE SAME covers: what could be written the plain way, too.
const WRITE_SAME_BYTES_MAX: u64 = TRANSFER_BYTES_MAX as u64;

/// Most bytes that one UNMAP releases in all.
const UNMAP_BYTES_MAX: u32 = 512 << 20;

/// Most descriptors in one UNMAP: one page of them.
const UNMAP_DESCRIPTORS_MAX: u32 = 256;

/// Most blocks of one COMPARE AND WRITE: all that its one-byte field can say.
const COMPARE_BLOCKS_MAX: u8 = 255;

/// Bytes of the device that one GET LBA STATUS looks at: bounds its time on a fragmented file.
const LBA_STATUS_BYTES_MAX: u64 = 1 << 30;

/// Most descriptors that one GET LBA STATUS returns, one page of them: whoever wants to know more
/// goes on from there (SBC-3 §5.6.2 leaves the number to the device).
pub(crate) const LBA_STATUS_DESCRIPTORS_MAX: usize = 256;

/// Limits in blocks of one logical unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) transfer_blocks: u32,
    pub(crate) transfer_blocks_optimal: u32,
    pub(crate) write_same_blocks: u64,
    pub(crate) unmap_blocks: u32,
    pub(crate) unmap_descriptors: u32,
    pub(crate) compare_blocks: u8,
    pub(crate) lba_status_blocks: u64,
}

impl Limits {
    pub(crate) fn new(block_size: u32) -> Self {
        Self {
            transfer_blocks: TRANSFER_BYTES_MAX / block_size,
            transfer_blocks_optimal: TRANSFER_BYTES_OPTIMAL / block_size,
            write_same_blocks: WRITE_SAME_BYTES_MAX / u64::from(block_size),
            unmap_blocks: UNMAP_BYTES_MAX / block_size,
            unmap_descriptors: UNMAP_DESCRIPTORS_MAX,
            compare_blocks: COMPARE_BLOCKS_MAX,
            lba_status_blocks: LBA_STATUS_BYTES_MAX / u64::from(block_size),
        }
    }
}
