//! Whether a socket still moves bytes: a sign of life from below iSCSI, for both roles. A ping that
//! waits in a full socket, or behind what the path holds, is answered late on a healthy link; what
//! TCP counts meanwhile tells such a link from a dead one. Looks only; the cores judge.

use std::os::fd::AsFd;

use path::TcpInfo;

use super::tcp_info::tcp_info;

/// Bytes of our own ping, with its digest. The host acknowledges them also where the process that
/// is to answer hangs, so that they are no sign.
const PING_BYTES: u64 = 48 + 4;

/// What a socket had moved when it was last looked at.
#[derive(Debug, Default)]
pub(crate) struct Vitals(Option<TcpInfo>);

impl Vitals {
    /// Looks again: more than a ping was acknowledged since, or anything came in. True also at the
    /// first look, which has nothing to compare with; false where the kernel tells nothing.
    pub(crate) fn have_moved(&mut self, socket: impl AsFd) -> bool {
        tcp_info(socket).is_ok_and(|info| self.have_changed(info))
    }

    fn have_changed(&mut self, now: TcpInfo) -> bool {
        let Some(before) = self.0.replace(now) else { return true };
        let grown = |field: fn(&TcpInfo) -> Option<u64>| {
            field(&before).zip(field(&now)).map_or(0, |(old, new)| new.saturating_sub(old))
        };
        grown(|info| info.acked_bytes) > PING_BYTES || grown(|info| info.received_bytes) > 0
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn info(acked: u64, received: u64) -> TcpInfo {
        let (acked_bytes, received_bytes) = (Some(acked), Some(received));
        TcpInfo { acked_bytes, received_bytes, ..TcpInfo::default() }
    }

    #[test]
    fn data_is_a_sign_of_life_and_the_own_ping_is_none() {
        let mut vitals = Vitals::default();
        let looks = [(1000, 50), (1000, 50), (1052, 50), (1105, 50), (1105, 51), (1105, 51)];
        let moved = looks.map(|(acked, received)| vitals.have_changed(info(acked, received)));
        assert_eq!(moved, [true, false, false, true, true, false]);
        // A kernel that does not count them gives no sign.
        let mut vitals = Vitals::default();
        let moved = [0, 1].map(|_| vitals.have_changed(TcpInfo::default()));
        assert_eq!(moved, [true, false]);
    }

    #[test]
    fn bytes_that_nobody_reads_are_acknowledged_all_the_same() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let mut vitals = Vitals::default();
        assert!(vitals.have_moved(&near) && !vitals.have_moved(&near));
        near.write_all(&[1; 5000]).unwrap();
        far.write_all(&[1]).unwrap(); // carries the acknowledgement
        let begun = std::time::Instant::now();
        while !vitals.have_moved(&near) {
            assert!(begun.elapsed().as_secs() < 10, "nothing has moved");
            std::thread::yield_now();
        }
    }
}
