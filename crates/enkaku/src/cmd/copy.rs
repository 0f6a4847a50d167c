//! `enkaku copy`: between volumes, files, block devices and pipes.

mod changed;

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use backends::Location;
use block::Device;
use block::backend::{FileDevice, FileOptions};
use block::copy::{CopyOptions, Progress, copy};
use block::incremental::BLOCK_SIZES;
use block::stream::{StreamOptions, copy_in, copy_out};
use indicatif::{ProgressBar, ProgressStyle};
use iscsi::initiator::RemoteDisk;
use serde::Serialize;
use wanlab::units;

use super::image;
use super::overwrite::{self, MayOverwrite};
use super::path_report::Path as PathJson;
use super::remote::{RemoteArgs, Volume, parse_location};
use super::{Usage, complain, say};

/// Time between two looks at the number of connections.
const SHOWN_INTERVAL: Duration = Duration::from_millis(250);

/// Copies a volume, file, block device or standard input to another of these.
///
/// Holes of the source stay holes where the destination can have them. The destination is flushed
/// before the command ends well. A volume is overwritten from its start; what lies behind the
/// source's end stays as it was. One that is not blank, and a file that exists, are overwritten
/// with
/// --force only, or after a yes on a terminal.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(value_name = "SRC", help = concat!(
        "Where from: iscsi://[user[%password]@]host[:port]/target-iqn/lun, ",
        "nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH, a path, or - for stdin"
    ))]
    source: Endpoint,
    /// Where to, likewise; - is stdout.
    #[arg(value_name = "DST")]
    destination: Endpoint,
    /// Read both sides again at the end and compare; with --changed-since, DST with the hashes.
    #[arg(long)]
    verify: bool,
    /// Overwrite whatever DST holds, without a look at it; with --changed-since, also take a SRC of
    /// another name than the last time.
    #[arg(long)]
    force: bool,
    /// Send only what has changed since the last run. STATE is a file that keeps hashes of what DST
    /// holds; the first run makes it. A run that was killed is taken up by the next.
    #[arg(long, value_name = "STATE")]
    changed_since: Option<PathBuf>,
    /// Bytes of a block with a hash, 4k to 64k, in a new STATE [default: 64k].
    #[arg(long, value_name = "SIZE", requires = "changed_since", value_parser = parse_hash_block)]
    hash_block: Option<u32>,
    /// DST holds an older copy already, that STATE does not know: read it, and send what differs.
    #[arg(long, requires = "changed_since")]
    seeded: bool,
    /// Send again what --verify finds that somebody else has changed.
    #[arg(long, requires = "changed_since", requires = "verify")]
    heal: bool,
    /// Transfers under way at once.
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    depth: u32,
    /// Bytes per transfer.
    #[arg(long, value_name = "SIZE", default_value = "256k", value_parser = parse_block_size)]
    block_size: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: RemoteArgs,
}

fn parse_block_size(text: &str) -> Result<u32, String> {
    let size = units::parse_size(text).map_err(|error| error.to_string())?;
    match u32::try_from(size) {
        Ok(size) if size.is_power_of_two() && (4096..=16 << 20).contains(&size) => Ok(size),
        _ => Err(format!("{text:?} is not a power of two from 4k to 16M")),
    }
}

fn parse_hash_block(text: &str) -> Result<u32, String> {
    let size = units::parse_size(text).map_err(|error| error.to_string())?;
    match u32::try_from(size) {
        Ok(size) if size.is_power_of_two() && BLOCK_SIZES.contains(&size) => Ok(size),
        _ => Err(format!("{text:?} is not a power of two from 4k to 64k")),
    }
}

impl Args {
    fn may_overwrite(&self) -> MayOverwrite {
        match &self.source {
            _ if self.force => MayOverwrite::Forced,
            Endpoint::Stream => MayOverwrite::Blank, // nobody can answer where the data comes from
            _ => MayOverwrite::OnAYes,
        }
    }
}

