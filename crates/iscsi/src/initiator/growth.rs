//! How many connections there should be, and what a difference asks for: connections or sessions to
//! be opened, one to be closed. Decides when a target that refused is asked again; the number
//! itself is the policy's choice (`path`), and opening is the supervisor's work.

use std::time::Duration;

use iscsi_proto::ids::Cid;
use iscsi_proto::initiator::State as ConnectionState;
use iscsi_proto::keys::{ConnectionParams, SessionParams};
use iscsi_proto::time::Instant;

use super::member::{Member, Opened, Part};
use super::rejoin;
use super::state::{Batch, Phase, State};

/// Sessions of one connection each, where a target grants no more: as many as the connections that
/// a policy may ask for.
pub(super) const SESSIONS_MAX: u32 = path::CONNECTIONS.1;

/// Sessions of one connection each that a leg of a mirror may have: where nobody has noted how many
/// a predecessor had, so many logins end whatever there may be.
pub(super) const LEG_SESSIONS_MAX: u32 = 8;

/// First and longest pause after a target refused a login: its limits change with its
/// configuration, if at all.
const REFUSED_PAUSE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));
/// First and longest pause after a login that failed for another reason: the path may be back soon.
const FAILED_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// What is to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// A connection of this session with this CID, after a pause.
    Connection { member: usize, cid: Cid, pause: Duration },
    /// A session with this qualifier of its ISID.
    Session { qualifier: u16 },
}

/// The number of connections as it should be, and what stands against it.
#[derive(Debug)]
pub(super) struct Growth {
    /// Connections that there should be, over all sessions; at least one.
    pub(super) wanted: u32,
    /// Sessions that are being opened.
    pub(super) sessions_opening: u32,
    /// Names of the next CID, session and connection.
    cid_next: u16,
    qualifier_next: u16,
    serial_next: u32,
    ceiling: Option<Ceiling>,
    pause: Duration,
}

/// More than this could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ceiling {
    pub(super) connections: u32,
    /// When one more is tried.
    pub(super) until: Instant,
    /// What the target, or the system, said.
    pub(super) reason: String,
    /// The target said it: it is a limit, not an outage.
    pub(super) refused: bool,
}

impl Growth {
    pub(super) fn new(wanted: u32) -> Self {
        Self {
            wanted: wanted.max(1),
            sessions_opening: 0,
            cid_next: 1,
            qualifier_next: 0,
            serial_next: 0,
            ceiling: None,
            pause: Duration::ZERO,
        }
    }

    /// Names a connection that was opened now.
    pub(super) fn opened(&mut self, at: Instant) -> Opened {
        self.serial_next = self.serial_next.wrapping_add(1);
        Opened { serial: self.serial_next, at }
    }

    /// All connections up to this CID, and sessions up to this qualifier, are taken.
    pub(super) fn taken(&mut self, cid: Cid, qualifier: u16) {
        self.cid_next = self.cid_next.max(cid.0.wrapping_add(1)).max(1);
        self.qualifier_next = self.qualifier_next.max(qualifier.wrapping_add(1));
    }

    /// A login failed while so many connections were open.
    pub(super) fn failed(&mut self, open: u32, refused: bool, reason: String, now: Instant) {
        let connections = open.max(1);
        if let Some(ceiling) = &mut self.ceiling
            && now < ceiling.until
        {
            // Another one of those that were tried together.
            ceiling.connections = connections;
            return;
        }
        let (least, most) = if refused { REFUSED_PAUSE } else { FAILED_PAUSE };
        self.pause = (self.pause * 2).clamp(least, most);
        let seconds = self.pause.as_secs_f32();
        tracing::warn!(connections, "no more connections for {seconds} s: {reason}");
        self.ceiling = Some(Ceiling { connections, until: now + self.pause, reason, refused });
    }

    /// A login succeeded; so many connections are open now.
    pub(super) fn succeeded(&mut self, open: u32, now: Instant) {
        let Some(ceiling) = &mut self.ceiling else { return };
        if open > ceiling.connections && now >= ceiling.until {
            self.ceiling = None;
            self.pause = Duration::ZERO;
        } else {
            ceiling.connections = ceiling.connections.max(open);
        }
    }

