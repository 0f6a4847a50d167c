//! MODE SENSE(6) and MODE SENSE(10) (SPC-4 §6.13, §6.14). The pages are in `mode_pages`.

use crate::context::UnitContext;
use crate::data;
use crate::mode_pages::{ModeParameters, PAGES, Page};
use crate::sense::{AdditionalSense, Sense};
use crate::{Command, Execution};

const ALL_PAGES: u8 = 0x3f;
const ALL_SUBPAGES: u8 = 0xff;

/// PAGE CONTROL.
const CHANGEABLE: u8 = 1;
const DEFAULT: u8 = 2;
const SAVED: u8 = 3;

/// MODE SENSE(6).
pub(crate) fn mode_sense_6(context: &UnitContext<'_>, command: Command) -> Execution {
    let (descriptor, pages) = match parts(context, &command, false) {
        Ok(parts) => parts,
        Err(sense) => return sense.into(),
    };
    let len = 3 + descriptor.len() + pages.len();
    let mut out = vec![len as u8, 0, device_specific(context), descriptor.len() as u8];
    out.extend(descriptor);
    out.extend(pages);
    data::respond(&command, out, u32::from(command.cdb.byte(4))).into()
}

/// MODE SENSE(10).
pub(crate) fn mode_sense_10(context: &UnitContext<'_>, command: Command) -> Execution {
    let long_lba = command.cdb.bit(1, 4); // LLBAA
    let (descriptor, pages) = match parts(context, &command, long_lba) {
        Ok(parts) => parts,
        Err(sense) => return sense.into(),
    };
    let [high, low] = (6 + descriptor.len() as u16 + pages.len() as u16).to_be_bytes();
    let long = u8::from(descriptor.len() == 16);
    let mut out = vec![high, low, 0, device_specific(context), long, 0, 0];
    out.push(descriptor.len() as u8);
    out.extend(descriptor);
    out.extend(pages);
    data::respond(&command, out, u32::from(command.cdb.u16(7))).into()
}

/// DEVICE-SPECIFIC PARAMETER of a disk (SBC-3 §6.5.1): WP, and DPOFUA, which is always there.
fn device_specific(context: &UnitContext<'_>) -> u8 {
    u8::from(context.unit.is_write_protected(context.info)) << 7 | 0x10
}

/// Block descriptor and pages that a CDB asks for.
fn parts(
    context: &UnitContext<'_>,
    command: &Command,
    long_lba: bool,
) -> Result<(Vec<u8>, Vec<u8>), Sense> {
    let cdb = &command.cdb;
    let (control, code, subpage) = (cdb.byte(2) >> 6, cdb.byte(2) & 0x3f, cdb.byte(3));
    if control == SAVED {
        return Err(Sense::illegal(SAVING_NOT_SUPPORTED));
    }
    let wanted = |page: &&Page| match (code, subpage) {
        (ALL_PAGES, ALL_SUBPAGES) => true,
        (ALL_PAGES, 0) => page.subpage == 0,
        (_, ALL_SUBPAGES) => page.code == code,
        _ => (page.code, page.subpage) == (code, subpage),
    };
    let mut pages = Vec::new();
    for page in PAGES.iter().filter(wanted) {
        let mut content = (page.content)(context.info, &context.unit.mode);
        if control == DEFAULT {
            content = (page.content)(context.info, &ModeParameters::default());
        }
        if control == CHANGEABLE {
            content = page.mask(context.info, content.len());
        }
        match page.subpage {
            0 => pages.extend([page.code, content.len() as u8]),
            // SPF: sub_page format with a two-byte length
            subpage => pages.extend([0x40 | page.code, subpage, 0, content.len() as u8]),
        }
        pages.extend(content);
    }
    if pages.is_empty() {
        let known_code = code == ALL_PAGES || PAGES.iter().any(|page| page.code == code);
        return Err(if known_code { Sense::invalid_cdb(3, 7) } else { Sense::invalid_cdb(2, 5) });
    }
    let descriptor = match cdb.bit(1, 3) {
        true => Vec::new(), // DBD
        false => block_descriptor(context, long_lba),
    };
    Ok((descriptor, pages))
}

const SAVING_NOT_SUPPORTED: AdditionalSense = AdditionalSense::SAVING_PARAMETERS_NOT_SUPPORTED;

/// Short or long LBA mode parameter block descriptor (SBC-3 §6.5.2).
fn block_descriptor(context: &UnitContext<'_>, long_lba: bool) -> Vec<u8> {
    let capacity = context.capacity();
    let mut out = Vec::new();
    if long_lba {
        out.extend(capacity.to_be_bytes());
        out.extend([0; 4]);
        out.extend(context.info.block_size.to_be_bytes());
    } else {
        out.extend(u32::try_from(capacity).unwrap_or(u32::MAX).to_be_bytes());
        // A reserved byte and three of length: the largest block size, 65536, fits.
        out.extend(context.info.block_size.to_be_bytes());
    }
    out
}
