//! ORDERED commands of a session (SAM-5 §8.6, §8.8): handed out when all older commands to their
//! unit have ended, while the newer ones wait for their end.
//!
//! Only the session knows which command is older: data may be complete in another order, and the
//! connections hand out their commands independently. A command that is held back counts as one
//! whose turn has not come, so it never keeps memory from those before it. Commands of other
//! sessions and HEAD OF QUEUE are the device server's business. Without ORDERED commands all this
//! is two empty lists.

use std::collections::VecDeque;

use super::session::Session;
use super::task::Phase;
use crate::ids::Itt;
use crate::pdu::TaskAttribute;

/// What is ordered, and what is held back by it.
#[derive(Debug, Default)]
pub(super) struct Attributes {
    /// ORDERED commands whose turn has come and that have not ended.
    ordered: Vec<Itt>,
    /// Commands whose CmdSN's turn has come and that wait, oldest first.
    behind: VecDeque<Itt>,
}

impl Session {
    /// The turn of a command has come by its CmdSN. True: it has to wait all the same, and is
    /// delivered later.
    pub(super) fn is_held_back(&mut self, itt: Itt) -> bool {
        let alone = self.attributes.ordered.is_empty() && self.attributes.behind.is_empty();
        if alone && self.attribute(itt) != Some(TaskAttribute::ORDERED) {
            return false;
        }
        if !self.waits(itt, self.attributes.behind.len()) {
            self.note_turn(itt);
            return false;
        }
        self.attributes.behind.push_back(itt);
        true
    }

    /// A command has ended: those that waited for it may go on.
    pub(super) fn ended(&mut self, itt: Itt) {
        if self.attributes.ordered.is_empty() && self.attributes.behind.is_empty() {
            return;
        }
        self.attributes.ordered.retain(|ordered| *ordered != itt);
        self.attributes.behind.retain(|behind| *behind != itt);
        let mut at = 0;
        while let Some(&waiting) = self.attributes.behind.get(at) {
            if self.waits(waiting, at) {
                at += 1;
                continue;
            }
            self.attributes.behind.remove(at);
            self.note_turn(waiting);
            self.take_turn(waiting);
        }
    }

    fn note_turn(&mut self, itt: Itt) {
        if self.attribute(itt) == Some(TaskAttribute::ORDERED) {
            self.attributes.ordered.push(itt);
        }
    }

    /// Does a command have to wait for others, among them the first `before` of those that wait?
    fn waits(&self, itt: Itt, before: usize) -> bool {
        let Some(lun) = self.tasks.get(&itt).map(|task| task.lun()) else { return false };
        let here = |other: &Itt| self.tasks.get(other).is_some_and(|task| task.lun() == lun);
        match self.attribute(itt) {
            Some(TaskAttribute::HEAD_OF_QUEUE) => false,
            _ if self.attributes.behind.iter().take(before).any(here) => true,
            Some(TaskAttribute::ORDERED) => self.tasks.values().any(|task| {
                let begun = task.in_order && task.phase != Phase::Responding;
                task.command.itt != itt && begun && task.lun() == lun
            }),
            _ => self.attributes.ordered.iter().any(here),
        }
    }

