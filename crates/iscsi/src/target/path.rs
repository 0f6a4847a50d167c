//! How the target's sockets send. A reader's throughput is the target's to keep up: TCP's windows
//! are those of the side that sends. On a long path what would leave as a burst is spread out over
//! the round trip.
//!
//! A connection that loses packets while the path's queue is empty loses them to the path, not to
//! congestion. A control that takes losses for congestion collapses there (S1, figure 7), so such a
//! connection gets one that does not. All others keep what the system chose.

use std::sync::{Mutex, Weak};
use std::time::Duration;

use path::limit::is_lossy_path;
use path::sockets::{LOSSY_SLOT, Losses};
use path::{CongestionControl, SAMPLE, SHORT_RTT_S, TcpInfo, is_burst};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::catalog::CongestionChoice;
use super::overview::Link;
use super::session::{SharedSession, locked};
use super::shared::Shared;
use crate::transport::socket_options::{
    OptionError, SPREAD_OUT, SocketOptions, congestion_control, congestion_controls,
};
use crate::transport::tcp_info::tcp_info;

/// On a shorter path a window recovers within a few round trips, whatever the control.
const MIN_RTT_US: u32 = (2e6 * SHORT_RTT_S) as u32;

/// How a connection sends, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Sending(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    last: Option<(TcpInfo, Instant)>,
    losses: Losses,
    spread_out: bool,
}

impl Seen {
    /// Takes the numbers of now; true if losses have been the limit for long enough.
    fn observe(&mut self, now: TcpInfo, at: Instant) -> bool {
        let last = self.last.replace((now, at));
        self.losses.note(
            last.is_some_and(|(before, then)| {
                lost_to_the_path(&before, &now, at.duration_since(then))
            }),
        )
    }

    /// What it sends is to be looked at: it may leave as a burst over a long path.
    fn may_burst(&self) -> bool {
        !self.spread_out && self.last.is_none_or(|(info, _)| is_long(&info))
    }
}

fn is_long(info: &TcpInfo) -> bool {
    info.least_rtt_us().is_some_and(|us| us >= MIN_RTT_US)
}

/// Was the congestion window the limit, kept small by losses that no queue explains?
fn lost_to_the_path(before: &TcpInfo, now: &TcpInfo, interval: Duration) -> bool {
    let interval_s = interval.as_secs_f64();
    is_long(now) && interval_s > 0.0 && is_lossy_path(&now.sending_since(before, interval_s))
}

/// Watches the connections of a server until it is gone.
pub(super) async fn watch(shared: Weak<Shared>) {
    let mut samples = tokio::time::interval(SAMPLE);
    samples.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut slot_ends = Instant::now();
    let mut better = congestion_controls().into_iter().find(|one| *one == CongestionControl::Bbr);
    if better.is_none() {
        debug!("this kernel has no congestion control that bears losses");
    }
    loop {
        let now = samples.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        let sessions = shared.live();
        for session in &sessions {
            session.links(spread_out);
        }
        if now < slot_ends {
            continue;
        }
        slot_ends = now + LOSSY_SLOT;
        let is_auto = shared.catalog().limits.congestion_control == CongestionChoice::Auto;
        let chosen = better.filter(|_| is_auto);
        let looked = sessions.iter().try_for_each(|session| {
            session.links(|links| bear_losses(links, session, chosen, now))
        });
        if let Err(error) = looked {
            warn!(%error, "connections keep the congestion control that they have");
            better = None;
        }
    }
}

/// What a session would send as a burst over a long path is spread out over the round trip.
fn spread_out(links: &mut dyn Iterator<Item = &Link>) {
    let open = links.filter(|link| locked(&link.sending.0).may_burst());
    let open = open.filter_map(|link| Some((link, tcp_info(&*link.stream).ok()?)));
    let open: Vec<_> = open.collect();
    let bursts = is_burst(open.iter().map(|(_, info)| info));
    for (link, _) in open.iter().filter(|(_, info)| bursts && is_long(info)) {
        locked(&link.sending.0).spread_out = true;
        let options = SocketOptions { pacing_rate: Some(SPREAD_OUT), ..SocketOptions::default() };
        if let Err(error) = options.apply(&*link.stream) {
            debug!(%error, "packets leave as TCP likes");
        }
    }
}

/// Looks for losses of the path once; connections that have them get the better control.
///
/// # Errors
/// The system does not allow the change: it never will.
fn bear_losses(
    links: &mut dyn Iterator<Item = &Link>,
    session: &SharedSession,
    better: Option<CongestionControl>,
    now: Instant,
) -> Result<(), OptionError> {
    for link in links {
        let Ok(info) = tcp_info(&*link.stream) else { continue };
        let mut seen = locked(&link.sending.0);
        let lossy = seen.observe(info, now);
        let Some(control) = better.filter(|_| lossy) else { continue };
        seen.losses = Losses::default();
        let before = congestion_control(&*link.stream).unwrap_or_default();
        if before == control.as_str() {
            continue;
        }
        let options = SocketOptions { congestion_control: better, ..SocketOptions::default() };
        options.apply(&*link.stream)?;
        if session.is_logged() {
            info!(
                initiator = session.initiator_name,
                peer = %link.peer,
                before,
                now = control.as_str(),
                "packets are lost on the way, not to congestion: congestion control changed"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender whose window is full, on a path of 50 ms.
    fn info(retransmits: u32, rtt_ms: u32) -> TcpInfo {
        TcpInfo {
            rtt_us: 1000 * rtt_ms,
            min_rtt_us: Some(50_000),
            total_retrans_segments: retransmits,
            cwnd_segments: 100,
            unacked_segments: 98,
            mss_bytes: 1448,
            ..TcpInfo::default()
        }
    }

    fn lossy(before: TcpInfo, now: TcpInfo) -> bool {
        lost_to_the_path(&before, &now, LOSSY_SLOT)
    }

    #[test]
    fn losses_count_only_while_the_queue_is_empty_and_the_window_full() {
        assert!(lossy(info(0, 51), info(3, 52)));
        assert!(!lossy(info(3, 51), info(3, 52)), "nothing was lost");
        assert!(!lossy(info(0, 51), info(3, 80)), "the queue is what overflowed");
        assert!(
            !lossy(info(0, 51), TcpInfo { unacked_segments: 20, ..info(3, 52) }),
            "little to send"
        );
        assert!(!lossy(info(0, 51), TcpInfo { app_limited: true, ..info(3, 52) }));
        let lan = TcpInfo { min_rtt_us: Some(200), ..info(3, 0) };
        assert!(!lossy(info(0, 0), lan), "on a LAN the window is back at once");
        let old_kernel = TcpInfo { min_rtt_us: None, ..info(3, 52) };
        assert!(!lossy(info(0, 51), old_kernel));
    }

    #[test]
    fn one_burst_of_losses_changes_nothing_and_steady_losses_do() {
        let begin = Instant::now();
        let at = |interval: u32| begin + LOSSY_SLOT * interval;
        let mut one = Seen::default();
        assert!(!one.observe(info(0, 51), begin));
        assert!(!one.observe(info(9, 51), at(1)));
        let quiet = (2..40).filter(|interval| one.observe(info(9, 51), at(*interval))).count();
        assert_eq!(quiet, 0);
        let steady: Vec<_> = (1..=3).map(|n| one.observe(info(9 + n, 51), at(40 + n))).collect();
        assert_eq!(steady, [false, false, true]);
    }
}
