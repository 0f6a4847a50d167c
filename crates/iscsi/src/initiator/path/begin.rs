//! How a path begins: what a policy may ask of this system, the number of connections that the
//! first round trip asks for, and what may go before anything was measured; again when the sessions
//! have ended.

use std::net::IpAddr;

use iscsi_proto::time::Instant;
use path::PolicyConfig;
use tokio::net::TcpStream;

use super::meter::{self, View, peer_of};
use super::{Controller, choose_stride, shortest};
use crate::initiator::Config;
use crate::initiator::shared::Shared;
use crate::transport::socket_options;
use crate::transport::tcp_info::tcp_info;

/// How many connections are wanted at once, from the round trip of the one that has logged in; none
/// under a policy that does not ask for that.
pub(in crate::initiator) fn first_number(shared: &Shared, leading: &TcpStream) -> Option<u32> {
    let config = &shared.config;
    let policy = config.policy.clone().filter(|one| matches!(one, PolicyConfig::Adaptive(_)))?;
    let mut path = allowed(policy, config).build(config.pacing);
    path.remember(peer_of(leading).and_then(|peer| shared.memory.of(peer)));
    let info = tcp_info(leading).ok()?;
    let rtt_s = f64::from(info.least_rtt_us().unwrap_or(info.rtt_us)) / 1e6;
    Some(path.first((rtt_s > 0.0).then_some(rtt_s), 1).connections)
}

/// A policy with what this system allows.
pub(super) fn allowed(mut policy: PolicyConfig, config: &Config) -> PolicyConfig {
    if let PolicyConfig::Adaptive(model) = &mut policy {
        model.window_bytes = socket_options::automatic_window() as f64;
        if config.send_buffer.is_none() && config.receive_buffer.is_none() {
            let (send, receive) = socket_options::buffer_limits();
            model.socket_buffer_bytes_max = send.max(receive);
        }
        if config.congestion_control.is_none() {
            model.congestion_controls = socket_options::congestion_controls();
        }
    }
    policy
}

impl Controller {
    /// Before the first command: how long commands are made, and what may be under way on a long
    /// path that is new.
    pub(super) fn open(&mut self, shared: &Shared) {
        let view = View::of(&shared.lock(), shared.now());
        let connections = meter::since_opening(&view);
        choose_stride(shared, &view, &connections);
        self.rtt_s = shortest(&connections).unwrap_or_default().as_secs_f64();
        self.incarnation = Some(view.incarnation);
        self.begin_with(shared, view.peer(), view.open + view.opening, shared.now());
    }

    /// The sessions have ended: those that come after them begin as on a new path, with small
    /// windows, and find out anew what it carries. A rate that was wrong must not outlive the
    /// session that it may have ended.
    pub(super) fn forget(&mut self, shared: &Shared, peer: Option<IpAddr>, now: Instant) {
        self.meter.pause();
        self.path.forget();
        self.line_rate = None;
        self.actuator.forget_pace();
        // What was sent at the old rate is to hold up nothing at the new one.
        shared.with(|state, _| state.throttle.set_rate(None, now));
        self.begin_with(shared, peer, 1, now);
    }

    /// What may go over a path that is new, and how many connections it is to have at once.
    fn begin_with(&mut self, shared: &Shared, peer: Option<IpAddr>, open: u32, now: Instant) {
        self.path.remember(peer.and_then(|peer| shared.memory.of(peer)));
        let orders = self.path.first((self.rtt_s > 0.0).then_some(self.rtt_s), open);
        self.wanted = orders.connections.min(u32::from(u16::MAX));
        shared
            .with(|state, _| state.growth.wanted = self.wanted.min(state.connections_max().max(1)));
        shared.changed.notify_one();
        self.obey(shared, orders.pacing, self.meted.rate(), now);
    }
}
