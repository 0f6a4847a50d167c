//! Where data lives.

pub mod file;
pub mod memory;

pub use file::{FileDevice, FileOptions, OpenError};
pub use memory::MemoryDevice;
