//! [`Inside`]: a unit that copies from one place of it to another by itself, by EXTENDED COPY(LID1)
//! with the unit as source and destination. Offered where the target answers RECEIVE COPY OPERATING
//! PARAMETERS and the unit has a name to be called by; whether it takes the commands is known when
//! one was sent.
//!
//! A copy is a task of the session as a write is: the next login ends it (RFC 7143 §6.3.5).

use std::ops::Range;

use block::mirror::{CopyInside, CopyLimits, CopyRun};
use block::{BlockError, Io, Result};
use iscsi_proto::initiator::Command;
use iscsi_proto::initiator::durability::Effect;

use super::disk::RemoteDisk;
use super::extended_copy::{
    ALLOCATION_LEN, Cscd, Parameters, extended_copy, parameter_list, receive_operating_parameters,
};
use super::ordered;
use super::state::command;

/// VPD page 83h, device identification (SPC-4 §7.8.6).
const DEVICE_IDENTIFICATION: u8 = 0x83;

/// A segment's count of blocks has 16 bits.
const SEGMENT_BLOCKS_MAX: u64 = 0xffff;

/// VENDOR IDENTIFICATION of Linux' target. Up to 6.12 at least it counts the commands of a copy
/// when they begin and not when they end, so a command with the ORDERED attribute behind a copy,
/// with which each opening of a leg begins, is never answered.
const LINUX_TARGET: &str = "LIO-ORG";

/// The copies of one disk.
pub(super) struct Inside {
    disk: RemoteDisk,
    cscd: Cscd,
    parameters: Parameters,
    block_len: u32,
    limits: CopyLimits,
}

impl Inside {
    /// Asks the unit. The inner `Err`: why there is none.
    pub(super) async fn of(disk: &RemoteDisk) -> Result<std::result::Result<Self, String>> {
        if disk.identity().vendor == LINUX_TARGET {
            return Ok(Err("Linux' target answers no ORDERED command behind a copy".to_owned()));
        }
        let nexus = ordered::leading(disk);
        let question = command(disk.shared().url.wire_lun(), receive_operating_parameters());
        let question = Command { data_in_len: ALLOCATION_LEN, ..question };
        let page = async {
            let page = nexus.vpd(DEVICE_IDENTIFICATION).await;
            page.map_err(|error| BlockError::Unreachable(error.to_string()))
        };
        let (answer, page) = tokio::join!(nexus.answer(question), page);
        let answer = match answer {
            Err(error @ BlockError::Unreachable(_)) => return Err(error),
            Err(error) => return Ok(Err(format!("the target knows no EXTENDED COPY: {error}"))),
            Ok(answer) => answer,
        };
        let parameters = match Parameters::parse(&answer) {
            Err(why) => return Ok(Err(format!("the target's EXTENDED COPY is no use: {why}"))),
            Ok(parameters) => parameters,
        };
        let block_len = disk.shared().info().block_size;
        let Some(cscd) = page?.and_then(|page| Cscd::of(&page, block_len)) else {
            return Ok(Err("the unit has no name for EXTENDED COPY to call it by".to_owned()));
        };
        let limits = limits(&parameters, block_len);
        let Some(limits) = limits else {
            return Ok(Err("the target copies less than a block at a time".to_owned()));
        };
        Ok(Ok(Self { disk: disk.clone(), cscd, parameters, block_len, limits }))
    }

    /// The range that holds all that the runs write.
    ///
    /// # Errors
    /// A run that the unit or its limits have no room for.
    fn check(&self, runs: &[CopyRun]) -> Result<Range<u64>> {
        let info = self.disk.shared().info();
        let (mut start, mut end) = (u64::MAX, 0);
        for run in runs {
            info.check(run.from, run.len)?;
            info.check_write(run.to, run.len)?;
            if run.len > self.limits.run_bytes_max {
                return Err(BlockError::Unsupported("a copy of so many bytes"));
            }
            (start, end) = (start.min(run.to), end.max(run.to + run.len));
        }
        if runs.len() > self.limits.runs_max {
            return Err(BlockError::Unsupported("a copy of so many runs"));
        }
        Ok(start..end)
    }
}

/// In bytes. `None`: less than a block.
fn limits(parameters: &Parameters, block_len: u32) -> Option<CopyLimits> {
    let block = u64::from(block_len);
    let blocks = match parameters.segment_bytes_max {
        0 => SEGMENT_BLOCKS_MAX,
        bytes => SEGMENT_BLOCKS_MAX.min(u64::from(bytes) / block),
    };
    let (runs_max, at_once) = (parameters.segments_max, parameters.at_once);
    (blocks > 0).then_some(CopyLimits { runs_max, run_bytes_max: blocks * block, at_once })
}

impl CopyInside for Inside {
    fn limits(&self) -> CopyLimits {
        self.limits
    }

    fn copy(&self, runs: Vec<CopyRun>) -> Io<()> {
        if runs.is_empty() {
            return Io::ok(());
        }
        let written = match self.check(&runs) {
            Ok(written) => written,
            Err(error) => return Io::err(error),
        };
        let list = parameter_list(&self.cscd, self.block_len, &self.parameters, &runs);
        let shared = self.disk.shared();
        let cdb = extended_copy(list.len() as u32);
        let copy = Command { data_out: list.into(), ..command(shared.url.wire_lun(), cdb) };
        // What is there when it has ended nobody knows here, so nothing of it is kept.
        let effect = Effect::Undefined(written.start, written.end - written.start);
        let pending = shared.send(copy, None, effect);
        Io::later(async move { pending.await.map(drop).map_err(|error| told(error, &runs)) })
    }
}

/// With what was to be copied.
fn told(error: BlockError, runs: &[CopyRun]) -> BlockError {
    match error {
        BlockError::Unreachable(_) | BlockError::Fenced => error,
        error => {
            let (count, first) = (runs.len(), runs.first().map_or(0, |run| run.to));
            let text =
                format!("EXTENDED COPY of {count} segments, the first to byte {first}: {error}");
            BlockError::Medium(std::io::Error::other(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_whole_blocks_and_counted_in_sixteen_bits() {
        let of = |segment_bytes_max, block_len| {
            let parameters = Parameters {
                no_list_id: true,
                is_named_twice: true,
                segments_max: 3,
                segment_bytes_max,
                at_once: 2,
            };
            limits(&parameters, block_len).map(|limits| limits.run_bytes_max)
        };
        assert_eq!(of(0, 512), Some(65_535 * 512));
        assert_eq!(of(64 << 20, 512), Some(65_535 * 512));
        assert_eq!(of(10_000, 4096), Some(8192));
        assert_eq!(of(4095, 4096), None);
    }
}
