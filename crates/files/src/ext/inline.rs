//! Inline data: small files and folders that are inside their inode. The first 60 bytes stand where
//! the map would be, the rest is the value of the attribute `system.data`.

use super::inode::{BLOCK_BYTES, BLOCK_OFFSET, Inode, OLD_BYTES};
use crate::extents::Builder;
use crate::field::Fields;
use crate::{Error, Result};

/// At the start of attributes in an inode.
const MAGIC: u32 = 0xea02_0000;
/// Bytes of an attribute's entry without its name.
const ENTRY_BYTES: usize = 16;
/// The name space of `system.`.
const INDEX_SYSTEM: u8 = 7;

/// The content as extents: bytes of the inode, at whatever byte of the disk they are.
pub(super) fn extents(inode: &Inode, map: &mut Builder) -> Result<()> {
    let first = inode.size.min(BLOCK_BYTES as u64);
    map.push(0, first, Some(inode.offset + BLOCK_OFFSET as u64))?;
    if map.is_complete() {
        return Ok(());
    }
    let (at, len) = attribute(inode)?;
    map.push(first, len as u64, Some(inode.offset + at as u64))?;
    if !map.is_complete() {
        let problem = format!("{} bytes, of which {} are inside the inode", inode.size, map.end());
        return Err(Error::damaged(inode.place(), problem));
    }
    Ok(())
}

/// Where in the inode the value of `system.data` is.
fn attribute(inode: &Inode) -> Result<(usize, usize)> {
    let damaged = |problem: &str| Err(Error::damaged(inode.place(), problem));
    let fields = Fields(&inode.inline);
    let extra_bytes = usize::from(fields.u16(OLD_BYTES));
    let start = OLD_BYTES + extra_bytes;
    if extra_bytes == 0 || fields.u32(start) != MAGIC {
        return damaged("the rest of its inline data is missing");
    }
    let first = start + 4;
    let mut at = first;
    while at + ENTRY_BYTES <= inode.inline.len() && fields.u32(at) != 0 {
        let name_len = usize::from(fields.u8(at));
        let name = fields.bytes(at + ENTRY_BYTES, name_len);
        if fields.u8(at + 1) == INDEX_SYSTEM && name == b"data" {
            let value = first + usize::from(fields.u16(at + 2));
            let len = usize::try_from(fields.u32(at + 8)).unwrap_or(usize::MAX);
            if fields.u32(at + 4) != 0 || fields.bytes(value, len).len() != len {
                return damaged("its inline data is outside the inode");
            }
            return Ok((value, len));
        }
        at += (ENTRY_BYTES + name_len).next_multiple_of(4);
    }
    damaged("the rest of its inline data is missing")
}
