//! [`read_ahead`]: a video whose index is behind its pictures. A player looks into its beginning,
//! then for the index, then for the pictures: what it is sent after the beginning is for nothing,
//! and holds up the index. So the index is read as soon as the beginning is asked for, and what is
//! sent waits for that.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use files::FileReader;
use http_body_util::BodyExt;
use tokio::sync::Semaphore;

use crate::body::{FileBody, Segment};
use crate::lease::Lease;
use crate::respond::Resource;

/// Bytes in which a player sees that the index is not there.
const BEGINNING: u64 = 64 << 10;
/// Longest index that is read: of a day.
const INDEX_MAX: u64 = 8 << 20;
/// Browsers ask from a multiple of so many bytes on: Chromium's MultiBuffer has blocks of 32 KiB.
const BLOCK: u64 = 32 << 10;
/// Bytes of pictures that are read with the index, which a player asks for next, and of those that
/// are read when it has come.
const PICTURES: u64 = 192 << 10;
const MORE: u64 = 1 << 20;
/// How long all of it may take.
const TIME_MAX: Duration = Duration::from_secs(15);
/// Most of them at once.
pub(crate) const AT_ONCE_MAX: usize = 16;

/// Reads the index ahead, for a body that begins with the beginning, where it is behind that.
/// Whoever asks for it finds it among what is [recent](crate::recent).
pub(crate) fn read_ahead(
    resource: &Resource,
    index_at: Option<u64>,
    body: &mut FileBody,
    places: &Arc<Semaphore>,
    lease: &Arc<Lease>,
) {
    let (file, size) = (resource.file().clone(), resource.file().size());
    let (pictures, more) = (BEGINNING + PICTURES, BEGINNING + PICTURES + MORE);
    let is_behind = |at: &u64| *at > more && *at < size && size - at <= INDEX_MAX;
    let Some(index_at) = index_at.filter(is_behind) else { return };
    let Ok(place) = Arc::clone(places).try_acquire_owned() else { return };
    let Some(index_came) = body.hold_back(BEGINNING) else { return };
    let lease = Arc::clone(lease);
    let index = index_at - index_at % BLOCK..size;
    tokio::spawn(async move {
        let index = async {
            read(&file, index).await;
            let _ = index_came.send(()); // or nobody waits for it any more
        };
        let work = async {
            // In this order: the beginning is what is waited for first.
            let first = read(&file, 0..BEGINNING);
            tokio::join!(biased; first, index, read(&file, BEGINNING..pictures));
            read(&file, pictures..more).await;
        };
        let _ = tokio::time::timeout(TIME_MAX, work).await; // then a player does it by himself
        drop((place, lease));
    });
}

/// In the pieces in which a body of this part would read it.
async fn read(file: &FileReader, part: Range<u64>) {
    let mut body = FileBody::new(file, [Segment::Part(part)]);
    while let Some(Ok(_)) = body.frame().await {}
}
