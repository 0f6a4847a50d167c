//! PERSISTENT RESERVE IN and OUT (SPC-4 §6.15, §6.16): command blocks, parameter lists and what is
//! read. Bytes only: sends nothing, decides nothing, and trusts no length it is told.

use super::cdb::Cdb;

/// TYPE and SCOPE of the reservations that are made here: write exclusive, registrants only; of the
/// logical unit (SPC-4 §5.12, table 184).
pub(super) const WRITE_EXCLUSIVE_REGISTRANTS_ONLY: u8 = 0x05;

/// Bytes asked for by PERSISTENT RESERVE IN: 8,000 keys. A unit that has more is no leg.
pub(super) const ALLOCATION_LEN: u16 = 64_008;

/// Length of a basic parameter list (SPC-4 §6.16.3).
const LIST_LEN: u8 = 24;

/// APTPL: the registration outlives a loss of power.
const APTPL: u8 = 0x01;

/// What PERSISTENT RESERVE IN asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Every registered key.
    Keys = 0x00,
    /// The reservation there is.
    Reservation = 0x01,
}

/// What PERSISTENT RESERVE OUT does. `key` is the one that the nexus is registered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// REGISTER AND IGNORE EXISTING KEY; with `outlives_power`, APTPL.
    RegisterAnyway { key: u64, outlives_power: bool },
    /// REGISTER of no key.
    Unregister { key: u64 },
    /// RESERVE.
    Reserve { key: u64 },
    /// RELEASE.
    Release { key: u64 },
    /// PREEMPT of all that are registered with `victim`; with `aborts`, PREEMPT AND ABORT.
    Preempt { key: u64, victim: u64, aborts: bool },
}

impl Action {
    const fn code(self) -> u8 {
        match self {
            Self::Unregister { .. } => 0x00,
            Self::Reserve { .. } => 0x01,
            Self::Release { .. } => 0x02,
            Self::Preempt { aborts: false, .. } => 0x04,
            Self::Preempt { aborts: true, .. } => 0x05,
            Self::RegisterAnyway { .. } => 0x06,
        }
    }

    /// Its command block and parameter list.
    pub(super) fn encode(self) -> (Cdb, Vec<u8>) {
        let (key, service_key, flags) = match self {
            Self::RegisterAnyway { key, outlives_power } => {
                (0, key, if outlives_power { APTPL } else { 0 })
            }
            Self::Unregister { key } | Self::Reserve { key } | Self::Release { key } => (key, 0, 0),
            Self::Preempt { key, victim, .. } => (key, victim, 0),
        };
        let kind = match self {
            Self::RegisterAnyway { .. } | Self::Unregister { .. } => 0,
            _ => WRITE_EXCLUSIVE_REGISTRANTS_ONLY,
        };
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, self.code(), kind, LIST_LEN);
        let mut list = vec![0; LIST_LEN.into()];
        list[..8].copy_from_slice(&key.to_be_bytes());
        list[8..16].copy_from_slice(&service_key.to_be_bytes());
        list[20] = flags;
        (cdb, list)
    }
}

/// PERSISTENT RESERVE IN, with room for so many bytes.
pub(super) fn ask(question: Question, len: u16) -> Cdb {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x5e, question as u8);
    cdb[7..9].copy_from_slice(&len.to_be_bytes());
    cdb
}

/// A reservation that somebody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// The key of who has it; 0 where all registrants have it.
    pub(super) key: u64,
    /// Its type.
    pub(super) kind: u8,
}

/// What follows PRGENERATION and the length, as far as it is there.
fn body(data: &[u8]) -> &[u8] {
    let len = data.get(4..8).and_then(|len| len.try_into().ok()).map_or(0, u32::from_be_bytes);
    let body = data.get(8..).unwrap_or(&[]);
    &body[..body.len().min(len as usize)]
}

fn key(bytes: &[u8]) -> Option<u64> {
    bytes.get(..8)?.try_into().ok().map(u64::from_be_bytes)
}

/// The keys of READ KEYS, each of them once for every nexus that is registered with it.
pub(super) fn keys(data: &[u8]) -> Vec<u64> {
    body(data).chunks_exact(8).filter_map(key).collect()
}

/// The reservation of READ RESERVATION.
pub(super) fn held(data: &[u8]) -> Option<Held> {
    let body = body(data);
    Some(Held { key: key(body)?, kind: body.get(13)? & 0x0f })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_are_where_they_belong() {
        let (cdb, list) = Action::Preempt { key: 0x0102, victim: 0x0304, aborts: true }.encode();
        assert_eq!(cdb[..10], [0x5f, 5, 5, 0, 0, 0, 0, 0, 24, 0]);
        assert_eq!((list.len(), key(&list), key(&list[8..])), (24, Some(0x0102), Some(0x0304)));
        let (cdb, list) = Action::RegisterAnyway { key: 7, outlives_power: true }.encode();
        assert_eq!((cdb[1], cdb[2], list[20]), (6, 0, 1));
        assert_eq!((key(&list), key(&list[8..])), (Some(0), Some(7)));
        let (cdb, list) = Action::Unregister { key: 7 }.encode();
        assert_eq!((cdb[1], key(&list), key(&list[8..])), (0, Some(7), Some(0)));
        assert_eq!(ask(Question::Reservation, 0x0102)[..9], [0x5e, 1, 0, 0, 0, 0, 0, 1, 2]);
    }

    #[test]
    fn what_is_read_ends_where_it_says() {
        let mut data = vec![0, 0, 0, 9, 0, 0, 0, 16];
        data.extend(5u64.to_be_bytes());
        data.extend([0, 0, 0, 0, 0, 0x05, 0, 0]);
        data.extend([0xff; 16]);
        assert_eq!(held(&data), Some(Held { key: 5, kind: 5 }));
        assert_eq!(keys(&data).first(), Some(&5));
        assert_eq!(held(&[0, 0, 0, 9, 0, 0, 0, 0]), None);
    }

    proptest! {
        #[test]
        fn no_answer_of_a_target_panics(data in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = (keys(&data), held(&data));
        }
    }
}
