//! Ceilings in the order in which they have to go, each with what is to be expected when it and
//! those before it are gone: the lowest of what they permit then, of those that stay, and of the
//! line.

use super::case::{Case, Ceiling};
use super::{Cause, Direction, Finding, Part, block, measured, windows};

/// A ceiling below this part of the line holds it back; to the plan, too, a line is filled there.
const FILLED: f64 = 0.95;
/// A gain below this is no promise.
const WORTH: f64 = 1.1;
/// What was seen above this part of a calculated ceiling shows that it is none.
const REFUTED: f64 = 0.8;

/// Judges one direction.
pub(super) fn part(case: &Case<'_>) -> Part {
    let mut ceilings = block::ceilings(case);
    ceilings.extend(windows::ceilings(case));
    let remark = measured::apply(case, &mut ceilings);
    let rate = case.transfer().map(|transfer| transfer.bytes_per_s);
    let line = case.line();
    if measured::is_line(case) {
        // Whatever else is set low, the line is what holds it up.
        ceilings.clear();
    }
    ceilings.retain(|one| one.measured || is_in_the_way(one, rate, line));
    ceilings.sort_by(|a, b| b.measured.cmp(&a.measured).then(a.now.total_cmp(&b.now)));
    let direction = if case.writes { Direction::Writes } else { Direction::Reads };
    let findings = chain(ceilings, rate, line);
    let all = findings.iter().rev().find_map(|one| one.expected_bytes_per_s);
    let expected_bytes_per_s = if findings.is_empty() { rate.or(Some(line)) } else { all };
    Part { direction, bytes_per_s: rate, findings, expected_bytes_per_s, remark }
}

fn is_in_the_way(one: &Ceiling, rate: Option<f64>, line: f64) -> bool {
    let refuted = rate.is_some_and(|rate| rate * REFUTED > one.now);
    one.now < line * FILLED && !refuted
}

fn chain(ceilings: Vec<Ceiling>, rate: Option<f64>, line: f64) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut before = rate.or_else(|| ceilings.first().map(|one| one.now)).unwrap_or(line);
    // What is not known after one change is not known after the next one either.
    let mut gone = Some(f64::INFINITY);
    let (nows, words): (Vec<f64>, Vec<&str>) =
        ceilings.iter().map(|one| (one.now, name(one.cause))).unzip();
    for (at, one) in ceilings.into_iter().enumerate() {
        gone = gone.zip(one.after).map(|(so_far, after)| so_far.min(after));
        let next = nows.iter().zip(&words).skip(at + 1).min_by(|a, b| a.0.total_cmp(b.0));
        let stays = next.map_or(line, |(now, _)| now.min(line));
        let expected = gone.map(|gone| gone.min(stays)).filter(|rate| *rate > before * WORTH);
        let then = expected.map(|expected| match next {
            Some((now, word)) if *now <= expected => (*word).to_owned(),
            _ if line <= expected => "the line".to_owned(),
            _ => "the same, further up".to_owned(),
        });
        before = expected.unwrap_or(before);
        findings.push(one.finding(expected, then));
    }
    findings
}

/// In "then … is what limits".
fn name(cause: Cause) -> &'static str {
    match cause {
        Cause::ReadAhead => "the read-ahead",
        Cause::QueueDepth => "the queue depth",
        Cause::CommandsMax => "the session's commands",
        Cause::RequestSize => "the size of requests",
        Cause::Depth | Cause::Application => "the application",
        Cause::R2t => "the wait for R2Ts",
        Cause::ReceiveWindow => "the receive window",
        Cause::SendBuffer => "the send buffer",
        Cause::WindowScaling => "the window without scaling",
        Cause::CongestionLoss => "losses",
        Cause::CongestionWindow => "the congestion window",
        Cause::Device => "the network device",
        Cause::SlowerLine => "the path",
        Cause::Storage => "the target's storage",
        _ => "something else",
    }
}
