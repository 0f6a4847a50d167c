//! What the user of a remote disk can set. The defaults are tuned for one 1–10 Gbit/s path of up
//! to 300 ms; a LAN loses nothing by them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use iscsi_proto::initiator::CONNECTIONS_MAX;
use iscsi_proto::keys::{DigestPreference, Offer};
use iscsi_proto::login::chap::{ChapCredentials, Secret};
use iscsi_proto::names::{NameError, check_name};
use path::PolicyConfig;

use super::dial::Dial;
use super::isid::IsidChoice;
use super::path::Share;
use crate::transport::Dscp;

/// Error recovery level that is asked for unless told otherwise. 0, as every target in the field
/// speaks it and almost none more: above it, a session of a target that means well but recovers
/// badly is worse off than one that is set up again, which costs a round trip or two.
pub const ERROR_RECOVERY_LEVEL_DEFAULT: u8 = 0;

/// Highest error recovery level (RFC 7143 §7.1.5).
pub const ERROR_RECOVERY_LEVEL_MAX: u8 = 2;

/// How long a target is asked to keep the tasks of a lost connection, in seconds: the RFC's
/// default (§13.16).
const TIME2RETAIN_S: u16 = 20;

/// Linux' target logs in one connection after the other, and gives one that says nothing up after
/// 15 s (`TA_LOGIN_TIMEOUT` in include/target/iscsi/iscsi_target_core.h): a login behind one such
/// is answered just after that, and has some seconds for its own.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(15 + 5);

/// What the end of the sessions means to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterLoss {
    /// They are set up again, and what was not answered goes out again.
    GoOn,
    /// The disk is dead: whatever is under way fails, and whatever is asked for later.
    Die,
}

/// Settings of a [`RemoteDisk`](super::RemoteDisk).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Our iSCSI name.
    pub initiator_name: String,
    /// Under which name sessions are set up, as far as it is ours to choose.
    pub isid: IsidChoice,
    /// TCP connections: of one session if the target allows it, else one session each.
    pub connections: u16,
    /// Who chooses the number of connections while data flows; `None` keeps it as it is.
    pub policy: Option<PolicyConfig>,
    /// How much of the path we take; `None` is all of it.
    pub share: Option<Share>,
    /// The file in which a path is remembered for the next process. Read and written under the
    /// policy `adaptive` only: the others begin every path as a new one.
    pub path_memory: Option<PathBuf>,
    /// On a long path, send and ask no faster than the line was found to carry.
    pub pacing: bool,
    /// What we offer in the login negotiation.
    pub offer: Offer,
    /// CHAP name and secret, such as [`Url::credentials`](super::Url::credentials) finds; `None`
    /// takes those of the URL.
    pub chap: Option<ChapCredentials>,
    /// The target has to prove itself with these (mutual CHAP).
    pub chap_mutual: Option<ChapCredentials>,
    /// A target that wants no proof may have it its way, unless it has to prove itself. Otherwise
    /// credentials mean authentication or nothing: who answers in the target's place cannot choose.
    pub chap_optional: bool,
    /// Who makes the connections; `None`: they are dialled.
    pub dialer: Option<Arc<dyn Dial>>,
    /// SO_SNDBUF in bytes; `None` leaves it to the kernel's auto-tuning.
    pub send_buffer: Option<usize>,
    /// SO_RCVBUF in bytes; `None` leaves it to the kernel's auto-tuning.
    pub receive_buffer: Option<usize>,
    /// TCP_CONGESTION, such as `bbr`; `None` keeps the system's default.
    pub congestion_control: Option<String>,
    /// How the packets of all connections are marked; `None` leaves it to the system.
    pub dscp: Option<Dscp>,
    /// How long connecting and logging in may take, all connections together.
    pub login_timeout: Duration,
    /// How long I/O waits for a target that is gone before it fails.
    pub replacement_timeout: Duration,
    /// After this long without anything received, the target is asked for a sign of life.
    pub keepalive_interval: Duration,
    /// After this long without an answer and without data moving, a connection is dead.
    pub ping_timeout: Duration,
    /// A command without an answer for this long, while none of its data moves and none of what was
    /// sent before it, ends its session, so that it goes out again: the target has lost it, or
    /// hangs.
    pub command_timeout: Duration,
    /// Most bytes of one READ or WRITE; longer operations become several, side by side.
    pub transfer_len_max: u32,
    /// Most commands at the target at once; more wait here.
    pub commands_max: usize,
    /// Every connection gets as many commands as the others, also one that takes longer for them,
    /// and an operation is not cut for the path's sake.
    /// For experiments whose load is so many commands for each connection.
    pub hand_out_evenly: bool,
    /// An operation is not cut for the path's sake: it is one command, as long as the unit allows.
    /// For experiments about single commands.
    pub uncut: bool,
    /// Most bytes kept of writes that a volatile cache may still lose. Half of it triggers a
    /// flush. 0 keeps nothing: what a target loses with its power is then lost without a word.
    pub unflushed_len_max: u64,
    /// Other initiators write to the volume, too. After an interruption nothing unflushed is
    /// written again, which could land on newer data of theirs; if the target has lost it, the
    /// next flush fails instead.
    pub shared: bool,
    /// A read that is dropped is aborted at the target, which then sends no more of it: for readers
    /// that look elsewhere at any moment, as players do. It costs a request and an answer for each.
    pub aborts_reads: bool,
    /// What the end of the sessions means.
    pub(super) after_loss: AfterLoss,
}

