//! Programs that are called, and trees of files that are packed: the same each time.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a program in a folder; its output is shown.
pub(super) fn call<W: AsRef<OsStr>>(
    folder: &Path,
    program: &str,
    words: impl IntoIterator<Item = W>,
) -> Result<()> {
    let mut command = Command::new(program);
    let status = command.args(words).current_dir(folder).status();
    let status = status.with_context(|| missing(program))?;
    if !status.success() {
        bail!("{program} failed: {status}");
    }
    Ok(())
}

/// What a program prints.
pub(super) fn output<W: AsRef<OsStr>>(
    folder: &Path,
    program: &str,
    words: impl IntoIterator<Item = W>,
) -> Result<String> {
    let mut command = Command::new(program);
    let done = done(command.args(words).current_dir(folder))?;
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Runs a command; what it complained of is the error.
pub(super) fn done(command: &mut Command) -> Result<Output> {
    let program = command.get_program().display().to_string();
    let done = command.stdin(Stdio::null()).output().with_context(|| missing(&program))?;
    if !done.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(done)
}

fn missing(program: &str) -> String {
    let package = match program {
        "objcopy" => " (Debian: binutils)",
        "dpkg-shlibdeps" => " (Debian: dpkg-dev)",
        _ => "",
    };
    format!("cannot run {program}{package}")
}

/// A folder whose content is packed.
pub(super) struct Tree(PathBuf);

impl Tree {
    /// A new one.
    pub(super) fn new(top: PathBuf) -> Result<Self> {
        fs::create_dir_all(&top).with_context(|| top.display().to_string())?;
        Ok(Self(top))
    }

    /// One that is there.
    pub(super) fn of(top: PathBuf) -> Self {
        Self(top)
    }

    pub(super) fn top(&self) -> &Path {
        &self.0
    }

    /// Copies a file to a place in it.
    pub(super) fn add(&self, file: &Path, name: &str, mode: u32) -> Result<()> {
        let to = self.place(name)?;
        fs::copy(file, &to).with_context(|| format!("{}", file.display()))?;
        Ok(fs::set_permissions(&to, fs::Permissions::from_mode(mode))?)
    }

    /// Writes a file of it.
    pub(super) fn write(&self, name: &str, text: &[u8], mode: u32) -> Result<()> {
        let to = self.place(name)?;
        fs::write(&to, text).with_context(|| to.display().to_string())?;
        Ok(fs::set_permissions(&to, fs::Permissions::from_mode(mode))?)
    }

    fn place(&self, name: &str) -> Result<PathBuf> {
        let to = self.0.join(name);
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        Ok(to)
    }

    /// Makes `name.gz` of a file, without the time and name that gzip would keep.
    pub(super) fn compress(&self, name: &str) -> Result<()> {
        call(&self.0, "gzip", ["-9nf", name])
    }

    /// All files, by names that are relative to the top, sorted.
    pub(super) fn files(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        collect(&self.0, &self.0, &mut names)?;
        names.sort();
        Ok(names)
    }

    /// Sets modes of folders, which the umask of whoever runs this decides otherwise, and every
    /// time.
    pub(super) fn settle(&self, epoch: u64) -> Result<()> {
        call(&self.0, "find", [".", "-type", "d", "-exec", "chmod", "755", "{}", "+"])?;
        let at = format!("@{epoch}");
        call(&self.0, "find", [".", "-exec", "touch", "-h", "-d", &at, "{}", "+"])
    }

    /// A tarball with the folder as its one entry at the top.
    pub(super) fn pack(&self, to: &Path, epoch: u64) -> Result<()> {
        self.settle(epoch)?;
        let (Some(above), Some(name)) = (self.0.parent(), self.0.file_name()) else {
            bail!("{}: no folder to be packed", self.0.display());
        };
        let tar = to.with_extension("");
        let words = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"];
        let mut command = Command::new("tar");
        command.args(words).arg("-cf").arg(&tar).arg(name).current_dir(above);
        done(&mut command)?;
        let mut command = Command::new("gzip");
        done(command.arg("-nf").arg(&tar))?;
        Ok(())
    }
}

fn collect(top: &Path, folder: &Path, names: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            collect(top, &path, names)?;
        } else if let Ok(name) = path.strip_prefix(top) {
            names.push(name.display().to_string());
        }
    }
    Ok(())
}
