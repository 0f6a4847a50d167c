//! What a [`Server`](super::Server) serves, to whom, and within which limits: one value that can be
//! replaced while it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use iscsi_proto::keys::Offer;
use iscsi_proto::names::{NameError, TargetAddress, check_name};
use iscsi_proto::target::SessionConfig;

use super::access::{AccessRules, Chap};
use super::limit::Limit;
use crate::transport::Dscp;
use crate::transport::socket_options::{congestion_control_names, has_congestion_control};

/// Limits of a server, over all its targets. The defaults suit one storage box with some dozens of
/// initiators.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Time from accepting a connection to its full-feature phase. A peer that connects and says
    /// nothing holds a place for 2 s at most, however long this is.
    pub login_timeout: Duration,
    /// Connections that may be logging in at once. When more come, those that say nothing go first.
    pub logins_max: usize,
    /// Those of one peer: an IPv4 address, or an IPv6 network of 64 bits.
    pub logins_per_peer_max: usize,
    /// Connections at once, over all sessions. Fewer where the limit of open files leaves less.
    pub connections_max: usize,
    /// Sessions at once.
    pub sessions_max: usize,
    /// Those of one initiator name.
    pub sessions_per_initiator_max: usize,
    /// Memory for data of commands under way, in bytes, over all sessions. Half of it is divided
    /// into a share of each session that may exist; the other half goes to whoever needs it.
    pub memory_bytes_max: u64,
    /// SO_SNDBUF in bytes; `None` leaves it to the kernel's autotuning, which follows the path up
    /// to the limit of tcp_wmem.
    pub send_buffer: Option<usize>,
    /// SO_RCVBUF in bytes; `None` leaves it to the kernel's autotuning, likewise.
    pub receive_buffer: Option<usize>,
    /// TCP's congestion control of the connections.
    pub congestion_control: CongestionChoice,
}

/// Which congestion control the target's sockets have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CongestionChoice {
    /// The system's, until a connection loses packets that no queue explains; then one that bears
    /// losses, where the kernel has it.
    #[default]
    Auto,
    /// The system's.
    System,
    /// This one, by the kernel's name.
    Named(String),
}

impl CongestionChoice {
    /// `auto`, `system`, or the name of one that this kernel lets us choose.
    ///
    /// # Errors
    /// The kernel does not, with the names that it has.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "system" => Ok(Self::System),
            name if has_congestion_control(name) => Ok(Self::Named(name.to_owned())),
            name => Err(format!(
                "{name:?} is no congestion control of this system (auto, system, {})",
                congestion_control_names().join(", ")
            )),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            login_timeout: Duration::from_secs(15),
            logins_max: 256,
            logins_per_peer_max: 64,
            connections_max: 4096,
            sessions_max: 256,
            sessions_per_initiator_max: 64,
            memory_bytes_max: 2 << 30,
            send_buffer: None,
            receive_buffer: None,
            congestion_control: CongestionChoice::Auto,
        }
    }
}

/// One target: its logical units, who may use them, and how.
#[derive(Clone)]
#[non_exhaustive]
pub struct TargetSpec {
    /// Its iSCSI name, in lower case.
    pub name: String,
    /// Alias shown to people.
    pub alias: Option<String>,
    /// Its logical units. The same value for as long as the name stays in the catalog.
    pub scsi: scsi::Target,
    /// Parameters offered in negotiation.
    pub offer: Offer,
    /// Limits of a session.
    pub session: SessionConfig,
    /// Who may log in.
    pub access: AccessRules,
    /// Names of the portals it is reached through; `None`: all of them.
    pub portals: Option<BTreeSet<String>>,
    /// How fast all initiators together may use a logical unit, by its number.
    pub lun_limits: BTreeMap<u16, Limit>,
}

impl TargetSpec {
    /// A target that anyone may use through every portal.
    ///
    /// # Errors
    /// `name` is no iSCSI name (RFC 7143 §4.2.7).
    pub fn new(name: &str, scsi: scsi::Target) -> Result<Self, NameError> {
        Ok(Self {
            name: check_name(name)?,
            alias: None,
            scsi,
            offer: default_offer(),
            session: SessionConfig::default(),
            access: AccessRules::anyone(None),
            portals: None,
            lun_limits: BTreeMap::new(),
        })
    }

    pub(super) fn is_on(&self, portal: &str) -> bool {
        self.portals.as_ref().is_none_or(|portals| portals.contains(portal))
    }
}

/// What a target offers unless told otherwise.
pub(super) fn default_offer() -> Offer {
    let mut offer = Offer::default();
    // Nothing here needs time before a session can be reinstated (§13.15).
    offer.session.default_time2wait = 0;
    // As much recovery as the initiator wants. Its order of sequences decides whether several
    // R2Ts may be outstanding then (§13.19), so that we ask for none.
    offer.session.error_recovery_level = 2;
    offer.session.data_pdu_in_order = false;
    offer.session.data_sequence_in_order = false;
    offer
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortalSpec {
    /// What targets and logs call it.
    pub name: String,
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Address that initiators are told instead: behind a NAT they see another one.
    pub external: Option<TargetAddress>,
    /// Where initiators that may log in to a target are sent instead of being let in here, for as
    /// long as this is set.
    pub redirect: Option<TargetAddress>,
    /// Connections that come through it are served on a thread of its own, which asks their sockets
    /// for up to so long before it sleeps ([`crate::poll`]).
    pub poll: Option<Duration>,
    /// How what is sent through it is marked; `None` leaves it to the system.
    pub dscp: Option<Dscp>,
}

impl PortalSpec {
    /// A portal called by its address.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            name: listen.to_string(),
            listen,
            external: None,
            redirect: None,
            poll: None,
            dscp: None,
        }
    }
}

/// Everything that sessions are admitted by.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Catalog {
    /// Limits of the whole server.
    pub limits: Limits,
    /// What initiators have to prove before they are told of targets.
    pub discovery: Option<Chap>,
    /// Targets by name.
    pub targets: BTreeMap<String, Arc<TargetSpec>>,
}

impl Catalog {
    /// No targets.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// With a target; it replaces one of the same name.
    pub fn with_target(mut self, target: TargetSpec) -> Self {
        self.targets.insert(target.name.clone(), Arc::new(target));
        self
    }

    /// With CHAP for discovery.
    pub fn with_discovery(mut self, chap: Option<Chap>) -> Self {
        self.discovery = chap;
        self
    }
}
