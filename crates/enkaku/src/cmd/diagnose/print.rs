//! The answer as it is printed, whatever its source: for people, or one JSON object.

use std::io::IsTerminal;

use ratatui::crossterm::terminal::size;
use serde::Serialize;
use tcpmon::ethtool::Device;
use tcpmon::verdict::Judgement;

use crate::cmd::monitor::events::EventsState;
use crate::cmd::say;

/// On a screen that is narrower, folding helps nobody.
const WIDTH_MIN: usize = 20;

/// A judgement and what it is about.
#[derive(Serialize)]
pub(super) struct Answer {
    #[serde(flatten)]
    pub(super) judgement: Judgement,
    /// What the kernel's counters said, where packets were looked at because of their doubts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) counters: Option<Judgement>,
    /// Names of the processes at this end; a capture knows none.
    pub(super) processes: Vec<String>,
    /// The devices that the connections go through; a capture knows none.
    pub(super) devices: Vec<Device>,
    /// What was seen of events, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) events: Option<EventsState>,
    /// What they say about the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) events_say: Option<String>,
}

impl Answer {
    /// A judgement of which nothing else is known.
    pub(super) fn of(judgement: Judgement) -> Self {
        let (processes, devices) = (Vec::new(), Vec::new());
        Self { judgement, counters: None, processes, devices, events: None, events_say: None }
    }

    /// On stdout.
    pub(super) fn print(&self, json: bool) -> anyhow::Result<()> {
        if json { say(serde_json::to_string(self)?) } else { say(folded(&self.text(), width())) }
    }

    /// Where the answer is from, and why from there.
    fn source(&self) -> String {
        let source = self.judgement.source.as_str();
        let Some(counters) = &self.counters else { return source.to_owned() };
        let others = counters.not_excluded.iter().map(|cause| cause.as_str());
        let causes: Vec<&str> =
            [counters.verdict.cause.as_str()].into_iter().chain(others).collect();
        let (packets, causes) = (self.judgement.seconds, causes.join(" from "));
        format!("{source} of {packets:.1} s: the kernel's counters cannot tell {causes}")
    }

    /// The cause, the advice, the doubts, then the numbers.
    fn text(&self) -> String {
        let Judgement { verdict, .. } = &self.judgement;
        let mut lines = vec![format!("{}: {}", verdict.cause.as_str(), verdict.advice)];
        for doubt in &self.judgement.cannot_tell {
            let (cause, why, command) = (doubt.cause.as_str(), doubt.why, &doubt.command);
            lines.push(format!("Not excluded: {cause}. {why} What tells: {command}"));
        }
        lines.extend(self.events_say.clone());
        lines.push(String::new());
        lines.push(line("source", &self.source()));
        if !self.processes.is_empty() {
            lines.push(line("processes", &self.processes.join(", ")));
        }
        for device in &self.devices {
            let driver = device.driver.as_deref().unwrap_or("no driver");
            let note = device.note.map(|note| format!(": {note}")).unwrap_or_default();
            lines.push(line("device", &format!("{} ({driver}){note}", device.name)));
        }
        for (name, value) in &verdict.evidence {
            lines.push(line(name, &number(*value)));
        }
        lines.join("\n")
    }
}

/// Columns of the terminal; none where it is something else that reads.
fn width() -> Option<usize> {
    let terminal = std::io::stdout().is_terminal();
    terminal.then(|| size().ok()).flatten().map(|(columns, _)| columns.into())
}

/// Lines that are too long, in lines of whole words; a word that is longer has one of its own.
fn folded(text: &str, width: Option<usize>) -> String {
    let Some(width) = width.filter(|width| *width >= WIDTH_MIN) else { return text.to_owned() };
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.chars().count() <= width {
            lines.push(line.to_owned());
            continue;
        }
        let mut open = String::new();
        for word in line.split(' ') {
            if !open.is_empty() && open.chars().count() + 1 + word.chars().count() > width {
                lines.push(std::mem::take(&mut open));
            } else if !open.is_empty() {
                open.push(' ');
            }
            open.push_str(word);
        }
        lines.push(open);
    }
    lines.join("\n")
}

fn line(name: &str, value: &str) -> String {
    format!("{name:<28}{value}")
}

/// Shares and small rates with digits, bytes and counts without.
fn number(value: f64) -> String {
    let digits = if value.abs() < 10.0 && value.fract() != 0.0 { 4 } else { 0 };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tcpmon::verdict::{Bottleneck, CannotTell, Source, Verdict};

    use super::*;

    fn answer(source: Source) -> Answer {
        let verdict = Verdict {
            cause: Bottleneck::QueueDepth,
            evidence: BTreeMap::from([("loss", 0.00012), ("bytes_per_s", 5.25e6)]),
            advice: "Keep more commands outstanding.".into(),
            expected_bytes_per_s: None,
        };
        let doubt = CannotTell {
            cause: Bottleneck::R2t,
            why: "No PDUs are seen.",
            command: "enkaku diagnose --pcap session.pcapng".into(),
        };
        let judgement = Judgement {
            source,
            verdict,
            not_excluded: vec![Bottleneck::R2t],
            cannot_tell: vec![doubt],
            connections: 1,
            bytes_per_s: 5.25e6,
            seconds: 2.0,
        };
        Answer::of(judgement)
    }

    #[test]
    fn where_packets_decided_it_says_what_the_counters_said() {
        let mut decided = answer(Source::Capture);
        decided.judgement.cannot_tell.clear();
        decided.counters = Some(answer(Source::Samples).judgement);
        let (text, value) = (decided.text(), serde_json::to_value(&decided).unwrap());
        let why = "capture of 2.0 s: the kernel's counters cannot tell queue_depth from r2t";
        assert!(text.contains(why) && !text.contains("Not excluded"), "{text}");
        assert_eq!(value["counters"]["not_excluded"], serde_json::json!(["r2t"]));
    }

    #[test]
    fn words_are_whole_at_the_edge_of_a_terminal() {
        let text = "queue_depth: Keep more commands outstanding than you do now.\n\nshort   1";
        let narrow = folded(text, Some(24));
        assert_eq!(
            narrow,
            "queue_depth: Keep more\ncommands outstanding\nthan you do now.\n\nshort   1"
        );
        assert_eq!(folded(text, None), text);
        assert_eq!(folded(text, Some(8)), text, "no screen for people");
        let long = format!("{} {}", "x".repeat(30), "y".repeat(30));
        assert_eq!(folded(&long, Some(24)), long.replace(' ', "\n"));
    }

    #[test]
    fn both_sources_have_the_same_words_and_the_same_fields() {
        let [samples, capture] = [Source::Samples, Source::Capture].map(answer);
        let text = samples.text();
        assert_eq!(text.replace("samples", "capture"), capture.text());
        assert!(
            text.starts_with("queue_depth: Keep more commands outstanding.\nNot excluded: r2t. ")
        );
        assert!(text.contains("What tells: enkaku diagnose --pcap"), "{text}");
        let loss = "loss                        0.0001"; // no more digits
        assert!(text.lines().any(|line| line.ends_with(loss)), "{text}");
        let fields = |answer: &Answer| {
            let value = serde_json::to_value(answer).unwrap();
            value.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(fields(&samples), fields(&capture));
        for field in ["source", "cause", "evidence", "advice", "not_excluded", "cannot_tell"] {
            assert!(fields(&samples).iter().any(|one| one == field), "{field}");
        }
    }
}
