//! The picture of `mirror top`: a line for each leg, and more of the chosen one. Fits 80 × 24 and
//! uses more. Pure: what is drawn is in the view.

use std::collections::VecDeque;
use std::fmt::Write as _;

use block::mirror::LegState;
use daemon::mirror::report::{LegReport, Report, bytes, clock, state_words, time};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Gauge, Paragraph, Row as Cells, Table, TableState};

use super::view::{Curves, Seen, View};
use crate::cmd::{live, without_numbers};

/// From this width on, the leg's place and its past have room in its line.
const WIDE: u16 = 110;
/// Lines of a curve in a tall view.
const CURVE_MAX: u16 = 6;
/// Lines for the chosen leg besides its curves.
const CHOSEN_TEXT: u16 = 7;
/// Cells of a leg's own curve in a wide view.
const ROW_CURVE: usize = 14;
/// Columns of a curve's label.
const LABEL: u16 = 32;

const FOOT: &str = "q quit  ↑ ↓ choose a leg · amounts in bytes, rates in bytes a second";

const HEAD: [&str; 9] =
    ["MIRROR", "LEG", "STATE", "FOR", "LAG", "ON ITS WAY", "TO COPY", "RATE", "LEFT"];

/// Name, past, unit and colour of a curve.
type Curve<'a> = (&'a str, &'a VecDeque<u64>, &'a dyn Fn(u64) -> String, Color);

