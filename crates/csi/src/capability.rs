//! How a volume is to be used: as a file system or as a block device, by how many.

use tonic::Status;

use crate::v1::VolumeCapability;
use crate::v1::volume_capability::AccessType;
use crate::v1::volume_capability::access_mode::Mode;

/// File systems that are made here, and grown. Others that are there already can be used, too.
pub(crate) const FILE_SYSTEMS: [&str; 2] = ["ext4", "xfs"];

/// What is made where nothing else is asked for.
pub(crate) const USUAL_FILE_SYSTEM: &str = "ext4";

/// Options of a mount in all, in bytes.
const FLAGS_LEN_MAX: usize = 4096;

/// One way to use a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) kind: Kind,
    pub(crate) mode: Mode,
}

/// What programs see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Block,
    FileSystem {
        /// Which; none: what is there, or else the usual one.
        name: Option<String>,
        /// Options of mount(8).
        flags: Vec<String>,
    },
}

impl Usage {
    /// Nobody will write.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self.mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly)
    }

    /// Nodes at once.
    pub(crate) fn is_for_several_nodes(&self) -> bool {
        self.mode == Mode::MultiNodeReaderOnly
    }
}

/// Reads one.
///
/// # Errors
/// `INVALID_ARGUMENT`: it is none, or one that there is not, and what there is.
pub(crate) fn usage(capability: Option<VolumeCapability>) -> Result<Usage, Status> {
    let missing = |what: &str| Status::invalid_argument(format!("{what} is missing"));
    let capability = capability.ok_or_else(|| missing("volume_capability"))?;
    let access = capability.access_type;
    let access = access.ok_or_else(|| missing("volume_capability.access_type"))?;
    let mode = capability.access_mode.map(|mode| mode.mode());
    let mode = mode.ok_or_else(|| missing("volume_capability.access_mode"))?;
    check_mode(mode)?;
    let kind = match access {
        AccessType::Block(_) => Kind::Block,
        AccessType::Mount(mount) => {
            if !mount.volume_mount_group.is_empty() {
                let what = "volume_mount_group is not supported: files keep the group they have";
                return Err(Status::invalid_argument(what));
            }
            check_flags(&mount.mount_flags)?;
            let name = Some(mount.fs_type).filter(|name| !name.is_empty());
            if let Some(name) = name.as_deref().filter(|name| !FILE_SYSTEMS.contains(name)) {
                return Err(Status::invalid_argument(format!(
                    "fs_type {name:?} is not supported (allowed: {})",
                    FILE_SYSTEMS.join(", ")
                )));
            }
            Kind::FileSystem { name, flags: mount.mount_flags }
        }
    };
    Ok(Usage { kind, mode })
}

fn check_mode(mode: Mode) -> Result<(), Status> {
    let why = match mode {
        Mode::Unknown => "volume_capability.access_mode is missing",
        Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter => {
            "a volume is written by one node at a time: ReadWriteOnce, ReadWriteOncePod and \
             ReadOnlyMany are supported, ReadWriteMany is not"
        }
        _ => return Ok(()),
    };
    Err(Status::invalid_argument(why))
}

/// Options go to mount(8) in one argument, separated by commas.
fn check_flags(flags: &[String]) -> Result<(), Status> {
    let is_good = |flag: &String| {
        !flag.is_empty() && !flag.starts_with('-') && flag.chars().all(|c| c.is_ascii_graphic())
    };
    if let Some(wrong) = flags.iter().find(|flag| !is_good(flag)) {
        let what = format!("mount_flags: {wrong:?} is no option of mount(8)");
        return Err(Status::invalid_argument(what));
    }
    if flags.iter().map(String::len).sum::<usize>() > FLAGS_LEN_MAX {
        let what = format!("mount_flags: more than {FLAGS_LEN_MAX} bytes in all");
        return Err(Status::invalid_argument(what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::volume_capability::{AccessMode, BlockVolume, MountVolume};

    fn capability(access: AccessType, mode: Mode) -> Option<VolumeCapability> {
        let access_mode = Some(AccessMode { mode: mode.into() });
        Some(VolumeCapability { access_type: Some(access), access_mode })
    }

    fn mount(fs_type: &str, flags: &[&str]) -> AccessType {
        AccessType::Mount(MountVolume {
            fs_type: fs_type.to_owned(),
            mount_flags: flags.iter().map(ToString::to_string).collect(),
            ..MountVolume::default()
        })
    }

    #[test]
    fn usual_ones_are_taken() {
        let one = usage(capability(mount("", &["noatime"]), Mode::SingleNodeWriter)).unwrap();
        assert_eq!(one.kind, Kind::FileSystem { name: None, flags: vec!["noatime".to_owned()] });
        assert!(!one.is_read_only() && !one.is_for_several_nodes());
        let block = AccessType::Block(BlockVolume {});
        let many = usage(capability(block, Mode::MultiNodeReaderOnly)).unwrap();
        assert!(many.kind == Kind::Block && many.is_read_only() && many.is_for_several_nodes());
    }

    #[test]
    fn what_there_is_not_is_named() {
        let writer = Mode::SingleNodeWriter;
        for (given, named) in [
            (None, "volume_capability"),
            (capability(mount("ntfs", &[]), writer), "ext4, xfs"),
            (capability(mount("", &["a b"]), writer), "a b"),
            (capability(mount("", &["-oloop"]), writer), "-oloop"),
            (capability(mount("", &[&"x".repeat(5000)]), writer), "4096"),
            (capability(mount("", &[]), Mode::MultiNodeMultiWriter), "ReadWriteMany"),
            (capability(mount("", &[]), Mode::Unknown), "access_mode"),
        ] {
            let refused = usage(given).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
            assert!(refused.message().contains(named), "{refused}");
        }
    }
}
