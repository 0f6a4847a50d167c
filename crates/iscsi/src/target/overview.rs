//! What an operator may see of the sessions: [`SessionView`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use iscsi_proto::ids::{Cid, Isid};
use iscsi_proto::keys::{ConnectionParams, SessionParams};
use path::TcpInfo;
use tokio::net::TcpStream;

use super::access::Proof;
use super::path::Sending;
use super::session::SharedSession;
use crate::transport::tcp_info::tcp_info;

/// What is known of a session from its login on.
#[derive(Debug)]
pub(super) struct About {
    pub(super) isid: Isid,
    /// `None` in a discovery session.
    pub(super) target_name: Option<String>,
    pub(super) portal: Arc<str>,
    pub(super) since: SystemTime,
    pub(super) user: Option<String>,
    pub(super) alias: Option<String>,
    pub(super) proof: Proof,
}

impl About {
    pub(super) fn target(&self) -> &str {
        self.target_name.as_deref().unwrap_or("discovery")
    }
}

/// A connection in its full-feature phase.
pub(super) struct Link {
    pub(super) cid: Cid,
    pub(super) peer: SocketAddr,
    pub(super) local: Option<SocketAddr>,
    pub(super) since: SystemTime,
    pub(super) params: ConnectionParams,
    pub(super) stream: Arc<TcpStream>,
    pub(super) sending: Sending,
}

/// A session at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionView {
    /// Its handle, TSIH.
    pub id: u16,
    /// Name of the initiator.
    pub initiator_name: String,
    /// What the initiator calls itself for people.
    pub initiator_alias: Option<String>,
    /// The initiator's part of the session's name.
    pub isid: Isid,
    /// `None` in a discovery session.
    pub target_name: Option<String>,
    /// Portal that its first connection came to.
    pub portal: String,
    /// When it began.
    pub since: SystemTime,
    /// CHAP user that the initiator has proved to be.
    pub user: Option<String>,
    /// What was agreed on.
    pub params: SessionParams,
    /// Commands under way.
    pub commands: usize,
    /// Bytes read from logical units.
    pub read_bytes: u64,
    /// Bytes of data that came with commands.
    pub written_bytes: u64,
    /// Memory that its commands use.
    pub memory_bytes: u64,
    /// Its connections.
    pub connections: Vec<ConnectionView>,
}

/// A connection at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionView {
    /// The initiator's number for it.
    pub cid: u16,
    /// The initiator's end.
    pub peer: SocketAddr,
    /// Our end.
    pub local: Option<SocketAddr>,
    /// When it entered full-feature phase.
    pub since: SystemTime,
    /// What was agreed on.
    pub params: ConnectionParams,
    /// What the kernel says of the path.
    pub tcp: Option<TcpInfo>,
}

impl SharedSession {
    pub(super) fn view(&self) -> SessionView {
        let (params, commands) = self.with(|core| (*core.params(), core.task_count()));
        let connections = self.links(|links| links.map(Link::view).collect());
        let (read_bytes, written_bytes) = self.traffic();
        SessionView {
            id: self.tsih.0,
            initiator_name: self.initiator_name.clone(),
            initiator_alias: self.about.alias.clone(),
            isid: self.about.isid,
            target_name: self.about.target_name.clone(),
            portal: self.about.portal.to_string(),
            since: self.about.since,
            user: self.about.user.clone(),
            params,
            commands,
            read_bytes,
            written_bytes,
            memory_bytes: self.account.used(),
            connections,
        }
    }
}

impl Link {
    /// The initiator has hung up. False where the kernel does not say.
    pub(super) fn is_closed_by_peer(&self) -> bool {
        tcp_info(&*self.stream).is_ok_and(|info| info.is_closed_by_peer())
    }

    fn view(&self) -> ConnectionView {
        ConnectionView {
            cid: self.cid.0,
            peer: self.peer,
            local: self.local,
            since: self.since,
            params: self.params,
            tcp: tcp_info(&*self.stream).ok(),
        }
    }
}
