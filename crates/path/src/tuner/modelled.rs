//! `model`: the controller of the crate `path` as a policy beside the others. It translates samples
//! and orders; what is decided is decided there.

use super::{Bottleneck, Decision, Pacing, Phase, Policy, Remembered, Sample, Why};

/// What `model` can be told.
pub type ModelConfig = crate::Config;

/// The path's controller as a policy.
#[derive(Clone, Debug)]
pub struct Modelled {
    controller: crate::Controller,
    background: bool,
}

impl Modelled {
    /// One that has seen nothing.
    pub fn new(config: ModelConfig) -> Self {
        let background = config.background;
        Self { controller: crate::Controller::new(config), background }
    }

    fn pacing_of(&self, orders: crate::Orders) -> Pacing {
        Pacing {
            bytes_per_s: orders.pacing.bytes_per_s,
            window_bytes: orders.pacing.window_bytes,
            // In the background no connection is to be quick at somebody's cost.
            is_startup: orders.state == crate::State::Startup && !self.background,
            is_background: self.background,
        }
    }
}

impl Policy for Modelled {
    fn name(&self) -> &'static str {
        if self.background { "background" } else { "model" }
    }

    fn handle_sample(&mut self, sample: &Sample) -> Decision {
        let orders = self.controller.handle_sample(&sample_of(sample));
        let phase = match (self.controller.estimate().full, orders.searching) {
            (false, _) => Phase::Idle,
            (true, true) => Phase::Measure,
            (true, false) => Phase::Hold,
        };
        Decision::new(sample, orders.connections, phase, Why::Model(orders.why))
    }

    fn restart(&mut self) {
        self.controller.restart();
    }

    fn first(&mut self, rtt_s: f64, open: u32) -> Option<(u32, Pacing)> {
        let orders = self.controller.first((rtt_s > 0.0).then_some(rtt_s), open);
        Some((orders.connections, self.pacing_of(orders)))
    }

    fn pacing(&self) -> Option<Pacing> {
        Some(self.pacing_of(self.controller.orders()))
    }

    fn limit(&self) -> Option<Bottleneck> {
        Some(self.controller.estimate().limits)
    }

    fn forget(&mut self) {
        self.controller.forget();
    }

    fn remember(&mut self, known: Option<Remembered>) {
        self.controller.remember(known);
    }

    fn remembered(&self) -> Option<Remembered> {
        self.controller.remembered()
    }

    fn memory(&self) -> Option<&'static str> {
        self.controller.memory()
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
