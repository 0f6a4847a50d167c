//! Several connections in a session (RFC 7143 §4.2.3, §6.3.1, §4.2.2): joining, leaving,
//! allegiance.

use iscsi_proto::ids::{Cid, Isid};
use iscsi_proto::pdu::{LoginStatus, LogoutReason, Pdu};

use super::{Check, check, growing, session_of, writing};
use crate::context::Context;
use crate::io::pattern;
use crate::login::{Answer, Dialogue, Login};
use crate::offer::Offer;
use crate::session::Session;
use crate::verdict::{Stop, Verdict, ensure, failed, require};

pub(super) const CHECKS: &[Check] = &[
    check("mcs.second-connection", "6.3.1", second_connection),
    check("mcs.four-connections", "6.3.1", four_connections),
    check("mcs.too-many-connections", "13.2", too_many_connections),
    check("mcs.join-with-other-isid", "6.3.1", join_with_other_isid),
    check("mcs.leading-only-keys-refused", "13", leading_only_keys_refused),
    check("mcs.no-leading-only-keys-offered", "13", no_leading_only_keys_offered),
    check("mcs.read-allegiance", "4.2.3", read_allegiance),
    writing("mcs.write-allegiance", "4.2.3", write_allegiance),
    check("mcs.statsn-per-connection", "4.2.2.2", statsn_per_connection),
    check("mcs.window-on-every-connection", "4.2.2.1", window_on_every_connection),
    check("mcs.receive-length-per-connection", "13.12", receive_length_per_connection),
    writing("mcs.join-under-io", "6.3.1", join_under_io),
    writing("mcs.leave-under-io", "11.14", leave_under_io),
    writing("mcs.removed-over-another", "11.14.1", removed_over_another),
    check("mcs.leading-connection-leaves", "4.2.3", leading_connection_leaves),
    writing("mcs.data-out-on-wrong-connection", "4.2.3", data_out_on_wrong_connection),
];

/// Names of session-wide keys, which only the leading connection may negotiate.
const LEADING_ONLY: &[&str] = &[
    "MaxConnections",
    "InitialR2T",
    "ImmediateData",
    "MaxBurstLength",
    "FirstBurstLength",
    "DefaultTime2Wait",
    "DefaultTime2Retain",
    "MaxOutstandingR2T",
    "DataPDUInOrder",
    "DataSequenceInOrder",
    "ErrorRecoveryLevel",
];

/// A read on each connection.
fn all_work(session: &mut Session<'_>) -> Result<(), Stop> {
    let context = session.context;
    for link in 0..session.links.len() {
        session.read_all(link, context.scratch(0), context.unit_blocks())?;
    }
    Ok(())
}

fn second_connection(context: &Context) -> Verdict {
    let mut session = session_of(context, 2, Offer::leading())?;
    all_work(&mut session)?;
    session.close()?;
    Ok("joined, both work".into())
}

fn four_connections(context: &Context) -> Verdict {
    let mut session = session_of(context, 4, Offer::leading())?;
    all_work(&mut session)?;
    // All at once: one command order over four connections.
    let blocks = context.unit_blocks();
    let mut tags = Vec::new();
    for turn in 0..16 {
        tags.push((turn % 4, session.read(turn % 4, context.scratch(0), blocks)?));
    }
    for (link, itt) in tags {
        session.finish(link, itt)?.good()?;
    }
    session.close()?;
    Ok("joined, all four work at once".into())
}

fn too_many_connections(context: &Context) -> Verdict {
    let mut session = session_of(context, 2, Offer::leading())?;
    require(session.agreed.max_connections == 2, || {
        format!("MaxConnections=2 became {}", session.agreed.max_connections)
    })?;
    match session.join(Cid(2), &Offer::later())? {
        Login::In(_) => failed("a third connection was let in, MaxConnections is 2"),
        Login::Out(answer) => {
            let allowed = [LoginStatus::TOO_MANY_CONNECTIONS];
            let said = crate::login::expect_refusal(&answer, &allowed)?;
            all_work(&mut session)?;
            session.close()?;
            Ok(said)
        }
    }
}

fn join_with_other_isid(context: &Context) -> Verdict {
    let mut session = growing(context, Offer::leading())?;
    let (isid, tsih): (Isid, _) = (context.new_isid(), session.tsih);
    let dialogue = Dialogue::with(context, isid, tsih, Cid(1), session.cmd_sn)?;
    match dialogue.log_in(false, &Offer::later())? {
        Login::In(_) => failed("a connection joined the session with another ISID"),
        Login::Out(answer) => {
            let said = crate::login::expect_refusal(&answer, &[])?;
            all_work(&mut session)?;
            session.close()?;
            Ok(said)
        }
    }
}

