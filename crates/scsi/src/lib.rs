//! A SCSI disk: SPC-4 and SBC-3 device server on top of a [`block::Device`].
//!
//! In: a logical unit number, a CDB and the data that came with it. Out: status, sense and data.
//! It knows no PDU, no connection and no CmdSN; which commands were lost, aborted or retried is
//! the transport's business.
//!
//! **Aborting.** A write that was handed to the operating system cannot be called back. A transport
//! that aborts commands (ABORT TASK, LOGICAL UNIT RESET, the end of a session) polls their
//! [`Execution`]s to completion and throws the responses away before it answers; otherwise an
//! aborted write might land on top of a later one. [`Nexus::abort`] makes that end come soon.
//!
//! **Order.** Commands enter the task set of their unit when they are executed, so the transport
//! executes them in the order in which they were sent. [`TaskAttribute`] tells which may overtake.
//!
//! ```
//! use scsi::{Cdb, Command, LunOptions, Status, Target, TargetConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let target = Target::new(TargetConfig::new("iqn.2026-11.org.example:disk"));
//! let disk = block::backend::MemoryDevice::new(1 << 30, 512)?;
//! target.add_lun(0, std::sync::Arc::new(disk), LunOptions::default())?;
//!
//! let nexus = target.nexus("iqn.2026-11.org.example:host,i,0x0123456789ab");
//! let inquiry = Cdb::new(&[0x12, 0, 0, 0, 96, 0]);
//! let response = match nexus.execute(Command::new(0, inquiry).with_data_in_max(96)) {
//!     scsi::Execution::Done(response) => response,
//!     scsi::Execution::Pending(_) => unreachable!("INQUIRY waits for nothing"),
//! };
//! assert_eq!(response.status, Status::GOOD);
//! assert_eq!(&response.data_in[8..16], b"ENKAKU  ");
//! # Ok(())
//! # }
//! ```
//!
//! **Surroundings.** [`Host`] is the little that the device server asks of its transport: ending
//! the commands of other nexuses, and running work that outlives a command. [`StateStore`] is where
//! persistent reservations outlive a restart.
//!
//! Sources: SPC-4 (INCITS 513), SBC-3 (INCITS 514), SAM-5 (INCITS 515).

#![forbid(unsafe_code)]

mod abort;
mod blocking;
mod capacity;
mod cdb;
mod compare_write;
mod context;
mod contingent;
mod data;
mod defects;
mod diagnostics;
mod extended_copy;
mod host;
mod inquiry;
mod limits;
mod load;
mod log_pages;
mod lun;
mod medium;
mod memory;
mod mode;
mod mode_pages;
mod mode_select;
mod nexus;
mod opcodes;
mod or_write;
mod port_groups;
mod read_write;
mod report_luns;
mod reservation;
mod sanitize;
mod sense;
mod space;
mod statistics;
mod target;
mod task_set;
mod unit;
mod unit_attention;
mod unmap;
mod used;
mod verify;
mod vpd;
mod write_atomic;
mod write_same;

#[cfg(test)]
mod tests;

pub use cdb::Cdb;
pub use host::{BoxFuture, Host};
pub use load::uses_medium;
pub use lun::Lun;
pub use memory::Memory;
pub use nexus::{AsynchronousEvent, Nexus, NexusId, Rights, WriteProtection};
pub use port_groups::{AccessState, PortGroup};
pub use reservation::{
    Changed, FileStore, Known, LEASE, SharedFileStore, SharedState, SharedStore, StateError,
    StateStore, Stored, Versioned,
};
pub use sense::{AdditionalSense, Sense, SenseKey};
pub use space::SpaceUsage;
pub use target::{AddLunError, NoSuchLun, Target, TargetConfig};
pub use unit::LunOptions;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use statistics::Work;
use task_set::Member;

