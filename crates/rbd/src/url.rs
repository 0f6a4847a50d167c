//! Names of images: `rbd:POOL/[NAMESPACE/]IMAGE[@SNAPSHOT][?conf=FILE&id=USER]`.
//!
//! The first part is the image specification of `rbd` (rbd(8)). Parts with characters that mean
//! something here are percent-encoded (RFC 3986 §2.1).

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// What such a URL begins with.
const SCHEME: &str = "rbd:";

/// The form of the URL.
pub const FORMS: &str = "rbd:POOL/IMAGE[@SNAPSHOT][?conf=FILE&id=USER]";

/// Longest name of a pool, namespace, image, snapshot or user, in bytes: longer ones Ceph does not
/// take.
const NAME_LEN_MAX: usize = 255;

/// Longest path of a configuration in bytes (PATH_MAX of Linux, with a zero at its end).
const PATH_LEN_MAX: usize = 4095;

/// What means something in the URL, or cannot stand in one.
const RESERVED: &AsciiSet =
    &CONTROLS.add(b' ').add(b'%').add(b'/').add(b'@').add(b'?').add(b'&').add(b'=').add(b'#');

/// Characters to escape in a file's path, whose slashes mean nothing here.
const RESERVED_IN_PATH: &AsciiSet = &RESERVED.remove(b'/');

/// One image, or a snapshot of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The pool.
    pub pool: String,
    /// The namespace of the pool; empty is the default one.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// A snapshot of it, which is read-only.
    pub snapshot: Option<String>,
    /// Ceph's configuration; otherwise what CEPH_CONF names, else `/etc/ceph/ceph.conf`.
    pub conf: Option<PathBuf>,
    /// The user, without `client.`; otherwise `admin`.
    pub id: Option<String>,
}

/// Why a text names no image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url:?}: {why}; allowed is {FORMS}")]
pub struct UrlError {
    url: String,
    why: String,
}

impl Url {
    /// Is this meant as the name of an image, right or wrong?
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// The image itself, whoever asks for it and from where: what has one name is one image, as far
    /// as it can be known.
    #[must_use]
    pub fn without_user(&self) -> Self {
        Self { id: None, ..self.clone() }
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        parse(text).map_err(|why| UrlError { url: text.to_owned(), why })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |name| utf8_percent_encode(name, RESERVED);
        write!(f, "{SCHEME}{}/", name(&self.pool))?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", name(&self.namespace))?;
        }
        write!(f, "{}", name(&self.image))?;
        if let Some(snapshot) = &self.snapshot {
            write!(f, "@{}", name(snapshot))?;
        }
        let mut mark = '?';
        if let Some(conf) = &self.conf {
            let path = conf.to_string_lossy();
            write!(f, "{mark}conf={}", utf8_percent_encode(&path, RESERVED_IN_PATH))?;
            mark = '&';
        }
        match &self.id {
            Some(id) => write!(f, "{mark}id={}", name(id)),
            None => Ok(()),
        }
    }
}

