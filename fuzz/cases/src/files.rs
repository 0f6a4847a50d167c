//! Disks with partition tables and file systems, as anybody may have written them.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use block::backend::MemoryDevice;
use block::{BlockDevice, Device, WriteFlags};
use files::{Entry, EntryKind, Error, Table, Volume};

use crate::reader::Reader;

/// Sectors of an input's records.
const SECTOR: u64 = 512;
/// Largest disk, in bytes: enough for every structure, too little to wait for.
const DISK_BYTES_MAX: u64 = 64 << 20;
/// Entries and levels of folders that are looked at.
const ENTRIES_MAX: usize = 200;
const DEPTH_MAX: usize = 4;
/// Bytes of a file that are read at each of its ends.
const READ_BYTES_MAX: u64 = 64 << 10;

/// A disk of which all that is not zero is told, sector by sector: everything on it is listed and
/// read. Extents cover their file, in order and inside the disk; a second look finds the same.
pub fn files(data: &[u8]) {
    let Some(device) = disk(data) else { return };
    let mut look = pin!(look(device));
    let mut context = Context::from_waker(Waker::noop());
    // A disk in memory answers at once; lists of futures let others go first now and then.
    for _ in 0..1_000_000 {
        if let Poll::Ready(()) = look.as_mut().poll(&mut context) {
            return;
        }
    }
    panic!("waits for something");
}

/// `u32` sectors of the disk, then records: `u24` sector, `u16` bytes, the bytes.
fn disk(data: &[u8]) -> Option<Device> {
    let mut input = Reader(data);
    let bytes = u64::from(u32::from_be_bytes(input.array())) * SECTOR;
    let device = MemoryDevice::new(bytes.clamp(SECTOR, DISK_BYTES_MAX), 512).ok()?;
    let size = device.info().size;
    while !input.is_empty() {
        let [a, b, c] = input.array();
        let offset = u64::from(u32::from_be_bytes([0, a, b, c])) * SECTOR;
        let len = usize::from(input.u16()).min(SECTOR as usize);
        let mut sector = input.take(len).to_vec();
        sector.resize(SECTOR as usize, 0);
        if offset < size {
            let written = device.write(offset, sector.into(), WriteFlags::NONE).try_ready();
            assert!(matches!(written, Ok(Ok(()))));
        }
    }
    Some(Arc::new(device))
}

async fn look(device: Device) {
    let size = device.info().size;
    let table = match Table::read(device).await {
        Ok(table) => table,
        Err(error) => return said(&error),
    };
    for partition in table.partitions() {
        assert!(partition.start.checked_add(partition.len).is_some());
        let _ = (partition.found.to_string(), partition.name.as_ref().map(ToString::to_string));
        match table.open(partition).await {
            Ok(volume) => walk(volume, size).await,
            Err(error) => said(&error),
        }
    }
}

async fn walk(mut volume: Volume, disk: u64) {
    let _ = (format!("{:?}", volume.identity()), volume.warnings());
    let mut folders = match volume.root().await {
        Ok(root) => vec![(root, String::new(), 0)],
        Err(error) => return said(&error),
    };
    let mut seen = 0;
    while let Some((folder, path, depth)) = folders.pop() {
        let entries = match volume.list(&folder).await {
            Ok(entries) => entries,
            Err(error) => {
                said(&error);
                continue;
            }
        };
        for entry in entries {
            seen += 1;
            if seen > ENTRIES_MAX {
                break;
            }
            let path = format!("{path}/{}", entry.name);
            let _ = entry.modified.map(|time| time.to_string());
            match entry.kind {
                EntryKind::Folder if depth < DEPTH_MAX => folders.push((entry, path, depth + 1)),
                EntryKind::File => file(&volume, &entry, disk).await,
                _ => {}
            }
        }
    }
    // Nobody wrote, so nothing has changed.
    if let Ok(same) = volume.refresh().await {
        assert!(same);
    }
}

async fn file(volume: &Volume, entry: &Entry, disk: u64) {
    let extents = match volume.extents(entry).await {
        Ok(extents) => extents,
        Err(error) => return said(&error),
    };
    let mut end = 0;
    for extent in &extents {
        assert!(extent.offset == end && extent.len > 0, "{extents:?}");
        end += extent.len;
        assert!(extent.at.is_none_or(|at| at + extent.len <= disk), "{extents:?}");
    }
    assert_eq!(end, entry.size);
    assert_eq!(volume.extents(entry).await.ok().as_ref(), Some(&extents));
    let reader = match volume.open_file(entry).await {
        Ok(reader) => reader,
        Err(error) => unreachable!("its extents are known: {error}"),
    };
    let len = entry.size.min(READ_BYTES_MAX);
    for offset in [0, entry.size - len] {
        let read = reader.read_at(offset, len as usize).await;
        assert!(read.is_ok_and(|bytes| bytes.len() as u64 == len));
    }
}

/// An error says what and where, on one line, and nothing of ours.
fn said(error: &Error) {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.chars().any(char::is_control), "{text:?}");
}

/// Disks that stock tools have made, in `fuzz/corpus/files` (tests/support/sparse_disk.py makes the
/// inputs): nothing here writes such formats.
pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    macro_rules! seeds {
        ($($name:literal),* $(,)?) => {
            vec![$(($name, include_bytes!(concat!("../../corpus/files/", $name)).to_vec())),*]
        };
    }
    seeds!["ext4", "ext4_no_checksums", "ext2", "fat12", "fat32", "exfat", "gpt", "mbr"]
}
