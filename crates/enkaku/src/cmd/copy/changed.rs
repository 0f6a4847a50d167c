//! `enkaku copy --changed-since STATE`: finds both ends and the state file, and refuses what does
//! not belong together. What is copied in which order is `block::incremental`'s.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use block::Device;
use block::backend::{FileDevice, FileOptions};
use block::incremental::{
    self, Among, Checked, NewState, Options, Pair, Phase, Salt, State, Updated, file_bytes,
};
use serde::Serialize;

use super::{Args, Endpoint, Opened, Report, Shown, open_source, progress_bar};
use crate::cmd::Usage;
use crate::cmd::overwrite::{self, MayOverwrite};

/// What a copy of changes did: the object `changed` of the report (docs/copy.md).
#[derive(Debug, Serialize)]
pub(super) struct Changed {
    state: String,
    /// Runs that have ended well, this one included.
    run: u64,
    /// A run before had begun and not ended.
    resumed: bool,
    block_bytes: u32,
    read_bytes: u64,
    same_bytes: u64,
    sent_bytes: u64,
    zero_bytes: u64,
    damaged_pages: u64,
    /// What `--seeded` read of the destination.
    seeded_bytes: u64,
    verify: Option<Verified>,
}

#[derive(Debug, Serialize)]
struct Verified {
    compared_bytes: u64,
    mismatches: u64,
    healed: u64,
    offsets: Vec<u64>,
}

impl Changed {
    /// For people, without the end of the line.
    pub(super) fn text(&self, report: &Report) -> String {
        let Self { run, state, read_bytes, sent_bytes, zero_bytes, .. } = self;
        let resumed = if self.resumed { ", taken up again" } else { "" };
        let mut text = format!(
            "{} bytes in {:.2} s: {read_bytes} read, {sent_bytes} sent, {zero_bytes} zeroed (run \
             {run} of {state}{resumed})",
            report.bytes, report.seconds,
        );
        if self.damaged_pages > 0 {
            text += &format!("; damaged pages of the state file: {}", self.damaged_pages);
        }
        text
    }

    /// The verification found what is not healed.
    pub(super) fn differs(&self) -> Option<String> {
        let found = self.verify.as_ref().filter(|found| found.mismatches > found.healed)?;
        let more = if found.offsets.len() as u64 == found.mismatches { "" } else { ", …" };
        let at: Vec<String> = found.offsets.iter().map(u64::to_string).collect();
        Some(format!(
            "{} blocks of {} bytes at DST are not what was copied there (at byte {}{more}): \
             somebody else writes to it, or it is failing; the next run sends them again, --heal \
             does so at once",
            found.mismatches,
            self.block_bytes,
            at.join(", ")
        ))
    }
}

/// Runs it.
pub(super) async fn run(path: &Path, args: &Args) -> anyhow::Result<Report> {
    let (source, destination) = (&args.source, &args.destination);
    if matches!(source, Endpoint::Stream) || matches!(destination, Endpoint::Stream) {
        return Err(Usage::error("--changed-since needs a SRC and a DST that can be read, not -"));
    }
    not_an_end(path, args)?;
    let source = open_source(source, args).await?;
    let length = source.device.info().size;
    let pair = Pair {
        source: name_of(&args.source)?,
        destination: name_of(destination)?,
        identity: String::new(),
    };
    let mut copy = match metadata_of(path)? {
        None => Copy::first(path, source, length, pair, args).await?,
        Some(_) => Copy::again(path, source, length, pair, args).await?,
    };
    let start = Instant::now();
    let report = copy.update(path, args, start).await;
    // What has failed is said, not that the other end could not be left in peace, too.
    let report = report?;
    copy.source.close().await?;
    copy.destination.close().await?;
    Ok(report)
}

/// Both ends and what is known of them.
struct Copy {
    source: Opened,
    destination: Opened,
    state: State,
    resumed: bool,
}

