//! Where the files of a mirror are: its configuration, its control socket, its metadata.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use super::config::MirrorConfig;
use crate::whole_file;

/// Folders of a mirror that root runs.
const CONFIG_OF_ROOT: &str = "/etc/enkaku/mirrors";
const SOCKETS_OF_ROOT: &str = "/run/enkaku";
const STATE_OF_ROOT: &str = "/var/lib/enkaku";

/// Mode of a mirror's configuration: its owner's alone.
pub(super) const CONFIG_MODE: u32 = 0o600;

/// Longest name of a mirror: it is part of file names.
const NAME_LEN_MAX: usize = 64;

/// A socket's name is the mirror's between these.
const SOCKET_PREFIX: &str = "mirror-";
const SOCKET_SUFFIX: &str = ".sock";

/// Longest path of a socket in bytes (`sun_path` of unix(7), with a zero at its end).
const SOCKET_PATH_LEN_MAX: usize = 107;

/// A mirror by its name, and the folder of its configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    name: String,
    config: PathBuf,
    socket: PathBuf,
    state: PathBuf,
}

/// What of the surroundings decides where files are.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The user is root.
    pub root: bool,
    /// `$XDG_CONFIG_HOME`, else `$HOME/.config`.
    pub config_home: Option<PathBuf>,
    /// `$XDG_RUNTIME_DIR`.
    pub runtime: Option<PathBuf>,
    /// `$XDG_STATE_HOME`, else `$HOME/.local/state`.
    pub state_home: Option<PathBuf>,
}

impl Surroundings {
    /// Those of this process.
    pub fn of_this_process() -> Self {
        let folder = |name: &str| {
            let value = std::env::var_os(name).map(PathBuf::from);
            value.filter(|path| path.is_absolute()) // others are to be ignored (XDG)
        };
        let home = folder("HOME");
        let below_home = |rest: &str| home.as_ref().map(|home| home.join(rest));
        Self {
            root: own_uid() == Some(0),
            config_home: folder("XDG_CONFIG_HOME").or_else(|| below_home(".config")),
            runtime: folder("XDG_RUNTIME_DIR"),
            state_home: folder("XDG_STATE_HOME").or_else(|| below_home(".local/state")),
        }
    }

    fn config_folder(&self) -> Result<PathBuf, String> {
        match &self.config_home {
            _ if self.root => Ok(CONFIG_OF_ROOT.into()),
            Some(home) => Ok(home.join("enkaku/mirrors")),
            None => Err("neither XDG_CONFIG_HOME nor HOME says where configurations are; \
                         give --config-dir"
                .into()),
        }
    }
}

/// The effective user of this process, as the kernel tells it.
pub(crate) fn own_uid() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok() // real, effective, saved, of file systems
}

/// Checks the name of a mirror.
///
/// # Errors
/// What would be allowed.
pub fn check_name(name: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let good = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(plain)
        && name.len() <= NAME_LEN_MAX;
    good.then(|| name.to_owned()).ok_or_else(|| {
        format!(
            "{name:?} is no name of a mirror (allowed: letters, digits, '.', '-' and '_', at most \
             {NAME_LEN_MAX}, a letter or digit first)"
        )
    })
}

impl Files {
    /// Those of the mirror `name`. With a folder of one's own, the socket is beside the
    /// configuration there.
    ///
    /// # Errors
    /// There is no folder for them, or the socket's path is longer than one can be.
    pub fn new(name: &str, folder: Option<&Path>, around: &Surroundings) -> Result<Self, String> {
        let (config_folder, sockets) = folders(folder, around)?;
        let state = match &around.state_home {
            Some(home) if !around.root => home.join("enkaku"),
            _ => STATE_OF_ROOT.into(),
        };
        let socket = sockets.join(format!("{SOCKET_PREFIX}{name}{SOCKET_SUFFIX}"));
        let length = socket.as_os_str().len();
        if length > SOCKET_PATH_LEN_MAX {
            return Err(format!(
                "the control socket {} would have {length} bytes; the path of a socket may have \
                 {SOCKET_PATH_LEN_MAX}: give a --config-dir with a shorter path",
                socket.display()
            ));
        }
        let config = config_folder.join(format!("{name}.toml"));
        Ok(Self { name: name.to_owned(), config, socket, state })
    }

