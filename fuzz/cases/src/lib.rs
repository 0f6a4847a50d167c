//! What hostile input must not be able to do: one function per kind of input, with the invariants
//! as assertions. The fuzz targets feed it bytes of their own making, the test of this crate
//! replays the corpora under `fuzz/corpus`.
//!
//! It is not a test of what the code does with good input; that is where the code is.

#![forbid(unsafe_code)]

mod capture;
mod capture_reader;
mod drivers;
mod files;
mod initiator_session;
mod isns;
mod kept;
mod login;
mod media;
mod misc;
mod nbd_client;
mod reader;
mod redo;
mod seeds;
mod stream;
mod target_session;
mod target_toml;
mod uplink;
mod wire;

pub use capture::{capture_file, capture_stream};
pub use capture_reader::{pcap, pcapng};
pub use files::files;
pub use initiator_session::initiator_session;
pub use isns::isns;
pub use kept::{copy_state, mirror_leg, mirror_metadata};
pub use login::{login_initiator, login_target};
pub use media::{
    catalogue as media_catalogue, entry as media_entry, ranges as media_ranges,
    subtitles as media_subtitles,
};
pub use misc::{cdb, names, nbd_handshake, scsi_replies};
pub use nbd_client::nbd_client;
pub use redo::mirror_redo;
pub use seeds::seeds;
pub use stream::stream;
pub use target_session::target_session;
pub use target_toml::target_toml;
pub use uplink::uplink;
pub use wire::{framer, text_keys};

/// Runs one input; panics if an invariant does not hold.
pub type Case = fn(&[u8]);

/// Every case by the name of its fuzz target and corpus.
pub const CASES: &[(&str, Case)] = &[
    ("framer", framer),
    ("text_keys", text_keys),
    ("login_target", login_target),
    ("login_initiator", login_initiator),
    ("target_session", target_session),
    ("initiator_session", initiator_session),
    ("cdb", cdb),
    ("nbd_handshake", nbd_handshake),
    ("nbd_client", nbd_client),
    ("scsi_replies", scsi_replies),
    ("names", names),
    ("target_toml", target_toml),
    ("capture_file", capture_file),
    ("capture_stream", capture_stream),
    ("pcap", pcap),
    ("pcapng", pcapng),
    ("stream", stream),
    ("mirror_leg", mirror_leg),
    ("mirror_redo", mirror_redo),
    ("mirror_metadata", mirror_metadata),
    ("copy_state", copy_state),
    ("isns", isns),
    ("files", files),
    ("media_catalogue", media_catalogue),
    ("media_entry", media_entry),
    ("media_ranges", media_ranges),
    ("media_subtitles", media_subtitles),
    ("uplink", uplink),
];
