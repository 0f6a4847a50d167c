//! The live view's connections by session: whose it is, which end is here, and the name of its
//! target, where that is seen from beside. The kernel's initiator tells the name; the command line
//! of most others has it (`iscsi://HOST/IQN/LUN`, `serve --iqn`). Of a session as RFC 7143 has it
//! TCP shows nothing: what one process has with one target, and what one host has with a target
//! here, counts as one.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use doctor::facts::{Session as KernelSession, open_iscsi};
use iscsi::initiator::Url;
use ratatui::style::Stylize;
use ratatui::text::{Line, Span};
use tcpmon::row::Row;
use tcpmon::sample::Connection;

use super::table::shortened;
use super::units::bits;
use crate::cmd::doctor::root::Root;

/// What the connections of a session have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// Of a process here, or of the kernel, to a target.
    Asks(SocketAddr, Option<u32>, Option<String>),
    /// From a host, to a target here.
    Serves(SocketAddr, IpAddr),
}

/// Names of targets by connection, looked for once.
#[derive(Default)]
pub(super) struct Names {
    /// With the process that the connection had then: it may be found later than the connection.
    known: HashMap<Connection, (Option<u32>, Option<String>)>,
}

/// Connections that stand side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) rows: Range<usize>,
    name: Option<String>,
}

impl Names {
    /// Looks for those that are not known yet; forgets what has gone.
    pub(super) fn learn(&mut self, rows: &[Row]) {
        let there: HashSet<_> = rows.iter().map(|row| row.connection).collect();
        self.known.retain(|connection, _| there.contains(connection));
        let mut kernel = None;
        for row in rows {
            let process = pid(row);
            let known = self.known.get(&row.connection);
            if known.is_none_or(|(owner, _)| *owner != process) {
                let name = target_of(row, &mut kernel);
                self.known.insert(row.connection, (process, name));
            }
        }
    }

    /// As if it had been found.
    #[cfg(test)]
    pub(super) fn know(&mut self, row: &Row, name: &str) {
        self.known.insert(row.connection, (pid(row), Some(name.to_owned())));
    }

    fn of(&self, row: &Row) -> Option<&String> {
        self.known.get(&row.connection)?.1.as_ref()
    }

    fn key(&self, row: &Row) -> Key {
        let connection = row.connection;
        match row.serves {
            true => Key::Serves(connection.local, connection.remote.ip()),
            false => Key::Asks(connection.remote, pid(row), self.of(row).cloned()),
        }
    }

    /// Puts connections of a session side by side, and the end of a session that a target here has
    /// below the end that an initiator here has. Else the order stays.
    pub(super) fn together(&self, rows: &mut [Row]) -> Vec<Session> {
        let keys: HashMap<_, _> = rows.iter().map(|row| (row.connection, self.key(row))).collect();
        let mut place: HashMap<&Key, (usize, usize)> = HashMap::new();
        for row in rows.iter() {
            let next = place.len();
            place.entry(&keys[&row.connection]).or_insert((next, 0));
        }
        for row in rows.iter().filter(|row| row.serves) {
            let near = rows
                .iter()
                .find(|near| !near.serves && near.connection.is_other_end_of(&row.connection));
            if let Some(near) = near {
                let above = place[&keys[&near.connection]].0;
                let far = place.entry(&keys[&row.connection]).or_default();
                *far = if far.1 == 0 { (above, far.0 + 1) } else { *far };
            }
        }
        rows.sort_by_key(|row| place[&keys[&row.connection]]);
        let mut sessions: Vec<Session> = Vec::new();
        let mut before = None;
        for (at, row) in rows.iter().enumerate() {
            let key = &keys[&row.connection];
            match sessions.last_mut().filter(|_| before == Some(key)) {
                Some(session) => session.rows.end = at + 1,
                None => {
                    let name = self.of(row).cloned();
                    sessions.push(Session { rows: at..at + 1, name });
                }
            }
            before = Some(key);
        }
        sessions
    }
}

