//! Drop-ins that commands write: their text, and how it gets to the disk whole or not at all.
//!
//! The first line of such a file tells it from one that somebody has written by hand; only the
//! former are changed or removed here. Lines that somebody added to one stay when another changes.

use std::fmt::{Display, Write as _};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use crate::toml_text::quoted;
use crate::whole_file::{self, folder_of, sync_folder_of};

/// How the first line begins.
const MARK: &str = "# Written by `enkaku target ";

/// Longest name of a LUN or portal: its file's name has some more.
const NAME_LEN_MAX: usize = 64;

/// The table of a target; what follows belongs to it.
pub(super) const TARGET: &str = "[[target]]";

/// Modes of what is made: the configuration is the daemon's and its group's.
const FILE_MODE: u32 = 0o640;
const FOLDER_MODE: u32 = 0o750;

/// Checks what a drop-in will be called by.
///
/// # Errors
/// What would be allowed.
pub(super) fn check_name(what: &str, name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let good = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(plain)
        && name.len() <= NAME_LEN_MAX;
    good.then_some(()).ok_or_else(|| {
        format!(
            "{name:?} is no name of a {what} (allowed: letters, digits, '.', '-' and '_', at most \
             {NAME_LEN_MAX}, a letter or digit first)"
        )
    })
}

/// A drop-in being written.
pub(super) struct Text(String);

impl Text {
    /// One that `command` writes.
    pub(super) fn of(command: &str) -> Self {
        Self(format!(
            "{MARK}{command}`. What is edited here takes effect by `enkaku target reload`.\n"
        ))
    }

    /// One that has been written before, to be continued.
    pub(super) fn after(before: String) -> Self {
        Self(before)
    }

    /// Begins a table, with its brackets.
    pub(super) fn table(self, header: &str) -> Self {
        self.line(header)
    }

    /// A text.
    pub(super) fn text(self, key: &str, value: impl AsRef<str>) -> Self {
        self.line(format_args!("{key} = {}", quoted(value.as_ref())))
    }

    /// A text, if there is one.
    pub(super) fn text_if(self, key: &str, value: Option<&String>) -> Self {
        match value {
            Some(value) => self.text(key, value),
            None => self,
        }
    }

    /// A number.
    pub(super) fn number(self, key: &str, value: impl Into<u64>) -> Self {
        self.line(format_args!("{key} = {}", value.into()))
    }

    /// A number, if there is one.
    pub(super) fn number_if(self, key: &str, value: Option<impl Into<u64>>) -> Self {
        match value {
            Some(value) => self.number(key, value),
            None => self,
        }
    }

    /// Bytes.
    pub(super) fn size_if(self, key: &str, bytes: Option<u64>) -> Self {
        match bytes {
            Some(bytes) => self.text(key, size(bytes)),
            None => self,
        }
    }

    /// `true`, unless it is the default.
    pub(super) fn flag(self, key: &str, value: bool) -> Self {
        if value { self.line(format_args!("{key} = true")) } else { self }
    }

    /// A line as it is.
    pub(super) fn line(mut self, line: impl Display) -> Self {
        let _never_fails = writeln!(self.0, "{line}");
        self
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }
}

/// Bytes as people write them, exactly.
pub(super) fn size(bytes: u64) -> String {
    let units = [("T", 40), ("G", 30), ("M", 20), ("k", 10)];
    let fits = |(_, shift): &&(&str, u32)| bytes >> shift > 0 && bytes.trailing_zeros() >= *shift;
    match units.iter().find(fits) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// Did a command write this?
pub(super) fn is_ours(text: &str) -> bool {
    text.starts_with(MARK)
}

/// The tables in it, in their order.
pub(super) fn tables(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| line.starts_with('[')).collect()
}

