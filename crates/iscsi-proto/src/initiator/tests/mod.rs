//! Tests of the session against a target that is scripted PDU by PDU.

mod commands;
mod connections;
mod hostile;
mod peer;
mod properties;
mod requirements;

pub(super) use peer::session_params;
