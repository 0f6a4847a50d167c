//! What one socket may send of the pace of all: an even share of those that send, and a little
//! more.

use super::law::PDU_BYTES;
use super::rate::{COMMAND_BYTES, WINDOW_LEAST_SEGMENTS};
use super::tcp::{ERROR_SHARE, MORE, SEGMENT_BYTES};
use super::tcp_info::TcpInfo;

/// What one socket may send of a pace, in bytes a second; the round trip in seconds. `sending` is
/// the number of sockets that use the pace now ([`sending`]), and not that of all: sockets with
/// nothing to send take no part. One that begins to send has its part before it does, for all
/// sockets get the same.
pub fn part(bytes_per_s: f64, sending: f64, rtt_s: f64, background: bool) -> f64 {
    // More than its even share, so that the limit over all sockets binds first and none is held up
    // by the choice of connections. In the background what waited in sockets is not to come as a
    // burst, because small queues lose that.
    let all = bytes_per_s * if background { 1.0 + ERROR_SHARE } else { MORE };
    let window = WINDOW_LEAST_SEGMENTS * SEGMENT_BYTES / rtt_s.max(1e-6);
    // A user may want less than that of all sockets together.
    (all / sending.max(1.0)).max(window.max(COMMAND_BYTES).min(all))
}

/// Whether the sockets of a session have more to send than one data PDU and a quarter (226
/// segments). A short queue loses a part of that if it leaves at once, so it is to be spread out
/// over the round trip. Less is quicker as it comes: an application that asks for little at a time
/// waits for its last packet.
pub fn is_burst<'a>(sockets: impl IntoIterator<Item = &'a TcpInfo>) -> bool {
    let waiting: u64 = sockets.into_iter().map(TcpInfo::send_queue_bytes).sum();
    waiting as f64 > MORE * PDU_BYTES
}

/// How many sockets share the pace, from the payload in bytes that each has under way: those with
/// little are soon done, and leave the pace to those with much (Kish's effective number: n that
/// have the same count as n, one that has nearly all counts as one).
pub fn sending(under_way: impl IntoIterator<Item = f64>) -> f64 {
    let add = |(sum, squares): (f64, f64), one: f64| (sum + one, squares + one * one);
    let (sum, squares) = under_way.into_iter().fold((0.0, 0.0), add);
    if squares > 0.0 { sum * sum / squares } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_divided_over_the_sockets_that_send() {
        let part = |rate, sending, rtt_s| part(rate, sending, rtt_s, false);
        assert_eq!(part(40e6, 16.0, 0.02), 1.25 * 40e6 / 16.0);
        assert_eq!(part(40e6, 0.0, 0.02), part(40e6, 1.0, 0.02), "the next one has all of it");
        // However many share how little: no command takes for ever.
        assert_eq!(part(4e6, 64.0, 0.02), 1048576.0);
        assert_eq!(part(4e6, 64.0, 0.001), 2.0 * 1448.0 / 0.001);
        assert_eq!(part(1e5, 64.0, 0.02), 1.25e5, "as a user wants it");
        assert_eq!(super::part(40e6, 16.0, 0.02, true), 1.05 * 40e6 / 16.0);
    }

    #[test]
    fn four_operations_of_a_usual_size_are_no_burst() {
        let holds = |bytes| TcpInfo { not_sent_bytes: Some(bytes), ..TcpInfo::default() };
        assert!(!is_burst(&[holds(65536 + 48); 4]), "answers have headers, too");
        assert!(is_burst(&[holds(524288)]));
    }

    #[test]
    fn sockets_count_by_what_they_have_to_send() {
        assert_eq!(sending([]), 0.0);
        assert_eq!(sending([0.0; 64]), 0.0);
        assert_eq!(sending([131072.0; 16]), 16.0);
        let mut mixed = vec![4096.0; 13];
        mixed.extend([131072.0; 3]);
        assert!((3.0..5.0).contains(&sending(mixed)));
    }
}
