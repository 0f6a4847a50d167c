//! CHAP credentials: who, and where the secret is. A secret never stands in the configuration.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use iscsi::target::Chap;
use iscsi_proto::login::chap::Algorithm;
use zeroize::Zeroizing;

use super::reader::{Place, Reader, Section, list, one_of, string};

/// Longest password file that is read: a secret of 255 bytes and whatever comment follows.
const PASSWORD_FILE_MAX: u64 = 64 << 10;

const ALGORITHMS: &[(&str, Algorithm)] = &[
    ("md5", Algorithm::Md5),
    ("sha1", Algorithm::Sha1),
    ("sha256", Algorithm::Sha256),
    ("sha3-256", Algorithm::Sha3_256),
];

/// Reads `[chap.NAME]`. What is merely unwise goes to `warnings`.
pub(crate) fn chap(
    reader: &Reader,
    mut section: Section<'_, '_>,
    warnings: &mut Vec<String>,
) -> Option<Chap> {
    let user = section.required("user", string);
    let secret = one_secret(reader, &mut section, ["password_file", "password_env"], warnings);
    let mutual_user = section.with("mutual_user", string);
    let mutual_keys = ["mutual_password_file", "mutual_password_env"];
    let mutual_secret = match &mutual_user {
        Some(_) => one_secret(reader, &mut section, mutual_keys, warnings).map(Some),
        None => {
            for key in mutual_keys {
                if let Some((place, _)) = section.with(key, string) {
                    reader.complain(&place, "mutual_user is missing");
                }
            }
            Some(None)
        }
    };
    let algorithms = section.with("algorithms", list(|value| one_of(ALGORITHMS)(value)));
    if let Some((place, list)) = &algorithms
        && list.is_empty()
    {
        reader.complain(place, "is empty (allowed: md5, sha1, sha256, sha3-256)");
    }
    let place = section.place();
    section.finish();
    let ((_, user), secret, mutual_secret) = (user?, secret?, mutual_secret?);
    let mutual = mutual_user.as_ref().zip(mutual_secret.as_ref());
    let mutual = mutual.map(|((_, user), secret)| (user.as_str(), secret.as_str()));
    let chap = match Chap::new(&user, &secret, mutual) {
        Ok(chap) => chap,
        Err(error) => {
            reader.complain(&place, error);
            return None;
        }
    };
    Some(match algorithms {
        Some((_, algorithms)) => chap.with_algorithms(algorithms),
        None => chap,
    })
}

/// A secret from a file or from the environment: exactly one of both has to be named.
fn one_secret(
    reader: &Reader,
    section: &mut Section<'_, '_>,
    [file_key, env_key]: [&'static str; 2],
    warnings: &mut Vec<String>,
) -> Option<Zeroizing<String>> {
    let file = section.with(file_key, string);
    let variable = section.with(env_key, string);
    match (file, variable) {
        (Some((place, file)), None) => {
            let read = from_file(&place, &PathBuf::from(file), warnings);
            read.map_err(|what| reader.complain(&place, what)).ok()
        }
        (None, Some((place, variable))) => {
            let read = std::env::var(&variable).map(Zeroizing::new);
            let read =
                read.map_err(|_| format!("there is no variable {variable} in the environment"));
            read.map_err(|what| reader.complain(&place, what)).ok()
        }
        (Some((place, _)), Some(_)) => {
            reader.complain(&place, format!("{env_key} is there as well: one of them"));
            None
        }
        (None, None) => {
            section.complain(format!("{file_key} or {env_key} is missing"));
            None
        }
    }
}

/// What is in a file with a secret. That others can read it is a warning.
pub(crate) fn read_private(
    place: &Place,
    path: &Path,
    warnings: &mut Vec<String>,
) -> Result<Zeroizing<String>, String> {
    let (text, warning) = read(path)?;
    warnings.extend(warning.map(|what| place.problem(what).to_string()));
    Ok(text)
}

/// The secret in the first line of a file. That others can read it is a warning.
pub(crate) fn from_file(
    place: &Place,
    path: &Path,
    warnings: &mut Vec<String>,
) -> Result<Zeroizing<String>, String> {
    let (secret, warning) = first_line(path)?;
    warnings.extend(warning.map(|what| place.problem(what).to_string()));
    Ok(secret)
}

/// The secret in the first line of a file, and a warning if others can read it.
pub(crate) fn first_line(path: &Path) -> Result<(Zeroizing<String>, Option<String>), String> {
    let (text, warning) = read(path)?;
    let secret = Zeroizing::new(text.lines().next().unwrap_or_default().to_owned());
    if secret.is_empty() {
        return Err(format!("the first line of {} is empty", path.display()));
    }
    Ok((secret, warning))
}

fn read(path: &Path) -> Result<(Zeroizing<String>, Option<String>), String> {
    let shown = path.display();
    let metadata =
        std::fs::metadata(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    if !metadata.is_file() || metadata.len() > PASSWORD_FILE_MAX {
        return Err(format!("{shown} is not a file with a secret"));
    }
    let mode = metadata.permissions().mode();
    let warning = (mode & 0o044 != 0).then(|| {
        let whom = if mode & 0o004 != 0 { "everybody" } else { "its group" };
        format!("{shown} can be read by {whom}; chmod 600 it")
    });
    let text = std::fs::read_to_string(path).map(Zeroizing::new);
    Ok((text.map_err(|error| format!("cannot read {shown}: {error}"))?, warning))
}
