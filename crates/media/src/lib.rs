//! Videos of volumes over HTTP: a browser's range of bytes becomes block reads of the file's
//! extents, and nothing stands between.
//!
//! A [`Catalogue`] names videos and the volumes that they are on, a [`Server`] answers for it. A
//! volume is opened when somebody wants something of it, and let go when nobody does.
//!
//! Not here: writing to a volume, codecs, accounts and TLS.

#![forbid(unsafe_code)]

mod aside;
mod body;
mod catalogue;
mod guard;
mod home;
mod json;
mod lease;
mod publish;
mod range;
mod respond;
mod route;
mod server;
mod shelf;
mod subtitles;
mod text;

pub use body::{FileBody, Holder};
pub use catalogue::{Catalogue, CatalogueError, HomeSpec, Place, Subtitles, Video};
pub use home::{Home, Off, Opening, Status};
pub use lease::{Lease, Missing};
pub use publish::{Job, Outcome, ProbeError, PublishError, publish};
pub use range::Wanted;
pub use respond::{AnyBody, Resource, respond};
pub use server::{Config, Server, ServerError};
pub use subtitles::to_webvtt;
