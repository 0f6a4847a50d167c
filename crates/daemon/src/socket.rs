//! Unix sockets that operators talk to: opened without a stale one in the way, and without harm to
//! whatever else is there.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use tokio::net::UnixListener;

/// Owner and group.
pub(crate) const OWNER_AND_GROUP: u32 = 0o660;

/// The owner alone.
pub const OWNER: u32 = 0o600;

/// Opens a socket for those whom `mode` says. One that a dead process left behind is replaced;
/// whatever else is there stays as it is.
///
/// # Errors
/// The system's; `AddrInUse` when somebody answers there, `AlreadyExists` when it is no socket.
pub fn listen(path: &Path, mode: u32) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let what = "there is something there that is no socket, which is left as it is; \
                        give the socket another path";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
        }
        Ok(_) => remove_stale(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

/// Removes a socket that nobody listens on.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        // A full backlog, say: somebody is alive there.
        Ok(_) | Err(_) => Err(io::ErrorKind::AddrInUse.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A LUN's file, say, by a slip of the hand.
    #[tokio::test]
    async fn what_is_no_socket_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("disk.img");
        std::fs::write(&image, b"precious").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&image, &link).unwrap();
        let inside = folder.path().join("folder");
        std::fs::create_dir(&inside).unwrap();
        for path in [&image, &link, &inside] {
            let error = listen(path, OWNER_AND_GROUP).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
            assert!(error.to_string().contains("no socket"), "{error}");
        }
        assert_eq!(std::fs::read(&image).unwrap(), b"precious");
        assert!(link.is_symlink() && inside.is_dir());
    }

    #[tokio::test]
    async fn a_socket_is_replaced_only_when_nobody_listens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let first = listen(&path, OWNER_AND_GROUP).unwrap();
        assert_eq!(listen(&path, OWNER_AND_GROUP).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        let _second = listen(&path, OWNER_AND_GROUP).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    }
}