impl Session {
    /// The line above its connections.
    pub(super) fn heading(&self, rows: &[Row], width: u16) -> Line<'static> {
        let own = &rows[self.rows.clone()];
        let Some(first) = own.first() else { return Line::default() };
        let process = match &first.process {
            Some(owner) => format!("{}[{}]", owner.comm, owner.pid),
            None => "-".to_owned(),
        };
        let (local, remote) = (first.connection.local, first.connection.remote);
        let who = match first.serves {
            true => format!("target {process} at {local} ← {}", remote.ip()),
            false => format!("initiator {process} → {remote}"),
        };
        let sum = |of: fn(&Row) -> f64| bits(own.iter().map(of).sum());
        let carries = format!(
            "{}× ↑{} ↓{}",
            own.len(),
            sum(|row| row.sent_bytes_per_s),
            sum(|row| row.received_bytes_per_s)
        );
        let taken = who.chars().count() + carries.chars().count() + 4;
        let left = width.saturating_sub(u16::try_from(taken).unwrap_or(u16::MAX));
        let name = self.name.clone().map(|name| shortened(name, left)).unwrap_or_default();
        let blank = if name.is_empty() { "" } else { "  " };
        Line::from(vec![
            Span::from(who).bold(),
            Span::from(format!("  {carries}")),
            Span::from(format!("{blank}{name}")).dim(),
        ])
    }
}

fn pid(row: &Row) -> Option<u32> {
    row.process.as_ref().map(|owner| owner.pid)
}

/// `kernel`: its sessions, once they were looked at.
fn target_of(row: &Row, kernel: &mut Option<Vec<KernelSession>>) -> Option<String> {
    if let Some(pid) = pid(row) {
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        return named_in(&String::from_utf8_lossy(&command), row);
    }
    if row.serves {
        return None;
    }
    let sessions = kernel.get_or_insert_with(|| open_iscsi::sessions(&Root::new(None)));
    let port = row.connection.local.port();
    let of = |one: &&KernelSession| {
        one.portal == Some(row.connection.remote) && one.local_port.is_none_or(|own| own == port)
    };
    sessions.iter().find(of)?.target.clone()
}

