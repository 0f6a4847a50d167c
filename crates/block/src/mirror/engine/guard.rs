//! The reservation of a leg, where its target knows reservations: held before the first write, so
//! that whoever takes the leg over keeps us from writing, and not our own good will.
//!
//! The key is made of the names of mirror and leg, which the metadata holds: whoever has that is
//! the mirror, also after a restart, or as another node of a pair that shares it. It is kept when
//! the mirror ends, since the leg is its leg still.

use std::sync::Arc;

use super::super::leg::LegEvent;
use super::super::link::Fence;
use super::super::status::Guard;
use super::super::superblock::{LegId, MirrorId};
use super::handshake::{Looked, Refused};
use super::session::Session;
use crate::{BlockError, Result};

/// The key of a mirror at one of its legs. Never 0, which stands for no key (SPC-4 §6.14.3).
pub(crate) fn key(mirror: MirrorId, leg: LegId) -> u64 {
    let mixed = mirror.0 ^ leg.0.rotate_left(64);
    ((mixed >> 64) as u64 ^ mixed as u64) | 1
}

/// Holds the reservation.
///
/// # Errors
/// Somebody else has the leg, or it cannot be held and has to be.
pub(crate) async fn hold(session: &Arc<Session>, mirror: MirrorId, leg: LegId) -> Looked<Guard> {
    let Some(fence) = session.leg().fence.clone() else { return Ok(Guard::Superblock) };
    let key = key(mirror, leg);
    match session.run(|_| fence.hold(key)).await {
        Ok(()) => Ok(Guard::Reservation),
        Err(BlockError::Fenced) => {
            let holder = session.run(|_| fence.holder()).await.ok().flatten();
            Err(Refused::new(LegEvent::TakenOver, taken_over(holder)))
        }
        Err(error @ BlockError::Unreachable(_)) => Err(error.into()),
        Err(error) => without(&*fence, &error),
    }
}

/// The target says that it knows reservations, and refuses ours.
fn without(fence: &dyn Fence, error: &BlockError) -> Looked<Guard> {
    if fence.is_required() {
        let message = format!(
            "it cannot be reserved ({error}), and `fence = \"reservation\"` asks for that; with \
             `fence = \"none\"` it is used without"
        );
        return Err(Refused::new(LegEvent::Failed, message));
    }
    tracing::warn!(%error, "the leg cannot be reserved: it is used without a reservation");
    Ok(Guard::Superblock)
}

fn taken_over(holder: Option<u64>) -> String {
    let who = holder.map_or_else(String::new, |key| format!(" under key {key:#018x}"));
    format!(
        "somebody else holds its reservation{who}: it was promoted, or belongs to another host; \
         `enkaku mirror inspect` shows it, `enkaku mirror resolve --discard` takes it back"
    )
}

/// Takes the reservation from whoever has it. A person has decided that.
///
/// # Errors
/// The leg's.
pub(crate) async fn take(session: &Arc<Session>, mirror: MirrorId, leg: LegId) -> Result<()> {
    let Some(fence) = session.leg().fence.clone() else { return Ok(()) };
    match session.run(|_| fence.take(key(mirror, leg))).await {
        Err(error @ (BlockError::Unreachable(_) | BlockError::Fenced)) => Err(error),
        Err(error) if fence.is_required() => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_mirrors_and_legs_apart_and_are_never_none() {
        let (a, b) = (MirrorId(1 << 100 | 7 << 8), MirrorId(1 << 101 | 7 << 8));
        let keys = [key(a, LegId(2)), key(a, LegId(4)), key(b, LegId(2)), key(b, LegId(4))];
        for (at, one) in keys.iter().enumerate() {
            assert!(*one != 0 && !keys[at + 1..].contains(one), "{keys:x?}");
        }
        assert_ne!(key(MirrorId(0), LegId(0)), 0);
    }
}
