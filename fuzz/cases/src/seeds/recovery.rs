//! Seeds of the sessions at error recovery levels 1 and 2: damage and what is asked for again,
//! connections that are lost and come back, tasks that go on elsewhere.

use iscsi_proto::ids::{Cid, Itt, Lun, Ttt};
use iscsi_proto::pdu::{
    DataOut, Header, LogoutReason, LogoutRequest, ScsiCommand, SnackKind, SnackRequest,
    TaskManagementFunction, TaskManagementRequest,
};
use iscsi_proto::serial::{CmdSn, DataSn, StatSn};

use super::{bhs, record, scsi_command};

/// The level in the first byte of an input.
const LEVEL_1: u8 = 1 << 5;
const LEVEL_2: u8 = 2 << 5;
/// A PDU on the first or second connection, with numbers that are expected.
const FIRST: u8 = 0x20;
const SECOND: u8 = 0x21;
/// Its data is damaged.
const DAMAGED: u8 = 0x40;

const EXP_STAT_SN: StatSn = StatSn(u32::MAX - 1);

fn command(itt: u32, cdb0: u8, read: u32, write: u32, immediate: u32) -> Header {
    let mut cdb = [0; 16];
    cdb[0] = cdb0;
    ScsiCommand { exp_stat_sn: EXP_STAT_SN, ..scsi_command(itt, cdb, read, write) }
        .encode(immediate)
}

fn data_out(itt: u32, data_sn: u32, offset: u32, len: u32, is_final: bool) -> Header {
    let (itt, ttt, data_sn) = (Itt(itt), Ttt(0), DataSn(data_sn));
    let (lun, exp_stat_sn, buffer_offset) = (Lun(0), EXP_STAT_SN, offset);
    DataOut { is_final, lun, itt, ttt, exp_stat_sn, data_sn, buffer_offset }.encode(len)
}

fn snack(kind: SnackKind, itt: Itt) -> Header {
    let (lun, exp_stat_sn, ttt_or_snack_tag) = (Lun(0), EXP_STAT_SN, u32::MAX);
    let (beg_run, run_length) = (0, 0);
    SnackRequest { kind, lun, itt, ttt_or_snack_tag, exp_stat_sn, beg_run, run_length }.encode(0)
}

fn logout(cid: u16) -> Header {
    LogoutRequest {
        immediate: true,
        reason: LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY,
        itt: Itt(90),
        cid: Cid(cid),
        cmd_sn: CmdSn(0),
        exp_stat_sn: EXP_STAT_SN,
    }
    .encode(0)
}

fn reassign(referenced: u32) -> Header {
    TaskManagementRequest {
        immediate: true,
        function: TaskManagementFunction::TASK_REASSIGN,
        lun: Lun(0),
        itt: Itt(80 + referenced),
        referenced_task_tag: Itt(referenced),
        cmd_sn: CmdSn(0),
        exp_stat_sn: EXP_STAT_SN,
        ref_cmd_sn: CmdSn(0),
        exp_data_sn: 0,
    }
    .encode(0)
}

pub(super) fn target_session() -> Vec<(&'static str, Vec<u8>)> {
    [within_a_connection(), over_another_connection()].concat()
}

fn within_a_connection() -> Vec<(&'static str, Vec<u8>)> {
    let pdu = |what: u8, header: Header| record(what, &header, &[]);
    let (complete, fetch) = ([20, 0], [22, 255]);
    let read = pdu(FIRST, command(1, 0x28, 2048, 0, 0));
    let write = pdu(FIRST, command(2, 0x2a, 0, 1024, 0));
    let half = pdu(FIRST, data_out(2, 0, 0, 256, false));
    let damaged = pdu(FIRST | DAMAGED, data_out(2, 1, 256, 256, true));
    let missing = data_out(2, 0, 0, 256, true); // what a recovery R2T asks for
    vec![
        (
            "snack",
            [
                &[LEVEL_1][..],
                &read,
                &[20, 128],
                &fetch,
                &pdu(FIRST, snack(SnackKind::DATA_OR_R2T, Itt(1))),
                &pdu(FIRST, snack(SnackKind::STATUS, Itt::NONE)),
                &fetch,
            ]
            .concat(),
        ),
        (
            "recovery_r2t",
            [
                &[LEVEL_1 | 3][..],
                &write,
                &fetch,
                &half,
                &damaged,
                &fetch,
                &pdu(FIRST, missing),
                &fetch,
                &pdu(FIRST, data_out(2, 0, 0, 512, true)),
                &complete,
                &fetch,
            ]
            .concat(),
        ),
    ]
}