fn leading_only_keys_refused(context: &Context) -> Verdict {
    let session = growing(context, Offer::leading())?;
    let before = session.agreed.max_burst;
    let other = if before == 8192 { 16384 } else { 8192 };
    match session.join(Cid(1), &Offer::later().with("MaxBurstLength", other))? {
        Login::In(logged_in) => match logged_in.answer("MaxBurstLength") {
            Some("Reject" | "Irrelevant" | "NotUnderstood") => Ok("the key was rejected".into()),
            Some(value) if value == before.to_string() => Ok("the session's value holds".into()),
            answer => failed(format!(
                "MaxBurstLength={other} on a second connection was answered with {answer:?}"
            )),
        },
        Login::Out(Answer::Closed) => Ok("the connection was closed".into()),
        Login::Out(answer) => crate::login::expect_refusal(&answer, &[]),
    }
}

fn no_leading_only_keys_offered(context: &Context) -> Verdict {
    let session = growing(context, Offer::leading())?;
    let logged_in = session.join(Cid(1), &Offer::later())?.established()?;
    let offered: Vec<_> =
        LEADING_ONLY.iter().filter(|key| logged_in.answer(key).is_some()).collect();
    ensure(offered.is_empty(), || {
        format!("the target sends leading-only keys on a second connection: {offered:?}")
    })?;
    Ok("none".into())
}

/// Data-In and status come on the connection of the command, nothing on the other.
fn read_allegiance(context: &Context) -> Verdict {
    let mut session = session_of(context, 2, Offer::leading())?;
    for link in [1, 0] {
        let itt = session.read(link, context.scratch(0), 4 * context.unit_blocks())?;
        session.finish(link, itt)?.good()?;
        session.ensure_silent(1 - link, itt, "the command was sent on the other connection")?;
    }
    session.close()?;
    Ok("Data-In and status on the command's connection".into())
}

fn write_allegiance(context: &Context) -> Verdict {
    let mut session = session_of(context, 2, super::data_out::solicited(context))?;
    let data = pattern(30, 4 * context.unit());
    let itt = session.write(1, context.scratch(0), data.len() as u32)?;
    let r2t = session.next_r2t(1, itt)?;
    session.ensure_silent(0, itt, "the command was sent on the other connection")?;
    session.answer_r2t(1, &r2t, &data)?;
    session.finish_write(1, itt, &data)?.good()?;
    session.ensure_silent(0, itt, "the command was sent on the other connection")?;
    session.close()?;
    Ok("R2T and status on the command's connection".into())
}

/// Answers on one connection use up no number of the other.
fn statsn_per_connection(context: &Context) -> Verdict {
    let mut session = session_of(context, 2, Offer::leading())?;
    for _ in 0..5 {
        session.test_unit_ready(0)?.good()?;
    }
    let expected = session.links[1].exp_stat_sn;
    let itt = session.read(1, context.scratch(0), context.unit_blocks())?;
    let done = session.finish(1, itt)?.good()?;
    ensure(done.stat_sn == expected, || {
        format!("StatSN {} on connection 1, its next one was {expected}", done.stat_sn)
    })?;
    session.close()?;
    Ok("a series for each connection".into())
}

/// ExpCmdSN tells on each connection what came on any.
fn window_on_every_connection(context: &Context) -> Verdict {
    let mut session = session_of(context, 2, Offer::leading())?;
    for (link, other) in [(0, 1), (1, 0)] {
        session.test_unit_ready(link)?.good()?;
        let answer = session.barrier(other)?;
        ensure(answer.exp_cmd_sn == session.cmd_sn, || {
            format!(
                "ExpCmdSN is {} on connection {other}, all below {} came on connection {link}",
                answer.exp_cmd_sn, session.cmd_sn
            )
        })?;
    }
    session.close()?;
    Ok("ExpCmdSN is the session's".into())
}

