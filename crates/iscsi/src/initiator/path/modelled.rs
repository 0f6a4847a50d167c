//! A step of the controller under a policy that finds the rate itself (`--policy model`): the meter
//! reads, the policy decides both rate and number, the actuator does. Nothing is decided here.

use iscsi_proto::time::Instant;
use path::tuner::{LONG_RTT_S, Pace, Pacing, Room, part, part_in_background};

use tokio::net::TcpStream;

use super::meter::{Measured, View, peer_of};
use super::{Controller, allowed, busy, hold_back, least, trace};
use crate::initiator::shared::Shared;
use crate::transport::tcp_info::tcp_info;

/// How many connections a policy wants at once, from the round trip of the one that has logged in;
/// none of one that waits for samples.
pub(in crate::initiator) fn first_number(shared: &Shared, leading: &TcpStream) -> Option<u32> {
    let config = &shared.config;
    let mut policy = allowed(config.policy.clone()?, config).build();
    policy.remember(peer_of(leading).and_then(|peer| shared.memory.of(peer)));
    let info = tcp_info(leading).ok()?;
    let rtt_s = f64::from(info.least_rtt_us().unwrap_or(info.rtt_us)) / 1e6;
    let (connections, _) = policy.first(rtt_s, 1)?;
    Some(connections)
}

impl Controller {
    /// Before the first command: what the policy says of a path that is new. False if it waits for
    /// samples.
    pub(super) fn begin_modelled(&mut self, shared: &Shared, open: u32, now: Instant) -> bool {
        let Some((connections, pacing)) = self.policy.first(self.rtt_s, open) else { return false };
        self.wanted = connections.min(u32::from(u16::MAX));
        shared
            .with(|state, _| state.growth.wanted = self.wanted.min(state.connections_max().max(1)));
        shared.changed.notify_one();
        self.obey(shared, pacing, self.meted.rate(), now);
        true
    }

    /// Takes a sample and does what follows from it.
    pub(super) fn step_modelled(
        &mut self,
        shared: &Shared,
        view: &View,
        mut measured: Measured,
        now: Instant,
    ) {
        let (rtt_us, limit) = self.account(shared, view, &measured);
        let is_long = rtt_us.is_some_and(|us| us >= LONG_RTT_S * 1e6);
        let decision = match limit.binds {
            true => self.keep(&measured.sample),
            false => self.decide(&measured.sample, view),
        };
        self.wanted = decision.connections;
        let pacing = self.policy.pacing().unwrap_or_default();
        if pacing.is_startup {
            // All windows of a new path are to grow: one that began later gets as much work, unless
            // it loses.
            let sample = &measured.sample;
            for (.., serial, slowness) in &mut measured.slowness {
                let of = sample.connections.iter().find(|c| c.id.0 == *serial);
                *slowness = if of.is_some_and(|c| c.loses()) { *slowness } else { 1.0 };
            }
        }
        let rate = self.obey(shared, pacing, limit.bytes_per_s, now);
        self.users_rate = rate.is_some() && rate == limit.bytes_per_s;
        let paced = pacing.bytes_per_s.filter(|_| !pacing.is_startup);
        self.pace = Pace { bytes_per_s: paced, ..Pace::default() };
        trace(&measured, room(pacing));
        let sharing = busy(view).min(f64::from(self.wanted.max(1).min(view.open)));
        let rate = rate.filter(|_| !pacing.is_startup);
        let part_of = if pacing.is_background { part_in_background } else { part };
        let part = rate.map(|rate| part_of(rate, sharing, self.rtt_s));
        self.actuator.pace(part, is_long);
        self.actuator.carry_out(shared, view, &measured, &decision, now);
        self.history.note(&measured.sample, self.wanted, &decision.why.to_string(), now);
        let known = self.policy.remembered();
        shared.memory.note(view.peer(), known, self.carried_bytes, now);
        self.publish(shared, view, now, Some((&measured, &decision)));
    }

    /// Holds commands back as the policy and the user want; the rate of the two.
    fn obey(
        &self,
        shared: &Shared,
        pacing: Pacing,
        users: Option<f64>,
        now: Instant,
    ) -> Option<f64> {
        let rate = least([users, pacing.bytes_per_s]);
        hold_back(shared, rate, room(pacing), now);
        rate
    }
}

/// The window as the throttle takes it.
fn room(pacing: Pacing) -> Option<Room> {
    let bytes_per_s = pacing.bytes_per_s.unwrap_or(f64::INFINITY);
    pacing.window_bytes.map(|bytes| Room { bytes, bytes_per_s })
}
