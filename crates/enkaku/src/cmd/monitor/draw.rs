//! The live view's picture: connections, and the past of the chosen one. Fits 80 × 24 and uses
//! more.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, TableState, Wrap};
use tcpmon::row::Row;
use tcpmon::verdict::Bottleneck;

use super::events::words;
use super::screen::{Curves, View};
use super::table::{curves, table};
use super::units::{bits, bytes, cause, time};
use crate::cmd::live;

/// Lines of a curve in a tall view.
const CURVE_MAX: u16 = 5;
/// Lines for the chosen connection besides its curves: what it is, its windows, what to do.
const CHOSEN_TEXT: u16 = 6;
/// Columns of a curve's label.
const LABEL: u16 = 30;

/// Draws everything.
pub(super) fn frame(frame: &mut Frame, view: &View) {
    let area = frame.area();
    let rows = view.round.connections.len() + view.sessions.len();
    let rows = u16::try_from(rows).unwrap_or(u16::MAX).max(3);
    let free = area.height.saturating_sub(rows.saturating_add(4 + CHOSEN_TEXT));
    let curve = (free / 4).clamp(1, CURVE_MAX);
    let [head, table, chosen, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(4),
        Constraint::Length(CHOSEN_TEXT + 4 * curve),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(frame, head, view);
    draw_table(frame, table, view);
    if let Some(row) = view.round.connections.get(view.selected) {
        draw_chosen(frame, chosen, row, view.curves.get(&row.connection), curve);
    }
    draw_foot(frame, foot, view);
}

fn draw_head(frame: &mut Frame, area: Rect, view: &View) {
    let round = &view.round;
    let count = round.connections.len() + round.left_out;
    let plural = if count == 1 { "connection" } else { "connections" };
    let line = Line::from(vec![
        Span::from("enkaku monitor").bold(),
        Span::from(format!("  {} · {count} {plural} · ", view.about)),
        Span::from(format!(
            "↑ {}bit/s  ↓ {}bit/s",
            bits(round.sent_bytes_per_s),
            bits(round.received_bytes_per_s)
        ))
        .bold(),
    ]);
    let events = Line::from(events_line(view)).dim();
    frame.render_widget(Paragraph::new(vec![line, events]), area);
}

/// Events of the chosen connection in the interval, and what cannot be seen; empty without
/// --events.
fn events_line(view: &View) -> String {
    let Some(state) = &view.round.events else { return String::new() };
    let row = view.round.connections.get(view.selected);
    let words = row.and_then(words).unwrap_or_else(|| "none".to_owned());
    let hidden: Vec<&str> = state
        .sources
        .iter()
        .filter(|source| source.refused.is_some())
        .flat_map(|source| source.shows.iter().map(|kind| kind.as_str()))
        .collect();
    let hidden = match hidden.is_empty() {
        true => String::new(),
        false => format!(" · not seen here: {}", hidden.join(", ")),
    };
    let lost = if state.lost > 0 { format!(" · {} lost", state.lost) } else { String::new() };
    format!("events: {words}{lost}{hidden}")
}

fn draw_table(frame: &mut Frame, area: Rect, view: &View) {
    if view.round.connections.is_empty() {
        let text = if view.round.at_s > 0.0 { "no connection yet" } else { "looking …" };
        frame.render_widget(Paragraph::new(text).dim(), area);
        return;
    }
    let rows = &view.round.connections;
    // Headings come where they take no connection's place.
    let fits = 1 + rows.len() + view.sessions.len() <= usize::from(area.height);
    let sessions = if fits { view.sessions.as_slice() } else { &[] };
    let begins: Vec<usize> = sessions.iter().map(|one| one.rows.start).collect();
    let past = |row: &Row| view.curves.get(&row.connection).map(|curves| &curves.bits_per_s);
    let table = table(rows, past, &begins, area.width);
    let above = begins.iter().filter(|begin| **begin <= view.selected).count();
    let mut state = TableState::new().with_selected(Some(view.selected + above));
    frame.render_stateful_widget(table, area, &mut state);
    if let Some(curves) = curves(rows, area) {
        live::upright(frame.buffer_mut(), curves);
    }
    for (above, session) in sessions.iter().enumerate() {
        let line = u16::try_from(1 + session.rows.start + above).unwrap_or(u16::MAX);
        let place = Rect { y: area.y.saturating_add(line), height: 1, ..area }.intersection(area);
        frame.render_widget(Paragraph::new(session.heading(rows, area.width)), place);
    }
}

pub(super) fn colour(cause: Option<Bottleneck>) -> Style {
    match cause {
        None => Style::new().dim(),
        Some(Bottleneck::LineRate) => Style::new().fg(Color::Green),
        Some(Bottleneck::CongestionLoss) => Style::new().fg(Color::Red),
        Some(Bottleneck::Application) => Style::new().fg(Color::Blue),
        Some(_) => Style::new().fg(Color::Yellow),
    }
}

/// Name, values, how a value is written, and the colour.
type Curve<'a> = (&'a str, &'a VecDeque<u64>, fn(u64) -> String, Color);

fn draw_chosen(frame: &mut Frame, area: Rect, row: &Row, curves: Option<&Curves>, height: u16) {
    let [title, more, advice, curves_area] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(CHOSEN_TEXT - 2),
        Constraint::Min(4),
    ])
    .areas(area);
    let text = row.advice.as_deref().unwrap_or("Nothing is transferred.");
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), advice);
    let line = Line::from(vec![
        Span::from(row.connection.to_string()).bold(),
        Span::from(format!("  {}  ", row.congestion_control)),
        Span::styled(cause(row.cause), colour(row.cause)),
    ]);
    frame.render_widget(Paragraph::new(line), title);
    let details = format!(
        "send buffer {}  peer's window {}  unsent {}  unread {}  RTT min {}",
        bytes(row.send_buffer_bytes.into()),
        bytes(row.send_window_bytes.into()),
        bytes(row.not_sent_bytes.into()),
        bytes(row.receive_queue_bytes.into()),
        time(row.rtt_min_us),
    );
    frame.render_widget(Paragraph::new(details).dim(), more);
    let Some(curves) = curves else { return };
    let lines: [Curve<'_>; 4] = [
        ("bit/s", &curves.bits_per_s, bytes, Color::Cyan),
        ("in flight", &curves.in_flight_bytes, bytes, Color::Magenta),
        ("RTT", &curves.rtt_us, |us| time(u32::try_from(us).unwrap_or(u32::MAX)), Color::Yellow),
        ("resent", &curves.retransmitted, |count| count.to_string(), Color::Red),
    ];
    let areas: [Rect; 4] = Layout::vertical([Constraint::Length(height); 4]).areas(curves_area);
    for ((name, values, unit, colour), area) in lines.into_iter().zip(areas) {
        live::draw_curve(frame, area, (label(name, values, unit), LABEL), values, colour);
    }
}

/// Name, value now, and the greatest of the curve.
fn label(name: &str, values: &VecDeque<u64>, unit: fn(u64) -> String) -> String {
    let now = unit(values.back().copied().unwrap_or(0));
    let most = unit(values.iter().copied().max().unwrap_or(0));
    format!("{name:<9} {now:>6}  max {most:>6} ")
}

fn draw_foot(frame: &mut Frame, area: Rect, view: &View) {
    let text = match (&view.round.note, view.round.left_out) {
        (_, more) if more > 0 => format!("q quit  ↑ ↓ choose · {more} more are not looked at"),
        (Some(note), _) => format!("q quit  ↑ ↓ choose · {note}"),
        _ => "q quit  ↑ ↓ choose".to_owned(),
    };
    frame.render_widget(Paragraph::new(text).dim(), area);
}

#[cfg(test)]
pub(super) mod tests;
