//! What sockets are to have that the kernel does not give them by itself: larger buffers where a
//! buffer limits, and a congestion control that bears losses where the path loses packets without
//! a queue. Both only while the transfer has enough to send and is not held at the line's pace.

use std::time::Duration;

use super::law::RECEIVE_BUFFER_SHARE;
use super::model::{Estimate, FULL_ROUNDS, LATELY_S, STANDING_S};
use super::tcp::{CongestionControl, MORE, SAMPLE_S, Sample};
use super::{Config, limit};

/// Losses are the path's own if they limited in so many of the last so many slots, at either end:
/// those of four seconds. One queue that runs over is repaired within two slots.
const LOSSY_SLOTS: (u32, u32) = (FULL_ROUNDS as u32, (2.0 * LATELY_S / STANDING_S) as u32);
/// How long each of them is: as long as a queue needs to be told from a burst.
pub const LOSSY_SLOT: Duration = Duration::from_millis((1e3 * STANDING_S) as u64);

/// Time between two looks at the sockets of a path, at either end.
pub const SAMPLE: Duration = Duration::from_millis((1e3 * SAMPLE_S) as u64);

/// What sockets are to have from now on, where that is not what they have.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sockets {
    /// Buffers that would hold a connection's share of bandwidth × delay.
    pub buffer_bytes: Option<u64>,
    /// A congestion control that bears losses.
    pub congestion_control: Option<CongestionControl>,
}

/// Whether losses were the limit in the last intervals, one bit for each, the last one lowest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Losses(u32);

impl Losses {
    /// Takes the next interval; true if losses have been the limit too often for an accident.
    pub fn note(&mut self, lossy: bool) -> bool {
        self.0 = (self.0 << 1 | u32::from(lossy)) & ((1 << LOSSY_SLOTS.1) - 1);
        self.0.count_ones() >= LOSSY_SLOTS.0
    }
}

/// Remembers what was lost lately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wishes {
    losses: Losses,
    lossy: bool,
    slot_ends_s: f64,
    /// The path is known to lose packets.
    bears: bool,
}

impl Wishes {
    /// Takes a sample and what is known by it.
    pub(crate) fn handle(&mut self, sample: &Sample, now: &Estimate, config: &Config) -> Sockets {
        let mut buffer_bytes = None;
        if now.full && !now.line {
            self.lossy |= sample.connections.iter().any(|one| limit::is_lossy_path(&one.tcp));
            if now.t_s >= self.slot_ends_s {
                self.bears |= self.losses.note(self.lossy);
                (self.lossy, self.slot_ends_s) = (false, now.t_s + LOSSY_SLOT.as_secs_f64());
            }
            buffer_bytes = buffer_wanted(sample, config.socket_buffer_bytes_max);
        }
        Sockets { buffer_bytes, congestion_control: self.control(sample, config) }
    }

    fn control(&self, sample: &Sample, config: &Config) -> Option<CongestionControl> {
        let of_connections = sample.connections.iter().find_map(|c| c.tcp.congestion_control);
        let present = of_connections.or(sample.tcp.congestion_control).filter(|_| self.bears)?;
        config.congestion_controls.iter().copied().max().filter(|best| *best > present)
    }
}

/// Buffers that would hold what a connection may have in flight, if the present ones limit it.
fn buffer_wanted(sample: &Sample, bytes_max: u64) -> Option<u64> {
    if !limit::is_short_of_buffer(|field| sample.typical(field)) {
        return None;
    }
    let rtt_us = sample.typical(|tcp| tcp.min_rtt_us).or(sample.typical(|tcp| tcp.rtt_us))?;
    let present = sample.typical(|tcp| tcp.send_buffer_bytes)?;
    // The rate is what the small buffer allowed: at least double, and see.
    let share = sample.bytes_per_s / f64::from(sample.connections_open.max(1));
    let wanted =
        (share * rtt_us / 1e6 / RECEIVE_BUFFER_SHARE).max(2.0 * present).min(bytes_max as f64);
    (wanted > MORE * present).then_some(wanted as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::{Connection, Tcp};

    /// A transfer of two connections with enough to send, whose line is not known.
    fn handle(wishes: &mut Wishes, t_s: f64, tcp: Tcp, config: &Config) -> Sockets {
        let now = Estimate { t_s, full: true, ..Estimate::default() };
        let connections = vec![Connection { tcp, ..Connection::default() }; 2];
        let sample =
            Sample { t_s, connections_open: 2, bytes_per_s: 2e6, connections, ..Sample::default() };
        wishes.handle(&sample, &now, config)
    }

    fn config() -> Config {
        let congestion_controls = vec![CongestionControl::Cubic, CongestionControl::Bbr];
        Config { socket_buffer_bytes_max: 1 << 24, congestion_controls, ..Config::default() }
    }

    #[test]
    fn a_buffer_grows_only_where_it_limits_and_as_far_as_it_may() {
        let tcp = Tcp {
            rtt_us: Some(1e5),
            sndbuf_limited_share: Some(0.9),
            send_buffer_bytes: Some(65536.0),
            ..Tcp::default()
        };
        let wanted =
            |tcp, config: &Config| handle(&mut Wishes::default(), 1.0, tcp, config).buffer_bytes;
        assert_eq!(wanted(tcp, &config()), Some(200_000));
        let small = Config { socket_buffer_bytes_max: 65_536, ..config() };
        assert_eq!(wanted(tcp, &small), None);
        assert_eq!(wanted(Tcp { sndbuf_limited_share: None, ..tcp }, &config()), None);
    }

    #[test]
    fn another_congestion_control_is_for_losses_that_come_again_and_again() {
        let tcp = |retransmits| Tcp {
            congestion_control: Some(CongestionControl::Cubic),
            retransmits: Some(retransmits),
            ..crate::limit::tests::full_window()
        };
        let asked = |every: u32, config: &Config| {
            let mut wishes = Wishes::default();
            let mut controls = (1..=60_u32).map(|tenth| {
                let lost = tenth.is_multiple_of(every) || tenth <= 3;
                let lost = if lost { 3.0 } else { 0.0 };
                let t_s = f64::from(tenth) / 10.0;
                handle(&mut wishes, t_s, tcp(lost), config).congestion_control
            });
            controls.find_map(|control| control)
        };
        assert_eq!(asked(10, &config()), Some(CongestionControl::Bbr));
        assert_eq!(asked(1000, &config()), None, "one queue that ran over");
        let chosen = Config { congestion_controls: Vec::new(), ..config() };
        assert_eq!(asked(10, &chosen), None, "the user has chosen");
    }
}
