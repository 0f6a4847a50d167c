//! The connections that one incarnation of a disk consists of: N connections of one session where
//! the target allows it (MC/S), else N sessions of one connection each.
//!
//! All sessions live and die together: it makes sure that no old session still executes a write
//! when the command goes out again on another one. At error recovery levels 0 and 1 that holds for
//! the connections of a session, too; at level 2 a lost one is replaced (`rejoin`).

use futures_util::future::join_all;
use iscsi_proto::ids::{Cid, Isid};
use iscsi_proto::initiator::{self as core, ConnectionId, Established, Session};
use iscsi_proto::keys::ConnectionParams;
use iscsi_proto::serial::StatSn;

use super::config::AfterLoss;
use super::connect::{ConnectError, Identity, Link, connect, connect_again, credentials};
use super::growth::LEG_SESSIONS_MAX;
use super::op::Task;
use super::path;
use super::rejoin::{Home, is_refusal};
use super::shared::Shared;
use crate::transport::Stream;

/// A connection whose driver has not started.
pub(super) struct Ready {
    pub(super) id: ConnectionId,
    pub(super) stream: Stream,
    pub(super) params: ConnectionParams,
}

/// What a disk's login has led to.
pub(super) struct Opening {
    pub(super) groups: Vec<Group>,
    /// Connections that are to join the first session, which lives.
    pub(super) joining: Vec<Cid>,
}

/// A session.
pub(super) struct Group {
    pub(super) session: Session<Task>,
    pub(super) home: Home,
    /// Its first connection.
    pub(super) leading: Ready,
}

/// Logs in with as many sessions as configured; with fewer if the target refuses some. Where the
/// target lets one session have many connections, with the first one.
pub(super) async fn establish(shared: &Shared, isid_bits: u32) -> Result<Opening, ConnectError> {
    let config = &shared.config;
    let chap = credentials(&shared.url, config);
    let identity = |qualifier| Identity {
        target: Some(shared.url.target.clone()),
        //= https://www.rfc-editor.org/rfc/rfc7143#section-7.15
        //# If the same I_T nexus is intended to be reestablished, the initiator MUST employ session
        //# reinstatement (see Section 6.3.5).
        isid: Isid::random(isid_bits, qualifier),
        cid: Cid(1),
        joining: None,
        exp_stat_sn: StatSn(0),
    };
    let is_leg = config.after_loss == AfterLoss::Die;
    if is_leg && shared.isid.left().is_empty() {
        announce(shared, 0..LEG_SESSIONS_MAX as u16); // nobody has noted what there may be
    }
    let stale: Vec<u16> = shared.lock().qualifiers.iter().copied().collect();
    announce(shared, [0]);
    let leading = connect_again(&shared.url.portal, config, chap.as_ref(), &identity(0)).await?;
    let outcome = leading.outcome.clone();
    if let Some(first) = path::first_number(shared, leading.stream.socket()) {
        shared.lock().growth.wanted = first;
    }
    let wanted = u16::try_from(shared.lock().growth.wanted).unwrap_or(u16::MAX);
    let portal = leading.portal.clone();
    let mut groups = vec![group(shared, leading)];
    let wanted = match outcome.session.max_connections {
        // Each is a session.
        0 | 1 if is_leg => wanted.min(LEG_SESSIONS_MAX as u16),
        _ => wanted,
    };
    let granted = outcome.session.max_connections.max(1).min(wanted);
    let sessions = if granted > 1 { 1 } else { wanted };
    shared.lock().growth.taken(Cid(granted), sessions.saturating_sub(1));
    if sessions > 1 {
        announce(shared, 1..sessions);
    }
    let others: Vec<Identity> = (1..sessions).map(identity).collect();
    let logins = others.iter().map(|other| connect(&portal, config, chap.as_ref(), other));
    let mut failed = None;
    for result in join_all(logins).await {
        match result {
            Ok(link) => groups.push(group(shared, link)),
            Err(error) => failed = Some(error),
        }
    }
    if let Some(error) = failed {
        let (open, refused, now) = (groups.len() as u32, is_refusal(&error), shared.now());
        shared.lock().growth.failed(open, refused, error.to_string(), now);
    }
    end_stale(shared, &groups, stale, identity).await?;
    Ok(Opening { groups, joining: (2..=granted).map(Cid).collect() })
}

/// Notes that sessions of these qualifiers will be there, before they are, here and for a
/// successor.
pub(super) fn announce(shared: &Shared, qualifiers: impl IntoIterator<Item = u16>) {
    let mut state = shared.lock();
    state.qualifiers.extend(qualifiers);
    shared.isid.note_sessions(&state.qualifiers);
}

/// Ends sessions that may be at the target from before, and were not set up again: their commands
/// could land on what is written next. To reinstate one and to leave it does that.
async fn end_stale(
    shared: &Shared,
    groups: &[Group],
    stale: Vec<u16>,
    identity: impl Fn(u16) -> Identity,
) -> Result<(), ConnectError> {
    let set_up = |qualifier: &u16| groups.iter().any(|g| g.home.isid.qualifier() == *qualifier);
    let stale: Vec<u16> = stale.into_iter().filter(|qualifier| !set_up(qualifier)).collect();
    let Some(first) = groups.first() else { return Ok(()) };
    let chap = credentials(&shared.url, &shared.config);
    let logins = stale.iter().map(|qualifier| {
        let (portal, identity) = (&first.home.portal, identity(*qualifier));
        let (config, chap) = (&shared.config, chap.as_ref());
        async move { connect(portal, config, chap, &identity).await }
    });
    for (qualifier, result) in stale.iter().zip(join_all(logins).await) {
        match result {
            Ok(link) => drop(link),
            // It would be granted if there were such a session.
            Err(error) if is_refusal(&error) => tracing::debug!(%error, "no session to end"),
            Err(error) => return Err(error),
        }
        shared.lock().qualifiers.remove(qualifier);
    }
    if !stale.is_empty() {
        announce(shared, []); // a successor need not end them again
    }
    Ok(())
}

pub(super) fn group(shared: &Shared, link: Link) -> Group {
    let mut config = core::Config::default();
    config.keepalive_interval = shared.config.keepalive_interval;
    config.ping_timeout = shared.config.ping_timeout;
    let established = Established::from(&link.outcome);
    let (session, id) = Session::new(config, &established, shared.now());
    let params = link.outcome.connection;
    let home = Home {
        portal: link.portal,
        isid: link.outcome.isid,
        cids: vec![link.outcome.cid],
        proof: (link.outcome.chap, link.outcome.authenticated_as.is_some()),
    };
    Group { session, home, leading: Ready { id, stream: link.stream, params } }
}
