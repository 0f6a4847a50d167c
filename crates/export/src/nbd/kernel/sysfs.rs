//! What sysfs says of the kernel's NBD devices.

use std::{fs, io};

use crate::kernel::node::Kind;

/// The devices of the kernel's NBD client.
pub(super) const NBD: Kind = Kind("nbd");

/// Whom a device that is in use says that it belongs to (kernels from 5.14 on); `None` also where
/// it is not in use.
pub(super) fn identity(index: u32) -> Option<String> {
    let text = fs::read_to_string(NBD.attribute(index, "backend")).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

/// The devices that say whom they belong to, and whom.
pub(super) fn all() -> Vec<(u32, String)> {
    let indices = NBD.indices().into_iter();
    indices.filter_map(|index| Some((index, identity(index)?))).collect()
}

/// Sets after how many milliseconds the kernel looks at a request that is not answered.
pub(super) fn set_look_ms(index: u32, ms: u128) -> io::Result<()> {
    fs::write(NBD.attribute(index, "queue/io_timeout"), format!("{ms}\n"))
}
