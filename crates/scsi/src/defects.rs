//! READ DEFECT DATA(10) and (12) (SBC-3 §5.17, §5.18): there are no defects to tell of.

use crate::context::UnitContext;
use crate::{Command, Execution, data};

/// READ DEFECT DATA(10).
pub(crate) fn read_defect_data_10(_: &UnitContext<'_>, command: Command) -> Execution {
    let flags = command.cdb.byte(2) & 0x1f;
    data::respond(&command, vec![0, flags, 0, 0], u32::from(command.cdb.u16(7))).into()
}

/// READ DEFECT DATA(12).
pub(crate) fn read_defect_data_12(_: &UnitContext<'_>, command: Command) -> Execution {
    let flags = command.cdb.byte(1) & 0x1f;
    let out = vec![0, flags, 0, 0, 0, 0, 0, 0];
    data::respond(&command, out, command.cdb.u32(6)).into()
}
