//! Tests of the session against a target that is scripted PDU by PDU.

mod commands;
mod connections;
mod failover;
mod hostile;
mod late;
mod multi_task;
mod peer;
mod properties;
mod repair;
mod requirements;
mod stalled;
mod unanswered;

pub(super) use peer::session_params;
