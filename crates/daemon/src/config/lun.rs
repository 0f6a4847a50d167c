//! `[[target.lun]]`: what is behind a logical unit, and how it presents itself.

use std::path::{Path, PathBuf};

use backends::Location;
use toml_span::value::ValueInner;
use wanlab::units;

use super::reader::{Place, Section, boolean, list, parsed, size, string};
use super::{Backing, LunSection, VolumeSection, VolumeSource};
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
    let exclusive = section.get("exclusive", boolean).unwrap_or(false);
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
        exclusive,
    })
}

/// What only files and memory have.
const OF_FILES: [&str; 5] = ["create", "block_size", "direct", "overcommit", "space_warning"];

/// A path, a volume's URL, a command that serves one, or a mirror.
fn backing(section: &mut Section<'_, '_>, mirrors: Option<&Path>) -> Option<(Place, Backing)> {
    if section.has("mirror") {
        return mirror(section, mirrors);
    }
    if section.has("command") {
        refuse(section, &OF_FILES, "a command");
        refuse(section, &["path", "chap_password_file", "exclusive"], "a command");
        return section.with("command", command).map(|(place, source)| {
            (place, Backing::Volume(VolumeSection { source, chap_password_file: None }))
        });
    }
    let file = section.get("chap_password_file", |value| {
        let path = PathBuf::from(string(value)?);
        let is_absolute = path.is_absolute();
        is_absolute.then_some(path).ok_or_else(|| "a path that begins with / is needed".to_owned())
    });
    let (place, mut backing) = section.required("path", |value| {
        let path = string(value)?;
        if Location::is_meant(&path) {
            let source = volume(path)?;
            return Ok(Backing::Volume(VolumeSection { source, chap_password_file: None }));
        }
        Ok(match path.strip_prefix("mem:") {
            Some(size) => {
                Backing::Memory(units::parse_size(size).map_err(|error| error.to_string())?)
            }
            None => Backing::Path(PathBuf::from(path)),
        })
    })?;
    match &mut backing {
        Backing::Volume(volume) => {
            refuse(section, &OF_FILES, "a volume behind a URL");
            let VolumeSource::Url(url) = &volume.source else { return Some((place, backing)) };
            if file.is_some() && !(url.starts_with("iscsi://") && url.contains('@')) {
                section.complain(
                    "chap_password_file, but the URL names no user; \
                                  write iscsi://USER@HOST/…",
                );
            }
            volume.chap_password_file = file;
        }
        _ => {
            if file.is_some() || section.has("exclusive") {
                section.complain("chap_password_file and exclusive are for volumes behind URLs");
            }
        }
    }
    Some((place, backing))
}

/// A volume's URL.
fn volume(url: String) -> Result<VolumeSource, String> {
    let location: Location = url.parse().map_err(|error| format!("{error}"))?;
    match &location {
        Location::Iscsi(parsed) if parsed.password.is_some() => Err(format!(
            "{location}: a configuration holds no password: leave it out of the URL, and put it \
             into a file for chap_password_file, or into LIBISCSI_CHAP_PASSWORD"
        )),
        _ => Ok(VolumeSource::Url(url)),
    }
}

/// A program and its arguments.
fn command(value: ValueInner<'_>) -> Result<VolumeSource, String> {
    let argv = list(string)(value)?;
    match argv.first() {
        Some(program) if !program.is_empty() => Ok(VolumeSource::Command(argv)),
        _ => Err("a program is missing, as in [\"nbdkit\", \"memory\", \"1G\"]".to_owned()),
    }
}

/// Complains about keys that mean nothing for what the unit is.
fn refuse(section: &mut Section<'_, '_>, keys: &[&'static str], what: &str) {
    for key in keys {
        if section.has(key) {
            section.complain(format!("{key} is not for {what}"));
            let _said_why = section.with(key, |_| Ok(()));
        }
    }
}

fn mirror(section: &mut Section<'_, '_>, mirrors: Option<&Path>) -> Option<(Place, Backing)> {
    // What the mirror's own configuration says, or what its disks are.
    for key in ["path", "create", "block_size", "direct", "overcommit", "space_warning"] {
        if section.has(key) {
            section.complain(format!("{key} is not for a mirror: mirror, or path with {key}"));
            let _said_why = section.with(key, |_| Ok(()));
        }
    }
    refuse(section, &["command", "chap_password_file", "exclusive"], "a mirror");
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
