//! What is wrong with a PDU, and what becomes of its command and its connection: damage, data that
//! is not what it should be, headers that cannot be (RFC 7143 §7.3, §7.7, §7.8, §11.17).

use bytes::Bytes;

use super::event::{ConnId, Event, SessionError};
use super::receive::Receiving;
use super::session::Session;
use super::task::{Phase, TransferFault};
use super::transmit::Reply;
use crate::connection::Placement;
use crate::ids::Itt;
use crate::pdu::{Header, RejectReason};

impl Session {
    /// A data segment arrived damaged; true: the whole PDU is discarded. From error recovery level
    /// 1 on, lost data is asked for again and lost requests are sent again by the initiator
    /// (§7.2.1). At level 0 nobody does that: a command fails, and any other request takes the
    /// connection with it after the Reject.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.3
    //# Targets MUST NOT implicitly terminate an active task by sending a Reject PDU for any PDU
    //# exchanged during the life of the task.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
    //# When a target receives any iSCSI PDU with a payload digest error, it MUST answer with a
    //# Reject PDU with a reason code of Data-Digest-Error and discard the PDU.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
    //# If the discarded PDU is a solicited or unsolicited iSCSI data PDU (for immediate data in a
    //# command PDU, the non-data PDU rule below applies), the target MUST do one of the following:
    pub(super) fn digest_error(&mut self, conn: ConnId, receiving: &Receiving) -> bool {
        let recovers = self.recovers();
        match receiving {
            Receiving::Nothing | Receiving::Ignored if !recovers => return true,
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.3
            //# The CmdSN of the rejected command PDU (if it is a non-immediate command) MUST NOT be
            //# considered received by the target (i.e., a command sequence gap must be assumed for
            //# the CmdSN), even though the CmdSN of the rejected command PDU may be reliably
            //# ascertained.
            // The number of a command that is discarded stays free (§7.3), and at level 0 its
            // initiator need not know how to fill the gap: the session begins anew, once the
            // Reject has been sent.
            Receiving::Scratch(_) | Receiving::Command { .. } if !recovers => {
                self.close_event(conn, "data digest error");
            }
            _ => {}
        }
        let closes = !recovers && !matches!(receiving, Receiving::DataOut { .. });
        let Some(connection) = self.connections.get_mut(&conn) else { return true };
        connection.closing |= closes;
        let header = Bytes::copy_from_slice(&connection.last_header);
        let reason = RejectReason::DATA_DIGEST_ERROR;
        self.push_reply(conn, Reply::Reject { reason, data_sn: 0, header });
        match receiving {
            // Its number stays free: the same command comes again.
            Receiving::Command { itt, .. } => self.discard_command(conn, *itt),
            Receiving::DataOut { pdu, .. } if !recovers => self.damage(pdu.itt),
            _ => {}
        }
        !matches!(receiving, Receiving::DataOut { .. })
    }

    /// Forgets a command whose PDU never arrived whole.
    pub(super) fn discard_command(&mut self, conn: ConnId, itt: Itt) {
        if self.take_task(itt).is_some() {
            self.ended(itt);
            self.push_event(conn, Event::Dropped(itt));
        }
    }

    /// Data of the command is damaged and will not be asked for again: it is answered once all
    /// that is under way has come.
    pub(super) fn damage(&mut self, itt: Itt) {
        if let Some(task) = self.tasks.get_mut(&itt) {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.17.1
            //# In all the cases in which a pre-instantiated SCSI task is terminated because of the
            //# reject, the target MUST issue a proper SCSI command response with CHECK CONDITION as
            //# described in Section 11.4.3.
            task.fault = task.fault.or(Some(TransferFault::Damaged));
            self.waiting_for_buffer.retain(|waiting| *waiting != itt);
            self.release(itt);
        }
    }

    /// The data of a write is not what it should be: the command will be answered, not executed,
    /// once its initiator has said what it has to say.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.2
    //# If a SCSI device error is detected while data from the initiator is still expected (the
    //# command PDU did not contain all the data and the target has not received a data PDU with the
    //# Final bit set), the target MUST wait until it receives a data PDU with the F bit set in the
    //# last expected sequence before sending the Response PDU.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.17.1
    //# If the error is detected while data from the initiator is still expected (i.e., the command
    //# PDU did not contain all the data and the target has not received a Data-Out PDU with the
    //# Final bit set to 1 for the unsolicited data, if any, and all outstanding R2Ts, if any), the
    //# target MUST wait until it receives the last expected Data-Out PDUs with the F bit set to 1
    //# before sending the Response PDU.
    pub(super) fn fail_transfer(&mut self, itt: Itt, fault: TransferFault) {
        if let Some(task) = self.tasks.get_mut(&itt)
            && task.phase == Phase::Collecting
        {
            task.fault = Some(fault);
            task.lost.clear();
            self.waiting_for_buffer.retain(|waiting| *waiting != itt);
            self.release(itt);
            self.execute_if_complete(itt);
        }
    }

    pub(super) fn reject(
        &mut self,
        conn: ConnId,
        reason: RejectReason,
        header: &Header,
    ) -> Result<Placement, SessionError> {
        self.push_reply(
            conn,
            Reply::Reject { reason, data_sn: 0, header: Bytes::copy_from_slice(&header.bhs) },
        );
        self.ignore(conn, header.data_segment_length())
    }

    /// A PDU whose fields are illegal or contradict others: nothing more is taken from its sender.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.7
    //# When a target or an initiator receives an iSCSI PDU with a format error, it MUST immediately
    //# terminate all transport connections in the session with either a connection close or a
    //# connection reset, and escalate the format error to session recovery (see Section 7.1.4.4).
    pub(super) fn format_error(
        &mut self,
        conn: ConnId,
        itt: Itt,
        what: &'static str,
    ) -> SessionError {
        let error = self.error(conn, itt, what);
        self.close("format error");
        error
    }
}
