//! Connections that their initiator has closed and whose tasks have not been told yet.
//!
//! An initiator that hangs up and comes back at once, under another ISID, meets what its old
//! session holds - a reservation, a medium that must stay - unless the end is seen before the
//! return. The kernel keeps that order; our threads need not.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tracing::debug;

use super::session::SharedSession;
use super::shared::Shared;

/// How long a login waits. What takes longer is busy with a command, or stuck.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits until the ends of connections that the initiator of `newcomer` has closed are seen. Their
/// commands may go on executing, and then their session does.
pub(super) async fn outlive(shared: &Shared, newcomer: &Arc<SharedSession>) {
    let all_seen = shared.wait_until(|shared| !any_closed(shared, newcomer));
    if timeout(PATIENCE, all_seen).await.is_err() {
        debug!(initiator = newcomer.initiator_name, "an older connection does not come to its end");
    }
}

fn any_closed(shared: &Shared, newcomer: &Arc<SharedSession>) -> bool {
    let is_older = |session: &&Arc<SharedSession>| {
        session.initiator_name == newcomer.initiator_name
            && session.about.target_name == newcomer.about.target_name
            && !Arc::ptr_eq(session, newcomer)
    };
    let older: Vec<_> = shared.lock().live.values().filter(is_older).cloned().collect();
    older.iter().any(|session| session.is_left())
}
