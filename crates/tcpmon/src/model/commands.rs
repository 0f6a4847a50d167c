//! S0's write model and its mirror image for reads: the times of each command as its initiator
//! sees them (Higa et al. 2009, §4).
//!
//! Of a write, Ta runs from the first to the last packet of its data leaving the initiator, Tb
//! until the response is back, Tc until the next command. Of a read, Ta runs from the first to the
//! last packet of its data arriving, Tb until the status is there. Before Ta a command may wait:
//! for its first R2T, for the first data.

use serde::Serialize;

/// Records kept; when full, every second one goes and the rest stand for twice as many.
const RECORDS_MAX: usize = 4096;

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Data to the target.
    Write,
    /// Data from the target.
    Read,
    /// No data.
    Other,
}

/// The times of one command, microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CommandTimes {
    /// When the command left, in seconds after the first packet of the capture.
    pub at_s: f64,
    /// What it does.
    pub kind: Kind,
    /// Data moved.
    pub bytes: u64,
    /// From the command to its first data.
    pub before_us: f64,
    /// Ta.
    pub ta_us: f64,
    /// Tb.
    pub tb_us: f64,
    /// Tc; absent where the next command was already under way.
    pub tc_us: Option<f64>,
    /// Of `before_us` and Ta: waiting for R2Ts.
    pub r2t_wait_us: f64,
    /// R2Ts that it got.
    pub r2ts: u32,
}

/// All commands of a kind: medians and sums.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CommandSummary {
    /// How many.
    pub commands: u64,
    /// Data moved.
    pub bytes: u64,
    /// Median data of a command.
    pub bytes_median: u64,
    /// Medians, microseconds.
    pub before_us: f64,
    /// Median Ta.
    pub ta_us: f64,
    /// Median Tb.
    pub tb_us: f64,
    /// Median Tc of those that had one.
    pub tc_us: Option<f64>,
    /// Mean number of R2Ts.
    pub r2ts: f64,
}

/// Keeps some records of any number of commands.
#[derive(Debug, Default)]
pub(crate) struct Records {
    kept: Vec<CommandTimes>,
    stride: u64,
    seen: u64,
    totals: [(u64, u64, u64); 3],
}

impl Records {
    /// Returns whether it was kept.
    pub(crate) fn push(&mut self, times: CommandTimes) -> bool {
        let total = &mut self.totals[times.kind as usize];
        *total =
            (total.0 + 1, total.1.saturating_add(times.bytes), total.2 + u64::from(times.r2ts));
        self.stride = self.stride.max(1);
        let keep = self.seen.is_multiple_of(self.stride);
        self.seen += 1;
        if !keep {
            return false;
        }
        if self.kept.len() == RECORDS_MAX {
            let mut number = 0;
            self.kept.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.stride *= 2;
        }
        self.kept.push(times);
        true
    }

    /// The record kept last.
    pub(crate) fn last(&mut self) -> Option<&mut CommandTimes> {
        self.kept.last_mut()
    }

    /// What was kept.
    pub(crate) fn kept(&self) -> &[CommandTimes] {
        &self.kept
    }

    pub(crate) fn summary(&self, kind: Kind) -> Option<CommandSummary> {
        let (commands, bytes, r2ts) = self.totals[kind as usize];
        if commands == 0 {
            return None;
        }
        let of = |field: fn(&CommandTimes) -> Option<f64>| {
            let mut values: Vec<f64> =
                self.kept.iter().filter(|one| one.kind == kind).filter_map(field).collect();
            values.sort_unstable_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        Some(CommandSummary {
            commands,
            bytes,
            bytes_median: of(|one| Some(one.bytes as f64)).unwrap_or(0.0) as u64,
            before_us: of(|one| Some(one.before_us)).unwrap_or(0.0),
            ta_us: of(|one| Some(one.ta_us)).unwrap_or(0.0),
            tb_us: of(|one| Some(one.tb_us)).unwrap_or(0.0),
            tc_us: of(|one| one.tc_us),
            r2ts: r2ts as f64 / commands as f64,
        })
    }
}
