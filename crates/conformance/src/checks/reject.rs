//! Reject (RFC 7143 §11.17): PDUs that make no sense, and the header that comes back.

use iscsi_proto::pdu::{BHS_LEN, Header, Opcode, Pdu};

use super::{Check, check};
use crate::context::Context;
use crate::offer::Offer;
use crate::session::{Event, Session};
use crate::verdict::{Verdict, ensure, failed, skipped};

pub(super) const CHECKS: &[Check] = &[
    check("reject.unknown-opcode", "11.17", unknown_opcode),
    check("reject.target-opcode", "11.17", target_opcode),
    check("reject.contains-header", "11.17", contains_header),
    check("reject.login-in-full-feature", "6.3", login_in_full_feature),
];

/// An immediate PDU of this opcode with nothing in it.
fn bare(session: &Session<'_>, opcode: u8) -> Header {
    let mut bhs = [0; BHS_LEN];
    bhs[0] = 0x40 | opcode;
    bhs[1] = 0x80;
    bhs[16..20].copy_from_slice(&0x0bad_0001_u32.to_be_bytes());
    bhs[24..28].copy_from_slice(&session.cmd_sn.0.to_be_bytes());
    bhs[28..32].copy_from_slice(&session.links[0].exp_stat_sn.0.to_be_bytes());
    Header { bhs, ahs: bytes::Bytes::new() }
}

/// Reject, or the end of the connection.
fn refused(context: &Context, opcode: u8) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let header = bare(&session, opcode);
    session.links[0].wire.send(&header, &[])?;
    let event = session.event(0)?;
    match &event {
        Event::Closed => Ok("the connection was closed".into()),
        Event::Pdu(arrived) if matches!(arrived.pdu, Pdu::Reject(_)) => Ok(event.to_string()),
        _ => failed(format!("opcode {opcode:#04x} got {event}")),
    }
}

fn unknown_opcode(context: &Context) -> Verdict {
    refused(context, 0x1b)
}

fn target_opcode(context: &Context) -> Verdict {
    refused(context, Opcode::SCSI_RESPONSE.0)
}

fn contains_header(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let header = bare(&session, 0x1b);
    session.links[0].wire.send(&header, &[])?;
    let arrived = match session.event(0)? {
        Event::Pdu(arrived) => arrived,
        Event::Closed => {
            return skipped("the connection was closed: there is no Reject to look at");
        }
        Event::Nothing => return failed("opcode 0x1b got nothing"),
    };
    let Pdu::Reject(reject) = &arrived.pdu else {
        return failed(format!("opcode 0x1b got {}", arrived.header.opcode()));
    };
    ensure(arrived.data.starts_with(&header.bhs), || {
        format!("{} bytes, not the 48 of the rejected header", arrived.data.len())
    })?;
    ensure(arrived.header.itt().0 == u32::MAX, || "a Reject has an initiator task tag".into())?;
    Ok(format!("reason {:#04x}, with the header", reject.reason.0))
}

fn login_in_full_feature(context: &Context) -> Verdict {
    refused(context, Opcode::LOGIN_REQUEST.0)
}
