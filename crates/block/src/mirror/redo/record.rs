//! Records of the redo log as bytes.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use zerocopy::byteorder::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::epoch::{Content, Piece};
use super::super::superblock::{BYTES, Block, BlockFault, Committed, Kind, MirrorId, open, seal};

/// Bytes of a record's header.
pub(super) const HEADER_BYTES: usize = BYTES;

/// Pieces of a record at most: what a header block has room for.
pub const PIECES_MAX: usize = 167;

/// Bytes of data of a record at most, but for one piece that has more: a record is one write.
pub const RECORD_DATA_BYTES_MAX: u64 = 1 << 20;

/// Bytes of a record whose header claims more are not waited for.
const RECORD_BYTES_MAX: u64 = 64 << 20;

const DATA: u32 = 1;
const ZERO: u32 = 2;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPiece {
    offset: U64,
    len: U64,
    /// CRC32C of the data; 0 without.
    checksum: U32,
    /// 1 data, 2 zeroes, which take no room.
    kind: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    uuid: U128,
    batch: U64,
    sequence: U32,
    len: U32,
    pieces: [RawPiece; PIECES_MAX],
}

/// Why the log does not hold what the superblock says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedoFault {
    /// A block that is no header of a record.
    #[error("record {record} of the redo log: {fault}")]
    Block {
        /// Which record.
        record: u32,
        /// What is there.
        fault: BlockFault,
    },
    /// A record with a field that cannot be.
    #[error("record {record} of the redo log has a wrong {field}")]
    Field {
        /// Which record.
        record: u32,
        /// Which field.
        field: &'static str,
    },
    /// Data that is not what was written.
    #[error("record {record} of the redo log: the data for byte {offset} of the image are damaged")]
    Data {
        /// Which record.
        record: u32,
        /// Where the data belong.
        offset: u64,
    },
    /// All records are good, and they are not those of the batch.
    #[error("the records of the redo log are not those of the batch that was committed")]
    Batch,
}

/// Bytes that pieces take in the log at most: each record begins and ends with a whole block.
pub(super) fn bytes_at_most(pieces: u64, data_bytes: u64) -> u64 {
    let records = pieces.div_ceil(PIECES_MAX as u64) + data_bytes / (RECORD_DATA_BYTES_MAX / 2);
    (records + 1) * 2 * HEADER_BYTES as u64 + data_bytes
}

/// A record: its header, and its data up to a whole block.
pub(super) fn encode(mirror: MirrorId, batch: u64, sequence: u32, pieces: &[Piece]) -> Bytes {
    let mut raw = RawHeader::new_zeroed();
    raw.uuid = mirror.0.into();
    raw.batch = batch.into();
    raw.sequence = sequence.into();
    raw.len = (pieces.len() as u32).into();
    let data_bytes: u64 = pieces.iter().map(|piece| piece.content.data_bytes()).sum();
    let mut record = BytesMut::with_capacity(HEADER_BYTES + data_bytes as usize + BYTES);
    record.resize(HEADER_BYTES, 0);
    for (raw, piece) in raw.pieces.iter_mut().zip(pieces) {
        raw.offset = piece.offset.into();
        raw.len = piece.content.len().into();
        match &piece.content {
            Content::Data(data) => {
                raw.kind = DATA.into();
                raw.checksum = crc32c::crc32c(data).into();
                record.extend_from_slice(data);
            }
            Content::Zero(_) => raw.kind = ZERO.into(),
        }
    }
    record[..HEADER_BYTES].copy_from_slice(&seal(Kind::Redo, &raw)[..]);
    record.resize(record.len().next_multiple_of(BYTES), 0);
    record.freeze()
}

/// Where the data of each of these pieces are in a record of them; `None` for zeroes.
pub(super) fn places_of(pieces: &[Piece]) -> impl Iterator<Item = Option<u64>> {
    let mut at = HEADER_BYTES as u64;
    pieces.iter().map(move |piece| {
        let bytes = piece.content.data_bytes();
        let place = matches!(piece.content, Content::Data(_)).then_some(at);
        at += bytes;
        place
    })
}

/// Reads a batch from the bytes of the log, given in their order.
#[derive(Debug)]
pub struct Reader {
    mirror: MirrorId,
    committed: Committed,
    /// Bytes of the image, in which all pieces lie.
    image_bytes: u64,
    /// What was given and not read.
    rest: BytesMut,
    records: u32,
    checksum: u32,
}

