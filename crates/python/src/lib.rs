//! The Python package `enkaku`: a volume by its URL, with reads and writes by offset.
//!
//! What it is not: it has no idea of iSCSI, of NBD or of caches; it translates calls of Python to
//! those of a block device and back. The interpreter is let go while a call waits, so that threads
//! run beside each other, and a wait ends at Ctrl-C. docs/python.md is for its users.

mod error;
mod runtime;
mod statistics;
mod volume;

use pyo3::prelude::*;

/// The compiled half; `python/enkaku` is what is imported.
#[pymodule]
mod _enkaku {
    #[pymodule_export]
    use super::volume::{Volume, open};

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "the name that Python expects")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
