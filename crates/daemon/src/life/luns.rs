//! Logical units that are added, resized, removed and listed.
//!
//! What is behind one is never deleted, but for a file that was made for a unit which then was not
//! added.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

use backends::Location;
use block::BlockDevice;
use scsi::Lun;

use super::drop_in::{self, Text, check_name};
use super::{
    LunAdd, LunRemove, LunResize, LunSnapshot, LunView, Ready, Refused, Step, changed, file_of,
    is_new, ours, sources, the_target,
};
use crate::admin::Answer;
use crate::config::sources::drop_in_folder;
use crate::config::{Backing, Config, LunSection, TargetSection};
use crate::daemon::Daemon;
use crate::lun::RunningLun;
use crate::state::Changes;

/// How the drop-in of a unit begins.
const KIND: &str = "lun";

/// The tables in it. One that says more is not removed: it would take the rest with it.
const TABLES: [&str; 2] = [drop_in::TARGET, "[[target.lun]]"];

/// A unit of the configuration that is in force.
struct Found<'c> {
    target: &'c TargetSection,
    number: u16,
    lun: &'c LunSection,
}

impl Found<'_> {
    /// Which one it is, for people.
    fn what(&self) -> String {
        format!("LUN {} of {}", self.number, self.target.name)
    }

    fn running(&self, daemon: &Daemon) -> Option<RunningLun> {
        let state = daemon.lock();
        state.targets.get(&self.target.name)?.luns.get(&self.number).cloned()
    }

    /// Initiators whose sessions have worked with it.
    fn users(&self, daemon: &Daemon) -> Vec<String> {
        let state = daemon.lock();
        let target = state.targets.get(&self.target.name);
        let ports = target.map(|target| target.scsi.users(self.number)).unwrap_or_default();
        let name =
            |port: String| port.split_once(",i,").map_or(port.clone(), |(name, _)| name.into());
        ports.into_iter().map(name).collect()
    }

    /// Nobody has it in use.
    fn check_unused(&self, daemon: &Daemon, otherwise: &str) -> Result<(), String> {
        let mut users = self.users(daemon);
        users.sort();
        users.dedup();
        match users.is_empty() {
            true => Ok(()),
            false => Err(format!("{} is in use by {}; {otherwise}", self.what(), users.join(", "))),
        }
    }

    fn view(&self, daemon: &Daemon) -> LunView {
        let place = &self.lun.place;
        LunView {
            name: name_of(daemon, place.file()),
            target: self.target.name.clone(),
            lun: self.number,
            size_bytes: self.running(daemon).map(|running| running.stats.info().size),
            backing: self.lun.backing.describe(),
            read_only: self.lun.read_only,
            sessions: self.users(daemon).len(),
            file: place.file().to_owned(),
            line: place.line(),
        }
    }
}

fn all(config: &Config) -> impl Iterator<Item = Found<'_>> {
    config.targets.values().flat_map(|target| {
        let luns = target.luns.iter();
        luns.map(move |(number, lun)| Found { target, number: *number, lun })
    })
}

/// What a unit is called, by its drop-in.
fn name_of(daemon: &Daemon, file: &Path) -> Option<String> {
    let name = file.strip_prefix(drop_in_folder(daemon.config_path())).ok()?.to_str()?;
    let name = name.strip_prefix(KIND)?.strip_prefix('-')?.strip_suffix(".toml")?;
    Some(name.to_owned())
}

/// The unit that is meant: by its name, or as TARGET/LUN.
fn find<'c>(daemon: &Daemon, config: &'c Config, name: &str) -> Result<Found<'c>, String> {
    let found = match name.rsplit_once('/') {
        Some((target, number)) => {
            let (target, number) = (target.to_lowercase(), number.parse::<u16>().ok());
            all(config).find(|one| one.target.name == target && Some(one.number) == number)
        }
        None => {
            let file = file_of(daemon, KIND, name);
            all(config).find(|one| one.lun.place.file() == file)
        }
    };
    found.ok_or_else(|| {
        format!("there is no LUN {name:?}; `enkaku target lun list` has their names, or TARGET/LUN")
    })
}

/// All units.
pub(crate) fn list(daemon: &Daemon) -> Answer {
    let config = daemon.config();
    let luns = all(&config).map(|found| found.view(daemon)).collect();
    Answer { luns: Some(luns), ..Answer::ok() }
}