impl Reader {
    /// Of the batch that the superblock of a leg of this mirror names.
    #[must_use]
    pub fn new(mirror: MirrorId, committed: Committed, image_bytes: u64) -> Self {
        let (rest, records, checksum) = Default::default();
        Self { mirror, committed, image_bytes, rest, records, checksum }
    }

    /// The bytes of the log that come next. Returns the pieces of the records that are whole by
    /// now, in their order: a later one counts where two overlap.
    ///
    /// # Errors
    /// It is not what was committed.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Piece>, RedoFault> {
        self.rest.extend_from_slice(bytes);
        let mut pieces = Vec::new();
        while self.records < self.committed.records
            && let Some(block) = self.rest.first_chunk::<BYTES>()
        {
            let header = self.header(block)?;
            let len = self.record_bytes(&header)?;
            if (self.rest.len() as u64) < len {
                break;
            }
            self.checksum = crc32c::crc32c_append(self.checksum, block);
            let record = self.rest.split_to(len as usize).freeze();
            self.take(&header, &record, &mut pieces)?;
            self.records += 1;
        }
        Ok(pieces)
    }

    /// All bytes were given.
    ///
    /// # Errors
    /// It is not what was committed.
    pub fn finish(self) -> Result<(), RedoFault> {
        let Committed { records, checksum, .. } = self.committed;
        if (self.records, self.checksum) == (records, checksum) && self.rest.is_empty() {
            return Ok(());
        }
        Err(RedoFault::Batch)
    }

    fn wrong(&self, field: &'static str) -> RedoFault {
        RedoFault::Field { record: self.records, field }
    }

    fn header(&self, block: &Block) -> Result<Box<RawHeader>, RedoFault> {
        let header: RawHeader = open(Kind::Redo, block)
            .map_err(|fault| RedoFault::Block { record: self.records, fault })?;
        if header.uuid.get() != self.mirror.0 {
            return Err(self.wrong("mirror"));
        }
        if header.batch.get() != self.committed.batch {
            return Err(self.wrong("batch"));
        }
        if header.sequence.get() != self.records {
            return Err(self.wrong("number"));
        }
        if header.len.get() as usize > PIECES_MAX {
            return Err(self.wrong("number of pieces"));
        }
        for raw in &header.pieces[..header.len.get() as usize] {
            let (offset, len) = (raw.offset.get(), raw.len.get());
            if offset.checked_add(len).is_none_or(|end| end > self.image_bytes) {
                return Err(self.wrong("place of a piece"));
            }
            if !matches!(raw.kind.get(), DATA | ZERO) {
                return Err(self.wrong("kind of a piece"));
            }
        }
        Ok(Box::new(header))
    }

    fn record_bytes(&self, header: &RawHeader) -> Result<u64, RedoFault> {
        let data = header.pieces[..header.len.get() as usize].iter();
        let data = data.filter(|raw| raw.kind.get() == DATA);
        let data = data.fold(0u64, |sum, raw| sum.saturating_add(raw.len.get()));
        if data > RECORD_BYTES_MAX {
            return Err(self.wrong("length"));
        }
        Ok(HEADER_BYTES as u64 + data.next_multiple_of(BYTES as u64))
    }

    fn take(
        &self,
        header: &RawHeader,
        record: &Bytes,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), RedoFault> {
        let mut at = HEADER_BYTES;
        for raw in &header.pieces[..header.len.get() as usize] {
            let (offset, len) = (raw.offset.get(), raw.len.get());
            let content = if raw.kind.get() == ZERO {
                Content::Zero(len)
            } else {
                let place: Range<usize> = at..at + len as usize;
                at = place.end;
                let data = record.slice(place);
                if crc32c::crc32c(&data) != raw.checksum.get() {
                    return Err(RedoFault::Data { record: self.records, offset });
                }
                Content::Data(data)
            };
            pieces.push(Piece { offset, content });
        }
        Ok(())
    }
}

