//! Which connection carries a command. Allegiance (RFC 7143 §4.2.3.1) makes this choice final, so
//! it is made once, when the command is submitted. Knows nothing of tasks or PDUs.

use super::ConnectionId;

/// What is known of a connection when a command looks for one.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The connection.
    pub id: ConnectionId,
    /// Payload bytes of its unfinished commands, both directions, plus a fixed cost per command.
    pub outstanding_bytes: u64,
    /// Its unfinished commands.
    pub in_flight: u32,
}

/// Cost of a command without its payload, in bytes: headers both ways and the target's work. It
/// keeps a stream of small commands from piling up on one connection.
pub const COMMAND_COST_BYTES: u64 = 512;

/// The candidate with the fewest outstanding bytes; the first of equals. `None` without candidates.
pub(super) fn choose(candidates: impl Iterator<Item = Candidate>) -> Option<ConnectionId> {
    candidates.min_by_key(|c| (c.outstanding_bytes, c.in_flight)).map(|c| c.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: u8, outstanding_bytes: u64) -> Candidate {
        Candidate { id: ConnectionId(id), outstanding_bytes, in_flight: 0 }
    }

    #[test]
    fn least_outstanding_bytes_wins_and_ties_go_to_the_first() {
        let all = [candidate(0, 900), candidate(1, 512), candidate(2, 512)];
        assert_eq!(choose(all.into_iter()), Some(ConnectionId(1)));
        assert_eq!(choose(std::iter::empty()), None);
    }
}
