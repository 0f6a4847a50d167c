//! The report as one page for a ticket: nothing is fetched from anywhere, nothing runs in it, and
//! every word that came from outside is escaped.

use std::fmt::Write;

use super::curves::curves;
use super::{
    AGAIN, LOGIN, Report, about, again, closing, heading, logins, occasion, opening, sized,
};
use crate::facts::{Session, Tcp};
use crate::judge::{Diagnosis, Finding, GoalFrom, Part, Step};
use crate::units::{rate, size};

const STYLE: &str = "
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  color: #1b1b1b; background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; border-top: 1px solid #bbb; padding-top: 1rem;
  overflow-wrap: anywhere } h3 { font-size: 1rem }
pre { background: #f2f2f2; padding: .5rem; overflow-x: auto; margin: .3rem 0 }
li { margin-bottom: 1rem } table { border-collapse: collapse; font-size: .9rem }
td, th { text-align: left; padding: .1rem .8rem .1rem 0; vertical-align: top;
  overflow-wrap: anywhere }
.small { color: #555; font-size: .9rem } svg { max-width: 100%; height: auto }
@media (prefers-color-scheme: dark) { body { color: #e6e6e6; background: #161616 }
  pre { background: #262626 } .small { color: #aaa } svg text { fill: #e6e6e6 } }";
/// Bars of a figure: its width, what is kept for words, and the height of one.
const BARS: (f64, f64, f64) = (720.0, 300.0, 26.0);

/// The page. `written` says when and by what, in one line.
pub fn html(report: &Report, written: &str) -> String {
    let mut page =
        String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n");
    page.push_str(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'\"/>\n<meta name=\"viewport\" content=\"width=device-width\"/>\n\
         <title>enkaku doctor</title>\n",
    );
    let _ =
        write!(page, "<style>{STYLE}</style>\n</head>\n<body>\n<h1>Why is this iSCSI slow?</h1>\n");
    let _ = writeln!(page, "<p class=\"small\">{}</p>", escape(written));
    for (own, diagnosis) in report.pairs() {
        session(&mut page, own, diagnosis, report);
    }
    if !report.facts.unread.is_empty() {
        page.push_str("<h2>What could not be read</h2>\n<ul>\n");
        for one in &report.facts.unread {
            let _ = writeln!(page, "<li>{}: {}</li>", escape(&one.what), escape(&one.why));
        }
        page.push_str("</ul>\n");
    }
    host(&mut page, report);
    page.push_str("</body>\n</html>\n");
    page
}

/// For text and for attributes in double quotes.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

fn session(page: &mut String, session: &Session, diagnosis: &Diagnosis, report: &Report) {
    let _ = writeln!(page, "<h2>{}</h2>", escape(&heading(session)));
    let _ = writeln!(page, "<p>{}. {}</p>", escape(&about(session)), escape(&sized(diagnosis)));
    if diagnosis.is_certainly_healthy() {
        page.push_str("<p><strong>Nothing is wrong here.</strong></p>\n");
    }
    for one in &diagnosis.parts {
        let _ = writeln!(page, "<h3>{}</h3>", escape(&opening(one, &report.facts)));
        bars(page, one, diagnosis);
        findings(page, &one.findings);
        if let Some(text) = closing(one, diagnosis.goal.from == GoalFrom::Said) {
            let _ = writeln!(page, "<p>{}</p>", escape(&text));
        }
    }
    if !diagnosis.notes.is_empty() {
        page.push_str("<h3>Besides</h3>\n");
        findings(page, &diagnosis.notes);
    }
    for (words, changes) in [(LOGIN, logins(diagnosis)), (AGAIN, again(diagnosis))] {
        if changes.is_empty() {
            continue;
        }
        let lines: Vec<&str> = changes.iter().map(|change| change.command.as_str()).collect();
        let lines = escape(&lines.join("\n"));
        let _ = writeln!(page, "<p>{}</p>\n<pre>{lines}</pre>", escape(words));
    }
    sockets(page, &session.sockets);
    if let Some(found) = &session.curves {
        curves(page, found);
    }
    if let Some(transfer) = &session.transfer {
        page.push_str("<h3>What was measured</h3>\n<table>\n");
        for (name, value) in &transfer.evidence {
            row(page, name, &shown(name, *value));
        }
        page.push_str("</table>\n");
        for doubt in &transfer.cannot_tell {
            let _ = writeln!(page, "<p class=\"small\">{}</p>", escape(doubt));
        }
    }
}

fn findings(page: &mut String, findings: &[Finding]) {
    if findings.is_empty() {
        return;
    }
    page.push_str("<ol>\n");
    for one in findings {
        let _ = writeln!(page, "<li><strong>{}</strong>", escape(&one.title));
        if let Some(formula) = &one.formula {
            let _ = writeln!(page, "<br/>Permits: {}", escape(formula));
        }
        for says in &one.evidence {
            let _ = writeln!(page, "<br/>Seen: {} {}", escape(&says.name), escape(&says.value));
        }
        for change in one.changes.iter().filter(|change| change.step != Step::Login) {
            let occasion = occasion(change).map(|text| format!("# {text}\n")).unwrap_or_default();
            let _ = writeln!(page, "<pre>{}{}</pre>", escape(&occasion), escape(&change.command));
        }
        if let Some(expected) = one.expected_bytes_per_s {
            let then = one.then.as_ref().map(|what| format!(", then {what} is what limits"));
            let text = format!("Expect {}{}", rate(expected), then.unwrap_or_default());
            let _ = writeln!(page, "{}", escape(&text));
        }
        page.push_str("</li>\n");
    }
    page.push_str("</ol>\n");
}

/// Rates as bars: what is, what each change gives, what the line carries.
fn bars(page: &mut String, part: &Part, diagnosis: &Diagnosis) {
    let (width, words, height) = BARS;
    let now = part.bytes_per_s.or(part.findings.first().and_then(|one| one.limit_bytes_per_s));
    let mut rows: Vec<(String, f64)> = now.map(|now| ("now".to_owned(), now)).into_iter().collect();
    for (number, one) in (1..).zip(&part.findings) {
        let what = if number == 1 { "with 1".to_owned() } else { format!("with 1 to {number}") };
        rows.extend(one.expected_bytes_per_s.map(|rate| (what, rate)));
    }
    rows.push(("payload of the line".to_owned(), diagnosis.goal.bytes_per_s));
    let most = rows.iter().map(|(_, value)| *value).fold(1.0, f64::max);
    let tall = height * rows.len() as f64;
    let _ = writeln!(page, "<svg viewBox=\"0 0 {width} {tall}\" width=\"{width}\" role=\"img\">");
    for (at, (name, value)) in rows.iter().enumerate() {
        let top = height * at as f64;
        let long = ((width - words) * value / most).max(1.0);
        let middle = top + height * 0.65;
        let _ = writeln!(
            page,
            "<text x=\"0\" y=\"{middle:.1}\" font-size=\"13\">{}</text>\
             <rect x=\"160\" y=\"{:.1}\" width=\"{long:.1}\" height=\"{:.1}\" fill=\"#0072b2\"/>\
             <text x=\"{:.1}\" y=\"{middle:.1}\" font-size=\"13\">{}</text>",
            escape(name),
            top + 4.0,
            height - 8.0,
            168.0 + long,
            escape(&rate(*value)),
        );
    }
    page.push_str("</svg>\n");
}

fn sockets(page: &mut String, sockets: &[Tcp]) {
    if sockets.is_empty() {
        return;
    }
    page.push_str(
        "<table>\n<tr><th>connection</th><th>control</th><th>RTT, least</th><th>window</th>\
         <th>buffers, receive and send</th><th>sent again</th></tr>\n",
    );
    let bytes = |value: Option<u64>| value.map_or("?".to_owned(), |bytes| size(bytes as f64));
    let ms = |us: Option<f64>| us.map_or("?".to_owned(), |us| crate::units::time(us / 1e6));
    for tcp in sockets {
        let _ = writeln!(
            page,
            "<tr><td>{} → {}</td><td>{}</td><td>{}, {}</td><td>{}</td><td>{}, {}</td><td>{}</td></tr>",
            tcp.local,
            tcp.remote,
            escape(&tcp.congestion_control),
            ms(tcp.rtt_us),
            ms(tcp.rtt_min_us),
            bytes(tcp.cwnd_bytes),
            bytes(tcp.receive_buffer_bytes),
            bytes(tcp.send_buffer_bytes),
            tcp.retransmitted_segments,
        );
    }
    page.push_str("</table>\n");
}

fn host(page: &mut String, report: &Report) {
    page.push_str("<h2>The host</h2>\n<table>\n");
    for (name, value) in &report.facts.host.sysctls {
        row(page, name, value);
    }
    let used =
        |name: &str| report.facts.sessions.iter().any(|one| one.device.as_deref() == Some(name));
    for nic in report.facts.host.devices.iter().filter(|nic| used(&nic.name)) {
        let speed = nic.mbit_per_s.map_or("no line".to_owned(), |mbit| format!("{mbit} Mbit/s"));
        let words = [
            nic.driver.clone(),
            Some(speed),
            nic.mtu_bytes.map(|mtu| format!("MTU {mtu} bytes")),
            nic.qdisc.clone(),
        ];
        row(page, &nic.name, &words.into_iter().flatten().collect::<Vec<_>>().join(", "));
    }
    page.push_str("</table>\n");
}

fn row(page: &mut String, name: &str, value: &str) {
    let _ = writeln!(page, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
}

/// A number of the evidence with its unit, which ends its name.
fn shown(name: &str, value: f64) -> String {
    match name {
        name if name.ends_with("_bytes_per_s") || name == "bytes_per_s" => rate(value),
        name if name.ends_with("bytes") || name.contains("_bytes_") => size(value),
        name if name.ends_with("_us") => crate::units::time(value / 1e6),
        name if name.starts_with("share_") || name == "loss" => crate::units::share(value),
        "seconds" => crate::units::time(value),
        _ => format!("{value:.0}"),
    }
}
