//! What the SCSI device server asks of the sessions around it: [`scsi::Host`].

use std::sync::{Arc, Weak};
use std::time::Duration;

use iscsi_proto::ids::Lun;
use scsi::{BoxFuture, NexusId};

use super::server::Shared;

/// Sessions as the device server sees them. Does not keep the server alive.
pub(super) struct Sessions(pub(super) Weak<Shared>);

impl scsi::Host for Sessions {
    fn abort_tasks(&self, lun: u64, nexuses: Vec<NexusId>) -> BoxFuture {
        let Some(server) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        let victims: Vec<_> = {
            let sessions = server.lock();
            let live = sessions.live.values();
            live.filter(|session| nexuses.contains(&session.nexus.id())).map(Arc::clone).collect()
        };
        Box::pin(async move {
            for session in victims {
                session.abort_and_wait(Some(Lun(lun))).await;
            }
        })
    }

    fn pause(&self, time: Duration) -> BoxFuture {
        Box::pin(tokio::time::sleep(time))
    }

    fn spawn(&self, work: BoxFuture) {
        tokio::spawn(work);
    }
}
