//! What `check` lets pass, `prepare` opens; what it refuses, it refuses with its line, and all of
//! it at once.

use std::fs::File;
use std::net::TcpListener;

use super::*;

struct Lab {
    folder: tempfile::TempDir,
    /// Held, so that nobody else takes its port; a portal of port 0 takes any.
    taken: TcpListener,
}

impl Lab {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = |name: &str, bytes| {
            File::create(folder.path().join(name)).unwrap().set_len(bytes).unwrap();
        };
        image("good", 1 << 20);
        image("odd", 1000);
        image("empty", 0);
        std::os::unix::fs::symlink("good", folder.path().join("link")).unwrap();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { folder, taken }
    }

    fn write(&self, more: &str) -> PathBuf {
        let here = self.folder.path().display();
        let text = format!(
            "[server]\nadmin_socket = \"{here}/admin\"\n[[portal]]\nlisten = \"127.0.0.1:0\"\n\
             [[target]]\nname = \"iqn.2026-11.org.example:a\"\nanyone = true\n{}",
            more.replace("HERE", &here.to_string())
        );
        let path = self.folder.path().join("target.toml");
        std::fs::write(&path, text).unwrap();
        path
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn lun(number: u16, rest: &str) -> String {
    format!("[[target.lun]]\nnumber = {number}\n{rest}\n")
}

fn said(path: &Path) -> Vec<String> {
    match check(path) {
        Ok(_) => Vec::new(),
        Err(ConfigError(problems)) => problems.iter().map(ToString::to_string).collect(),
    }
}

/// Ways to write a LUN, and what `check` has to say.
const LUNS: &[(&str, &str)] = &[
    ("path = \"HERE/good\"", ""),
    ("path = \"HERE/link\"", ""),
    ("path = \"HERE/new\"\ncreate = \"1M\"", ""),
    ("path = \"HERE/good\"\nblock_size = 4096", ""),
    ("path = \"HERE/good\"\nblock_size = \"4k\"\nread_only = true", ""),
    ("path = \"mem:1M\"", ""),
    ("path = \"mem:1M\"\nserial = \"0001\"", ""),
    ("path = \"mem:2T\"\novercommit = true", ""),
    ("path = \"HERE\"", "is a directory; a regular file or a block device is needed"),
    ("path = \"/dev/null\"", "is a character device"),
    ("path = \"HERE/odd\"", "1024 bytes would be"),
    ("path = \"HERE/empty\"", "at least one block of 512 bytes is needed"),
    ("path = \"HERE/none\"", "no such file"),
    ("path = \"HERE/none/new\"\ncreate = \"1M\"", "there is no folder"),
    ("path = \"HERE/new\"\ncreate = 1000", "1024 bytes would be"),
    ("path = \"HERE/good/new\"\ncreate = \"1M\"", "HERE/good/new: "),
    ("path = \"HERE/good\"\nblock_size = 1024", "1024 is not allowed (512 and 4096 are)"),
    ("path = \"HERE/good\"\nblock_size = 8192", "8192 is not allowed (512 and 4096 are)"),
    ("path = \"mem:0\"", "at least one block of 512 bytes is needed"),
    ("path = \"mem:1000\"", "1024 bytes would be"),
    ("path = \"mem:1000T\"", "of this machine"),
    ("path = \"mem:1M\"\nserial = \"üüü\"", "serial"),
    ("path = \"mem:1M\"\nvendor = \"a vendor whose name is long\"", "endor"),
];

#[tokio::test]
async fn check_and_prepare_agree() {
    for (text, wanted) in LUNS {
        let lab = Lab::new();
        let path = lab.write(&lun(0, text));
        let before = lab.files();
        let said = said(&path);
        assert_eq!(lab.files(), before, "{text}: something was left behind");
        match wanted {
            &"" => assert!(said.is_empty(), "{text}: {said:?}"),
            wanted => {
                let wanted = wanted.replace("HERE", &lab.folder.path().display().to_string());
                assert_eq!(said.len(), 1, "{text}: {said:?}");
                let place = format!("{}:", path.display());
                assert!(said[0].starts_with(&place) && said[0].contains(&wanted), "{said:?}");
            }
        }
        let started = Config::load(&path)
            .ok()
            .map(|config| State::default().prepare(&config, Opening::ToServe).is_ok());
        assert_eq!(started.unwrap_or(false), said.is_empty(), "{text}: what would run say?");
    }
}

#[tokio::test]
async fn all_mistakes_are_told_at_once_with_their_lines() {
    let lab = Lab::new();
    let long = "x".repeat(120);
    let more = [
        lun(0, "path = \"HERE\""),
        lun(1, "path = \"mem:0\""),
        lun(2, "path = \"HERE/good\""),
        lun(3, "path = \"HERE/link\""),
        lun(4, "path = \"HERE/odd\"\nblocksize = 512"),
        "[metrics]\nlisten = \"192.0.2.1:9260\"\n[limits]\nsessions = 0\n".to_owned(),
    ];
    let path = lab.write(&more.concat());
    let text = std::fs::read_to_string(&path).unwrap();
    let text =
        text.replace("/admin\"", &format!("/{long}\"\nstate_directory = \"/nowhere/at/all\""));
    std::fs::write(&path, text).unwrap();
    let said = said(&path);
    let wanted = [
        ":2: server.admin_socket: ",
        ":3: server.state_directory: there is no folder /nowhere/at/all",
        ":11: target[0].lun[0].path: ",
        ":14: target[0].lun[1].path: ",
        ":20: target[0].lun[3].path: is the file ",
        ":23: target[0].lun[4].path: ",
        ":24: target[0].lun[4].blocksize: unknown key",
        ":26: metrics.listen: cannot listen on 192.0.2.1:9260",
        ":28: limits.sessions: ",
    ];
    assert_eq!(said.len(), wanted.len(), "{said:#?}");
    for (said, wanted) in said.iter().zip(wanted) {
        assert!(said.contains(wanted), "{wanted}\nnot in {said}");
    }
    // What keeps a daemon from starting brings the rest with it.
    assert_eq!(everything(&path, Vec::new()).0.len(), wanted.len());
}

#[tokio::test]
async fn what_somebody_has_now_is_a_warning() {
    let lab = Lab::new();
    let taken = lab.taken.local_addr().unwrap();
    let file = lab.folder.path().join("good");
    let serving = block::backend::FileDevice::open(file, &block::backend::FileOptions::default());
    let metrics = format!("[metrics]\nlisten = \"{taken}\"\n");
    let path = lab.write(&(lun(0, "path = \"HERE/good\"") + &metrics));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"127.0.0.1:0\"", &format!("\"{taken}\""))).unwrap();
    let warnings = check(&path).unwrap().warnings;
    for place in [":4: portal[0].listen", ":10: target[0].lun[0].path", ":12: metrics.listen"] {
        let wanted = format!("{place}: in use now");
        assert!(warnings.iter().any(|said| said.contains(&wanted)), "{wanted}: {warnings:#?}");
    }
    assert_eq!(warnings.len(), 3, "{warnings:#?}");
    drop((serving, lab.taken));
    assert_eq!(check(&path).unwrap().warnings.len(), 0);
}
