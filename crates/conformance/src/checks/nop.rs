//! NOP-Out and NOP-In (RFC 7143 §11.18, §11.19).

use iscsi_proto::ids::{Itt, Lun, Ttt};
use iscsi_proto::pdu::{NopOut, Pdu};

use super::{Check, check};
use crate::context::Context;
use crate::io::pattern;
use crate::offer::Offer;
use crate::session::Session;
use crate::verdict::{Verdict, ensure, failed};

pub(super) const CHECKS: &[Check] = &[
    check("nop.echo", "11.18", echo),
    check("nop.echo-in-order", "11.18", echo_in_order),
    check("nop.no-answer-wanted", "11.18.1", no_answer_wanted),
    check("nop.immediate-uses-no-cmdsn", "4.2.2.1", immediate_uses_no_cmdsn),
];

fn ping(session: &mut Session<'_>, immediate: bool) -> NopOut {
    NopOut {
        immediate,
        lun: Lun(0),
        itt: session.new_itt(),
        ttt: Ttt::NONE,
        cmd_sn: if immediate { session.cmd_sn } else { session.cmd_sn.take() },
        exp_stat_sn: session.links[0].exp_stat_sn,
    }
}

fn echo(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    for length in [0, 1, 47, 4096] {
        let data = pattern(u64::from(length), length);
        let request = ping(&mut session, true);
        session.send(0, request.clone(), &data)?;
        let arrived = session.next(0)?;
        let Pdu::NopIn(answer) = &arrived.pdu else {
            return failed(format!("a ping got {}", arrived.header.opcode()));
        };
        ensure(answer.itt == request.itt, || format!("tag {} for {}", answer.itt, request.itt))?;
        ensure(answer.ttt == Ttt::NONE, || {
            format!("target transfer tag {} in the answer to a ping", answer.ttt)
        })?;
        ensure(arrived.data == data, || format!("a ping of {length} bytes came back changed"))?;
    }
    session.close()?;
    Ok("tag and data come back".into())
}

fn echo_in_order(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let request = ping(&mut session, false);
    let expected = request.cmd_sn.next();
    session.send(0, request.clone(), b"ping")?;
    let arrived = session.next(0)?;
    match arrived.pdu {
        Pdu::NopIn(answer) if answer.itt == request.itt => {
            ensure(answer.exp_cmd_sn == expected, || {
                format!("ExpCmdSN is {} after CmdSN {}", answer.exp_cmd_sn, request.cmd_sn)
            })?;
        }
        _ => return failed(format!("a ping got {}", arrived.header.opcode())),
    }
    session.close()?;
    Ok("a ping that is not immediate uses up its CmdSN".into())
}

fn no_answer_wanted(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let request = NopOut { itt: Itt::NONE, ..ping(&mut session, true) };
    session.send(0, request, &[])?;
    // The next thing to come is the answer to the next ping, with the next StatSN.
    let expected = session.links[0].exp_stat_sn;
    let answer = session.barrier(0)?;
    ensure(session.links[0].stash.is_empty(), || "a NOP-Out without tag was answered".into())?;
    ensure(answer.stat_sn == expected, || "a NOP-Out without tag used up a StatSN".into())?;
    session.close()?;
    Ok("no answer, no StatSN".into())
}

fn immediate_uses_no_cmdsn(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let before = session.cmd_sn;
    for _ in 0..3 {
        let answer = session.barrier(0)?;
        ensure(answer.exp_cmd_sn == before, || {
            format!("ExpCmdSN went from {before} to {} by an immediate ping", answer.exp_cmd_sn)
        })?;
    }
    session.test_unit_ready(0)?.good()?;
    ensure(session.exp_cmd_sn == before.next(), || {
        format!("ExpCmdSN is {} after CmdSN {before}", session.exp_cmd_sn)
    })?;
    session.close()?;
    Ok("ExpCmdSN stays".into())
}
