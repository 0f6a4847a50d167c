//! `enkaku cat`: the content of a file on a volume.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::Context;
use files::FileReader;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use wanlab::units;

use super::Usage;
use super::files::DiskArgs;

/// Writes a file of a volume, or a part of it, to standard output, without mounting anything.
///
/// The file is found once; its bytes are then read as many blocks at a time as the path needs.
/// Nothing is written to the volume; what is newer in its journal is read there.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    disk: DiskArgs,
    /// The file, from the root of its file system.
    #[arg(value_name = "PATH")]
    path: OsString,
    /// First byte.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::parse_size)]
    offset: u64,
    /// Bytes, at most [default: all that follow].
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    length: Option<u64>,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let opened = args.disk.open().await?;
    let (_, volume) = args.disk.file_system(&opened.table).await?;
    let entry = volume.find(args.path.as_bytes()).await?;
    let file = volume.open_file(&entry).await?;
    drop(volume);
    let size = file.size();
    if args.offset > size {
        let offset = args.offset;
        return Err(Usage::error(format!("--offset {offset}: the file has {size} bytes")));
    }
    write(&file, &args, tokio::io::stdout()).await?;
    drop(file);
    opened.close().await?;
    Ok(ExitCode::SUCCESS)
}

/// Copies the part that is wanted. If nobody reads it any more (a closed pipe), that is no failure.
async fn write(
    file: &FileReader,
    args: &Args,
    mut output: impl AsyncWrite + Unpin,
) -> anyhow::Result<()> {
    let end = args.length.map_or(u64::MAX, |length| args.offset.saturating_add(length));
    let mut reading = file.read(args.offset..end);
    while let Some(piece) = reading.next().await {
        match output.write_all(&piece?).await {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.context("standard output")?,
        }
    }
    match output.flush().await {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("standard output")
        }
        _ => Ok(()),
    }
}
