//! Where data lives.

pub mod file;
pub mod memory;
pub mod padded;

pub use file::{FileDevice, FileOptions, OpenError};
pub use memory::MemoryDevice;
pub use padded::PaddedFile;
