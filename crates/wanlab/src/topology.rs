//! Which namespaces there are, which devices they have, and which lines join these.

use serde::Serialize;

use crate::config::{ConfigError, DirectionConfig, LabConfig};
use crate::counters::Counters;
use crate::emulator::{Line, Sink, Source, Switch, Totals};
use crate::settings::Side;
use crate::tun::Port;

/// More is a slip: each node is a namespace, and all share one emulator.
pub(crate) const NODES_MAX: usize = 64;
const NETWORKS_MAX: usize = 2;

/// Spreads the seed of a star's lines beyond the bit that tells the directions apart.
const SEED_SHIFT: u32 = 41;

/// The form of a lab.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// Two namespaces, `near` and `far`, and a line each way.
    #[default]
    Pair,
    /// Nodes around a switch. Of the lab's two directions the first is each node's line to the
    /// switch and the second each line from it, so a path between nodes has one of each.
    Star {
        /// How many.
        nodes: usize,
        /// 1, or 2 where every node has a second device on a network and switch of its own.
        networks: usize,
    },
}

impl Topology {
    pub(crate) fn validate(self, config: &LabConfig) -> Result<(), ConfigError> {
        let fail = |what| Err(ConfigError::Star(what));
        let Self::Star { nodes, networks } = self else {
            if !config.nodes.is_empty() {
                return fail("only a star has nodes whose lines could be others");
            }
            return Ok(());
        };
        if !(2..=NODES_MAX).contains(&nodes) {
            return fail("nodes must lie between 2 and 64");
        }
        if !(1..=NETWORKS_MAX).contains(&networks) {
            return fail("networks must be 1 or 2");
        }
        if config.sysctls.iter().any(|sysctl| sysctl.side != Side::All) {
            return fail("sysctls are for all nodes, there is no near or far");
        }
        if config.nodes.keys().any(|node| *node > nodes) {
            return fail("there are not so many nodes as one that has lines of its own");
        }
        Ok(())
    }

    /// The devices of each namespace.
    pub(crate) fn ports(self) -> Vec<Vec<Port>> {
        match self {
            Self::Pair => vec![vec![Port::NEAR], vec![Port::FAR]],
            Self::Star { nodes, networks } => (1..=nodes)
                .map(|node| {
                    (0..networks).map(|network| Port::star(network as u8, node as u8)).collect()
                })
                .collect(),
        }
    }

    /// Which sysctls belong to the n-th namespace.
    pub(crate) fn sides(self, namespace: usize) -> [Side; 2] {
        match (self, namespace) {
            (Self::Pair, 0) => [Side::All, Side::Near],
            (Self::Pair, _) => [Side::All, Side::Far],
            (Self::Star { .. }, _) => [Side::All; 2],
        }
    }

    /// The lines between the devices, which are numbered namespace by namespace.
    pub(crate) fn lines(self, config: &LabConfig) -> Vec<Line> {
        let (there, back) = (&config.near_to_far, &config.far_to_near);
        match self {
            Self::Pair => vec![
                Line { source: Source::Device(0), sink: Sink::Device(1), config: there.clone() },
                Line { source: Source::Device(1), sink: Sink::Device(0), config: back.clone() },
            ],
            Self::Star { nodes, networks } => (0..nodes * networks)
                .flat_map(|device| {
                    let own = config.nodes.get(&(device / networks + 1));
                    let there = own.map_or(there, |lines| &lines.to_switch);
                    let back = own.map_or(back, |lines| &lines.from_switch);
                    let seeded = |line: &DirectionConfig| DirectionConfig {
                        seed: line.seed ^ ((device as u64) << SEED_SHIFT),
                        ..line.clone()
                    };
                    let (device_in, switch) = (Source::Device(device), device % networks);
                    [
                        Line {
                            source: device_in,
                            sink: Sink::Switch(switch),
                            config: seeded(there),
                        },
                        Line {
                            source: Source::Switch,
                            sink: Sink::Device(device),
                            config: seeded(back),
                        },
                    ]
                })
                .collect(),
        }
    }

    /// Which line leads to which address, for each switch.
    pub(crate) fn switches(self) -> Vec<Switch> {
        let Self::Star { networks, .. } = self else {
            return Vec::new();
        };
        let mut switches = vec![Switch::new(); networks];
        for (device, port) in self.ports().into_iter().flatten().enumerate() {
            let from_switch = 2 * device + 1;
            let switch = &mut switches[device % networks];
            switch.insert(port.v4.into(), from_switch);
            switch.insert(port.v6.into(), from_switch);
        }
        switches
    }

