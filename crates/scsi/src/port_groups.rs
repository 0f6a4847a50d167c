//! Asymmetric logical unit access (SPC-4 §5.8, §6.36): REPORT TARGET PORT GROUPS. States are
//! changed by whoever runs the targets, never by initiators (TPGS 01b, implicit), so there is no
//! SET TARGET PORT GROUPS.
//!
//! A target of ours has one port, which is a group; other targets that serve the same units have
//! the others, and what they are is told to each ([`Target::set_other_groups`](crate::Target)).

use crate::context::UnitContext;
use crate::sense::{AdditionalSense, Sense, SenseKey};
use crate::{Command, Execution, data};

/// How well the units can be reached through this target's port (SPC-4 §5.8.2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum AccessState {
    /// The best way there is.
    #[default]
    ActiveOptimized = 0x0,
    /// It works, another way works better.
    ActiveNonOptimized = 0x1,
    /// Answers questions about itself only; takes over when told to.
    Standby = 0x2,
    /// As standby, and will not take over.
    Unavailable = 0x3,
}

impl AccessState {
    pub(crate) fn from_code(code: u8) -> Self {
        match code {
            0x0 => Self::ActiveOptimized,
            0x1 => Self::ActiveNonOptimized,
            0x2 => Self::Standby,
            _ => Self::Unavailable,
        }
    }

    /// Refuses commands that need the medium or change the unit's state.
    pub(crate) fn check(self) -> Result<(), Sense> {
        let additional = match self {
            Self::ActiveOptimized | Self::ActiveNonOptimized => return Ok(()),
            Self::Standby => AdditionalSense::TARGET_PORT_IN_STANDBY_STATE,
            Self::Unavailable => AdditionalSense::TARGET_PORT_IN_UNAVAILABLE_STATE,
        };
        Err(Sense::new(SenseKey::NOT_READY, additional))
    }
}

/// The port of another target that serves the same units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortGroup {
    /// TARGET PORT GROUP.
    pub group: u16,
    /// RELATIVE TARGET PORT IDENTIFIER of its one port.
    pub relative_port: u16,
    /// How well the units can be reached through it.
    pub state: AccessState,
}

/// Identifier of this target's port group; VPD page 83h names it, too.
pub(crate) fn group(config: &crate::TargetConfig) -> u16 {
    config.portal_group_tag
}

/// REPORT TARGET PORT GROUPS.
pub(crate) fn report(context: &UnitContext<'_>, command: Command) -> Execution {
    /// Unavailable, standby, active/non-optimized and active/optimized are all possible.
    const SUPPORTED: u8 = 0x08 | 0x04 | 0x02 | 0x01;
    let target = &context.nexus.target;
    let extended = match command.cdb.byte(1) >> 5 {
        0 => false,
        1 => true, // extended header: with the implicit transition time, of which there is none
        _ => return Sense::invalid_cdb(1, 7).into(),
    };
    let mut out = if extended { vec![0, 0, 0, 0, 0x10, 0, 0, 0] } else { vec![0; 4] };
    let own = PortGroup {
        group: group(&target.config),
        relative_port: target.config.relative_port,
        state: target.access_state(),
    };
    for each in std::iter::once(&own).chain(target.other_groups().iter()) {
        out.extend([each.state as u8, SUPPORTED]);
        out.extend(each.group.to_be_bytes());
        out.extend([0, 0, 0, 1, 0, 0]); // no reason to tell, one port
        out.extend(each.relative_port.to_be_bytes());
    }
    let len = out.len() as u32 - 4;
    out[..4].copy_from_slice(&len.to_be_bytes());
    data::respond(&command, out, command.cdb.u32(6)).into()
}
