//! How the target's sockets send. A reader's throughput is the target's to keep up: TCP's windows
//! are those of the side that sends. On a long path packets are spread out over the round trip.
//!
//! A connection that loses packets while the path's queue is empty loses them to the path, not to
//! congestion. A control that takes losses for congestion collapses there (S1, figure 7), so such a
//! connection gets one that does not. All others keep what the system chose.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use path::limit::is_lossy_path;
use path::sockets::{LOSSY_SLOT, Losses};
use path::{CongestionControl, SHORT_RTT_S, TcpInfo};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::catalog::CongestionChoice;
use super::shared::Shared;
use crate::transport::socket_options::{
    SPREAD_OUT, SocketOptions, congestion_control, congestion_controls,
};
use crate::transport::tcp_info::tcp_info;

/// On a shorter path a window recovers within a few round trips, whatever the control.
const MIN_RTT_US: u32 = (2e6 * SHORT_RTT_S) as u32;

/// What is remembered of a connection.
struct Watched {
    socket: Weak<TcpStream>,
    info: TcpInfo,
    at: Instant,
    losses: Losses,
    spread_out: bool,
}

impl Watched {
    fn new(socket: &Arc<TcpStream>, info: TcpInfo, at: Instant) -> Self {
        Self {
            socket: Arc::downgrade(socket),
            info,
            at,
            losses: Losses::default(),
            spread_out: false,
        }
    }

    /// Takes the numbers of now; true if losses have been the limit for long enough.
    fn observe(&mut self, now: TcpInfo, at: Instant) -> bool {
        let interval = at.duration_since(self.at);
        let lossy = lost_to_the_path(&self.info, &now, interval);
        (self.info, self.at) = (now, at);
        self.losses.note(lossy)
    }
}

/// Was the congestion window the limit, kept small by losses that no queue explains?
fn lost_to_the_path(before: &TcpInfo, now: &TcpInfo, interval: Duration) -> bool {
    if now.least_rtt_us().is_none_or(|us| us < MIN_RTT_US) || interval.is_zero() {
        return false;
    }
    is_lossy_path(&now.sending_since(before, interval.as_secs_f64()))
}

/// Watches the connections of a server until it is gone.
pub(super) async fn watch(shared: Weak<Shared>) {
    let mut ticks = tokio::time::interval(LOSSY_SLOT);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut better = congestion_controls().into_iter().find(|one| *one == CongestionControl::Bbr);
    if better.is_none() {
        debug!("this kernel has no congestion control that bears losses");
    }
    let mut watched = HashMap::new();
    loop {
        let now = ticks.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        let is_auto = shared.catalog().limits.congestion_control == CongestionChoice::Auto;
        if let Err(error) = look(&shared, &mut watched, better.filter(|_| is_auto), now) {
            warn!(%error, "connections keep the congestion control that they have");
            better = None;
        }
    }
}

/// Looks at every connection once.
///
/// # Errors
/// The system does not allow the change: it never will.
fn look(
    shared: &Shared,
    watched: &mut HashMap<usize, Watched>,
    better: Option<CongestionControl>,
    now: Instant,
) -> Result<(), impl std::error::Error> {
    watched.retain(|_, one| one.socket.strong_count() > 0);
    let change = SocketOptions { congestion_control: better, ..SocketOptions::default() };
    for session in shared.live() {
        let sockets: Vec<_> =
            session.links(|links| links.map(|link| Arc::clone(&link.stream)).collect());
        for socket in sockets {
            let Ok(info) = tcp_info(&*socket) else { continue };
            // The weak reference keeps the address from being used again.
            let one = watched.entry(Arc::as_ptr(&socket).addr());
            let one = one.or_insert_with(|| Watched::new(&socket, info, now));
            let is_long = info.least_rtt_us().is_some_and(|us| us >= MIN_RTT_US);
            if is_long && !one.spread_out {
                one.spread_out = true;
                spread_out(&socket);
            }
            if !one.observe(info, now) {
                continue;
            }
            let Some(better) = better else { continue };
            one.losses = Losses::default();
            let before = congestion_control(&*socket).unwrap_or_default();
            if before == better.as_str() {
                continue;
            }
            change.apply(&*socket)?;
            if session.is_logged() {
                info!(
                    initiator = session.initiator_name,
                    peer = ?socket.peer_addr().ok(),
                    before,
                    now = better.as_str(),
                    "packets are lost on the way, not to congestion: congestion control changed"
                );
            }
        }
    }
    Ok::<_, crate::transport::socket_options::OptionError>(())
}

fn spread_out(socket: &TcpStream) {
    let options = SocketOptions { pacing_rate: Some(SPREAD_OUT), ..SocketOptions::default() };
    if let Err(error) = options.apply(socket) {
        debug!(%error, "packets leave as TCP likes");
    }
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

    #[tokio::test]
    async fn one_burst_of_losses_changes_nothing_and_steady_losses_do() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let socket = Arc::new(socket);
        let begin = Instant::now();
        let at = |interval: u32| begin + LOSSY_SLOT * interval;
        let mut one = Watched::new(&socket, info(0, 51), begin);
        assert!(!one.observe(info(9, 51), at(1)));
        let quiet = (2..40).filter(|interval| one.observe(info(9, 51), at(*interval))).count();
        assert_eq!(quiet, 0);
        let steady: Vec<_> = (1..=3).map(|n| one.observe(info(9 + n, 51), at(40 + n))).collect();
        assert_eq!(steady, [false, false, true]);
    }
}
