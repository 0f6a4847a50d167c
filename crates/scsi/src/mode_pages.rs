//! The mode pages of a disk (SPC-4 §7.5, SBC-3 §6.5), and the few bits of them that can be changed.
//!
//! Changes concern all nexuses and last until the next reset or restart: nothing is saved.

use std::sync::atomic::{AtomicBool, Ordering};

use block::DeviceInfo;

/// What MODE SELECT has set.
#[derive(Default)]
pub(crate) struct ModeParameters {
    /// SWP of the Control page: writes are refused.
    software_write_protect: AtomicBool,
    /// D_SENSE of the Control page: sense data in descriptor format.
    descriptor_sense: AtomicBool,
    /// WCE of the Caching page, inverted: the device's own cache stays on unless told otherwise.
    write_through: AtomicBool,
}

impl ModeParameters {
    pub(crate) fn software_write_protect(&self) -> bool {
        self.software_write_protect.load(Ordering::Acquire)
    }

    pub(crate) fn descriptor_sense(&self) -> bool {
        self.descriptor_sense.load(Ordering::Acquire)
    }

    /// Every write has to be stable before it is acknowledged.
    pub(crate) fn write_through(&self) -> bool {
        self.write_through.load(Ordering::Acquire)
    }

    /// Back to the defaults.
    pub(crate) fn reset(&self) {
        for parameter in [&self.software_write_protect, &self.descriptor_sense, &self.write_through]
        {
            parameter.store(false, Ordering::Release);
        }
    }
}

/// One mode page: code, subpage, and its content behind the header.
pub(crate) struct Page {
    pub(crate) code: u8,
    pub(crate) subpage: u8,
    pub(crate) content: fn(&DeviceInfo, &ModeParameters) -> Vec<u8>,
    /// Bits of the content that MODE SELECT may change: offset and mask.
    pub(crate) changeable: fn(&DeviceInfo) -> &'static [(usize, u8)],
    /// Takes over changed content.
    pub(crate) apply: fn(&ModeParameters, &[u8]),
}

impl Page {
    const fn fixed(
        code: u8,
        subpage: u8,
        content: fn(&DeviceInfo, &ModeParameters) -> Vec<u8>,
    ) -> Self {
        Self { code, subpage, content, changeable: |_| &[], apply: |_, _| {} }
    }

    /// 1 for every bit that can be changed.
    pub(crate) fn mask(&self, info: &DeviceInfo, len: usize) -> Vec<u8> {
        let mut mask = vec![0; len];
        (self.changeable)(info).iter().for_each(|(at, bits)| mask[*at] |= bits);
        mask
    }
}

/// Ascending by code and subpage, as SPC-4 §6.13.1 wants them returned.
pub(crate) const PAGES: &[Page] = &[
    Page::fixed(0x01, 0, error_recovery),
    Page {
        code: 0x08,
        subpage: 0,
        content: caching,
        changeable: |info| if info.volatile_cache { &[(0, WCE)] } else { &[] },
        apply: |mode, content| mode.write_through.store(content[0] & WCE == 0, Ordering::Release),
    },
    Page {
        code: 0x0a,
        subpage: 0,
        content: control,
        changeable: |_| &[(0, D_SENSE), (2, SWP)],
        apply: |mode, content| {
            mode.descriptor_sense.store(content[0] & D_SENSE != 0, Ordering::Release);
            mode.software_write_protect.store(content[2] & SWP != 0, Ordering::Release);
        },
    },
    Page::fixed(0x0a, 1, control_extension),
    Page::fixed(0x1c, 0, informational_exceptions),
];

const WCE: u8 = 0x04;
const D_SENSE: u8 = 0x04;
const SWP: u8 = 0x08;

/// Read-Write Error Recovery (SBC-3 §6.5.8): no retries to tune.
fn error_recovery(_: &DeviceInfo, _: &ModeParameters) -> Vec<u8> {
    vec![0; 10]
}

/// Caching (SBC-3 §6.5.5).
fn caching(info: &DeviceInfo, mode: &ModeParameters) -> Vec<u8> {
    let mut content = vec![0; 18];
    if info.volatile_cache && !mode.write_through() {
        content[0] = WCE;
    }
    content[10] = 0x20; // DRA: read-ahead is not this unit's business
    content
}

/// Control (SPC-4 §7.5.8).
fn control(_: &DeviceInfo, mode: &ModeParameters) -> Vec<u8> {
    let mut content = vec![0; 10];
    content[0] = 0x02; // GLTSD: no log parameters are saved
    if mode.descriptor_sense() {
        content[0] |= D_SENSE;
    }
    content[1] = 0x10; // QUEUE ALGORITHM MODIFIER: unrestricted reordering
    if mode.software_write_protect() {
        content[2] |= SWP;
    }
    content[6..8].fill(0xff); // BUSY TIMEOUT PERIOD: unlimited
    content
}

/// Control Extension (SPC-4 §7.5.9): 18 bytes of sense data at most of what is returned always.
fn control_extension(_: &DeviceInfo, _: &ModeParameters) -> Vec<u8> {
    vec![0; 28]
}

/// Informational Exceptions Control (SBC-3 §6.5.7): none are reported (MRIE 0).
fn informational_exceptions(_: &DeviceInfo, _: &ModeParameters) -> Vec<u8> {
    let mut content = vec![0; 10];
    content[0] = 0x08; // DEXCPT
    content
}
