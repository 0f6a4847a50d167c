//! Damage in flight: bytes that change where a digest sees it, and PDUs that are lost whole, as
//! when the receiver finds a header damaged and knows where the next one begins (RFC 7143 §7.8).
//! What no digest protects is never touched: nobody could notice.

use iscsi_proto::frame::{DIGEST_LEN, Framing, pad_len};
use iscsi_proto::pdu::BHS_LEN;

use crate::net::Side;
use crate::rng::Rng;

/// What becomes of a PDU on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Arrives,
    /// A byte of its header or of the header's digest changes: its length means nothing any more.
    HeaderDamaged,
    /// A byte of its data, of the padding or of the data's digest changes.
    DataDamaged,
    /// It never comes, and the stream goes on behind it.
    Lost,
}

/// How much damage there is in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// PDUs damaged in all.
    pub(crate) count: u32,
    /// One in so many PDUs that carry data of a command; others are hit more often.
    pub(crate) one_in: u64,
    /// PDUs are lost too, where a session can survive it.
    pub(crate) losses: bool,
}

/// Deals out what a plan says.
#[derive(Debug)]
pub(crate) struct Damage {
    plan: Plan,
    rng: Rng,
}

/// PDUs that are rare are hit more often by this.
const RARE: u64 = 8;

impl Damage {
    pub(crate) fn new(plan: Plan, rng: Rng) -> Self {
        Self { plan, rng }
    }

    /// Decides about a PDU. `survives_loss`: at the session's error recovery level it can be had
    /// again.
    pub(crate) fn fate(&mut self, pdu: &[u8], framing: Framing, survives_loss: bool) -> Fate {
        if self.plan.count == 0 || !(framing.header_digest || framing.data_digest) {
            return Fate::Arrives;
        }
        let bulk = matches!(opcode(pdu), 0x01 | 0x05 | 0x21 | 0x25 | 0x31);
        let one_in = if bulk { self.plan.one_in } else { self.plan.one_in.div_ceil(RARE) };
        if self.rng.below(one_in) != 0 {
            return Fate::Arrives;
        }
        let mut fates = Vec::new();
        if framing.header_digest {
            fates.push(Fate::HeaderDamaged);
            if survives_loss && self.plan.losses {
                // A damaged header costs a connection at least; most damage should cost less.
                fates.extend([Fate::Lost; 6]);
            }
        }
        if framing.data_digest && data_len(pdu) > 0 {
            fates.extend([Fate::DataDamaged; 2]);
            if survives_loss {
                fates.extend([Fate::DataDamaged; 6]);
            }
        }
        if fates.is_empty() {
            return Fate::Arrives;
        }
        self.plan.count -= 1;
        self.rng.pick(&fates)
    }

    /// Changes some bits in a byte or two of a PDU: CRC32C finds any such change.
    pub(crate) fn inflict(&mut self, fate: Fate, pdu: &mut [u8], framing: Framing) {
        let header_len = header_len(pdu, framing);
        let range = match fate {
            Fate::Arrives | Fate::Lost => return,
            Fate::HeaderDamaged => 0..header_len,
            Fate::DataDamaged => {
                let len = data_len(pdu);
                header_len..header_len + len + pad_len(len) + DIGEST_LEN
            }
        };
        let at = self.rng.range(range.start as u64, range.end as u64 - 1) as usize;
        pdu[at] ^= self.rng.range(1, 255) as u8; // at most 255
        if at + 1 < range.end {
            pdu[at + 1] ^= self.rng.below(256) as u8; // below 256
        }
    }
}

fn opcode(pdu: &[u8]) -> u8 {
    pdu[0] & 0x3f
}

fn data_len(pdu: &[u8]) -> usize {
    u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]]) as usize
}

fn header_len(pdu: &[u8], framing: Framing) -> usize {
    let digest = if framing.header_digest { DIGEST_LEN } else { 0 };
    BHS_LEN + 4 * usize::from(pdu[4]) + digest
}

