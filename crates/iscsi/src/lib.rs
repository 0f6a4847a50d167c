//! The tokio shell around iscsi-proto: sockets, timers and disks for both roles.