fn over_another_connection() -> Vec<(&'static str, Vec<u8>)> {
    let pdu = |what: u8, header: Header| record(what, &header, &[]);
    let (complete, fetch, fetch_second) = (vec![20, 0], vec![22, 255], vec![23, 255]);
    let (lose, join, bury, minute) = (vec![30, 0], vec![30, 1], vec![30, 5], vec![26, 60]);
    let read = pdu(FIRST, command(1, 0x28, 2048, 0, 0));
    let write = pdu(FIRST, command(2, 0x2a, 0, 1024, 0));
    let half = pdu(FIRST, data_out(2, 0, 0, 256, false));
    let rest = pdu(FIRST, data_out(2, 1, 256, 256, true));
    let missing = data_out(2, 0, 0, 256, true); // what a recovery R2T asks for
    let whole = pdu(SECOND, data_out(2, 0, 0, 512, true));
    let moved = [pdu(SECOND, logout(1)), pdu(SECOND, reassign(2)), pdu(SECOND, reassign(1))];
    let again = [pdu(SECOND, missing), fetch_second.clone(), whole].concat();
    let again = [again, complete.clone(), complete.clone(), fetch_second.clone()].concat();
    let begin = [read.clone(), write.clone(), fetch.clone()].concat();
    vec![
        (
            "reassigned",
            [&[LEVEL_2 | 3][..], &begin, &half, &lose, &moved.concat(), &fetch_second, &again]
                .concat(),
        ),
        (
            "reinstated",
            [
                &[LEVEL_2 | 3][..],
                &begin,
                &half,
                &join,
                &moved[1],
                &bury,
                &moved[2],
                &fetch_second,
                &again,
                &minute,
            ]
            .concat(),
        ),
        (
            "never_taken_over",
            [&[LEVEL_2][..], &begin, &complete, &fetch, &lose, &minute, &fetch_second].concat(),
        ),
        ("any_order", [&[LEVEL_2 | 0x80 | 3, 3][..], &begin, &rest, &half, &fetch, &lose].concat()),
    ]
}

pub(super) fn initiator_session() -> Vec<(&'static str, Vec<u8>)> {
    let none: (usize, &[u8]) = (20, &[255; 4]);
    let window: (usize, &[u8]) = (32, &[0, 0, 0, 16]);
    let data_in = bhs(0x25, 0x81, &[(5, &[0, 2, 0]), none, window]);
    let gone = bhs(0x26, 0x80, &[window, (40, &[0, 0, 0, 20])]);
    let taken_over = bhs(0x22, 0x80, &[window]);
    let late = bhs(0x25, 0x81, &[(5, &[0, 2, 0]), none, window, (39, &[3])]);
    let (read, send, send_second) = ([16, 2, 0], [20], [21]);
    let (lose, join, seconds) = ([30, 0], [30, 4], [26, 0x0f, 0xa0]);
    let first = |damage: u8, header: &Header| record(0x60 | damage, header, &[]);
    let second = |header: &Header| record(0x61, header, &[]);
    let begin = [&read[..], &send].concat();
    let moved =
        [&send_second[..], &second(&gone), &seconds, &send_second, &second(&taken_over)].concat();
    vec![
        (
            "damaged",
            [&[LEVEL_1][..], &begin, &first(0x80, &data_in), &send, &first(0, &data_in)].concat(),
        ),
        (
            "missing",
            [&[LEVEL_1][..], &begin, &first(0, &late), &send, &seconds, &seconds, &send].concat(),
        ),
        ("moved", [&[LEVEL_2][..], &begin, &lose, &seconds, &moved, &second(&data_in)].concat()),
        (
            "came_back",
            [
                &[LEVEL_2][..],
                &begin,
                &lose,
                &join,
                &send_second,
                &second(&taken_over),
                &second(&data_in),
            ]
            .concat(),
        ),
        ("never_came_back", [&[LEVEL_2][..], &begin, &lose, &[31, 0], &seconds].concat()),
    ]
}
