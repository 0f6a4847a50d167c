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
    shown(Command::new(program).args(words).current_dir(folder))
}

/// Runs a command; its output is shown.
pub(super) fn shown(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let status = command.status().with_context(|| missing(&program))?;
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
        "objcopy" | "readelf" => " (Debian: binutils)",
        "dpkg-shlibdeps" => " (Debian: dpkg-dev)",
        _ => "",
    };
    format!("cannot run {program}{package}")
}

/// Makes a folder that is empty.
pub(super) fn emptied(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())
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
        let file = to.with_extension("");
        tar("--create", &file, above, &[name.display().to_string()], 0)?;
        call(above, "gzip", ["-nf".as_ref(), file.as_os_str()])
    }

    /// What is at the top of it, sorted.
    pub(super) fn entries(&self) -> Result<Vec<String>> {
        let entries = fs::read_dir(&self.0).with_context(|| self.0.display().to_string())?;
        let names = entries.map(|entry| Ok(entry?.file_name().display().to_string()));
        let mut names = names.collect::<Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }
}

/// Makes a tarball of some files of a folder, or appends them: sorted, and all of one owner.
pub(super) fn tar(
    what: &str,
    to: &Path,
    folder: &Path,
    names: &[String],
    owner: u32,
) -> Result<()> {
    let mut command = Command::new("tar");
    command.args([what, "--sort=name", "--numeric-owner", "--format=gnu"]);
    command.args([format!("--owner={owner}"), format!("--group={owner}")]);
    done(command.arg("--file").arg(to).args(names).current_dir(folder)).map(drop)
}

/// A file's digest.
pub(super) fn sha256(file: &Path) -> Result<String> {
    let said = output(Path::new("."), "sha256sum", ["--zero".as_ref(), file.as_os_str()])?;
    Ok(said.split(' ').next().unwrap_or_default().to_owned())
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
