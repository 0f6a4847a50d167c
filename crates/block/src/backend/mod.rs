//! Where data lives.
