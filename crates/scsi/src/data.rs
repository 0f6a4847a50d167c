//! Parameter data on its way to the initiator: cut to the allocation length and to the room there.

use bytes::Bytes;

use crate::{Command, Response};

/// GOOD with `data`, of which ALLOCATION LENGTH and the initiator's expected data transfer length
/// may cut off the end without an error (SPC-4 §4.2.5.6).
pub(crate) fn respond(command: &Command, mut data: Vec<u8>, allocation_length: u32) -> Response {
    data.truncate(allocation_length as usize);
    let data_len_wanted = data.len() as u64;
    data.truncate(command.data_in_max);
    // What is cut off must not be kept for as long as the answer waits to be sent.
    data.shrink_to_fit();
    Response { data_in: Bytes::from(data), data_len_wanted, ..Response::good() }
}
