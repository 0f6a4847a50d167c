//! Input outside iSCSI's own PDUs: CDBs, what a disk says of itself, NBD, names and addresses.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use block::backend::MemoryDevice;
use export::nbd::handshake::{Handshake, Offer, Outcome};
use iscsi::initiator::cdb as replies;
use iscsi::initiator::sense::{Sense, judge};
use iscsi::initiator::{Portal, Url};
use iscsi_proto::keys::send_targets;
use iscsi_proto::names::{TargetAddress, check_name};
use nbd::wire::{REQUEST_HEADER_LEN, RequestHeader, TransmissionFlags};
use scsi::{
    BoxFuture, Cdb, Command, Host, LunOptions, NexusId, Status, Target, TargetConfig,
    TaskAttribute as Attribute,
};

use crate::reader::Reader;

/// Capacity of the disk that commands go to: more than a command's data, less than a CDB can name.
const DISK_LEN: u64 = 1 << 20;

/// Commands to a disk, of every task attribute, some of them aborted: they end, data stays within
/// what the initiator has room for, a failure has a sense.
pub fn cdb(data: &[u8]) {
    let mut input = Reader(data);
    let target = Target::new(TargetConfig::new(crate::login::TARGET));
    let Ok(disk) = MemoryDevice::new(DISK_LEN, 512) else { return };
    let added = target.add_lun(0, Arc::new(disk), LunOptions::default());
    assert!(added.is_ok());
    let background = Arc::new(Background::default());
    target.set_host(background.clone());
    let nexus = target.nexus("fuzz");
    while !input.is_empty() {
        let (lun, kind) = (u64::from(input.u8() & 1) << 48, input.u8());
        let mut command = Command::new(lun, Cdb::new(&input.array::<16>()));
        let len = usize::from(input.u16());
        if kind & 1 == 0 {
            command = command.with_data_in_max(len);
        } else {
            let pattern = input.take(len.min(64));
            let payload = pattern.iter().copied().cycle().take(len.min(len * pattern.len()));
            command = command.with_data_out(payload.collect::<Vec<_>>().into());
        }
        let attribute =
            [Attribute::Simple, Attribute::Ordered, Attribute::HeadOfQueue, Attribute::Aca];
        command = command.with_attribute(attribute[usize::from(kind >> 1 & 3)]).with_tag(1);
        let (room, what) = (command.data_in_max, format!("{:02x?}", command.cdb.bytes()));
        let execution = nexus.execute(command);
        if kind & 8 != 0 {
            nexus.abort(1);
        }
        let response = background.finish(execution, &what);
        assert!(response.data_in.len() <= room, "{what}");
        assert_eq!(response.status == Status::CHECK_CONDITION, response.sense.is_some(), "{what}");
        if let Some(sense) = &response.sense {
            assert!(sense.to_bytes().len() <= 252, "{what}");
        }
    }
}

/// A transport that does background work (SANITIZE) here, while a command waits: on a thread it
/// would take its time, and another time in every run.
#[derive(Default)]
struct Background(Mutex<Vec<BoxFuture>>);

impl Host for Background {
    fn abort_tasks(&self, _: u64, _: Vec<NexusId>) -> BoxFuture {
        Box::pin(std::future::ready(()))
    }

    fn pause(&self, _: Duration) -> BoxFuture {
        Box::pin(std::future::ready(()))
    }

    fn spawn(&self, work: BoxFuture) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(work);
    }
}

impl Background {
    /// Memory never waits, nor does anything else but for background work.
    fn finish<F: Future>(&self, future: F, what: &str) -> F::Output {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..1000 {
            if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
                return done;
            }
            let mut work = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            work.retain_mut(|work| work.as_mut().poll(&mut context).is_pending());
        }
        panic!("{what} waits for something");
    }
}

/// Sense, INQUIRY, VPD pages, capacity, mode pages and LBA status as a disk may send them.
pub fn scsi_replies(data: &[u8]) {
    let mut input = Reader(data);
    let (status, page) = (input.u8(), input.u8());
    let data = input.0;
    let _ = format!("{:?}", Sense::parse(data));
    for attempts in [0, 1, u32::MAX] {
        let _ = judge(status, data, attempts);
    }
    if let Some(inquiry) = replies::Inquiry::parse(data) {
        for text in [inquiry.vendor, inquiry.product, inquiry.revision] {
            assert!(text.chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{text:?}");
        }
    }
    if let Some(body) = replies::vpd(page, data) {
        assert!(body.len() <= data.len());
        let name = replies::device_name(body).unwrap_or_default();
        assert!(!name.chars().any(char::is_control), "{name:?}");
        let _ = replies::BlockLimits::parse(body);
        let _ = replies::Provisioning::parse(body);
    }
    let _ = (replies::Capacity::parse16(data), replies::Capacity::parse10(data));
    let _ = replies::Mode::parse6(data);
    assert!(replies::lba_status(data).len() <= data.len() / 16);
}

/// An NBD client's side of the handshake, in pieces: output follows from input, it ends.
pub fn nbd_handshake(data: &[u8]) {
    let mut input = Reader(data);
    let cut = usize::from(input.u8()) + 1;
    let mut handshake = Handshake::new(Offer {
        name: "disk".to_owned(),
        size: DISK_LEN,
        flags: TransmissionFlags(1),
        block_size_minimum: 512,
        block_size_preferred: 4096,
        payload_len_max: 32 << 20,
    });
    let (mut received, mut used) = (Vec::new(), 0);
    for piece in input.0.chunks(cut) {
        received.extend_from_slice(piece);
        loop {
            let mut output = Vec::new();
            let Ok((len, outcome)) = handshake.handle(&received[used..], &mut output) else {
                return;
            };
            assert!(len <= received.len() - used);
            assert!(output.len() <= 4096 + len, "{} bytes for {len}", output.len());
            used += len;
            match outcome {
                Outcome::Incomplete => {
                    assert_eq!((len, output.len()), (0, 0));
                    break;
                }
                Outcome::Continue => assert!(len > 0, "no progress"),
                Outcome::Closed => return,
                Outcome::Transmission(_) => {
                    let rest = &received[used..];
                    if let Some(header) = rest.first_chunk::<REQUEST_HEADER_LEN>()
                        && let Ok(request) = RequestHeader::parse(header)
                    {
                        assert_eq!(request.to_bytes(), *header);
                    }
                    return;
                }
            }
        }
    }
}

/// URLs, portals, names and answers to SendTargets: what is accepted names no file and reaches no
/// shell, and reads the same when written again.
pub fn names(data: &[u8]) {
    for record in send_targets::decode(data).unwrap_or_default() {
        assert_harmless(&record.name);
        for portal in record.portals {
            assert!(!portal.host.chars().any(|c| c.is_control() || "/$`;|&<> ".contains(c)));
        }
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(name) = check_name(text) {
        assert_harmless(&name);
    }
    if let Ok(address) = text.parse::<TargetAddress>() {
        assert_eq!(address.to_string().parse(), Ok(address));
    }
    let _ = text.parse::<Portal>();
    if let Ok(url) = text.parse::<Url>() {
        assert_harmless(&url.target);
        let _ = url.to_string();
        let _ = url.credentials(None);
    }
}

fn assert_harmless(name: &str) {
    let harmless = |c: char| !c.is_control() && !"/\\$`;|&<>*?'\"(){}[] ".contains(c);
    assert!(name.chars().all(harmless), "{name:?}");
}
