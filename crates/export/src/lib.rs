//! Local front ends of a BlockDevice: FUSE file and NBD server.