/// Serves one more.
pub(crate) fn add(daemon: &Daemon, asked: &LunAdd) -> Result<Answer, Refused> {
    check_name("LUN", &asked.name)?;
    check_path(asked)?;
    let config = daemon.config();
    let (target, number) = match asked.new_target {
        true => (new_target(&config, asked.target.as_deref())?, asked.lun.unwrap_or(0)),
        false => place(the_target(&config, asked.target.as_deref())?, asked.lun)?,
    };
    let file = file_of(daemon, KIND, &asked.name);
    let sources = sources(daemon)?;
    is_new(&sources, &file)?;
    let made = Made::before(asked)?;
    let step = Step { file, text: Some(text(asked, &target, number)) };
    let added = Ready::new(daemon, sources, Some(step)).and_then(|ready| {
        match ready.plan.why_unserved(&target, number).map(str::to_owned) {
            Some(why) => Err(why.into()),
            None => ready.finish(),
        }
    });
    let changes = match added {
        Ok(changes) => changes,
        Err(refused) => {
            made.remove();
            return Err(refused);
        }
    };
    let config = daemon.config();
    let view = find(daemon, &config, &asked.name)?.view(daemon);
    Ok(Answer { luns: Some(vec![view]), ..changed(changes) })
}

/// Where a unit belongs in a target that is there.
fn place(target: &TargetSection, asked: Option<u16>) -> Result<(String, u16), String> {
    let free = || (0..=Lun::MAX).find(|number| !target.luns.contains_key(number));
    let number = asked.or_else(free);
    let number = number.ok_or_else(|| format!("{} has no number left", target.name))?;
    Ok((target.name.clone(), number))
}

/// The name of a target that a unit brings with it.
fn new_target(config: &Config, asked: Option<&str>) -> Result<String, String> {
    let name = asked.ok_or("target: a new one wants a name")?;
    let name =
        iscsi_proto::names::check_name(name).map_err(|error| format!("{name:?}: {error}"))?;
    match config.targets.get(&name) {
        None => Ok(name),
        Some(target) => Err(format!("the target {name} is there already ({})", target.place.at())),
    }
}

/// What only the one who asks can mean.
fn check_path(asked: &LunAdd) -> Result<(), String> {
    let path = &asked.path;
    let is_file = !Location::is_meant(path) && !path.starts_with("mem:");
    if is_file && !path.starts_with('/') {
        return Err(format!(
            "path: {path:?} is not allowed (a path that begins with /, mem:SIZE or a URL is)"
        ));
    }
    if !is_file && asked.create.is_some() {
        return Err(format!("create: {path} is no file that could be made"));
    }
    Ok(())
}

fn text(asked: &LunAdd, target: &str, number: u16) -> String {
    let text = Text::of("lun add").table(drop_in::TARGET).text("name", target);
    let text = if asked.new_target { text.line("anyone = false") } else { text };
    text.table("[[target.lun]]")
        .number("number", number)
        .text("path", &asked.path)
        .size_if("create", asked.create)
        .flag("read_only", asked.read_only)
        .number_if("block_size", asked.block_size)
        .flag("direct", asked.direct)
        .text_if("serial", asked.serial.as_ref())
        .flag("exclusive", asked.exclusive)
        .text_if("max_rate", asked.max_rate.as_ref())
        .number_if("max_iops", asked.max_iops)
        .into_string()
}

/// A file that is made for a unit, and is ours to remove as long as nobody has seen it.
struct Made(Option<(PathBuf, u64)>);

impl Made {
    /// Looks at what is there before.
    ///
    /// # Errors
    /// There is something, and it has another size.
    fn before(asked: &LunAdd) -> Result<Self, String> {
        let Some(create) = asked.create else { return Ok(Self(None)) };
        let path = PathBuf::from(&asked.path);
        match fs::metadata(&path) {
            Ok(there) if there.is_file() && there.len() == create => Ok(Self(None)),
            Ok(there) if there.is_file() => Err(format!(
                "create: {} is there and has {} bytes, not {create}; \
                 without create it is served as it is",
                path.display(),
                there.len()
            )),
            Ok(_) => Err(format!("create: {} is there and is no regular file", path.display())),
            Err(_) => Ok(Self(Some((path, create)))),
        }
    }

    /// The unit was not added.
    fn remove(self) {
        let Some((path, size)) = self.0 else { return };
        let is_blank = |there: fs::Metadata| there.len() == size && there.st_blocks() == 0;
        // A file in which something stands is somebody's.
        if fs::symlink_metadata(&path).is_ok_and(is_blank) {
            let _gone_already = fs::remove_file(&path);
        }
    }
}

