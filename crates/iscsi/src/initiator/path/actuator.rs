//! Does what was decided: tells how many connections there should be, closes those that are
//! too many, sets socket options. What the system refuses is said once and not asked for again.

use std::collections::BTreeSet;

use iscsi_proto::time::Instant;
use path::{ConnectionId, Orders, close_candidate};

use super::meter::{Measured, View};
use crate::initiator::Config;
use crate::initiator::member::Member;
use crate::initiator::shared::Shared;
use crate::transport::socket_options::{
    SPREAD_OUT, SocketOptions, automatic_receive_buffer, automatic_send_buffer, buffer_limits,
};

pub(super) struct Actuator {
    /// What every socket is to have.
    options: SocketOptions,
    /// Sockets that have it.
    done: BTreeSet<u32>,
    /// Options that the system refused.
    refused: BTreeSet<&'static str>,
    /// The user chose the buffers himself.
    own_buffers: bool,
    /// The session is not told which connections are slow: to it, all are equal.
    evenly: bool,
    send_buffer_max: u64,
    receive_buffer_max: u64,
    /// What the kernel enlarges them to by itself.
    send_buffer_automatic: u64,
    receive_buffer_automatic: u64,
}

impl Actuator {
    pub(super) fn new(config: &Config) -> Self {
        let (send_buffer_max, receive_buffer_max) = buffer_limits();
        Self {
            options: SocketOptions::default(),
            done: BTreeSet::new(),
            refused: BTreeSet::new(),
            own_buffers: config.send_buffer.is_some() || config.receive_buffer.is_some(),
            evenly: config.hand_out_evenly,
            send_buffer_max,
            receive_buffer_max,
            send_buffer_automatic: automatic_send_buffer(),
            receive_buffer_automatic: automatic_receive_buffer(),
        }
    }

    /// Limits what each connection sends, in bytes a second ([`path::part`]). What would leave as
    /// a burst is spread out at least.
    pub(super) fn pace(&mut self, part: Option<f64>, bursts: bool) {
        let rate = part.map(|part| (part as u64).max(1));
        // Linux goes on to space the packets of a socket that was told a rate once.
        let spread = bursts || self.options.pacing_rate.is_some();
        let rate = rate.or(spread.then_some(SPREAD_OUT));
        self.change(|options| options.pacing_rate = rate);
    }

    /// No socket is limited, as long as nothing is known of its path.
    pub(super) fn forget_pace(&mut self) {
        self.change(|options| options.pacing_rate = None);
    }

    #[cfg(test)]
    pub(super) fn is_pacing(&self) -> bool {
        self.options.pacing_rate.is_some()
    }

    fn change(&mut self, change: impl FnOnce(&mut SocketOptions)) {
        let before = self.options.clone();
        change(&mut self.options);
        if self.options != before {
            self.done.clear();
        }
    }

    /// Carries out what was decided.
    pub(super) fn carry_out(
        &mut self,
        shared: &Shared,
        view: &View,
        measured: &Measured,
        orders: &Orders,
        now: Instant,
    ) {
        self.set_number(shared, view, measured, orders, now);
        if let Some(bytes) = orders.sockets.buffer_bytes.filter(|_| !self.own_buffers) {
            self.grow_buffer(bytes, measured.reads);
        }
        if let Some(control) = orders.sockets.congestion_control {
            self.change(|options| options.congestion_control = Some(control));
        }
        self.apply(view);
    }

    fn set_number(
        &self,
        shared: &Shared,
        view: &View,
        measured: &Measured,
        orders: &Orders,
        now: Instant,
    ) {
        let surplus = view.open.saturating_sub(orders.connections);
        let mut closed = BTreeSet::new();
        let lacks = shared.with(|state, batch| {
            state.growth.wanted = orders.connections;
            let slow = if self.evenly { &[][..] } else { &measured.slowness };
            for (session, id, serial, slowness) in slow {
                let member = state.members.get_mut(*session);
                // Another one may have taken its place since.
                let same = |member: &&mut Member| member.opened[id.index()].serial == *serial;
                if let Some(member) = member.filter(same) {
                    member.session.set_slowness(*id, *slowness);
                }
            }
            for _ in 0..surplus {
                let all = measured.sample.connections.iter();
                let left = all.filter(|connection| !closed.contains(&connection.id.0));
                let Some(ConnectionId(serial)) = close_candidate(left) else { break };
                closed.insert(serial);
                if state.release(serial, batch) {
                    tracing::debug!(serial, why = %orders.why, "connection released");
                }
            }
            state.lacks_connections(now)
        });
        if lacks {
            shared.changed.notify_one();
        }
    }

    /// Buffers only grow, and only beyond what the kernel gives by itself: it enlarges none any
    /// more that a program has set.
    fn grow_buffer(&mut self, bytes: u64, reads: bool) {
        let (most, by_itself) = match reads {
            true => (self.receive_buffer_max, self.receive_buffer_automatic),
            false => (self.send_buffer_max, self.send_buffer_automatic),
        };
        let bytes = bytes.min(most);
        if bytes <= by_itself {
            return;
        }
        let bytes = bytes as usize;
        self.change(|options| {
            let option = if reads { &mut options.receive_buffer } else { &mut options.send_buffer };
            *option = Some(option.unwrap_or(0).max(bytes));
        });
    }

    /// Sets the options of every socket that does not have them.
    fn apply(&mut self, view: &View) {
        if self.options == SocketOptions::default() {
            return;
        }
        self.done.retain(|serial| view.seen.iter().any(|seen| seen.serial == *serial));
        for seen in &view.seen {
            if !self.done.insert(seen.serial) {
                continue;
            }
            let Err(error) = self.options.apply(&*seen.stream) else { continue };
            if self.refused.insert(error.option) {
                tracing::warn!(%error, "socket option refused; going on without it");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_the_kernel_enlarges_is_left_to_it() {
        let most = 1 << 30;
        let mut actuator = Actuator::new(&Config::default());
        (actuator.send_buffer_max, actuator.receive_buffer_max) = (most, most);
        actuator.grow_buffer(automatic_send_buffer(), false);
        actuator.grow_buffer(automatic_receive_buffer(), true);
        assert_eq!(actuator.options, SocketOptions::default());
        let more = automatic_send_buffer() + 4096;
        actuator.grow_buffer(more, false);
        assert_eq!(actuator.options.send_buffer, Some(more as usize));
        // It never shrinks, and the system's limit is kept.
        actuator.grow_buffer(more - 1, false);
        actuator.grow_buffer(u64::MAX, true);
        assert_eq!(actuator.options.send_buffer, Some(more as usize));
        assert_eq!(actuator.options.receive_buffer, Some(most as usize));
    }
}
