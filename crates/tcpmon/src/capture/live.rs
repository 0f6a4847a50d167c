//! Live capture.
