//! The live view's table: which columns a screen has room for, and what stands in them. The richest
//! set that fits is shown whole; only below it is a column cut.

use std::collections::VecDeque;

use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row as Cells, Table};
use tcpmon::row::Row;

use super::draw::colour;
use super::units::{bits, bytes, cause, time};
use crate::cmd::live;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Process,
    /// The port here and the other end, in one.
    Connection,
    Local,
    Peer,
    Algorithm,
    /// In the direction that has more of it.
    Rate,
    Sent,
    Received,
    Rtt,
    RttMin,
    Cwnd,
    Flight,
    Queue,
    Resent,
    Limit,
    /// Its rate in the intervals before.
    Past,
}

use Column::{
    Algorithm, Connection, Cwnd, Flight, Limit, Local, Past, Peer, Process, Queue, Rate, Received,
    Resent, Rtt, RttMin, Sent,
};

/// Both directions and both ends, from some 140 columns on.
const ALL: &[Column] = &[
    Process, Local, Peer, Algorithm, Sent, Received, Rtt, RttMin, Cwnd, Flight, Queue, Resent,
    Limit, Past,
];
/// With the past, from some 100 columns on.
const SOME: &[Column] =
    &[Process, Connection, Rate, Rtt, RttMin, Cwnd, Flight, Queue, Resent, Limit, Past];
/// For 80 columns.
const FEW: &[Column] = &[Process, Connection, Rate, Rtt, Cwnd, Flight, Queue, Resent, Limit];
/// Cells of a curve: fewer say nothing, more are in the curves below the table.
const PAST_MIN: u16 = 10;
const PAST_MAX: u16 = 40;
/// What is left of names and addresses on a screen where nothing fits.
const NAME_MIN: u16 = 9;
const CONNECTION_MIN: u16 = 16;

impl Column {
    fn heading(self) -> &'static str {
        match self {
            Process => "PROCESS",
            Connection => "CONNECTION",
            Local => "LOCAL",
            Peer => "PEER",
            Algorithm => "CC",
            Rate => "RATE",
            Sent => "SENT",
            Received => "RECEIVED",
            Rtt => "RTT",
            RttMin => "RTT MIN",
            Cwnd => "CWND",
            Flight => "FLGHT",
            Queue => "QUEUE",
            Resent => "RTX",
            Limit => "LIMIT",
            Past => "RATE, PAST",
        }
    }

    fn is_number(self) -> bool {
        !matches!(self, Process | Connection | Local | Peer | Algorithm | Limit | Past)
    }

    /// What the column needs to be whole; texts as long as the longest of them.
    fn width(self, rows: &[Row]) -> u16 {
        match self {
            Process | Connection | Local | Peer | Algorithm => {
                let texts = rows.iter().map(|row| self.text(row).chars().count());
                let most = texts.chain([self.heading().len()]).max().unwrap_or_default();
                u16::try_from(most).unwrap_or(u16::MAX)
            }
            Received => 8,
            Rate | RttMin => 7,
            Sent | Rtt => 6,
            Cwnd | Flight | Queue => 5,
            Resent => 4,
            Limit => 11,
            Past => PAST_MIN,
        }
    }

    fn text(self, row: &Row) -> String {
        match self {
            Process => row.process.as_ref().map_or("-", |owner| owner.comm.as_str()).to_owned(),
            // The port that tells connections apart is the one that does not serve.
            Connection if row.serves => row.connection.remote.to_string(),
            Connection => format!("{}→{}", row.connection.local.port(), row.connection.remote),
            Local => row.connection.local.to_string(),
            Peer => row.connection.remote.to_string(),
            Algorithm => row.congestion_control.clone(),
            Rate if row.sent_bytes_per_s >= row.received_bytes_per_s => {
                format!("↑{}", bits(row.sent_bytes_per_s))
            }
            Rate => format!("↓{}", bits(row.received_bytes_per_s)),
            Sent => bits(row.sent_bytes_per_s),
            Received => bits(row.received_bytes_per_s),
            Rtt => time(row.rtt_us),
            RttMin => time(row.rtt_min_us),
            Cwnd => bytes(row.cwnd_bytes),
            Flight => bytes(row.in_flight_bytes),
            Queue => bytes(row.send_queue_bytes.max(row.receive_queue_bytes).into()),
            Resent => row.retransmitted_segments.to_string(),
            Limit => cause(row.cause).to_owned(),
            Past => String::new(),
        }
    }

    fn cell(self, row: &Row, past: Option<&VecDeque<u64>>, width: u16) -> Cell<'static> {
        let text = self.text(row);
        match self {
            Limit => Cell::from(text).style(colour(row.cause)),
            Past => {
                let bars = past.map(|curve| live::bars(curve, width.into()));
                Cell::from(bars.unwrap_or_default()).cyan()
            }
            Resent if row.retransmitted_segments > 0 => {
                Cell::from(Line::from(text).right_aligned()).red()
            }
            _ if self.is_number() => Cell::from(Line::from(text).right_aligned()),
            _ => Cell::from(shortened(text, width)),
        }
    }
}

