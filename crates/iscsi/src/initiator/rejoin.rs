//! Opens connections of a session that lives: one that it shall have more, or, at error recovery
//! level 2, one that it has lost, with the same CID, which reinstates the lost one if no other is
//! left (RFC 7143 §6.3.4), and takes its place if its tasks have gone on elsewhere. What becomes
//! of the tasks is the core's business, the number of connections is `growth`'s.

use std::sync::Arc;
use std::time::Duration;

use iscsi_proto::ids::{Cid, Isid};
use iscsi_proto::initiator::{ConnectionId, Established, MembershipError};
use iscsi_proto::keys::ConnectionParams;
use iscsi_proto::login::chap::Algorithm;
use iscsi_proto::login::initiator::LoginError;
use iscsi_proto::pdu::LoginStatus;
use iscsi_proto::serial::StatSn;
use iscsi_proto::time::Instant;

use super::connect::{ConnectError, Identity, Link, connect_in_time};
use super::growth::Job;
use super::shared::Shared;
use super::state::{Phase, State};
use super::url::Portal;
use crate::transport::Stream;

/// First pause between two attempts to connect; the first attempt is made at once.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Longest such pause.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Growing pauses: none, then from [`BACKOFF_MIN`] to [`BACKOFF_MAX`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff(Duration);

impl Backoff {
    /// The pause before the next attempt.
    pub(super) fn take(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).clamp(BACKOFF_MIN, BACKOFF_MAX);
        pause
    }
}

/// Where a session's connections lead.
#[derive(Clone, Debug)]
pub(super) struct Home {
    pub(super) portal: Portal,
    pub(super) isid: Isid,
    /// The CIDs that it should have.
    pub(super) cids: Vec<Cid>,
    /// The CHAP algorithm of the first login, and whether the target proved itself.
    pub(super) proof: (Option<Algorithm>, bool),
}

/// An attempt that has ended.
pub(super) struct Rejoined {
    pub(super) member: usize,
    cid: Cid,
    /// `None`: the session is over, or does not want it any more.
    link: Option<Result<Link, ConnectError>>,
}

/// Lost connections that are to be opened again now; they count as being opened from here on. Those
/// that were lost together wait together.
pub(super) fn missing(state: &mut State) -> Vec<Job> {
    let mut found = Vec::new();
    if state.phase != Phase::Up || state.ended.is_some() {
        return found;
    }
    for (index, member) in state.members.iter_mut().enumerate() {
        let session = &member.session;
        let Some(home) = &member.home else { continue };
        if session.params().error_recovery_level < 2 {
            continue;
        }
        let in_use: Vec<Cid> = session
            .connections()
            .map(|(_, cid, _)| cid)
            .chain(member.rejoining.iter().copied())
            .collect();
        let wanted: Vec<Cid> = match session.reinstatement() {
            Some(lost) if !member.rejoining.contains(&lost.cid) => vec![lost.cid],
            Some(_) => Vec::new(),
            // Others only while the session lives: a login would be refused.
            None if !session.is_open() => Vec::new(),
            None => home.cids.iter().copied().filter(|cid| !in_use.contains(cid)).collect(),
        };
        if wanted.is_empty() {
            continue;
        }
        let pause = member.backoff.take();
        member.rejoining.extend(&wanted);
        found.extend(wanted.into_iter().map(|cid| Job::Connection { member: index, cid, pause }));
    }
    found
}

/// What an attempt needs to know.
struct Plan {
    home: Home,
    identity: Identity,
    not_before: Instant,
}

fn plan(shared: &Shared, incarnation: u64, index: usize, cid: Cid) -> Option<Plan> {
    let mut state = shared.lock();
    if state.is_over() {
        return None;
    }
    let member = state.member(incarnation, index)?;
    let session = &member.session;
    let lost = session.reinstatement().filter(|lost| lost.cid == cid);
    if lost.is_none() && !session.is_open() {
        return None;
    }
    let home = member.home.clone()?;
    let identity = Identity {
        target: Some(shared.url.target.clone()),
        isid: home.isid,
        cid,
        joining: Some((session.tsih(), *session.params(), session.next_cmd_sn())),
        exp_stat_sn: lost.map_or(StatSn(0), |lost| lost.exp_stat_sn),
    };
    let not_before = lost.map_or(Instant::default(), |lost| lost.not_before);
    Some(Plan { home, identity, not_before })
}