    /// Those of all mirrors whose sockets are there, by name. A mirror that was killed may have
    /// left one.
    ///
    /// # Errors
    /// There is no folder for them, or it cannot be read.
    pub fn of_sockets(folder: Option<&Path>, around: &Surroundings) -> Result<Vec<Self>, String> {
        let (_, sockets) = folders(folder, around)?;
        let failed = |error: io::Error| format!("{}: {error}", sockets.display());
        let entries = match std::fs::read_dir(&sockets) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let file = entry.map_err(failed)?.file_name();
            let name = file.to_str().and_then(|file| file.strip_prefix(SOCKET_PREFIX));
            let name = name.and_then(|name| name.strip_suffix(SOCKET_SUFFIX));
            // Others' files are none of ours.
            if let Some(name) = name.and_then(|name| check_name(name).ok()) {
                found.push(Self::new(&name, folder, around)?);
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// The mirror's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The configuration.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// The control socket, which is there while the mirror runs.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The mirror among those whose configurations are beside this one whose metadata are at
    /// `path`, and its local disk.
    pub fn with_metadata(&self, path: &Path) -> Option<(String, PathBuf)> {
        let folder = std::fs::read_dir(self.config.parent()?).ok()?;
        let mut texts: Vec<PathBuf> = folder.flatten().map(|entry| entry.path()).collect();
        texts.retain(|file| file.extension() == Some(OsStr::new("toml")));
        texts.sort();
        texts.into_iter().find_map(|file| {
            let config = MirrorConfig::load(&file).ok()?;
            let name = file.file_stem()?.to_str()?.to_owned();
            (config.metadata == path).then_some((name, config.local))
        })
    }

    /// Where the metadata goes unless told otherwise: beside a local image, else into the folder
    /// for what has to outlive a restart.
    pub fn metadata_of(&self, local: &Path) -> PathBuf {
        if std::fs::metadata(local).is_ok_and(|metadata| metadata.is_file()) {
            let mut beside = local.file_name().unwrap_or(OsStr::new("local")).to_owned();
            beside.push(".mirror");
            return local.with_file_name(beside);
        }
        self.state.join(format!("{}.mirror", self.name))
    }

    /// Writes the configuration: whole or not at all, and readable by its owner only.
    ///
    /// # Errors
    /// The system's.
    pub fn write_config(&self, text: &str) -> io::Result<()> {
        make_folder_of(&self.config)?;
        let beside = self.config.with_extension(format!("toml.{}", std::process::id()));
        whole_file::replace(&self.config, &beside, CONFIG_MODE, text)
    }
}

/// Where configurations and sockets are.
fn folders(folder: Option<&Path>, around: &Surroundings) -> Result<(PathBuf, PathBuf), String> {
    if let Some(folder) = folder {
        let folder = std::path::absolute(folder);
        let folder = folder.map_err(|error| format!("--config-dir: {error}"))?;
        return Ok((folder.clone(), folder));
    }
    let config_folder = around.config_folder()?;
    let sockets = match &around.runtime {
        _ if around.root => SOCKETS_OF_ROOT.into(),
        Some(runtime) => runtime.join("enkaku"),
        None => config_folder.clone(),
    };
    Ok((config_folder, sockets))
}

/// Makes the folder that a file is to be in.
///
/// # Errors
/// The system's.
pub fn make_folder_of(file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), std::fs::create_dir_all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn somebody() -> Surroundings {
        Surroundings {
            root: false,
            config_home: Some("/users/ada/.config".into()),
            runtime: Some("/run/user/1000".into()),
            state_home: Some("/users/ada/.local/state".into()),
        }
    }

    #[test]
    fn names_are_plain() {
        for name in ["vm1", "a", "Disk_2.old-x"] {
            assert_eq!(check_name(name).as_deref(), Ok(name));
        }
        for name in ["", ".", "..", "-x", "a/b", "a b", "é", &"x".repeat(65)] {
            let error = check_name(name).unwrap_err();
            assert!(error.contains("letters, digits"), "{error}");
        }
    }

    #[test]
    fn where_files_are() {
        let root = Surroundings { root: true, ..somebody() };
        let files = Files::new("vm1", None, &root).unwrap();
        assert_eq!(files.config(), Path::new("/etc/enkaku/mirrors/vm1.toml"));
        assert_eq!(files.socket(), Path::new("/run/enkaku/mirror-vm1.sock"));
        assert_eq!(
            files.metadata_of(Path::new("/dev/null")),
            Path::new("/var/lib/enkaku/vm1.mirror")
        );
        let files = Files::new("vm1", None, &somebody()).unwrap();
        assert_eq!(files.config(), Path::new("/users/ada/.config/enkaku/mirrors/vm1.toml"));
        assert_eq!(files.socket(), Path::new("/run/user/1000/enkaku/mirror-vm1.sock"));
        let nowhere = Surroundings::default();
        assert!(Files::new("vm1", None, &nowhere).unwrap_err().contains("--config-dir"));
        let files = Files::new("vm1", Some(Path::new("/srv/m")), &nowhere).unwrap();
        assert_eq!(files.config(), Path::new("/srv/m/vm1.toml"));
        assert_eq!(files.socket(), Path::new("/srv/m/mirror-vm1.sock"));
        let long = PathBuf::from(format!("/{}", "long/".repeat(22)));
        assert!(Files::new("vm1", Some(&long), &nowhere).unwrap_err().contains("shorter path"));
    }

    #[test]
    fn mirrors_are_found_by_their_sockets() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["mirror-vm2.sock", "mirror-a.sock", "mirror-.sock", "vm3.toml", "mirror-b"] {
            std::fs::write(folder.path().join(file), b"").unwrap();
        }
        let found = Files::of_sockets(Some(folder.path()), &somebody()).unwrap();
        assert_eq!(found.iter().map(Files::name).collect::<Vec<_>>(), ["a", "vm2"]);
        assert_eq!(found[1].socket(), folder.path().join("mirror-vm2.sock"));
        let none = Files::of_sockets(Some(Path::new("/nowhere")), &somebody());
        assert_eq!(none, Ok(Vec::new()));
    }

    #[test]
    fn metadata_is_beside_an_image() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("vm1.img");
        std::fs::write(&image, b"x").unwrap();
        let files = Files::new("vm1", Some(folder.path()), &somebody()).unwrap();
        assert_eq!(files.metadata_of(&image), folder.path().join("vm1.img.mirror"));
    }

    #[test]
    fn a_configuration_is_replaced_whole() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("new");
        let files = Files::new("vm1", Some(&below), &somebody()).unwrap();
        files.write_config("one").unwrap();
        files.write_config("two").unwrap();
        assert_eq!(std::fs::read_to_string(files.config()).unwrap(), "two");
        let mode = std::fs::metadata(files.config()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&below).unwrap().count(), 1, "nothing is left beside it");
    }
}