/// Draws everything.
pub(super) fn frame(frame: &mut Frame, view: &View) {
    let area = frame.area();
    let rows = u16::try_from(rows(view)).unwrap_or(u16::MAX).max(1).saturating_add(1);
    let chosen = view.chosen();
    let free = area.height.saturating_sub(3).saturating_sub(rows.min(area.height / 2));
    let curve = (free.saturating_sub(CHOSEN_TEXT) / 4).min(CURVE_MAX);
    let below = if chosen.is_some() { (CHOSEN_TEXT + 4 * curve).min(free) } else { 0 };
    let [head, table, detail, _, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(rows.min(area.height.saturating_sub(3 + below))),
        Constraint::Length(below),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(frame, head, view);
    draw_table(frame, table, view);
    if let Some((report, leg)) = chosen {
        draw_chosen(frame, detail, report, leg, view.curves_of(report, leg), curve);
    }
    frame.render_widget(Paragraph::new(FOOT).dim(), foot);
}

/// Lines of the table.
fn rows(view: &View) -> usize {
    let of = |seen: &Seen| seen.report().map_or(1, |report| report.legs.len().max(1));
    view.seen.iter().map(of).sum()
}

/// `2 mirrors, 3 legs: 1 is not in sync`.
fn summary(view: &View) -> String {
    let count = |n: usize, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
    let running = view.seen.iter().filter(|seen| seen.report().is_some()).count();
    let legs = view.legs().count();
    let off = view.legs().filter(|(_, leg)| leg.state != LegState::InSync).count();
    let mut text = format!("{}, {}", count(running, "mirror"), count(legs, "leg"));
    text += &match (legs, off) {
        (0, _) => String::new(),
        (_, 0) => ": all in sync".to_owned(),
        (_, 1) => ": 1 is not in sync".to_owned(),
        (_, off) => format!(": {off} are not in sync"),
    };
    let other = view.seen.len() - running;
    if other > 0 {
        let _ = write!(text, "; {} not running", count(other, "mirror"));
    }
    text
}

fn draw_head(frame: &mut Frame, area: Rect, view: &View) {
    let alarm = view
        .legs()
        .any(|(report, leg)| report.local_failure.is_some() || colour(leg.state) == Color::Red);
    let text = Span::from(summary(view)).bold();
    let text = if alarm { text.red() } else { text };
    let mut line = vec![Span::from("enkaku mirror top").bold(), Span::from("  "), text];
    let now = view.legs().map(|(report, _)| report.time_s).reduce(f64::max);
    line.extend(now.map(|now| Span::from(format!("  {}", time_of_day(now))).dim()));
    frame.render_widget(Paragraph::new(Line::from(line)), area);
}

/// `12:03:07 UTC`.
fn time_of_day(unix_s: f64) -> String {
    let text = clock(unix_s.floor());
    let of_day = text.split(' ').nth(1).and_then(|text| text.split('.').next());
    format!("{} UTC", of_day.unwrap_or_default())
}

fn draw_table(frame: &mut Frame, area: Rect, view: &View) {
    if view.seen.is_empty() {
        let text = match view.looks {
            0 => "looking …",
            _ => "no mirror runs here (`enkaku mirror run NAME` starts one)",
        };
        return frame.render_widget(Paragraph::new(text).dim(), area);
    }
    let wide = area.width >= WIDE;
    let mut cells = Vec::new();
    let (mut chosen, mut at) = (None, 0);
    for seen in &view.seen {
        let Some(report) = seen.report() else {
            cells.push(Cells::new([
                Cell::from(short(seen.name(), 12)),
                Cell::from("-"),
                other(seen),
            ]));
            at += 1;
            continue;
        };
        for leg in &report.legs {
            if view
                .chosen()
                .is_some_and(|(of, is)| of.name == report.name && is.number == leg.number)
            {
                chosen = Some(at);
            }
            cells.push(leg_cells(report, leg, view.curves_of(report, leg), wide));
            at += 1;
        }
    }
    // Numbers stand under the right end of their names.
    let mut names: Vec<Cell<'_>> = (HEAD.iter().enumerate())
        .map(|(at, name)| {
            let line = Line::from(*name);
            Cell::from(if at >= 3 { line.right_aligned() } else { line })
        })
        .collect();
    if wide {
        names.extend(["RATE, PAST", "WHERE"].map(Cell::from));
    }
    let texts: [u16; 9] = [12, 3, 11, 7, 6, 10, 8, 8, 7];
    let mut widths: Vec<Constraint> = texts.map(Constraint::Length).into();
    if wide {
        widths.extend([Constraint::Length(ROW_CURVE as u16), Constraint::Min(10)]);
    }
    let table = Table::new(cells, widths)
        .header(Cells::new(names).style(Style::new().add_modifier(Modifier::BOLD | Modifier::DIM)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .column_spacing(1);
    let mut state = TableState::new().with_selected(chosen);
    frame.render_stateful_widget(table, area, &mut state);
    if wide {
        // A blank behind each.
        let x = texts.iter().fold(area.x, |x, width| x.saturating_add(width + 1));
        live::upright(frame.buffer_mut(), Rect { x, width: ROW_CURVE as u16, ..area });
    }
}

/// The cell of a mirror of which there is nothing to tell.
fn other(seen: &Seen) -> Cell<'static> {
    match seen {
        Seen::Stopped(_) => Cell::from("not running").dim(),
        _ => Cell::from("no answer").red(),
    }
}

/// The nine columns of a leg, as text.
fn columns(report: &Report, leg: &LegReport, curves: Option<&Curves>) -> [String; 9] {
    let rate = curves.and_then(Curves::rate);
    let left = leg.copy.and_then(|copy| copy.left_s);
    let dash = || "-".to_owned();
    [
        short(&report.name, 12),
        leg.number.to_string(),
        state(leg.state).to_owned(),
        span(leg.since_s),
        if leg.lag_bytes > 0 { span(leg.lag_s) } else { dash() },
        if leg.lag_bytes > 0 { amount(leg.lag_bytes) } else { dash() },
        if leg.dirty_bytes > 0 { amount(leg.dirty_bytes) } else { dash() },
        rate.map_or_else(dash, |rate| format!("{}/s", amount(rate))),
        left.map_or_else(dash, span),
    ]
}

fn leg_cells(
    report: &Report,
    leg: &LegReport,
    curves: Option<&Curves>,
    wide: bool,
) -> Cells<'static> {
    let mut cells: Vec<Cell<'static>> = Vec::new();
    for (at, text) in columns(report, leg, curves).into_iter().enumerate() {
        let line = Line::from(text);
        let cell = Cell::from(if at >= 3 { line.right_aligned() } else { line });
        cells.push(if at == 2 { cell.style(Style::new().fg(colour(leg.state))) } else { cell });
    }
    if wide {
        let past = curves.map_or_else(String::new, |curves| live::bars(&curves.sent, ROW_CURVE));
        cells.push(Cell::from(past).style(Style::new().fg(Color::Cyan)));
        // Its begin is the same everywhere, the host is not.
        let place = leg.name.strip_prefix("iscsi://").unwrap_or(&leg.name);
        cells.push(Cell::from(place.to_owned()));
    }
    Cells::new(cells)
}

fn draw_chosen(
    frame: &mut Frame,
    area: Rect,
    report: &Report,
    leg: &LegReport,
    curves: Option<&Curves>,
    height: u16,
) {
    let lines = CHOSEN_TEXT - 1;
    let [_, text, curves_area] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(lines), Constraint::Min(0)])
            .areas(area);
    let mut said: Vec<Line<'_>> = Vec::new();
    for (at, line) in describe(report, leg).into_iter().enumerate() {
        let line = Line::from(line);
        said.push(if at == 0 { line.bold() } else { line });
    }
    let bar = u16::try_from(said.len()).unwrap_or(lines);
    frame.render_widget(Paragraph::new(said), text);
    if let Some(copy) = leg.copy.filter(|_| bar < text.height) {
        let whole = copy.done_bytes.saturating_add(copy.left_bytes).max(1);
        let gauge = Gauge::default()
            .ratio((copy.done_bytes as f64 / whole as f64).clamp(0.0, 1.0))
            .gauge_style(Style::new().fg(Color::Yellow));
        let area = Rect { y: text.y + bar, height: 1, width: text.width.min(80), ..text };
        frame.render_widget(gauge, area);
    }
    let Some(curves) = curves.filter(|_| height > 0) else { return };
    let rate = |count: u64| format!("{}/s", amount(count));
    let ms = |ms: u64| span(ms as f64 / 1e3);
    let all: [Curve<'_>; 4] = [
        ("written", &curves.written, &rate, Color::Green),
        ("sent", &curves.sent, &rate, Color::Cyan),
        ("lag", &curves.lag_ms, &ms, Color::Yellow),
        ("behind", &curves.behind_bytes, &amount, Color::Magenta),
    ];
    let areas: [Rect; 4] = Layout::vertical([Constraint::Length(height); 4]).areas(curves_area);
    for ((name, values, unit, colour), area) in all.into_iter().zip(areas) {
        live::draw_curve(frame, area, (label(name, values, unit), LABEL), values, colour);
    }
}

