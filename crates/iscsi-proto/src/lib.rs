//! iSCSI (RFC 7143) as bytes and state: no sockets, no clock, no async.
