//! What a disk can make us take, at most. Each number is well above what real disks have.

/// Extents of one file: 24 MB of memory. A file of 1 TB in pieces of 1 MB has as many.
pub const EXTENTS_MAX: usize = 1 << 20;

/// Blocks of one file that hold its map: those of 1 TB in blocks of 4 KiB on ext3.
pub const MAP_BLOCKS_MAX: usize = 1 << 18;

/// Bytes of one folder. The largest of FAT is 2 MiB; on ext4, it holds a million names.
pub const FOLDER_BYTES_MAX: u64 = 64 << 20;

/// Entries of one folder, of some 300 bytes in memory each.
pub const FOLDER_ENTRIES_MAX: usize = 1 << 19;

/// Bytes of a path: Linux' own limit.
pub const PATH_BYTES_MAX: usize = 4096;

/// Bytes of a symbolic link's target: Linux' own limit.
pub const LINK_BYTES_MAX: u64 = 4096;

/// Partitions of one disk. GPT reserves room for 128.
pub const PARTITIONS_MAX: usize = 1024;

/// Logical partitions of an MBR, each of which costs a read of its own.
pub const LOGICAL_PARTITIONS_MAX: usize = 128;

/// Bytes of a GPT's list of partitions.
pub const GPT_ENTRIES_BYTES_MAX: u64 = 1 << 20;

/// Pieces of a file allocation table that are read for one chain of clusters: 4 GiB of them.
pub const CHAIN_READS_MAX: usize = 1 << 18;

/// Bytes of a journal's log that are read at one look: 5 s at 100 Mbit/s.
pub const JOURNAL_BYTES_MAX: u64 = 64 << 20;

/// Blocks that a journal says are not what they were any more.
pub const JOURNAL_REVOKES_MAX: usize = 1 << 20;

/// Bytes of metadata that are kept for the next look.
pub const METADATA_BYTES_MAX: usize = 8 << 20;

/// Reads of metadata under way at once.
pub const METADATA_READS_MAX: usize = 64;
