//! What operators ask of the life cycle over the admin socket, and what they are shown.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `lun_add`: serves one more logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LunAdd {
    /// What `lun_resize` and `lun_remove` know it by.
    pub name: String,
    /// A file, a block device, `mem:SIZE` or a volume's URL, as `path` of the configuration.
    pub path: String,
    /// Make a sparse file of so many bytes where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create: Option<u64>,
    /// The target; may be left out where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Make the target, which is not there yet. It admits nobody until `initiator_allow`, and goes
    /// with its unit.
    #[serde(default)]
    pub new_target: bool,
    /// Its number; the lowest that is free unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lun: Option<u16>,
    /// No initiator may write.
    #[serde(default)]
    pub read_only: bool,
    /// Logical block size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// Bypass the page cache.
    #[serde(default)]
    pub direct: bool,
    /// Serial number instead of the derived one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Nobody reaches the volume behind the URL but by this daemon.
    #[serde(default)]
    pub exclusive: bool,
    /// How fast all initiators together may use it, as `max_rate` of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<String>,
    /// How many commands a second they may send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_iops: Option<u64>,
}

/// `lun_resize`: gives the file behind a logical unit another size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LunResize {
    /// Its name, or TARGET/LUN.
    pub name: String,
    /// In bytes.
    pub size: u64,
    /// What is behind the new end may be lost.
    #[serde(default)]
    pub shrink: bool,
}

/// `lun_remove`: serves a logical unit no more. What is behind it stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LunRemove {
    /// Its name, or TARGET/LUN.
    pub name: String,
    /// Although sessions have it in use.
    #[serde(default)]
    pub force: bool,
}

/// `lun_snapshot`: keeps what the file behind a logical unit holds now, in another file that shares
/// its blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LunSnapshot {
    /// Its name, or TARGET/LUN.
    pub name: String,
    /// The other file, which is not there yet.
    pub file: String,
}

/// `initiator_allow`: lets an initiator log in to a target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitiatorAllow {
    /// Its iSCSI name.
    pub initiator: String,
    /// The target; may be left out where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// It may only read.
    #[serde(default)]
    pub read_only: bool,
    /// What it has to prove: the name of a table `[chap.NAME]` instead of the target's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chap: Option<String>,
}

/// `initiator_deny`: takes that back, and ends its sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitiatorDeny {
    /// Its iSCSI name.
    pub initiator: String,
    /// The target; all that it was allowed to use unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// `portal_add`: listens on one more address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortalAdd {
    /// What targets and logs call it.
    pub name: String,
    /// ADDRESS:PORT.
    pub listen: String,
    /// What initiators are told instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<String>,
    /// How what is sent is marked, as `dscp` of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dscp: Option<String>,
}

/// `portal_remove`: accepts no more connections there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortalRemove {
    /// What it is called.
    pub name: String,
}

/// A logical unit at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LunView {
    /// What it was called when a command added it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The target.
    pub target: String,
    /// Its number.
    pub lun: u16,
    /// None: it is configured and not served (`target status` says why).
    pub size_bytes: Option<u64>,
    /// What is behind it.
    pub backing: String,
    /// No initiator may write.
    pub read_only: bool,
    /// Sessions that have read, written or flushed it.
    pub sessions: usize,
    /// The file that says so.
    pub file: PathBuf,
    /// Its line.
    pub line: usize,
}

/// Who may use a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitiatorView {
    /// iSCSI name; none: anyone.
    pub initiator: Option<String>,
    /// The target.
    pub target: String,
    /// Logical units that it may only read; none: all of them.
    pub read_only_luns: Option<Vec<u16>>,
    /// It has to prove who it is.
    pub chap: bool,
    /// Sessions that it has.
    pub sessions: usize,
    /// The file that says so.
    pub file: PathBuf,
    /// Its line.
    pub line: usize,
}

/// An address at which initiators find the targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortalView {
    /// What it is called.
    pub name: String,
    /// ADDRESS:PORT.
    pub address: String,
    /// What initiators are told instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<String>,
    /// Sessions that came through it.
    pub sessions: usize,
    /// The file that says so.
    pub file: PathBuf,
    /// Its line.
    pub line: usize,
}

/// `access_set`: says how well the units of a pair can be reached at one of its daemons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessSet {
    /// The group, this daemon's or another's.
    pub group: u16,
    /// `active`, `non-optimized`, `standby` or `unavailable`.
    pub state: String,
    /// The target; may be left out where one is a pair's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// A target port group of a pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessView {
    /// The target.
    pub target: String,
    /// The group.
    pub group: u16,
    /// How well its units can be reached there.
    pub state: String,
    /// It is that of the daemon that was asked.
    pub own: bool,
}
