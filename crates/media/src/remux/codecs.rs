//! What is in an MP4, in the words that a browser asks for before it takes any of it: RFC 6381, by
//! the sample entries of its tracks (ISO/IEC 14496-12 §8.5.2). What is read has been written by
//! ffmpeg; what is not as expected is left out.

/// Bytes of a sample entry before the boxes in it: of pictures, of sound.
const PICTURE_BYTES: usize = 78;
const SOUND_BYTES: usize = 28;
/// Bytes of version, flags and count before what a box lists.
const LIST_BYTES: usize = 8;
/// Object type of AAC and its relatives in an elementary stream descriptor (ISO/IEC 14496-1).
const MPEG4_SOUND: u8 = 0x40;

/// `video/mp4; codecs="…"` for what begins so; `None` is that more of it has to be there.
pub(super) fn content_type(begin: &[u8]) -> Option<String> {
    let mut rest = begin;
    let moov = loop {
        let (kind, content, behind) = split(rest)?;
        if kind == b"moov" {
            break content;
        }
        rest = behind;
    };
    let codecs: Vec<String> = boxes(moov)
        .filter(|(kind, _)| *kind == b"trak")
        .filter_map(|(_, track)| codec(track))
        .collect();
    Some(match codecs.is_empty() {
        true => "video/mp4".into(),
        false => format!("video/mp4; codecs=\"{}\"", codecs.join(",")),
    })
}

/// The first box: its kind, what is in it, and what is behind it; if it is whole.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (size, rest) = bytes.split_first_chunk::<4>()?;
    let size = usize::try_from(u32::from_be_bytes(*size)).ok()?;
    let (content, behind) = rest.split_at_checked(size.checked_sub(4)?)?;
    let (kind, content) = content.split_at_checked(4)?;
    Some((kind, content, behind))
}

fn boxes(mut bytes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    std::iter::from_fn(move || {
        let (kind, content, behind) = split(bytes)?;
        bytes = behind;
        Some((kind, content))
    })
}

fn find<'a>(bytes: &'a [u8], kind: &[u8; 4]) -> Option<&'a [u8]> {
    boxes(bytes).find(|(one, _)| **one == *kind).map(|(_, content)| content)
}

fn codec(track: &[u8]) -> Option<String> {
    let table = find(find(find(track, b"mdia")?, b"minf")?, b"stbl")?;
    let (kind, entry) = boxes(find(table, b"stsd")?.get(LIST_BYTES..)?).next()?;
    match kind {
        b"avc1" => {
            let [_, profile, compatible, level] = *entry_box(entry, PICTURE_BYTES, b"avcC")?;
            Some(format!("avc1.{profile:02x}{compatible:02x}{level:02x}"))
        }
        b"vp09" => {
            let [_, _, _, _, profile, level, depth] = *entry_box(entry, PICTURE_BYTES, b"vpcC")?;
            Some(format!("vp09.{profile:02}.{level:02}.{:02}", depth >> 4))
        }
        b"av01" => {
            let [_, profile, flags] = *entry_box(entry, PICTURE_BYTES, b"av1C")?;
            let tier = if flags & 0x80 == 0 { 'M' } else { 'H' };
            let depth = match flags & 0x60 {
                0 => 8,
                0x60 => 12,
                _ => 10,
            };
            Some(format!("av01.{}.{:02}{tier}.{depth:02}", profile >> 5, profile & 0x1f))
        }
        b"mp4a" => sound(find(entry.get(SOUND_BYTES..)?, b"esds")?),
        b"Opus" => Some("opus".into()),
        b"fLaC" => Some("flac".into()),
        _ => None,
    }
}

/// The first bytes of a box in a sample entry.
fn entry_box<'a, const N: usize>(
    entry: &'a [u8],
    before: usize,
    kind: &[u8; 4],
) -> Option<&'a [u8; N]> {
    find(entry.get(before..)?, kind)?.first_chunk()
}

/// Which sound, by its elementary stream descriptor.
fn sound(esds: &[u8]) -> Option<String> {
    let stream = descriptor(esds.get(4..)?, 3)?;
    let decoder = descriptor(stream.get(3..)?, 4)?;
    match *decoder.first()? {
        MPEG4_SOUND => {
            let own = decoder.get(13..).and_then(|rest| descriptor(rest, 5));
            // Five bits; 2 is AAC-LC, which nearly all of it is.
            let kind = own.and_then(<[u8]>::first).map_or(2, |byte| byte >> 3);
            Some(format!("mp4a.40.{kind}"))
        }
        other => Some(format!("mp4a.{other:02X}")),
    }
}

