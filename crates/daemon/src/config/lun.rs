//! `[[target.lun]]`: what is behind a logical unit, and how it presents itself.

use std::path::{Path, PathBuf};

use toml_span::value::ValueInner;
use wanlab::units;

use super::reader::{Place, Section, boolean, parsed, size, string};
use super::{Backing, LunSection};
use crate::mirror::files::{Files, Surroundings, check_name};

/// Reads it; its number is read already.
pub(super) fn lun(section: &mut Section<'_, '_>, mirrors: Option<&Path>) -> Option<LunSection> {
    let backing = backing(section, mirrors);
    let read_only = section.get("read_only", boolean).unwrap_or(false);
    let block_size = section.get("block_size", block_size);
    let physical_block_size = section.get("physical_block_size", size(512, 1 << 24));
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok();
    let vendor = section.get("vendor", string);
    let product = section.get("product", string);
    let create = section.get("create", size(512, 1 << 60));
    let direct = section.get("direct", boolean).unwrap_or(false);
    let thin = section.get("thin", boolean).unwrap_or(true);
    let write_cache = section.get("write_cache", boolean).unwrap_or(true);
    let serial = section.get("serial", string);
    let naa = section.get("naa", parsed("16 hexadecimal digits", hex));
    let overcommit = section.get("overcommit", boolean).unwrap_or(false);
    let space_warning_bytes = section.get("space_warning", size(1, 1 << 60)).unwrap_or(0);
    let (place, backing) = backing?;
    let product = match (vendor, product) {
        (None, None) => None,
        (vendor, product) => Some((
            vendor.unwrap_or_else(|| "ENKAKU".into()),
            product.unwrap_or_else(|| "VIRTUAL DISK".into()),
        )),
    };
    Some(LunSection {
        place,
        backing,
        create,
        read_only,
        block_size,
        physical_block_size: physical_block_size.map(|bytes| bytes as u32),
        direct,
        thin,
        write_cache,
        serial,
        naa,
        product,
        overcommit,
        space_warning_bytes,
    })
}

/// A path, or a mirror.
fn backing(section: &mut Section<'_, '_>, mirrors: Option<&Path>) -> Option<(Place, Backing)> {
    if !section.has("mirror") {
        return section.required("path", |value| {
            let path = string(value)?;
            Ok(match path.strip_prefix("mem:") {
                Some(size) => {
                    Backing::Memory(units::parse_size(size).map_err(|error| error.to_string())?)
                }
                None => Backing::Path(PathBuf::from(path)),
            })
        });
    }
    // What the mirror's own configuration says, or what its disks are.
    for key in ["path", "create", "block_size", "direct", "overcommit", "space_warning"] {
        if section.has(key) {
            section.complain(format!("{key} is not for a mirror: mirror, or path with {key}"));
            let _said_why = section.with(key, |_| Ok(()));
        }
    }
    section.with("mirror", |value| {
        let name = check_name(&string(value)?)?;
        let around = Surroundings::of_this_process();
        Files::new(&name, mirrors, &around).map(Backing::Mirror)
    })
}

/// What every initiator can use, and what `serve` takes.
fn block_size(value: ValueInner<'_>) -> Result<u32, String> {
    match size(0, u64::MAX)(value)? {
        512 => Ok(512),
        4096 => Ok(4096),
        other => Err(format!("{other} is not allowed (512 and 4096 are)")),
    }
}
