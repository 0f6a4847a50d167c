//! What a target owes the tasks of a connection that was lost, at error recovery level 2
//! (RFC 7143 §7.1.5): that they wait for another connection, and not for longer than was agreed.

use std::net::SocketAddr;
use std::sync::Arc;

use iscsi_proto::target::ConnId;
use tracing::info;

use super::session::{SharedSession, now};
use super::shared::Shared;

/// Sees to it that the tasks of a lost connection do not wait for longer than was agreed.
pub(super) fn await_recovery(
    server: &Arc<Shared>,
    session: &Arc<SharedSession>,
    conn: ConnId,
    peer: SocketAddr,
) {
    let due = move |session: &SharedSession| session.with(|core| core.poll_timeout(conn));
    let Some(first) = due(session) else { return };
    let tasks = session.with(|core| core.tasks_of(conn));
    let seconds = first.since(now()).as_secs_f32();
    let (initiator, tsih) = (&session.initiator_name, session.tsih);
    if server.may_log(peer) {
        info!(initiator, %tsih, tasks, seconds, "connection lost: its tasks wait for recovery");
    }
    let (server, session) = (Arc::clone(server), Arc::clone(session));
    tokio::spawn(async move {
        while let Some(due) = due(&session) {
            tokio::time::sleep(due.since(now())).await;
            let left = session.with(|core| core.tasks_of(conn));
            session.with(|core| core.handle_timeout(conn, now()));
            if !session.with(|core| core.is_recoverable(conn)) && server.may_log(peer) {
                let (initiator, tsih) = (&session.initiator_name, session.tsih);
                info!(initiator, %tsih, tasks = left, "nobody came to recover a connection");
            }
        }
        session.bury_orphans();
        session.settle();
        server.forget(&session);
    });
}