    fn attribute(&self, itt: Itt) -> Option<TaskAttribute> {
        self.tasks.get(&itt).map(|task| task.command.attribute)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::connection::Placement;
    use crate::ids::{Cid, Isid, Lun, Tsih, Ttt};
    use crate::keys::{ConnectionParams, SessionParams};
    use crate::login::Outcome;
    use crate::pdu::{DataOut, Pdu, ScsiCommand, TaskManagementFunction, TaskManagementRequest};
    use crate::serial::{CmdSn, DataSn, StatSn};
    use crate::target::{Completion, ConnId, Event, Received, SessionConfig};
    use crate::time::Instant;

    const NOW: Instant = Instant(std::time::Duration::ZERO);

    fn outcome(cid: u16) -> Outcome {
        let session = SessionParams {
            max_connections: 2,
            initial_r2t: false,
            first_burst_length: 1024,
            ..SessionParams::default()
        };
        Outcome {
            initiator_name: "iqn.2026-11.test:initiator".into(),
            target_name: Some("iqn.2026-11.test:target".into()),
            isid: Isid::random(1, 0),
            tsih: Tsih(0),
            cid: Cid(cid),
            session,
            connection: ConnectionParams::default(),
            cmd_sn: CmdSn(1),
            discovery: false,
            authenticated_as: None,
            chap: None,
            next_stat_sn: StatSn(1),
            exp_cmd_sn: CmdSn(1),
            max_cmd_sn: CmdSn(1),
            peer_alias: None,
            portal_group_tag: None,
            protocol_level: 1,
        }
    }

    /// A session of two connections; a command's tag is its CmdSN.
    struct Script {
        session: Session,
        conns: [ConnId; 2],
    }

    impl Script {
        fn new() -> Self {
            let mut session = Session::new(SessionConfig::default(), &outcome(1));
            let conns = [1, 2].map(|cid| session.add_connection(&outcome(cid), StatSn(1), NOW));
            Self { session, conns }
        }

        fn pdu(&mut self, conn: usize, pdu: impl Into<Pdu>, data_len: u32) {
            let header = pdu.into().encode(data_len);
            let placement = self.session.handle_header(self.conns[conn], NOW, &header).unwrap();
            let received = match placement {
                Placement::Scratch => Received::Scratch(Bytes::new()),
                _ => Received::Placed,
            };
            self.session.handle_data(self.conns[conn], received, true).unwrap();
        }

        /// A command; `length` bytes of unsolicited data are announced and still to come.
        fn command(&mut self, conn: usize, number: u32, attribute: TaskAttribute, length: u32) {
            let command = ScsiCommand {
                immediate: false,
                is_final: length == 0,
                read: false,
                write: length > 0,
                attribute,
                priority: 0,
                lun: Lun(0),
                itt: Itt(number),
                expected_data_transfer_length: length,
                cmd_sn: CmdSn(number),
                exp_stat_sn: StatSn(1),
                cdb: [0; 16],
                extended_cdb: Bytes::new(),
                bidi_read_length: None,
            };
            self.pdu(conn, command, 0);
        }

        fn data(&mut self, conn: usize, number: u32, length: u32) {
            let data_out = DataOut {
                is_final: true,
                lun: Lun(0),
                itt: Itt(number),
                ttt: Ttt::NONE,
                exp_stat_sn: StatSn(1),
                data_sn: DataSn(0),
                buffer_offset: 0,
            };
            self.pdu(conn, data_out, length);
        }

        fn complete(&mut self, number: u32) {
            self.session.complete(Itt(number), Completion::default());
        }

        /// What has been handed out since the last time, on both connections.
        fn handed_out(&mut self) -> Vec<u32> {
            let mut numbers = Vec::new();
            for conn in self.conns {
                while let Some(event) = self.session.poll_event(conn) {
                    if let Event::Execute(execute) = event {
                        numbers.push(execute.itt.0);
                    }
                }
            }
            numbers
        }
    }

    const SIMPLE: TaskAttribute = TaskAttribute::SIMPLE;
    const ORDERED: TaskAttribute = TaskAttribute::ORDERED;

    #[test]
    fn ordered_waits_for_older_data_and_ends_across_connections() {
        let mut script = Script::new();
        script.command(0, 1, SIMPLE, 512);
        script.command(1, 2, SIMPLE, 0);
        script.command(1, 3, ORDERED, 0);
        script.command(0, 4, SIMPLE, 0);
        script.command(1, 5, TaskAttribute::HEAD_OF_QUEUE, 0);
        script.command(0, 6, ORDERED, 0);
        assert_eq!(script.handed_out(), [2, 5]);
        script.complete(2);
        assert_eq!(script.handed_out(), [0; 0], "the data of 1 is missing");
        script.data(0, 1, 512);
        assert_eq!(script.handed_out(), [1]);
        script.complete(1);
        assert_eq!(script.handed_out(), [0; 0], "5 is older than its turn");
        script.complete(5);
        assert_eq!(script.handed_out(), [3]);
        script.complete(3);
        assert_eq!(script.handed_out(), [4]);
        script.complete(4);
        assert_eq!(script.handed_out(), [6]);
        script.complete(6);
        script.command(0, 7, SIMPLE, 0);
        assert_eq!(script.handed_out(), [7]);
    }

    #[test]
    fn an_aborted_command_holds_back_nobody() {
        let mut script = Script::new();
        script.command(0, 1, SIMPLE, 0);
        script.command(0, 2, ORDERED, 512);
        script.command(0, 3, SIMPLE, 0);
        assert_eq!(script.handed_out(), [1]);
        let abort = TaskManagementRequest {
            immediate: true,
            function: TaskManagementFunction::ABORT_TASK,
            lun: Lun(0),
            itt: Itt(99),
            referenced_task_tag: Itt(2),
            cmd_sn: CmdSn(4),
            exp_stat_sn: StatSn(1),
            ref_cmd_sn: CmdSn(2),
            exp_data_sn: 0,
        };
        script.pdu(0, abort, 0);
        assert_eq!(script.handed_out(), [3]);
        assert!(script.session.attributes.behind.is_empty());
        assert!(script.session.attributes.ordered.is_empty());
    }
}
