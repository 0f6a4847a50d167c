//! [`InFlight`]: one operation that librbd is carrying out, and the memory that it uses.
//!
//! The memory belongs to librbd until it calls back, whatever becomes of the future that waits: a
//! future that is dropped leaves an operation that ends by itself. The callback runs on a thread of
//! librbd and does nothing but hand the result over.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::null_mut;

use block::{Buf, Bytes};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::ffi::{Calls, Opaque};

/// Memory that an operation reads or fills.
#[derive(Debug)]
pub(crate) enum Payload {
    /// None.
    Nothing,
    /// To be filled.
    Read(Buf),
    /// To be written.
    Write(Bytes),
    /// To be compared, and written if equal.
    Compare {
        /// What should be there.
        expected: Bytes,
        /// What takes its place.
        new: Bytes,
        /// Librbd's word on where they differ. Not used: it counts from the begin of the object
        /// in Ceph 16, not from that of the range.
        differs_at: u64,
    },
}

/// How an operation ended.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Librbd's return value: negative is an error number.
    pub(crate) returned: i64,
    /// The memory.
    pub(crate) payload: Payload,
}

/// Who waits for it. An error means that the operation was forgotten, which librbd never does.
pub(crate) type Waiting = oneshot::Receiver<Finished>;

struct InFlight {
    calls: &'static Calls,
    payload: Payload,
    done: oneshot::Sender<Finished>,
    /// One of the operations that may be in flight at once.
    _place: OwnedSemaphorePermit,
}

/// Starts what `begin` begins with a completion and the payload's memory. A negative value from it
/// means that librbd has begun nothing and will not call back.
pub(crate) fn start(
    calls: &'static Calls,
    payload: Payload,
    place: OwnedSemaphorePermit,
    begin: impl FnOnce(Opaque, &mut Payload) -> i64,
) -> Waiting {
    let (done, waiting) = oneshot::channel();
    let operation = Box::into_raw(Box::new(InFlight { calls, payload, done, _place: place }));
    let mut completion: Opaque = null_mut();
    // SAFETY: `finished` takes the operation back, once: librbd calls back once for each operation
    // that has begun.
    let made = unsafe {
        (calls.rbd_aio_create_completion)(operation.cast(), finished, &raw mut completion)
    };
    if made < 0 {
        // SAFETY: without a completion nobody else has it.
        end(*unsafe { Box::from_raw(operation) }, made.into());
        return waiting;
    }
    // SAFETY: nothing has begun, so nobody else looks at the operation. The memory that the payload
    // owns stays where it is until the operation is taken back.
    let begun = begin(completion, unsafe { &mut (*operation).payload });
    if begun < 0 {
        // SAFETY: nothing has begun, so the completion and the operation are ours.
        unsafe {
            (calls.rbd_aio_release)(completion);
            end(*Box::from_raw(operation), begun);
        }
    }
    waiting
}

/// `rbd_callback_t`.
///
/// # Safety
/// `argument` is an [`InFlight`] that [`start`] let go of, and comes here once.
unsafe extern "C" fn finished(completion: Opaque, argument: *mut c_void) {
    // SAFETY: see above.
    let operation = unsafe { *Box::from_raw(argument.cast::<InFlight>()) };
    let calls = operation.calls;
    // SAFETY: librbd gives the completion of the operation that has ended; it is released once.
    let returned = unsafe {
        let returned = (calls.rbd_aio_get_return_value)(completion);
        (calls.rbd_aio_release)(completion);
        returned
    };
    end(operation, returned as i64);
}

fn end(operation: InFlight, returned: i64) {
    let InFlight { payload, done, .. } = operation;
    // Whoever has stopped waiting does not want to know.
    let _ = done.send(Finished { returned, payload });
}
