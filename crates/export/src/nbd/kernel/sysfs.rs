//! What sysfs says of the kernel's NBD devices.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// What a device is named, before its number.
const PREFIX: &str = "nbd";

/// The node of a device.
pub(super) fn node(index: u32) -> PathBuf {
    PathBuf::from(format!("/dev/{PREFIX}{index}"))
}

/// The number in a device's name.
pub(super) fn index_of(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// Where the kernel's block devices are told of.
fn folder() -> &'static Path {
    Path::new("/sys/block")
}

/// Whom a device that is in use says that it belongs to (kernels from 5.14 on); `None` also where
/// it is not in use.
pub(super) fn identity(index: u32) -> Option<String> {
    let text = fs::read_to_string(folder().join(format!("{PREFIX}{index}/backend"))).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

/// The devices that say whom they belong to, and whom.
pub(super) fn all() -> Vec<(u32, String)> {
    let Ok(entries) = fs::read_dir(folder()) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let indices = names.filter_map(|name| index_of(&name));
    let mut all: Vec<_> = indices.filter_map(|index| Some((index, identity(index)?))).collect();
    all.sort_unstable();
    all
}

/// Its size in bytes, as the kernel knows it.
pub(super) fn size(index: u32) -> io::Result<u64> {
    let text = fs::read_to_string(folder().join(format!("{PREFIX}{index}/size")))?;
    let sectors: u64 = text.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(sectors.saturating_mul(512))
}

/// Sets after how many milliseconds the kernel looks at a request that is not answered.
pub(super) fn set_look_ms(index: u32, ms: u128) -> io::Result<()> {
    fs::write(folder().join(format!("{PREFIX}{index}/queue/io_timeout")), format!("{ms}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        assert_eq!(index_of("nbd12"), Some(12));
        for other in ["nbd", "nbd1p1", "sda", "nbd-1"] {
            assert_eq!(index_of(other), None, "{other}");
        }
    }
}
