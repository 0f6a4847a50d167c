//! Error recovery level 1 (RFC 7143 §7.8, §7.9, §11.16): SNACKs, recovery R2Ts, and what a target
//! without them says.

use iscsi_proto::ids::{Itt, Lun};
use iscsi_proto::pdu::{DataOut, Pdu, R2t, RejectReason, SnackKind, SnackRequest};
use iscsi_proto::serial::{DataSn, StatSn};

use super::digest::{send_damaged, with_digests};
use super::{Check, check, require_level, writing};
use crate::context::Context;
use crate::io::pattern;
use crate::offer::Offer;
use crate::session::{Event, Session};
use crate::verdict::{Stop, Verdict, ensure, failed, require};

pub(super) const CHECKS: &[Check] = &[
    check("level1.status-snack", "11.16.1", status_snack),
    check("level1.status-snack-acknowledged", "11.16.1", status_snack_acknowledged),
    check("level1.data-snack", "11.16.1", data_snack),
    check("level1.data-snack-rest", "11.16.1", data_snack_rest),
    check("level1.r-data-snack", "11.16.3", r_data_snack),
    writing("level1.r2t-snack", "11.16.1", r2t_snack),
    check("level1.snack-for-nobody", "11.16", snack_for_nobody),
    writing("level1.recovery-r2t", "7.8", recovery_r2t),
    writing("level1.lost-data-out", "7.9", lost_data_out),
    writing("level1.damaged-command", "7.8", damaged_command),
];

/// A session at this level, or a reason to skip. No StatSN is taken amiss: repetitions are asked
/// for.
pub(super) fn open<'a>(
    context: &'a Context,
    level: u32,
    offer: Offer,
) -> Result<Session<'a>, Stop> {
    require_level(context, level)?;
    let mut session = Session::open(context, offer.with("ErrorRecoveryLevel", level))?;
    let granted = session.agreed.level;
    require(granted == level, || format!("ErrorRecoveryLevel={level} became {granted}"))?;
    session.links[0].strict = false;
    Ok(session)
}

/// Reads eight units in PDUs of one.
fn small_pdus(context: &Context) -> Offer {
    Offer::leading().with("MaxRecvDataSegmentLength", context.unit())
}

fn snack(kind: SnackKind, itt: Itt, run: (u32, u32), exp_stat_sn: StatSn) -> SnackRequest {
    let none = u32::MAX;
    let (beg_run, run_length) = run;
    SnackRequest {
        kind,
        lun: Lun(0),
        itt,
        ttt_or_snack_tag: none,
        exp_stat_sn,
        beg_run,
        run_length,
    }
}

/// The answer to a command that we pretend not to have seen comes again, the same.
fn status_snack(context: &Context) -> Verdict {
    let mut session = open(context, 1, Offer::leading())?;
    let missing = session.links[0].exp_stat_sn;
    let first = session.test_unit_ready(0)?.good()?;
    ensure(first.stat_sn == missing, || format!("StatSN {} after {missing}", first.stat_sn))?;
    let request = snack(SnackKind::STATUS, Itt::NONE, (missing.0, 1), missing);
    session.send(0, request, &[])?;
    let event = session.event(0)?;
    match &event {
        Event::Pdu(arrived) => match &arrived.pdu {
            Pdu::ScsiResponse(again) if again.stat_sn == missing && again.status == 0 => {}
            _ => return failed(format!("a status SNACK got {event}")),
        },
        _ => return failed(format!("a status SNACK got {event}")),
    }
    session.test_unit_ready(0)?.good()?;
    session.close()?;
    Ok(format!("the answer with StatSN {missing} again"))
}

