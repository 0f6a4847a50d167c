//! `fixed`: the number that the user chose.

use super::{Decision, Phase, Policy, Sample, Why};

/// Always the same number of connections.
#[derive(Clone, Debug)]
pub struct Fixed {
    connections: u32,
}

impl Fixed {
    /// `connections` of them, at least one.
    pub fn new(connections: u32) -> Self {
        Self { connections: connections.max(1) }
    }
}

impl Policy for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn handle_sample(&mut self, sample: &Sample) -> Decision {
        Decision::new(sample, self.connections, Phase::Fixed, Why::Chosen)
    }

    fn restart(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_changes() {
        let mut policy = Fixed::new(0);
        policy.restart();
        let sample =
            Sample { t_s: 1.0, connections_open: 9, bytes_per_s: 0.0, ..Sample::default() };
        assert_eq!(policy.handle_sample(&sample).connections, 1);
    }
}
