//! MODE SELECT(6) and MODE SELECT(10) (SPC-4 §6.11, §6.12).
//!
//! All of the parameter list is checked before any of it takes effect. What cannot be changed must
//! be sent as it is.

use crate::context::UnitContext;
use crate::mode_pages::{PAGES, Page};
use crate::read_write::flush;
use crate::sense::{AdditionalSense, Sense};
use crate::{Command, Execution, Response};

/// MODE SELECT(6).
pub(crate) fn mode_select_6(context: &UnitContext<'_>, command: Command) -> Execution {
    let list_len = usize::from(command.cdb.byte(4));
    mode_select(context, &command, list_len, &|list| {
        let header: &[u8; 4] = list.first_chunk()?;
        Some(Header { len: 4, descriptor_len: usize::from(header[3]), long_lba: false })
    })
}

/// MODE SELECT(10).
pub(crate) fn mode_select_10(context: &UnitContext<'_>, command: Command) -> Execution {
    let list_len = usize::from(command.cdb.u16(7));
    mode_select(context, &command, list_len, &|list| {
        let header: &[u8; 8] = list.first_chunk()?;
        let descriptor_len = usize::from(u16::from_be_bytes([header[6], header[7]]));
        Some(Header { len: 8, descriptor_len, long_lba: header[4] & 1 != 0 })
    })
}

/// Mode parameter header, as far as it means something in this direction (SPC-4 §7.5.5).
struct Header {
    len: usize,
    descriptor_len: usize,
    long_lba: bool,
}

fn mode_select(
    context: &UnitContext<'_>,
    command: &Command,
    list_len: usize,
    header: &dyn Fn(&[u8]) -> Option<Header>,
) -> Execution {
    let (page_format, save) = (command.cdb.bit(1, 4), command.cdb.bit(1, 0));
    if save || !page_format {
        return Sense::invalid_cdb(1, if save { 0 } else { 4 }).into();
    }
    let wanted = list_len as u64;
    if list_len == 0 {
        return Response::good().into();
    }
    let parsed = command.data_out.get(..list_len).ok_or(LENGTH_ERROR).and_then(|list| {
        let header = header(list).ok_or(LENGTH_ERROR)?;
        check_descriptor(context, list, &header)?;
        pages(context, list, header.len + header.descriptor_len)
    });
    let pages = match parsed {
        Ok(pages) => pages,
        Err(sense) => return Response::check_condition(sense).wanting(wanted).into(),
    };
    apply(context, &pages, wanted)
}

const LENGTH_ERROR: Sense = Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);

/// A block descriptor may say what is the case: all blocks, of the size that they have.
fn check_descriptor(context: &UnitContext<'_>, list: &[u8], header: &Header) -> Result<(), Sense> {
    let at = header.len;
    let descriptor = list.get(at..at + header.descriptor_len).ok_or(LENGTH_ERROR)?;
    let number = |bytes: &[u8]| bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    let (count, all, block_size, size_at) = match (descriptor.len(), header.long_lba) {
        (0, _) => return Ok(()),
        (8, false) => {
            (number(&descriptor[..4]), u64::from(u32::MAX), number(&descriptor[5..8]), at + 5)
        }
        (16, true) => (number(&descriptor[..8]), u64::MAX, number(&descriptor[12..]), at + 12),
        _ => return Err(Sense::invalid_parameter(header.len as u16 - 1)),
    };
    if count != 0 && count != context.capacity() && count != all {
        return Err(Sense::invalid_parameter(at as u16));
    }
    if block_size != context.block_size() {
        return Err(Sense::invalid_parameter(size_at as u16));
    }
    Ok(())
}

/// The pages of a list, each with its new content.
fn pages(
    context: &UnitContext<'_>,
    list: &[u8],
    mut at: usize,
) -> Result<Vec<(&'static Page, Vec<u8>)>, Sense> {
    let mut pages = Vec::new();
    while at < list.len() {
        let rest = &list[at..];
        let (subpage, len, head) = match *rest {
            [code, subpage, high, low, ..] if code & 0x40 != 0 => {
                (subpage, usize::from(u16::from_be_bytes([high, low])), 4)
            }
            [code, len, ..] if code & 0x40 == 0 => (0, usize::from(len), 2),
            _ => return Err(LENGTH_ERROR),
        };
        let code = rest[0] & 0x3f;
        let known = PAGES.iter().find(|page| (page.code, page.subpage) == (code, subpage));
        let page = known.ok_or(Sense::invalid_parameter(at as u16))?;
        let current = (page.content)(context.info, &context.unit.mode);
        if len != current.len() {
            return Err(Sense::invalid_parameter(at as u16 + head as u16 - 1));
        }
        let content = rest.get(head..head + len).ok_or(LENGTH_ERROR)?;
        let mask = page.mask(context.info, len);
        let bits = content.iter().zip(&current).zip(&mask);
        if let Some(wrong) = bits.map(|((new, old), mask)| (new ^ old) & !mask).position(|b| b != 0)
        {
            return Err(Sense::invalid_parameter((at + head + wrong) as u16));
        }
        pages.push((page, content.to_vec()));
        at += head + len;
    }
    Ok(pages)
}

fn apply(context: &UnitContext<'_>, pages: &[(&'static Page, Vec<u8>)], wanted: u64) -> Execution {
    let mode = &context.unit.mode;
    let was_write_through = mode.write_through();
    let mut changed = false;
    for (page, content) in pages {
        changed |= (page.content)(context.info, mode) != *content;
        (page.apply)(mode, content);
    }
    if changed {
        let condition = AdditionalSense::MODE_PARAMETERS_CHANGED;
        context.nexus.target.establish(context.unit.lun, condition, Some(context.nexus));
    }
    if mode.write_through() && !was_write_through {
        // What was acknowledged while the cache was on becomes stable, too.
        let flushed = flush(context, 0);
        return Execution::later(async move { flushed.await.wanting(wanted) });
    }
    Response::good().wanting(wanted).into()
}