/// What has been acknowledged cannot be asked for: a protocol error.
fn status_snack_acknowledged(context: &Context) -> Verdict {
    let mut session = open(context, 1, Offer::leading())?;
    let old = session.links[0].exp_stat_sn;
    session.test_unit_ready(0)?.good()?;
    session.test_unit_ready(0)?.good()?; // it acknowledges the first
    let request = snack(SnackKind::STATUS, Itt::NONE, (old.0, 1), session.links[0].exp_stat_sn);
    session.send(0, request, &[])?;
    let event = session.event(0)?;
    match &event {
        Event::Pdu(arrived) => match &arrived.pdu {
            Pdu::Reject(reject) => {
                let reason = reject.reason;
                let allowed = [RejectReason::PROTOCOL_ERROR];
                ensure(allowed.contains(&reason), || {
                    format!("Reject with reason {:#04x}", reason.0)
                })?;
                Ok(event.to_string())
            }
            _ => failed(format!("a SNACK for an acknowledged status got {event}")),
        },
        Event::Closed => Ok("the connection was closed".into()),
        Event::Nothing => failed("a SNACK for an acknowledged status got nothing"),
    }
}

/// A read whose status has not been acknowledged, and its Data-In.
type Read = (Itt, Vec<(iscsi_proto::pdu::DataIn, bytes::Bytes)>, StatSn);

fn read(session: &mut Session<'_>) -> Result<Read, Stop> {
    let context = session.context;
    let before = session.links[0].exp_stat_sn;
    let itt = session.read(0, context.scratch(0), 8 * context.unit_blocks())?;
    let done = session.finish(0, itt)?.good()?;
    ensure(done.data.len() >= 4, || format!("{} Data-In for eight units", done.data.len()))?;
    Ok((itt, done.data, before))
}

/// The PDUs of a run come again, the same; those that are asked for and no others.
fn data_again(context: &Context, begin: usize, length: usize) -> Verdict {
    let mut session = open(context, 1, small_pdus(context))?;
    let (itt, data, before) = read(&mut session)?;
    let run = (begin as u32, length as u32);
    session.send(0, snack(SnackKind::DATA_OR_R2T, itt, run, before), &[])?;
    let end = if length == 0 { data.len() } else { begin + length };
    for (number, (pdu, bytes)) in data.iter().enumerate().take(end).skip(begin) {
        let arrived = session.next(0)?;
        let Pdu::DataIn(again) = &arrived.pdu else {
            let event = Event::Pdu(Box::new(arrived));
            return failed(format!("DataSN {number} was asked for again: {event}"));
        };
        ensure(again.data_sn == pdu.data_sn && again.buffer_offset == pdu.buffer_offset, || {
            format!("DataSN {number} was asked for, {} came", again.data_sn)
        })?;
        ensure(arrived.data == *bytes, || format!("DataSN {number} came with other data"))?;
    }
    session.ensure_silent(0, itt, "more than was asked for")?;
    session.close()?;
    Ok(format!("DataSN {begin} to {} again", end - 1))
}

fn data_snack(context: &Context) -> Verdict {
    data_again(context, 1, 2)
}

/// RunLength 0: all from BegRun on.
fn data_snack_rest(context: &Context) -> Verdict {
    data_again(context, 2, 0)
}

/// All data again, cut anew, and a status that carries the SNACK tag.
fn r_data_snack(context: &Context) -> Verdict {
    let mut session = open(context, 1, small_pdus(context))?;
    let (itt, data, before) = read(&mut session)?;
    let expected: Vec<u8> = data.iter().flat_map(|(_, bytes)| bytes.to_vec()).collect();
    let mut request = snack(SnackKind::R_DATA, itt, (0, 0), before);
    request.ttt_or_snack_tag = 0x5eed;
    session.send(0, request, &[])?;
    let mut again = Vec::new();
    loop {
        let arrived = session.next(0)?;
        match &arrived.pdu {
            Pdu::DataIn(pdu) => {
                ensure(pdu.buffer_offset as usize == again.len(), || {
                    format!("offset {} after {} bytes", pdu.buffer_offset, again.len())
                })?;
                again.extend_from_slice(&arrived.data);
                ensure(pdu.status.is_none(), || {
                    "status came with Data-In: it cannot carry the SNACK tag".into()
                })?;
            }
            Pdu::ScsiResponse(response) => {
                ensure(response.snack_tag == 0x5eed, || {
                    format!("the SCSI Response has SNACK tag {:#x}", response.snack_tag)
                })?;
                break;
            }
            _ => {
                let event = Event::Pdu(Box::new(arrived));
                return failed(format!("an R-Data SNACK got {event}"));
            }
        }
    }
    ensure(again == expected, || "other data than at first".into())?;
    session.close()?;
    Ok("all data again, then the status with the tag".into())
}

