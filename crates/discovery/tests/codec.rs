//! Properties of the codec: what is written is read again, however it is cut; what is not ours is
//! an error and no panic.

use bytes::{BufMut, Bytes, BytesMut};
use discovery::isns::attr::{self, Kind};
use discovery::isns::message::Event;
use discovery::isns::pdu::{HEADER_LEN, MESSAGE_BYTES_MAX, PDU_PAYLOAD_MAX, Sender};
use discovery::isns::{
    Assembler, Attr, Function, Message, Notice, PortalKey, ProtocolError, Request, Response,
    Status, Tag,
};
use proptest::prelude::*;

fn tags() -> impl Strategy<Value = Tag> {
    prop_oneof![
        prop::sample::select(vec![
            1, 2, 4, 6, 16, 17, 19, 20, 23, 32, 33, 34, 35, 48, 49, 50, 51, 2049, 2051, 2065, 2066,
            2068, 2078, 3000, 641
        ]),
        1_u32..5000
    ]
    .prop_map(Tag)
}

/// Attributes that are what their tags say, and unknown ones of any kind.
fn attrs(max: usize) -> impl Strategy<Value = Vec<Attr>> {
    let attr = (
        tags(),
        any::<u64>(),
        "[a-z0-9:.é-]{0,80}",
        prop::collection::vec(any::<u8>(), 0..90),
        any::<[u8; 16]>(),
    );
    let attr = attr.prop_map(|(tag, number, text, bytes, address)| match tag.kind() {
        Kind::Nothing => Attr::empty(Tag(3001)),
        Kind::Text => Attr::new_text(tag, &text),
        Kind::Number => Attr::new_number(tag, number as u32),
        Kind::Long => Attr::new_long(tag, number),
        Kind::Address => Attr::new_address(tag, std::net::Ipv6Addr::from(address).into()),
        Kind::Opaque => Attr { tag, value: bytes.into() },
    });
    prop::collection::vec(attr, 0..max)
}

/// All messages of a stream that comes in pieces of `cut` bytes.
fn read(bytes: &[u8], cut: usize) -> Result<Vec<Message>, ProtocolError> {
    let mut assembler = Assembler::default();
    let mut messages = Vec::new();
    for piece in bytes.chunks(cut.max(1)) {
        assembler.buffer().extend_from_slice(piece);
        while let Some(message) = assembler.poll_message()? {
            messages.push(message);
        }
    }
    Ok(messages)
}

proptest! {
    #[test]
    fn requests_are_read_as_they_were_written(
        key in attrs(4), operating in attrs(12), replace: bool, xid: u16,
        function in 1_u16..0x0d, cut in 1_usize..200,
    ) {
        let mut request = Request::new(Function(function), "iqn.2026-11.org.example:a");
        (request.replace, request.operating) = (replace, operating);
        if request.function != Function::DEV_DEREG {
            request.key = key;
        }
        if request.function == Function::SCN_DEREG {
            request.operating.clear();
        }
        let bytes = request.encode(xid).encode(Sender::Client);
        let messages = read(&bytes, cut).unwrap();
        prop_assert_eq!(messages.len(), 1);
        prop_assert_eq!(messages[0].xid, xid);
        prop_assert_eq!(Request::decode(&messages[0]).unwrap(), request);
    }

    #[test]
    fn responses_are_read_as_they_were_written(
        key in attrs(4), operating in attrs(12), status: u32, function in 1_u16..0x0d,
    ) {
        let function = Function(function);
        let response = Response { function, status: Status(status), key, operating };
        let bytes = response.encode(9).encode(Sender::Server);
        let messages = read(&bytes, usize::MAX).unwrap();
        prop_assert_eq!(Response::decode(&messages[0]).unwrap(), response);
    }

    #[test]
    fn notices_are_read_as_they_were_written_and_answered_with_what_they_said(
        about in attrs(3), bitmaps in prop::collection::vec(any::<u32>(), 1..4), timestamp: u64,
    ) {
        let about = about.into_iter().filter(|attr| attr.tag != Tag::SCN_BITMAP);
        let about: Vec<Attr> = about.collect();
        let destination = Attr::new_text(Tag::ISCSI_NAME, "iqn.2026-11.org.example:a");
        let events = bitmaps.into_iter().map(|bitmap| Event { bitmap, about: about.clone() });
        let events = events.collect();
        let notice = Notice::Scn { destination: destination.clone(), timestamp, events };
        let message = notice.encode(3);
        prop_assert_eq!(Notice::decode(&message).unwrap(), Some(notice.clone()));
        let answer = Response::decode(&notice.answer(3).unwrap()).unwrap();
        prop_assert_eq!((answer.status, answer.operating), (Status::SUCCESS, vec![destination]));
    }

    #[test]
    fn large_messages_are_cut_between_attributes(
        lens in prop::collection::vec(0_usize..60_000, 1..12),
    ) {
        let attrs: Vec<Attr> =
            lens.iter().map(|len| Attr { tag: Tag(3000), value: vec![7; *len].into() }).collect();
        let mut response = Response::new(Function::DEV_ATTR_QRY, Status::SUCCESS);
        response.operating = attrs;
        let bytes = response.encode(5).encode(Sender::Server);
        // Every PDU alone is whole attributes.
        let (mut rest, mut first) = (bytes.clone(), true);
        while !rest.is_empty() {
            let len = usize::from(u16::from_be_bytes([rest[4], rest[5]]));
            prop_assert!(len <= PDU_PAYLOAD_MAX);
            let pdu = rest.split_to(HEADER_LEN + len).slice(HEADER_LEN..);
            let status = if first { 4 } else { 0 };
            prop_assert!(attr::decode(&pdu.slice(status..)).is_ok());
            first = false;
        }
        let messages = read(&bytes, 1000).unwrap();
        prop_assert_eq!(Response::decode(&messages[0]).unwrap(), response);
    }

    #[test]
    fn nothing_that_comes_makes_us_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400), function in 0_u16..20,
    ) {
        let _ = read(&bytes, 7);
        let payload = Bytes::from(bytes);
        for function in [Function(function), Function(function).response()] {
            let message = Message { function, xid: 0, replace: false, payload: payload.clone() };
            let _ = (Request::decode(&message), Response::decode(&message));
            if let Ok(Some(notice)) = Notice::decode(&message) {
                let _ = notice.answer(0);
            }
        }
    }

    #[test]
    fn text_of_any_length_is_within_its_limit_and_ends_with_a_nul(text in ".{0,300}") {
        let attr = Attr::new_text(Tag::ALIAS, &text);
        prop_assert!(attr.value.len() <= 256 && attr.value.len().is_multiple_of(4));
        prop_assert_eq!(attr.value.last(), Some(&0));
        if let Ok(read) = attr.text() {
            prop_assert!(text.starts_with(read));
        }
    }
}

