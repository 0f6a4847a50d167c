//! Login (RFC 7143 §6.3, §11.12, §11.13): the first PDU, versions, stages, names of sessions.

use iscsi_proto::ids::{Cid, Itt, Lun, Tsih, Ttt};
use iscsi_proto::pdu::{LoginRequest, LoginStatus, NopOut, Stage};
use iscsi_proto::serial::CmdSn;

use super::{Check, check};
use crate::context::Context;
use crate::login::{Answer, Dialogue, Login, expect_refusal};
use crate::offer::Offer;
use crate::session::Session;
use crate::verdict::{Stop, Verdict, ensure, failed, require};

pub(super) const CHECKS: &[Check] = &[
    check("login.first-pdu-not-login", "6.3", first_pdu_not_login),
    check("login.other-pdu-during-login", "6.3", other_pdu_during_login),
    check("login.version-unsupported", "11.12.4", version_unsupported),
    check("login.no-initiator-name", "6.3", no_initiator_name),
    check("login.no-target-name", "6.3", no_target_name),
    check("login.target-unknown", "11.13.5", target_unknown),
    check("login.csg-full-feature", "11.12.3", csg_full_feature),
    check("login.csg-reserved", "11.12.3", csg_reserved),
    check("login.nsg-reserved", "11.12.3", nsg_reserved),
    check("login.nsg-backwards", "11.12.3", nsg_backwards),
    check("login.transit-and-continue", "11.12.2", transit_and_continue),
    check("login.two-stages", "6.3", two_stages),
    check("login.operational-stage-at-once", "6.3", operational_at_once),
    check("login.stage-cannot-change-alone", "6.3", stage_cannot_change_alone),
    check("login.response-fields", "11.13", response_fields),
    check("login.tsih-generated", "11.13.3", tsih_generated),
    check("login.tsih-unknown", "11.13.5", tsih_unknown),
];

fn first_pdu_not_login(context: &Context) -> Verdict {
    let mut dialogue = Dialogue::new(context)?;
    send_ping(&mut dialogue)?;
    match dialogue.answer()? {
        Answer::Closed => Ok("the connection was closed".into()),
        answer => failed(format!("a NOP-Out as first PDU got {answer}, not a closed connection")),
    }
}

fn send_ping(dialogue: &mut Dialogue<'_>) -> Result<(), Stop> {
    let ping = NopOut {
        immediate: true,
        lun: Lun(0),
        itt: Itt(7),
        ttt: Ttt::NONE,
        cmd_sn: dialogue.cmd_sn,
        exp_stat_sn: dialogue.exp_stat_sn,
    };
    dialogue.wire.send(&ping.encode(0), &[])
}

fn other_pdu_during_login(context: &Context) -> Verdict {
    let mut dialogue = Dialogue::new(context)?;
    begin(&mut dialogue)?;
    send_ping(&mut dialogue)?;
    let answer = dialogue.answer()?;
    let said = expect_refusal(&answer, &[LoginStatus::INVALID_DURING_LOGIN])?;
    match dialogue.answer()? {
        Answer::Closed => Ok(format!("{said}, then the connection was closed")),
        after => failed(format!("{said}, but then came {after}, not a closed connection")),
    }
}

/// A first request that stays in its stage: login is under way.
fn begin(dialogue: &mut Dialogue<'_>) -> Result<(), Stop> {
    let mut names = dialogue.names(false);
    names.push(("AuthMethod".into(), "CHAP,None".into()));
    let request = dialogue.request(Stage::SECURITY_NEGOTIATION, None);
    match dialogue.exchange(&request, &names)? {
        Ok(_) => Ok(()),
        Err(answer) => failed(format!("the first Login Request got {answer}")),
    }
}

/// Sends a first request with the names and what `change` makes of it.
fn first_request(
    context: &Context,
    change: impl FnOnce(&mut LoginRequest),
    keep: impl Fn(&str) -> bool,
) -> Result<Answer, Stop> {
    let mut dialogue = Dialogue::new(context)?;
    let mut names = dialogue.names(false);
    names.retain(|(key, _)| keep(key));
    let mut request = dialogue.request(Stage::SECURITY_NEGOTIATION, None);
    change(&mut request);
    dialogue.send(&request, &names)?;
    dialogue.answer()
}

