//! What the SCSI device server asks of the sessions around it: [`scsi::Host`].

use std::sync::{Arc, Weak};
use std::time::Duration;

use iscsi_proto::ids::Lun;
use scsi::{BoxFuture, NexusId};

use super::shared::Shared;

/// Sessions of one target as its device server sees them. Does not keep the server alive.
pub(super) struct Host {
    pub(super) server: Weak<Shared>,
    pub(super) target_name: String,
}

impl scsi::Host for Host {
    fn abort_tasks(&self, lun: u64, nexuses: Vec<NexusId>) -> BoxFuture {
        let Some(server) = self.server.upgrade() else { return Box::pin(std::future::ready(())) };
        // Targets number their nexuses each for itself.
        let ours = |session: &Arc<super::session::SharedSession>| {
            session.about.target_name.as_ref() == Some(&self.target_name)
                && nexuses.contains(&session.nexus.id())
        };
        let victims: Vec<_> = server.live().into_iter().filter(ours).collect();
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

    fn expects(&self, initiator_name: &str) -> bool {
        let Some(server) = self.server.upgrade() else { return false };
        let catalog = server.catalog();
        let target = catalog.targets.get(&self.target_name);
        target.is_some_and(|target| target.access.initiators.contains_key(initiator_name))
    }
}
