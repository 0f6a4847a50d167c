//! Where storage is: who offers which target at which address, and whether it is there now.
//!
//! Two directories: [`isns`], which knows names and addresses of targets, and [`ldap`], which has
//! entries of any kind. Nothing here opens a session or sees a block, and no other crate of the
//! workspace is used.

#![forbid(unsafe_code)]

pub mod isns;
pub mod ldap;
