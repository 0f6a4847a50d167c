//! Where data lives.

pub mod file;
pub mod memory;
pub mod padded;

pub use file::{FileDevice, FileOptions, OpenError, SnapshotError, Trial, check_folder};
pub use memory::{MemoryDevice, MemoryError, check_fits_machine};
pub use padded::PaddedFile;
