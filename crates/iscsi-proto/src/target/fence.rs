//! Response fences (RFC 7143 §4.2.2.3): an answer that implies the fate of others passes none of
//! them and is passed by none, although each connection has an order of its own.
//!
//! A fence goes through four stages: answers handed over before are sent; they are acknowledged;
//! the fenced answer is sent; it is acknowledged. Meanwhile all later responses of the session are
//! held, not only those of the unit: that is simpler, and lasts two round trips after a rare event.
//! With one connection there is nothing to do. There is no ACA here, so that no fences for it are
//! needed.

use super::event::ConnId;
use super::session::{Connection, Session};
use super::task::{Phase, Task};
use super::transmit::Reply;
use crate::ids::{Itt, Lun};
use crate::keys::TaskReporting;
use crate::serial::StatSn;

/// PERSISTENT RESERVE OUT (SPC-4 §6.16), and its service action PREEMPT AND ABORT.
const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
const PREEMPT_AND_ABORT: u8 = 0x05;
/// Sense key (SPC-4 §4.5).
const UNIT_ATTENTION: u8 = 0x06;

/// The answer that a fence is about.
#[derive(Debug)]
pub(super) enum Fenced {
    /// To task management.
    Management { conn: ConnId, reply: Box<Reply>, itt: Itt },
    /// A task's response.
    Response(Itt),
}

#[derive(Debug)]
enum Stage {
    /// These responses are sent first.
    Sending(Vec<Itt>),
    /// What was sent up to here is acknowledged first.
    Acknowledging(Vec<(ConnId, StatSn)>),
    /// It may be sent.
    Open,
    /// It was sent, with the number before this one.
    Sent(ConnId, StatSn),
}

#[derive(Debug)]
pub(super) struct Fence {
    fenced: Fenced,
    stage: Stage,
    /// Responses that were to be sent first, and whose connection was lost.
    lost: Vec<Itt>,
}

/// A unit whose tasks were aborted, while the unit attention about it is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Aborted {
    /// `None`: all units.
    lun: Option<Lun>,
    /// Any response is fenced, not only the one with the unit attention.
    any: bool,
}