/// One SCSI command as the transport received it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Command {
    /// The 8-byte LUN field (SAM-5 §4.7), first byte most significant.
    pub lun: u64,
    /// What to do.
    pub cdb: Cdb,
    /// All data that came with the command. At most what the initiator expected to send; the
    /// device server uses the front part that the CDB asks for.
    pub data_out: Bytes,
    /// Most bytes that may be returned: the initiator's expected data transfer length for a read,
    /// 0 otherwise. What does not fit is cut off and shows in [`Response::data_len_wanted`].
    pub data_in_max: usize,
    /// How the command is ordered against the others of its unit.
    pub attribute: TaskAttribute,
    /// What [`Nexus::abort`] will know it by: a number that no other command of the nexus has as
    /// long as this one is under way.
    pub tag: Option<u64>,
}

impl Command {
    /// A SIMPLE command without data.
    pub fn new(lun: u64, cdb: Cdb) -> Self {
        let attribute = TaskAttribute::Simple;
        Self { lun, cdb, data_out: Bytes::new(), data_in_max: 0, attribute, tag: None }
    }

    /// With data from the initiator.
    pub fn with_data_out(mut self, data_out: Bytes) -> Self {
        self.data_out = data_out;
        self
    }

    /// With room for data to the initiator, in bytes.
    pub fn with_data_in_max(mut self, data_in_max: usize) -> Self {
        self.data_in_max = data_in_max;
        self
    }

    /// With another task attribute.
    pub fn with_attribute(mut self, attribute: TaskAttribute) -> Self {
        self.attribute = attribute;
        self
    }

    /// With a tag, so that it can be aborted.
    pub fn with_tag(mut self, tag: u64) -> Self {
        self.tag = Some(tag);
        self
    }
}

/// Task attribute (SAM-5 §8.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskAttribute {
    /// In any order the device likes.
    #[default]
    Simple,
    /// After all earlier ones, before all later ones.
    Ordered,
    /// Before all others that have not begun.
    HeadOfQueue,
    /// Carried out in spite of an auto contingent allegiance, and refused without one.
    Aca,
}

/// SCSI status code (SAM-5 §5.3.1).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u8);

impl Status {
    /// Done.
    pub const GOOD: Self = Self(0x00);
    /// Sense data says what happened.
    pub const CHECK_CONDITION: Self = Self(0x02);
    /// The logical unit cannot take the command now.
    pub const BUSY: Self = Self(0x08);
    /// Another nexus holds a reservation.
    pub const RESERVATION_CONFLICT: Self = Self(0x18);
    /// No room for another command.
    pub const TASK_SET_FULL: Self = Self(0x28);
    /// A command of this nexus has failed, and the condition stands (SAM-5 §5.9).
    pub const ACA_ACTIVE: Self = Self(0x30);
    /// Aborted by another nexus.
    pub const TASK_ABORTED: Self = Self(0x40);
}

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::GOOD => f.write_str("GOOD"),
            Self::CHECK_CONDITION => f.write_str("CHECK CONDITION"),
            Self::BUSY => f.write_str("BUSY"),
            Self::RESERVATION_CONFLICT => f.write_str("RESERVATION CONFLICT"),
            Self::TASK_SET_FULL => f.write_str("TASK SET FULL"),
            Self::ACA_ACTIVE => f.write_str("ACA ACTIVE"),
            Self::TASK_ABORTED => f.write_str("TASK ABORTED"),
            Self(other) => write!(f, "status {other:#04x}"),
        }
    }
}

/// What a command came to.
#[derive(Clone, Debug)]
pub struct Response {
    /// How it ended.
    pub status: Status,
    /// Why, with [`Status::CHECK_CONDITION`]; [`Sense::to_bytes`] encodes it.
    pub sense: Option<Sense>,
    /// Data for the initiator, at most [`Command::data_in_max`] bytes.
    pub data_in: Bytes,
    /// Bytes the command itself wanted to transfer, in either direction, whatever the initiator
    /// expected. With the expected length E and this length W the residual is an underflow of
    /// E − W when W < E, an overflow of W − E when W > E.
    pub data_len_wanted: u64,
    /// The answer tells of a power-on: the transport says whether the initiator has it, by
    /// [`Nexus::received`] or [`Nexus::lost`].
    pub receipt: Option<Receipt>,
}

