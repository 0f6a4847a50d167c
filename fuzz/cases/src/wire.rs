//! Bytes to PDUs, and text to keys.

use bytes::Bytes;
use iscsi_proto::frame::{FrameError, Framer, Framing, Limits};
use iscsi_proto::keys::text::{TextReader, TextWriter, parse};
use iscsi_proto::keys::{DigestPreference, Negotiation, Offer, Role, send_targets};
use iscsi_proto::pdu::{Header, Pdu, Stage};

use crate::reader::Reader;

/// A stream cut at arbitrary places: the same PDUs come out as from the stream in one piece, none
/// longer than allowed, and with digests they survive the way through the wire format.
pub fn framer(data: &[u8]) {
    let mut input = Reader(data);
    let (flags, cut) = (input.u8(), input.u8());
    let framing = Framing { header_digest: flags & 1 != 0, data_digest: flags & 2 != 0 };
    let limits = if flags & 4 != 0 { Limits::LOGIN } else { Limits::full_feature(4096) };
    let whole = pdus(framing, limits, std::iter::once(input.0));
    let pieces = input.0.chunks(usize::from(cut % 61) + 1);
    assert_eq!(whole, pdus(framing, limits, pieces));
    for (header, data) in whole.0 {
        assert!(data.len() <= limits.data_segment_length_max as usize);
        assert!(header.ahs.len() <= usize::from(limits.ahs_length_max));
        through_the_wire(&header, &data);
    }
}

fn pdus<'a>(
    framing: Framing,
    limits: Limits,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (Vec<(Header, Bytes)>, Option<FrameError>) {
    let mut framer = Framer::new(framing, limits);
    let mut pdus = Vec::new();
    for piece in pieces {
        framer.push(piece);
        loop {
            match framer.next_pdu() {
                Ok(Some(pdu)) => pdus.push(pdu),
                Ok(None) => break,
                Err(FrameError::DataDigest { .. }) => {}
                Err(error) => return (pdus, Some(error)),
            }
        }
    }
    (pdus, None)
}

fn through_the_wire(header: &Header, data: &Bytes) {
    let digests = Framing { header_digest: true, data_digest: true };
    let bytes = digests.pdu_bytes(header, data);
    let (again, error) = pdus(digests, Limits::full_feature(8192), std::iter::once(&bytes[..]));
    assert_eq!((again, error), (vec![(header.clone(), data.clone())], None));
    if let Ok(pdu) = Pdu::parse(header) {
        let encoded = pdu.encode(header.data_segment_length());
        assert_eq!(Pdu::parse(&encoded), Ok(pdu), "{header:?}");
    }
}

/// Text through the reader, the parser and a negotiation: answers are text again and no longer
/// than a small multiple of what was asked; what is agreed keeps the limits of §13.
pub fn text_keys(data: &[u8]) {
    let mut input = Reader(data);
    let (flags, cut) = (input.u8(), input.u8());
    let role = if flags & 1 == 0 { Role::Target } else { Role::Initiator };
    let mut offer = Offer::default();
    if flags & 2 != 0 {
        offer.header_digest = DigestPreference::Require;
    }
    let mut negotiation = Negotiation::new(role, offer, None);
    if flags & 4 != 0 {
        negotiation.set_later();
    }
    if flags & 8 != 0 {
        negotiation.set_discovery();
    }
    if role == Role::Initiator {
        negotiation.write_offers(&mut TextWriter::default());
    }
    let stage = Stage(flags >> 4 & 3);
    let _ = send_targets::decode(input.0);
    let mut reader = TextReader::new(4096);
    for piece in input.0.chunks(usize::from(cut) + 16) {
        let continues = piece.last().is_some_and(|last| *last != 0);
        match reader.push(piece, continues) {
            Ok(Some(text)) if !negotiate(&mut negotiation, stage, &text) => return,
            Ok(_) => {}
            Err(_) => return,
        }
    }
    if let Ok((session, connection)) = negotiation.finish() {
        assert!(session.first_burst_length <= session.max_burst_length);
        assert!((512..1 << 24).contains(&session.max_burst_length));
        assert!(session.max_connections >= 1 && session.max_outstanding_r2t >= 1);
        assert!(session.error_recovery_level <= 2);
        assert!((512..1 << 24).contains(&connection.max_send_data_segment_length));
        assert!((512..=8192).contains(&negotiation.login_segment_max()));
    }
}

/// False if the login would fail here.
fn negotiate(negotiation: &mut Negotiation, stage: Stage, text: &[u8]) -> bool {
    let Ok(pairs) = parse(text) else { return false };
    let mut out = TextWriter::default();
    if negotiation.handle(&pairs, stage, &mut out).is_err() {
        return false;
    }
    let answer = out.finish();
    assert!(parse(&answer).is_ok(), "{answer:?}");
    assert!(answer.len() <= 16 * text.len() + 64, "{} bytes for {}", answer.len(), text.len());
    true
}