impl Default for Config {
    /// As [`Config::new`] with a name made of the host's.
    fn default() -> Self {
        Self::with_name(default_name())
    }
}

impl Config {
    /// Defaults for an initiator of this name.
    ///
    /// # Errors
    /// It is no iSCSI name (RFC 7143 §4.2.7).
    pub fn new(initiator_name: &str) -> Result<Self, NameError> {
        check_name(initiator_name).map(Self::with_name)
    }

    fn with_name(initiator_name: String) -> Self {
        let mut offer = Offer::default();
        // Nothing is gained by waiting to reinstate a session whose target says it may be done
        // at once; the target's own minimum still counts (§13.15).
        offer.session.default_time2wait = 0;
        // Below level 2 tasks are not reassigned, so a target need not keep any (§13.16).
        offer.session.default_time2retain = 0;
        let config = Self {
            initiator_name,
            isid: IsidChoice::default(),
            connections: 1,
            policy: None,
            share: None,
            path_memory: None,
            pacing: true,
            offer,
            chap: None,
            chap_mutual: None,
            chap_optional: false,
            dialer: None,
            send_buffer: None,
            receive_buffer: None,
            congestion_control: None,
            dscp: None,
            login_timeout: LOGIN_TIMEOUT,
            replacement_timeout: Duration::from_secs(120),
            keepalive_interval: Duration::from_secs(5),
            ping_timeout: Duration::from_secs(10),
            // Longer than a disk array takes to fail over inside.
            command_timeout: Duration::from_secs(60),
            transfer_len_max: 1 << 20,
            commands_max: 4096,
            hand_out_evenly: false,
            uncut: false,
            unflushed_len_max: 256 << 20,
            shared: false,
            aborts_reads: false,
            after_loss: AfterLoss::GoOn,
        };
        config.error_recovery_level(ERROR_RECOVERY_LEVEL_DEFAULT)
    }

    /// Sets how deep errors are recovered if the target can do it, too: 0, sessions are set up
    /// again; 1, damaged PDUs are asked for again; 2, tasks of a lost connection go on over others.
    #[must_use]
    pub fn error_recovery_level(mut self, level: u8) -> Self {
        let session = &mut self.offer.session;
        session.error_recovery_level = level.min(ERROR_RECOVERY_LEVEL_MAX);
        session.default_time2retain = if level >= 2 { TIME2RETAIN_S } else { 0 };
        // In order, only one R2T at a time is allowed above level 0 (§13.19): a round trip for
        // each burst.
        session.data_sequence_in_order = level == 0;
        self
    }

    /// Demands that the target proves itself as this user; needs `chap`, too.
    pub fn set_mutual(&mut self, user: &str, secret: &str) {
        let (user, secret) = (user.to_string(), Secret::new(secret));
        self.chap_mutual = Some(ChapCredentials { user, secret });
    }

    /// Sets the number of connections.
    #[must_use]
    pub fn connections(mut self, connections: u16) -> Self {
        self.connections = connections.max(1);
        self.policy = None;
        self
    }

    /// Lets a policy choose the number of connections while data flows. It begins with the number
    /// that it was told, and may ask for as many as it was told.
    #[must_use]
    pub fn policy(mut self, policy: PolicyConfig) -> Self {
        let initial = policy.connections().0;
        self.connections = u16::try_from(initial).unwrap_or(u16::MAX).max(1);
        self.policy = Some(policy);
        self
    }

    /// Limits how much of the path we take.
    #[must_use]
    pub fn share(mut self, share: Option<Share>) -> Self {
        self.share = share;
        self
    }

    /// Whether the line's rate is looked for and kept to; else TCP alone decides.
    #[must_use]
    pub fn pacing(mut self, pacing: bool) -> Self {
        self.pacing = pacing;
        self
    }

    /// MaxConnections as it is offered: as many as there may ever be.
    pub(super) fn connections_offered(&self) -> u16 {
        let most = self.policy.as_ref().map_or(0, |policy| policy.connections().1);
        u16::try_from(most).unwrap_or(u16::MAX).min(CONNECTIONS_MAX as u16).max(self.connections)
    }

    /// Sets what is said about both digests.
    #[must_use]
    pub fn digests(mut self, header: DigestPreference, data: DigestPreference) -> Self {
        self.offer.header_digest = header;
        self.offer.data_digest = data;
        self
    }

    /// Sets how long I/O waits for a target that is gone.
    #[must_use]
    pub fn replacement_timeout(mut self, timeout: Duration) -> Self {
        self.replacement_timeout = timeout;
        self
    }
}

/// `iqn.2026-11.org.enkaku:` and the host's name.
fn default_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
    let host: String = host.trim().to_lowercase().chars().filter(plain).take(64).collect();
    let host = if host.is_empty() { "localhost" } else { &host };
    format!("iqn.2026-11.org.enkaku:{host}")
}
