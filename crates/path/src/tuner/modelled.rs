//! `model`: the controller of the crate `path` as a policy beside the others. It translates samples
//! and orders; what is decided is decided there.

use super::{Bottleneck, Decision, Pacing, Phase, Policy, Remembered, Sample, Why};

/// What `model` can be told.
pub type ModelConfig = crate::Config;

/// The path's controller as a policy.
#[derive(Clone, Debug)]
pub struct Modelled(crate::Controller);

impl Modelled {
    /// One that has seen nothing.
    pub fn new(config: ModelConfig) -> Self {
        Self(crate::Controller::new(config))
    }

    fn pacing_of(&self, orders: crate::Orders) -> Pacing {
        Pacing {
            bytes_per_s: orders.pacing.bytes_per_s,
            window_bytes: orders.pacing.window_bytes,
            // In the background no connection is to be quick at somebody's cost.
            is_startup: orders.state == crate::State::Startup && !self.0.is_background(),
            is_background: self.0.is_background(),
        }
    }
}

impl Policy for Modelled {
    fn name(&self) -> &'static str {
        if self.0.is_background() { "background" } else { "model" }
    }

    fn handle_sample(&mut self, sample: &Sample) -> Decision {
        let orders = self.0.handle_sample(&sample_of(sample));
        let phase = match (self.0.estimate().full, orders.searching) {
            (false, _) => Phase::Idle,
            (true, true) => Phase::Measure,
            (true, false) => Phase::Hold,
        };
        Decision::new(sample, orders.connections, phase, Why::Model(orders.why))
    }

    fn restart(&mut self) {
        self.0.restart();
    }

    fn first(&mut self, rtt_s: f64, open: u32) -> Option<(u32, Pacing)> {
        let orders = self.0.first((rtt_s > 0.0).then_some(rtt_s), open);
        Some((orders.connections, self.pacing_of(orders)))
    }

    fn pacing(&self) -> Option<Pacing> {
        Some(self.pacing_of(self.0.orders()))
    }

    fn limit(&self) -> Option<Bottleneck> {
        Some(self.0.estimate().limits)
    }

    fn forget(&mut self) {
        self.0.forget();
    }

    fn remember(&mut self, known: Option<Remembered>) {
        self.0.remember(known);
    }

    fn remembered(&self) -> Option<Remembered> {
        self.0.remembered()
    }

    fn memory(&self) -> Option<&'static str> {
        self.0.memory()
    }
}

/// A sample as the model takes it: what the pacer beside the other policies says of it is left out.
pub fn sample_of(sample: &Sample) -> crate::Sample {
    crate::Sample {
        t_s: sample.t_s,
        connections_open: sample.connections_open,
        bytes_per_s: sample.bytes_per_s,
        tcp: sample.tcp,
        connections: sample.connections.clone(),
        held_share: sample.held_share,
        outstanding_bytes: sample.outstanding_bytes,
        commands: sample.commands,
    }
}
