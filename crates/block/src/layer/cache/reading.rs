//! Reads: from pending writes, from what was read ahead, and the rest from the device.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::try_join_all;
use tokio::sync::watch;
use tokio::time::Instant;

use super::chunks::{Load, Loaded};
use super::sabotage::Sabotage;
use super::shared::{Shared, State};
use crate::{Buf, Io, Result};

/// Where a part of a read comes from.
enum Part {
    /// Read ahead; offset within the read, range within the chunk.
    Chunk(usize, watch::Receiver<Loaded>, Range<usize>),
    /// The device.
    Device(Range<u64>),
}

/// A load and the pending writes that lie over what the device will say.
type Order = (Load, Vec<(u64, Bytes)>);

/// Reads `buf.len()` bytes, which lie within the device of `size` bytes.
pub(super) fn read(shared: &Arc<Shared>, offset: u64, buf: Buf, size: u64) -> Io<Buf> {
    let range = offset..offset + buf.len() as u64;
    let mut state = shared.lock();
    let mut overlay = state.dirty.overlay(&range);
    if shared.config.mistakes.has(Sabotage::ReadPastPending) {
        overlay.clear();
    }
    if covers(&overlay, &range) {
        state.stats.hits += 1;
        drop(state);
        let mut buf = buf;
        lay(&overlay, offset, &mut buf);
        return Io::ok(buf);
    }
    state.chunks.begin_read();
    let orders = look_ahead(shared, &mut state, &range, size);
    let parts = split(&mut state, &range);
    let hit = parts.iter().all(|part| matches!(part, Part::Chunk(..)));
    if hit {
        state.stats.hits += 1;
    } else {
        state.stats.misses += 1;
    }
    drop(state);
    for order in orders {
        shared.runtime.spawn(load(shared.clone(), order));
    }
    if hit {
        return from_chunks(shared, range, buf, parts, overlay);
    }
    if let ([Part::Device(_)], true) = (&parts[..], overlay.is_empty()) {
        let shared = shared.clone();
        return Io::later(async move { from_device(&shared, offset, buf).await });
    }
    Io::later(assemble(shared.clone(), offset, buf, parts, overlay))
}

/// Takes note of the read; what is to be asked for ahead of it.
fn look_ahead(shared: &Shared, state: &mut State, range: &Range<u64>, size: u64) -> Vec<Order> {
    let mut orders = Vec::new();
    let Some((stream, progress)) = state.streams.observe(range.clone()) else { return orders };
    let waited = progress > 0 && !is_there(state, range);
    let view = state.path_view(&shared.config);
    state.streams.consume(stream, progress, waited, view);
    for chunk in state.streams.plan(stream, size) {
        match state.chunks.reserve(chunk, size) {
            Ok(Some(load)) => {
                state.stats.read_ahead_bytes += load.range.end - load.range.start;
                let mut overlay = state.dirty.overlay(&load.range);
                if shared.config.mistakes.has(Sabotage::LoadWithoutPending) {
                    overlay.clear();
                }
                orders.push((load, overlay));
            }
            Ok(None) => {}
            Err(()) => {
                state.streams.give_back(stream, chunk);
                break;
            }
        }
    }
    orders
}

/// The end of the range was read ahead and has arrived.
fn is_there(state: &State, range: &Range<u64>) -> bool {
    state.chunks.is_loaded(range.start) && state.chunks.is_loaded(range.end - 1)
}

fn split(state: &mut State, range: &Range<u64>) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut at = range.start;
    while at < range.end {
        match state.chunks.find(&(at..range.end)) {
            Some((content, part)) => {
                let len = part.len() as u64;
                parts.push(Part::Chunk((at - range.start) as usize, content, part));
                at += len;
            }
            None => {
                let end = state.chunks.end_of_chunk(at).min(range.end);
                state.chunks.demanded(end - at);
                match parts.last_mut() {
                    Some(Part::Device(last)) if last.end == at => last.end = end,
                    _ => parts.push(Part::Device(at..end)),
                }
                at = end;
            }
        }
    }
    parts
}

/// All parts are read ahead: at once if they have arrived.
fn from_chunks(
    shared: &Arc<Shared>,
    range: Range<u64>,
    mut buf: Buf,
    parts: Vec<Part>,
    overlay: Vec<(u64, Bytes)>,
) -> Io<Buf> {
    for part in &parts {
        let Part::Chunk(at, content, part) = part else { continue };
        let Loaded::Content(data) = &*content.borrow() else {
            shared.lock().stats.hits_waited += 1;
            return Io::later(assemble(shared.clone(), range.start, buf, parts, overlay));
        };
        buf[*at..*at + part.len()].copy_from_slice(&data[part.clone()]);
    }
    lay(&overlay, range.start, &mut buf);
    Io::ok(buf)
}

async fn assemble(
    shared: Arc<Shared>,
    offset: u64,
    mut buf: Buf,
    parts: Vec<Part>,
    overlay: Vec<(u64, Bytes)>,
) -> Result<Buf> {
    let pieces = try_join_all(parts.into_iter().map(|part| fetch(&shared, offset, part))).await?;
    for (at, data) in pieces {
        buf[at..at + data.len()].copy_from_slice(&data);
    }
    lay(&overlay, offset, &mut buf);
    Ok(buf)
}

async fn fetch(shared: &Shared, offset: u64, part: Part) -> Result<(usize, Bytes)> {
    let (at, len) = match part {
        Part::Chunk(at, mut content, part) => {
            // An Err is a load that was given up with its runtime; then the device is asked, too.
            let loaded = content.wait_for(|loaded| !matches!(loaded, Loaded::NotYet)).await;
            if let Ok(Loaded::Content(data)) = loaded.as_deref() {
                return Ok((at, data.slice(part)));
            }
            (at, part.len())
        }
        Part::Device(range) => {
            ((range.start - offset) as usize, (range.end - range.start) as usize)
        }
    };
    let buf = from_device(shared, offset + at as u64, Buf::new(len)).await?;
    Ok((at, buf.freeze()))
}

/// Reads from the device and learns from it about the path.
async fn from_device(shared: &Shared, offset: u64, buf: Buf) -> Result<Buf> {
    let departure = shared.lock().path.depart(Instant::now());
    let buf = shared.device.read(offset, buf).await?;
    shared.lock().path.arrive(departure, buf.len() as u64, Instant::now());
    Ok(buf)
}

async fn load(shared: Arc<Shared>, (load, overlay): Order) {
    let start = load.range.start;
    let len = (load.range.end - start) as usize;
    let content = match from_device(&shared, start, Buf::new(len)).await {
        Ok(mut buf) => {
            lay(&overlay, start, &mut buf);
            Some(buf.freeze())
        }
        Err(error) => {
            tracing::debug!(offset = start, %error, "reading ahead");
            None
        }
    };
    shared.lock().chunks.loaded(load, content);
}

/// The pieces leave no gap in `range`.
fn covers(pieces: &[(u64, Bytes)], range: &Range<u64>) -> bool {
    let mut spans: Vec<_> = pieces.iter().map(|(at, data)| (*at, at + data.len() as u64)).collect();
    spans.sort_unstable();
    let reached = |end: u64, (start, to): (u64, u64)| if start <= end { end.max(to) } else { end };
    spans.into_iter().fold(range.start, reached) >= range.end
}

/// Copies the pieces, older before newer, over a buffer that begins at `offset`.
fn lay(pieces: &[(u64, Bytes)], offset: u64, buf: &mut [u8]) {
    for (at, data) in pieces {
        let at = (at - offset) as usize;
        buf[at..at + data.len()].copy_from_slice(data);
    }
}
