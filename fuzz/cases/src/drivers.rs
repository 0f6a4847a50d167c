//! What the drivers of a target's connections keep: which bytes of each write's buffer were
//! filled with intact data, and what becomes of a buffer when its connection is lost. A model of
//! `iscsi::target`, which has sockets and memory where this has booleans.

use std::collections::BTreeMap;

use iscsi_proto::ids::Itt;
use iscsi_proto::target::{ConnId, Orphans, Session};

/// Which bytes hold what the initiator sent.
type Filled = Vec<bool>;

/// One connection's driver.
pub(crate) struct Driver {
    conn: ConnId,
    pub(crate) cid: u16,
    buffers: BTreeMap<Itt, Filled>,
    /// The write whose data is coming in.
    filling: Option<Itt>,
}

/// Drivers that run, and buffers that nobody's driver has.
#[derive(Default)]
pub(crate) struct Drivers {
    running: Vec<Driver>,
    /// Of connections that were lost, for whoever takes their tasks over.
    pub(crate) orphans: Orphans<Filled>,
}

impl Driver {
    /// Writes that have a buffer.
    pub(crate) fn writes(&self) -> Vec<Itt> {
        self.buffers.keys().copied().collect()
    }
}

impl Drivers {
    pub(crate) fn begin(&mut self, conn: ConnId, cid: u16) {
        self.running.push(Driver { conn, cid, buffers: BTreeMap::new(), filling: None });
    }

    /// Ends a driver; its buffers go to `orphans` if they are to be kept.
    pub(crate) fn end(&mut self, core: &Session, conn: ConnId, keep: bool) {
        let Some(index) = self.running.iter().position(|driver| driver.conn == conn) else {
            return;
        };
        let driver = self.running.remove(index);
        if keep {
            self.orphans.adopt(core, conn, driver.buffers);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Driver> {
        self.running.iter()
    }

    pub(crate) fn all(&self) -> Vec<ConnId> {
        self.running.iter().map(|driver| driver.conn).collect()
    }

    pub(crate) fn get(&self, conn: ConnId) -> Option<&Driver> {
        self.running.iter().find(|driver| driver.conn == conn)
    }

    /// The newest connection with this CID.
    pub(crate) fn of_cid(&self, cid: u16) -> Option<ConnId> {
        self.running.iter().rev().find(|driver| driver.cid == cid).map(|driver| driver.conn)
    }

    /// A connection whose CID was taken over by a newer one.
    pub(crate) fn replaced(&self) -> Option<ConnId> {
        self.all()
            .into_iter()
            .zip(&self.running)
            .find_map(|(conn, driver)| (self.of_cid(driver.cid) != Some(conn)).then_some(conn))
    }

    fn of(&mut self, conn: ConnId) -> Option<&mut Driver> {
        self.running.iter_mut().find(|driver| driver.conn == conn)
    }

    /// Data of a write is coming in: it has a buffer of at least this length from here on.
    pub(crate) fn fill(&mut self, conn: ConnId, itt: Itt, len: usize) {
        let Some(driver) = self.of(conn) else { return };
        let buffer = driver.buffers.entry(itt).or_default();
        buffer.resize(len.max(buffer.len()), false);
        driver.filling = Some(itt);
    }

    /// The data is there, intact or not. Damaged data has replaced what was there before.
    pub(crate) fn filled(&mut self, conn: ConnId, (from, to): (usize, usize), intact: bool) {
        let Some(driver) = self.of(conn) else { return };
        if let Some(itt) = driver.filling.take()
            && let Some(buffer) = driver.buffers.get_mut(&itt)
        {
            buffer[from..to].fill(intact);
        }
    }

    /// The write is over; data that is coming in for it goes nowhere.
    pub(crate) fn dropped(&mut self, conn: ConnId, itt: Itt) {
        let Some(driver) = self.of(conn) else { return };
        driver.buffers.remove(&itt);
        driver.filling = driver.filling.filter(|filling| *filling != itt);
    }

    /// A task of a lost connection goes on here.
    pub(crate) fn adopt(&mut self, conn: ConnId, itt: Itt) {
        let Some(buffer) = self.orphans.take(itt) else { return };
        let Some(driver) = self.of(conn) else { return };
        let before = driver.buffers.insert(itt, buffer);
        assert!(before.is_none(), "{itt} has two buffers");
    }

    /// The write's data is complete.
    pub(crate) fn collect(&mut self, conn: ConnId, itt: Itt) -> Filled {
        self.of(conn).and_then(|driver| driver.buffers.remove(&itt)).unwrap_or_default()
    }
}
