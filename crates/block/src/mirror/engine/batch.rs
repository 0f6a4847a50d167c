//! Sending in batches, in the asynchronous mode: many epochs at once, folded, through the redo log
//! of the leg, so that it goes from the end of one epoch to the end of a much later one. Six round
//! trips for any number of epochs, where sending them one after the other takes two for each.
//!
//! The leg's own task sends a batch, since it is that which writes the leg's superblock; the
//! [sender](super::sender) of the log asks for one, and waits.

use std::sync::Arc;
use std::time::Duration;

use super::handshake::Found;
use super::piece;
use super::redo::Batch;
use super::sender::ZERO_BYTES_MAX;
use super::session::Session;
use super::shared::Shared;
use super::signs;
use crate::Result;

/// Round trips of a batch, and of a step that is sent by itself.
const BATCH_ROUNDS: u32 = 6;
const STEP_ROUNDS: u32 = 2;

/// What waits to be sent to a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// Steps that it takes one after the other.
    pub(crate) steps: u64,
    /// Bytes of it.
    pub(crate) bytes: u64,
    /// What a step took that was small, or the smallest of them: about its round trips.
    pub(crate) step_took: Duration,
    /// Bytes a second of the line, if it is known.
    pub(crate) rate: Option<u64>,
}

/// Whether a batch is there sooner than the steps, although it goes over the line twice.
pub(crate) fn is_sooner(waiting: Waiting) -> bool {
    let (steps, batch) = times(waiting);
    steps > batch
}

/// Why it is, for people.
pub(crate) fn why(waiting: Waiting) -> String {
    let (steps, batch) = times(waiting);
    format!(
        "{} epochs wait, {} KiB: one after the other they take {:.2} s, together {:.2} s",
        waiting.steps,
        waiting.bytes.div_ceil(1024),
        steps.as_secs_f64(),
        batch.as_secs_f64()
    )
}

/// What the steps take one after the other, and what a batch takes, about.
fn times(waiting: Waiting) -> (Duration, Duration) {
    let Waiting { steps, bytes, step_took, rate } = waiting;
    let steps_took = step_took.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX));
    let batch_took = step_took * (BATCH_ROUNDS / STEP_ROUNDS);
    // While nothing is known of the line, a step carries what it can within its own time.
    let again = match rate {
        Some(rate) if rate > 0 => Duration::from_secs_f64(bytes as f64 / rate as f64),
        _ => Duration::ZERO,
    };
    (steps_took, batch_took + again)
}

/// Sends a batch, if there is one that the redo log holds. False: there is none, and the next step
/// goes by itself.
///
/// # Errors
/// The leg's.
pub(crate) async fn send(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<bool> {
    signs::first(shared, leg, session, found).await?;
    let log = found.redo_log();
    // Half of it is enough for the headers, whatever is in it.
    let Some(step) = shared.legs().next_folded(leg, session, (log.end - log.start) / 2) else {
        return Ok(false);
    };
    let (epoch, closed, bytes) = (step.epoch, step.closed, step.held_bytes());
    let begun = shared.host().now();
    let mut batch = Batch::new(shared, leg, session, found);
    let pieces = step.clone().into_writes(piece::DATA_BYTES, ZERO_BYTES_MAX);
    let filled = async {
        for piece in pieces {
            batch.add(piece);
            batch.send().await?;
        }
        batch.send_all().await
    };
    signs::beside(shared, leg, session, found, filled).await?;
    batch.commit(found, epoch, closed).await?;
    batch.put_home(found, step.into_writes(piece::DATA_BYTES, ZERO_BYTES_MAX)).await?;
    batch.release(found).await?;
    shared.legs().carried(leg, bytes, 0, shared.host().now().saturating_sub(begun));
    shared.legs().stamped(leg, session, epoch, closed);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn many_small_steps_over_a_long_way_go_together() {
        let waiting = |steps, bytes, rate| Waiting { steps, bytes, step_took: 100 * MS, rate };
        assert!(!is_sooner(waiting(1, 8192, None)));
        assert!(!is_sooner(waiting(3, 8192, None)));
        assert!(is_sooner(waiting(4, 4 * 8192, Some(1 << 20))));
        assert!(is_sooner(waiting(20, 20 * 8192, Some(1 << 20))));
        assert!(!is_sooner(waiting(20, 16 << 20, Some(1 << 20))), "the line is what holds it up");
        let near = Waiting { step_took: MS, ..waiting(20, 1 << 20, Some(10 << 20)) };
        assert!(!is_sooner(near));
        let expected =
            "20 epochs wait, 160 KiB: one after the other they take 2.00 s, together 0.46 s";
        assert_eq!(why(waiting(20, 20 * 8192, Some(1 << 20))), expected);
    }
}