impl Copy {
    /// There is no state file yet.
    async fn first(
        path: &Path,
        source: Opened,
        length: u64,
        mut pair: Pair,
        args: &Args,
    ) -> anyhow::Result<Self> {
        let is_file = is_regular(&args.destination)?;
        // What is not a file has to be there, and a file that is seeded, too.
        let there = if is_file && !args.seeded { None } else { Some(open_there(args).await?) };
        match &there {
            Some(_) if args.seeded => {}
            Some(there) => there.may_be_overwritten(args).await?,
            None => new_file(&args.destination, args.may_overwrite()).await?,
        }
        let block = args.hash_block.unwrap_or(BLOCK_BYTES);
        let destination_block = there.as_ref().map_or(512, |there| there.device.info().block_size);
        fits(length, there.as_ref().map(|there| &there.device))?;
        if block < source.device.info().block_size.max(destination_block) {
            return Err(Usage::error(format!(
                "--hash-block {block} is less than a block of SRC or DST"
            )));
        }
        let mut phase = Phase::Preparing;
        if let Some(there) = &there {
            (phase, pair.identity) = (Phase::UnderWay, identity(there, &args.destination)?);
        }
        let mut salt = [0; 16];
        getrandom::fill(&mut salt).context("drawing a salt for hashes")?;
        let new = NewState { salt: Salt(salt), length, block_bytes: block, phase, pair };
        let mut state = create(path, new).await?;
        let destination = match there {
            Some(there) => there,
            None => make_file(&mut state, &args.destination, length).await?,
        };
        Ok(Self { source, destination, state, resumed: false })
    }

    /// There is one.
    async fn again(
        path: &Path,
        source: Opened,
        length: u64,
        mut pair: Pair,
        args: &Args,
    ) -> anyhow::Result<Self> {
        let options = FileOptions::default();
        let file = FileDevice::open(path, &options).map_err(|e| Usage::error(e.to_string()))?;
        let shown = path.display();
        let wrong = |error| match error {
            incremental::StateError::Device(_) => anyhow::anyhow!("{shown}: {error}"),
            _ => Usage::error(format!("{shown} {error}; without it, a new copy is begun")),
        };
        let mut state = State::open(Arc::new(file)).await.map_err(wrong)?;
        state.check_names(length, &pair, args.force).map_err(wrong)?;
        let block = state.header().block_bytes;
        if args.hash_block.is_some_and(|wanted| wanted != block) {
            return Err(Usage::error(format!(
                "{shown} has hashes of blocks of {block} bytes; --hash-block is for the first run"
            )));
        }
        if state.header().phase == Phase::Preparing {
            let destination = make_file(&mut state, &args.destination, length).await?;
            return Ok(Self { source, destination, state, resumed: true });
        }
        let destination = open_there(args).await.map_err(|error| {
            let gone = matches!(&args.destination, Endpoint::Path(path) if !path.exists());
            match gone {
                true => Usage::error(format!(
                    "{}: it is gone, and {shown} says that it holds a copy; is it mounted? (to \
                     begin a new copy, remove {shown})",
                    pair.destination
                )),
                false => error,
            }
        })?;
        pair.identity = identity(&destination, &args.destination)?;
        state.check_identity(&pair).map_err(|error| {
            Usage::error(format!(
                "{shown} {error}: DST is not what it was; if it holds a copy of it, remove \
                 {shown} and begin with --seeded"
            ))
        })?;
        fits(length, Some(&destination.device))?;
        let resumed = state.header().phase != Phase::Complete;
        Ok(Self { source, destination, state, resumed })
    }

    async fn update(&mut self, path: &Path, args: &Args, start: Instant) -> anyhow::Result<Report> {
        let header = self.state.header().clone();
        let options = Options {
            transfer_size: args.block_size.max(header.block_bytes),
            depth: args.depth as usize,
            ..Options::default()
        };
        let mut seeded_bytes = 0;
        if args.seeded {
            seeded_bytes = self.learn(args, &options).await?.bytes;
        } else if header.runs == 0 && !self.resumed {
            // What is a hole there is zero; it costs nothing to know.
            incremental::learn_holes(&self.destination.device, &self.state, &options).await?;
        }
        self.state.begin().await?;
        let done = self.copy(args, &options, Among::All, "copying").await?;
        self.state.complete(now_ms()).await?;
        let seconds = start.elapsed().as_secs_f64();
        let verify = if args.verify { Some(self.verify(args, &options).await?) } else { None };
        let Updated { read_bytes, same_bytes, sent_bytes, zero_bytes, damaged_pages } = done;
        let (source_path, path_json) = (self.source.path(), self.destination.path());
        Ok(Report {
            bytes: header.length,
            seconds,
            connections: self.source.connections().max(self.destination.connections()),
            verified: verify.as_ref().is_some_and(|found| found.mismatches == found.healed),
            zero_bytes,
            source_path: source_path.clone().filter(|_| path_json.is_some()),
            path: path_json.or(source_path),
            changed: Some(Changed {
                state: path.display().to_string(),
                run: self.state.header().runs,
                resumed: self.resumed,
                block_bytes: header.block_bytes,
                read_bytes,
                same_bytes,
                sent_bytes,
                zero_bytes,
                damaged_pages,
                seeded_bytes,
                verify,
            }),
            ..Report::default()
        })
    }

