//! What becomes of a PDU after it was sent: it arrives and tells something, or it is damaged or
//! lost on its way and does not.

use iscsi_proto::pdu::{DataOut, Pdu, ScsiCommand, TaskManagementFunction};

use super::{LinkCheck, SessionCheck, Told, WireCheck, request};
use crate::damage::Fate;
use crate::net::{Link, Side};

impl WireCheck {
    /// Bytes from the target have arrived at the initiator.
    pub(crate) fn delivered(&mut self, link: Link, len: usize) {
        let Some(check) = self.links.get_mut(&link) else { return };
        check.delivered += len as u64;
        let Some(session) = check.session.and_then(|key| self.sessions.get_mut(&key)) else {
            return;
        };
        while let Some(mark) = check.marks.front().filter(|mark| mark.at <= check.delivered) {
            if let Some((exp_cmd_sn, max_cmd_sn)) = mark.window {
                let known = &mut session.known_max_cmd_sn;
                *known = if known.is_before(max_cmd_sn) { max_cmd_sn } else { *known };
                let known = &mut session.known_exp_cmd_sn;
                *known = if known.is_before(exp_cmd_sn) { exp_cmd_sn } else { *known };
            }
            let told = mark.told;
            check.arrived.extend(told.stat_sn.map(|stat_sn| stat_sn.0));
            while check.arrived.remove(&check.delivered_stat_sn.0) {
                check.delivered_stat_sn = check.delivered_stat_sn.next();
            }
            if let Some(ended) = told.ended {
                session.each_ended(ended, |task| task.end_is_known = true);
            }
            if let Some((itt, data_sn)) = told.data_in
                && let Some(task) = session.tasks.get_mut(&itt)
            {
                task.data_in_arrived(data_sn);
            }
            check.marks.pop_front();
        }
    }
}

impl LinkCheck {
    /// The PDU that was just looked at does not arrive, or not as it was. It left the marks from
    /// `marks` on.
    pub(super) fn suffers(&mut self, from: Side, fate: Fate, marks: usize, recovers: bool) {
        let from_target = from == Side::Target;
        self.damaged[from as usize] |= fate != Fate::Arrives;
        self.unreadable[from as usize] |= fate == Fate::HeaderDamaged;
        match fate {
            Fate::DataDamaged if from_target => {
                // The PDU is discarded, with its header. Where the session is to end for it, it
                // does not matter whether the status counts as received until then.
                for mark in self.marks.range_mut(marks..) {
                    mark.window = mark.window.filter(|_| !recovers);
                    let stat_sn = mark.told.stat_sn.filter(|_| !recovers);
                    mark.told = Told { stat_sn, ..Told::default() };
                }
            }
            Fate::DataDamaged => self.rejects_due += 1,
            _ => {}
        }
        if from_target && (fate == Fate::Lost || self.unreadable[from as usize]) {
            self.marks.truncate(marks);
        }
    }
}

impl SessionCheck {
    /// The PDU of the initiator that was just looked at does not arrive, or not as it was, or it
    /// plugs a hole.
    pub(super) fn suffers(&mut self, pdu: &Pdu, fate: Fate, unreadable: bool) {
        match request::cmd_sn(pdu) {
            Some(cmd_sn) if fate != Fate::Arrives || unreadable => self.received.is_lost(cmd_sn),
            Some(cmd_sn) => self.received.comes(cmd_sn),
            None => {}
        }
        if let (Pdu::TaskManagementRequest(request), Fate::Arrives, false) = (pdu, fate, unreadable)
            && request.function == TaskManagementFunction::ABORT_TASK
        {
            self.received.comes(request.ref_cmd_sn);
        }
        if let Pdu::ScsiCommand(ScsiCommand { itt, .. }) | Pdu::DataOut(DataOut { itt, .. }) = pdu
            && fate == Fate::DataDamaged
            && let Some(task) = self.tasks.get_mut(itt)
        {
            task.data_damaged = true;
        }
    }
}
