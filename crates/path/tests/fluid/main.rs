//! The controller against fluid models of a path and of a line, in virtual time.

mod control;
mod count;
mod flushes;
mod golden;
#[path = "../models/line.rs"]
mod line;
#[path = "../models/path.rs"]
mod path;
mod peer;
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