fn parse(text: &str) -> Result<Url, String> {
    let rest = text.strip_prefix(SCHEME).ok_or("does not begin with rbd:")?;
    if rest.starts_with("//") {
        return Err("no host is named: Ceph's configuration says where the cluster is".into());
    }
    if rest.contains('#') {
        return Err("a fragment (#) means nothing here".into());
    }
    let (spec, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (path, snapshot) = match spec.split_once('@') {
        Some((path, snapshot)) => (path, Some(name(snapshot, "the snapshot's name")?)),
        None => (spec, None),
    };
    let parts: Vec<&str> = path.split('/').collect();
    let (pool, namespace, image) = match parts[..] {
        [pool, image] => (pool, "", image),
        [pool, namespace, image] => (pool, namespace, image),
        [_] => return Err("the pool or the image is missing".into()),
        _ => return Err(format!("{path:?} has too many parts")),
    };
    let namespace = match namespace {
        "" if parts.len() == 3 => return Err("the namespace is empty".into()),
        "" => String::new(),
        namespace => name(namespace, "the namespace")?,
    };
    let mut url = Url {
        pool: name(pool, "the pool's name")?,
        namespace,
        image: name(image, "the image's name")?,
        snapshot,
        conf: None,
        id: None,
    };
    for parameter in query.split('&').filter(|part| !part.is_empty()) {
        parameter_of(&mut url, parameter)?;
    }
    Ok(url)
}

fn parameter_of(url: &mut Url, parameter: &str) -> Result<(), String> {
    match parameter.split_once('=') {
        Some(("conf", _)) if url.conf.is_some() => Err("conf= is there twice".into()),
        Some(("id", _)) if url.id.is_some() => Err("id= is there twice".into()),
        Some(("conf", path)) => {
            url.conf = Some(decoded(path, "the configuration's path", PATH_LEN_MAX)?.into());
            Ok(())
        }
        Some(("id", id)) => {
            let id = name(id, "the user")?;
            if let Some(short) = id.strip_prefix("client.") {
                return Err(format!("the user is named without client., as in id={short}"));
            }
            url.id = Some(id);
            Ok(())
        }
        _ => Err(format!("{parameter:?}: the only parameters are conf=FILE and id=USER")),
    }
}

fn name(text: &str, what: &str) -> Result<String, String> {
    decoded(text, what, NAME_LEN_MAX)
}

fn decoded(text: &str, what: &str, len_max: usize) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| format!("{what} is not UTF-8"))?;
    if decoded.is_empty() {
        return Err(format!("{what} is missing"));
    }
    if decoded.contains('\0') {
        return Err(format!("{what} contains a zero byte"));
    }
    if decoded.len() > len_max {
        return Err(format!("{what} has more than {len_max} bytes"));
    }
    Ok(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_found_and_written_again() {
        for text in [
            "rbd:rbd/vm1",
            "rbd:pool/ns/vm1",
            "rbd:pool/vm1@before",
            "rbd:pool/vm1?conf=/etc/ceph/other.conf",
            "rbd:pool/vm1@s?conf=/a%20b&id=enkaku",
            "rbd:p%2Fq/a%40b@c%3Fd?id=x%26y",
        ] {
            assert_eq!(text.parse::<Url>().unwrap().to_string(), text);
        }
        let url: Url = "rbd:p%2Fq/n/a%40b@c?conf=/a%20b&id=enkaku".parse().unwrap();
        assert_eq!((url.pool.as_str(), url.namespace.as_str()), ("p/q", "n"));
        assert_eq!((url.image.as_str(), url.snapshot.as_deref()), ("a@b", Some("c")));
        assert_eq!(url.conf.as_deref(), Some("/a b".as_ref()));
        assert_eq!(url.id.as_deref(), Some("enkaku"));
        assert_eq!(url.without_user().id, None);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let long = format!("rbd:p/{}", "i".repeat(256));
        for (text, why) in [
            ("rbd:", "the pool or the image is missing"),
            ("rbd:image", "the pool or the image is missing"),
            ("rbd:/image", "the pool's name is missing"),
            ("rbd:pool/", "the image's name is missing"),
            ("rbd://pool/image", "no host is named"),
            ("rbd:a/b/c/d", "too many parts"),
            ("rbd:p//i", "the namespace is empty"),
            ("rbd:p/i@", "the snapshot's name is missing"),
            ("rbd:p/i?mon=x", "the only parameters are"),
            ("rbd:p/i?id=", "the user is missing"),
            ("rbd:p/i?id=client.admin", "id=admin"),
            ("rbd:p/i?id=a&id=b", "twice"),
            ("rbd:p/i?conf=a&conf=b", "twice"),
            ("rbd:p/i%00", "zero byte"),
            ("rbd:p/i%ff", "not UTF-8"),
            ("rbd:p/i#x", "fragment"),
            (&long, "more than 255 bytes"),
        ] {
            let said = text.parse::<Url>().unwrap_err().to_string();
            assert!(said.contains(why) && said.contains(FORMS), "{said}");
        }
    }
}
