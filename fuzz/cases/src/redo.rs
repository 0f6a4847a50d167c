//! The redo log of a mirror's leg: a batch of two records, damaged as the input says. Whatever is
//! there is what was committed, or is refused, and nothing lies outside of the image.

use block::Bytes;
use block::mirror::epoch::{Content, Piece};
use block::mirror::generation::WallMs;
use block::mirror::redo::{Reader as Log, Writer};
use block::mirror::superblock::{BYTES, Committed, MirrorId};

use crate::kept::{damage, put_crc};
use crate::reader::Reader;

/// Bytes of the image.
const SIZE: u64 = 1 << 20;
/// Bytes of the log that are read at once: no multiple of anything.
const READ_BYTES: usize = 1000;

fn pieces() -> [Vec<Piece>; 2] {
    let data = |offset, len: usize, byte| Piece {
        offset,
        content: Content::Data(Bytes::from(vec![byte; len])),
    };
    let zero = Piece { offset: 8192, content: Content::Zero(65_536) };
    [vec![data(0, 5000, 1), zero, data(SIZE - 512, 512, 2)], vec![data(100, 8192, 3)]]
}

fn good() -> (Vec<u8>, Committed) {
    let mut writer = Writer::new(MirrorId(1), 77, 1 << 20);
    let records = pieces().map(|pieces| writer.record(&pieces));
    let log = records.iter().flatten().flat_map(|(_, bytes)| bytes.to_vec()).collect();
    (log, writer.committed(5, WallMs(6)))
}

/// A batch.
pub fn mirror_redo(data: &[u8]) {
    let mut input = Reader(data);
    let (mut log, committed) = good();
    if damage(&mut input, &mut log) {
        let headers = log.chunks_exact_mut(BYTES).filter(|block| block.starts_with(b"EnkakuMi"));
        headers.for_each(|block| put_crc(block, 16));
    }
    let mut reader = Log::new(MirrorId(1), committed, SIZE);
    let mut found = Vec::new();
    for bytes in log.chunks(READ_BYTES) {
        let Ok(more) = reader.feed(bytes) else { return };
        assert!(more.iter().all(|piece| piece.range().end <= SIZE), "{more:?}");
        found.extend(more);
    }
    if reader.finish().is_ok() {
        assert_eq!(found, pieces().concat());
    }
}