    async fn learn(&self, args: &Args, options: &Options) -> anyhow::Result<Checked> {
        let bar = progress_bar(args, self.state.header().length, "reading DST");
        let _shown = Shown::new(&bar, "reading DST", [None, self.destination.disk()]);
        let destination = &self.destination.device;
        let learnt = incremental::learn(destination, &self.state, options, |n| bar.inc(n));
        let learnt = learnt.await.context("reading DST")?;
        bar.finish_and_clear();
        Ok(learnt)
    }

    async fn copy(
        &self,
        args: &Args,
        options: &Options,
        among: Among,
        what: &'static str,
    ) -> anyhow::Result<Updated> {
        let bar = progress_bar(args, self.state.header().length, what);
        let _shown = Shown::new(&bar, what, [self.source.disk(), self.destination.disk()]);
        let (source, destination) = (&self.source.device, &self.destination.device);
        let progress = |n| bar.inc(n);
        let done = incremental::update(source, destination, &self.state, options, among, progress);
        let done = done.await.context(what)?;
        bar.finish_and_clear();
        Ok(done)
    }

    /// Reads DST, and sends what is not what it should be, if that is wanted.
    async fn verify(&mut self, args: &Args, options: &Options) -> anyhow::Result<Verified> {
        let bar = progress_bar(args, self.state.header().length, "comparing");
        let shown = Shown::new(&bar, "comparing", [None, self.destination.disk()]);
        let destination = &self.destination.device;
        let found = incremental::verify(destination, &self.state, options, |n| bar.inc(n));
        let found = found.await.context("comparing")?;
        bar.finish_and_clear();
        drop(shown);
        let mut healed = 0;
        if found.mismatches > 0 {
            self.state.begin().await?; // DST is not what the source was
        }
        if found.mismatches > 0 && args.heal {
            self.copy(args, options, Among::Unknown, "healing").await?;
            self.state.set(|header| header.phase = Phase::Complete).await?;
            healed = found.mismatches;
        }
        let Checked { bytes, mismatches, offsets } = found;
        Ok(Verified { compared_bytes: bytes, mismatches, healed, offsets })
    }
}

/// Blocks with a hash where the user does not say: 256 MiB of hashes for a TiB.
const BLOCK_BYTES: u32 = 64 << 10;

/// The state file must not be what is copied.
fn not_an_end(path: &Path, args: &Args) -> anyhow::Result<()> {
    let Some(state) = metadata_of(path)? else { return Ok(()) };
    for (end, what) in [(&args.source, "SRC"), (&args.destination, "DST")] {
        let Endpoint::Path(end) = end else { continue };
        let same = |end: Metadata| (end.dev(), end.ino()) == (state.dev(), state.ino());
        if metadata_of(end)?.is_some_and(same) {
            let shown = path.display();
            return Err(Usage::error(format!("--changed-since {shown} is {what} itself")));
        }
    }
    let both = [&args.source, &args.destination].map(|end| match end {
        Endpoint::Path(path) => metadata_of(path),
        _ => Ok(None),
    });
    let [source, destination] = both;
    if let (Some(source), Some(destination)) = (source?, destination?)
        && (source.dev(), source.ino()) == (destination.dev(), destination.ino())
    {
        return Err(Usage::error("SRC and DST are the same file"));
    }
    Ok(())
}

fn metadata_of(path: &Path) -> anyhow::Result<Option<Metadata>> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Usage::error(format!("{}: {error}", path.display()))),
    }
}

/// As it is compared from run to run: without the user's name.
fn name_of(end: &Endpoint) -> anyhow::Result<String> {
    match end {
        Endpoint::Remote(location) => Ok(location.key()),
        Endpoint::Path(path) => {
            let path = std::path::absolute(path)?;
            let text = path.to_str().map(str::to_owned);
            text.ok_or_else(|| Usage::error(format!("{} is not UTF-8", path.display())))
        }
        Endpoint::Stream => Err(Usage::error("- is no device")),
    }
}

