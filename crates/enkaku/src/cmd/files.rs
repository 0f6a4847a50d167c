//! What `ls` and `cat` share: a disk, anywhere, and the file system on it that is meant.

use std::path::PathBuf;
use std::str::FromStr;

use backends::{FORMS, Location};
use block::Device;
use files::{Found, Partition, Table, TableKind, Volume as FileSystem};

use super::remote::{RemoteArgs, Volume, parse_location};
use super::{Usage, complain, image};

/// Which file system is meant.
#[derive(clap::Args, Debug)]
pub(crate) struct DiskArgs {
    #[arg(value_name = "DISK", help = format!(
        "Where the files are: {FORMS}, or the path of an image or block device"
    ))]
    disk: Disk,
    /// Number of the partition [default: the one with a file system that can be read].
    #[arg(long, value_name = "N")]
    partition: Option<u32>,
    #[command(flatten)]
    remote: RemoteArgs,
}

#[derive(Clone, Debug)]
enum Disk {
    Remote(Location),
    Path(PathBuf),
}

impl FromStr for Disk {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("an empty path".to_owned()),
            url if Location::is_meant(url) || url.contains("://") => {
                parse_location(url).map(Self::Remote)
            }
            path => Ok(Self::Path(PathBuf::from(path))),
        }
    }
}

/// A disk in use.
pub(crate) struct Opened {
    pub(crate) table: Table,
    remote: Option<Volume>,
}

/// What a command that names no partition may mean.
pub(crate) enum Chosen<'a> {
    One(&'a Partition),
    /// Several have a file system.
    Any(Vec<&'a Partition>),
}

impl DiskArgs {
    /// Opens the disk and reads its partition table.
    pub(crate) async fn open(&self) -> anyhow::Result<Opened> {
        let (device, remote): (Device, _) = match &self.disk {
            Disk::Remote(url) => {
                let volume = self.remote.open(url).await?;
                (volume.device(), Some(volume))
            }
            Disk::Path(path) => (image::open(path)?, None),
        };
        let table = Table::read(device).await?;
        for warning in table.warnings() {
            complain(&format!("warning: {warning}"));
        }
        Ok(Opened { table, remote })
    }

    /// The partition that is meant.
    pub(crate) fn choose<'a>(&self, table: &'a Table) -> anyhow::Result<Chosen<'a>> {
        let all = table.partitions();
        if let Some(number) = self.partition {
            let found = all.iter().find(|partition| partition.number == number);
            let there = || match table.kind() {
                TableKind::Whole => "the disk has no partitions".to_owned(),
                _ => format!("there are {}", told(all)),
            };
            let none = || Usage::error(format!("no partition {number}; {}", there()));
            return found.map(Chosen::One).ok_or_else(none);
        }
        let readable: Vec<&Partition> = table.readable().collect();
        match readable[..] {
            [one] => Ok(Chosen::One(one)),
            // Its error says what is there instead.
            [] if all.len() == 1 => Ok(Chosen::One(&all[0])),
            [] => Err(Usage::error(format!(
                "no partition has a file system that can be read: {}",
                told(all)
            ))),
            _ => Ok(Chosen::Any(readable)),
        }
    }

    /// The file system that is meant, for a command that needs one.
    pub(crate) async fn file_system<'a>(
        &self,
        table: &'a Table,
    ) -> anyhow::Result<(&'a Partition, FileSystem)> {
        match self.choose(table)? {
            Chosen::One(partition) => Ok((partition, open(table, partition).await?)),
            Chosen::Any(several) => {
                let several = several.into_iter().cloned().collect::<Vec<_>>();
                Err(Usage::error(format!("which --partition? There are {}", told(&several))))
            }
        }
    }
}

/// Opens the file system of a partition, and says what is not in order.
async fn open(table: &Table, partition: &Partition) -> anyhow::Result<FileSystem> {
    let volume = table.open(partition).await?;
    let kind = volume.identity().kind;
    for warning in volume.warnings() {
        complain(&format!("warning: {kind}: {warning}"));
    }
    Ok(volume)
}

/// Partitions in words.
fn told(partitions: &[Partition]) -> String {
    const MAX: usize = 8;
    let one = |partition: &Partition| {
        let name = partition.name.as_ref().map_or(String::new(), |name| format!(" \"{name}\""));
        let found = match partition.found {
            Found::Unknown | Found::Blank => "nothing known".to_owned(),
            found => found.to_string(),
        };
        format!("{} ({found}{name})", partition.number)
    };
    let mut told: Vec<String> = partitions.iter().take(MAX).map(one).collect();
    if partitions.len() > MAX {
        told.push(format!("{} more", partitions.len() - MAX));
    }
    told.join(", ")
}

impl Opened {
    /// Logs out.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        drop(self.table);
        match self.remote {
            Some(remote) => remote.close_unwritten().await,
            None => Ok(()),
        }
    }
}
