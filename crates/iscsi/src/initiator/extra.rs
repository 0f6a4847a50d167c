//! Sessions that join a disk while it is in use, where a target grants one connection per session.
//! Each is an I_T nexus of its own: the unit tells it about its own power-on (a unit attention),
//! which is asked for before the first command of the user goes that way.

use iscsi_proto::ids::{Cid, Isid};
use iscsi_proto::initiator::ConnectionId;
use iscsi_proto::keys::ConnectionParams;
use iscsi_proto::serial::StatSn;

use super::connect::{ConnectError, Identity, Link, connect_in_time};
use super::fence;
use super::group::{Group, announce, group};
use super::member::{Member, Part};
use super::probe::{ProbeError, Prober};
use super::rejoin::is_refusal;
use super::shared::Shared;
use super::state::{Phase, State};
use crate::transport::Stream;

/// What the driver of a new connection needs.
type Ready = (ConnectionId, Stream, ConnectionParams);

/// Logs in with another session, where the first one leads.
pub(super) async fn open(
    shared: &Shared,
    incarnation: u64,
    isid: Isid,
) -> Result<Link, ConnectError> {
    let home = {
        let mut state = shared.lock();
        let leading = state.leading();
        state.member(incarnation, leading).and_then(|member| member.home.clone())
    };
    let portal = home.map_or_else(|| shared.url.portal.clone(), |home| home.portal);
    let target = Some(shared.url.target.clone());
    announce(shared, [isid.qualifier()]);
    let identity = Identity { target, isid, cid: Cid(1), joining: None, exp_stat_sn: StatSn(0) };
    connect_in_time(shared, &portal, &identity).await
}

/// Makes room for the session; its place and what its driver needs.
pub(super) fn install(
    shared: &Shared,
    incarnation: u64,
    link: Result<Link, ConnectError>,
) -> Option<(usize, Ready)> {
    let now = shared.now();
    let group = match link {
        Ok(link) => group(shared, link),
        Err(error) => {
            failed(shared, incarnation, &error);
            return None;
        }
    };
    let Group { session, home, leading: ready } = group;
    let mut member = Member::new(session, home.isid);
    (member.part, member.home) = (Part::Joining, Some(home));
    let mut state = shared.lock();
    if state.incarnation != incarnation || state.phase != Phase::Up || state.ended.is_some() {
        return None; // the socket closes, and with it the session
    }
    let stream = ready.stream;
    member.attach(ready.id, stream.socket(), state.growth.opened(now));
    let index = place(&mut state, member);
    Some((index, (ready.id, stream, ready.params)))
}

/// The first place that nobody needs any more: its session is over, and all its drivers are gone.
fn place(state: &mut State, member: Member) -> usize {
    let free = |m: &Member| m.part == Part::Gone && m.session.connections().next().is_none();
    state.places.mix();
    match state.members.iter().position(free) {
        Some(index) => {
            state.members[index] = member;
            index
        }
        None => {
            state.members.push(member);
            state.members.len() - 1
        }
    }
}

/// Waits until the unit has told the new session what it has to tell, and lets it write if it lets
/// the others.
pub(super) async fn settle(
    shared: &Shared,
    incarnation: u64,
    member: usize,
) -> Result<(), ConnectError> {
    let limit = shared.config.login_timeout;
    let prober = Prober { shared, incarnation, member };
    let settled = async {
        prober.settle().await?;
        let command = "PERSISTENT RESERVE OUT";
        fence::join(&prober).await.map_err(|source| ProbeError::Command { command, source })
    };
    match tokio::time::timeout(limit, settled).await {
        Ok(settled) => Ok(settled?),
        Err(_) => {
            let portal = shared.url.portal.clone();
            Err(ConnectError::TimedOut { portal, seconds: limit.as_secs() })
        }
    }
}

/// Gives the session its share of the commands, or gives it up.
pub(super) fn settled(
    shared: &Shared,
    incarnation: u64,
    index: usize,
    result: &Result<(), ConnectError>,
) {
    if let Err(error) = result {
        failed(shared, incarnation, error);
        shared.with(|state, batch| {
            if let Some(member) = state.member(incarnation, index) {
                member.session.abandon();
                state.collect(index, None, batch);
            }
        });
        return;
    }
    let now = shared.now();
    shared.with(|state, batch| {
        if state.member(incarnation, index).is_none_or(|m| m.part != Part::Joining) {
            return;
        }
        state.members[index].part = Part::Full;
        state.growth.sessions_opening = state.growth.sessions_opening.saturating_sub(1);
        let open = state.connections_open();
        state.growth.succeeded(open, now);
        state.collect(index, None, batch);
    });
    tracing::info!("one more session in use");
}

fn failed(shared: &Shared, incarnation: u64, error: &ConnectError) {
    let now = shared.now();
    let mut state = shared.lock();
    if state.incarnation == incarnation {
        state.growth.sessions_opening = state.growth.sessions_opening.saturating_sub(1);
        state.not_opened(is_refusal(error), error.to_string(), now);
    }
}
