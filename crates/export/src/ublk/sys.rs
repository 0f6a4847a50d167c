//! What the kernel's ublk driver is told, and tells: numbers and structures of `linux/ublk_cmd.h`.
//!
//! Commands are io_uring's `IORING_OP_URING_CMD` on `/dev/ublk-control` and on `/dev/ublkcN`; their
//! numbers are encoded as those of ioctl(2).

use crate::kernel::node::SECTOR;

/// Requests under way at most, each with a tag below this.
pub(super) const DEPTH: u16 = 128;

/// Longest request.
pub(super) const REQUEST_LEN_MAX: u32 = 1 << 20;

/// No queue in particular; and as a device's number, the next that is free.
pub(super) const NO_QUEUE: u16 = u16::MAX;
pub(super) const ANY_DEVICE: u32 = u32::MAX;

/// Features (`UBLK_F_…`).
pub(super) const F_USER_RECOVERY: u64 = 1 << 3;
pub(super) const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;
pub(super) const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;
pub(super) const F_USER_COPY: u64 = 1 << 7;
pub(super) const F_UPDATE_SIZE: u64 = 1 << 10;

/// What every device of ours has.
pub(super) const FEATURES: u64 =
    F_USER_RECOVERY | F_USER_RECOVERY_REISSUE | F_CMD_IOCTL_ENCODE | F_USER_COPY;

/// States of a device (`UBLK_S_DEV_…`).
pub(super) const QUIESCED: u16 = 2;

/// The process that served a device is to fetch no more of it (`UBLK_IO_RES_ABORT`).
pub(super) const ABORT: i32 = -libc::ENODEV;

/// Where the description of requests stands in `/dev/ublkcN`, and where their data does.
pub(super) const DESCRIPTIONS_AT: i64 = 0;
const DATA_AT: u64 = 0x8000_0000;
const TAG_SHIFT: u32 = 25;

/// Where the data of a request of the only queue is read and written.
pub(super) fn data_at(tag: u16) -> u64 {
    DATA_AT + (u64::from(tag) << TAG_SHIFT)
}

/// A number as `_IOR` and `_IOWR` make them (`asm-generic/ioctl.h`), of type `u`.
const fn encoded(direction: u32, number: u32, len: usize) -> u32 {
    (direction << 30) | ((len as u32) << 16) | ((b'u' as u32) << 8) | number
}

const READ: u32 = 2;
const BOTH: u32 = 3;

/// A command to `/dev/ublk-control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op(pub(super) u32);

impl Op {
    pub(super) const ADD_DEV: Self = Self::of(BOTH, 0x04);
    pub(super) const DEL_DEV: Self = Self::of(BOTH, 0x05);
    pub(super) const START_DEV: Self = Self::of(BOTH, 0x06);
    pub(super) const STOP_DEV: Self = Self::of(BOTH, 0x07);
    pub(super) const SET_PARAMS: Self = Self::of(BOTH, 0x08);
    pub(super) const GET_DEV_INFO: Self = Self::of(READ, 0x02);
    pub(super) const START_USER_RECOVERY: Self = Self::of(BOTH, 0x10);
    pub(super) const END_USER_RECOVERY: Self = Self::of(BOTH, 0x11);
    pub(super) const GET_FEATURES: Self = Self::of(READ, 0x13);
    pub(super) const UPDATE_SIZE: Self = Self::of(BOTH, 0x15);

    const fn of(direction: u32, number: u32) -> Self {
        Self(encoded(direction, number, size_of::<ControlCommand>()))
    }
}

/// A command to `/dev/ublkcN`: the first wants a request, the others answer one and want the next.
pub(super) const FETCH: u32 = encoded(BOTH, 0x20, size_of::<IoCommand>());
pub(super) const COMMIT_AND_FETCH: u32 = encoded(BOTH, 0x21, size_of::<IoCommand>());

/// `struct ublksrv_ctrl_cmd`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct ControlCommand {
    pub(super) device: u32,
    pub(super) queue: u16,
    /// Bytes of what is at `address`.
    pub(super) len: u16,
    pub(super) address: u64,
    pub(super) data: u64,
    pub(super) path_len: u16,
    pub(super) pad: u16,
    pub(super) reserved: u32,
}

/// `struct ublksrv_io_cmd`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct IoCommand {
    pub(super) queue: u16,
    pub(super) tag: u16,
    /// Bytes, or an error as a negative number.
    pub(super) result: i32,
    /// Where a buffer is; 0 where data is copied by reads and writes of `/dev/ublkcN`.
    pub(super) address: u64,
}

impl IoCommand {
    pub(super) fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.address.to_ne_bytes());
        bytes
    }
}

