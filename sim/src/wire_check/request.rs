//! What an initiator may send (RFC 7143 §4.2.2, §4.2.3, §11.3, §11.5, §11.7).

use iscsi_proto::ids::Itt;
use iscsi_proto::pdu::{
    LogoutReason, Pdu, ScsiCommand, TaskManagementFunction, TaskManagementRequest,
};
use iscsi_proto::serial::{CmdSn, StatSn};

use super::task::{TaskCheck, check_tag};
use super::{Ended, LinkCheck, Request, RequestKind, SessionCheck, Verdict, ensure};
use crate::coverage::Coverage;
use crate::net::Link;

pub(super) fn check(
    link: Link,
    check: &mut LinkCheck,
    session: &mut SessionCheck,
    pdu: &Pdu,
    data_len: u32,
    coverage: &mut Coverage,
) -> Verdict {
    let is_answer = matches!(pdu, Pdu::NopOut(nop) if nop.itt == Itt::NONE);
    let leaving = check.logout_requested || session.logout_requested;
    ensure!(is_answer || !leaving, "after a logout request");
    if let Some(exp_stat_sn) = exp_stat_sn(pdu) {
        exp_stat_sn_fits(check, exp_stat_sn)?;
    }
    match pdu {
        Pdu::ScsiCommand(command) => {
            numbered(session, command.immediate, command.cmd_sn)?;
            new_command(link, session, command, data_len, coverage)
        }
        Pdu::DataOut(pdu) => {
            let task = session.tasks.get_mut(&pdu.itt).ok_or("no such task")?;
            ensure!(task.link == link, "the task belongs to {}", task.link);
            task.data_out(pdu, data_len)?;
            coverage.hit("pdu: Data-Out");
            Ok(())
        }
        Pdu::TaskManagementRequest(request) => {
            numbered(session, request.immediate, request.cmd_sn)?;
            new_management(link, session, request)?;
            coverage.hit("pdu: task management");
            Ok(())
        }
        Pdu::NopOut(nop) => {
            numbered(session, nop.immediate, nop.cmd_sn)?;
            if nop.itt == Itt::NONE {
                ensure!(nop.immediate, "NOP-Out without a tag that is not immediate");
                coverage.hit("pdu: NOP-Out as answer");
                return Ok(());
            }
            coverage.hit("pdu: NOP-Out");
            new_request(link, session, nop.itt, RequestKind::Nop)
        }
        Pdu::TextRequest(request) => {
            numbered(session, request.immediate, request.cmd_sn)?;
            coverage.hit("pdu: text request");
            session.requests.remove(&request.itt); // goes on with the same tag
            new_request(link, session, request.itt, RequestKind::Text)
        }
        Pdu::LogoutRequest(request) => {
            numbered(session, request.immediate, request.cmd_sn)?;
            check.logout_requested = true;
            session.logout_requested |= request.reason == LogoutReason::CLOSE_SESSION;
            coverage.hit("pdu: logout request");
            new_request(link, session, request.itt, RequestKind::Logout)
        }
        _ => Err("no place for this PDU in full-feature phase".into()),
    }
}

/// CmdSN: consecutive over the session, within the window that the initiator knows of.
fn numbered(session: &mut SessionCheck, immediate: bool, cmd_sn: CmdSn) -> Verdict {
    let next = session.next_cmd_sn;
    ensure!(cmd_sn == next, "CmdSN, expected {next}");
    if immediate {
        return Ok(());
    }
    let known = session.known_max_cmd_sn;
    ensure!(!known.is_before(cmd_sn), "CmdSN beyond MaxCmdSN {known} as far as is known");
    session.next_cmd_sn = next.next();
    Ok(())
}

fn exp_stat_sn_fits(check: &mut LinkCheck, exp_stat_sn: StatSn) -> Verdict {
    let (last, delivered) = (check.exp_stat_sn, check.delivered_stat_sn);
    ensure!(!exp_stat_sn.is_before(last), "ExpStatSN went back from {last}");
    ensure!(!delivered.is_before(exp_stat_sn), "ExpStatSN of what has not arrived: {delivered}");
    check.exp_stat_sn = exp_stat_sn;
    Ok(())
}

fn new_command(
    link: Link,
    session: &mut SessionCheck,
    command: &ScsiCommand,
    data_len: u32,
    coverage: &mut Coverage,
) -> Verdict {
    is_free(session, command.itt)?;
    let task = TaskCheck::new(link, command, data_len, &session.params)?;
    session.tasks.insert(command.itt, task);
    coverage.hit("pdu: SCSI command");
    if data_len > 0 {
        coverage.hit("data: immediate");
    }
    if !command.is_final {
        coverage.hit("data: unsolicited");
    }
    Ok(())
}

fn new_management(
    link: Link,
    session: &mut SessionCheck,
    request: &TaskManagementRequest,
) -> Verdict {
    let (function, lun) = (request.function, request.lun);
    let referenced = request.referenced_task_tag;
    if function == TaskManagementFunction::ABORT_TASK {
        let task = session.tasks.get(&referenced).ok_or("abort of a task that never was")?;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
        //= type=test
        //# If the connection is still active (i.e., it is not undergoing an implicit or explicit
        //# logout), an ABORT TASK MUST be issued on the same connection to which the task to be
        //# aborted is allegiant at the time the task management request is issued.
        ensure!(task.link == link, "abort on another connection than the task's {}", task.link);
        ensure!(task.lun == lun, "abort with another LUN than the task's");
        ensure!(request.ref_cmd_sn == task.cmd_sn, "RefCmdSN, task has {}", task.cmd_sn);
    } else {
        ensure!(referenced == Itt::NONE, "referenced tag without a task");
    }
    let cmd_sn = request.cmd_sn;
    let ended = Ended { function, lun, referenced, cmd_sn };
    session.each_ended(ended, |task| task.ending = true);
    new_request(link, session, request.itt, RequestKind::Management(ended))
}

fn new_request(link: Link, session: &mut SessionCheck, itt: Itt, kind: RequestKind) -> Verdict {
    is_free(session, itt)?;
    session.requests.insert(itt, Request { link, kind });
    Ok(())
}

fn is_free(session: &SessionCheck, itt: Itt) -> Verdict {
    check_tag(itt)?;
    let taken = session.tasks.get(&itt).is_some_and(|task| !task.over);
    ensure!(!taken && !session.requests.contains_key(&itt), "task tag is in use");
    Ok(())
}

fn exp_stat_sn(pdu: &Pdu) -> Option<StatSn> {
    Some(match pdu {
        Pdu::ScsiCommand(pdu) => pdu.exp_stat_sn,
        Pdu::DataOut(pdu) => pdu.exp_stat_sn,
        Pdu::TaskManagementRequest(pdu) => pdu.exp_stat_sn,
        Pdu::NopOut(pdu) => pdu.exp_stat_sn,
        Pdu::TextRequest(pdu) => pdu.exp_stat_sn,
        Pdu::LogoutRequest(pdu) => pdu.exp_stat_sn,
        _ => return None,
    })
}
