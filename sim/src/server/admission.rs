//! Commands that the target's limits hold back: for some time that is drawn, some of them not at
//! all. Until one is admitted nothing may be seen of it but what its initiator sends unasked.

use std::time::Duration;

use iscsi_proto::connection::Transmit;
use iscsi_proto::ids::Itt;
use iscsi_proto::pdu::Opcode;
use iscsi_proto::target::{Admission, ConnId};

use super::{Outcomes, Server, TargetSession};
use crate::env::{Env, Event};
use crate::sabotage::Sabotage;
use crate::wire_check::SessionKey;

/// Commands that are admitted as soon as they are asked for, in percent.
const AT_ONCE: u32 = 40;

impl TargetSession {
    /// The core asks for a command.
    pub(super) fn asked(
        &mut self,
        env: &mut Env,
        key: SessionKey,
        conn: ConnId,
        admission: &Admission,
    ) -> Outcomes {
        let itt = admission.itt;
        let Some(longest) = env.scenario.holding else {
            return Err(format!("{admission:?}: nobody wants to be asked"));
        };
        if env.sabotage == Some(Sabotage::NotHeld) {
            self.unadmitted.insert(itt);
            self.core.admit(itt);
        } else if env.rng.percent(AT_ONCE) {
            env.coverage.hit("target: command admitted at once");
            self.unadmitted.remove(&itt);
            self.core.admit(itt);
        } else {
            env.coverage.hit("target: command held back");
            self.unadmitted.insert(itt);
            let delay = Duration::from_micros(env.rng.below(longest.as_micros() as u64));
            env.clock.after(delay, Event::TargetAdmits(key, conn, itt));
        }
        Ok(())
    }

    /// A command is executed.
    pub(super) fn check_executes(&self, itt: Itt) -> Outcomes {
        match self.unadmitted.contains(&itt) {
            true => Err(format!("{itt} is executed before it was admitted")),
            false => Ok(()),
        }
    }

    /// A PDU is sent.
    pub(super) fn check_sends(&self, transmit: &Transmit) -> Outcomes {
        let bhs = &transmit.header.bhs;
        let itt = Itt(u32::from_be_bytes([bhs[16], bhs[17], bhs[18], bhs[19]]));
        match transmit.header.opcode() == Opcode::R2T && self.unadmitted.contains(&itt) {
            true => Err(format!("{itt} is asked for its data before it was admitted")),
            false => Ok(()),
        }
    }
}

impl Server {
    /// A command may go on, if it and its connection are still there.
    pub(crate) fn admit(
        &mut self,
        env: &mut Env,
        key: SessionKey,
        conn: ConnId,
        itt: Itt,
    ) -> Outcomes {
        let Some(session) = self.sessions.get_mut(&key) else { return Ok(()) };
        if !session.links.contains_key(&conn) || !session.unadmitted.remove(&itt) {
            return Ok(());
        }
        session.core.admit(itt);
        self.drain(env, key, Some(conn))
    }
}
