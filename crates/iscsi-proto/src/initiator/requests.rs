//! The headers of requests: what each says of itself, and how much of a write goes out unasked
//! (RFC 7143 §11.3, §11.10, §11.18, §13.10, §13.11, §13.14). When they are sent is `transmit`'s.

use bytes::Bytes;

use super::Command;
use super::task::TextTask;
use crate::ids::{Itt, Lun, Ttt};
use crate::keys::{ConnectionParams, SessionParams};
use crate::pdu::{DATA_SEGMENT_LENGTH_LIMIT, Header, NopOut, ScsiCommand, TextRequest};
use crate::serial::{CmdSn, StatSn};

/// How much of a write goes out unasked (§13.10, §13.11, §13.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unsolicited {
    /// With the command itself.
    pub(super) immediate: u32,
    /// End of the Data-Out sequence that follows it, as offset in the data.
    pub(super) end: u32,
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.3.4
//# If the Expected Data Transfer Length is higher than the FirstBurstLength (the negotiated maximum
//# amount of unsolicited data the target will accept), the initiator MUST send the maximum amount
//# of unsolicited data OR ONLY the immediate data, if any.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.8
//# In order to allow write operations without an explicit initial R2T, the initiator and target
//# MUST have negotiated the key InitialR2T to No during login.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.11
//# If ImmediateData is set to No and InitialR2T is set to No, then the initiator MUST NOT send
//# unsolicited immediate data but MAY send one unsolicited burst of Data-OUT PDUs.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.14
//# The initiator and target negotiate the maximum amount in bytes of unsolicited data an iSCSI
//# initiator may send to the target during the execution of a single SCSI command.
pub(super) fn unsolicited(
    len: u32,
    session: &SessionParams,
    connection: &ConnectionParams,
) -> Unsolicited {
    let allowed = len.min(session.first_burst_length);
    let segment = segment_length_max(connection);
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.2
    //# All subsequent data MUST be solicited.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.2
    //# If any non-immediate unsolicited data is sent, the total unsolicited data MUST be either
    //# FirstBurstLength or all of the data, if the total amount is less than the FirstBurstLength.
    let immediate = if session.immediate_data { allowed.min(segment) } else { 0 };
    //= https://www.rfc-editor.org/rfc/rfc7143#section-13.11
    //# If ImmediateData is set to No and InitialR2T is set to Yes, then the initiator MUST NOT send
    //# unsolicited data and the target MUST reject unsolicited data with the corresponding response
    //# code.
    Unsolicited { immediate, end: if session.initial_r2t { immediate } else { allowed } }
}

pub(super) fn segment_length_max(connection: &ConnectionParams) -> u32 {
    // 512 is the smallest legal MaxRecvDataSegmentLength (§13.12); never 0, or data would not move.
    connection.max_send_data_segment_length.clamp(512, DATA_SEGMENT_LENGTH_LIMIT)
}

pub(super) fn command(
    command: &Command,
    itt: Itt,
    cmd_sn: CmdSn,
    exp_stat_sn: StatSn,
    plan: Unsolicited,
) -> Header {
    let len = command.data_out.len() as u32; // checked by `submit`
    ScsiCommand {
        //= https://www.rfc-editor.org/rfc/rfc7143#section-10.6
        //# All commands that change the state of the device (e.g., SPACE commands for sequential
        //# access devices and EXCHANGE MEDIUM commands for medium changer devices) MUST be issued
        //# as non-immediate commands for deterministic and ordered delivery to iSCSI targets.
        immediate: false,
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.3.1
        //# At least one of the W and F bits MUST be set to 1.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.3.4
        //# In this case, the F bit MUST be set to 1.
        is_final: plan.end == plan.immediate,
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.3.1
        //# Either or both of R and W MAY be 1 when the Expected Data Transfer Length and/or the
        //# Bidirectional Read Expected Data Transfer Length are 0, but they MUST NOT both be 0 when
        //# the Expected Data Transfer Length and/or Bidirectional Read Expected Data Transfer
        //# Length are not 0 (i.e., when some data transfer is expected, the transfer direction is
        //# indicated by the R and/or W bit).
        read: command.data_in_len > 0,
        write: len > 0,
        attribute: command.attribute,
        priority: 0,
        lun: command.lun,
        itt,
        expected_data_transfer_length: len.max(command.data_in_len),
        cmd_sn,
        exp_stat_sn,
        cdb: command.cdb,
        extended_cdb: Bytes::new(),
        bidi_read_length: None,
    }
    .encode(plan.immediate)
}

