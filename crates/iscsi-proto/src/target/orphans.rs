//! Data of writes whose connection was lost (error recovery level 2), until the connection that
//! takes a task over fetches it.
//!
//! A driver keeps what it has collected for itself, so that no lock is held while data comes in.
//! When it ends it leaves that here; [`Recovery::Reassigned`](super::Recovery::Reassigned), which
//! comes before any other event of the task, tells another driver to take it from here. Between
//! the two the second driver may end as well.

use std::collections::BTreeMap;

use super::event::{ConnId, Event, Recovery};
use super::session::Session;
use crate::ids::Itt;

/// What lost connections have collected, by task; `B` is what a driver keeps of a write.
#[derive(Debug)]
pub struct Orphans<B> {
    writes: BTreeMap<Itt, B>,
}

impl<B> Default for Orphans<B> {
    fn default() -> Self {
        Self { writes: BTreeMap::new() }
    }
}

impl<B> Orphans<B> {
    /// Keeps what the driver of `conn` has collected. Before the core is told of the loss, so that
    /// whoever takes the tasks over finds it.
    pub fn adopt(
        &mut self,
        core: &Session,
        conn: ConnId,
        writes: impl IntoIterator<Item = (Itt, B)>,
    ) {
        // What else is left under the tags of its tasks is of older ones that nobody took over;
        // but not what it was told to fetch and has not.
        self.writes.retain(|itt, _| !core.is_task_of(conn, *itt) || core.is_to_fetch(conn, *itt));
        self.writes.extend(writes);
    }

    /// The data of a task that was taken over.
    pub fn take(&mut self, itt: Itt) -> Option<B> {
        self.writes.remove(&itt)
    }

    /// Drops the data of tasks that are no more.
    pub fn bury(&mut self, core: &Session) {
        self.writes.retain(|itt, _| core.has_task(*itt));
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Tasks whose data waits.
    pub fn tasks(&self) -> impl Iterator<Item = Itt> {
        self.writes.keys().copied()
    }
}

impl Session {
    /// Was `conn` told to take over this task, and has not heard of it yet?
    fn is_to_fetch(&self, conn: ConnId, itt: Itt) -> bool {
        let told = |event: &Event| matches!(event, Event::Recovery(Recovery::Reassigned { itt: of }) if *of == itt);
        self.connections.get(&conn).is_some_and(|c| c.events.iter().any(told))
    }
}
