//! A committed table of what the policies decide, so that a change of their behaviour is a diff.

use std::fmt::Write;
use std::path::PathBuf;

use ::path::tuner::{CONNECTIONS_MAX, GoldenConfig, PolicyConfig};

use crate::path::{Law, Path, Transfer};

/// Name, policy, path, and what the path becomes at which times.
type Scenario = (&'static str, PolicyConfig, Path, Vec<(f64, Path)>);

fn scenarios() -> Vec<Scenario> {
    let path = Path { buffer_bytes: 256e3, noise: 0.02, ..Path::default() };
    let slow = Path { line_bytes_per_s: 0.3 * path.line_bytes_per_s, ..path };
    let study = Path { rtt_s: 0.01, buffer_bytes: 65536.0, storage_s_per_byte: 35e-9, ..path };
    let golden = GoldenConfig { connections_max: 2 * CONNECTIONS_MAX, ..GoldenConfig::default() };
    let ours = PolicyConfig::default;
    vec![
        ("adaptive, 256 kB buffers, 20 ms", ours(), path, vec![]),
        ("adaptive, the same with TCP's fields", ours(), Path { with_tcp: true, ..path }, vec![]),
        ("adaptive, reno, loss 1e-4", ours(), Path { law: Law::Reno, loss: 1e-4, ..path }, vec![]),
        ("adaptive, rate falls at 20 s", ours(), path, vec![(20.0, slow), (40.0, path)]),
        ("adaptive, the APT study's path", ours(), study, vec![]),
        ("golden, the APT study's path", PolicyConfig::Golden(golden), study, vec![]),
    ]
}

/// Time and wanted connections at each move, one line a scenario.
fn table() -> String {
    let mut text =
        String::from("# scenario (seed 1): seconds→connections, and the mean rate in MB/s\n");
    for (name, config, path, changes) in scenarios() {
        let mut transfer = Transfer::new(path, 4, 1);
        transfer.changes = changes;
        transfer.run(config.build().as_mut(), 90.0);
        write!(text, "{name}:").expect("a string");
        for (t_s, n) in &transfer.moves {
            write!(text, " {t_s:.1}→{n}").expect("a string");
        }
        writeln!(text, "; {:.1}", transfer.mean(0.0, 90.0) / 1e6).expect("a string");
    }
    text
}

/// Written anew with `UPDATE_TABLE=1 cargo test -p iscsi-proto --test tuner`.
#[test]
fn decisions_are_those_of_the_committed_table() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tuner/decisions.txt");
    let found = table();
    if std::env::var_os("UPDATE_TABLE").is_some() {
        std::fs::write(&path, &found).expect("the table can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, committed, "if that is meant: UPDATE_TABLE=1 cargo test --test tuner");
}