/// The next piece of a text, or an empty request for more of the answer.
pub(super) fn text_request(
    text: &mut TextTask,
    itt: Itt,
    (cmd_sn, exp_stat_sn): (CmdSn, StatSn),
    segment: usize,
) -> (Header, Bytes) {
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.10.5
    //# The data lengths of a Text Request MUST NOT exceed the iSCSI target MaxRecvDataSegmentLength
    //# (a parameter that is negotiated per connection and per direction).
    let rest = text.request.split_off(text.request.len().min(segment));
    let payload = std::mem::replace(&mut text.request, rest);
    let continues = !text.request.is_empty();
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.10.3
    //# If the command is sent as part of a sequence of Text Requests and responses, the Initiator
    //# Task Tag MUST be the same for all the requests within the sequence (similar to linked SCSI
    //# commands).
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.10.3
    //# The I bit for all requests in a sequence also MUST be the same.
    let pdu = TextRequest {
        immediate: true,
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.4
        //# The initiator MUST indicate its intent to finish the negotiation by setting the F bit to
        //# 1; the target sets the F bit to 1 on the last response.
        is_final: !continues,
        continues,
        lun: text.lun,
        itt,
        ttt: text.ttt,
        cmd_sn,
        exp_stat_sn,
    };
    (pdu.encode(payload.len() as u32), payload)
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.18.1
//# The NOP-Out MUST have the Initiator Task Tag set to a valid value only if a response in the form
//# of a NOP-In is requested (i.e., the NOP-Out is used as a ping request).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.18.2
//# Otherwise, the Target Transfer Tag MUST be set to 0xffffffff.
pub(super) fn ping(itt: Itt, cmd_sn: CmdSn, exp_stat_sn: StatSn, immediate: bool) -> Header {
    let (lun, ttt) = (Lun(0), Ttt::NONE);
    NopOut { immediate, lun, itt, ttt, cmd_sn, exp_stat_sn }.encode(0)
}

#[cfg(test)]
mod unsolicited_data {
    use super::*;
    use crate::keys::DigestKind;

    fn plan(len: u32, initial_r2t: bool, immediate_data: bool, segment: u32) -> (u32, u32) {
        let session = SessionParams {
            initial_r2t,
            immediate_data,
            first_burst_length: 65536,
            ..super::super::tests::session_params()
        };
        let connection = ConnectionParams {
            header_digest: DigestKind::None,
            data_digest: DigestKind::None,
            max_recv_data_segment_length: 8192,
            max_send_data_segment_length: segment,
        };
        let plan = unsolicited(len, &session, &connection);
        (plan.immediate, plan.end)
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.2
    //= type=test
    //# All subsequent data MUST be solicited.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.2
    //= type=test
    //# If any non-immediate unsolicited data is sent, the total unsolicited data MUST be either
    //# FirstBurstLength or all of the data, if the total amount is less than the FirstBurstLength.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.3.1
    //= type=test
    //# At least one of the W and F bits MUST be set to 1.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.3.4
    //= type=test
    //# In this case, the F bit MUST be set to 1.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.3.4
    //= type=test
    //# If the Expected Data Transfer Length is higher than the FirstBurstLength (the negotiated
    //# maximum amount of unsolicited data the target will accept), the initiator MUST send the
    //# maximum amount of unsolicited data OR ONLY the immediate data, if any.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.8
    //= type=test
    //# In order to allow write operations without an explicit initial R2T, the initiator and target
    //# MUST have negotiated the key InitialR2T to No during login.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-13.11
    //= type=test
    //# If ImmediateData is set to No and InitialR2T is set to No, then the initiator MUST NOT send
    //# unsolicited immediate data but MAY send one unsolicited burst of Data-OUT PDUs.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-13.11
    //= type=test
    //# If ImmediateData is set to No and InitialR2T is set to Yes, then the initiator MUST NOT send
    //# unsolicited data and the target MUST reject unsolicited data with the corresponding response
    //# code.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-13.14
    //= type=test
    //# The initiator and target negotiate the maximum amount in bytes of unsolicited data an iSCSI
    //# initiator may send to the target during the execution of a single SCSI command.
    #[test]
    fn follows_the_four_combinations_of_the_keys() {
        assert_eq!(plan(1 << 20, true, false, 8192), (0, 0));
        assert_eq!(plan(1 << 20, true, true, 8192), (8192, 8192));
        assert_eq!(plan(1 << 20, false, false, 8192), (0, 65536));
        assert_eq!(plan(1 << 20, false, true, 8192), (8192, 65536));
        assert_eq!(plan(4096, false, true, 8192), (4096, 4096));
        assert_eq!(plan(1 << 20, true, true, 262_144), (65536, 65536));
        assert_eq!(plan(0, false, true, 8192), (0, 0));
    }
}
