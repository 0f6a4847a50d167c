//! The initiator: connections, sessions and the remote disk.