/// What is to be said of a leg, in at most six lines.
fn describe(report: &Report, leg: &LegReport) -> Vec<String> {
    let Report { front, pid, generation, .. } = report;
    let why = leg.message.as_deref().map(without_numbers);
    let why = why.map_or_else(String::new, |why| format!(": {why}"));
    let mut lines = vec![
        format!("{} leg {} · {}", report.name, leg.number, leg.name),
        format!("{} for {}{why}", state_words(leg.state), time(leg.since_s)),
    ];
    let image = leg.image_time_s.map_or_else(String::new, |at| {
        format!(" · image of {} ({} ago)", time_of_day(at), time((report.time_s - at).max(0.0)))
    });
    lines.push(match (leg.loss, leg.consistent) {
        (Some(loss), _) => format!("promote now would lose: {}{image}", loss.describe()),
        (None, true) => format!("nothing to promote yet{image}"),
        (None, false) => "promote now is refused: the image there is not of one moment".into(),
    });
    lines.push(match &report.local_failure {
        Some(failure) => format!("the local disk has failed: {failure}"),
        None => format!(
            "sent {} · written {} · writes have waited {}",
            bytes(leg.sent_bytes),
            bytes(report.written_bytes),
            time(report.guest_wait_s)
        ),
    });
    match &leg.copy {
        Some(copy) => lines.push(format!("copy: {}", copy.describe())),
        None => lines.push(format!(
            "{} as {front} for {} (process {pid}, generation {generation})",
            bytes(report.size_bytes),
            time(report.uptime_s)
        )),
    }
    lines
}

