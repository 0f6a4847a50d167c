//! Where data lives.

pub mod memory;

pub use memory::MemoryDevice;