/// The target that a command line names, its words ended by zeroes, if it names one for this
/// connection.
fn named_in(command: &str, row: &Row) -> Option<String> {
    let words: Vec<&str> = command.split('\0').collect();
    if row.serves {
        let after = words.windows(2).find(|pair| pair[0] == "--iqn").map(|pair| pair[1]);
        let joined = words.iter().find_map(|word| word.strip_prefix("--iqn="));
        return after.or(joined).map(str::to_owned);
    }
    let remote = row.connection.remote;
    let is_there = |url: &Url| {
        let host = url.portal.host.parse::<IpAddr>();
        url.portal.port == remote.port()
            && host.is_ok_and(|host| host == remote.ip().to_canonical())
    };
    let urls = words.iter().filter_map(|word| {
        // Also within the options of a drive of QEMU's.
        let url = word.get(word.find("iscsi://")?..)?.split([',', '"']).next()?;
        url.parse::<Url>().ok()
    });
    let urls: Vec<Url> = urls.collect();
    let mut targets: HashSet<&str> =
        urls.iter().filter(|url| is_there(url)).map(|url| url.target.as_str()).collect();
    if targets.is_empty() {
        // Which address a name has is not asked for.
        targets = urls.iter().map(|url| url.target.as_str()).collect();
    }
    let mut targets = targets.into_iter();
    targets.next().filter(|_| targets.next().is_none()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use tcpmon::diag::Owner;

    use super::super::draw::tests::row;
    use super::*;

    fn of(port: u16, pid: u32, comm: &str) -> Row {
        let process = Some(Owner { pid, comm: comm.to_owned() });
        Row { process, ..row(port, comm, None, 8.0) }
    }

    /// The end that a target here has of this connection.
    fn other_end(near: &Row, pid: u32) -> Row {
        let Connection { local, remote, cookie } = near.connection;
        let connection = Connection { local: remote, remote: local, cookie: cookie + 1 };
        let process = Some(Owner { pid, comm: "tgtd".to_owned() });
        Row { connection, serves: true, process, ..near.clone() }
    }

    fn ports(rows: &[Row]) -> Vec<u16> {
        rows.iter().map(|row| row.connection.local.port()).collect()
    }

    fn text(session: &Session, rows: &[Row], width: u16) -> String {
        session.heading(rows, width).spans.iter().map(|span| &*span.content).collect()
    }

    #[test]
    fn connections_of_a_session_stand_together_and_its_far_end_below() {
        let first = of(1, 7, "enkaku");
        let mut rows =
            vec![first.clone(), other_end(&first, 9), of(2, 8, "dd"), of(3, 7, "enkaku")];
        let mut names = Names::default();
        names.know(&rows[0], "iqn.2026-11.org.example:a");
        names.know(&rows[3], "iqn.2026-11.org.example:a");
        let sessions = names.together(&mut rows);
        assert_eq!(ports(&rows), [1, 3, 3260, 2]);
        assert_eq!(
            sessions.iter().map(|one| one.rows.clone()).collect::<Vec<_>>(),
            [0..2, 2..3, 3..4]
        );
        assert_eq!(
            text(&sessions[0], &rows, 120),
            "initiator enkaku[7] → 192.168.202.118:3260  2× ↑16.0M ↓19.2k  iqn.2026-11.org.example:a"
        );
        assert_eq!(
            text(&sessions[1], &rows, 120),
            "target tgtd[9] at 192.168.202.118:3260 ← 192.168.101.17  1× ↑8.00M ↓9.60k"
        );
        assert!(text(&sessions[0], &rows, 80).ends_with('…'));
    }

    #[test]
    fn two_targets_of_one_portal_are_two_sessions() {
        let mut rows = vec![of(1, 7, "x"), of(2, 7, "x"), of(3, 7, "x")];
        let mut names = Names::default();
        for (at, name) in ["a", "b", "a"].into_iter().enumerate() {
            names.know(&rows[at], name);
        }
        assert_eq!(names.together(&mut rows).len(), 2);
        assert_eq!(ports(&rows), [1, 3, 2]);
    }

    #[test]
    fn command_lines_name_targets() {
        let near = of(1, 7, "enkaku");
        let far = other_end(&near, 9);
        let there = "192.168.202.118";
        let one = "iqn.2026-11.org.example:one";
        for command in [
            format!("enkaku\0attach\0iscsi://me%secret@{there}/{one}/0\0--fuse\0/mnt\0"),
            format!("qemu\0-drive\0file=iscsi://{there}/{one}/1,format=raw\0"),
            format!("enkaku\0copy\0iscsi://{there}/{one}/0\0iscsi://10.0.0.1/iqn.2026-11.b:c/0\0"),
            format!("dd\0iscsi://far.example/{one}/0\0"),
        ] {
            assert_eq!(named_in(&command, &near).as_deref(), Some(one), "{command}");
            assert_eq!(named_in(&command, &far), None);
        }
        assert_eq!(named_in("enkaku\0serve\0--iqn\0iqn.a\0", &far).as_deref(), Some("iqn.a"));
        assert_eq!(named_in("enkaku\0serve\0--iqn=iqn.b\0", &far).as_deref(), Some("iqn.b"));
        let two = "x\0iscsi://a.example/iqn.2026-11.b:c/0\0iscsi://b.example/iqn.2026-11.b:d/0\0";
        assert_eq!(named_in(two, &near), None);
        assert_eq!(named_in("cat\0/iscsi://\0iscsi://\0", &near), None);
    }
}