fn version_unsupported(context: &Context) -> Verdict {
    let answer = first_request(
        context,
        |request| (request.version_min, request.version_max) = (1, 1),
        |_| true,
    )?;
    expect_refusal(&answer, &[LoginStatus::UNSUPPORTED_VERSION])
}

fn no_initiator_name(context: &Context) -> Verdict {
    let answer = first_request(context, |_| {}, |key| key != "InitiatorName")?;
    expect_refusal(&answer, &[LoginStatus::MISSING_PARAMETER])
}

fn no_target_name(context: &Context) -> Verdict {
    let answer = first_request(context, |_| {}, |key| key != "TargetName")?;
    expect_refusal(&answer, &[LoginStatus::MISSING_PARAMETER])
}

fn target_unknown(context: &Context) -> Verdict {
    let mut dialogue = Dialogue::new(context)?;
    let mut names = dialogue.names(false);
    names.retain(|(key, _)| key != "TargetName");
    names.push(("TargetName".into(), "iqn.2026-11.org.example:no.such.target".into()));
    // Whoever may not use a target may also be told that there is none. A target that authenticates
    // may keep to itself what there is, and answer as to a wrong secret.
    let mut allowed = vec![LoginStatus::NOT_FOUND, LoginStatus::AUTHORIZATION_FAILURE];
    if context.config.credentials.is_some() {
        allowed.push(LoginStatus::AUTHENTICATION_FAILURE);
    }
    let answer = match dialogue.leave_security_as(names)? {
        Err(answer) => answer,
        Ok(()) => {
            dialogue.send(&dialogue.final_request(), &[])?;
            dialogue.answer()?
        }
    };
    expect_refusal(&answer, &allowed)
}

fn csg_full_feature(context: &Context) -> Verdict {
    let stage = Stage::FULL_FEATURE_PHASE;
    let answer = first_request(context, |request| request.csg = stage, |_| true)?;
    expect_refusal(&answer, &[])
}

fn csg_reserved(context: &Context) -> Verdict {
    let answer = first_request(context, |request| request.csg = Stage(2), |_| true)?;
    expect_refusal(&answer, &[])
}

/// Sends a request of the operational stage that `change` has spoilt.
fn spoilt(context: &Context, change: impl FnOnce(&mut LoginRequest)) -> Result<Answer, Stop> {
    let mut dialogue = Dialogue::new(context)?;
    dialogue.must_leave_security()?;
    let mut request = dialogue.final_request();
    change(&mut request);
    dialogue.send(&request, &[])?;
    dialogue.answer()
}

fn nsg_reserved(context: &Context) -> Verdict {
    expect_refusal(&spoilt(context, |request| request.nsg = Stage(2))?, &[])
}

fn nsg_backwards(context: &Context) -> Verdict {
    let back = Stage::SECURITY_NEGOTIATION;
    expect_refusal(&spoilt(context, |request| request.nsg = back)?, &[])
}

/// A format error (§7.7): the connection may be closed without a word.
fn transit_and_continue(context: &Context) -> Verdict {
    match spoilt(context, |request| request.continues = true)? {
        Answer::Closed => Ok("the connection was closed".into()),
        answer => expect_refusal(&answer, &[]),
    }
}

fn two_stages(context: &Context) -> Verdict {
    let mut dialogue = Dialogue::new(context)?;
    dialogue.must_leave_security()?;
    let (security, operational) =
        (Stage::SECURITY_NEGOTIATION, Stage::LOGIN_OPERATIONAL_NEGOTIATION);
    if let Some((response, _)) = dialogue.responses.last() {
        ensure(response.csg == security && response.nsg == operational, || {
            format!("CSG {}, NSG {} between both stages", response.csg, response.nsg)
        })?;
    }
    let request = dialogue.final_request();
    match dialogue.exchange(&request, Offer::leading().pairs())? {
        Ok((response, _)) => ensure(response.csg == operational, || {
            format!("CSG is {} in the operational stage", response.csg)
        })?,
        Err(answer) => return failed(format!("the operational stage got {answer}")),
    }
    Ok("security, operational, full-feature".into())
}