/// Whether it is a regular file, or will be one.
fn is_regular(end: &Endpoint) -> anyhow::Result<bool> {
    match end {
        Endpoint::Path(path) => Ok(metadata_of(path)?.is_none_or(|there| there.is_file())),
        _ => Ok(false),
    }
}

/// What tells DST from another one under its name.
fn identity(opened: &Opened, end: &Endpoint) -> anyhow::Result<String> {
    if let Some(disk) = opened.disk() {
        let unit = disk.identity();
        return Ok(if unit.name.is_empty() { unit.serial } else { unit.name });
    }
    match end {
        Endpoint::Path(path) => {
            let there = metadata_of(path)?.filter(Metadata::is_file);
            Ok(there.map_or_else(String::new, |there| format!("inode {}", there.ino())))
        }
        _ => Ok(String::new()),
    }
}

/// DST as it is.
async fn open_there(args: &Args) -> anyhow::Result<Opened> {
    match &args.destination {
        Endpoint::Remote(url) => Opened::remote(url, &args.remote).await,
        Endpoint::Path(path) => {
            let file = FileDevice::open(path, &FileOptions::default());
            let file = file.map_err(|error| Usage::error(error.to_string()))?;
            let name = path.display().to_string();
            Ok(Opened { name, ..Opened::local(Arc::new(file), false) })
        }
        Endpoint::Stream => Err(Usage::error("- is no device")),
    }
}

/// A file that is made later, or replaced.
async fn new_file(end: &Endpoint, may: MayOverwrite) -> anyhow::Result<()> {
    let Endpoint::Path(path) = end else { return Ok(()) };
    if metadata_of(path)?.is_some_and(|there| there.len() > 0) {
        overwrite::existing_file(path, may).await?;
    }
    // The state file would be made for nothing.
    let folder = std::path::absolute(path)?;
    match folder.parent() {
        Some(folder) if !folder.is_dir() => Err(Usage::error(format!(
            "{}: there is no folder {} to create it in",
            path.display(),
            folder.display()
        ))),
        _ => Ok(()),
    }
}

/// Makes the file that the state file says is being made; its holes are known to be zero then.
async fn make_file(state: &mut State, end: &Endpoint, length: u64) -> anyhow::Result<Opened> {
    let Endpoint::Path(path) = end else {
        return Err(Usage::error("the state file says that DST is a file; it is none now"));
    };
    let options = FileOptions::default().with_create(length).with_reset(length);
    let file = FileDevice::open(path, &options).map_err(|e| Usage::error(e.to_string()))?;
    let opened = Opened { name: path.display().to_string(), ..Opened::local(Arc::new(file), true) };
    let identity = identity(&opened, end)?;
    incremental::learn_holes(&opened.device, state, &Options::default()).await?;
    state
        .set(|header| {
            (header.phase, header.pair.identity) = (Phase::UnderWay, identity);
        })
        .await?;
    Ok(opened)
}

/// The last block has to end on a block of DST.
fn fits(length: u64, destination: Option<&Device>) -> anyhow::Result<()> {
    let Some(info) = destination.map(|destination| destination.info()) else { return Ok(()) };
    let (have, block) = (info.size, info.block_size);
    if length > have || !length.is_multiple_of(u64::from(block)) {
        return Err(Usage::error(format!(
            "the source of {length} bytes does not fit the destination of {have} bytes (in blocks \
             of {block})"
        )));
    }
    Ok(())
}

/// Makes a state file. It is made beside its place, so that a half made one is never taken for one.
async fn create(path: &Path, new: NewState) -> anyhow::Result<State> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = Path::new(&beside);
    let bytes = file_bytes(new.length, new.block_bytes);
    let options = FileOptions::default().with_create(bytes).with_reset(bytes);
    let file = FileDevice::open(beside, &options).map_err(|e| Usage::error(e.to_string()))?;
    let made = async {
        let state = State::create(Arc::new(file), new).await?;
        std::fs::rename(beside, path)?;
        sync_folder(path)?;
        Ok::<State, anyhow::Error>(state)
    };
    made.await.map_err(|error| {
        let _best_effort = std::fs::remove_file(beside);
        match error.downcast::<incremental::StateError>() {
            Ok(error @ incremental::StateError::Device(_)) => error.into(),
            Ok(error) => Usage::error(error.to_string()),
            Err(error) => error.context(format!("making {}", path.display())),
        }
    })
}

/// The name of a file that is to be there after a power cut.
fn sync_folder(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match std::fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all() {
        // Some file systems have no fsync for folders.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        result => result,
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
