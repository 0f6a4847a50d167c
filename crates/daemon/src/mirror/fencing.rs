//! [`Wished`]: a way to a leg with what its configuration says of reservations.

use std::pin::Pin;
use std::sync::Arc;

use block::mirror::{Fence, LegSource, OpenLeg};
use block::{BlockError, Io, Result};

use super::config::FenceWish;

/// A way to a leg, whose reservation is used as the configuration wishes.
pub(crate) struct Wished {
    source: Arc<dyn LegSource>,
    wish: FenceWish,
}

impl Wished {
    /// Without a wish, `source` is what it was: reservations are used where the target knows them.
    pub(crate) fn of(source: Arc<dyn LegSource>, wish: Option<FenceWish>) -> Arc<dyn LegSource> {
        match wish {
            None => source,
            Some(wish) => Arc::new(Self { source, wish }),
        }
    }
}

impl LegSource for Wished {
    fn name(&self) -> String {
        self.source.name()
    }

    fn connect(&self) -> Pin<Box<dyn Future<Output = Result<OpenLeg>> + Send>> {
        let (connecting, wish) = (self.source.connect(), self.wish);
        Box::pin(async move {
            let open = connecting.await?;
            let fence: Option<Arc<dyn Fence>> = match wish {
                FenceWish::None => None,
                FenceWish::Reservation => Some(Arc::new(Required(open.fence.clone()))),
            };
            Ok(OpenLeg { fence, ..open })
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