/// For the page that describes the format.
#[cfg(test)]
pub(in crate::mirror) fn places() -> Vec<(&'static str, Vec<crate::mirror::format_doc::Place>)> {
    use crate::mirror::format_doc::places;
    vec![
        ("Record of the redo log", places!(RawHeader, 32, uuid, batch, sequence, len, pieces)),
        ("Piece of a record", places!(RawPiece, 0, offset, len, checksum, kind)),
    ]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::super::generation::WallMs;
    use super::super::{Gather, Writer};
    use super::*;

    const MIRROR: MirrorId = MirrorId(7 << 70);

    fn pieces() -> impl Strategy<Value = Vec<Piece>> {
        let piece = (0u64..1 << 20, 0u64..200_000, any::<bool>(), any::<u8>()).prop_map(
            |(offset, len, zero, byte)| {
                let data = || Bytes::from(vec![byte; len as usize]);
                let content = if zero { Content::Zero(len) } else { Content::Data(data()) };
                Piece { offset, content }
            },
        );
        prop::collection::vec(piece, 0..400)
    }

    /// The log, and what the superblock says.
    fn written(pieces: &[Piece]) -> (Vec<u8>, Committed) {
        let (mut gather, mut log) = (Gather::default(), Vec::new());
        let mut writer = Writer::new(MIRROR, 9, 1 << 40);
        let data: u64 = pieces.iter().map(|piece| piece.content.data_bytes()).sum();
        assert!(writer.has_room(pieces.len() as u64, data));
        let mut records: Vec<_> =
            pieces.iter().filter_map(|piece| gather.add(piece.clone())).collect();
        records.push(gather.take());
        for record in records {
            let (at, bytes) = writer.record(&record).unwrap();
            assert_eq!(at, log.len() as u64);
            log.extend_from_slice(&bytes);
        }
        assert!(log.len() as u64 <= bytes_at_most(pieces.len() as u64, data));
        (log, writer.committed(3, WallMs(5)))
    }

    fn read(log: &[u8], committed: Committed, step: usize) -> Result<Vec<Piece>, RedoFault> {
        let mut reader = Reader::new(MIRROR, committed, 1 << 30);
        let mut pieces = Vec::new();
        for chunk in log.chunks(step) {
            pieces.extend(reader.feed(chunk)?);
        }
        reader.finish().map(|()| pieces)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn what_is_written_is_read_however_it_is_cut(pieces in pieces(), step in 1usize..300_000) {
            let (log, committed) = written(&pieces);
            prop_assert_eq!(log.len() as u64, committed.bytes);
            prop_assert_eq!(read(&log, committed, step), Ok(pieces));
        }

        #[test]
        fn one_wrong_bit_is_seen(pieces in pieces(), at in any::<u32>(), bit in 0u32..8) {
            let (mut log, committed) = written(&pieces);
            let at = at as usize % log.len();
            log[at] ^= 1 << bit;
            // What fills a block up is looked at by nobody.
            if let Ok(read) = read(&log, committed, 1 << 20) {
                prop_assert_eq!(read, pieces);
            }
        }
    }

    fn one() -> (Vec<u8>, Committed) {
        let content = Content::Data(Bytes::from_static(&[7; 512]));
        written(&[Piece { offset: 4096, content }])
    }

    #[test]
    fn what_an_earlier_batch_has_left_is_not_taken_for_this_one() {
        let (log, committed) = one();
        let other = Committed { batch: 10, ..committed };
        assert_eq!(read(&log, other, 4096), Err(RedoFault::Field { record: 0, field: "batch" }));
        let other = Committed { checksum: 1, ..committed };
        assert_eq!(read(&log, other, 4096), Err(RedoFault::Batch));
        let longer = Committed { records: 2, ..committed };
        assert_eq!(read(&log, longer, 4096), Err(RedoFault::Batch));
        let mut reader = Reader::new(MirrorId(1), committed, 1 << 30);
        assert_eq!(reader.feed(&log), Err(RedoFault::Field { record: 0, field: "mirror" }));
    }

    #[test]
    fn nothing_is_written_behind_the_image() {
        let (log, committed) = one();
        let mut reader = Reader::new(MIRROR, committed, 4096 + 511);
        assert_eq!(
            reader.feed(&log),
            Err(RedoFault::Field { record: 0, field: "place of a piece" })
        );
    }

    #[test]
    fn damaged_data_are_told_by_their_place() {
        let (mut log, committed) = one();
        log[HEADER_BYTES + 100] ^= 1;
        let fault = read(&log, committed, 4096).unwrap_err();
        assert_eq!(fault, RedoFault::Data { record: 0, offset: 4096 });
        assert!(fault.to_string().contains("byte 4096 of the image"), "{fault}");
    }

    #[test]
    fn a_batch_that_is_larger_than_the_log_has_no_room() {
        let mut writer = Writer::new(MIRROR, 1, 3 * 4096);
        let content = Content::Data(Bytes::from_static(&[7; 4096]));
        let piece = [Piece { offset: 0, content }];
        assert!(writer.record(&piece).is_some());
        assert!(!writer.has_room(1, 4096));
        assert!(writer.record(&piece).is_none());
        assert_eq!(writer.bytes(), 8192);
    }
}
