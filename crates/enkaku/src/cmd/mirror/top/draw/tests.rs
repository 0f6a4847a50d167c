//! The screen, cell by cell, against a picture of it: `ENKAKU_GOLDEN=write` makes the pictures
//! anew.

use std::time::{Duration, Instant};

use daemon::mirror::report::{CopyReport, Loss};
use serde_json::json;

use super::*;
use crate::cmd::live::pictures;

/// As it comes over the control socket, so that a new field there needs no change here.
fn leg(number: usize, state: LegState) -> LegReport {
    let leg = json!({
        "number": number,
        "name": format!("iscsi://far{number}.example:3260/iqn.2026-11.org.example:vm1/0"),
        "state": state,
        "since_s": 754.0,
        "consistent": true,
        "lag_s": 1.2,
        "lag_bytes": 3_400_000,
        "dirty_bytes": 0,
        "epochs": 3,
        "image_time_s": 1_764_072_187.412,
        "loss": {"seconds": 1.2, "bytes": 3_400_000},
        "sent_bytes": 4_200_000_000_u64,
    });
    serde_json::from_value(leg).unwrap()
}

fn report(name: &str, legs: Vec<LegReport>) -> Report {
    let report = json!({
        "name": name,
        "version": "0.1.0",
        "pid": 4711,
        "time_s": 1_764_072_190.0,
        "uptime_s": 8000.0,
        "front": "/mnt/vm1/volume",
        "size_bytes": 10_737_418_240_u64,
        "mode": "async",
        "generation": "3fa9c2d1",
        "written_bytes": 1_234_567_890,
        "guest_wait_s": 0.4,
        "failed_operations": 0,
        "legs": legs,
    });
    serde_json::from_value(report).unwrap()
}

/// Mirrors in every kind of trouble, seen for a minute.
fn view() -> View {
    let mut view = View::new();
    let start = Instant::now();
    for second in 0..60_u64 {
        let mut copying = leg(2, LegState::CatchingUp);
        (copying.lag_s, copying.lag_bytes, copying.loss) = (0.0, 0, None);
        copying.consistent = false;
        copying.dirty_bytes = 600_000_000 - second * 10_000_000;
        copying.sent_bytes += second * (8_000_000 + 100_000 * second);
        copying.copy = Some(CopyReport {
            done_bytes: second * 10_000_000,
            left_bytes: copying.dirty_bytes,
            bytes_per_s: Some(10_000_000),
            left_s: Some(copying.dirty_bytes as f64 / 1e7),
            way: block::mirror::Way::InPlace,
        });
        let mut first = leg(1, LegState::InSync);
        first.lag_s = 0.1 * (second % 13) as f64;
        first.sent_bytes += second * second * 300_000;
        let mut lost = leg(1, LegState::Lost);
        lost.message = Some("no connection to far1.example:3260".into());
        (lost.lag_bytes, lost.dirty_bytes) = (0, 120_300_000);
        lost.loss = Some(Loss { seconds: Some(252.0), bytes: 120_300_000 });
        let seen = vec![
            Seen::Running(Box::new(report("a-database-of-old", vec![first, copying]))),
            Seen::Running(Box::new(report("vm1", vec![lost]))),
            Seen::Stopped("vm2".into()),
            Seen::Silent("vm3".into(), "no answer within 2 s".into()),
        ];
        view.show(seen, start + Duration::from_secs(second));
    }
    view
}

fn picture(view: &View, width: u16, height: u16) -> String {
    pictures::picture((width, height), |target| frame(target, view))
}

fn compare(name: &str, now: &str) {
    pictures::compare("src/cmd/mirror/top/draw/golden", name, now);
}

#[test]
fn a_screen_of_80_by_24() {
    let mut view = view();
    compare("first-80x24.txt", &picture(&view, 80, 24));
    view.step(true);
    compare("copy-80x24.txt", &picture(&view, 80, 24));
}

#[test]
fn a_screen_of_120_by_40() {
    let mut view = view();
    view.step(true);
    view.step(true);
    view.step(true);
    compare("lost-120x40.txt", &picture(&view, 120, 40));
}

#[test]
fn nothing_runs_and_tiny_screens_do_not_panic() {
    let mut empty = View::new();
    assert!(picture(&empty, 80, 24).contains("looking"));
    empty.show(Vec::new(), Instant::now());
    assert!(picture(&empty, 80, 24).contains("no mirror runs here"));
    assert_eq!(text(&empty), "no mirror runs here");
    let full = view();
    for (width, height) in [(1, 1), (20, 3), (40, 10), (79, 12), (300, 100)] {
        picture(&full, width, height);
    }
}

#[test]
fn lines_for_a_pipe() {
    compare("lines.txt", &(text(&view()) + "\n"));
}

#[test]
fn numbers_fit_their_columns() {
    for power in 0..17 {
        let value = (9.994 * 10_f64.powi(power)) as u64;
        assert!(amount(value).len() <= 6, "{value} {}", amount(value));
        assert!(amount(value / 1000 * 1001).len() <= 6);
    }
    for seconds in [0.0, 9.94, 9.96, 59.4, 59.6, 3599.4, 3600.0, 86_399.0, 86_400.0, 8_640_000.0] {
        assert!(span(seconds).len() <= 6, "{}", span(seconds));
    }
}
