//! A way to a target whose wires can be cut.

#![allow(clippy::unwrap_used, unreachable_pub, dead_code)] // in a test a panic is the result

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

pub struct Wires {
    address: SocketAddr,
    /// Connections to the target, in the order in which they were made.
    laid: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Wires {
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let laid = Arc::<Mutex<Vec<AbortHandle>>>::default();
        let all = laid.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let wire = tokio::spawn(async move {
                    let mut far = TcpStream::connect(target).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
                all.lock().unwrap().push(wire.abort_handle());
            }
        });
        Self { address, laid }
    }

    /// Where the target is reached.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts the first connection that was made.
    pub fn cut_first(&self) {
        self.laid.lock().unwrap()[0].abort();
    }

    /// Cuts all of them.
    pub fn cut(&self) {
        self.laid.lock().unwrap().iter().for_each(AbortHandle::abort);
    }

    /// Connections that were made so far.
    pub fn made(&self) -> usize {
        self.laid.lock().unwrap().len()
    }
}
