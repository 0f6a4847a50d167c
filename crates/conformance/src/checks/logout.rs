//! Logout (RFC 7143 §11.14, §11.15): reasons, codes, and that it is the end.

use iscsi_proto::ids::Cid;
use iscsi_proto::pdu::{LogoutReason as Reason, Pdu};

use super::{Check, check, session_of};
use crate::context::Context;
use crate::login::Login;
use crate::offer::Offer;
use crate::session::{Event, Session};
use crate::verdict::{Verdict, ensure, failed};

pub(super) const CHECKS: &[Check] = &[
    check("logout.session", "11.14.1", session),
    check("logout.session-of-two-connections", "11.14.1", session_of_two_connections),
    check("logout.last-connection", "11.14.1", last_connection),
    check("logout.unknown-cid", "11.15.1", unknown_cid),
    check("logout.recovery-below-level-2", "11.15.1", recovery_below_level_2),
    check("logout.reserved-reason", "11.14.1", reserved_reason),
    check("logout.after-commands", "11.14", after_commands),
    check("logout.response", "11.15", response),
];

fn session(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let response = session.log_out(0, Reason::CLOSE_SESSION, Cid(0))?;
    ensure(response.response.0 == 0, || format!("answered with {}", response.response))?;
    match session.join(Cid(1), &Offer::later())? {
        Login::In(_) => failed("a connection joined the session after its logout"),
        Login::Out(_) => Ok("closed, and its TSIH is gone".into()),
    }
}

fn session_of_two_connections(context: &Context) -> Verdict {
    let mut session = session_of(context, 2, Offer::leading())?;
    let response = session.log_out(0, Reason::CLOSE_SESSION, Cid(0))?;
    ensure(response.response.0 == 0, || format!("answered with {}", response.response))?;
    session.ensure_closed(1)?;
    Ok("the other connection was closed, too".into())
}

fn last_connection(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let response = session.log_out(0, Reason::CLOSE_CONNECTION, Cid(0))?;
    ensure(response.response.0 == 0, || format!("answered with {}", response.response))?;
    Ok("closed".into())
}

fn unknown_cid(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let response = session.log_out(0, Reason::CLOSE_CONNECTION, Cid(0x4711))?;
    ensure(response.response.0 == 1, || {
        format!("CID 0x4711 is nobody's: answered with {}", response.response)
    })?;
    session.test_unit_ready(0)?.good()?;
    session.close()?;
    Ok("CID not found".into())
}

fn recovery_below_level_2(context: &Context) -> Verdict {
    let mut session = session_of(context, 2, Offer::leading())?;
    let response = session.log_out(0, Reason::REMOVE_CONNECTION_FOR_RECOVERY, Cid(1))?;
    ensure(response.response.0 == 2, || {
        format!("level {}: answered with {}", session.agreed.level, response.response)
    })?;
    Ok("recovery is not supported".into())
}

fn reserved_reason(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let request = session.logout(0, Reason(0x55), Cid(0));
    session.send(0, request, &[])?;
    let event = session.event(0)?;
    match &event {
        Event::Closed => Ok("the connection was closed".into()),
        Event::Pdu(arrived) => match &arrived.pdu {
            Pdu::Reject(_) => Ok(event.to_string()),
            Pdu::LogoutResponse(response) if response.response.0 != 0 => {
                Ok(format!("answered with {}", response.response))
            }
            _ => failed(format!("reason 0x55 got {event}")),
        },
        Event::Nothing => failed("reason 0x55 got nothing"),
    }
}

/// A logout behind commands in flight is answered, whatever becomes of them.
fn after_commands(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    for _ in 0..4 {
        session.read(0, context.scratch(0), context.unit_blocks())?;
    }
    let response = session.log_out(0, Reason::CLOSE_SESSION, Cid(0))?;
    ensure(response.response.0 == 0, || format!("answered with {}", response.response))?;
    Ok("closed in order".into())
}

/// A logout is answered, not only obeyed: the initiator has to know that the target's side is
/// clean. Some targets close the connection now and then before the answer is out, so it is looked
/// at several times.
fn response(context: &Context) -> Verdict {
    const TIMES: usize = 16;
    let mut wrong = Vec::new();
    for _ in 0..TIMES {
        let mut session = Session::open(context, Offer::leading())?;
        match session.close_and_see()? {
            Event::Pdu(arrived) => match &arrived.pdu {
                Pdu::LogoutResponse(response) if response.response.0 == 0 => {}
                Pdu::LogoutResponse(response) => {
                    wrong.push(format!("the answer was {}", response.response));
                }
                _ => wrong.push(format!("the answer was {}", Event::Pdu(arrived))),
            },
            Event::Closed => {
                wrong.push("no Logout Response before the connection was closed".into());
            }
            Event::Nothing => wrong.push("no Logout Response in time".into()),
        }
    }
    let (count, first) = (wrong.len(), wrong.first().cloned().unwrap_or_default());
    ensure(count == 0, || format!("{first}, {count} of {TIMES} times"))?;
    Ok(format!("answered {TIMES} times"))
}