/// What an answer is known by that the device server has to be sure of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt(pub u64);

impl Response {
    /// GOOD without data.
    pub fn good() -> Self {
        Self {
            status: Status::GOOD,
            sense: None,
            data_in: Bytes::new(),
            data_len_wanted: 0,
            receipt: None,
        }
    }

    /// Another status than GOOD and CHECK CONDITION.
    pub(crate) fn status(status: Status) -> Self {
        Self { status, ..Self::good() }
    }

    /// CHECK CONDITION without data.
    pub fn check_condition(sense: Sense) -> Self {
        Self { status: Status::CHECK_CONDITION, sense: Some(sense), ..Self::good() }
    }

    /// With a receipt that the transport gives back.
    pub(crate) fn with_receipt(mut self, receipt: Option<Receipt>) -> Self {
        self.receipt = receipt;
        self
    }

    /// With the number of bytes that the command wanted to transfer.
    pub(crate) fn wanting(mut self, data_len_wanted: u64) -> Self {
        self.data_len_wanted = data_len_wanted;
        self
    }
}

/// A command under way. A future, for those who do not need to tell the two cases apart.
#[must_use = "a pending command goes on only when polled"]
pub enum Execution {
    /// Finished at once.
    Done(Response),
    /// Finishes when polled to completion. Dropped before, it leaves a write in an unknown state,
    /// and still under way perhaps: see *Aborting* above.
    Pending(Pending),
}

/// The rest of a command.
#[must_use = "a pending command goes on only when polled"]
pub struct Pending {
    future: Pin<Box<dyn Future<Output = Response> + Send>>,
    /// Its place in the unit's task set, until it ends.
    member: Option<Member>,
    /// What it counts as, until it ends.
    work: Option<Work>,
}

impl Execution {
    pub(crate) fn later(future: impl Future<Output = Response> + Send + 'static) -> Self {
        Self::Pending(Pending { future: Box::pin(future), member: None, work: None })
    }

    /// Gives up the place in the task set when the command ends.
    pub(crate) fn with_member(mut self, member: Member) -> Self {
        if let Self::Pending(pending) = &mut self {
            pending.member = Some(member);
        }
        self
    }

    /// Ends the work when the command ends.
    pub(crate) fn counted(mut self, work: Option<Work>) -> Self {
        match (&mut self, work) {
            (Self::Done(response), Some(mut work)) => work.answered(response),
            (Self::Pending(pending), work) => pending.work = work,
            (Self::Done(_), None) => {}
        }
        self
    }

    /// Sense data, if there will be some, in descriptor format.
    fn with_descriptor_sense(self) -> Self {
        let convert = |mut response: Response| {
            if let Some(sense) = &mut response.sense {
                sense.descriptor_format = true;
            }
            response
        };
        match self {
            Self::Done(response) => Self::Done(convert(response)),
            Self::Pending(pending) => Self::later(async move { convert(pending.await) }),
        }
    }
}

impl From<Response> for Execution {
    fn from(response: Response) -> Self {
        Self::Done(response)
    }
}

impl From<Sense> for Execution {
    fn from(sense: Sense) -> Self {
        Self::Done(Response::check_condition(sense))
    }
}

impl Future for Execution {
    type Output = Response;

    /// Polling again after completion gives GOOD without data for `Done`.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response> {
        match self.get_mut() {
            Self::Done(response) => Poll::Ready(std::mem::replace(response, Response::good())),
            Self::Pending(pending) => Pin::new(pending).poll(context),
        }
    }
}

impl Future for Pending {
    type Output = Response;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response> {
        let this = self.get_mut();
        let polled = this.future.as_mut().poll(context);
        if let Poll::Ready(response) = &polled {
            if let Some(mut work) = this.work.take() {
                work.answered(response);
            }
            this.member = None;
        }
        polled
    }
}