#[derive(Clone, Debug)]
enum Endpoint {
    Remote(Location),
    Path(PathBuf),
    Stream,
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "-" => Ok(Self::Stream),
            "" => Err("an empty path".to_owned()),
            url if Location::is_meant(url) || url.contains("://") => {
                parse_location(url).map(Self::Remote)
            }
            path => Ok(Self::Path(PathBuf::from(path))),
        }
    }
}

/// An endpoint that is a device now.
struct Opened {
    device: Device,
    remote: Option<Volume>,
    /// It is new and reads as zeroes.
    is_zero: bool,
    /// As the user knows it.
    name: String,
}

impl Opened {
    fn local(device: Device, is_zero: bool) -> Self {
        Self { device, remote: None, is_zero, name: String::new() }
    }

    async fn remote(url: &Location, args: &RemoteArgs) -> anyhow::Result<Self> {
        let volume = args.open(url).await?;
        let name = url.to_string();
        Ok(Self { device: volume.device(), remote: Some(volume), is_zero: false, name })
    }

    /// Nobody's data is overwritten unasked.
    async fn may_be_overwritten(&self, args: &Args) -> anyhow::Result<()> {
        if self.is_zero {
            return Ok(());
        }
        overwrite::device(&*self.device, &self.name, args.may_overwrite()).await
    }

    fn disk(&self) -> Option<&RemoteDisk> {
        self.remote.as_ref().and_then(Volume::disk)
    }

    fn connections(&self) -> usize {
        self.remote.as_ref().map_or(0, |remote| remote.backend().connection_count())
    }

    fn path(&self) -> Option<PathJson> {
        self.disk().map(|disk| PathJson::of(&disk.path()))
    }

    /// As a source.
    async fn close_unwritten(self) -> anyhow::Result<()> {
        match self.remote {
            Some(remote) => remote.close_unwritten().await,
            None => Ok(()),
        }
    }

    async fn close(self) -> anyhow::Result<()> {
        match self.remote {
            Some(remote) => remote.close().await,
            None => Ok(()),
        }
    }
}

#[derive(Debug, Default, Serialize)]
struct Report {
    bytes: u64,
    seconds: f64,
    bytes_per_s: f64,
    connections: usize,
    verified: bool,
    /// Of `bytes`, those that were zero and were not sent as data.
    zero_bytes: u64,
    /// Of the remote side; of the destination if both are.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_path: Option<PathJson>,
    /// With --changed-since.
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<changed::Changed>,
}

