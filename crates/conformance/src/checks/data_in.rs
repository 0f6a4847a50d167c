//! Reads (RFC 7143 §11.7, §13.12, §13.13, §11.4.5): numbers, offsets, lengths, residuals.

use iscsi_proto::pdu::{Residual, ScsiCommand};

use super::{Check, check};
use crate::context::Context;
use crate::io::{Done, read_cdb};
use crate::offer::Offer;
use crate::session::Session;
use crate::verdict::{Stop, Verdict, ensure};

pub(super) const CHECKS: &[Check] = &[
    check("data-in.numbers-and-offsets", "11.7", numbers_and_offsets),
    check("data-in.receive-length", "13.12", receive_length),
    check("data-in.max-burst", "13.13", max_burst),
    check("data-in.residual-underflow", "11.4.5.1", residual_underflow),
    check("data-in.residual-overflow", "11.4.5.1", residual_overflow),
    check("data-in.exp-data-sn", "11.4.8", exp_data_sn),
    check("data-in.unknown-lun", "11.4.2", unknown_lun),
];

/// Reads this many units of the scratch area.
fn read(session: &mut Session<'_>, units: u32) -> Result<Done, Stop> {
    let context = session.context;
    let itt = session.read(0, context.scratch(0), units * context.unit_blocks())?;
    let done = session.finish(0, itt)?.good()?;
    let (got, wanted) = (done.payload().len(), (units * context.unit()) as usize);
    ensure(got == wanted, || format!("a read of {wanted} bytes brought {got}"))?;
    Ok(done)
}

fn numbers_and_offsets(context: &Context) -> Verdict {
    let offer = Offer::leading().with("MaxRecvDataSegmentLength", context.unit());
    let mut session = Session::open(context, offer)?;
    let done = read(&mut session, 8)?;
    let mut offset = 0;
    for (number, (pdu, data)) in done.data.iter().enumerate() {
        ensure(pdu.data_sn.0 == number as u32, || {
            format!("Data-In {number} has DataSN {}", pdu.data_sn)
        })?;
        ensure(pdu.buffer_offset == offset, || {
            format!(
                "Data-In {number} has offset {}, the data before end at {offset}",
                pdu.buffer_offset
            )
        })?;
        offset += data.len() as u32;
    }
    ensure(done.data.last().is_some_and(|(pdu, _)| pdu.is_final), || {
        "the last Data-In has no F".into()
    })?;
    session.close()?;
    Ok(format!("{} PDUs in order", done.data.len()))
}

fn receive_length(context: &Context) -> Verdict {
    for limit in [512, 4096, 8192] {
        let offer = Offer::leading().with("MaxRecvDataSegmentLength", limit);
        let mut session = Session::open(context, offer)?;
        // A longer PDU is refused by the framer, too; here it is named.
        let done = read(&mut session, 4)?;
        let longest = done.data.iter().map(|(_, data)| data.len()).max().unwrap_or(0);
        ensure(longest <= limit as usize, || {
            format!("a Data-In of {longest} bytes, MaxRecvDataSegmentLength is {limit}")
        })?;
        session.close()?;
    }
    Ok("512, 4096, 8192".into())
}

fn max_burst(context: &Context) -> Verdict {
    let burst = 2 * context.unit();
    let offer = Offer::leading()
        .with("MaxBurstLength", burst)
        .with("FirstBurstLength", burst)
        .with("MaxRecvDataSegmentLength", context.unit());
    let mut session = Session::open(context, offer)?;
    let limit = session.agreed.max_burst;
    let done = read(&mut session, 8)?;
    let (mut sequence, mut sequences) = (0, 0);
    for (pdu, data) in &done.data {
        sequence += data.len() as u32;
        ensure(sequence <= limit, || {
            format!("{sequence} bytes without F, MaxBurstLength is {limit}")
        })?;
        if pdu.is_final {
            (sequence, sequences) = (0, sequences + 1);
        }
    }
    session.close()?;
    Ok(format!("{sequences} sequences of at most {limit} bytes"))
}

/// INQUIRY of 36 bytes into a buffer of 4096.
fn residual_underflow(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let mut cdb = [0; 16];
    (cdb[0], cdb[4]) = (0x12, 36);
    let done = session.ask(cdb, 4096)?.good()?;
    let got = done.payload().len() as u32;
    ensure(got <= 36, || format!("INQUIRY with allocation length 36 brought {got} bytes"))?;
    let expected = Residual::Underflow(4096 - got);
    ensure(done.residual == expected, || {
        format!("{got} bytes of 4096: residual {:?}, not {expected:?}", done.residual)
    })?;
    session.close()?;
    Ok(format!("{expected:?}"))
}

/// A read of two units with an expected length of one.
fn residual_overflow(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let cdb = read_cdb(context.scratch(0), 2 * context.unit_blocks());
    let command = ScsiCommand { read: true, ..session.command(0, cdb, context.unit()) };
    let itt = command.itt;
    session.send(0, command, &[])?;
    let done = session.finish(0, itt)?;
    let got = done.payload().len() as u32;
    ensure(got <= context.unit(), || format!("{got} bytes for {} expected", context.unit()))?;
    let expected = Residual::Overflow(context.unit());
    // SBC leaves open whether the command fails; the residual is iSCSI's and is not left open.
    ensure(done.residual == expected, || {
        format!("{}: residual {:?}, not {expected:?}", done.describe(), done.residual)
    })?;
    session.close()?;
    Ok(format!("{expected:?}"))
}

/// The number of Data-In PDUs, in a SCSI Response of its own.
fn exp_data_sn(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let done = read(&mut session, 4)?;
    let count = done.data.len() as u32;
    let detail = match done.exp_data_sn {
        Some(number) => {
            ensure(number == count, || format!("ExpDataSN is {number} after {count} Data-In"))?;
            format!("{number}")
        }
        None => "status came with the last Data-In".into(),
    };
    session.close()?;
    Ok(detail)
}

/// Not the session's business: an answer like any other, from the SCSI layer.
fn unknown_lun(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let mut command = session.command(0, [0; 16], 0);
    command.lun = iscsi_proto::ids::Lun(0x3ffe_u64 << 48 | 0x4000_u64 << 48);
    let itt = command.itt;
    session.send(0, command, &[])?;
    let done = session.finish(0, itt)?;
    ensure(done.status != 0, || "TEST UNIT READY of a unit that cannot exist is GOOD".into())?;
    session.test_unit_ready(0)?.good()?;
    session.close()?;
    Ok(done.describe())
}