    /// What keeps the number down.
    pub(super) fn ceiling(&self) -> Option<&Ceiling> {
        self.ceiling.as_ref()
    }

    /// Connections that may be open or tried now; one more than the ceiling when its time is over.
    fn most(&self, now: Instant) -> u32 {
        self.ceiling.as_ref().map_or(u32::MAX, |ceiling| {
            ceiling.connections.saturating_add(u32::from(now >= ceiling.until))
        })
    }

    /// A CID that no connection has. It goes on counting, so that the target has long forgotten the
    /// last connection of that name.
    fn cid(&mut self, is_used: impl Fn(Cid) -> bool) -> Cid {
        loop {
            let cid = Cid(self.cid_next);
            self.cid_next = self.cid_next.wrapping_add(1).max(1);
            if !is_used(cid) {
                return cid;
            }
        }
    }
}

impl State {
    /// Connections that take commands.
    pub(super) fn connections_open(&self) -> u32 {
        self.members.iter().map(|member| member.active().count() as u32).sum()
    }

    /// The disk closes, or its session has ended.
    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Closed || self.ended.is_some()
    }

    /// One more could not be opened. Who leaves is refused what was on its way to join, and that
    /// says nothing of a limit.
    pub(super) fn not_opened(&mut self, refused: bool, reason: String, now: Instant) {
        if !self.is_over() {
            let open = self.connections_open();
            self.growth.failed(open, refused, reason, now);
        }
    }

    /// Connections that are being opened.
    pub(super) fn connections_opening(&self) -> u32 {
        let rejoining: usize = self.members.iter().map(|member| member.rejoining.len()).sum();
        rejoining as u32 + self.growth.sessions_opening
    }

    /// The first session that carries commands.
    pub(super) fn leading(&self) -> usize {
        self.members.iter().position(|member| member.part == Part::Full).unwrap_or(0)
    }

    /// What was agreed on a connection that carries commands, if there is one.
    pub(super) fn agreed(&self) -> Option<(SessionParams, ConnectionParams)> {
        let member = self.members.get(self.leading())?;
        let (id, _) = member.active().next()?;
        Some((*member.session.params(), member.session.connection_params(id)?))
    }

    /// Connections that one session may have, as agreed; 1 means that each needs its own session.
    pub(super) fn granted(&self) -> u32 {
        let leading = self.members.get(self.leading());
        leading.map_or(1, |member| member.session.params().max_connections.max(1).into())
    }

    /// Connections that may be asked for at all.
    pub(super) fn connections_max(&self) -> u32 {
        match self.granted() {
            1 if self.is_in_order() => 1,
            1 if self.dies() => LEG_SESSIONS_MAX,
            1 => SESSIONS_MAX,
            granted => granted,
        }
    }

    /// Something is to be opened now.
    pub(super) fn lacks_connections(&self, now: Instant) -> bool {
        self.phase == Phase::Up && self.ended.is_none() && self.lacking(now) > 0
    }

    fn lacking(&self, now: Instant) -> u32 {
        let granted = self.connections_max();
        let wanted = self.growth.wanted.min(granted).min(self.growth.most(now));
        let there = self.connections_open() + self.connections_opening();
        let room = granted.saturating_sub(there + self.connections_leaving());
        wanted.saturating_sub(there + self.connections_recovering()).min(room)
    }

    /// Connections that take no more commands and have not left yet: the target counts them.
    fn connections_leaving(&self) -> u32 {
        let of = |member: &Member| {
            let leaves = |id| member.part == Part::Leaving || !member.session.takes_commands(id);
            let there = member.session.connections();
            let there = there.filter(|(_, _, state)| *state != ConnectionState::CleanupWait);
            there.filter(|(id, ..)| leaves(*id)).count()
        };
        let used = self.members.iter().filter(|one| matches!(one.part, Part::Full | Part::Leaving));
        used.map(of).sum::<usize>() as u32
    }

    /// Lost connections that come back when their tasks have gone on: others in their place would
    /// be one too many then.
    fn connections_recovering(&self) -> u32 {
        let of = |member: &Member| {
            let cids = member.home.as_ref().map_or(&[][..], |home| &home.cids);
            let lost = member.session.recovering();
            lost.filter(|cid| cids.contains(cid) && !member.rejoining.contains(cid)).count()
        };
        self.members.iter().map(of).sum::<usize>() as u32
    }

    /// What is to be opened now; it counts as being opened from here on.
    pub(super) fn jobs(&mut self, now: Instant) -> Vec<Job> {
        let mut jobs = rejoin::missing(self);
        if !self.lacks_connections(now) {
            return jobs;
        }
        let index = self.leading();
        for _ in 0..self.lacking(now) {
            if self.granted() == 1 {
                self.growth.sessions_opening += 1;
                let qualifier = self.growth.qualifier_next;
                self.growth.qualifier_next = qualifier.wrapping_add(1);
                jobs.push(Job::Session { qualifier });
                continue;
            }
            let Some(member) = self.members.get_mut(index) else { break };
            let (session, rejoining) = (&member.session, &member.rejoining);
            let cid = self.growth.cid(|cid| {
                rejoining.contains(&cid) || session.connections().any(|(_, other, _)| other == cid)
            });
            member.rejoining.push(cid);
            jobs.push(Job::Connection { member: index, cid, pause: Duration::ZERO });
        }
        jobs
    }

    /// Takes a connection out of use: no new commands, logout when the last has ended. False if it
    /// is not there, or the last one.
    pub(super) fn release(&mut self, serial: u32, batch: &mut Batch) -> bool {
        let named = |(index, member): (usize, &Member)| {
            let mut active = member.active();
            let (id, cid) = active.find(|(id, _)| member.opened[id.index()].serial == serial)?;
            Some((index, id, cid))
        };
        let Some((index, id, cid)) = self.members.iter().enumerate().find_map(named) else {
            return false;
        };
        if self.connections_open() <= 1 {
            return false;
        }
        let member = &mut self.members[index];
        if member.active().count() > 1 {
            if let Some(home) = &mut member.home {
                home.cids.retain(|other| *other != cid);
            }
            if member.session.remove_connection(id).is_err() {
                return false;
            }
        } else {
            (member.part, member.home) = (Part::Leaving, None);
            member.session.close();
        }
        self.collect(index, None, batch);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant(Duration::from_secs(seconds))
    }

    #[test]
    fn a_target_that_refuses_is_asked_for_one_more_after_growing_pauses() {
        let mut growth = Growth::new(16);
        assert_eq!(growth.most(at(0)), u32::MAX);
        for _ in 0..12 {
            growth.failed(4, true, "too many connections".into(), at(1)); // tried together
        }
        assert_eq!((growth.most(at(10)), growth.most(at(11))), (4, 5));
        growth.failed(4, true, "too many connections".into(), at(11));
        assert_eq!((growth.most(at(30)), growth.most(at(31))), (4, 5));
        growth.succeeded(5, at(31));
        assert_eq!(growth.ceiling(), None);
        growth.failed(5, true, "too many connections".into(), at(40));
        assert_eq!((growth.most(at(49)), growth.most(at(50))), (5, 6));
    }

    #[test]
    fn a_path_that_failed_is_tried_again_soon_and_those_who_made_it_count() {
        let mut growth = Growth::new(8);
        growth.failed(1, false, "no answer".into(), at(1));
        growth.succeeded(3, at(1));
        assert_eq!((growth.most(at(1)), growth.most(at(2))), (3, 4));
        for n in 2..20 {
            growth.failed(3, false, "no answer".into(), at(n * 100));
        }
        assert_eq!(growth.pause, FAILED_PAUSE.1);
    }

    #[test]
    fn names_of_connections_go_on_counting_and_skip_those_in_use() {
        let mut growth = Growth::new(1);
        growth.taken(Cid(4), 0);
        assert_eq!(growth.cid(|_| false), Cid(5));
        growth.cid_next = u16::MAX;
        assert_eq!(growth.cid(|_| false), Cid(u16::MAX));
        assert_eq!(growth.cid(|cid| cid.0 < 3), Cid(3));
        assert_ne!(growth.opened(at(0)).serial, growth.opened(at(0)).serial);
    }
}