    /// What the lines are called, in their order.
    pub(crate) fn line_names(self) -> Vec<String> {
        match self {
            Self::Pair => vec!["near to far".into(), "far to near".into()],
            Self::Star { nodes, networks } => (0..nodes * networks)
                .flat_map(|device| {
                    let (node, network) = (device / networks + 1, device % networks + 1);
                    [
                        format!("node {node} to switch {network}"),
                        format!("switch {network} to node {node}"),
                    ]
                })
                .collect(),
        }
    }

    /// What each node sent and got.
    pub(crate) fn nodes(self, totals: &Totals) -> Vec<NodeStats> {
        let Self::Star { networks, .. } = self else {
            return Vec::new();
        };
        let lines = totals.lines.chunks_exact(2).enumerate();
        lines
            .map(|(device, lines)| NodeStats {
                node: device / networks + 1,
                network: device % networks + 1,
                to_switch: lines[0].clone(),
                from_switch: lines[1].clone(),
            })
            .collect()
    }
}

/// One node of a star on one of its networks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeStats {
    /// From 1.
    pub node: usize,
    /// From 1.
    pub network: usize,
    /// What the node sent.
    pub to_switch: Counters,
    /// What others sent to the node.
    pub from_switch: Counters,
}

/// What the emulator has done. In a star, `near_to_far` is all lines to the switches together and
/// `far_to_near` all lines from them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EmulatorStats {
    /// What the near end sent.
    pub near_to_far: Counters,
    /// What the far end sent.
    pub far_to_near: Counters,
    /// Packets that a device would not take, because it was down for example, or that a switch
    /// knew no way for (multicast among them); they count as carried above.
    pub undeliverable: u64,
    /// Processor time of the emulator, which includes the receiving half of the kernel's TCP.
    pub cpu_s: f64,
}

impl From<&Totals> for EmulatorStats {
    fn from(totals: &Totals) -> Self {
        let sum = |first: usize| {
            let lines = totals.lines.iter().skip(first).step_by(2);
            lines.fold(Counters::default(), Counters::plus)
        };
        Self {
            near_to_far: sum(0),
            far_to_near: sum(1),
            undeliverable: totals.undeliverable + totals.unroutable,
            cpu_s: totals.cpu_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_of_two_networks() {
        let star = Topology::Star { nodes: 3, networks: 2 };
        let lines = star.lines(&LabConfig::default());
        let ports: Vec<Port> = star.ports().into_iter().flatten().collect();
        assert_eq!((lines.len(), ports.len(), star.line_names().len()), (12, 6, 12));
        for (network, switch) in star.switches().iter().enumerate() {
            assert_eq!(switch.len(), 6);
            for (address, &line) in switch {
                let Sink::Device(device) = lines[line].sink else { panic!("{address}: {line}") };
                assert!([ports[device].v4.into(), ports[device].v6.into()].contains(address));
                assert_eq!(lines[line].source, Source::Switch);
                assert_eq!(lines[line - 1].source, Source::Device(device));
                assert_eq!(lines[line - 1].sink, Sink::Switch(network));
            }
        }
        let mut seeds: Vec<u64> = lines.iter().map(|line| line.config.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), lines.len());
        assert_eq!(star.line_names()[11], "switch 2 to node 3");
    }

    #[test]
    fn a_node_has_its_own_lines_on_all_its_networks() {
        let own = crate::Settings::parse("rate=1gbit node=2.rate=10mbit:20mbit").unwrap();
        let config = own.applied_to(&LabConfig::default()).unwrap();
        let lines = Topology::Star { nodes: 3, networks: 2 }.lines(&config);
        let rates: Vec<u64> =
            lines.iter().map(|line| line.config.rate_bits_per_s / 1_000_000).collect();
        assert_eq!(rates, [1000, 1000, 1000, 1000, 10, 20, 10, 20, 1000, 1000, 1000, 1000]);
    }

    #[test]
    fn what_no_star_can_be() {
        let message = |nodes, networks| {
            let star = Topology::Star { nodes, networks };
            star.validate(&LabConfig::default()).map_err(|error| error.to_string())
        };
        assert_eq!(message(2, 1), Ok(()));
        assert!(message(1, 1).unwrap_err().contains("nodes"));
        assert!(message(65, 1).unwrap_err().contains("nodes"));
        assert!(message(2, 3).unwrap_err().contains("networks"));
        let own = crate::Settings::parse("node=3.loss=0.1").unwrap();
        let own = own.applied_to(&LabConfig::default()).unwrap();
        let of = |form: Topology| form.validate(&own).map_err(|error| error.to_string());
        assert_eq!(of(Topology::Star { nodes: 3, networks: 1 }), Ok(()));
        assert!(
            of(Topology::Star { nodes: 2, networks: 1 }).unwrap_err().contains("so many nodes")
        );
        assert!(of(Topology::Pair).unwrap_err().contains("only a star"));
    }
}
