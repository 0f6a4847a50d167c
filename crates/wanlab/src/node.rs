//! Lines of single nodes of a star: `3.rate=100mbit`, `5-8.queue=64k`. What a node does not have of
//! its own it has as all others, also when that changes later.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::config::{DirectionConfig, LabConfig};
use crate::settings::{SettingError, Settings};
use crate::topology::NODES_MAX;

/// Settings of lines, which a node can have of its own; the others are of the whole lab.
const NAMES: [&str; 10] =
    ["rate", "rtt", "delay", "jitter", "loss", "burst", "police", "queue", "ecn", "classes"];

/// The lines of a node on each of its networks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeLines {
    /// What the node has of its own.
    #[serde(skip)]
    own: Settings,
    /// What the node sends.
    pub to_switch: DirectionConfig,
    /// What others send to the node.
    pub from_switch: DirectionConfig,
}

/// What is set of single nodes, by their numbers.
pub(crate) type OfNodes = BTreeMap<usize, Settings>;

/// `NODES.NAME=VALUE`, where the nodes are a number or a range of them.
pub(crate) fn parse(input: &str) -> Result<OfNodes, SettingError> {
    let fail = || SettingError::Node { input: input.to_owned(), allowed: NAMES.join(", ") };
    let (nodes, setting) = input.split_once('.').ok_or_else(fail)?;
    let (name, value) = setting.split_once('=').ok_or_else(fail)?;
    let (first, last) = nodes.split_once('-').unwrap_or((nodes, nodes));
    let number = |text: &str| text.parse().ok().filter(|node| (1..=NODES_MAX).contains(node));
    let (Some(first), Some(last)) = (number(first), number(last)) else {
        return Err(fail());
    };
    if first > last || !NAMES.contains(&name) {
        return Err(fail());
    }
    let settings = Settings::one(name, value)?;
    Ok((first..=last).map(|node| (node, settings.clone())).collect())
}

/// Takes over what `other` sets.
pub(crate) fn merge(nodes: &mut OfNodes, other: OfNodes) {
    for (node, settings) in other {
        nodes.entry(node).or_default().merge(settings);
    }
}

/// Makes all nodes' lines those of the lab with what each has of its own, which `set` adds to.
pub(crate) fn apply(lab: &mut LabConfig, set: &OfNodes) {
    let mut own: OfNodes =
        std::mem::take(&mut lab.nodes).into_iter().map(|(node, lines)| (node, lines.own)).collect();
    merge(&mut own, set.clone());
    for (node, own) in own {
        let mut to_switch = lab.near_to_far.clone();
        let mut from_switch = lab.far_to_near.clone();
        own.apply_to_line(&mut to_switch, true);
        own.apply_to_line(&mut from_switch, false);
        lab.nodes.insert(node, NodeLines { own, to_switch, from_switch });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lab(text: &str, before: &LabConfig) -> LabConfig {
        Settings::parse(text).unwrap().applied_to(before).unwrap()
    }

    #[test]
    fn nodes_have_what_is_theirs_and_the_rest_of_all() {
        let first = lab(
            "rate=1gbit rtt=2ms node=3.rate=100mbit:50mbit node=2-3.loss=0.1",
            &LabConfig::default(),
        );
        assert_eq!(first.nodes.keys().collect::<Vec<_>>(), [&2, &3]);
        let three = &first.nodes[&3];
        assert_eq!(three.to_switch.rate_bits_per_s, 100_000_000);
        assert_eq!(three.from_switch.rate_bits_per_s, 50_000_000);
        assert_eq!(three.from_switch.delay, first.far_to_near.delay);
        assert_eq!((three.to_switch.loss, first.near_to_far.loss), (0.1, 0.0));
        // What changes for all changes for a node that has nothing of its own there.
        let then = lab("rate=2gbit loss=0 node=2.rtt=4ms", &first);
        assert_eq!(then.nodes[&2].to_switch.rate_bits_per_s, 2_000_000_000);
        assert_eq!(then.nodes[&2].to_switch.delay.as_millis(), 2);
        assert_eq!(then.nodes[&3].to_switch.rate_bits_per_s, 100_000_000);
        assert_eq!(then.nodes[&3].to_switch.loss, 0.1);
    }

    #[test]
    fn wrong_nodes_are_named() {
        let message = |text: &str| parse(text).unwrap_err().to_string();
        for bad in ["3", "3.rate", "0.rate=1gbit", "65.loss=0", "4-2.loss=0", "x.loss=0"] {
            let message = message(bad);
            assert!(message.contains(bad) && message.contains("5-8.queue=64k"), "{message}");
        }
        assert!(message("3.mtu=9000").contains("rate, rtt"));
        assert!(message("3.rate=fast").contains("rate \"fast\""));
        let small = Settings::parse("node=3.queue=1000b").unwrap();
        let error = small.applied_to(&LabConfig::default()).unwrap_err().to_string();
        assert!(error.starts_with("node 3: to the switch: queue"), "{error}");
    }
}
