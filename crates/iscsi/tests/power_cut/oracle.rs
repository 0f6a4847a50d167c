//! What a sector may read as, by what the initiator's users were told and nothing else.

use std::collections::BTreeMap;

/// Bytes of a sector, and sectors of the disk.
pub const SECTOR: u64 = 512;
pub const SECTORS: u64 = 24;

/// A write, zeroing or trim of one sector.
#[derive(Clone, Debug)]
struct Version {
    op: u32,
    /// 0 for zeroes.
    content: u32,
    begin: u64,
    /// When its user was told of success.
    acknowledged: Option<u64>,
    /// What came before is gone once it is acknowledged. A trim leaves undefined what is read: an
    /// initiator here promises no zeroes (`trim_zeroes`), whatever the unit does.
    replaces: bool,
}

/// The history of the disk.
#[derive(Clone, Default)]
pub struct Oracle {
    clock: u64,
    sectors: BTreeMap<u64, Vec<Version>>,
}

impl Oracle {
    /// An operation is asked for.
    pub fn begin(&mut self, op: u32, range: (u64, u64), content: u32, replaces: bool) {
        self.clock += 1;
        let begin = self.clock;
        for sector in range.0..range.0 + range.1 {
            let version = Version { op, content, begin, acknowledged: None, replaces };
            self.sectors.entry(sector).or_default().push(version);
        }
    }

    /// Its user is told of success.
    pub fn acknowledge(&mut self, op: u32) {
        self.clock += 1;
        for version in self.sectors.values_mut().flatten().filter(|version| version.op == op) {
            version.acknowledged.get_or_insert(self.clock);
        }
    }

    /// Every sector has to hold something that was written to it, whole; with `all`, nothing that
    /// an acknowledged write has replaced.
    pub fn check(&self, disk: &[u8], all: bool) -> Result<(), String> {
        for (sector, content) in (0..).zip(disk.chunks(SECTOR as usize)) {
            let found = u32::from_le_bytes([content[0], content[1], content[2], content[3]]);
            if content.chunks(4).any(|part| part != found.to_le_bytes()) {
                return Err(format!("sector {sector} is torn"));
            }
            let versions = self.sectors.get(&sector).map_or(&[][..], |versions| versions);
            let last = versions.iter().filter(|v| v.replaces && v.acknowledged.is_some());
            let last = last.map(|v| v.begin).max().filter(|_| all);
            let before = |v: &Version, begin| v.acknowledged.is_some_and(|told| told < begin);
            let is_undefined =
                |begin: &u64| versions.iter().any(|v| !v.replaces && !before(v, *begin));
            let last = last.filter(|begin| !is_undefined(begin));
            let stands = |v: &&Version| last.is_none_or(|begin| !before(v, begin));
            let mut legal = versions.iter().filter(stands).map(|v| v.content);
            if !(legal.any(|content| content == found) || last.is_none() && found == 0) {
                let versions = format!("{versions:?}");
                return Err(format!("sector {sector} holds {found}, of {versions}"));
            }
        }
        Ok(())
    }
}

/// A run of sectors of one content.
pub fn filled(content: u32, count: u64) -> Vec<u8> {
    content.to_le_bytes().repeat((count * SECTOR / 4) as usize)
}
