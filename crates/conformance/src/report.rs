//! What came of the checks, as JSON (by serde) and as JUnit XML.

use std::fmt::Write;

use serde::Serialize;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The target did what the section asks for.
    Passed,
    /// It did not.
    Failed,
    /// It did not grant what the check needs, or the user did not allow it.
    Skipped,
}

impl Outcome {
    /// As in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// One check's result.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// `topic.what`.
    pub name: &'static str,
    /// Section of RFC 7143, or standard and section of SCSI.
    pub rfc: &'static str,
    /// How it ended.
    pub result: Outcome,
    /// What was seen, what was expected, or why it was skipped.
    pub detail: String,
    /// Time taken.
    #[serde(skip)]
    pub seconds: f64,
}

/// All results of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Number of checks that passed.
    pub passed: usize,
    /// Number of checks that failed.
    pub failed: usize,
    /// Number of checks that were skipped.
    pub skipped: usize,
    /// In the order they ran.
    pub checks: Vec<CheckReport>,
}

impl Report {
    pub(crate) fn add(&mut self, check: CheckReport) {
        *match check.result {
            Outcome::Passed => &mut self.passed,
            Outcome::Failed => &mut self.failed,
            Outcome::Skipped => &mut self.skipped,
        } += 1;
        self.checks.push(check);
    }

    /// As JUnit XML: one test suite, the topic as class name.
    pub fn junit(&self) -> String {
        let (tests, failed, skipped) = (self.checks.len(), self.failed, self.skipped);
        let seconds: f64 = self.checks.iter().map(|check| check.seconds).sum();
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        // Writing to a String cannot fail.
        let _ = writeln!(
            xml,
            "<testsuite name=\"iscsi-conformance\" tests=\"{tests}\" failures=\"{failed}\" \
             errors=\"0\" skipped=\"{skipped}\" time=\"{seconds:.3}\">"
        );
        for check in &self.checks {
            let (class, name) = check.name.split_once('.').unwrap_or(("", check.name));
            let (seconds, text) = (check.seconds, escape(&check.detail));
            let _ = write!(
                xml,
                "  <testcase classname=\"{}\" name=\"{}\" time=\"{seconds:.3}\">",
                escape(class),
                escape(name)
            );
            let scsi = check.rfc.starts_with('S');
            let rfc = format!("{}{}", if scsi { "" } else { "RFC " }, escape(check.rfc));
            let _ = match check.result {
                Outcome::Passed => write!(xml, "<system-out>{text}</system-out>"),
                Outcome::Failed => write!(xml, "<failure message=\"{rfc}: {text}\"/>"),
                Outcome::Skipped => write!(xml, "<skipped message=\"{text}\"/>"),
            };
            xml.push_str("</testcase>\n");
        }
        xml.push_str("</testsuite>\n");
        xml
    }
}

/// Text that came from a target may hold anything; XML 1.0 has no way to write control characters.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::default();
        for (name, result, detail) in [
            ("login.a", Outcome::Passed, "fine"),
            ("login.b", Outcome::Failed, "said \"<x>\" & \u{1}"),
            ("mcs.c", Outcome::Skipped, "MaxConnections is 1"),
        ] {
            let detail = detail.into();
            report.add(CheckReport { name, rfc: "6.3", result, detail, seconds: 0.25 });
        }
        report
    }

    #[test]
    fn junit_escapes_what_a_target_says() {
        let xml = report().junit();
        assert!(xml.contains("tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\""));
        assert!(xml.contains("said &quot;&lt;x&gt;&quot; &amp; \u{fffd}"), "{xml}");
        assert!(xml.contains("classname=\"mcs\" name=\"c\""));
    }

    #[test]
    fn every_result_is_counted_once() {
        let report = report();
        assert_eq!((report.passed, report.failed, report.skipped), (1, 1, 1));
    }
}
