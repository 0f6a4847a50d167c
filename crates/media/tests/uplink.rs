//! A home that nobody can call, and the page: our own target in this process, which listens nowhere
//! and calls the server.

#![allow(clippy::unwrap_used)] // helpers of tests fail as tests do

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use iscsi::target::{Server as TargetServer, ServerConfig};
use media::{StateFolder, UplinkHomes};
use support::{IQN, LEN, Served, serve_catalogue, text, unit, until};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uplink::Identity;
use uplink::home::{Config as Calling, Deliver, Standing, keep};

/// What the page says at once, on a machine that is busy.
const SOON: Duration = Duration::from_secs(5);

/// A target that is reached by what it dials, and its key.
struct Home {
    server: Arc<TargetServer>,
    identity: Arc<Identity>,
}

impl Home {
    async fn new() -> Self {
        let (target, _) = unit().await;
        let config = ServerConfig::new(IQN).unwrap();
        let server = Arc::new(TargetServer::bind(config, target, &[]).unwrap());
        let pem = Identity::generate().unwrap();
        Self { server, identity: Arc::new(Identity::from_pem(&pem).unwrap()) }
    }

    /// Calls until this is aborted.
    fn call(&self, served: &Served) -> (JoinHandle<()>, watch::Receiver<Standing>) {
        let (address, pin) = served.uplink.unwrap();
        let identity = Arc::clone(&self.identity);
        let config = Calling { server: address.to_string(), pin, identity };
        let server = Arc::clone(&self.server);
        let deliver: Deliver = Arc::new(move |stream, peer| server.serve("films", stream, peer));
        let (tell, standing) = watch::channel(Standing::default());
        (tokio::spawn(keep(config, deliver, tell)), standing)
    }
}

/// A page of the film at a home that is known as "attic".
async fn page(home: &Home) -> (Served, UplinkHomes) {
    let folder = tempfile::tempdir().unwrap();
    let state = StateFolder::open(&folder.path().join("state")).unwrap();
    let homes = UplinkHomes::new(&state);
    homes.add("attic", home.identity.pin()).unwrap();
    let volume = format!("iscsi://attic/{IQN}/0\"\nuplink = \"attic");
    let text = text("The Film").replace("disk.img", &volume);
    let listen = "127.0.0.1:0".parse().unwrap();
    let served = serve_catalogue(folder, &text, |it| it.uplink = Some((listen, state))).await;
    (served, homes)
}

async fn is_sent(served: &Served, src: &str) -> bool {
    let (status, _, body) = served.ask(src, "").await;
    status == 200 && body == [b'x'; LEN]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_that_calls_is_played_and_one_that_does_not_is_off_at_once() {
    let home = Home::new().await;
    let (served, homes) = page(&home).await;
    let src = served.src().await;
    assert_eq!(served.state().await, "off", "it has not called");
    let (status, head, body) = served.ask(&src, "").await;
    let said = String::from_utf8(body).unwrap();
    assert!(status == 503 && head.contains("retry-after"), "{head}");
    assert!(said.starts_with("the storage \"attic\" is off, since 20"), "{said}");

    let (calling, mut standing) = home.call(&served);
    let up = standing.wait_for(|it| it.known_as.as_deref() == Some("attic"));
    tokio::time::timeout(SOON, up).await.unwrap().unwrap();
    until("played", async || is_sent(&served, &src).await).await;
    assert_eq!(served.state().await, "on");
    assert_eq!(home.server.sessions().len(), 1);

    // Its data connections go on; that it can be asked for none any more is known at once.
    calling.abort();
    let begun = Instant::now();
    until("off", async || served.state().await == "off").await;
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(is_sent(&served, &src).await, "what is open stays open");
    let (calling, _standing) = home.call(&served);
    until("on again", async || served.state().await == "on").await;

    // Whoever is removed is out, and does not come back.
    homes.remove("attic").unwrap();
    until("off again", async || served.state().await == "off").await;
    calling.abort();
    let (calling, mut standing) = home.call(&served);
    let refused = standing.wait_for(|it| it.problem.is_some());
    let refused = tokio::time::timeout(SOON, refused).await.unwrap().unwrap().clone();
    assert!(refused.problem.unwrap().contains("does not know our key"));
    assert_eq!(refused.welcomes, 0);
    calling.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_whose_connections_end_is_asked_for_others() {
    let home = Home::new().await;
    let (served, _) = page(&home).await;
    let src = served.src().await;
    let (calling, standing) = home.call(&served);
    until("played", async || is_sent(&served, &src).await).await;
    let dialled = standing.borrow().dialled;
    for view in home.server.sessions() {
        assert!(home.server.drop_session(view.id));
    }
    until("played again", async || is_sent(&served, &src).await).await;
    until("on", async || served.state().await == "on").await;
    assert!(standing.borrow().dialled > dialled, "over another connection");
    calling.abort();
}