/// A text that says so where its end has no room: an address without its last digit is another one.
pub(super) fn shortened(text: String, width: u16) -> String {
    let width = usize::from(width);
    match text.char_indices().nth(width) {
        None => text,
        Some(_) => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// The columns for a screen of this width, each with its own.
fn columns(rows: &[Row], screen: u16) -> Vec<(Column, u16)> {
    let measured = |set: &[Column]| -> Vec<(Column, u16)> {
        set.iter().map(|column| (*column, column.width(rows))).collect()
    };
    let richer = [ALL, SOME].into_iter().map(measured).find(|set| taken(set) <= screen);
    let mut chosen = richer.unwrap_or_else(|| measured(FEW));
    let mut over = taken(&chosen).saturating_sub(screen);
    let left = screen.saturating_sub(taken(&chosen));
    for (column, width) in &mut chosen {
        let least = match column {
            Process => NAME_MIN,
            Connection => CONNECTION_MIN,
            Past => {
                *width += left.min(PAST_MAX - PAST_MIN);
                continue;
            }
            _ => continue,
        };
        let cut = width.saturating_sub(least).min(over);
        *width -= cut;
        over -= cut;
    }
    chosen
}

/// All of them, and a blank between two.
fn taken(columns: &[(Column, u16)]) -> u16 {
    let blanks = u16::try_from(columns.len()).unwrap_or(u16::MAX).saturating_sub(1);
    columns.iter().fold(blanks, |sum, (_, width)| sum.saturating_add(*width))
}

/// Where the curves stand in a table that fills this area, if they have room.
pub(super) fn curves(rows: &[Row], area: Rect) -> Option<Rect> {
    let columns = columns(rows, area.width);
    let at = columns.iter().position(|(column, _)| matches!(column, Past))?;
    let left = taken(&columns[..at]) + u16::from(at > 0);
    let x = area.x.saturating_add(left);
    Some(Rect { x, width: columns[at].1, ..area }.intersection(area))
}

/// The table of these connections; `past` has the rates of each. Above those of `begins` a line
/// stays empty.
pub(super) fn table<'a>(
    rows: &[Row],
    past: impl Fn(&Row) -> Option<&'a VecDeque<u64>>,
    begins: &[usize],
    screen: u16,
) -> Table<'static> {
    let columns = columns(rows, screen);
    let lines = rows.iter().enumerate().flat_map(|(at, row)| {
        let past = past(row);
        let cells = columns.iter().map(|(column, width)| column.cell(row, past, *width));
        let empty = begins.contains(&at).then(|| Cells::new(Vec::<Cell<'_>>::new()));
        empty.into_iter().chain([Cells::new(cells.collect::<Vec<_>>())])
    });
    // Numbers stand under the right end of their names.
    let head = columns.iter().map(|(column, _)| {
        let name = Line::from(column.heading());
        Cell::from(if column.is_number() { name.right_aligned() } else { name })
    });
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    Table::new(lines.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
        .header(
            Cells::new(head.collect::<Vec<_>>())
                .style(Style::new().add_modifier(Modifier::BOLD | Modifier::DIM)),
        )
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .column_spacing(1)
}