/// Name, value now, and the greatest of the curve.
fn label(name: &str, values: &VecDeque<u64>, unit: &dyn Fn(u64) -> String) -> String {
    let now = values.back().map_or_else(|| "-".into(), |value| unit(*value));
    let most = values.iter().copied().max().map_or_else(|| "-".into(), unit);
    format!("{name:<8} {now:>8}  max {most:>8} ")
}

/// Lines of text for a pipe.
pub(super) fn text(view: &View) -> String {
    let mut text = summary(view);
    if view.seen.is_empty() {
        return "no mirror runs here".to_owned();
    }
    text.push('\n');
    let line = |text: &mut String, columns: &[String; 9]| {
        let [name, leg, state, since, lag, way, copy, rate, left] = columns;
        let line = format!(
            "{name:<12} {leg:<3} {state:<11} {since:>7} {lag:>6} {way:>10} {copy:>8} {rate:>8} \
             {left:>7}"
        );
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(&mut text, &HEAD.map(str::to_owned));
    for seen in &view.seen {
        match seen {
            Seen::Running(report) => {
                for leg in &report.legs {
                    line(&mut text, &columns(report, leg, view.curves_of(report, leg)));
                }
            }
            Seen::Stopped(name) => {
                let _ = writeln!(text, "{:<12} -   not running", short(name, 12));
            }
            Seen::Silent(name, why) => {
                let _ = writeln!(text, "{:<12} -   {why}", short(name, 12));
            }
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// A state in at most eleven columns.
fn state(state: LegState) -> &'static str {
    match state {
        LegState::Copying => "first copy",
        LegState::Diverged => "diverged",
        other => state_words(other),
    }
}

fn colour(state: LegState) -> Color {
    match state {
        LegState::InSync => Color::Green,
        LegState::Connecting | LegState::Copying | LegState::CatchingUp => Color::Yellow,
        LegState::Paused => Color::Blue,
        LegState::Lost
        | LegState::Fenced
        | LegState::Diverged
        | LegState::Unrelated
        | LegState::Failed => Color::Red,
    }
}

/// A name in so many columns.
fn short(name: &str, width: usize) -> String {
    match name.chars().count() > width {
        true => name.chars().take(width - 1).chain(['…']).collect(),
        false => name.to_owned(),
    }
}

/// Bytes in at most six columns: `0`, `640k`, `1.5M`, powers of 1000.
fn amount(count: u64) -> String {
    let value = count as f64;
    for (unit, suffix) in [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value >= unit {
            let scaled = value / unit;
            let digits = if scaled < 9.995 { 2 } else { usize::from(scaled < 99.95) };
            return format!("{scaled:.digits$}{suffix}");
        }
    }
    count.to_string()
}

/// A time in at most six columns: `0.3s`, `12s`, `4m10s`, `3h05m`, `2d04h`, `120d`.
fn span(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        _ if seconds < 9.95 => format!("{seconds:.1}s"),
        0..60 => format!("{whole}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3600..86_400 => format!("{}h{:02}m", whole / 3600, whole % 3600 / 60),
        86_400..8_640_000 => format!("{}d{:02}h", whole / 86_400, whole % 86_400 / 3600),
        _ => format!("{}d", whole / 86_400),
    }
}

#[cfg(test)]
mod tests;