/// What is in a descriptor with this tag; its length is in groups of seven bits.
fn descriptor(bytes: &[u8], tag: u8) -> Option<&[u8]> {
    let (first, mut rest) = bytes.split_first()?;
    let mut len = 0;
    for _ in 0..4 {
        let (byte, behind) = rest.split_first()?;
        rest = behind;
        len = len << 7 | usize::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            break;
        }
    }
    rest.get(..len).filter(|_| *first == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxed(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
        let size = u32::try_from(8 + content.len()).unwrap();
        [&size.to_be_bytes()[..], kind, content].concat()
    }

    fn track(entry: Vec<u8>) -> Vec<u8> {
        let list = boxed(b"stsd", &[&[0, 0, 0, 0, 0, 0, 0, 1][..], &entry].concat());
        let table = boxed(b"minf", &boxed(b"stbl", &list));
        boxed(b"trak", &[boxed(b"tkhd", &[0; 84]), boxed(b"mdia", &table)].concat())
    }

    fn picture(kind: &[u8; 4], inner: &[u8; 4], bytes: &[u8]) -> Vec<u8> {
        track(boxed(kind, &[&[0; PICTURE_BYTES][..], &boxed(inner, bytes)].concat()))
    }

    fn sound(esds: &[u8]) -> Vec<u8> {
        track(boxed(b"mp4a", &[&[0; SOUND_BYTES][..], &boxed(b"esds", esds)].concat()))
    }

    fn film(tracks: &[Vec<u8>]) -> Vec<u8> {
        let moov = [boxed(b"mvhd", &[0; 100]), tracks.concat()].concat();
        [boxed(b"ftyp", b"iso5"), boxed(b"moov", &moov), boxed(b"moof", b"")].concat()
    }

    /// As ffmpeg writes them: lengths of four bytes.
    fn esds(object: u8, own: &[u8]) -> Vec<u8> {
        let long = |tag: u8, content: Vec<u8>| {
            let len = u8::try_from(content.len()).unwrap();
            [&[tag, 0x80, 0x80, 0x80, len][..], &content].concat()
        };
        let own = if own.is_empty() { Vec::new() } else { long(5, own.to_vec()) };
        let decoder = long(4, [&[object][..], &[0; 12], &own].concat());
        [&[0; 4][..], &long(3, [&[0, 1, 0][..], &decoder].concat())].concat()
    }

    #[test]
    fn codecs_are_told_as_browsers_ask_for_them() {
        let h264 = picture(b"avc1", b"avcC", &[1, 0x64, 0, 0x1f, 0xff]);
        for (tracks, codecs) in [
            (vec![h264.clone(), sound(&esds(0x40, &[0x12, 0x10]))], "avc1.64001f,mp4a.40.2"),
            (vec![h264.clone(), sound(&esds(0x6b, &[]))], "avc1.64001f,mp4a.6B"),
            (vec![h264.clone(), sound(&esds(0x40, &[0x2b, 0x92]))], "avc1.64001f,mp4a.40.5"),
            (vec![picture(b"vp09", b"vpcC", &[1, 0, 0, 0, 0, 31, 0x82])], "vp09.00.31.08"),
            (vec![picture(b"av01", b"av1C", &[0x81, 0x05, 0x4c, 0])], "av01.0.05M.10"),
            (vec![track(boxed(b"Opus", &[0; 40])), track(boxed(b"fLaC", &[]))], "opus,flac"),
            (vec![track(boxed(b"hvc1", &[0; 99])), h264], "avc1.64001f"),
        ] {
            let told = content_type(&film(&tracks)).unwrap();
            assert_eq!(told, format!("video/mp4; codecs=\"{codecs}\""));
        }
    }

    #[test]
    fn what_is_cut_or_damaged_is_waited_for_or_left_out() {
        let whole = film(&[sound(&esds(0x40, &[0x12])), picture(b"avc1", b"avcC", &[1, 2])]);
        let end = whole.len() - 8;
        assert!((0..end).all(|len| content_type(&whole[..len]).is_none()));
        assert_eq!(content_type(&whole[..end]).unwrap(), "video/mp4; codecs=\"mp4a.40.2\"");
        assert_eq!(content_type(&film(&[])).unwrap(), "video/mp4");
        assert_eq!(content_type(&[0, 0, 0, 1, b'm', b'o', b'o', b'v']), None);
        let mut state = 1_u32;
        for _ in 0..20_000 {
            let mut damaged = whole.clone();
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = state as usize % damaged.len();
            damaged[at] ^= (state >> 24) as u8;
            content_type(&damaged);
        }
    }
}
