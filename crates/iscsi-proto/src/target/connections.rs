//! [`Connections`]: those of a session, by their identity. There is one, as a rule, and it is asked
//! for some twenty times between a command and its answer.

use super::event::ConnId;
use super::session::Connection;

/// In the order of their identities, which is that of their coming.
#[derive(Default)]
pub(super) struct Connections(Vec<(ConnId, Box<Connection>)>);

impl Connections {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    fn place(&self, conn: ConnId) -> Result<usize, usize> {
        match self.0.first() {
            Some((first, _)) if *first == conn => Ok(0),
            _ => self.0.binary_search_by_key(&conn, |(id, _)| *id),
        }
    }

    pub(super) fn get(&self, conn: &ConnId) -> Option<&Connection> {
        let place = self.place(*conn).ok()?;
        Some(&self.0[place].1)
    }

    pub(super) fn get_mut(&mut self, conn: &ConnId) -> Option<&mut Connection> {
        let place = self.place(*conn).ok()?;
        Some(&mut self.0[place].1)
    }

    /// Adds one, in place of the one that has this identity, if there is one.
    pub(super) fn insert(&mut self, conn: ConnId, connection: Connection) {
        let connection = Box::new(connection);
        match self.place(conn) {
            Ok(place) => self.0[place].1 = connection,
            Err(place) => self.0.insert(place, (conn, connection)),
        }
    }

    pub(super) fn remove(&mut self, conn: &ConnId) {
        if let Ok(place) = self.place(*conn) {
            self.0.remove(place);
        }
    }

    pub(super) fn retain(&mut self, mut keeps: impl FnMut(&ConnId, &mut Connection) -> bool) {
        self.0.retain_mut(|(conn, connection)| keeps(conn, connection));
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &ConnId> {
        self.0.iter().map(|(conn, _)| conn)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Connection> {
        self.0.iter().map(|(_, connection)| &**connection)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.0.iter_mut().map(|(_, connection)| &mut **connection)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ConnId, &Connection)> {
        self.0.iter().map(|(conn, connection)| (conn, &**connection))
    }
}