/// Where nobody has to prove anything, a login may begin with the operational stage.
fn operational_at_once(context: &Context) -> Verdict {
    require(context.config.credentials.is_none(), || "the target wants CHAP".into())?;
    let mut session = super::growing(context, Offer::leading())?;
    let dialogue = Dialogue::with(context, session.isid, session.tsih, Cid(1), session.cmd_sn)?;
    let (mut say, offer) = (dialogue.names(false), Offer::later());
    say.extend_from_slice(offer.pairs());
    let logged_in = dialogue.negotiate(say, &offer)?.established()?;
    let tsih = logged_in.last()?.tsih;
    ensure(tsih == session.tsih, || {
        format!("the login was to join session {}, and ended in {tsih}", session.tsih)
    })?;
    let link = session.attach(Cid(1), logged_in);
    session.read_all(link, context.scratch(0), context.unit_blocks())?;
    session.close()?;
    Ok("joined without a security stage".into())
}

/// The target sets T only where the initiator has (§6.3.3).
fn stage_cannot_change_alone(context: &Context) -> Verdict {
    let mut dialogue = Dialogue::new(context)?;
    dialogue.must_leave_security()?;
    let request = dialogue.request(Stage::LOGIN_OPERATIONAL_NEGOTIATION, None);
    match dialogue.exchange(&request, Offer::leading().pairs())? {
        Ok((response, _)) => {
            ensure(!response.transit, || "T set although the request had it cleared".into())?;
        }
        Err(answer) => return failed(format!("a request without T got {answer}")),
    }
    match dialogue.exchange(&dialogue.final_request(), &[])? {
        Ok((response, _)) if response.transit => Ok("T only when asked for".into()),
        Ok(_) => failed("no T in the answer to an empty request with T, nothing being open"),
        Err(answer) => failed(format!("the final request got {answer}")),
    }
}

fn response_fields(context: &Context) -> Verdict {
    let mut dialogue = Dialogue::with(context, context.new_isid(), Tsih(0), Cid(9), CmdSn(77))?;
    dialogue.itt = Itt(0x0bad_cafe);
    let (isid, itt) = (dialogue.isid, dialogue.itt);
    let logged_in = dialogue.log_in(false, &Offer::leading())?.established()?;
    let mut previous = None;
    for (number, (response, _)) in logged_in.responses.iter().enumerate() {
        let same = |name: &str, holds: bool| {
            ensure(holds, || format!("{name} of response {}: {response:?}", number + 1))
        };
        same("ISID", response.isid == isid)?;
        same("initiator task tag", response.itt == itt)?;
        same("version", response.version_active == 0)?;
        if let Some(before) = previous.replace(response.stat_sn) {
            same("StatSN (one more for each response)", response.stat_sn.since(before) == 1)?;
        }
    }
    // Login requests are immediate: they use up no CmdSN.
    let last = logged_in.last()?;
    ensure(last.exp_cmd_sn == CmdSn(77), || {
        format!("ExpCmdSN is {} after a login with CmdSN 77", last.exp_cmd_sn)
    })?;
    ensure(last.max_cmd_sn.since(last.exp_cmd_sn) >= 0, || {
        format!("MaxCmdSN {} leaves no window behind {}", last.max_cmd_sn, last.exp_cmd_sn)
    })?;
    Ok("ISID, ITT, version, StatSN, ExpCmdSN".into())
}

fn tsih_generated(context: &Context) -> Verdict {
    let first = Session::open(context, Offer::leading())?;
    let second = Session::open(context, Offer::leading())?;
    let (one, other) = (first.tsih, second.tsih);
    ensure(one != Tsih(0) && other != Tsih(0), || "TSIH 0 for a new session".into())?;
    first.close()?;
    second.close()?;
    Ok(format!("{one} and {other}"))
}

fn tsih_unknown(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    // Of a session that has just ended: surely one that the target could have.
    let (isid, tsih) = (session.isid, session.tsih);
    session.barrier(0)?;
    session.close()?;
    let dialogue = Dialogue::with(context, isid, tsih, Cid(1), CmdSn(1))?;
    match dialogue.log_in(false, &Offer::later())? {
        Login::In(_) => failed("a connection joined a session that has ended"),
        Login::Out(answer) => expect_refusal(&answer, &[LoginStatus::SESSION_DOES_NOT_EXIST]),
    }
}
