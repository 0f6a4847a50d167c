//! Hundreds of seeds, and the proof that they mean something: what has to happen in them happens,
//! they can be repeated, and mistakes made on purpose are found.

use sim::{Coverage, Options, Report, Sabotage, run_all};

/// Seeds run by default; `SIM_SEEDS=N` or `SIM_SEEDS=FIRST..LAST` asks for others: `make check` for
/// fewer, `make soak` for those behind them, batch after batch.
const SEEDS: std::ops::Range<u64> = 0..2000;

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SIM_SEEDS") else { return SEEDS };
    let number = |text: &str| text.trim().parse().expect("SIM_SEEDS=N or SIM_SEEDS=FIRST..LAST");
    match text.split_once("..") {
        Some((first, last)) => number(first)..number(last),
        None => 0..number(&text),
    }
}

fn reports(seeds: std::ops::Range<u64>, options: Options) -> Vec<Report> {
    let mut reports = Vec::new();
    run_all(seeds, options, |report| {
        reports.push(report);
        true
    });
    reports
}

/// What a few hundred seeds must have seen, or the simulation has lost its teeth.
const EVENTS: [&str; 82] = [
    "abort came too late",
    "command failed",
    "command issued again",
    "Data-In again",
    "R2T again",
    "command sent again",
    "connection ended by a data digest",
    "connection logged out for recovery",
    "connection recovery finished",
    "cut: full feature phase",
    "cut: last login response under way",
    "cut: login, operational stage",
    "cut: login, security stage",
    "cut: logout answered",
    "cut: logout asked for",
    "damage: Data-In",
    "damage: Data-Out",
    "damage: header to the initiator",
    "damage: header to the target",
    "damage: immediate data",
    "damage: quoted header of a Reject",
    "damage: sense",
    "damage: text of a request",
    "damage: text of a response",
    "initiator: data SNACK",
    "initiator: R2T SNACK",
    "initiator: status SNACK",
    "lost: Data-In",
    "lost: Data-Out",
    "lost: R2T",
    "lost: SCSI command",
    "lost: SCSI response",
    "lost: SNACK",
    "lost: logout request",
    "lost: logout response",
    "lost connection taken over by its CID",
    "pdu: DataACK",
    "pdu: R2T after reassignment",
    "pdu: Reject",
    "pdu: logout for recovery",
    "pdu: recovery R2T",
    "session recovery as the last resort",
    "session resumed after all connections were lost",
    "status again",
    "task reassigned: read",
    "task reassigned: write",
    "target: tasks given up",
    "connection asked to leave",
    "connection joined",
    "connection logged out",
    "connection lost",
    "data: immediate",
    "data: unsolicited",
    "fault: black hole",
    "fault: initiator closes",
    "fault: reset",
    "fault: target closes",
    "initiator: ping timeout",
    "login lost",
    "login timeout",
    "operation: aborted",
    "operation: failed",
    "operation: good",
    "pdu: Data-In",
    "pdu: Data-Out",
    "pdu: NOP-In as question",
    "pdu: NOP-Out",
    "pdu: NOP-Out as answer",
    "pdu: R2T",
    "pdu: SCSI response",
    "pdu: logout response",
    "pong",
    "session closed",
    "session failed",
    "session reinstated",
    "session restarted",
    "target: command admitted at once",
    "target: command held back",
    "target: ping timeout",
    "target: task dropped",
    "task management: task ended",
    "text exchange",
];

#[test]
fn seeds_hold_and_meet_everything_they_should() {
    let reports = reports(seeds(), Options::default());
    let mut coverage = Coverage::default();
    for report in &reports {
        if let Some(failure) = &report.failure {
            let seed = report.seed;
            panic!(
                "seed {seed} failed {failure}\nagain: cargo run -p sim --release -- --seed {seed} -v"
            );
        }
        coverage.merge(&report.coverage);
    }
    println!("{} seeds\n{coverage}", reports.len());
    if reports.len() >= 400 {
        let missing: Vec<_> = EVENTS.iter().filter(|event| coverage.count(event) == 0).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}

#[test]
fn a_seed_is_the_same_run_every_time() {
    let digests = |reports: Vec<Report>| {
        let mut digests: Vec<_> = reports
            .into_iter()
            .map(|report| (report.seed, report.digest, report.elapsed))
            .collect();
        digests.sort_unstable();
        digests
    };
    let first = digests(reports(0..30, Options::default()));
    assert_eq!(first, digests(reports(0..30, Options::default())));
    let mut distinct: Vec<u64> = first.iter().map(|(_, digest, _)| *digest).collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 30, "different seeds are different runs");
}

/// Each mistake and the verdicts it may meet.
const MISTAKES: [(Sabotage, &[&str]); 18] = [
    (Sabotage::StaleExecution, &["reaches the medium although its end was told before"]),
    (Sabotage::StaleData, &["allowed:"]),
    (Sabotage::LoseCommand, &["nothing has ended for"]),
    (Sabotage::DuplicateExecution, &["is executed twice"]),
    (Sabotage::ReorderExecution, &["is executed after", "nothing has ended for"]),
    (Sabotage::StatSn, &["StatSN, expected"]),
    (Sabotage::MaxCmdSn, &["MaxCmdSN went back"]),
    (Sabotage::DataSn, &["SN, expected"]),
    (Sabotage::CmdSn, &["CmdSN, expected"]),
    (Sabotage::Padding, &["padding is not zero"]),
    (Sabotage::Task, &["no such task"]),
    (
        Sabotage::CorruptedData,
        &[
            "some of the data never came",
            "first difference",
            "the command block is damaged",
            "is garbage",
            "ExpCmdSN beyond a command that was not received",
        ],
    ),
    (Sabotage::EarlyAcknowledgement, &["ExpStatSN of what has not arrived"]),
    (Sabotage::SnackBeyond, &["SNACK for what was never sent"]),
    (
        Sabotage::RecoveryR2tOffset,
        &[
            "beyond the command",
            "offset, expected",
            "sense of another",
            "status while data is outstanding",
            "nothing has ended for",
        ],
    ),
    (Sabotage::StatusChanged, &["a status again, but not the same"]),
    (Sabotage::ReassignedOffset, &["offset, expected", "beyond the command"]),
    (Sabotage::NotHeld, &["before it was admitted"]),
];

#[test]
fn mistakes_made_on_purpose_are_found() {
    for (mistake, verdicts) in MISTAKES {
        let options = Options { sabotage: Some(mistake), ..Options::default() };
        let reports = reports(0..24, options);
        let found = reports.iter().filter_map(|report| report.failure.as_ref());
        let (right, wrong): (Vec<_>, Vec<_>) =
            found.partition(|found| verdicts.iter().any(|verdict| found.contains(verdict)));
        println!("{mistake:?}: found in {} of 24 runs", right.len());
        assert!(wrong.is_empty(), "{mistake:?} was taken for something else: {}", wrong[0]);
        // The occasion for a mistake in recovery is rarer than that for a command.
        let least = if mistake.is_about_recovery() { 3 } else { 6 };
        assert!(right.len() >= least, "{mistake:?} was found in {} of 24 runs", right.len());
    }
    assert_eq!(MISTAKES.len(), Sabotage::ALL.len());
}