/// A drop-in's text with another size of the file that was created, where it says one.
pub(super) fn with_create(text: &str, bytes: u64) -> String {
    let is_create = |line: &str| line.split('=').next().is_some_and(|key| key.trim() == "create");
    let lines = text.lines().map(|line| match is_create(line) {
        true => format!("create = {}\n", quoted(&size(bytes))),
        false => format!("{line}\n"),
    });
    lines.collect()
}

/// A drop-in's text without all that it says of one target; nothing if nothing else stands in it.
pub(super) fn without_target(text: &str, name: &str) -> Option<String> {
    let mut parts = text.split_inclusive('\n').fold(vec![String::new()], |mut parts, line| {
        if line.trim() == TARGET {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut() {
            part.push_str(line);
        }
        parts
    });
    let said = format!("name = {}", quoted(name));
    let is_of = |part: &String| part.lines().nth(1).is_some_and(|line| line.trim() == said);
    let head = parts.remove(0);
    parts.retain(|part| !is_of(part));
    (!parts.is_empty()).then(|| head + &parts.concat())
}

/// Puts a drop-in where it belongs: after a power cut it is there whole, or not at all.
///
/// # Errors
/// The system's; a file that was there is as it was.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let folder = folder_of(path);
    if !folder.is_dir() {
        DirBuilder::new().mode(FOLDER_MODE).create(folder)?;
        sync_folder_of(folder)?;
    }
    // A dot first: nobody takes it for a drop-in.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    whole_file::replace(path, &folder.join(format!(".{name}.new")), FILE_MODE, text)
}

/// Removes a drop-in for good.
///
/// # Errors
/// The system's.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    std::fs::remove_file(path)?;
    sync_folder_of(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short_and_exact() {
        let sizes = [(20 << 30, "20G"), (1536 << 20, "1536M"), (512, "512"), (4097, "4097")];
        for (bytes, said) in sizes {
            assert_eq!(size(bytes), said);
            assert_eq!(wanlab::units::parse_size(said).unwrap(), bytes);
        }
    }

    #[test]
    fn names_are_names_of_files() {
        for name in ["a", "vm-1.root_2", "7", &"x".repeat(64)] {
            assert_eq!(check_name("LUN", name), Ok(()), "{name}");
        }
        for name in ["", "../x", "a/b", ".a", "-a", "ä", "a b", &"x".repeat(65)] {
            assert!(check_name("LUN", name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_line_that_somebody_added_stays() {
        let text =
            Text::of("lun add").table(TARGET).text("name", "iqn.a:b").table("[[target.lun]]");
        let text = text.size_if("create", Some(1 << 30)).into_string() + "max_iops = 5\n";
        assert!(is_ours(&text) && !is_ours("[[target]]\n"));
        assert_eq!(tables(&text), [TARGET, "[[target.lun]]"]);
        let larger = with_create(&text, 2 << 30);
        assert!(larger.contains("create = \"2G\"\n") && larger.ends_with("max_iops = 5\n"));
        assert_eq!(larger.replace("2G", "1G"), text);
    }

    #[test]
    fn one_target_of_several_is_taken_out() {
        let rule = |text: Text, target: &str| {
            let text = text.table(TARGET).text("name", target).table("[[target.initiator]]");
            text.text("name", "iqn.a:host")
        };
        let text = rule(rule(Text::of("initiator allow"), "iqn.a:one"), "iqn.a:two").into_string();
        let one = without_target(&text, "iqn.a:two").unwrap();
        assert!(is_ours(&one) && one.contains("iqn.a:one") && !one.contains("iqn.a:two"));
        assert_eq!(without_target(&one, "iqn.a:other"), Some(one.clone()));
        assert_eq!(without_target(&one, "iqn.a:one"), None);
    }

    #[test]
    fn a_file_is_whole_and_nothing_stays_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("target.d/lun-a.toml");
        write(&path, "one").unwrap();
        write(&path, "two").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        remove(&path).unwrap();
        assert!(remove(&path).is_err());
        let nowhere = folder.path().join("no/where/lun-a.toml");
        assert!(write(&nowhere, "x").is_err());
    }
}
