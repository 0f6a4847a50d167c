//! Videos of volumes over HTTP: a browser's range of bytes becomes block reads of the file's
//! extents, and nothing stands between.
//!
//! A [`Catalogue`] names videos and the volumes that they are on, a [`Server`] answers for it. A
//! volume is opened when somebody wants something of it, and let go when nobody does. Who may see
//! what is [`Accounts`]' and [`Shares`]'.
//!
//! What a browser cannot play only because of its container is put into another one on its way, by
//! ffmpeg.
//!
//! Not here: writing to a volume, codecs.

#![forbid(unsafe_code)]

mod access;
mod answers;
mod aside;
mod body;
mod catalogue;
mod conversation;
mod directory;
mod escort;
mod guard;
mod home;
mod lease;
mod line;
mod opened;
mod owner;
mod programs;
mod publish;
mod range;
mod recent;
mod recorded;
mod remux;
mod respond;
mod route;
mod sent;
mod server;
mod shelf;
mod state;
mod subtitles;
#[cfg(test)]
mod testing;
mod text;
mod tls;
mod told;
mod turns;
mod uplinks;
mod view;
mod watching;
mod writers;

pub use access::{Accounts, Role, Share, Shares};
pub use body::{Confirming, FileBody, Holder};
pub use catalogue::{Catalogue, CatalogueError, HomeSpec, Place, Subtitles, Video};
pub use directory::{DirectoryJob, Put, PutError, Source, VideoEntry, VolumeEntry, put};
pub use home::{Absence, Home, Off, Opening, Status};
pub use lease::{Lease, Missing};
pub use programs::ProbeError;
pub use publish::{Job, Outcome, PublishError, publish};
pub use range::Wanted;
pub use recorded::Recorded;
pub use respond::{AnyBody, Resource, respond};
pub use server::{Admission, Config, Origin, Server, ServerError};
pub use state::{ChangeError, StateError, StateFolder};
pub use subtitles::to_webvtt;
pub use tls::{Tls, TlsError};
pub use told::time_text;
pub use uplinks::{UplinkError, UplinkHomes, uplink_key};
