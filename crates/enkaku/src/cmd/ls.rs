//! `enkaku ls`: what is on a volume.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use files::{Entry, EntryKind, FileExtent, Found, Identity, Name, Partition, Table, TableKind};
use serde_json::{Value, json};

use super::files::{Chosen, DiskArgs};
use super::say;

/// Lists a folder of a volume, without mounting anything: ext2, ext3, ext4, FAT and exFAT.
///
/// Nothing is written to the volume; what is newer in its journal is read there. Control
/// characters, backslashes and what is not UTF-8 are shown as \xNN. Without PATH, a disk with
/// several file systems lists its partitions.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    disk: DiskArgs,
    /// A folder or a file, from the root of its file system [default: the root].
    #[arg(value_name = "PATH")]
    path: Option<OsString>,
    /// Kind, size and time of change as well.
    #[arg(short, long)]
    long: bool,
    /// List the partitions of the disk.
    #[arg(long, conflicts_with_all = ["path", "partition", "long"])]
    partitions: bool,
    /// List where on the disk the bytes of the file PATH are.
    #[arg(long, requires = "path", conflicts_with = "long")]
    extents: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let opened = args.disk.open().await?;
    if args.partitions {
        partitions(&opened.table, &args)?;
    } else {
        files(&opened.table, &args).await?;
    }
    opened.close().await?;
    Ok(ExitCode::SUCCESS)
}

async fn files(table: &Table, args: &Args) -> anyhow::Result<()> {
    if args.path.is_none()
        && let Chosen::Any(_) = args.disk.choose(table)?
    {
        return partitions(table, args);
    }
    let (partition, volume) = args.disk.file_system(table).await?;
    let path = args.path.as_ref().map_or(&b"/"[..], |path| path.as_bytes());
    let entry = volume.find(path).await?;
    if args.extents {
        return extents(&volume.extents(&entry).await?, args);
    }
    let mut entries = match entry.kind {
        EntryKind::Folder => volume.list(&entry).await?,
        _ => vec![entry],
    };
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    if args.json {
        return say(json!({
            "partition": partition.number,
            "file_system": file_system(&volume.identity()),
            "warnings": volume.warnings(),
            "entries": entries.iter().map(entry_json).collect::<Vec<_>>(),
        }));
    }
    print(&entries, args)
}

/// All at once: a folder may have many.
fn print(entries: &[Entry], args: &Args) -> anyhow::Result<()> {
    let sizes = entries.iter().map(|entry| entry.size.to_string());
    let width = sizes.clone().map(|size| size.len()).max().unwrap_or_default();
    let mut text = Vec::new();
    for (entry, size) in entries.iter().zip(sizes) {
        if args.long {
            let (kind, time) = (letter(entry.kind), time(entry).unwrap_or_else(|| "-".into()));
            write!(text, "{kind} {size:>width$} {time:<20} ")?;
        }
        write!(text, "{}", entry.name)?;
        match (&entry.target, entry.kind) {
            (_, EntryKind::Folder) => text.push(b'/'),
            (Some(target), _) if args.long => write!(text, " -> {target}")?,
            _ => {}
        }
        text.push(b'\n');
    }
    text.pop();
    if entries.is_empty() { Ok(()) } else { say(String::from_utf8_lossy(&text)) }
}

fn letter(kind: EntryKind) -> char {
    match kind {
        EntryKind::File => '-',
        EntryKind::Folder => 'd',
        EntryKind::Link => 'l',
        EntryKind::Special => '?',
    }
}

fn time(entry: &Entry) -> Option<String> {
    entry.modified.map(|time| time.to_string())
}

fn entry_json(entry: &Entry) -> Value {
    let kind = match entry.kind {
        EntryKind::File => "file",
        EntryKind::Folder => "folder",
        EntryKind::Link => "link",
        EntryKind::Special => "special",
    };
    let mut report = json!({ "kind": kind, "size": entry.size, "modified": time(entry) });
    put_name(&mut report, "name", &entry.name);
    if let Some(target) = &entry.target {
        put_name(&mut report, "target", target);
    }
    report
}

/// A name that is not UTF-8 is there as bytes in hex, too.
fn put_name(report: &mut Value, key: &str, name: &Name) {
    report[key] = match name.as_str() {
        Some(text) => text.into(),
        None => {
            let bytes = name.as_bytes().iter().map(|byte| format!("{byte:02x}"));
            report[format!("{key}_hex")] = bytes.collect::<String>().into();
            String::from_utf8_lossy(name.as_bytes()).into()
        }
    };
}

fn file_system(identity: &Identity) -> Value {
    let mut report = json!({ "kind": identity.kind.name(), "id": identity.id });
    if let Some(label) = &identity.label {
        put_name(&mut report, "label", label);
    }
    report
}

fn extents(extents: &[FileExtent], args: &Args) -> anyhow::Result<()> {
    if args.json {
        let all = extents.iter().map(
            |extent| json!({ "offset": extent.offset, "length": extent.len, "at": extent.at }),
        );
        return say(json!({ "extents": all.collect::<Vec<_>>() }));
    }
    let lines = extents.iter().map(|extent| {
        let at = extent.at.map_or_else(|| "hole".to_owned(), |at| format!("at {at}"));
        format!("{}+{} {at}", extent.offset, extent.len)
    });
    let lines = lines.collect::<Vec<_>>();
    if lines.is_empty() { Ok(()) } else { say(lines.join("\n")) }
}

fn partitions(table: &Table, args: &Args) -> anyhow::Result<()> {
    let kind = match table.kind() {
        TableKind::Whole => "none",
        TableKind::Mbr => "mbr",
        TableKind::Gpt => "gpt",
    };
    if args.json {
        let all = table.partitions().iter().map(partition_json).collect::<Vec<_>>();
        return say(json!({ "table": kind, "warnings": table.warnings(), "partitions": all }));
    }
    for partition in table.partitions() {
        let name = partition.name.as_ref().map_or(String::new(), |name| format!(" \"{name}\""));
        let (number, start, len) = (partition.number, partition.start, partition.len);
        say(format_args!("{number:>3} {start:>15}+{len:<15} {}{name}", partition.found))?;
    }
    Ok(())
}

fn partition_json(partition: &Partition) -> Value {
    let mut report = json!({
        "number": partition.number,
        "start": partition.start,
        "length": partition.len,
        "content": partition.found.to_string(),
        "readable": matches!(partition.found, Found::FileSystem(_)),
    });
    if !partition.kind.is_empty() {
        report["kind"] = partition.kind.as_str().into();
    }
    if let Some(id) = &partition.id {
        report["id"] = id.as_str().into();
    }
    if let Some(name) = &partition.name {
        put_name(&mut report, "name", name);
    }
    report
}
