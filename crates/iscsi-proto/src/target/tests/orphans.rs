//! Data of writes that outlives the driver that collected it (error recovery level 2).

use std::collections::BTreeMap;

use super::*;
use crate::target::Orphans;

/// What every driver has collected, as a shell keeps it: letters for data.
#[derive(Default)]
struct Drivers {
    buffers: BTreeMap<(ConnId, Itt), char>,
    orphans: Orphans<char>,
}

impl Drivers {
    /// The driver of `conn` ends, with what it has fetched so far.
    fn end(&mut self, script: &mut Script, conn: ConnId) {
        let (own, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.buffers).into_iter().partition(|((of, _), _)| *of == conn);
        self.buffers = others;
        let own = own.into_iter().map(|((_, itt), data)| (itt, data));
        self.orphans.adopt(&script.session, conn, own);
        script.session.handle_connection_lost(conn, NOW);
        self.orphans.bury(&script.session);
    }

    /// The driver of `conn` fetches its events; the data that its commands execute with.
    fn execute(&mut self, script: &mut Script, conn: ConnId) -> Vec<(u32, Option<char>)> {
        let mut executed = Vec::new();
        while let Some(event) = script.session.poll_event(conn) {
            match event {
                Event::Recovery(Recovery::Reassigned { itt }) => {
                    let data = self.orphans.take(itt);
                    self.buffers.extend(data.map(|data| ((conn, itt), data)));
                }
                Event::Execute(execute) => {
                    executed.push((execute.itt.0, self.buffers.remove(&(conn, execute.itt))));
                }
                _ => {}
            }
        }
        executed
    }
}

fn reassign(script: &mut Script, conn: ConnId, itt: u32) {
    script.try_pdu(conn, super::reassign::reassign(900 + itt, itt, 0), &[]).unwrap();
}

/// Task 1 is a write that has come whole, and waits for the command before it.
fn waiting_write(drivers: &mut Drivers) -> (Script, ConnId) {
    let mut script = Script::at_level(2);
    let first = script.conn;
    script.pdu(write(1, 101, 512), &[1; 512]);
    drivers.buffers.insert((first, Itt(1)), 'a');
    assert!(drivers.execute(&mut script, first).is_empty());
    (script, first)
}

#[test]
fn a_write_fetches_its_data_before_it_executes() {
    for turn_first in [false, true] {
        let mut drivers = Drivers::default();
        let (mut script, first) = waiting_write(&mut drivers);
        drivers.end(&mut script, first);
        let again = script.log_in(1, NOW);
        if !turn_first {
            reassign(&mut script, again, 1);
        }
        script.try_pdu(again, write(2, 100, 512), &[1; 512]).unwrap();
        drivers.buffers.insert((again, Itt(2)), 'b');
        if turn_first {
            reassign(&mut script, again, 1);
        }
        assert_eq!(drivers.execute(&mut script, again), [(2, Some('b')), (1, Some('a'))]);
        assert!(drivers.orphans.is_empty());
    }
}

#[test]
fn a_write_taken_over_by_a_driver_that_ended_before_it_knew_keeps_its_data() {
    let mut drivers = Drivers::default();
    let (mut script, first) = waiting_write(&mut drivers);
    drivers.end(&mut script, first);
    let second = script.log_in(1, NOW);
    reassign(&mut script, second, 1);
    drivers.end(&mut script, second);
    let third = script.log_in(1, NOW);
    script.try_pdu(third, write(2, 100, 512), &[1; 512]).unwrap();
    drivers.buffers.insert((third, Itt(2)), 'b');
    reassign(&mut script, third, 1);
    assert_eq!(drivers.execute(&mut script, third), [(2, Some('b')), (1, Some('a'))]);
}

#[test]
fn data_of_an_older_task_with_the_tag_is_nobodys() {
    let mut drivers = Drivers::default();
    let (mut script, first) = waiting_write(&mut drivers);
    drivers.end(&mut script, first);
    // Nobody took it over in time; the tag comes again, and its connection is lost before any data.
    drivers.orphans.adopt(&script.session, first, [(Itt(7), 'x')]);
    let second = script.log_in(2, NOW);
    script.try_pdu(second, write(7, 100, 512), &[]).unwrap();
    drivers.end(&mut script, second);
    let third = script.log_in(2, NOW);
    reassign(&mut script, third, 7);
    assert!(drivers.execute(&mut script, third).is_empty(), "its data is asked for");
    assert!(!drivers.buffers.contains_key(&(third, Itt(7))));
}
