//! iSCSI-APT's search as published: what it decides is the study's, and does not change.

use ::path::{Config, PolicyConfig};

use crate::path::{Path, Transfer};

/// The numbers that it went through over the study's path, seed 1, since it was first written.
const MOVES: [u32; 12] = [8, 16, 32, 64, 34, 46, 27, 39, 41, 37, 36, 38];

/// The study's path: 64 KB buffers, 10 ms, 35 ms of storage for each MB.
fn study() -> Path {
    Path { rtt_s: 0.01, buffer_bytes: 65536.0, storage_s_per_byte: 35e-9, ..Path::default() }
}

fn transfer(path: Path, t_s: f64) -> Transfer {
    let search = Config { connections_max: 128, ..Config::default() };
    let mut transfer = Transfer::new(path, 4, 1);
    transfer.run(&mut PolicyConfig::Golden(search).build(true), t_s);
    transfer
}

#[test]
fn it_finds_the_plateau_of_the_paper_in_about_twelve_moves() {
    let path = Path { noise: 0.0, ..study() };
    let transfer = transfer(path, 150.0);
    let (best, _) = path.best(128);
    assert!(path.steady(transfer.connections()) >= 0.95 * best, "{:?}", transfer.moves);
    assert!((6..=16).contains(&transfer.moves.len()), "{:?}", transfer.moves);
}

#[test]
fn its_moves_with_noise_are_those_that_it_always_made() {
    let moves = transfer(study(), 90.0).moves;
    let numbers: Vec<u32> = moves.iter().map(|(_, n)| *n).collect();
    assert_eq!(numbers, MOVES);
    // After each measuring time; the first sample only begins it.
    let late = moves.iter().zip(1_u32..).map(|((t_s, _), n)| t_s - 5.0 * f64::from(n) - 0.1);
    assert!(late.into_iter().all(|late_s| late_s.abs() < 0.11), "{moves:?}");
}