/// Makes one attempt, after the pause that is due.
pub(super) async fn rejoin(
    shared: Arc<Shared>,
    incarnation: u64,
    member: usize,
    cid: Cid,
    pause: Duration,
) -> Rejoined {
    let Some(first) = plan(&shared, incarnation, member, cid) else {
        return Rejoined { member, cid, link: None };
    };
    tokio::time::sleep_until(shared.deadline(first.not_before)).await;
    tokio::time::sleep(pause).await;
    // CmdSN and ExpStatSN of now, not of before the pause.
    let Some(Plan { home, identity, .. }) = plan(&shared, incarnation, member, cid) else {
        return Rejoined { member, cid, link: None };
    };
    let link = Some(connect_in_time(&shared, &home.portal, &identity).await);
    Rejoined { member, cid, link }
}

/// Hands the new connection to its session; what its driver needs.
pub(super) fn install(
    shared: &Shared,
    incarnation: u64,
    rejoined: Rejoined,
) -> Option<(ConnectionId, Stream, ConnectionParams)> {
    let Rejoined { member: index, cid, link } = rejoined;
    let now = shared.now();
    shared.with(|state, batch| {
        let member = state.member(incarnation, index)?;
        member.rejoining.retain(|other| *other != cid);
        batch.changed = true; // others may be missing, or this one again
        let is_new = member.home.as_ref().is_some_and(|home| !home.cids.contains(&cid));
        let link = match link? {
            Ok(link) => link,
            Err(error) => {
                tracing::debug!(%error, cid = cid.0, "connection cannot be opened again yet");
                let is_gone = member.session.reinstatement().is_some() && is_final(&error);
                // Not one that was lost, which has pauses of its own.
                if is_new {
                    state.not_opened(is_refusal(&error), error.to_string(), now);
                }
                if is_gone {
                    state.end(error.to_string(), batch);
                }
                return None;
            }
        };
        let params = link.outcome.connection;
        let stream = link.stream;
        match member.session.add_connection(&Established::from(&link.outcome), now) {
            Ok(id) => {
                tracing::info!("connection {} opened{}", cid.0, if is_new { "" } else { " again" });
                if let Some(home) = member.home.as_mut().filter(|_| is_new) {
                    home.cids.push(cid);
                }
                let opened = state.growth.opened(now);
                state.members[index].attach(id, stream.socket(), opened);
                let open = state.connections_open();
                state.growth.succeeded(open, now);
                state.collect(index, None, batch);
                Some((id, stream, params))
            }
            Err(error) => {
                tracing::debug!(%error, cid = cid.0, "connection opened for nothing");
                if is_new && matches!(error, MembershipError::TooMany(_)) {
                    state.not_opened(true, error.to_string(), now);
                } else if matches!(error, MembershipError::TooMany(_))
                    && let Some(home) = member.home.as_mut()
                {
                    // Others have its place: it is not missing any more.
                    home.cids.retain(|other| *other != cid);
                }
                None
            }
        }
    })
}

/// The target does not want it, as opposed to: it was not reached.
pub(super) fn is_refusal(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Login { source: LoginError::Refused { .. }, .. })
}

/// The target has no such session any more.
fn is_final(error: &ConnectError) -> bool {
    let gone = [LoginStatus::SESSION_DOES_NOT_EXIST, LoginStatus::CANNOT_INCLUDE_IN_SESSION];
    matches!(
        error,
        ConnectError::Login { source: LoginError::Refused { status }, .. } if gone.contains(status)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_from_nothing_to_their_limit() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u128> = (0..9).map(|_| backoff.take().as_millis()).collect();
        assert_eq!(pauses, [0, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    }
}
