//! What the live views share: the past as curves, and keys.

use std::collections::VecDeque;
use std::time::Duration;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Paragraph, Sparkline};

/// A key is answered within this time.
pub(super) const KEY_WAIT: Duration = Duration::from_millis(50);
/// Values that a curve remembers: the width of a wide terminal.
const HISTORY: usize = 240;
/// Eighths of a cell.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Adds a value to the past.
pub(super) fn push(curve: &mut VecDeque<u64>, value: u64) {
    curve.push_back(value);
    if curve.len() > HISTORY {
        curve.pop_front();
    }
}

/// A value as a part of the greatest one, in a cell: the smallest bar says "little", a blank says
/// "nothing".
pub(super) fn bar(value: u64, most: u64) -> char {
    let eighths = (u128::from(value) * 8).div_ceil(u128::from(most.max(1)));
    BARS[usize::try_from(eighths).unwrap_or(8).min(8)]
}

/// The last `width` values in as many cells of a line of text.
pub(super) fn bars(values: &VecDeque<u64>, width: usize) -> String {
    let begin = values.len().saturating_sub(width);
    let most = values.range(begin..).copied().max().unwrap_or(0);
    values.range(begin..).map(|value| bar(*value, most)).collect()
}

/// Takes the highlight of a chosen row from the part with its curve: reversed, a low bar would be a
/// high one, and nothing would be a full cell.
pub(super) fn upright(buffer: &mut Buffer, area: Rect) {
    for position in area.intersection(buffer.area).positions() {
        buffer[position].modifier.remove(Modifier::REVERSED);
    }
}

/// A curve behind its label, which has so many columns.
pub(super) fn draw_curve(
    frame: &mut Frame,
    area: Rect,
    (label, columns): (String, u16),
    values: &VecDeque<u64>,
    colour: Color,
) {
    let [text, curve] =
        Layout::horizontal([Constraint::Length(columns), Constraint::Min(10)]).areas(area);
    frame.render_widget(Paragraph::new(label), text);
    let begin = values.len().saturating_sub(usize::from(curve.width));
    let values: Vec<u64> = values.range(begin..).copied().collect();
    frame.render_widget(Sparkline::default().data(&values).style(Style::new().fg(colour)), curve);
}

/// What a person wants of a live view.
pub(super) enum Key {
    Quit,
    Up,
    Down,
}

/// What an event of the terminal means, if anything.
pub(super) fn key(event: &Event) -> Option<Key> {
    let Event::Key(key) = event else { return None };
    if key.kind != KeyEventKind::Press {
        return None;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Quit),
        KeyCode::Up | KeyCode::Char('k') => Some(Key::Up),
        KeyCode::Down | KeyCode::Char('j') => Some(Key::Down),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod pictures {
    //! A screen as text, against the one in a file.

    use std::path::Path;

    use ratatui::backend::TestBackend;
    use ratatui::{Frame, Terminal};

    /// What is drawn on a screen of this size, line by line.
    pub(in super::super) fn picture(
        (width, height): (u16, u16),
        draw: impl FnOnce(&mut Frame<'_>),
    ) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(draw).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        let lines: Vec<String> = (0..height).map(|y| line(y).trim_end().to_owned()).collect();
        lines.join("\n") + "\n"
    }

    /// Compares with a file of a folder below this crate; `ENKAKU_GOLDEN=write` makes it anew.
    pub(in super::super) fn compare(folder: &str, name: &str, now: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(name);
        if std::env::var_os("ENKAKU_GOLDEN").is_some_and(|what| what == "write") {
            std::fs::write(&path, now).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap();
        assert!(golden == now, "{name} is another now:\n{now}");
    }
}
