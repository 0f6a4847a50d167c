//! What people are told, word by word.

use super::*;
use block::mirror::{Verdict, Way};

fn at(seconds: f64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs_f64(seconds)
}

fn leg(state: LegState) -> LegStatus {
    LegStatus {
        name: "iscsi://far/iqn.2026-11.org.example:vm1/0".into(),
        state,
        since: Duration::from_secs(754),
        message: None,
        guard: Guard::Reservation,
        sending: Some(Sending { order: Order::Stream, why: "its target keeps order".into() }),
        consistent: true,
        lag_bytes: 3_400_000,
        lag: Duration::from_millis(1200),
        dirty_bytes: 0,
        epochs: 3,
        image_time: Some(at(1_764_072_187.412)),
        copied_bytes: 0,
        home_bytes: 0,
        left_bytes: 0,
        copy_bytes_per_s: 0,
        copy_time_left: None,
        sent_bytes: 4_200_000_000,
        redo_bytes: 0,
        way: Way::Unset,
        home: None,
        fallbacks: 0,
        batches: 0,
        gathered: None,
        verified: None,
        verifying: None,
    }
}

fn report(legs: Vec<LegStatus>, paces: &[Pace]) -> Report {
    let status = Status {
        size: 10_737_418_240,
        mode: Mode::Async,
        generation: "3fa9c2d1".into(),
        written_bytes: 1_234_567_890,
        guest_wait: Duration::from_millis(400),
        lag_wait: Duration::from_millis(2500),
        local_failure: None,
        legs,
    };
    let beside = Beside {
        name: "vm1",
        front: "/mnt/vm1/volume",
        uptime: Duration::from_secs(8000),
        now: at(1_764_072_190.0),
        failed_operations: 0,
        paces,
    };
    Report { pid: 4711, ..Report::new(&status, &beside) }
}

#[test]
fn in_sync() {
    let expected = "\
vm1: 10.7 GB, async, 1 leg; running for 2 h 13 min as /mnt/vm1/volume (process 4711, generation 3fa9c2d1)
written by its user: 1.2 GB; writes have waited 0.4 s for legs, 2.5 s at the bound of the lag

  leg 1        iscsi://far/iqn.2026-11.org.example:vm1/0
               in sync for 12 min 34 s
  promote now would lose: 1.2 s, 3.4 MB
  on its way   1.2 s, 3.4 MB in 3 epochs
  image of     2025-11-25 12:03:07.412 UTC (2.6 s ago)
  fence        reservation
  order        stream: its target keeps order
  sent         4.2 GB";
    assert_eq!(report(vec![leg(LegState::InSync)], &[]).text(), expected);
}

#[test]
fn a_copy_tells_when_it_is_done() {
    let mut pace = Pace::default();
    pace.note(Duration::ZERO, 0);
    pace.note(Duration::from_secs(4), 120_000_000);
    let copying = LegStatus {
        copied_bytes: 120_000_000,
        dirty_bytes: 60_000_000,
        left_bytes: 60_000_000,
        consistent: false,
        image_time: None,
        lag_bytes: 0,
        ..leg(LegState::CatchingUp)
    };
    let report = report(vec![copying], &[pace]);
    let text = report.text();
    assert!(
        text.contains("copy         120.0 MB done, 60.0 MB left, 30.0 MB/s, about 2.0 s"),
        "{text}"
    );
    assert!(
        text.contains("promote now is refused: the image there is not of one moment"),
        "{text}"
    );
    assert_eq!(report.legs[0].loss, None);
}

#[test]
fn a_catch_up_through_the_redo_log_counts_both_ways() {
    let copying = LegStatus {
        copied_bytes: 120_000_000,
        home_bytes: 30_000_000,
        dirty_bytes: 90_000_000 + 10_000_000,
        left_bytes: 110_000_000,
        way: Way::Atomic,
        ..leg(LegState::CatchingUp)
    };
    let text = report(vec![copying.clone()], &[]).text();
    let copy = "copy         150.0 MB done, 110.0 MB left on both ways, into the redo log and to its \
                place";
    assert!(text.contains(copy), "{text}");
    let loss = |leg: &LegStatus| report(vec![leg.clone()], &[]).legs[0].loss.unwrap();
    assert_eq!(loss(&copying).bytes, 3_400_000 + 100_000_000);
    // All of it was overwritten since, so that nothing in the log counts: the image is old.
    let overwritten = LegStatus { dirty_bytes: 0, ..copying };
    assert_eq!(loss(&overwritten).bytes, 3_400_000);
    assert!(loss(&overwritten).seconds > Some(overwritten.lag.as_secs_f64()));
    let nothing = LegStatus { lag_bytes: 0, lag: Duration::ZERO, ..overwritten };
    assert_eq!(loss(&nothing), Loss { seconds: Some(0.0), bytes: 0 });
}

