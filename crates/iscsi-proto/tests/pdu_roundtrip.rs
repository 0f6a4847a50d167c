//! Every PDU type there and back, byte positions against the RFC's figures, and arbitrary headers
//! (RFC 7143 §11).

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use bytes::Bytes;
use iscsi_proto::ids::{Cid, Isid, Itt, Lun, Tsih, Ttt};
use iscsi_proto::pdu::*;
use iscsi_proto::serial::{CmdSn, DataSn, R2tSn, StatSn};
use proptest::prelude::*;

const LUN: Lun = Lun(0x0001_0203_0405_0607);
const ITT: Itt = Itt(0x1011_1213);
const TTT: Ttt = Ttt(0x1415_1617);
const CMD: CmdSn = CmdSn(0x1819_1a1b);
const STAT: StatSn = StatSn(0x1c1d_1e1f);
const EXP: CmdSn = CmdSn(0x2021_2223);
const MAX: CmdSn = CmdSn(0x2425_2627);

fn command() -> ScsiCommand {
    ScsiCommand {
        immediate: true,
        is_final: true,
        read: true,
        write: true,
        attribute: TaskAttribute::ORDERED,
        priority: 9,
        lun: LUN,
        itt: ITT,
        expected_data_transfer_length: 0x0012_3456,
        cmd_sn: CMD,
        exp_stat_sn: STAT,
        cdb: *b"0123456789abcdef",
        extended_cdb: Bytes::from_static(b"ghijk"),
        bidi_read_length: Some(0x0065_4321),
    }
}

