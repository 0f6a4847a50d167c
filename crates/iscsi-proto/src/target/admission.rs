//! Commands that a shell with limits holds back before anything is spent on them: a write before
//! its first R2T (or, where all its data comes unasked, before it is executed), a read before it
//! has memory for what it brings.
//!
//! A command that is held is one whose data or turn is still awaited. So whatever ends those ends
//! it, ORDERED commands behind it wait for it, and it keeps neither the memory nor the connection
//! of others. How long it waits is the shell's business; the core has no clock for it.

use super::event::Event;
use super::session::Session;
use crate::ids::{Itt, Lun};

/// A command for which the shell is asked whether it may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The task.
    pub itt: Itt,
    /// Logical unit, as on the wire.
    pub lun: Lun,
    /// First 16 bytes of the CDB.
    pub cdb: [u8; 16],
    /// Bytes that the initiator expects to move, in both directions together.
    pub bytes: u64,
}

/// How far a command has got with that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nobody has been asked, and perhaps nobody will be.
    #[default]
    Unasked,
    /// The shell of the task's connection has been asked.
    Asked,
    /// It may go on.
    Admitted,
}

impl Session {
    /// From now on every command is held back until the shell has admitted it
    /// ([`Event::Admit`]); or, if not, none is asked for any more.
    pub fn set_holding(&mut self, holds: bool) {
        self.holds = holds;
    }

    /// A command that [`Event::Admit`] has asked for may go on. Nothing happens if it has ended, or
    /// if another connection has taken it over meanwhile, whose shell is asked anew.
    pub fn admit(&mut self, itt: Itt) {
        let asked = |task: &&mut super::task::Task| task.standing == Standing::Asked;
        let Some(task) = self.tasks.get_mut(&itt).filter(asked) else { return };
        task.standing = Standing::Admitted;
        self.solicit(itt);
        self.execute_if_complete(itt);
    }

    /// May a command go on? If it has to be asked for, it is. One that fails without having moved
    /// anything is not held back.
    pub(super) fn is_admitted(&mut self, itt: Itt) -> bool {
        let holds = self.holds;
        let Some(task) = self.tasks.get(&itt) else { return false };
        if task.standing == Standing::Asked {
            return false;
        }
        let fails = task.fault.is_some() || task.too_long || task.aborted;
        if !holds || fails || task.standing == Standing::Admitted {
            return true;
        }
        let conn = task.conn;
        if self.is_lost(conn) {
            return false; // whoever takes it over asks
        }
        let admission = task.admission(itt);
        if let Some(task) = self.tasks.get_mut(&itt) {
            task.standing = Standing::Asked;
        }
        self.push_event(conn, Event::Admit(admission));
        false
    }
}
