//! SCSI device server: CDB and data in, BlockDevice calls, status and sense out. Knows no PDU.
