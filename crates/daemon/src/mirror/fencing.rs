//! [`Wished`]: a way to a leg with what its configuration says of reservations and of the order in
//! which epochs get there.

use std::pin::Pin;
use std::sync::Arc;

use block::mirror::{Fence, LegSource, OpenLeg};
use block::{BlockError, Io, Result};

use super::config::{FenceWish, OrderWish};

/// A way to a leg, of which is used what the configuration wishes.
pub(crate) struct Wished {
    source: Arc<dyn LegSource>,
    fence: Option<FenceWish>,
    order: OrderWish,
}

impl Wished {
    /// Without a wish, reservations and an order are used where the target knows them.
    pub(crate) fn of(
        source: Arc<dyn LegSource>,
        fence: Option<FenceWish>,
        order: OrderWish,
    ) -> Arc<dyn LegSource> {
        Arc::new(Self { source, fence, order })
    }
}

impl LegSource for Wished {
    fn name(&self) -> String {
        self.source.name()
    }

    fn connect(&self) -> Pin<Box<dyn Future<Output = Result<OpenLeg>> + Send>> {
        let (connecting, fence, order) = (self.source.connect(), self.fence, self.order);
        Box::pin(async move {
            let open = connecting.await?;
            let fence: Option<Arc<dyn Fence>> = match fence {
                None => open.fence.clone(),
                Some(FenceWish::None) => None,
                Some(FenceWish::Reservation) => Some(Arc::new(Required(open.fence.clone()))),
            };
            let ordered = match order {
                OrderWish::Auto | OrderWish::Stream => open.ordered.clone(),
                OrderWish::Waited => Err("the configuration says so".to_owned()),
            };
            Ok(OpenLeg { fence, ordered, ..open })
        })
    }
}

/// A reservation without which the leg is not used; `None` where the target knows none.
struct Required(Option<Arc<dyn Fence>>);

impl Required {
    fn ask<T: Send + 'static>(&self, ask: impl FnOnce(&dyn Fence) -> Io<T>) -> Io<T> {
        match &self.0 {
            Some(fence) => ask(&**fence),
            None => Io::err(BlockError::Unsupported("a persistent reservation")),
        }
    }
}

impl Fence for Required {
    fn hold(&self, key: u64) -> Io<()> {
        self.ask(|fence| fence.hold(key))
    }

    fn take(&self, key: u64) -> Io<()> {
        self.ask(|fence| fence.take(key))
    }

    fn holder(&self) -> Io<Option<u64>> {
        self.ask(|fence| fence.holder())
    }

    fn release(&self, key: u64) -> Io<()> {
        self.ask(|fence| fence.release(key))
    }

    fn is_required(&self) -> bool {
        true
    }
}