/// The counter that tells which damage was done to what.
pub(crate) fn counter(fate: Fate, from: Side, pdu: &[u8]) -> &'static str {
    match (fate, from) {
        (Fate::Arrives, _) => "no damage",
        (Fate::HeaderDamaged, Side::Initiator) => "damage: header to the target",
        (Fate::HeaderDamaged, Side::Target) => "damage: header to the initiator",
        (Fate::DataDamaged, _) => match opcode(pdu) {
            0x00 => "damage: ping data to the target",
            0x01 => "damage: immediate data",
            0x04 => "damage: text of a request",
            0x05 => "damage: Data-Out",
            0x20 => "damage: ping data to the initiator",
            0x21 => "damage: sense",
            0x24 => "damage: text of a response",
            0x25 => "damage: Data-In",
            0x3f => "damage: quoted header of a Reject",
            _ => "damage: other data",
        },
        (Fate::Lost, _) => match opcode(pdu) {
            0x00 => "lost: NOP-Out",
            0x01 => "lost: SCSI command",
            0x02 => "lost: task management request",
            0x04 => "lost: text request",
            0x05 => "lost: Data-Out",
            0x06 => "lost: logout request",
            0x10 => "lost: SNACK",
            0x20 => "lost: NOP-In",
            0x21 => "lost: SCSI response",
            0x22 => "lost: task management response",
            0x24 => "lost: text response",
            0x25 => "lost: Data-In",
            0x26 => "lost: logout response",
            0x31 => "lost: R2T",
            0x32 => "lost: asynchronous message",
            0x3f => "lost: Reject",
            _ => "lost: other",
        },
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use iscsi_proto::frame::{FrameError, Framer, Limits};
    use iscsi_proto::pdu::Header;

    use super::*;

    const PLAN: Plan = Plan { count: u32::MAX, one_in: 1, losses: false };
    const BOTH: Framing = Framing { header_digest: true, data_digest: true };

    fn pdu(framing: Framing, data: &[u8]) -> Vec<u8> {
        let mut header = Header { bhs: [0; BHS_LEN], ahs: Bytes::new() };
        header.bhs[0] = 0x05;
        header.bhs[7] = data.len() as u8;
        framing.pdu_bytes(&header, data)
    }

    #[test]
    fn the_digest_that_is_meant_finds_the_damage() {
        let mut damage = Damage::new(PLAN, Rng::new(1));
        for _ in 0..500 {
            let mut bytes = pdu(BOTH, &[7; 13]);
            let fate = damage.fate(&bytes, BOTH, false);
            damage.inflict(fate, &mut bytes, BOTH);
            let mut framer = Framer::new(BOTH, Limits::LOGIN);
            framer.push(&bytes);
            // A damaged TotalAHSLength makes the header longer than all there is.
            framer.push(&[0; 2000]);
            match (fate, framer.next_pdu().unwrap_err()) {
                (Fate::HeaderDamaged, FrameError::HeaderDigest { .. }) => {}
                (Fate::DataDamaged, FrameError::DataDigest { .. }) => {}
                (fate, error) => panic!("{fate:?}: {error}"),
            }
        }
    }

    #[test]
    fn without_a_digest_nothing_is_touched() {
        let mut damage = Damage::new(PLAN, Rng::new(1));
        for (header_digest, data_digest) in [(false, false), (true, false), (false, true)] {
            let framing = Framing { header_digest, data_digest };
            for _ in 0..100 {
                let fate = damage.fate(&pdu(framing, &[7; 13]), framing, false);
                assert!(fate != Fate::HeaderDamaged || header_digest);
                assert!(fate != Fate::DataDamaged || data_digest);
                assert_eq!(
                    damage.fate(&pdu(framing, &[]), framing, false) != Fate::Arrives,
                    header_digest
                );
            }
        }
    }
}
