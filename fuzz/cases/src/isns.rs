//! iSNS: bytes as a server and as a client get them.

use std::time::Duration;

use discovery::isns::message::scn;
use discovery::isns::pdu::Sender;
use discovery::isns::registration::{
    Callback, Entity, Node, Portal, found_targets, node_type, targets_query,
};
use discovery::isns::server::{DomainsFile, Now, Settings};
use discovery::isns::{
    Assembler, Attr, Directory, Function, Message, Notice, PortalKey, Request, Response, Status,
    Tag,
};

use crate::reader::Reader;

const DISK: &str = "iqn.2026-11.org.example:disk";
const HOST: &str = "iqn.2026-11.org.example:host";

/// A stream in pieces, to a directory that has a client already: every request is answered with
/// what can be read, time passes, and what is stored afterwards is the same when it is read again.
/// The same bytes are what a server answers and tells a client.
pub fn isns(data: &[u8]) {
    let mut input = Reader(data);
    let (cut, step_s) = (usize::from(input.u8()) + 1, u64::from(input.u8()));
    let settings = Settings { control: [HOST.to_owned()].into(), ..Settings::default() };
    let mut directory = Directory::new(settings.clone(), &DomainsFile::default());
    let mut now = Now { since_start: Duration::ZERO, unix_s: 1 };
    for request in [entity().registration(None, None), watch()] {
        let (response, _) = directory.handle(&request.encode(0), now);
        assert_eq!(response.status, Status::SUCCESS);
    }
    let mut assembler = Assembler::default();
    for piece in input.0.chunks(cut) {
        assembler.buffer().extend_from_slice(piece);
        loop {
            let message = match assembler.poll_message() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(_) => return same_when_stored(&directory, &settings, now),
            };
            again(&message);
            as_client(&message);
            let (response, _) = directory.handle(&message, now);
            let answer = response.encode(message.xid);
            again(&answer);
            assert_eq!(Response::decode(&answer), Ok(response.clone()), "{message:?}");
            for told in directory.take_notifications() {
                assert_eq!(Notice::decode(&told.notice.encode(0)), Ok(Some(told.notice)));
            }
        }
        now.since_start += Duration::from_secs(step_s);
        directory.tick(now);
    }
    same_when_stored(&directory, &settings, now);
}

/// What is read from a message makes the same message again.
fn again(message: &Message) {
    let mut assembler = Assembler::default();
    assembler.buffer().extend_from_slice(&message.encode(Sender::Server));
    assert_eq!(assembler.poll_message(), Ok(Some(message.clone())));
}

fn as_client(message: &Message) {
    if let Ok(response) = Response::decode(message) {
        let _ = (found_targets(&response), entity().is_in(&response), format!("{response:?}"));
    }
    if let Ok(Some(notice)) = Notice::decode(message) {
        let answer = notice.answer(message.xid);
        assert_eq!(answer.is_some(), !matches!(notice, Notice::Heartbeat(_)));
    }
}

fn same_when_stored(directory: &Directory, settings: &Settings, now: Now) {
    let stored = directory.store();
    let mut other = Directory::new(settings.clone(), &DomainsFile::default());
    assert_eq!(other.restore(&stored, now), Ok(Vec::new()));
    assert_eq!(other.counts(), directory.counts());
    assert_eq!(other.store(), stored);
}

fn entity() -> Entity {
    let node = |name: &str, kind| Node { name: name.into(), kind, alias: None, portals: None };
    let key = PortalKey { address: [192, 0, 2, 1].into(), port: 3260 };
    Entity {
        id: "home.example".into(),
        period_s: 120,
        portals: vec![Portal { key, name: Some("lan".into()) }],
        nodes: vec![node(HOST, node_type::INITIATOR), node(DISK, node_type::TARGET)],
    }
}

fn watch() -> Request {
    let mut request = Request::new(Function::SCN_REG, HOST);
    request.key.push(Attr::new_text(Tag::ISCSI_NAME, HOST));
    request.operating.push(Attr::new_number(Tag::SCN_BITMAP, scn::EVENTS));
    request
}

