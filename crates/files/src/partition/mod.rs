//! [`Table`]: what a disk is divided into, by GPT or MBR, and what is in each part. A disk without
//! a table is one part, of number 0.

mod gpt;
mod mbr;

use block::Device;

use crate::limits::PARTITIONS_MAX;
use crate::probe::{PROBE_BYTES, probe};
use crate::source::{Source, in_parallel};
use crate::{Error, Found, Name, Result, Volume};

/// How a disk is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// It is not: one file system begins at its start, or something else does.
    Whole,
    /// Master boot record, with logical partitions.
    Mbr,
    /// GUID partition table (UEFI 2.10 §5.3).
    Gpt,
}

/// A part of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Partition {
    /// Its number, as Linux counts: logical partitions of an MBR from 5 on. 0 is the whole disk.
    pub number: u32,
    /// First byte.
    pub start: u64,
    /// Bytes, at most what the disk has from there.
    pub len: u64,
    /// Kind of content that the table tells: a byte of an MBR, a GUID of a GPT.
    pub kind: String,
    /// Its own GUID.
    pub id: Option<String>,
    /// Its name in a GPT.
    pub name: Option<Name>,
    /// What is really there.
    pub found: Found,
}

/// A disk whose partition table was read.
pub struct Table {
    source: Source,
    kind: TableKind,
    partitions: Vec<Partition>,
    warnings: Vec<String>,
}

impl Table {
    /// Reads the table of a disk and looks what each part begins with.
    ///
    /// # Errors
    /// The device fails, or the table is damaged and so is its copy.
    pub async fn read(device: Device) -> Result<Self> {
        let source = Source::new(device, 0, u64::MAX);
        let len = source.len().min(PROBE_BYTES as u64) as usize;
        let start = source.read(0, len, "start of the disk").await?;
        let mut warnings = Vec::new();
        if let Some(read) = gpt::read(&source, &start, &mut warnings).await? {
            return Self::with(source, TableKind::Gpt, read, warnings).await;
        }
        let found = probe(&start);
        if matches!(found, Found::Unknown)
            && let Some(read) = mbr::read(&source, &start).await?
        {
            return Self::with(source, TableKind::Mbr, read, warnings).await;
        }
        let whole = Partition { found, ..Partition::new(0, 0, source.len(), String::new()) };
        Ok(Self { source, kind: TableKind::Whole, partitions: vec![whole], warnings })
    }

    async fn with(
        source: Source,
        kind: TableKind,
        mut partitions: Vec<Partition>,
        mut warnings: Vec<String>,
    ) -> Result<Self> {
        if partitions.len() > PARTITIONS_MAX {
            return Err(Error::too_much("partition table", "partitions", PARTITIONS_MAX as u64));
        }
        for partition in &mut partitions {
            let there = source.len().saturating_sub(partition.start);
            if partition.len > there {
                let number = partition.number;
                warnings.push(format!("partition {number} is longer than the disk"));
                partition.len = there;
            }
        }
        let starts = partitions.iter().map(|partition| {
            let part = source.part(partition.start, partition.len);
            async move {
                let len = part.len().min(PROBE_BYTES as u64) as usize;
                let start = part.read(0, len, "start of a partition").await?;
                Ok(probe(&start))
            }
        });
        let found = in_parallel(starts).await?;
        for (partition, found) in partitions.iter_mut().zip(found) {
            partition.found = found;
        }
        Ok(Self { source, kind, partitions, warnings })
    }

    /// How the disk is divided.
    pub fn kind(&self) -> TableKind {
        self.kind
    }

    /// The parts, in the order of the table.
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// What is not in order, for somebody who can mend it.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The parts with a file system that can be read.
    pub fn readable(&self) -> impl Iterator<Item = &Partition> {
        self.partitions.iter().filter(|part| matches!(part.found, Found::FileSystem(_)))
    }

    /// Opens the file system of a part.
    ///
    /// # Errors
    /// There is none that can be read, it is damaged, or the device fails.
    pub async fn open(&self, partition: &Partition) -> Result<Volume> {
        let Found::FileSystem(kind) = partition.found else {
            return Err(Error::NoFileSystem { found: partition.found });
        };
        Volume::open(self.source.part(partition.start, partition.len), kind).await
    }
}

impl Partition {
    fn new(number: u32, start: u64, len: u64, kind: String) -> Self {
        Self { number, start, len, kind, id: None, name: None, found: Found::Unknown }
    }
}