#[test]
fn why_epochs_go_many_at_once_is_told() {
    let why = "20 epochs wait, 160 KiB: one after the other they take 2.00 s, together 0.46 s";
    for (now, words) in [(true, "now in a batch"), (false, "the last batch")] {
        let gathered = Some(Gathered { now, why: why.into() });
        let leg = LegStatus { gathered, batches: 4, ..leg(LegState::InSync) };
        let text = report(vec![leg], &[]).text();
        let expected =
            format!("  order        stream: its target keeps order\n               {words}: {why}");
        assert!(text.contains(&expected), "{text}");
        assert!(text.contains("in 3 epochs, 4 batches so far"), "{text}");
    }
}

#[test]
fn the_last_verification_is_told_and_the_present_one() {
    let verdict =
        |mismatches| Some(Verdict { at: at(1_764_072_130.0), bytes: 10_737_418_240, mismatches });
    let text = |verified, verifying| {
        report(vec![LegStatus { verified, verifying, ..leg(LegState::InSync) }], &[]).text()
    };
    let good =
        "  verified     2025-11-25 12:02:10.000 UTC (1 min ago): 10.7 GB compared, nothing differs";
    assert!(text(verdict(0), None).contains(good), "{}", text(verdict(0), None));
    let told = text(verdict(3), Some(4 << 20));
    assert!(told.contains("3 blocks of 4 KiB differ (`enkaku mirror verify --heal`)"), "{told}");
    assert!(told.contains("\n               again now, 4.2 MB so far\n"), "{told}");
    assert!(text(None, Some(4096)).contains("verified     never to its end"));
    assert!(!text(None, None).contains("verified"));
}

#[test]
fn a_lost_leg_tells_what_is_missing_there() {
    let lost = LegStatus {
        message: Some("no answer for 10 s".into()),
        lag_bytes: 0,
        dirty_bytes: 8192,
        ..leg(LegState::Lost)
    };
    let report = report(vec![lost], &[]);
    let loss = report.legs[0].loss.unwrap();
    assert_eq!(loss.bytes, 8192);
    assert!((loss.seconds.unwrap() - 2.588).abs() < 1e-3, "{loss:?}");
    let text = report.text();
    assert!(text.contains("lost for 12 min 34 s: no answer for 10 s"), "{text}");
    assert!(text.contains("to be copied 8.2 kB"), "{text}");
    assert!(!report.in_sync());
}

#[test]
fn where_nothing_can_be_promoted_no_loss_is_told() {
    for state in [LegState::Copying, LegState::Unrelated, LegState::Diverged, LegState::Connecting]
    {
        assert_eq!(report(vec![leg(state)], &[]).legs[0].loss, None, "{state:?}");
    }
}

#[test]
fn json_goes_both_ways() {
    let report = report(vec![leg(LegState::InSync), leg(LegState::Failed)], &[]);
    let text = serde_json::to_string(&report).unwrap();
    assert!(text.contains(r#""state":"in-sync""#), "{text}");
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
}

#[test]
fn numbers_are_for_people() {
    assert_eq!([0, 999, 1000, 999_949].map(bytes), ["0 bytes", "999 bytes", "1.0 kB", "999.9 kB"]);
    assert_eq!(bytes(999_950), "1.0 MB");
    let times = [0.0, 0.26, 9.96, 59.4, 59.6, 3599.4, 7380.0, 90_000.0].map(time);
    assert_eq!(
        times,
        ["0.0 s", "0.3 s", "10 s", "59 s", "1 min", "59 min 59 s", "2 h 3 min", "1 d 1 h"]
    );
    assert_eq!(clock(0.0), "1970-01-01 00:00:00.000 UTC");
    assert_eq!(clock(1_709_208_000.5), "2024-02-29 12:00:00.500 UTC");
    assert_eq!(clock(4_107_542_400.0), "2100-03-01 00:00:00.000 UTC");
}

#[test]
fn a_local_disk_that_failed_is_told_first_and_nothing_is_in_sync() {
    let mut report = report(vec![leg(LegState::InSync)], &[]);
    assert!(report.in_sync());
    report.local_failure = Some("medium error: input/output error".into());
    let text = report.text();
    let line = text.lines().nth(2);
    assert_eq!(line, Some("the local disk has failed: medium error: input/output error"));
    assert!(!report.in_sync());
}