impl Fence {
    /// Its answer to task management would go out on `conn`.
    pub(super) fn is_of(&self, of: ConnId) -> bool {
        matches!(self.fenced, Fenced::Management { conn, .. } if conn == of)
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.3.2
//# Whenever the Response Fence behavior is required for a SCSI response message, the target iSCSI
//# layer MUST ensure that the following conditions are met in delivering the response message to
//# the initiator iSCSI layer:
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.3.2
//# A response with a Response Fence MUST be delivered chronologically after all the "preceding"
//# responses on the I_T_L nexus, if the preceding responses are delivered at all, to the initiator
//# iSCSI layer.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.3.2
//# A response with a Response Fence MUST be delivered chronologically prior to all the "following"
//# responses on the I_T_L nexus.
impl Session {
    /// Nothing can be sent there.
    fn is_dead(&self, conn: ConnId) -> bool {
        let alive = |c: &Connection| c.state.is_alive() && c.recovery.is_none();
        !self.connections.get(&conn).is_some_and(alive)
    }

    /// More than one connection shares the answers.
    pub(super) fn has_many_connections(&self) -> bool {
        self.connections.keys().filter(|conn| !self.is_dead(**conn)).count() > 1
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
    //# MUST provide the Response Fence behavior for the TMF Response
    //# on the issuing session as specified in Section 4.2.2.3.2.
    // Whatever TaskReporting is.
    pub(super) fn push_fenced_management(&mut self, conn: ConnId, itt: Itt, reply: Reply) {
        if !self.has_many_connections() {
            return self.push_reply(conn, reply);
        }
        self.fence(Fenced::Management { conn, itt, reply: Box::new(reply) });
    }

    /// Tasks of a unit were aborted, `by_other` by another session.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
    //# MUST provide the Response Fence behavior on the first post-TMF Response on third-party
    //# sessions as specified in Section 4.2.2.3.3.
    // Whatever TaskReporting is, for these are the semantics of RFC3720 too.
    pub(super) fn note_abort(&mut self, lun: Option<Lun>, by_other: bool) {
        let aborted = Aborted { lun, any: by_other };
        let fences = by_other || self.params.task_reporting > TaskReporting::Rfc3720;
        if fences && !self.aborted.contains(&aborted) {
            // One for all units stands for every other: the list is as long as there are units.
            match lun {
                None => self.aborted.clear(),
                Some(_) => self.aborted.retain(|known| known.lun != lun),
            }
            self.aborted.push(aborted);
        }
    }

    /// A task has its response: fences it where §4.2.2.3.4 asks for that.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.3.4
    //# Whenever the TaskReporting key (Section 13.23) is negotiated to
    //# ResponseFence or FastAbort for an iSCSI session, the target iSCSI
    //# layer MUST assume that the Response Fence is required for the
    //# following SCSI completion messages:
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.3.4
    //# This section lists the situations in which fenced response behavior is REQUIRED in iSCSI
    //# target implementations.
    // The answer to task management is fenced where it is made, and there is no ACA.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.6
    //# The UA notification contained in the first SCSI Response PDU on each affected third-party
    //# I_T_L nexus after the TMF action thus MUST NOT pass the affected task responses on any of
    //# the iSCSI sessions accessing the LU.
    pub(super) fn fence_response(&mut self, itt: Itt) {
        let agreed = self.params.task_reporting > TaskReporting::Rfc3720;
        if !agreed && self.aborted.is_empty() {
            return;
        }
        let Some(task) = self.tasks.get(&itt) else { return };
        let (lun, attention) = (task.lun(), carries_unit_attention(task));
        let here = |aborted: &Aborted| aborted.lun.is_none_or(|of| of == lun);
        let preempts = agreed
            && task.command.cdb[0] == PERSISTENT_RESERVE_OUT
            && task.command.cdb[1] & 0x1f == PREEMPT_AND_ABORT;
        let fences = |aborted: &Aborted| aborted.any || agreed && attention;
        let first = self.aborted.iter().any(|aborted| here(aborted) && fences(aborted));
        for aborted in self.aborted.iter_mut().filter(|aborted| here(aborted)) {
            aborted.any = false;
        }
        if attention {
            self.aborted.retain(|aborted| aborted.lun != Some(lun));
        }
        if (preempts || first) && self.has_many_connections() {
            self.fence(Fenced::Response(itt));
        }
    }

    fn fence(&mut self, fenced: Fenced) {
        let own = match &fenced {
            Fenced::Response(itt) => Some(*itt),
            Fenced::Management { .. } => None,
        };
        let before =
            |(itt, task): &(&Itt, &Task)| task.phase == Phase::Responding && Some(**itt) != own;
        let preceding = self.tasks.iter().filter(before).map(|(itt, _)| *itt).collect();
        let (stage, lost) = (Stage::Sending(preceding), Vec::new());
        self.fences.push_back(Fence { fenced, stage, lost });
        self.settle_fences();
    }

    /// A response goes out on another connection than before, once more if it was `sent`: it
    /// precedes every fence that it preceded then. (While a fence is up, no other is sent.)
    pub(super) fn precede_fences(&mut self, itt: Itt, sent: bool) {
        for fence in &mut self.fences {
            let own = matches!(fence.fenced, Fenced::Response(fenced) if fenced == itt);
            if own || !(sent || fence.lost.contains(&itt)) {
                continue;
            }
            match &mut fence.stage {
                Stage::Sending(preceding) if preceding.contains(&itt) => {}
                Stage::Sending(preceding) => preceding.push(itt),
                Stage::Acknowledging(_) => fence.stage = Stage::Sending(vec![itt]),
                Stage::Open | Stage::Sent(..) => {}
            }
        }
    }

    /// May this task's data and status be sent now?
    pub(super) fn passes_fences(&self, itt: Itt) -> bool {
        let Some(fence) = self.fences.front() else { return true };
        match (&fence.stage, &fence.fenced) {
            (Stage::Sending(preceding), _) => preceding.contains(&itt),
            (Stage::Open, Fenced::Response(fenced)) => *fenced == itt,
            _ => false,
        }
    }

    /// An answer is being sent; tells the fence if it is its own.
    pub(super) fn fenced_sent(&mut self, conn: ConnId, itt: Itt, stat_sn: StatSn) {
        let Some(fence) = self.fences.front_mut() else { return };
        let own = match &fence.fenced {
            Fenced::Management { itt: fenced, .. } | Fenced::Response(fenced) => *fenced == itt,
        };
        if own && matches!(fence.stage, Stage::Open) {
            fence.stage = Stage::Sent(conn, stat_sn.next());
            self.ping(conn);
        } else {
            self.settle_fences();
        }
    }

    /// Has the initiator everything before this number, or is nobody there to say so?
    fn is_acknowledged(&self, conn: ConnId, stat_sn: StatSn) -> bool {
        let has = |c: &Connection| !c.exp_stat_sn.is_before(stat_sn);
        self.is_dead(conn) || self.connections.get(&conn).is_some_and(has)
    }

    /// Takes the first fence as far as it goes.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.3.3
    //# The SCSI Response PDU
    //# requiring the Response Fence behavior MUST NOT be sent to the
    //# initiator before acknowledgments are received for each of the
    //# unacknowledged StatSNs.
    pub(super) fn settle_fences(&mut self) {
        while let Some(mut fence) = self.fences.pop_front() {
            let gone = match &fence.fenced {
                Fenced::Management { conn, .. } => self.is_dead(*conn),
                Fenced::Response(_) if matches!(fence.stage, Stage::Sent(..)) => false,
                Fenced::Response(itt) => {
                    // One that another connection takes over is sent again without a fence.
                    self.tasks.get(itt).is_none_or(|task| self.is_dead(task.conn))
                }
            };
            let cleared = match &mut fence.stage {
                _ if gone => true,
                Stage::Sending(preceding) => {
                    let responding = |task: &&Task| task.phase == Phase::Responding;
                    preceding.retain(|itt| {
                        let task = self.tasks.get(itt).filter(responding);
                        let dead = task.is_some_and(|task| self.is_dead(task.conn));
                        if dead && !fence.lost.contains(itt) {
                            fence.lost.push(*itt);
                        }
                        task.is_some() && !dead
                    });
                    if preceding.is_empty() {
                        fence.stage = Stage::Acknowledging(self.ask_all_to_acknowledge());
                        self.fences.push_front(fence);
                        continue;
                    }
                    false
                }
                Stage::Acknowledging(numbers) => {
                    numbers.retain(|(conn, stat_sn)| !self.is_acknowledged(*conn, *stat_sn));
                    if numbers.is_empty() {
                        fence.stage = Stage::Open;
                        self.open(fence);
                        return;
                    }
                    false
                }
                Stage::Open => false,
                //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.3.3
                //# The fence MUST be considered cleared
                //# only after receiving the acknowledgment.
                Stage::Sent(conn, stat_sn) => self.is_acknowledged(*conn, *stat_sn),
            };
            if !cleared {
                self.fences.push_front(fence);
                // What asks may be lost: the timer asks again.
                let now = self.clock;
                self.connections.values_mut().for_each(|c| {
                    c.ack_asked.get_or_insert(now);
                });
                return;
            }
            // What was held may go.
            self.wakes.extend(self.connections.keys());
        }
    }

    fn open(&mut self, fence: Fence) {
        let reply = match &fence.fenced {
            Fenced::Management { conn, reply, .. } => Some((*conn, Reply::clone(reply))),
            Fenced::Response(itt) => {
                self.wakes.extend(self.tasks.get(itt).map(|task| task.conn));
                None
            }
        };
        self.fences.push_front(fence);
        if let Some((conn, reply)) = reply {
            self.push_reply(conn, reply);
        }
    }

    /// Asks for what is not acknowledged; returns up to where.
    fn ask_all_to_acknowledge(&mut self) -> Vec<(ConnId, StatSn)> {
        let numbers = self.connections.iter().map(|(conn, c)| (*conn, c.next_stat_sn));
        let numbers: Vec<_> = numbers.collect();
        let open = |(conn, stat_sn): &(ConnId, StatSn)| !self.is_acknowledged(*conn, *stat_sn);
        let open: Vec<(ConnId, StatSn)> = numbers.into_iter().filter(open).collect();
        for (conn, _) in &open {
            self.ping(*conn);
        }
        open
    }
}

fn carries_unit_attention(task: &Task) -> bool {
    let sense = &task.completion.sense;
    let key = match sense.first().map(|code| code & 0x7f) {
        Some(0x70 | 0x71) => sense.get(2),
        Some(0x72 | 0x73) => sense.get(1),
        _ => None,
    };
    key.is_some_and(|key| key & 0x0f == UNIT_ATTENTION)
}