fn receive_length_per_connection(context: &Context) -> Verdict {
    let mut session = growing(context, Offer::leading())?;
    let offer = Offer::later().with("MaxRecvDataSegmentLength", 512);
    let logged_in = session.join(Cid(1), &offer)?.established()?;
    session.attach(Cid(1), logged_in);
    let itt = session.read(1, context.scratch(0), context.unit_blocks())?;
    // The framer of this connection takes no more than 512 bytes.
    let done = session.finish(1, itt)?.good()?;
    let longest = done.data.iter().map(|(_, data)| data.len()).max().unwrap_or(0);
    ensure(longest <= 512, || format!("a Data-In of {longest} bytes, 512 were declared"))?;
    all_work(&mut session)?;
    session.close()?;
    Ok("512 on one, 65536 on the other".into())
}

fn join_under_io(context: &Context) -> Verdict {
    let mut session = growing(context, super::data_out::solicited(context))?;
    let data = pattern(31, 4 * context.unit());
    let itt = session.write(0, context.scratch(0), data.len() as u32)?;
    let r2t = session.next_r2t(0, itt)?;
    session.add(1)?;
    session.read_all(1, context.scratch(8), context.unit_blocks())?;
    session.answer_r2t(0, &r2t, &data)?;
    session.finish_write(0, itt, &data)?.good()?;
    super::data_out::read_back(&mut session, 0, &data)?;
    session.close()?;
    Ok("a write went on while a connection joined".into())
}

/// Connection 1 leaves by itself while a write of connection 0 is under way.
fn leave_under_io(context: &Context) -> Verdict {
    let mut session = session_of(context, 2, super::data_out::solicited(context))?;
    let data = pattern(32, 4 * context.unit());
    let itt = session.write(0, context.scratch(0), data.len() as u32)?;
    let r2t = session.next_r2t(0, itt)?;
    let response = session.log_out(1, LogoutReason::CLOSE_CONNECTION, Cid(1))?;
    ensure(response.response.0 == 0, || format!("logout answered {}", response.response))?;
    session.drop_link(1);
    session.answer_r2t(0, &r2t, &data)?;
    session.finish_write(0, itt, &data)?.good()?;
    // Its place is free again.
    session.add(2)?;
    all_work(&mut session)?;
    session.close()?;
    Ok("the other connection went on, the place was free again".into())
}

/// A logout on connection 0 ends connection 1 with its tasks.
fn removed_over_another(context: &Context) -> Verdict {
    let mut session = session_of(context, 2, super::data_out::solicited(context))?;
    let itt = session.write(1, context.scratch(0), 2 * context.unit())?;
    session.next_r2t(1, itt)?;
    let response = session.log_out(0, LogoutReason::CLOSE_CONNECTION, Cid(1))?;
    ensure(response.response.0 == 0, || format!("logout answered {}", response.response))?;
    session.ensure_closed(1)?;
    session.drop_link(1);
    // Its task ended with it, which a unit attention may tell (§11.14.5).
    session.until_ready()?;
    all_work(&mut session)?;
    session.close()?;
    Ok("connection 1 was closed, connection 0 goes on".into())
}

/// The session is more than its first connection.
fn leading_connection_leaves(context: &Context) -> Verdict {
    let mut session = session_of(context, 2, Offer::leading())?;
    let response = session.log_out(0, LogoutReason::CLOSE_CONNECTION, Cid(0))?;
    ensure(response.response.0 == 0, || format!("logout answered {}", response.response))?;
    session.drop_link(0);
    all_work(&mut session)?;
    session.add(5)?;
    all_work(&mut session)?;
    session.close()?;
    Ok("the session goes on without its first connection".into())
}

/// Data for a task of another connection must not be taken for its own.
fn data_out_on_wrong_connection(context: &Context) -> Verdict {
    let mut session = session_of(context, 2, super::data_out::solicited(context))?;
    let data = pattern(33, 2 * context.unit());
    let itt = session.write(0, context.scratch(0), data.len() as u32)?;
    let r2t = session.next_r2t(0, itt)?;
    session.data_out(1, itt, r2t.ttt, 0, &data)?;
    // Whatever happens to connection 1, the task on connection 0 must not have ended with GOOD.
    let on_one = session.event_within(1, context.timeout() / 4)?;
    let on_zero = session.event_within(0, context.timeout() / 4)?;
    if let crate::session::Event::Pdu(arrived) = &on_zero
        && let Pdu::ScsiResponse(response) = &arrived.pdu
        && response.status == 0
    {
        return failed("data on the wrong connection completed the command");
    }
    Ok(format!("{on_one} on connection 1, {on_zero} on connection 0"))
}