impl Report {
    /// Zeroes take no time to be sent, so a rate of all would be none of anything.
    fn text(&self) -> String {
        let took = format!("{} bytes in {:.2} s", self.bytes, self.seconds);
        let data = self.bytes.saturating_sub(self.zero_bytes);
        let rate = data as f64 / self.seconds / 1e6;
        match self.zero_bytes {
            0 => format!("{took}: {rate:.1} MB/s"),
            _ => format!("{took}: {data} bytes of data, {rate:.1} MB/s; the rest are zeroes"),
        }
    }
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let mut report = match &args.changed_since {
        Some(state) => changed::run(state, &args).await?,
        None => once(&args).await?,
    };
    if report.seconds == 0.0 {
        report.seconds = start.elapsed().as_secs_f64();
    }
    report.bytes_per_s = report.bytes as f64 / report.seconds;
    print(&report, &args)?;
    if let Some(differs) = report.changed.as_ref().and_then(changed::Changed::differs) {
        complain(&differs);
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Everything, whatever was copied before.
async fn once(args: &Args) -> anyhow::Result<Report> {
    match (&args.source, &args.destination) {
        (Endpoint::Stream, Endpoint::Stream) => {
            Err(Usage::error("SRC and DST are both -; one must be a volume or a path"))
        }
        (Endpoint::Stream, destination) => from_stdin(destination, args).await,
        (source, Endpoint::Stream) => to_stdout(source, args).await,
        (source, destination) => between(source, destination, args).await,
    }
}

async fn between(source: &Endpoint, destination: &Endpoint, args: &Args) -> anyhow::Result<Report> {
    let source = open_source(source, args).await?;
    let length = source.device.info().size;
    let destination = open_destination(destination, length, args).await?;
    let (have, block) = (destination.device.info().size, destination.device.info().block_size);
    // The last transfer has to end on a block of the destination.
    if length > have || !length.is_multiple_of(u64::from(block)) {
        return Err(Usage::error(format!(
            "the source of {length} bytes does not fit the destination of {have} bytes \
             (in blocks of {block})"
        )));
    }
    destination.may_be_overwritten(args).await?;
    let mut options = CopyOptions::new(length);
    options.transfer_size = args.block_size;
    options.depth = args.depth as usize;
    options.destination_is_zero = destination.is_zero;
    let bar = progress_bar(args, length, "copying");
    let _shown = Shown::new(&bar, "copying", [source.disk(), destination.disk()]);
    let start = Instant::now();
    let copied = copy(&source.device, &destination.device, &options, |step| advance(&bar, step))
        .await
        .context("copying")?;
    let seconds = start.elapsed().as_secs_f64();
    let connections = source.connections().max(destination.connections());
    let (source_path, path) = (source.path(), destination.path());
    bar.finish_and_clear();
    if args.verify {
        let bar = progress_bar(args, length, "comparing");
        let _shown = Shown::new(&bar, "comparing", [source.disk(), destination.disk()]);
        let compare = block::copy::verify;
        compare(&source.device, &destination.device, &options, |step| advance(&bar, step)).await?;
        bar.finish_and_clear();
    }
    source.close_unwritten().await?;
    destination.close().await?;
    Ok(Report {
        bytes: copied.bytes,
        seconds,
        connections,
        verified: args.verify,
        zero_bytes: copied.zero_bytes,
        source_path: source_path.clone().filter(|_| path.is_some()),
        path: path.or(source_path),
        ..Report::default()
    })
}

fn advance(bar: &ProgressBar, step: Progress) {
    let (Progress::Copied(n) | Progress::Verified(n)) = step;
    bar.inc(n);
}

async fn from_stdin(destination: &Endpoint, args: &Args) -> anyhow::Result<Report> {
    if args.verify {
        return Err(Usage::error("--verify needs a source that can be read twice, not -"));
    }
    let Endpoint::Remote(url) = destination else {
        return Err(Usage::error("copying - to a file is what cat is for; DST must be a volume"));
    };
    let destination = Opened::remote(url, &args.remote).await?;
    destination.may_be_overwritten(args).await?;
    let bar = progress_bar(args, 0, "copying");
    let _shown = Shown::new(&bar, "copying", [None, destination.disk()]);
    let bytes =
        copy_in(tokio::io::stdin(), &destination.device, &stream_options(args), |n| bar.inc(n))
            .await
            .context("copying")?;
    bar.finish_and_clear();
    let (connections, path) = (destination.connections(), destination.path());
    destination.close().await?;
    Ok(Report { bytes, connections, path, ..Report::default() })
}

async fn to_stdout(source: &Endpoint, args: &Args) -> anyhow::Result<Report> {
    if args.verify {
        return Err(Usage::error("--verify needs a destination that can be read, not -"));
    }
    let source = open_source(source, args).await?;
    let bytes = source.device.info().size;
    let bar = progress_bar(args, bytes, "copying");
    let _shown = Shown::new(&bar, "copying", [source.disk(), None]);
    let options = stream_options(args);
    copy_out(&source.device, bytes, tokio::io::stdout(), &options, |n| bar.inc(n))
        .await
        .context("copying")?;
    bar.finish_and_clear();
    let (connections, path) = (source.connections(), source.path());
    source.close_unwritten().await?;
    Ok(Report { bytes, connections, path, ..Report::default() })
}

fn stream_options(args: &Args) -> StreamOptions {
    StreamOptions { transfer_size: args.block_size, depth: args.depth as usize }
}

async fn open_source(source: &Endpoint, args: &Args) -> anyhow::Result<Opened> {
    let path = match source {
        Endpoint::Remote(url) => return Opened::remote(url, &args.remote).await,
        Endpoint::Path(path) => path,
        Endpoint::Stream => return Err(Usage::error("- is no device")),
    };
    Ok(Opened::local(image::open(path)?, false))
}

async fn open_destination(
    destination: &Endpoint,
    length: u64,
    args: &Args,
) -> anyhow::Result<Opened> {
    let path = match destination {
        Endpoint::Remote(url) => return Opened::remote(url, &args.remote).await,
        Endpoint::Path(path) => path,
        Endpoint::Stream => return Err(Usage::error("- is no device")),
    };
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(Usage::error(format!("{}: {error}", path.display()))),
    };
    if let (Some(there), Endpoint::Path(source)) = (&metadata, &args.source)
        && let Ok(source) = std::fs::metadata(source)
        && (source.dev(), source.ino()) == (there.dev(), there.ino())
    {
        return Err(Usage::error(format!("SRC and DST are both {}", path.display())));
    }
    let is_file = metadata.as_ref().is_none_or(std::fs::Metadata::is_file);
    if is_file && metadata.is_some_and(|metadata| metadata.len() > 0) {
        overwrite::existing_file(path, args.may_overwrite()).await?;
    }
    // What a file holds goes; removing the file would break links to it.
    let options = FileOptions::default().with_create(length).with_reset(length);
    let file = FileDevice::open(path, &options).map_err(|e| Usage::error(e.to_string()))?;
    let name = path.display().to_string();
    Ok(Opened { name, ..Opened::local(Arc::new(file), is_file) })
}

/// A bar on a terminal, nothing elsewhere.
fn progress_bar(args: &Args, length: u64, what: &'static str) -> ProgressBar {
    if args.json {
        return ProgressBar::hidden();
    }
    let known = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    let unknown = "{msg} {spinner} {bytes} {bytes_per_sec}";
    let template = if length > 0 { known } else { unknown };
    let style = ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ");
    let bar = ProgressBar::new(length).with_style(style).with_message(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Says beside the bar over how many connections it goes, as long as it lives.
struct Shown(Option<tokio::task::JoinHandle<()>>);

impl Shown {
    fn new(bar: &ProgressBar, what: &'static str, disks: [Option<&RemoteDisk>; 2]) -> Self {
        let disks: Vec<RemoteDisk> = disks.into_iter().flatten().cloned().collect();
        if bar.is_hidden() || disks.is_empty() {
            return Self(None);
        }
        let bar = bar.clone();
        Self(Some(tokio::spawn(async move {
            loop {
                let numbers = disks.iter().map(|disk| disk.connection_count().to_string());
                let numbers = numbers.collect::<Vec<_>>().join(" + ");
                bar.set_message(format!("{what} over {numbers} connection(s)"));
                tokio::time::sleep(SHOWN_INTERVAL).await;
            }
        })))
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.0.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

fn print(report: &Report, args: &Args) -> anyhow::Result<()> {
    let verified = if report.verified { ", verified" } else { "" };
    let text = match &report.changed {
        _ if args.json => serde_json::to_string(report)?,
        Some(changed) => changed.text(report) + verified,
        None => report.text() + verified,
    };
    if matches!(args.destination, Endpoint::Stream) {
        let _ = writeln!(io::stderr(), "{text}"); // stdout carries the data
        return Ok(());
    }
    say(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_data() {
        let full = Report { bytes: 8_000_000, seconds: 2.0, ..Report::default() };
        assert_eq!(full.text(), "8000000 bytes in 2.00 s: 4.0 MB/s");
        let thin = Report { zero_bytes: 6_000_000, ..full };
        assert_eq!(
            thin.text(),
            "8000000 bytes in 2.00 s: 2000000 bytes of data, 1.0 MB/s; the rest are zeroes"
        );
    }
}
