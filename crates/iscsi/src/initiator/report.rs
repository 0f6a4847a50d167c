//! What a disk tells about its sessions: agreed parameters and present load. Reads only.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use iscsi_proto::ids::{Cid, Tsih};
use iscsi_proto::keys::{ConnectionParams, SessionParams};
use iscsi_proto::login::chap::Algorithm;
use tokio::net::TcpStream;

use super::member::Part;
use super::state::State;
use super::url::Portal;
use crate::transport::tcp_info::tcp_info;

/// A session as of now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionReport {
    /// The target's handle.
    pub tsih: Tsih,
    /// Agreed parameters.
    pub params: SessionParams,
    /// Commands that the target would take now.
    pub window: u32,
    /// Where it was accepted, redirections followed; `None` when it is not to be set up again.
    pub portal: Option<Portal>,
    /// The CHAP algorithm that we proved ourselves with; `None` where the target wanted no proof.
    pub chap: Option<Algorithm>,
    /// The target has proved itself, too (mutual CHAP).
    pub chap_mutual: bool,
    /// Round-trip time of the last NOP, if there was one.
    pub rtt: Option<Duration>,
    /// Its connections.
    pub connections: Vec<ConnectionReport>,
}

/// A connection as of now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionReport {
    /// Connection ID.
    pub cid: Cid,
    /// Agreed parameters.
    pub params: ConnectionParams,
    /// Unfinished commands.
    pub in_flight: u32,
    /// Their payload in bytes, both ways, with a fixed cost per command.
    pub outstanding_bytes: u64,
    /// Our address.
    pub local: Option<SocketAddr>,
    /// The portal's address.
    pub peer: Option<SocketAddr>,
    /// TCP's smoothed round-trip time, where the system tells it.
    pub tcp_rtt: Option<Duration>,
    /// The socket, for whoever reads TCP_INFO. Do not read or write.
    pub stream: Option<Arc<TcpStream>>,
}

pub(super) fn sessions(state: &mut State) -> Vec<SessionReport> {
    if state.ended.is_some() {
        return Vec::new();
    }
    state
        .members
        .iter()
        .filter(|member| matches!(member.part, Part::Full | Part::Leaving))
        .map(|member| {
            let session = &member.session;
            let open = session.connections().filter(|(.., state)| state.is_open());
            let connections = open.filter_map(|(id, cid, _)| {
                let stream = member.streams[id.index()].upgrade();
                let load = session.load(id)?;
                Some(ConnectionReport {
                    cid,
                    params: session.connection_params(id)?,
                    in_flight: load.in_flight,
                    outstanding_bytes: load.outstanding_bytes,
                    local: stream.as_ref().and_then(|stream| stream.local_addr().ok()),
                    peer: stream.as_ref().and_then(|stream| stream.peer_addr().ok()),
                    tcp_rtt: stream.as_deref().and_then(tcp_rtt),
                    stream,
                })
            });
            let proof = member.home.as_ref().map(|home| home.proof);
            let (chap, chap_mutual) = proof.unwrap_or_default();
            SessionReport {
                portal: member.home.as_ref().map(|home| home.portal.clone()),
                chap,
                chap_mutual,
                tsih: session.tsih(),
                params: *session.params(),
                window: session.window(),
                rtt: member.rtt,
                connections: connections.collect(),
            }
        })
        .collect()
}

fn tcp_rtt(stream: &TcpStream) -> Option<Duration> {
    let info = tcp_info(stream).ok()?;
    Some(Duration::from_micros(info.rtt_us.into())).filter(|rtt| !rtt.is_zero())
}
