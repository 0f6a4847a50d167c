//! Client, registrar and server of this crate over loopback: registered, found, told, forgotten,
//! and registered again at a server that comes back.

#![allow(clippy::unwrap_used)] // helpers of tests fail as tests do

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use discovery::isns::registrar::{self, Offered, Place, Standing, Wish};
use discovery::isns::registration::{Entity, Node, Portal, node_type};
use discovery::isns::serve::{CONNECTIONS_MAX, Config, ServeError, Server};
use discovery::isns::{Client, ClientError, DomainsFile, Notice, Settings};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

const DISK: &str = "iqn.2026-11.org.example:disk";
const HOST: &str = "iqn.2026-11.org.example:host";

struct Running {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    async fn start(listen: SocketAddr, state: Option<&Path>) -> Self {
        let config = Config {
            listen,
            state: state.map(Into::into),
            allow: Vec::new(),
            connections_max: CONNECTIONS_MAX,
            settings: Settings::default(),
            domains: DomainsFile::default(),
        };
        let server = Server::bind(config).await.unwrap();
        let address = server.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.run(async { drop(stopped.await) }));
        Self { address, stop: Some(stop), task }
    }

    async fn stop(mut self) {
        drop(self.stop.take());
        (&mut self.task).await.unwrap().unwrap();
    }
}

fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn wish(server: SocketAddr) -> Wish {
    Wish {
        server: server.to_string(),
        entity: "home.example".into(),
        esi_interval_s: Some(5),
        domains: Vec::new(),
        portals: vec![("lan".into(), Place::Here(3260))],
        targets: vec![Offered { name: DISK.into(), alias: Some("Films".into()), portals: None }],
    }
}

async fn until(
    standing: &mut watch::Receiver<Standing>,
    what: &str,
    is: impl Fn(&Standing) -> bool,
) {
    let reached = tokio::time::timeout(Duration::from_secs(40), standing.wait_for(is)).await;
    assert!(reached.is_ok(), "not {what} within 40 s");
}

async fn targets(server: SocketAddr) -> Vec<String> {
    let mut client = Client::connect(&server.to_string(), false).await.unwrap();
    let found = client.targets(HOST).await.unwrap();
    found.into_iter().map(|target| target.name).collect()
}

#[tokio::test]
async fn a_wish_is_registered_inquired_of_and_taken_away() {
    let server = Running::start(anywhere(), None).await;
    let (wishes, wished) = watch::channel(Some(wish(server.address)));
    let (tell, mut standing) = watch::channel(Standing::default());
    let keeper = tokio::spawn(registrar::keep(wished, tell));
    until(&mut standing, "registered", |it| it.registered).await;
    let mut client = Client::connect(&server.address.to_string(), false).await.unwrap();
    let found = client.targets(HOST).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((&*found[0].name, found[0].alias.as_deref()), (DISK, Some("Films")));
    assert_eq!(found[0].portals[0].0.to_string(), "127.0.0.1:3260", "where it was reached from");
    until(&mut standing, "inquired of", |it| it.inquiries >= 1).await;
    assert_eq!(targets(server.address).await, [DISK], "who answers stays");
    // Another name in its place.
    let mut next = wish(server.address);
    next.targets[0].name = format!("{DISK}2");
    wishes.send_replace(Some(next));
    until(&mut standing, "registered again", |it| it.registrations == 2).await;
    assert_eq!(targets(server.address).await, [format!("{DISK}2")]);
    wishes.send_replace(None);
    until(&mut standing, "taken away", |it| !it.registered).await;
    assert_eq!(targets(server.address).await, [""; 0]);
    wishes.send_replace(Some(wish(server.address)));
    until(&mut standing, "registered anew", |it| it.registered).await;
    drop(wishes);
    keeper.await.unwrap();
    assert_eq!(targets(server.address).await, [""; 0]);
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_lost_everything_knows_us_again() {
    let server = Running::start(anywhere(), None).await;
    let address = server.address;
    let (wishes, wished) = watch::channel(Some(wish(address)));
    let (tell, mut standing) = watch::channel(Standing::default());
    let keeper = tokio::spawn(registrar::keep(wished, tell));
    until(&mut standing, "registered", |it| it.registered).await;
    server.stop().await;
    until(&mut standing, "told of", |it| !it.registered && it.problem.is_some()).await;
    let server = Running::start(address, None).await;
    until(&mut standing, "registered again", |it| it.registered).await;
    assert_eq!(standing.borrow().problem, None);
    assert_eq!(targets(address).await, [DISK]);
    drop(wishes);
    keeper.await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn what_a_server_keeps_in_its_file_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("isns.state");
    let server = Running::start(anywhere(), Some(&state)).await;
    let address = server.address;
    let mut client = Client::connect(&address.to_string(), false).await.unwrap();
    let node = Node { name: DISK.into(), kind: node_type::TARGET, alias: None, portals: None };
    let key = SocketAddr::from(([192, 0, 2, 1], 3260)).into();
    let portals = vec![Portal { key, name: None }];
    let entity = Entity { id: "home".into(), period_s: 600, portals, nodes: vec![node] };
    client.call(&entity.registration(None, None)).await.unwrap();
    server.stop().await;
    let server = Running::start(address, Some(&state)).await;
    assert_eq!(targets(address).await, [DISK]);
    server.stop().await;
    std::fs::write(&state, "something else").unwrap();
    let config = Config {
        listen: anywhere(),
        state: Some(state.clone()),
        allow: Vec::new(),
        connections_max: 1,
        settings: Settings::default(),
        domains: DomainsFile::default(),
    };
    let error = Server::bind(config).await.unwrap_err().to_string();
    assert!(error.contains(&state.display().to_string()) && error.contains("directory"), "{error}");
}

#[tokio::test]
async fn who_watches_is_told_on_its_connection() {
    let server = Running::start(anywhere(), None).await;
    let mut watcher = Client::connect(&server.address.to_string(), true).await.unwrap();
    let entity = |id: &str, name: &str, kind| Entity {
        id: id.into(),
        period_s: 600,
        portals: Vec::new(),
        nodes: vec![Node { name: name.into(), kind, alias: None, portals: None }],
    };
    watcher.call(&entity("pc", HOST, node_type::INITIATOR).registration(None, None)).await.unwrap();
    watcher.watch(HOST).await.unwrap();
    let mut other = Client::connect(&server.address.to_string(), false).await.unwrap();
    let home = entity("home", DISK, node_type::TARGET);
    other.call(&home.registration(None, None)).await.unwrap();
    other.call(&home.deregistration()).await.unwrap();
    for bit in [0x08, 0x10] {
        let notice = tokio::time::timeout(Duration::from_secs(20), watcher.notice()).await;
        let Notice::Scn { events, .. } = notice.unwrap().unwrap() else { panic!() };
        assert_eq!(events[0].bitmap, bit);
        assert_eq!(events[0].names().collect::<Vec<_>>(), [DISK]);
    }
    server.stop().await;
}

#[tokio::test]
async fn what_does_not_speak_isns_is_left_and_the_others_are_not() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = Running::start(anywhere(), None).await;
    let mut stranger = tokio::net::TcpStream::connect(server.address).await.unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: isns\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let ended = stranger.read_to_end(&mut answer);
    let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
    assert!(ended.is_ok() && answer.is_empty(), "{answer:?}");
    assert_eq!(targets(server.address).await, [""; 0]);
    server.stop().await;
    let refused = Client::connect(
        &stranger.peer_addr().map_or("127.0.0.1:1".into(), |it| it.to_string()),
        false,
    )
    .await;
    assert!(matches!(refused, Err(ClientError::Connect { .. })));
}
