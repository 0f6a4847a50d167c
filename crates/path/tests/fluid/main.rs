//! The model against the fluid models that the tuner's policies are tested with, in virtual time.

mod control;
mod count;
#[path = "../models/line.rs"]
mod line;
#[allow(dead_code)] // iscsi-proto's tests use all of it
#[path = "../models/path.rs"]
mod path;
#[path = "../models/random.rs"]
mod random;
mod runs;

use ::path::{
    CongestionControl, Connection, ConnectionId, Controller, Orders as Decision, Sample, Tcp,
};

/// What the modelled path asks for a number of connections.
trait Policy {
    fn handle_sample(&mut self, sample: &Sample) -> Decision;
}

impl Policy for Controller {
    fn handle_sample(&mut self, sample: &Sample) -> Decision {
        Self::handle_sample(self, sample)
    }
}