fn r2t_snack(context: &Context) -> Verdict {
    let mut session = open(context, 1, super::data_out::solicited(context))?;
    let data = pattern(60, 2 * context.unit());
    let itt = session.write(0, context.scratch(0), data.len() as u32)?;
    let r2t = session.next_r2t(0, itt)?;
    let exp_stat_sn = session.links[0].exp_stat_sn;
    let run = (r2t.r2t_sn.0, 1);
    session.send(0, snack(SnackKind::DATA_OR_R2T, itt, run, exp_stat_sn), &[])?;
    let again = session.next_r2t(0, itt)?;
    ensure(again.r2t_sn == r2t.r2t_sn && again.ttt == r2t.ttt, || {
        format!(
            "R2TSN {} with tag {} came for R2TSN {} with tag {}: no exact replica",
            again.r2t_sn, again.ttt, r2t.r2t_sn, r2t.ttt
        )
    })?;
    ensure(again.buffer_offset == r2t.buffer_offset, || "with another offset".into())?;
    session.answer_r2t(0, &r2t, &data)?;
    session.finish_write(0, itt, &data)?.good()?;
    session.close()?;
    Ok("the same R2T again".into())
}

/// A SNACK for a task that is not there.
fn snack_for_nobody(context: &Context) -> Verdict {
    let mut session = open(context, 1, Offer::leading())?;
    let exp_stat_sn = session.links[0].exp_stat_sn;
    let request = snack(SnackKind::DATA_OR_R2T, Itt(0x00be_ef10), (0, 1), exp_stat_sn);
    session.send(0, request, &[])?;
    let event = session.event(0)?;
    match &event {
        Event::Pdu(arrived) if matches!(arrived.pdu, Pdu::Reject(_)) => {
            session.test_unit_ready(0)?.good()?;
            Ok(event.to_string())
        }
        Event::Closed => Ok("the connection was closed".into()),
        _ => failed(format!("a SNACK for no task got {event}")),
    }
}

/// One Data-Out for an R2T.
pub(super) fn data_pdu(
    session: &Session<'_>,
    r2t: &R2t,
    data_sn: u32,
    offset: u32,
    is_final: bool,
) -> DataOut {
    DataOut {
        is_final,
        lun: session.lun(),
        itt: r2t.itt,
        ttt: r2t.ttt,
        exp_stat_sn: session.links[0].exp_stat_sn,
        data_sn: DataSn(data_sn),
        buffer_offset: r2t.buffer_offset + offset,
    }
}

/// A damaged Data-Out is rejected with reason 0x02 and asked for again by a recovery R2T.
fn recovery_r2t(context: &Context) -> Verdict {
    require_level(context, 1)?;
    let offer = super::data_out::solicited(context).with("ErrorRecoveryLevel", 1);
    let mut session = with_digests(context, false, true, offer)?;
    require(session.agreed.level == 1, || "level 1 was not granted".into())?;
    let data = pattern(61, 2 * context.unit());
    let itt = session.write(0, context.scratch(0), data.len() as u32)?;
    let r2t = session.next_r2t(0, itt)?;
    let (first, second) = data.split_at(context.unit() as usize);
    let damaged = data_pdu(&session, &r2t, 0, 0, false);
    send_damaged(&mut session, 0, damaged, first)?;
    let last = data_pdu(&session, &r2t, 1, context.unit(), true);
    session.send(0, last, second)?;
    let mut rejected = false;
    let again = loop {
        let arrived = session.next(0)?;
        match &arrived.pdu {
            Pdu::Reject(reject) => {
                ensure(reject.reason == RejectReason::DATA_DIGEST_ERROR, || {
                    format!("Reject with reason {:#04x}", reject.reason.0)
                })?;
                rejected = true;
            }
            Pdu::R2t(r2t) if r2t.itt == itt => break r2t.clone(),
            _ => {
                let event = Event::Pdu(Box::new(arrived));
                return failed(format!("{event} in place of a recovery R2T"));
            }
        }
    };
    // Which of both comes first is the target's choice.
    session.barrier(0)?;
    rejected |= session.links[0].stash.iter().any(|arrived| {
        matches!(&arrived.pdu, Pdu::Reject(r) if r.reason == RejectReason::DATA_DIGEST_ERROR)
    });
    ensure(rejected, || "a recovery R2T without a Reject of reason 0x02".into())?;
    session.links[0].stash.clear();
    ensure(again.r2t_sn.since(r2t.r2t_sn) > 0, || {
        format!("the recovery R2T has R2TSN {}, not a new one", again.r2t_sn)
    })?;
    ensure(again.buffer_offset == 0, || {
        format!("the damaged data begin at 0, the recovery R2T at {}", again.buffer_offset)
    })?;
    session.answer_r2t(0, &again, &data)?;
    session.finish_write(0, itt, &data)?.good()?;
    super::data_out::read_back(&mut session, 0, &data)?;
    session.close()?;
    Ok(format!("R2T {} for {} bytes", again.r2t_sn.0, again.desired_data_transfer_length))
}

