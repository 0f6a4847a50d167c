//! Could these 48 bytes be a header? Every PDU has reserved fields that must be zero (RFC 7143
//! §11), which payload seldom has in all the right places.

use iscsi_proto::pdu::{BHS_LEN, Opcode};

use super::Direction;

/// A header that does not use this opcode in this direction is none.
pub fn opcode_belongs(opcode: Opcode, direction: Direction) -> bool {
    let is_targets = opcode.0 & 0x20 != 0;
    opcode.name().is_some() && is_targets == (direction == Direction::ToInitiator)
}

/// Strict: for finding a header in the middle of a stream. One that sets reserved bits is missed.
pub fn is_plausible(bhs: &[u8; BHS_LEN], direction: Direction) -> bool {
    let opcode = Opcode(bhs[0] & 0x3f);
    if !opcode_belongs(opcode, direction) || bhs[0] & 0x80 != 0 {
        return false;
    }
    if direction == Direction::ToInitiator && bhs[0] & 0x40 != 0 {
        return false;
    }
    let zero = |from: usize, to: usize| bhs[from..to].iter().all(|&byte| byte == 0);
    let ahs_words = bhs[4];
    let data = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]);
    let word = |at: usize| u32::from_be_bytes([bhs[at], bhs[at + 1], bhs[at + 2], bhs[at + 3]]);
    let (itt, ttt) = (word(16), word(20));
    if ahs_words != 0 && opcode != Opcode::SCSI_COMMAND {
        return false;
    }
    let final_only = bhs[1] == 0x80 && zero(2, 4);
    match opcode {
        Opcode::NOP_OUT | Opcode::NOP_IN => final_only && zero(36, 48) | (opcode == Opcode::NOP_IN),
        // Bytes 10 to 15: a LUN of one level, which is what there is.
        Opcode::SCSI_COMMAND => {
            bhs[1] & 0x18 == 0
                && bhs[2] & 0x0f == 0
                && bhs[3] == 0
                && ahs_words <= 66
                && itt != u32::MAX
                && zero(10, 16)
        }
        Opcode::TASK_MANAGEMENT_REQUEST => bhs[1] & 0x80 != 0 && zero(2, 4) && data == 0,
        Opcode::LOGIN_REQUEST => bhs[1] & 0x30 == 0 && zero(2, 4) && zero(32, 48),
        Opcode::TEXT_REQUEST | Opcode::TEXT_RESPONSE => bhs[1] & 0x3f == 0 && zero(2, 4),
        Opcode::DATA_OUT => {
            bhs[0] == 0x05
                && bhs[1] & 0x7f == 0
                && zero(2, 4)
                && zero(24, 28)
                && zero(32, 36)
                && zero(44, 48)
                && itt != u32::MAX
        }
        Opcode::LOGOUT_REQUEST | Opcode::SNACK_REQUEST => {
            bhs[1] & 0x80 != 0 && zero(2, 4) && data == 0
        }
        Opcode::SCSI_RESPONSE => {
            bhs[1] & 0xe1 == 0x80 && zero(10, 16) && itt != u32::MAX && data <= 65_536
        }
        Opcode::TASK_MANAGEMENT_RESPONSE | Opcode::LOGOUT_RESPONSE => {
            bhs[1] == 0x80 && bhs[3] == 0 && data == 0
        }
        Opcode::LOGIN_RESPONSE => bhs[1] & 0x30 == 0 && zero(40, 48),
        Opcode::DATA_IN => {
            let with_status = bhs[1] & 1 != 0;
            bhs[1] & 0x38 == 0
                && bhs[2] == 0
                && (with_status || bhs[3] == 0)
                && (!with_status || bhs[1] & 0x80 != 0)
                && itt != u32::MAX
        }
        Opcode::R2T => {
            final_only && data == 0 && itt != u32::MAX && ttt != u32::MAX && word(44) > 0
        }
        Opcode::ASYNC_MESSAGE => final_only && itt == u32::MAX,
        Opcode::REJECT => bhs[1] == 0x80 && bhs[3] == 0 && itt == u32::MAX,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_hardly_ever_a_header() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let noise: Vec<u8> = (0..1 << 20)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        for direction in [Direction::ToTarget, Direction::ToInitiator] {
            for payload in [&noise[..], &[0; 4096], &[0xff; 4096], &[0x80; 4096]] {
                let found = payload
                    .windows(BHS_LEN)
                    .filter(|window| {
                        let bhs: &[u8; BHS_LEN] = (*window).try_into().unwrap();
                        is_plausible(bhs, direction)
                    })
                    .count();
                assert!(found <= 2, "{found} in {direction:?}");
            }
        }
    }
}
