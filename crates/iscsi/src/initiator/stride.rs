//! How long a command is made. On a short path as long as the unit allows. On a long one an
//! operation is cut: a write so that each piece goes out unasked (§4.2.5.2: what an R2T has to ask
//! for comes a round trip later), and both kinds so that the connections share an operation; with
//! whole ones, what a connection has under way comes and goes by so much that it runs dry between.
//! Values only.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use iscsi_proto::keys::{ConnectionParams, SessionParams};
use path::SHORT_RTT_S;

/// Pieces that several connections share.
const SHARED_LEN: u32 = 256 << 10;
/// Shorter pieces than this cost more in commands than they save in round trips.
const UNASKED_LEN_MIN: u32 = 64 << 10;

/// The longest command of each kind in bytes; `u32::MAX` leaves it to the unit. Set by the path
/// controller, read by every operation.
#[derive(Debug)]
pub(super) struct Stride {
    read: AtomicU32,
    write: AtomicU32,
}

impl Default for Stride {
    fn default() -> Self {
        Self { read: AtomicU32::new(u32::MAX), write: AtomicU32::new(u32::MAX) }
    }
}

impl Stride {
    /// Chooses for a path: its shortest round trip, its connections, and what was agreed on them.
    pub(super) fn choose(
        &self,
        rtt: Duration,
        connections: u32,
        session: &SessionParams,
        connection: &ConnectionParams,
    ) {
        let (mut read, mut write) = (u32::MAX, u32::MAX);
        if rtt.as_secs_f64() >= SHORT_RTT_S {
            let shared = if connections > 1 { SHARED_LEN } else { u32::MAX };
            let unasked = unasked(session, connection);
            read = shared;
            write = if unasked < UNASKED_LEN_MIN { shared } else { unasked };
        }
        self.read.store(read, Ordering::Relaxed);
        self.write.store(write, Ordering::Relaxed);
    }

    /// The longest read, in whole blocks.
    pub(super) fn read(&self, transfer_len: u32, block_len: u32) -> u32 {
        whole(self.read.load(Ordering::Relaxed), transfer_len, block_len)
    }

    /// The longest write, in whole blocks.
    pub(super) fn write(&self, transfer_len: u32, block_len: u32) -> u32 {
        whole(self.write.load(Ordering::Relaxed), transfer_len, block_len)
    }
}

fn whole(len: u32, transfer_len: u32, block_len: u32) -> u32 {
    let block_len = block_len.max(1);
    (len.min(transfer_len) / block_len * block_len).max(block_len)
}

/// What a write may bring along unasked (§13.10, §13.11, §13.14).
fn unasked(session: &SessionParams, connection: &ConnectionParams) -> u32 {
    let immediate = match session.immediate_data {
        true => connection.max_send_data_segment_length,
        false => 0,
    };
    let most = if session.initial_r2t { immediate } else { u32::MAX };
    session.first_burst_length.min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(initial_r2t: bool, immediate_data: bool, first_burst_length: u32) -> SessionParams {
        SessionParams {
            initial_r2t,
            immediate_data,
            first_burst_length,
            ..SessionParams::default()
        }
    }

    fn lengths(rtt_ms: u64, connections: u32, session: SessionParams) -> (u32, u32) {
        let connection = ConnectionParams {
            max_send_data_segment_length: 131_072,
            ..ConnectionParams::default()
        };
        let stride = Stride::default();
        stride.choose(Duration::from_millis(rtt_ms), connections, &session, &connection);
        (stride.read(16 << 20, 512), stride.write(16 << 20, 512))
    }

    #[test]
    fn a_short_path_gets_commands_as_long_as_the_unit_allows() {
        assert_eq!(lengths(0, 8, agreed(false, true, 262_144)), (16 << 20, 16 << 20));
        assert_eq!(Stride::default().write(1000, 512), 512);
    }

    #[test]
    fn on_a_long_path_no_write_waits_to_be_asked_for() {
        assert_eq!(lengths(20, 1, agreed(false, true, 262_144)), (16 << 20, 262_144));
        assert_eq!(lengths(20, 1, agreed(false, false, 262_144)).1, 262_144);
        assert_eq!(lengths(20, 1, agreed(true, true, 262_144)).1, 131_072);
        // Nothing, or hardly anything, may go unasked: then pieces only cost commands.
        assert_eq!(lengths(20, 1, agreed(true, false, 262_144)).1, 16 << 20);
        assert_eq!(lengths(20, 1, agreed(false, true, 8192)).1, 16 << 20);
    }

    #[test]
    fn several_connections_share_an_operation() {
        assert_eq!(lengths(20, 2, agreed(false, true, 65_536)), (262_144, 65_536));
        assert_eq!(lengths(20, 2, agreed(true, false, 65_536)), (262_144, 262_144));
    }

    #[test]
    fn pieces_are_whole_blocks_and_never_nothing() {
        assert_eq!((whole(65_537, 1 << 20, 4096), whole(100, 1 << 20, 4096)), (65_536, 4096));
    }
}