/// A gap in DataSN: what is missing is asked for again, nothing is taken as complete.
fn lost_data_out(context: &Context) -> Verdict {
    let mut session = open(context, 1, super::data_out::solicited(context))?;
    session.links[0].strict = true;
    let data = pattern(62, 2 * context.unit());
    let itt = session.write(0, context.scratch(0), data.len() as u32)?;
    let r2t = session.next_r2t(0, itt)?;
    let second = &data[context.unit() as usize..];
    let last = data_pdu(&session, &r2t, 1, context.unit(), true);
    session.send(0, last, second)?;
    let event = session.event(0)?;
    let Event::Pdu(arrived) = &event else {
        // §7.9 says what to do, not when.
        require(!matches!(event, Event::Nothing), || {
            "nothing yet: the target may wait for a timer of its own".into()
        })?;
        return failed(format!("Data-Out 0 is missing, 1 came with F: {event}"));
    };
    let Pdu::R2t(again) = &arrived.pdu else {
        return failed(format!("Data-Out 0 is missing, 1 came with F: {event}"));
    };
    let again = again.clone();
    session.answer_r2t(0, &again, &data)?;
    session.finish_write(0, itt, &data)?.good()?;
    super::data_out::read_back(&mut session, 0, &data)?;
    session.close()?;
    Ok(format!("R2T {} for {} bytes", again.r2t_sn.0, again.desired_data_transfer_length))
}

/// Immediate data with a wrong digest: the whole command is discarded, and taken when it comes
/// again with the same CmdSN.
fn damaged_command(context: &Context) -> Verdict {
    require_level(context, 1)?;
    let offer = Offer::leading().with("ErrorRecoveryLevel", 1);
    let mut session = with_digests(context, false, true, offer)?;
    require(session.agreed.immediate_data, || "ImmediateData is No".into())?;
    require(session.links[0].send_max >= context.unit(), || {
        "MaxRecvDataSegmentLength of the target is below one unit".into()
    })?;
    let data = pattern(63, context.unit());
    let mut command = session.write_command(0, context.scratch(0), data.len() as u32);
    send_damaged(&mut session, 0, command.clone(), &data)?;
    let event = session.event(0)?;
    let rejected = matches!(&event, Event::Pdu(arrived) if matches!(&arrived.pdu,
        Pdu::Reject(reject) if reject.reason == RejectReason::DATA_DIGEST_ERROR));
    ensure(rejected, || format!("a damaged command got {event}"))?;
    command.exp_stat_sn = session.links[0].exp_stat_sn;
    let itt = command.itt;
    session.send(0, command, &data)?;
    session.finish_write(0, itt, &data)?.good()?;
    super::data_out::read_back(&mut session, 0, &data)?;
    session.close()?;
    Ok("rejected, then taken with the same CmdSN".into())
}
