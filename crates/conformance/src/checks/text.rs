//! Text requests (RFC 7143 §11.10, §11.11, Appendix C): SendTargets, unknown keys, the C bit.

use iscsi_proto::ids::{Cid, Itt, Lun, Ttt};
use iscsi_proto::pdu::{Pdu, TextRequest, TextResponse};
use iscsi_proto::serial::CmdSn;

use super::{Check, check};
use crate::context::Context;
use crate::login::{Dialogue, Pairs, pairs};
use crate::offer::{Offer, find};
use crate::session::{Event, Session};
use crate::verdict::{Stop, Verdict, ensure, failed};

pub(super) const CHECKS: &[Check] = &[
    check("text.send-targets-in-discovery", "Appendix C", send_targets_in_discovery),
    check("text.send-targets-in-normal-session", "Appendix C", send_targets_in_normal_session),
    check("text.send-targets-all-in-normal-session", "Appendix C", send_targets_all),
    check("text.unknown-key", "6.1", unknown_key),
    check("text.over-pdus", "11.10.2", over_pdus),
    check("text.discovery-takes-no-scsi", "4.3", discovery_takes_no_scsi),
];

fn request(session: &mut Session<'_>) -> TextRequest {
    TextRequest {
        immediate: false,
        is_final: true,
        continues: false,
        lun: Lun(0),
        itt: session.new_itt(),
        ttt: Ttt::NONE,
        cmd_sn: session.cmd_sn.take(),
        exp_stat_sn: session.links[0].exp_stat_sn,
    }
}

/// A request and its answer, over however many PDUs it comes.
fn ask(session: &mut Session<'_>, text: &[u8]) -> Result<(TextResponse, Pairs), Stop> {
    let mut request = request(session);
    let itt = request.itt;
    session.send(0, request.clone(), text)?;
    let mut all = Vec::new();
    for _ in 0..64 {
        let (response, data) = response(session, itt)?;
        all.extend_from_slice(&data);
        if response.is_final {
            ensure(response.ttt == Ttt::NONE, || {
                format!("a final Text Response has target transfer tag {}", response.ttt)
            })?;
            return Ok((response, pairs(&all)?));
        }
        ensure(response.ttt != Ttt::NONE, || "a Text Response without F has no tag".into())?;
        request.ttt = response.ttt;
        request.lun = response.lun;
        request.cmd_sn = session.cmd_sn.take();
        request.exp_stat_sn = session.links[0].exp_stat_sn;
        session.send(0, request.clone(), &[])?;
    }
    failed("the Text Response has no end")
}

fn response(session: &mut Session<'_>, itt: Itt) -> Result<(TextResponse, bytes::Bytes), Stop> {
    let arrived = session.next(0)?;
    match arrived.pdu {
        Pdu::TextResponse(response) if response.itt == itt => Ok((response, arrived.data)),
        Pdu::Reject(reject) => {
            failed(format!("a Text Request got REJECT, reason {:#04x}", reject.reason.0))
        }
        _ => failed(format!("{} in place of a Text Response", arrived.header.opcode())),
    }
}

fn discovery(context: &Context) -> Result<Session<'_>, Stop> {
    let dialogue = Dialogue::new(context)?;
    let (isid, offer) = (dialogue.isid, Offer::later());
    let logged_in = dialogue.log_in(true, &offer)?.established()?;
    Session::of(context, isid, Cid(0), CmdSn(1), logged_in)
}

fn names_of(answer: &[(String, String)]) -> Vec<&str> {
    let names = answer.iter().filter(|(key, _)| key == "TargetName");
    names.map(|(_, name)| name.as_str()).collect()
}

fn send_targets_in_discovery(context: &Context) -> Verdict {
    let mut session = discovery(context)?;
    let (_, answer) = ask(&mut session, b"SendTargets=All\0")?;
    let names = names_of(&answer);
    ensure(names.contains(&context.config.target.as_str()), || {
        format!("{} is not among {names:?}", context.config.target)
    })?;
    for (_, address) in answer.iter().filter(|(key, _)| key == "TargetAddress") {
        let group = address.rsplit_once(',').map(|(_, tag)| tag.parse::<u16>());
        ensure(matches!(group, Some(Ok(_))), || {
            format!("TargetAddress={address} has no portal group tag")
        })?;
    }
    session.close()?;
    Ok(format!("{} targets", names.len()))
}

/// With an empty value: this target (Appendix C).
fn send_targets_in_normal_session(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let (_, answer) = ask(&mut session, b"SendTargets=\0")?;
    let names = names_of(&answer);
    ensure(names == [context.config.target.as_str()], || {
        format!("SendTargets= in a session with {} got {names:?}", context.config.target)
    })?;
    session.close()?;
    Ok("this target".into())
}

/// "All" is for discovery sessions; other targets are not for the ears of a normal one.
fn send_targets_all(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let request = request(&mut session);
    session.send(0, request, b"SendTargets=All\0")?;
    let arrived = match session.event(0)? {
        Event::Pdu(arrived) => arrived,
        other => return failed(format!("SendTargets=All got {other}")),
    };
    match &arrived.pdu {
        Pdu::Reject(_) => Ok("REJECT".into()),
        Pdu::TextResponse(_) => {
            let answer = pairs(&arrived.data)?;
            let names = names_of(&answer);
            ensure(names.is_empty(), || format!("SendTargets=All was answered with {names:?}"))?;
            Ok(find(&answer, "SendTargets").unwrap_or("no target").into())
        }
        _ => failed(format!("SendTargets=All got {}", arrived.header.opcode())),
    }
}

fn unknown_key(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let (_, answer) = ask(&mut session, b"X-org.example.conformance=1\0")?;
    let value = find(&answer, "X-org.example.conformance");
    ensure(value == Some("NotUnderstood"), || format!("answered with {answer:?}"))?;
    session.close()?;
    Ok("NotUnderstood".into())
}

fn over_pdus(context: &Context) -> Verdict {
    let mut session = discovery(context)?;
    let mut first = request(&mut session);
    (first.is_final, first.continues) = (false, true);
    session.send(0, first.clone(), b"SendTar")?;
    let (answer, data) = response(&mut session, first.itt)?;
    ensure(!answer.is_final && data.is_empty(), || {
        "half a pair with C set was answered with F or text".into()
    })?;
    ensure(answer.ttt != Ttt::NONE, || "no target transfer tag to go on with".into())?;
    let second = TextRequest {
        is_final: true,
        continues: false,
        ttt: answer.ttt,
        lun: answer.lun,
        cmd_sn: session.cmd_sn.take(),
        exp_stat_sn: session.links[0].exp_stat_sn,
        ..first
    };
    session.send(0, second.clone(), b"gets=All\0")?;
    let (_, data) = response(&mut session, second.itt)?;
    let answer = pairs(&data)?;
    ensure(!names_of(&answer).is_empty(), || format!("the whole request got {answer:?}"))?;
    Ok("put together again".into())
}

/// A discovery session takes text and logout, nothing else.
fn discovery_takes_no_scsi(context: &Context) -> Verdict {
    let mut session = discovery(context)?;
    let command = session.command(0, [0; 16], 0);
    session.send(0, command, &[])?;
    match session.event(0)? {
        Event::Closed => Ok("the connection was closed".into()),
        Event::Pdu(arrived) if matches!(arrived.pdu, Pdu::Reject(_)) => Ok("REJECT".into()),
        event => failed(format!("a SCSI command got {event}")),
    }
}