impl ControlCommand {
    /// As it stands in a submission of 128 bytes.
    pub(super) fn bytes(self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[..4].copy_from_slice(&self.device.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.len.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.data.to_ne_bytes());
        bytes
    }
}

/// `struct ublksrv_ctrl_dev_info`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct DeviceInfo {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) state: u16,
    pub(super) pad0: u16,
    pub(super) request_len_max: u32,
    pub(super) device: u32,
    pub(super) process: i32,
    pub(super) pad1: u32,
    pub(super) features: u64,
    /// Ours: the kernel keeps it as long as there is the device.
    pub(super) mark: u64,
    pub(super) owner: [u32; 2],
    pub(super) reserved: [u64; 2],
}

/// Attributes of a device (`UBLK_ATTR_…`).
pub(super) const ATTR_READ_ONLY: u32 = 1;
pub(super) const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
pub(super) const ATTR_FUA: u32 = 1 << 3;

/// Kinds of parameters (`UBLK_PARAM_TYPE_…`).
pub(super) const BASIC: u32 = 1;
pub(super) const DISCARD: u32 = 1 << 1;

/// The begin of `struct ublk_params`, which goes on where newer kernels know more.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Parameters {
    pub(super) len: u32,
    pub(super) kinds: u32,
    // struct ublk_param_basic
    pub(super) attributes: u32,
    pub(super) logical_block_shift: u8,
    pub(super) physical_block_shift: u8,
    pub(super) io_optimal_shift: u8,
    pub(super) io_least_shift: u8,
    pub(super) sectors_max: u32,
    pub(super) chunk_sectors: u32,
    pub(super) sectors: u64,
    pub(super) virtual_boundary: u64,
    // struct ublk_param_discard
    pub(super) discard_alignment: u32,
    pub(super) discard_granularity: u32,
    pub(super) discard_sectors_max: u32,
    pub(super) zeroes_sectors_max: u32,
    pub(super) discard_segments_max: u16,
    pub(super) reserved: u16,
}

/// `struct ublksrv_io_desc`: what is asked.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Description {
    op_flags: u32,
    sectors: u32,
    start: u64,
    address: u64,
}

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Read,
    Write {
        fua: bool,
    },
    Flush,
    Discard,
    Zeroes {
        fua: bool,
        may_trim: bool,
    },
    /// A kind that no device of ours offers.
    Other,
}

impl Description {
    pub(super) fn wanted(&self) -> Wanted {
        const FUA: u32 = 1 << 13;
        const NO_UNMAP: u32 = 1 << 15;
        let fua = self.op_flags & FUA != 0;
        match self.op_flags as u8 {
            0 => Wanted::Read,
            1 => Wanted::Write { fua },
            2 => Wanted::Flush,
            3 => Wanted::Discard,
            5 => Wanted::Zeroes { fua, may_trim: self.op_flags & NO_UNMAP == 0 },
            _ => Wanted::Other,
        }
    }

    /// First byte.
    pub(super) fn offset(&self) -> u64 {
        self.start.saturating_mul(SECTOR)
    }

    /// In bytes.
    pub(super) fn len(&self) -> u64 {
        u64::from(self.sectors) * SECTOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_numbers_are_those_of_the_header() {
        assert_eq!(size_of::<ControlCommand>(), 32);
        assert_eq!(size_of::<IoCommand>(), 16);
        assert_eq!(size_of::<DeviceInfo>(), 64);
        assert_eq!(size_of::<Description>(), 24);
        assert_eq!(size_of::<Parameters>(), 64);
        assert_eq!(std::mem::offset_of!(Parameters, discard_alignment), 40);
        // As `gcc -include linux/ublk_cmd.h` prints them.
        assert_eq!(Op::ADD_DEV.0, 0xc020_7504);
        assert_eq!(Op::GET_DEV_INFO.0, 0x8020_7502);
        assert_eq!(FETCH, 0xc010_7520);
        assert_eq!(data_at(3), 0x8000_0000 + 3 * (32 << 20));
    }

    #[test]
    fn what_a_request_wants() {
        let of = |op_flags| Description { op_flags, sectors: 8, start: 16, address: 0 };
        assert_eq!(of(0).wanted(), Wanted::Read);
        assert_eq!(of(1 | 1 << 13).wanted(), Wanted::Write { fua: true });
        assert_eq!(of(5).wanted(), Wanted::Zeroes { fua: false, may_trim: true });
        assert_eq!(of(5 | 1 << 15).wanted(), Wanted::Zeroes { fua: false, may_trim: false });
        assert_eq!(of(4).wanted(), Wanted::Other);
        assert_eq!((of(0).offset(), of(0).len()), (8192, 4096));
    }
}
