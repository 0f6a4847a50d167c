//! From a volume to the bytes of a file on it: partition tables, and the file systems ext2, ext3,
//! ext4, FAT12/16/32 and exFAT, over any [`BlockDevice`](block::BlockDevice).
//!
//! A file is looked up once and becomes a list of [extents](FileExtent); after that, all its bytes
//! come as block reads, many at once ([`FileReader`]). Nothing is mounted and nothing is written,
//! and a journal is not replayed: what is newer in it is read there ([`Volume::warnings`] says so).
//!
//! A disk may be anybody's, so what is on it is believed of nothing: whatever contradicts itself is
//! an [`Error`] that names the place, and every allocation has a limit ([`limits`]).

#![forbid(unsafe_code)]

mod entry;
mod error;
mod exfat;
mod ext;
mod extents;
mod fat;
mod field;
pub mod limits;
mod name;
pub mod partition;
mod probe;
mod reader;
mod source;
mod time;
mod volume;

pub use entry::{Entry, EntryKind};
pub use error::{Error, Result};
pub use extents::FileExtent;
pub use name::Name;
pub use partition::{Partition, Table, TableKind};
pub use probe::Found;
pub use reader::{FileReader, ReadConfig, Reading};
pub use time::Timestamp;
pub use volume::{FileSystem, Identity, Mounted, Volume};
