//! How the epochs get to a leg: in one stream, or each when the one before is known to be stable.
//! One decision for each session, by what the leg offers.

use std::sync::Arc;

use super::super::link::{OpenLeg, OrderedWrites};
use super::super::status::{Order, Sending};

/// What is done, and why.
pub(super) fn choose(leg: &OpenLeg) -> (Sending, Option<Arc<dyn OrderedWrites>>) {
    match &leg.ordered {
        Ok(ordered) => {
            let why = "its target keeps the order of commands".to_owned();
            (Sending { order: Order::Stream, why }, Some(ordered.clone()))
        }
        Err(why) => (Sending { order: Order::Waited, why: why.clone() }, None),
    }
}
