//! Task Management Function Request and Response (RFC 7143 §11.5, §11.6; RFC 7144 §4).

use super::header::FINAL;
use super::{Header, Opcode, PduError};
use crate::ids::{Itt, Lun};
use crate::serial::{CmdSn, StatSn};

wire_code! {
    /// What to do with which tasks (§11.5.1; from QUERY TASK on RFC 7144 §4.1).
    TaskManagementFunction(u8) {
        /// Abort the referenced task.
        ABORT_TASK = 1,
        /// Abort all tasks of this session on the logical unit.
        ABORT_TASK_SET = 2,
        /// Clear auto contingent allegiance.
        CLEAR_ACA = 3,
        /// Abort all tasks of every session on the logical unit.
        CLEAR_TASK_SET = 4,
        /// Reset the logical unit.
        LOGICAL_UNIT_RESET = 5,
        /// Reset every logical unit.
        TARGET_WARM_RESET = 6,
        /// The same, and end every session.
        TARGET_COLD_RESET = 7,
        /// Take over a task of a lost connection.
        TASK_REASSIGN = 8,
        /// Is the task there? (SAM-5)
        QUERY_TASK = 9,
        /// Is any task there? (SAM-5)
        QUERY_TASK_SET = 10,
        /// Reset this session's share of the target (SAM-5).
        I_T_NEXUS_RESET = 11,
        /// Is a unit attention or deferred error pending? (SAM-5)
        QUERY_ASYNCHRONOUS_EVENT = 12,
    }
}

wire_code! {
    /// What came of it (§11.6.1).
    TaskManagementResponseCode(u8) {
        /// Function complete.
        COMPLETE = 0,
        /// Task does not exist.
        TASK_DOES_NOT_EXIST = 1,
        /// LUN does not exist.
        LUN_DOES_NOT_EXIST = 2,
        /// Task is still allegiant to a connection that works.
        TASK_STILL_ALLEGIANT = 3,
        /// Task allegiance reassignment not supported.
        REASSIGNMENT_NOT_SUPPORTED = 4,
        /// Task management function not supported.
        NOT_SUPPORTED = 5,
        /// Function authorization failed.
        AUTHORIZATION_FAILED = 6,
        /// Function succeeded: the answer of a query is yes (RFC 7144 §4.2).
        SUCCEEDED = 7,
        /// Function rejected.
        REJECTED = 255,
    }
}

impl TaskManagementFunction {
    /// Added by RFC 7144: only at iSCSIProtocolLevel 2.
    pub const fn is_of_rfc7144(self) -> bool {
        matches!(self.0, 9..=12)
    }

    /// Ends all tasks of a unit (§4.2.3.1).
    pub const fn ends_unit(self) -> bool {
        matches!(self, Self::ABORT_TASK_SET | Self::CLEAR_TASK_SET | Self::LOGICAL_UNIT_RESET)
    }

    /// Ends all tasks of the session (§4.2.3.1, RFC 7144 §6.5).
    pub const fn ends_session_tasks(self) -> bool {
        matches!(self, Self::TARGET_WARM_RESET | Self::TARGET_COLD_RESET | Self::I_T_NEXUS_RESET)
    }
}

/// Task Management Function Request (§11.5). No data segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskManagementRequest {
    /// I: deliver at once, outside CmdSN order.
    pub immediate: bool,
    /// The function.
    pub function: TaskManagementFunction,
    /// Logical unit, for the functions that have one.
    pub lun: Lun,
    /// Tag of this request.
    pub itt: Itt,
    /// Tag of the task it is about, else [`Itt::NONE`].
    pub referenced_task_tag: Itt,
    /// Command sequence number.
    pub cmd_sn: CmdSn,
    /// Next StatSN the initiator expects on this connection.
    pub exp_stat_sn: StatSn,
    /// CmdSN of the task to be aborted (§11.5.5).
    pub ref_cmd_sn: CmdSn,
    /// With TASK REASSIGN: next DataSN or R2TSN the initiator expects (§11.5.6).
    pub exp_data_sn: u32,
}

impl TaskManagementRequest {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        Ok(Self {
            immediate: header.immediate(),
            function: TaskManagementFunction(header.bhs[1] & 0x7f),
            lun: header.lun(),
            itt: header.itt(),
            referenced_task_tag: Itt(header.be32(20)),
            cmd_sn: header.cmd_sn(),
            exp_stat_sn: header.exp_stat_sn(),
            ref_cmd_sn: CmdSn(header.be32(32)),
            exp_data_sn: header.be32(36),
        })
    }

    /// The header; this PDU has no data segment.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::TASK_MANAGEMENT_REQUEST, data_segment_length);
        header.set_immediate(self.immediate);
        header.bhs[1] = FINAL | self.function.0 & 0x7f;
        header.put_names(self.lun, self.itt);
        header.put32(20, self.referenced_task_tag.0);
        header.put_request_numbers(self.cmd_sn, self.exp_stat_sn);
        header.put32(32, self.ref_cmd_sn.0);
        header.put32(36, self.exp_data_sn);
        header
    }
}

/// Task Management Function Response (§11.6). No data segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskManagementResponse {
    /// What came of it.
    pub response: TaskManagementResponseCode,
    /// Additional Response Information of a query (RFC 7144 §6.4.1, SAM-5), else 0.
    pub information: [u8; 3],
    /// Tag of the request.
    pub itt: Itt,
    /// Status sequence number.
    pub stat_sn: StatSn,
    /// Next CmdSN the target expects.
    pub exp_cmd_sn: CmdSn,
    /// Highest CmdSN the target accepts.
    pub max_cmd_sn: CmdSn,
}

impl TaskManagementResponse {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        Ok(Self {
            response: TaskManagementResponseCode(header.bhs[2]),
            information: header.array(8),
            itt: header.itt(),
            stat_sn: header.stat_sn(),
            exp_cmd_sn: header.exp_cmd_sn(),
            max_cmd_sn: header.max_cmd_sn(),
        })
    }

    /// The header; this PDU has no data segment.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::TASK_MANAGEMENT_RESPONSE, data_segment_length);
        header.bhs[1] = FINAL;
        header.bhs[2] = self.response.0;
        header.put(8, self.information);
        header.put32(16, self.itt.0);
        header.put_window(self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        header
    }
}
