//! A reload takes no unit away from those who use it.

use std::path::Path;

use iscsi::target::Limits;

use super::*;

const NAME: &str = "iqn.2026-11.org.example:a";

/// A configuration with these units, whose reservations are kept in the folder.
fn config(folder: &Path, luns: &str) -> Config {
    let here = folder.display();
    let text = format!(
        "[server]\nadmin_socket = \"{here}/admin\"\nstate_directory = \"{here}\"\n\
         [[portal]]\nlisten = \"127.0.0.1:0\"\n\
         [[target]]\nname = \"{NAME}\"\nanyone = true\n{luns}"
    );
    let path = folder.join("target.toml");
    std::fs::write(&path, text).unwrap();
    Config::load(&path).unwrap()
}

fn lun(number: u16, more: &str) -> String {
    format!("[[target.lun]]\nnumber = {number}\npath = \"mem:1M\"\n{more}")
}

fn damage(folder: &Path, number: u16) {
    std::fs::write(folder.join(format!("{NAME}_lun{number}.reservations")), "what?\n").unwrap();
}

#[tokio::test]
async fn a_reload_keeps_a_unit_whose_reservations_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::new(Catalog::new(Limits::default()));
    let mut state = State::default();
    let reload = |state: &mut State, luns: &str| {
        let plan = state.prepare(&config(folder, luns), Opening::ToServe)?;
        Ok::<Vec<String>, Vec<Problem>>(state.commit(plan, &server).lines)
    };
    reload(&mut state, &lun(0, "")).unwrap();
    let served = |state: &State| state.targets[NAME].scsi.luns();
    assert_eq!(served(&state), [0]);

    damage(folder, 0);
    let lines = reload(&mut state, &(lun(0, "") + &lun(1, ""))).unwrap();
    assert!(lines.iter().all(|line| !line.contains("LUN 0")), "{lines:?}");
    assert_eq!(served(&state), [0, 1]);
    assert!(state.failures().is_empty(), "{:?}", state.failures());

    // A unit that would have to be opened anew is not replaced by one that cannot be.
    let problems = reload(&mut state, &(lun(0, "serial = \"9\"\n") + &lun(1, ""))).unwrap_err();
    assert!(problems.len() == 1 && problems[0].to_string().contains("damaged"), "{problems:?}");
    assert_eq!(served(&state), [0, 1]);
}

#[tokio::test]
async fn a_unit_that_could_not_be_added_after_all_is_told_and_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Server::new(Catalog::new(Limits::default()));
    let mut state = State::default();
    let one = config(folder, &lun(0, ""));
    let plan = state.prepare(&one, Opening::ToServe).unwrap();
    damage(folder, 0); // in between
    state.commit(plan, &server);
    assert!(state.targets[NAME].scsi.luns().is_empty());
    let failures = state.failures();
    assert!(failures.len() == 1 && failures[0].contains("LUN 0: not served"), "{failures:?}");

    std::fs::remove_file(folder.join(format!("{NAME}_lun0.reservations"))).unwrap();
    let plan = state.prepare(&one, Opening::ToServe).unwrap();
    let changes = state.commit(plan, &server);
    assert!(changes.lines.iter().any(|line| line.ends_with("LUN 0: added")), "{changes:?}");
    assert_eq!(state.targets[NAME].scsi.luns(), [0]);
    assert!(state.failures().is_empty(), "{:?}", state.failures());
}
