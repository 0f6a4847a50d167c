//! NBD: bytes as a client gets them.

use export::nbd::handshake::{Handshake as ServerHandshake, Offer, Outcome};
use nbd::client::handshake::{Agreed, Handshake, PAYLOAD_LEN_MAX, Progress};
use nbd::client::reply::{Answer, Asked, Place, Whole};
use nbd::wire::{
    ChunkHeader, ChunkType, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply,
    TransmissionFlags, chunk_header, simple_reply,
};

use crate::reader::Reader;

const OFFSET: u64 = 4096;
const LEN: u32 = 8192;

/// A server's handshake in pieces, and then its replies to one request: whatever it says, no more
/// is kept than it has sent, data go where they were asked for, each byte once, and a read that
/// counts as done is whole.
pub fn nbd_client(data: &[u8]) {
    let mut input = Reader(data);
    let cut = usize::from(input.u8()) + 1;
    let asked = match input.u8() % 3 {
        0 => Asked::Read { offset: OFFSET, len: LEN },
        1 => Asked::Status { len: LEN, context: 1 },
        _ => Asked::Other,
    };
    let Some((agreed, used)) = handshake(input.0, cut) else { return };
    input.take(used);
    assert!(agreed.block_size_minimum.is_power_of_two());
    assert!(agreed.block_size_preferred >= agreed.block_size_minimum);
    assert!((1..=PAYLOAD_LEN_MAX).contains(&agreed.payload_len_max));
    assert_eq!(agreed.payload_len_max % agreed.block_size_minimum, 0);
    let _ = replies(&mut input, asked, agreed.structured_replies);
}

/// What was agreed, and how many bytes that took.
fn handshake(data: &[u8], cut: usize) -> Option<(Agreed, usize)> {
    let mut handshake = Handshake::new("disk");
    let (mut received, mut used) = (Vec::new(), 0);
    for piece in data.chunks(cut) {
        received.extend_from_slice(piece);
        loop {
            let mut output = Vec::new();
            let (len, progress) = handshake.handle(&received[used..], &mut output).ok()?;
            assert!(len <= received.len() - used);
            assert!(output.len() <= 256, "{} bytes for {len}", output.len());
            used += len;
            match progress {
                Progress::Incomplete => {
                    assert_eq!((len, output.len()), (0, 0));
                    break;
                }
                Progress::Continue => assert!(len > 0, "no progress"),
                Progress::Ready(agreed) => return Some((agreed, used)),
            }
        }
    }
    None
}

/// `None` when the stream ends or breaks the protocol.
fn replies(input: &mut Reader<'_>, asked: Asked, structured: bool) -> Option<()> {
    let mut answer = Answer::new(asked);
    let mut filled = vec![false; LEN as usize];
    while !input.is_empty() {
        let (done, place) = match u32::from_be_bytes(input.array()) {
            SIMPLE_REPLY_MAGIC => {
                let reply = SimpleReply::parse(&input.array());
                (true, answer.simple(reply.error, structured).ok()?)
            }
            STRUCTURED_REPLY_MAGIC if structured => {
                let header = ChunkHeader::parse(&input.array());
                let head_len = answer.head_len(&header).ok()?;
                assert!(head_len <= header.length as usize);
                if head_len > input.0.len() {
                    return None; // a shell would wait for the rest, with a buffer of that size
                }
                (header.done, answer.chunk(&header, input.take(head_len)).ok()?)
            }
            _ => return None,
        };
        if let Place::Data(range) | Place::Zeroes(range) = &place {
            for at in range.clone() {
                assert!(!std::mem::replace(&mut filled[at], true), "byte {at} twice");
            }
        }
        if let Place::Data(range) = place {
            input.take(range.len());
        }
        if done {
            let result = answer.finish().ok()?;
            match (result, asked) {
                (Ok(Whole::Done), Asked::Read { .. }) => assert!(filled.iter().all(|byte| *byte)),
                (Ok(Whole::Extents(extents)), _) => {
                    assert!(matches!(asked, Asked::Status { .. }));
                    assert!(!extents.is_empty() && extents.iter().all(|extent| extent.len > 0));
                }
                (Err(error), _) => assert!(!error.to_string().contains(char::is_control)),
                _ => {}
            }
            answer = Answer::new(asked);
            filled.fill(false);
        }
    }
    Some(())
}

/// What our server says in a handshake with our client.
fn said() -> Vec<u8> {
    let mut server = ServerHandshake::new(Offer {
        name: "disk".to_owned(),
        size: 1 << 20,
        flags: TransmissionFlags(1),
        block_size_minimum: 512,
        block_size_preferred: 4096,
        payload_len_max: 32 << 20,
    });
    let mut client = Handshake::new("disk");
    let mut said = server.greeting();
    let (mut heard, mut asked) = (0, Vec::new());
    loop {
        let mut output = Vec::new();
        match client.handle(&said[heard..], &mut output) {
            Ok((used, Progress::Continue)) => heard += used,
            _ => return said,
        }
        asked.extend(output);
        loop {
            match server.handle(&asked, &mut said) {
                Ok((used, Outcome::Continue)) => drop(asked.drain(..used)),
                Ok((used, _)) => {
                    asked.drain(..used);
                    break;
                }
                Err(_) => return said,
            }
        }
    }
}

pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let chunk = |kind, payload: &[u8], done: bool| {
        let mut header = chunk_header(kind, 1, payload.len() as u32);
        header[5] = u8::from(done);
        [&header[..], payload].concat()
    };
    let at = |offset: u64| offset.to_be_bytes();
    let hole = [&at(OFFSET + 4096)[..], &4096u32.to_be_bytes()].concat();
    let data = [&at(OFFSET)[..], &[7; 4096]].concat();
    let read =
        [chunk(ChunkType::OFFSET_HOLE, &hole, false), chunk(ChunkType::OFFSET_DATA, &data, true)];
    let extents = [1u32, 4096, 3, 4096, 0].map(u32::to_be_bytes);
    let error = [&5u32.to_be_bytes()[..], &[0, 4], b"lost"].concat();
    let seed = |kind: u8, replies: &[u8]| [&[200, kind][..], &said(), replies].concat();
    vec![
        ("read", seed(0, &read.concat())),
        ("status", seed(1, &chunk(ChunkType::BLOCK_STATUS, extents.as_flattened(), true))),
        ("error", seed(2, &chunk(ChunkType::ERROR, &error, true))),
        ("done", seed(2, &simple_reply(None, 1))),
    ]
}
