//! Reservations of a leg, as a session asks for them.

use block::Io;
use block::mirror::Fence;

use super::super::disk::store::{Act, Work};
use super::super::disk::{lock, unit};
use super::Remote;

impl Fence for Remote {
    fn hold(&self, key: u64) -> Io<()> {
        unit(self.ask(Work::Reserve(Act::Hold(key))))
    }

    fn take(&self, key: u64) -> Io<()> {
        unit(self.ask(Work::Reserve(Act::Take(key))))
    }

    fn holder(&self) -> Io<Option<u64>> {
        let (told, leg) = (self.ask(Work::Reserve(Act::Tell)), self.leg.clone());
        Io::later(async move {
            told.await?;
            Ok(lock(&leg.0.store).holder())
        })
    }

    fn release(&self, _key: u64) -> Io<()> {
        unit(self.ask(Work::Reserve(Act::Release)))
    }
}
