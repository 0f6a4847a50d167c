//! LOG SENSE (SPC-4 §6.8): Supported Log Pages, General Statistics and Performance (SPC-4 §7.3),
//! and Logical Block Provisioning (SBC-3 §6.4.5).

use crate::context::UnitContext;
use crate::sense::{AdditionalSense, Sense};
use crate::statistics::Counts;
use crate::{Command, Execution, data};

const SUPPORTED_PAGES: u8 = 0x00;
const LOGICAL_BLOCK_PROVISIONING: u8 = 0x0c;
const GENERAL_STATISTICS_AND_PERFORMANCE: u8 = 0x19;
const ALL_SUBPAGES: u8 = 0xff;

/// LOG SENSE.
pub(crate) fn log_sense(context: &UnitContext<'_>, command: Command) -> Execution {
    let cdb = &command.cdb;
    let (control, code, subpage) = (cdb.byte(2) >> 6, cdb.byte(2) & 0x3f, cdb.byte(3));
    // Only cumulative values exist.
    if control != 1 {
        return Sense::invalid_cdb(2, 7).into();
    }
    if cdb.bit(1, 0) {
        return Sense::illegal(AdditionalSense::SAVING_PARAMETERS_NOT_SUPPORTED).into();
    }
    let from = cdb.u16(5); // PARAMETER POINTER
    let has_provisioning = context.unit.space.usage().is_some();
    let mut codes = vec![SUPPORTED_PAGES];
    if has_provisioning {
        codes.push(LOGICAL_BLOCK_PROVISIONING);
    }
    codes.push(GENERAL_STATISTICS_AND_PERFORMANCE);
    let body = match (code, subpage) {
        (SUPPORTED_PAGES, 0) => codes,
        (SUPPORTED_PAGES, ALL_SUBPAGES) => std::iter::once([SUPPORTED_PAGES, ALL_SUBPAGES])
            .chain(codes.into_iter().map(|code| [code, 0]))
            .flatten()
            .collect(),
        (LOGICAL_BLOCK_PROVISIONING, 0) if has_provisioning => provisioning(context, from),
        (GENERAL_STATISTICS_AND_PERFORMANCE, 0) => {
            statistics(context.unit.statistics.counts(), from)
        }
        (
            SUPPORTED_PAGES | LOGICAL_BLOCK_PROVISIONING | GENERAL_STATISTICS_AND_PERFORMANCE,
            1..,
        ) => return Sense::invalid_cdb(3, 7).into(),
        _ => return Sense::invalid_cdb(2, 5).into(),
    };
    let known = match code {
        LOGICAL_BLOCK_PROVISIONING => USED,
        GENERAL_STATISTICS_AND_PERFORMANCE => TIME_INTERVAL,
        _ => 0,
    };
    if from > known {
        return Sense::invalid_cdb(5, 7).into();
    }
    let spf = u8::from(subpage != 0) << 6;
    let mut out = vec![spf | code, subpage];
    out.extend((body.len() as u16).to_be_bytes());
    out.extend(body);
    data::respond(&command, out, u32::from(cdb.u16(7))).into()
}

/// PARAMETER CODEs: resources that are available and used.
const AVAILABLE: u16 = 0x0001;
const USED: u16 = 0x0002;

/// DU, FORMAT AND LINKING: binary list.
const CONTROL: u8 = 0x03;

/// PARAMETER CODEs: counts and times, times of idleness, and what the times are told in.
const STATISTICS: u16 = 0x0001;
const IDLE_TIME: u16 = 0x0002;
const TIME_INTERVAL: u16 = 0x0003;

/// Since power on. Idle times and what is weighted by the commands under way are not counted: 0.
fn statistics(counts: Counts, from: u16) -> Vec<u8> {
    /// 10 to the power of -6 s, once: an interval is a microsecond.
    const INTERVAL: [u32; 2] = [6, 1];
    let counted = [
        counts.read_commands,
        counts.write_commands,
        counts.blocks_received,
        counts.blocks_transmitted,
        counts.read_intervals,
        counts.write_intervals,
        0,
        0,
    ];
    let parameters = [
        (STATISTICS, counted.map(u64::to_be_bytes).concat()),
        (IDLE_TIME, vec![0; 8]),
        (TIME_INTERVAL, INTERVAL.map(u32::to_be_bytes).concat()),
    ];
    let mut out = Vec::new();
    for (code, value) in parameters.into_iter().filter(|(code, _)| *code >= from) {
        out.extend(code.to_be_bytes());
        out.extend([CONTROL, value.len() as u8]);
        out.extend(value);
    }
    out
}

/// Counts of threshold sets, each with its scope.
fn provisioning(context: &UnitContext<'_>, from: u16) -> Vec<u8> {
    let space = &context.unit.space;
    let Some(usage) = space.usage() else { return Vec::new() };
    let sets = |bytes: u64| {
        let sets = (bytes / context.block_size()) >> space.threshold_exponent(context.info);
        u32::try_from(sets).unwrap_or(u32::MAX)
    };
    // Available space is shared with other units, as a rule; used space is this unit's.
    const SHARED: u8 = 0x02;
    const DEDICATED: u8 = 0x01;
    let mut out = Vec::new();
    for (code, bytes, scope) in
        [(AVAILABLE, usage.available_bytes, SHARED), (USED, usage.used_bytes, DEDICATED)]
    {
        if code >= from {
            out.extend(code.to_be_bytes());
            out.extend([CONTROL, 8]);
            out.extend(sets(bytes).to_be_bytes());
            out.extend([scope, 0, 0, 0]);
        }
    }
    out
}
