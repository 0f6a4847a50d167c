//! What the mirror asks of a leg beyond [`BlockDevice`](crate::BlockDevice).

use std::pin::Pin;
use std::sync::Arc;

use crate::{Device, Io};

/// The way to a leg.
pub trait LegSource: Send + Sync + 'static {
    /// How people call the leg: its URL without credentials, or its path.
    fn name(&self) -> String;

    /// Opens the leg anew. When it returns, nothing that was asked of a device opened before by
    /// this source, or by an earlier process under the same name, can change the leg any more.
    ///
    /// An operation of the opened device that fails is not tried again by itself, and one that has
    /// failed or was dropped may or may not have been carried out: the mirror decides what is sent
    /// again, since an old write that lands late would break the order of epochs.
    ///
    /// # Errors
    /// [`Unreachable`](crate::BlockError::Unreachable): worth another attempt.
    fn connect(&self) -> Pin<Box<dyn Future<Output = crate::Result<OpenLeg>> + Send>>;

    /// The leg holds an image of one moment, which a copy is about to write over in place: the last
    /// chance to keep it, such as by a snapshot of its target. `why` is for people. Nothing is
    /// written to the image before the answer; its superblock may be. Dropped where nobody wants to
    /// know any more. `None`: nobody keeps it.
    fn before_overwrite(&self, why: &str) -> Option<MayOverwrite> {
        let _nobody_reads_it = why;
        None
    }
}

/// Whether the image at a leg may be written over, once that is known; or why it must not be now,
/// so that it is asked again later.
pub type MayOverwrite = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// A leg that is open.
#[derive(Clone)]
pub struct OpenLeg {
    /// Its device. A failure of any operation that is not one of the medium ends its use.
    pub device: Device,
    /// What the unit says it is (VPD page 83h as text), empty if it does not: another unit at the
    /// same place is noticed by it.
    pub identity: String,
    /// It carries out barriers between writes that are under way, or why it does not.
    pub ordered: std::result::Result<Arc<dyn OrderedWrites>, String>,
    /// It can keep others from writing.
    pub fence: Option<Arc<dyn Fence>>,
    /// It copies from one place of it to another by itself, or why it does not.
    pub inside: std::result::Result<Arc<dyn CopyInside>, String>,
}

impl OpenLeg {
    /// A device that can do nothing else for a mirror, and does not say what it is.
    #[must_use]
    pub fn of(device: Device) -> Self {
        let (ordered, inside) = (Err(String::new()), Err(String::new()));
        Self { device, identity: String::new(), ordered, fence: None, inside }
    }
}

/// A device that can order writes it has been given but not answered.
///
/// From the first barrier on nothing is carried out behind an operation that was refused or has
/// failed, until the leg is connected anew.
pub trait OrderedWrites: Send + Sync + 'static {
    /// A flush that is a barrier as well: what was asked before the call is stable before anything
    /// asked after the call takes effect, without waiting for answers in between (SAM-5 §8.2,
    /// ORDERED task attribute). What is several commands to the leg (zeroes, a trim) is ordered
    /// only if it has ended before.
    fn barrier(&self) -> Io<()>;
}

/// Persistent reservations of the type "write exclusive, registrants only" (SPC-4 §5.13).
pub trait Fence: Send + Sync + 'static {
    /// Registers this host under `key` over every path, to outlive a power loss of the unit, and
    /// reserves the unit if nobody has. A host that was preempted gets
    /// [`Fenced`](crate::BlockError::Fenced).
    fn hold(&self, key: u64) -> Io<()>;

    /// Registers, takes the reservation from whoever holds it, and ends what they have under way.
    fn take(&self, key: u64) -> Io<()>;

    /// The key that holds the reservation.
    fn holder(&self) -> Io<Option<u64>>;

    /// Gives the reservation and the registration back.
    fn release(&self, key: u64) -> Io<()>;

    /// A leg without a reservation is not to be used: where it cannot be held, the leg has failed.
    fn is_required(&self) -> bool {
        false
    }
}

/// A device that copies from one place of it to another, without sending the data over the line
/// (SPC-4 §6.4, EXTENDED COPY(LID1)).
pub trait CopyInside: Send + Sync + 'static {
    /// How much it takes at once.
    fn limits(&self) -> CopyLimits;

    /// Copies these runs, in any order, as one request. No run may write where another of them
    /// reads or writes. Nothing is forced: a flush makes it stable, as it does writes.
    ///
    /// It is not asked a second time by itself. Where it fails, any part may have been copied;
    /// [`Unreachable`](crate::BlockError::Unreachable) and
    /// [`Fenced`](crate::BlockError::Fenced) end the use of the leg as those of a write do, and
    /// after everything else the data may be written instead.
    fn copy(&self, runs: Vec<CopyRun>) -> Io<()>;
}

/// What is copied within a device, in bytes: whole blocks of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRun {
    /// First byte read.
    pub from: u64,
    /// First byte written.
    pub to: u64,
    /// How many.
    pub len: u64,
}

/// How much a device copies at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyLimits {
    /// Runs of one request, at least one.
    pub runs_max: usize,
    /// Bytes of one run, at least a block.
    pub run_bytes_max: u64,
    /// Requests under way, at least one.
    pub at_once: usize,
}