/// One of each, every field different from zero and from the others.
fn samples() -> Vec<Pdu> {
    let status = DataInStatus { status: 0x28, residual: Residual::Overflow(9) };
    let data_in = DataIn {
        is_final: true,
        acknowledge: true,
        status: Some(status),
        lun: LUN,
        itt: ITT,
        ttt: TTT,
        stat_sn: STAT,
        exp_cmd_sn: EXP,
        max_cmd_sn: MAX,
        data_sn: DataSn(3),
        buffer_offset: 0x4000,
    };
    let login = LoginRequest {
        transit: true,
        continues: false,
        csg: Stage::LOGIN_OPERATIONAL_NEGOTIATION,
        nsg: Stage::FULL_FEATURE_PHASE,
        version_max: 1,
        version_min: 2,
        isid: Isid([1, 2, 3, 4, 5, 6]),
        tsih: Tsih(7),
        itt: ITT,
        cid: Cid(8),
        cmd_sn: CMD,
        exp_stat_sn: STAT,
    };
    vec![
        command().into(),
        ScsiResponse {
            response: ResponseCode(0x81),
            status: 2,
            status_qualifier: 0x4321,
            residual: Residual::Underflow(5),
            bidi_read_residual: Residual::Overflow(6),
            itt: ITT,
            snack_tag: 7,
            stat_sn: STAT,
            exp_cmd_sn: EXP,
            max_cmd_sn: MAX,
            exp_data_sn: 8,
        }
        .into(),
        TaskManagementRequest {
            immediate: true,
            function: TaskManagementFunction::TASK_REASSIGN,
            lun: LUN,
            itt: ITT,
            referenced_task_tag: Itt(4),
            cmd_sn: CMD,
            exp_stat_sn: STAT,
            ref_cmd_sn: CmdSn(5),
            exp_data_sn: 6,
        }
        .into(),
        TaskManagementResponse {
            response: TaskManagementResponseCode::REJECTED,
            information: [7, 8, 9],
            itt: ITT,
            stat_sn: STAT,
            exp_cmd_sn: EXP,
            max_cmd_sn: MAX,
        }
        .into(),
        DataIn { status: None, is_final: false, ..data_in.clone() }.into(),
        data_in.into(),
        DataOut {
            is_final: true,
            lun: LUN,
            itt: ITT,
            ttt: TTT,
            exp_stat_sn: STAT,
            data_sn: DataSn(4),
            buffer_offset: 5,
        }
        .into(),
        R2t {
            lun: LUN,
            itt: ITT,
            ttt: TTT,
            stat_sn: STAT,
            exp_cmd_sn: EXP,
            max_cmd_sn: MAX,
            r2t_sn: R2tSn(1),
            buffer_offset: 2,
            desired_data_transfer_length: 3,
        }
        .into(),
        AsyncMessage {
            event: AsyncEvent::VENDOR,
            vendor_code: 1,
            lun: LUN,
            stat_sn: STAT,
            exp_cmd_sn: EXP,
            max_cmd_sn: MAX,
            parameters: [2, 3, 4],
        }
        .into(),
        TextRequest {
            immediate: true,
            is_final: true,
            continues: false,
            lun: LUN,
            itt: ITT,
            ttt: TTT,
            cmd_sn: CMD,
            exp_stat_sn: STAT,
        }
        .into(),
        TextResponse {
            is_final: false,
            continues: true,
            lun: LUN,
            itt: ITT,
            ttt: TTT,
            stat_sn: STAT,
            exp_cmd_sn: EXP,
            max_cmd_sn: MAX,
        }
        .into(),
        login.into(),
        LoginResponse {
            transit: true,
            continues: false,
            csg: Stage::SECURITY_NEGOTIATION,
            nsg: Stage::LOGIN_OPERATIONAL_NEGOTIATION,
            version_max: 1,
            version_active: 2,
            isid: Isid([1, 2, 3, 4, 5, 6]),
            tsih: Tsih(7),
            itt: ITT,
            stat_sn: STAT,
            exp_cmd_sn: EXP,
            max_cmd_sn: MAX,
            status: LoginStatus::MISSING_PARAMETER,
        }
        .into(),
        LogoutRequest {
            immediate: true,
            reason: LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY,
            itt: ITT,
            cid: Cid(1),
            cmd_sn: CMD,
            exp_stat_sn: STAT,
        }
        .into(),
        LogoutResponse {
            response: LogoutResponseCode::CLEANUP_FAILED,
            itt: ITT,
            stat_sn: STAT,
            exp_cmd_sn: EXP,
            max_cmd_sn: MAX,
            time2wait: 1,
            time2retain: 2,
        }
        .into(),
        SnackRequest {
            kind: SnackKind::R_DATA,
            lun: LUN,
            itt: ITT,
            ttt_or_snack_tag: 1,
            exp_stat_sn: STAT,
            beg_run: 2,
            run_length: 3,
        }
        .into(),
        Reject {
            reason: RejectReason::PROTOCOL_ERROR,
            stat_sn: STAT,
            exp_cmd_sn: EXP,
            max_cmd_sn: MAX,
            data_sn: 1,
        }
        .into(),
        NopOut { immediate: true, lun: LUN, itt: ITT, ttt: TTT, cmd_sn: CMD, exp_stat_sn: STAT }
            .into(),
        NopIn { lun: LUN, itt: ITT, ttt: TTT, stat_sn: STAT, exp_cmd_sn: EXP, max_cmd_sn: MAX }
            .into(),
    ]
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.1
//= type=test
//# The Residual Count field MUST be valid in the case where either the U bit or the O bit is set.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.1
//= type=test
//# If neither bit is set, the Residual Count field MUST be ignored on reception and SHOULD be set
//# to 0 when sending.
#[test]
fn every_type_survives_the_wire() {
    let samples = samples();
    let mut opcodes: Vec<_> = samples.iter().map(|pdu| pdu.opcode().0).collect();
    opcodes.sort_unstable();
    opcodes.dedup();
    assert_eq!(opcodes.len(), 18, "a PDU type without a sample");
    for pdu in samples {
        let header = pdu.encode(0x0001_0203);
        assert_eq!(header.data_segment_length(), 0x0001_0203);
        assert_eq!(header.opcode(), pdu.opcode());
        assert_eq!(header.total_ahs_length(), header.ahs.len());
        assert_eq!(Pdu::parse(&header).as_ref(), Ok(&pdu));
    }
}

/// Reads `"a0 b1 …"`.
fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// The figures of §11, byte by byte.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11
//= type=test
//# Any compliant sender MUST set all bits not defined and all reserved fields to 0, unless
//# specified otherwise.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.2.1.6
//= type=test
//# The DataSegmentLength MUST be 0 whenever the PDU has no data segment.
#[test]
fn fields_lie_where_the_figures_show_them() {
    let window = "1c 1d 1e 1f 20 21 22 23 24 25 26 27";
    let names = "00 01 02 03 04 05 06 07 10 11 12 13";
    let zero = |n| "00 ".repeat(n);
    let expected = [
        format!(
            "41 e2 90 00 05 00 00 04 {names} 00 12 34 56 18 19 1a 1b 1c 1d 1e 1f
             30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66"
        ),
        format!(
            "21 92 81 02 00 00 00 04 43 21 {} 10 11 12 13 00 00 00 07 {window} 00 00 00 08
             00 00 00 06 00 00 00 05",
            zero(6)
        ),
        format!(
            "42 88 00 00 00 00 00 04 {names} 00 00 00 04 18 19 1a 1b 1c 1d 1e 1f
             00 00 00 05 00 00 00 06 {}",
            zero(8)
        ),
        format!(
            "22 80 ff 00 00 00 00 04 07 08 09 {} 10 11 12 13 {} {window} {}",
            zero(5),
            zero(4),
            zero(12)
        ),
        format!(
            "25 40 00 00 00 00 00 04 {names} 14 15 16 17 {window} 00 00 00 03 00 00 40 00 {}",
            zero(4)
        ),
        format!(
            "25 c5 00 28 00 00 00 04 {names} 14 15 16 17 {window} 00 00 00 03 00 00 40 00
             00 00 00 09"
        ),
        format!(
            "05 80 00 00 00 00 00 04 {names} 14 15 16 17 {} 1c 1d 1e 1f {} 00 00 00 04
             00 00 00 05 {}",
            zero(4),
            zero(4),
            zero(4)
        ),
        format!(
            "31 80 00 00 00 00 00 04 {names} 14 15 16 17 {window} 00 00 00 01 00 00 00 02
             00 00 00 03"
        ),
        format!(
            "32 80 00 00 00 00 00 04 00 01 02 03 04 05 06 07 ff ff ff ff {} {window}
             ff 01 00 02 00 03 00 04 {}",
            zero(4),
            zero(4)
        ),
        format!("44 80 00 00 00 00 00 04 {names} 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f {}", zero(16)),
        format!("24 40 00 00 00 00 00 04 {names} 14 15 16 17 {window} {}", zero(12)),
        format!(
            "43 87 01 02 00 00 00 04 01 02 03 04 05 06 00 07 10 11 12 13 00 08 00 00
             18 19 1a 1b 1c 1d 1e 1f {}",
            zero(16)
        ),
        format!(
            "23 81 01 02 00 00 00 04 01 02 03 04 05 06 00 07 10 11 12 13 {} {window} 02 07 {}",
            zero(4),
            zero(10)
        ),
        format!(
            "46 82 00 00 00 00 00 04 {} 10 11 12 13 00 01 00 00 18 19 1a 1b 1c 1d 1e 1f {}",
            zero(8),
            zero(16)
        ),
        format!(
            "26 80 03 00 00 00 00 04 {} 10 11 12 13 {} {window} {} 00 01 00 02 {}",
            zero(8),
            zero(4),
            zero(4),
            zero(4)
        ),
        format!(
            "10 83 00 00 00 00 00 04 {names} 00 00 00 01 {} 1c 1d 1e 1f {} 00 00 00 02
             00 00 00 03",
            zero(4),
            zero(8)
        ),
        format!(
            "3f 80 04 00 00 00 00 04 {} ff ff ff ff {} {window} 00 00 00 01 {}",
            zero(8),
            zero(4),
            zero(8)
        ),
        format!("40 80 00 00 00 00 00 04 {names} 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f {}", zero(16)),
        format!("20 80 00 00 00 00 00 04 {names} 14 15 16 17 {window} {}", zero(12)),
    ];
    for (pdu, expected) in samples().iter().zip(expected) {
        assert_eq!(pdu.encode(4).bhs.as_slice(), hex(&expected), "{:?}", pdu.opcode());
    }
    // AHSLength counts the reserved byte and no padding (§11.2.2.3, §11.2.2.4).
    let ahs = hex("00 06 01 00 67 68 69 6a 6b 00 00 00 00 05 02 00 00 65 43 21");
    assert_eq!(&command().encode(0).ahs[..], &ahs[..]);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11
//= type=test
//# Receipt of reserved code values in defined fields MUST be reported as a protocol error.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.2.1.5
//= type=test
//# The TotalAHSLength is only used in PDUs that have an AHS and MUST be 0 in all other PDUs.
#[test]
fn bad_ahs_are_refused() {
    let parse = |ahs: &str| {
        let mut header = ScsiCommand { extended_cdb: Bytes::new(), ..command() }.encode(0);
        header.ahs = hex(ahs).into();
        header.bhs[4] = (header.ahs.len() / 4) as u8;
        Pdu::parse(&header)
    };
    let truncated = |at| Err(PduError::AhsTruncated { at });
    assert!(parse("").is_ok());
    assert_eq!(parse("00 00 00 00"), Err(PduError::AhsType { kind: 0 }));
    assert_eq!(parse("00 01 03 00"), Err(PduError::AhsType { kind: 3 }));
    assert_eq!(parse("00 00 01 00"), Err(PduError::AhsLength { kind: 1, length: 0 }));
    assert!(parse("00 01 01 00").is_ok());
    assert_eq!(parse("00 04 02 00 00 00 00 00"), Err(PduError::AhsLength { kind: 2, length: 4 }));
    assert_eq!(parse("00 06 01 00 01 02 03 04"), truncated(0));
    assert_eq!(parse("ff ff 01 00"), truncated(0));
    assert_eq!(parse("00 05 02 00 00 00 00 01 00 05 02 00"), truncated(8));
    let twice = "00 05 02 00 00 00 00 01 00 05 02 00 00 00 00 01";
    assert_eq!(parse(twice), Err(PduError::AhsRepeated { kind: 2 }));
    // One byte more than any CDB has.
    let long = format!("00 f6 01 00 {} 00 00 00", "55 ".repeat(245));
    assert_eq!(parse(&long), Err(PduError::AhsLength { kind: 1, length: 246 }));
    // TotalAHSLength and AHS disagree.
    let mut header = command().encode(0);
    header.bhs[4] += 1;
    assert!(matches!(Pdu::parse(&header), Err(PduError::AhsTruncated { .. })));
    // AHS where there is none.
    let mut header = samples()[12].encode(0);
    header.bhs[4] = 1;
    header.ahs = Bytes::from_static(&[0; 4]);
    assert!(matches!(Pdu::parse(&header), Err(PduError::UnexpectedAhs { length: 4, .. })));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//= type=test
//# As negotiation text may span PDU boundaries, a Text or Login Request or a Text or Login Response
//# PDU that has the C bit set to 1 MUST NOT have the F bit or T bit set to 1.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.1
//= type=test
//# Bits O and U and bits o and u are mutually exclusive (i.e., having both o and u or O and U set
//# to 1 is a protocol error).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.3
//= type=test
//# If this bit is set to 1, the F bit MUST also be set to 1.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.10.2
//= type=test
//# A Text Request with the C bit set to 1 MUST have the F bit set to 0.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.2
//= type=test
//# A Text Response with the C bit set to 1 MUST have the F bit set to 0.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.2
//= type=test
//# A Login Request with the C bit set to 1 MUST have the T bit set to 0.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.7
//= type=test
//# A Login Response with the C bit set to 1 MUST have the T bit set to 0.
#[test]
fn contradictory_flags_are_refused() {
    let patched = |pdu: Pdu, flags: u8| {
        let mut header = pdu.encode(0);
        header.bhs[1] = flags;
        Pdu::parse(&header)
    };
    let by_opcode = |opcode| samples().into_iter().find(|pdu| pdu.opcode() == opcode).unwrap();
    let response = by_opcode(Opcode::SCSI_RESPONSE);
    for both in [0x86, 0x98] {
        let error = patched(response.clone(), both).unwrap_err();
        assert_eq!(error, PduError::Residual { opcode: Opcode::SCSI_RESPONSE });
    }
    let data_in = by_opcode(Opcode::DATA_IN);
    assert_eq!(patched(data_in.clone(), 0x01), Err(PduError::DataInFlags { flags: 0x01 }));
    assert!(matches!(patched(data_in, 0x87), Err(PduError::Residual { .. })));
    for opcode in
        [Opcode::LOGIN_REQUEST, Opcode::LOGIN_RESPONSE, Opcode::TEXT_REQUEST, Opcode::TEXT_RESPONSE]
    {
        let error = patched(by_opcode(opcode), 0xc0).unwrap_err();
        assert_eq!(error, PduError::FinalAndContinue { opcode });
    }
}

#[test]
fn unknown_codes_survive_and_print_in_hex() {
    let mut header = samples()[0].encode(0);
    header.bhs[0] = 0x5c;
    let error = Pdu::parse(&header).unwrap_err();
    assert_eq!(error, PduError::Opcode { opcode: Opcode(0x1c) });
    assert_eq!(error.to_string(), "unknown opcode 0x1c");
    assert_eq!(format!("{:?}", LogoutReason(0x55)), "LogoutReason(0x55)");
    assert_eq!(format!("{:?}", LogoutReason(1)), "LogoutReason::CLOSE_CONNECTION");
    assert_eq!(LoginStatus(0x0207).to_string(), "MISSING_PARAMETER");
    let odd = TaskManagementResponse {
        response: TaskManagementResponseCode(0x77),
        information: [0; 3],
        itt: ITT,
        stat_sn: STAT,
        exp_cmd_sn: EXP,
        max_cmd_sn: MAX,
    };
    assert_eq!(Pdu::parse(&odd.encode(0)), Ok(odd.into()));
}

#[test]
fn sense_is_never_longer_than_what_came() {
    assert_eq!(&encode_sense(b"abc")[..], b"\0\x03abc");
    assert!(encode_sense(b"").is_empty());
    for (data, sense) in [
        (&b""[..], &b""[..]),
        (b"\0", b""),
        (b"\0\x02ab", b"ab"),
        (b"\0\x02abcd", b"ab"),
        (b"\xff\xffab", b"ab"),
    ] {
        assert_eq!(parse_sense(data), sense);
    }
}

proptest! {
    /// Any 48 bytes: no panic, and what parses comes back the same after a second trip.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11
    //= type=test
    //# Any compliant receiver MUST ignore any bit not defined and all reserved fields unless
    //# specified otherwise.
    #[test]
    fn any_header(
        mut bhs in proptest::collection::vec(any::<u8>(), 48),
        opcode in 0u8..0x40,
        ahs in proptest::collection::vec(any::<u8>(), 0..256),
        keep_ahs in any::<bool>(),
    ) {
        bhs[0] = bhs[0] & 0xc0 | opcode;
        let ahs = if keep_ahs { ahs[..ahs.len() / 4 * 4].to_vec() } else { Vec::new() };
        bhs[4] = (ahs.len() / 4) as u8;
        let header = Header { bhs: bhs.try_into().unwrap(), ahs: ahs.into() };
        if let Ok(pdu) = Pdu::parse(&header) {
            let again = pdu.encode(header.data_segment_length());
            prop_assert_eq!(again.data_segment_length(), header.data_segment_length());
            prop_assert_eq!(Pdu::parse(&again).unwrap(), pdu);
        }
    }

    /// Any AHS area of a command.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.2.2.3
    //= type=test
    //# This type of AHS MUST NOT be used if the CDBLength is less than 17.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.3.5
    //= type=test
    //# Whenever the CDB is larger than 16 bytes, an Extended CDB AHS MUST be used to contain the
    //# CDB spillover.
    #[test]
    fn extended_cdb_of_any_length(length in 0usize..=EXTENDED_CDB_MAX, bidi in any::<Option<u32>>()) {
        let extended_cdb = Bytes::from(vec![0xa5; length]);
        let pdu = ScsiCommand { extended_cdb, bidi_read_length: bidi, ..command() };
        let header = pdu.encode(0);
        prop_assert!(header.ahs.len() <= 256 && header.ahs.len().is_multiple_of(4));
        prop_assert_eq!(Pdu::parse(&header).unwrap(), Pdu::from(pdu));
    }
}
