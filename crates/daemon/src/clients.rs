//! [`Clients`]: connections to a page for machines (metrics, health), of which there are few.

use std::collections::VecDeque;
use std::future::Future;

use tokio::task::AbortHandle;

/// Connections in order of arrival. When there are too many, the one that has been there longest
/// has to go for the next: so nobody shuts out a load balancer that asks for our health, which has
/// its answer in one round trip.
#[derive(Debug)]
pub struct Clients {
    max: usize,
    talking: VecDeque<AbortHandle>,
}

impl Clients {
    /// At most `max` at once.
    pub fn new(max: usize) -> Self {
        Self { max, talking: VecDeque::new() }
    }

    /// Lets one in: runs `talk` as a task of its own.
    pub fn enter(&mut self, talk: impl Future<Output = ()> + Send + 'static) {
        self.talking.retain(|client| !client.is_finished());
        if self.talking.len() >= self.max
            && let Some(oldest) = self.talking.pop_front()
        {
            oldest.abort();
        }
        self.talking.push_back(tokio::spawn(talk).abort_handle());
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

    use super::*;

    struct Tells(UnboundedSender<usize>, usize);

    impl Drop for Tells {
        fn drop(&mut self) {
            let _receiver_gone = self.0.send(self.1);
        }
    }

    #[tokio::test]
    async fn one_more_client_costs_the_oldest_its_place() {
        let mut clients = Clients::new(4);
        let (tell, mut ended) = unbounded_channel();
        for n in 0..7 {
            let tells = Tells(tell.clone(), n);
            clients.enter(async move {
                std::future::pending::<()>().await;
                drop(tells);
            });
        }
        for n in 0..3 {
            assert_eq!(ended.recv().await, Some(n), "the oldest");
        }
        assert!(ended.try_recv().is_err(), "and no other");
        assert_eq!(clients.talking.len(), 4);
    }
}