/// Serves one no more.
pub(crate) fn remove(daemon: &Daemon, asked: &LunRemove) -> Result<Answer, Refused> {
    let config = daemon.config();
    let found = find(daemon, &config, &asked.name)?;
    let sources = sources(daemon)?;
    let text = ours(&sources, &found.lun.place, &found.what())?;
    let file = found.lun.place.file().to_owned();
    if drop_in::tables(text) != TABLES {
        let what = "says more than this LUN by now: edit it, then `enkaku target reload`";
        return Err(format!("{} {what}", file.display()).into());
    }
    if !asked.force {
        found
            .check_unused(daemon, "log out there first, or take it away all the same (--force)")?;
    }
    let ready = Ready::new(daemon, sources, Some(Step { file, text: None }))?;
    Ok(changed(ready.finish()?))
}

/// Gives one another size.
pub(crate) fn resize(daemon: &Daemon, asked: &LunResize) -> Result<Answer, Refused> {
    let config = daemon.config();
    let found = find(daemon, &config, &asked.name)?;
    let sources = sources(daemon)?;
    let what = found.what();
    let text = ours(&sources, &found.lun.place, &what)?;
    let Backing::Path(path) = &found.lun.backing else {
        let backing = found.lun.backing.describe();
        return Err(format!("{what} is {backing}, which is resized where it is").into());
    };
    let running = found.running(daemon);
    let file = running.as_ref().and_then(RunningLun::file);
    let file =
        file.ok_or_else(|| format!("{what} is not served; `enkaku target status` says why"))?;
    let info = file.info();
    check_size(&found, asked, info.size, info.block_size)?;
    let shrinks = asked.size < info.size;
    if shrinks {
        found.check_unused(daemon, "what is cut off would be missed: log out there first")?;
    }
    let now = file.size_now().map_err(|error| format!("{}: {error}", path.display()))?;
    let text = found.lun.create.map(|_| drop_in::with_create(text, asked.size));
    let step = text.map(|text| Step { file: found.lun.place.file().to_owned(), text: Some(text) });
    let ready = Ready::new(daemon, sources, step)?;
    let give = || {
        let given = file.resize(asked.size);
        given.map_err(|error| Refused::from(format!("{}: {error}", path.display())))
    };
    let changes = if shrinks {
        // What is cut off cannot be given back: everything else that can fail comes first.
        let mut changes = ready.finish()?;
        give()?;
        if let Some(target) = daemon.lock().targets.get(&found.target.name) {
            let _ = target.scsi.capacity_changed(found.number); // it is there
        }
        changes.lines.push(format!("{what}: cut to {} bytes", asked.size));
        changes
    } else {
        // Nobody has been told of the new size yet.
        give().and_then(|()| ready.finish()).inspect_err(|_| drop(file.resize(now)))?
    };
    let view = found.view(daemon);
    Ok(Answer { luns: Some(vec![view]), ..changed(changes) })
}

fn check_size(
    found: &Found<'_>,
    asked: &LunResize,
    size: u64,
    block_size: u32,
) -> Result<(), String> {
    let (what, wanted) = (found.what(), asked.size);
    if wanted == 0 || !wanted.is_multiple_of(u64::from(block_size)) {
        return Err(format!(
            "size: {wanted} bytes are not allowed (whole blocks of {block_size} bytes are)"
        ));
    }
    if found.lun.read_only {
        return Err(format!("{what} is read-only, and so open here"));
    }
    if wanted < size && !asked.shrink {
        return Err(format!(
            "{what} has {size} bytes; --shrink cuts it to {wanted}, and what is behind is lost"
        ));
    }
    Ok(())
}

/// Keeps what the file behind one holds now. Whoever said the unit, nothing changes for it.
pub(crate) fn snapshot(daemon: &Daemon, asked: &LunSnapshot) -> Result<Answer, Refused> {
    let config = daemon.config();
    let found = find(daemon, &config, &asked.name)?;
    if !asked.file.starts_with('/') {
        return Err(format!("file: {:?} is no path that begins with /", asked.file).into());
    }
    let running = found.running(daemon);
    let what = found.what();
    let file = running.as_ref().and_then(RunningLun::file);
    let file = file.ok_or_else(|| format!("{what} has no file behind it that could be kept"))?;
    let kept = file.snapshot(Path::new(&asked.file));
    kept.map_err(|error| format!("{}: {error}", asked.file))?;
    let lines = vec![format!("{what}: kept as it is now in {}", asked.file)];
    Ok(changed(Changes { lines, dropped: 0 }))
}
