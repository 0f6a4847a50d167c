//! TCP as a capture shows it: sequence numbers as stream offsets, and bytes in order, whatever was
//! lost, repeated, reordered or cut.

mod offsets;
mod reassembly;

pub use offsets::Offsets;
pub use reassembly::{Chunk, PENDING_BYTES_MAX, Reassembly};