/// What a client sends, for the server's side of the case.
fn stream(requests: &[Request]) -> Vec<u8> {
    let mut bytes = vec![99, 1];
    for (xid, request) in (1..).zip(requests) {
        bytes.extend_from_slice(&request.encode(xid).encode(Sender::Client));
    }
    bytes
}

fn ask(function: Function, key: Vec<Attr>, operating: Vec<Attr>) -> Request {
    let mut request = Request::new(function, HOST);
    (request.key, request.operating) = (key, operating);
    request
}

fn name(name: &str) -> Attr {
    Attr::new_text(Tag::ISCSI_NAME, name)
}

pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let callback = Some(Callback { port: 40_000, esi_interval_s: Some(20) });
    let mut ours = entity();
    ours.nodes[1].portals = Some(std::iter::empty().collect());
    let portal = Attr::portal(ours.portals[0].key);
    let event = vec![Attr::new_number(Tag::SCN_BITMAP, 4)];
    vec![
        ("register", stream(&[ours.registration(callback, None), ours.renewal(), watch()])),
        ("deregister", stream(&[ours.deregistration(), ours.registration(None, None)])),
        ("query", stream(&[targets_query(DISK), targets_query(HOST)])),
        ("everything", stream(&queries(&portal))),
        ("domains", stream(&domains())),
        (
            "event",
            stream(&[
                ask(Function::SCN_EVENT, vec![name(DISK)], event),
                ask(Function::SCN_DEREG, vec![name(HOST)], Vec::new()),
            ]),
        ),
        ("inquiry", inquiry(&portal)),
    ]
}

fn queries(portal: &[Attr]) -> Vec<Request> {
    let all = |tags: &[Tag]| tags.iter().map(|tag| Attr::empty(*tag)).collect::<Vec<_>>();
    vec![
        ask(Function::DEV_ATTR_QRY, vec![name(DISK)], Vec::new()),
        ask(Function::DEV_ATTR_QRY, Vec::new(), all(&[Tag::PORTAL_PORT, Tag::ISCSI_NAME])),
        ask(Function::DEV_ATTR_QRY, portal.to_vec(), all(&[Tag::PG_TAG, Tag::ENTITY_ID])),
        ask(Function::DEV_GET_NEXT, all(&[Tag::ISCSI_NAME]), all(&[Tag::NODE_TYPE])),
        ask(Function::DEV_GET_NEXT, vec![name(DISK)], Vec::new()),
    ]
}

fn domains() -> Vec<Request> {
    let (domain, set) = (Attr::new_number(Tag::DD_ID, 1), Attr::new_number(Tag::DDS_ID, 1));
    let member = Attr::new_text(Tag::DD_MEMBER_NAME, DISK);
    let enabled = Attr::new_number(Tag::DDS_STATUS, 1);
    vec![
        ask(Function::DD_REG, Vec::new(), vec![domain.clone(), member.clone()]),
        ask(Function::DDS_REG, Vec::new(), vec![set.clone(), domain.clone()]),
        ask(Function::DDS_REG, vec![set.clone()], vec![enabled]),
        targets_query(DISK),
        ask(Function::DD_DEREG, vec![domain.clone()], vec![member]),
        ask(Function::DDS_DEREG, vec![set.clone()], vec![domain.clone()]),
        ask(Function::DD_DEREG, vec![domain], Vec::new()),
        ask(Function::DDS_DEREG, vec![set], Vec::new()),
    ]
}

/// What a server sends to ask whether somebody is there.
fn inquiry(portal: &[Attr]) -> Vec<u8> {
    let time = Attr::new_long(Tag::TIMESTAMP, 1);
    let attrs = [&[time, Attr::new_text(Tag::ENTITY_ID, "home.example")], portal].concat();
    [&[7, 0][..], &Notice::Esi { attrs }.encode(1).encode(Sender::Server)].concat()
}
