//! Where storage is: who offers which target at which address, and whether it is there now.
//!
//! One directory so far, [`isns`]. It knows names and addresses; it opens no session, sees no
//! block and depends on no other crate of the workspace.

#![forbid(unsafe_code)]

pub mod isns;
