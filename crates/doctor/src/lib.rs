//! Why is my iSCSI slow? What somebody found on a host goes in, causes come out, each with what
//! says so, the commands that change it and the rate to expect.
//!
//! What it is not: it opens no file and no socket, has no clock, and runs and changes nothing; what
//! sysfs and the kernel say is read through [`facts::Files`] by whoever asks. Three parts:
//! * [`facts`]: texts of sysfs, procfs, `ss` and `tc` turned into numbers with units.
//! * [`judge`]: numbers turned into ceilings of the rate by the laws of a path, and those into
//!   findings in the order in which they have to go. A promise is a formula, or it is not made.
//! * [`report`]: findings as text for a terminal and as one HTML page for a ticket. The third
//!   form, JSON, is what the types serialise to.

#![forbid(unsafe_code)]

pub mod facts;
pub mod judge;
pub mod report;
pub mod units;