fn pdu(function: u16, flags: u16, xid: u16, sequence: u16, payload: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    for field in [1, function, payload.len() as u16, flags, xid, sequence] {
        out.put_u16(field);
    }
    out.put_slice(payload);
    out
}

#[test]
fn what_breaks_framing_says_what_is_allowed() {
    let wrong = |bytes: &[u8]| read(bytes, usize::MAX).unwrap_err().to_string();
    assert_eq!(wrong(&[0; 12]), "iSNSP version 0 in the header (1 is allowed)");
    assert!(wrong(&pdu(1, 0x8c00, 0, 0, &[0; 3])).contains("multiple of 4"));
    assert!(wrong(&pdu(1, 0xac00, 0, 0, &[])).contains("authentication block"));
    assert!(wrong(&pdu(1, 0x8800, 0, 0, &[])).contains("0400h"));
    assert!(wrong(&pdu(1, 0x8c00, 0, 1, &[])).contains("sequence 1"));
    let begun = pdu(1, 0x8400, 3, 0, &[0; 8]);
    for (next, what) in [
        (pdu(1, 0x8800, 4, 1, &[]), "transaction 4, sequence 1"),
        (pdu(1, 0x8800, 3, 2, &[]), "sequence 1 of the message"),
        (pdu(1, 0x8c00, 3, 1, &[]), "expected transaction 3"),
    ] {
        let error = wrong(&[&begun[..], &next].concat());
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn a_message_without_end_is_refused_before_it_fills_memory() {
    let mut assembler = Assembler::default();
    let payload = vec![0; PDU_PAYLOAD_MAX];
    let mut sent = 0;
    for sequence in 0.. {
        let flags = if sequence == 0 { 0x8400 } else { 0x8000 };
        assembler.buffer().extend_from_slice(&pdu(1, flags, 0, sequence, &payload));
        match assembler.poll_message() {
            Ok(None) => sent += payload.len(),
            Ok(Some(message)) => panic!("{message:?}"),
            Err(error) => {
                assert_eq!(error, ProtocolError::TooLarge { xid: 0 });
                break;
            }
        }
    }
    assert!(sent <= MESSAGE_BYTES_MAX, "{sent}");
}

#[test]
fn values_that_are_not_what_their_tags_say_are_named() {
    let decode = |attr: Attr| {
        let mut request = Request::new(Function::DEV_ATTR_REG, "iqn.2026-11.org.example:a");
        request.operating.push(attr);
        Request::decode(&request.encode(2)).unwrap_err().to_string()
    };
    let raw = |tag, value: &'static [u8]| Attr { tag, value: value.into() };
    assert_eq!(
        decode(raw(Tag::NODE_TYPE, &[0; 8])),
        "function DevAttrReg, transaction 2: iSCSI node type (tag 33) of 8 bytes (4 are allowed)"
    );
    assert!(decode(raw(Tag::PORTAL_ADDRESS, &[0; 4])).contains("16 are allowed"));
    assert!(decode(raw(Tag::ALIAS, b"\xff\xfe")).contains("not UTF-8"));
    assert!(decode(raw(Tag::ALIAS, b"a\x1b[2J")).contains("control characters"));
    assert!(decode(raw(Tag::ALIAS, &[b'a'; 300])).contains("up to 255"));
}

#[test]
fn portals_are_shown_as_people_write_them() {
    let show =
        |address: &str, port| PortalKey { address: address.parse().unwrap(), port }.to_string();
    assert_eq!(show("192.0.2.1", 3261), "192.0.2.1:3261");
    assert_eq!(show("2001:db8::1", 0), "[2001:db8::1]:3260");
    assert_eq!(show("192.0.2.1", 0x1_0ca0), "192.0.2.1 UDP port 3232");
}
