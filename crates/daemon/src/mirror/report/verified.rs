//! What is told of verifications: of one that was asked for, and of the last one of a leg.

use std::fmt::Write as _;

use block::mirror::Verdict;
use serde::{Deserialize, Serialize};

use super::{bytes, clock, time, unix_s};

/// What a verification found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// The leg's number, from 1.
    pub number: usize,
    /// Its URL or path.
    pub name: String,
    /// Bytes compared.
    pub compared_bytes: u64,
    /// Bytes that were not compared, because they were not at the leg yet.
    pub skipped_bytes: u64,
    /// Blocks of 4 KiB that differ.
    pub mismatches: u64,
    /// Of these, blocks that were written to the leg again.
    pub healed: u64,
    /// Offsets in bytes of the first that differ, a few of them.
    pub offsets: Vec<u64>,
}

/// What the last verification of a leg found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerdictReport {
    /// When it had ended, in seconds since 1970.
    pub time_s: f64,
    /// Bytes compared.
    pub compared_bytes: u64,
    /// Blocks of 4 KiB that differed.
    pub mismatches: u64,
}

impl VerdictReport {
    pub(super) fn new(verdict: &Verdict) -> Self {
        let Verdict { at, bytes, mismatches } = *verdict;
        Self { time_s: unix_s(at), compared_bytes: bytes, mismatches }
    }

    pub(super) fn describe(&self, now_s: f64) -> String {
        let found = match self.mismatches {
            0 => "nothing differs".to_owned(),
            blocks => format!("{blocks} blocks of 4 KiB differ (`enkaku mirror verify --heal`)"),
        };
        let ago = time((now_s - self.time_s).max(0.0));
        format!(
            "{} ({ago} ago): {} compared, {found}",
            clock(self.time_s),
            bytes(self.compared_bytes)
        )
    }
}

impl VerifyReport {
    pub(crate) fn new(index: usize, name: &str, found: block::mirror::VerifyReport) -> Self {
        let block::mirror::VerifyReport { bytes, skipped_bytes, mismatches, healed, offsets } =
            found;
        let (number, name, compared_bytes) = (index + 1, name.to_owned(), bytes);
        Self { number, name, compared_bytes, skipped_bytes, mismatches, healed, offsets }
    }

    /// Nothing differs any more.
    pub fn is_good(&self) -> bool {
        self.mismatches == self.healed
    }

    /// For people.
    pub fn text(&self) -> String {
        let Self { number, name, mismatches, healed, .. } = self;
        let compared = bytes(self.compared_bytes);
        let mut text = format!("leg {number}, {name}: {compared} compared, ");
        match mismatches {
            0 => text.push_str("nothing differs"),
            _ => {
                let at: Vec<String> = self.offsets.iter().map(u64::to_string).collect();
                let _ = write!(
                    text,
                    "{mismatches} blocks of 4 KiB differ (at {}{}), {healed} of them mended",
                    at.join(", "),
                    if self.offsets.len() as u64 == *mismatches { "" } else { ", …" }
                );
            }
        }
        if self.skipped_bytes > 0 {
            let _ = write!(text, "; not compared: {}, on its way", bytes(self.skipped_bytes));
        }
        text
    }
}
