//! The live view, cell by cell, at five widths against pictures of it: `ENKAKU_GOLDEN=write` makes
//! the pictures anew.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Modifier;
use tcpmon::diag::Owner;
use tcpmon::sample::Connection;

use super::*;
use crate::cmd::live::pictures;
use crate::cmd::monitor::rounds::Round;

pub(in crate::cmd::monitor) fn row(
    port: u16,
    process: &str,
    cause: Option<Bottleneck>,
    megabits: f64,
) -> Row {
    Row {
        connection: Connection {
            local: ([192, 168, 101, 17], port).into(),
            remote: ([192, 168, 202, 118], 3260).into(),
            cookie: port.into(),
        },
        process: Some(Owner { pid: port.into(), comm: process.to_owned() }),
        serves: false,
        state: "established",
        congestion_control: "bbr".to_owned(),
        sent_bytes_per_s: megabits * 125_000.0,
        received_bytes_per_s: 1_200.0,
        rtt_us: 101_400,
        rtt_min_us: 100_200,
        cwnd_bytes: 12_700_000,
        in_flight_bytes: 11_900_000,
        not_sent_bytes: 131_072,
        send_queue_bytes: 12_100_000,
        receive_queue_bytes: 0,
        send_buffer_bytes: 4_194_304,
        send_window_bytes: 3_145_728,
        delivery_bytes_per_s: 50_000_000,
        retransmitted_segments: 17,
        cause,
        advice: cause.map(|_| "What to change, in a sentence or two.".to_owned()),
        samples: 100,
        series: None,
        events: None,
    }
}

/// Numbers as wide as they come, for half a minute.
fn view() -> View {
    let mut view = View::new("port 3260");
    for second in 0..30 {
        let rate = 100.0 + 7.0 * f64::from(second % 9);
        let connections = vec![
            row(45282, "enkaku", Some(Bottleneck::LineRate), rate),
            row(45300, "qemu-storage-da", Some(Bottleneck::ReceiveWindow), 2.0 * rate),
            row(45301, "dd", None, 0.0),
        ];
        view.names.know(&connections[0], "iqn.2026-11.org.example:disks.first");
        view.names.know(&connections[1], "iqn.2026-11.org.example:disks.second");
        view.names.know(&connections[2], "iqn.2026-11.org.example:disks.third");
        view.show(Round { at_s: second.into(), connections, ..Round::default() });
    }
    view
}

fn picture(view: &View, width: u16, height: u16) -> String {
    pictures::picture((width, height), |target| frame(target, view))
}

#[test]
fn screens_of_five_widths_are_as_they_were() {
    for width in [80, 100, 120, 140, 200] {
        let now = picture(&view(), width, 24);
        pictures::compare("src/cmd/monitor/draw/golden", &format!("{width}x24.txt"), &now);
    }
}

/// Words that are cut look like others: `TT MIN`, `CEIVED`, a port that lacks its last digit.
#[test]
fn from_100_columns_on_nothing_is_cut() {
    for width in 100..=220 {
        let picture = picture(&view(), width, 24);
        // Its head, and below each session's heading its connection.
        let table: Vec<&str> = picture.lines().skip(2).take(7).collect();
        assert!(table[1].starts_with("initiator enkaku[45282] → "), "{width}\n{picture}");
        let known = "PROCESS CONNECTION LOCAL PEER CC RATE SENT RECEIVED RTT MIN CWND FLGHT QUEUE \
                     RTX LIMIT RATE, PAST";
        for word in table[0].split_whitespace() {
            assert!(known.split(' ').any(|name| name == word), "{width}: {word}\n{picture}");
        }
        let lines = table.iter().skip(2).step_by(2);
        for (line, process) in lines.zip(["enkaku", "qemu-storage-da", "dd"]) {
            assert!(line.starts_with(&format!("{process} ")), "{width}: {process}\n{picture}");
            assert!(line.contains("192.168.202.118:3260 "), "{width}: its peer\n{picture}");
            assert!(line.contains(" 101ms "), "{width}: its round-trip time\n{picture}");
        }
    }
}

#[test]
fn nothing_to_show_and_tiny_screens_do_not_panic() {
    assert!(picture(&View::new("port 3260"), 80, 24).contains("looking"));
    for (width, height) in [(1, 1), (20, 3), (40, 10), (79, 12), (300, 100)] {
        picture(&view(), width, height);
    }
}

/// Reversed, a low bar would be a high one.
#[test]
fn the_chosen_row_is_reversed_and_its_curve_is_not() {
    for width in [80, 100, 140, 200] {
        let mut terminal = Terminal::new(TestBackend::new(width, 24)).unwrap();
        terminal.draw(|target| frame(target, &view())).unwrap();
        let buffer = terminal.backend().buffer();
        let reversed = |x: u16| buffer[(x, 4)].modifier.contains(Modifier::REVERSED);
        let bars = |x: &u16| ('▁'..='█').any(|bar| buffer[(*x, 4)].symbol() == bar.to_string());
        assert!(reversed(0), "{width}: its process");
        assert!((0..width).filter(bars).all(|x| !reversed(x)), "{width}");
        assert_eq!((0..width).filter(bars).count() > 0, width > 100, "{width}");
    }
}

/// On a small screen connections come first.
#[test]
fn headings_take_no_connections_place() {
    assert!(picture(&view(), 80, 24).contains("initiator dd[45301] → 192.168.202.118:3260"));
    let small = picture(&view(), 80, 18);
    assert!(!small.contains("initiator"), "{small}");
    for process in ["enkaku", "qemu-sto…", "dd"] {
        assert!(small.lines().any(|line| line.starts_with(process)), "{process}\n{small}");
    }
}
