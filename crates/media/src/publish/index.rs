//! Where the index of an MP4 is (`moov`; ISO/IEC 14496-12 §4.2, §8.2.1). A player shows nothing
//! without it, and looks for it wherever it is.

use files::FileReader;

/// Boxes that are looked at: a file that is written to its end has a handful.
const BOXES_MAX: usize = 64;
/// Size, kind, and the size again where it is large.
const HEADER_LEN: u64 = 16;

/// Offset of the index from the beginning of the file, in bytes. None: it is not among the first
/// boxes, or the file is none of boxes.
pub(super) async fn index_at(file: &FileReader) -> Option<u64> {
    let mut at = 0_u64;
    for _ in 0..BOXES_MAX {
        let len = file.size().checked_sub(at)?.min(HEADER_LEN);
        let header = file.read_at(at, usize::try_from(len).ok()?).await.ok()?;
        if header.get(4..8)? == b"moov" {
            return Some(at);
        }
        let size = match u32::from_be_bytes(header.get(..4)?.try_into().ok()?) {
            0 => return None, // it goes on to the end of the file
            1 => u64::from_be_bytes(header.get(8..16)?.try_into().ok()?),
            size => size.into(),
        };
        // A box has its own header at least.
        at = at.checked_add(size).filter(|_| size >= 8)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::backend::MemoryDevice;
    use block::{BlockDevice, Device, WriteFlags};
    use files::FileExtent;

    use super::*;

    async fn of(content: &[u8]) -> Option<u64> {
        let device = MemoryDevice::new(1 << 16, 512).unwrap();
        let mut blocks = content.to_vec();
        blocks.resize(content.len().next_multiple_of(512), 0xee);
        device.write(0, blocks.into(), WriteFlags::NONE).await.unwrap();
        let device: Device = Arc::new(device);
        let extent = FileExtent { offset: 0, len: content.len() as u64, at: Some(0) };
        index_at(&FileReader::new(device, vec![extent])).await
    }

    fn boxed(kind: &[u8; 4], len: usize) -> Vec<u8> {
        let size = u32::try_from(8 + len).unwrap().to_be_bytes();
        [&size[..], kind, &vec![7; len]].concat()
    }

    #[tokio::test]
    async fn it_is_found_before_and_behind_the_pictures() {
        let (first, index) = (boxed(b"ftyp", 24), boxed(b"moov", 100));
        let pictures = boxed(b"mdat", 3000);
        assert_eq!(of(&[&first[..], &index, &pictures].concat()).await, Some(32));
        assert_eq!(of(&[&first[..], &pictures, &index].concat()).await, Some(32 + 3008));
        // Of more than 4 GiB, and of less.
        let large = [&1_u32.to_be_bytes()[..], b"mdat", &1016_u64.to_be_bytes(), &[7; 1000]];
        assert_eq!(of(&[&large.concat()[..], &index].concat()).await, Some(1016));
        assert_eq!(of(&[&first[..], &boxed(b"moov", 0)].concat()).await, Some(32), "at the end");
    }

    #[tokio::test]
    async fn what_is_no_file_of_boxes_has_none() {
        let endless = [&0_u32.to_be_bytes()[..], b"mdat", &[0; 600]].concat();
        let backwards = [&1_u32.to_be_bytes()[..], b"mdat", &u64::MAX.to_be_bytes()].concat();
        let tiny = [&3_u32.to_be_bytes()[..], b"free", &[0; 600]].concat();
        let many = boxed(b"free", 0).repeat(BOXES_MAX + 1);
        let cut = boxed(b"ftyp", 24)[..30].to_vec();
        for content in
            [endless, backwards, tiny, many, cut, vec![1, 2, 3], b"\x1aE\xdf\xa3".to_vec()]
        {
            assert_eq!(of(&content).await, None, "{content:?}");
        }
    }
}
