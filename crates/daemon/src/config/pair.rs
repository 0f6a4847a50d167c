//! `[target.pair]`: the target is one of several daemons' that serve the same units under one name.

use std::fmt;
use std::path::PathBuf;

use backends::objects;
use scsi::AccessState;

use super::reader::{Section, number, one_of, string};

/// What access states are called, in files and commands (SPC-4 §5.8.2.4).
pub const ACCESS_STATES: &[(&str, AccessState)] = &[
    ("active", AccessState::ActiveOptimized),
    ("non-optimized", AccessState::ActiveNonOptimized),
    ("standby", AccessState::Standby),
    ("unavailable", AccessState::Unavailable),
];

/// `[target.pair]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairSection {
    /// Portal group, target port group and relative port of this daemon.
    pub group: u16,
    /// Where they keep what they have to know together.
    pub shared: SharedPlace,
    /// How well the units can be reached here, until a command says otherwise.
    pub state: AccessState,
}

/// A place that all the daemons of a pair see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedPlace {
    /// A folder.
    Folder(PathBuf),
    /// Objects of a pool of Ceph, whose names begin as an image's URL says.
    Objects(Box<objects::Url>),
    /// Keys of etcd.
    Keys(Box<etcd::url::Url>),
}

impl fmt::Display for SharedPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => path.display().fmt(f),
            Self::Objects(url) => url.fmt(f),
            Self::Keys(url) => url.fmt(f),
        }
    }
}

/// The word for an access state.
pub(crate) fn word(state: AccessState) -> &'static str {
    let found = ACCESS_STATES.iter().find(|(_, known)| *known == state);
    found.map_or("unknown", |(word, _)| word)
}

pub(super) fn pair(mut section: Section<'_, '_>) -> Option<PairSection> {
    let group = section.required("group", number(1, u64::from(u16::MAX)));
    let shared = section.required("shared", |value| place(string(value)?));
    let state = section.get("state", one_of(ACCESS_STATES)).unwrap_or_default();
    section.finish();
    let ((_, group), (_, shared)) = group.zip(shared)?;
    Some(PairSection { group: u16::try_from(group).ok()?, shared, state })
}

fn place(text: String) -> Result<SharedPlace, String> {
    if objects::Url::is_meant(&text) {
        let url: objects::Url = text.parse().map_err(|error| format!("{error}"))?;
        if url.snapshot.is_some() {
            return Err("a snapshot cannot be written".to_owned());
        }
        return Ok(SharedPlace::Objects(Box::new(url)));
    }
    if etcd::url::Url::is_meant(&text) {
        let url = text.parse().map_err(|error| format!("{error}"))?;
        return Ok(SharedPlace::Keys(Box::new(url)));
    }
    let path = PathBuf::from(text);
    let folder = path.is_absolute().then_some(SharedPlace::Folder(path));
    folder.ok_or_else(|| {
        "a path that begins with /, rbd:POOL/NAME or etcd://HOST/PREFIX is needed".to_owned()
    })
}
