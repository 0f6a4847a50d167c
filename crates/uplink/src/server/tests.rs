//! Both ends over sockets, and callers that are up to something.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tokio::io::AsyncReadExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::home::{self, Deliver, Standing};
use crate::wire::VERSION;

/// In which time a home that was cut off is to be back.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// What should happen at once, on a machine that is busy.
const SOON: Duration = Duration::from_secs(20);

fn identity() -> Arc<Identity> {
    Arc::new(Identity::from_pem(&Identity::generate().unwrap()).unwrap())
}

fn homes(known: &[(&str, &Identity)]) -> Homes {
    known.iter().map(|(name, identity)| (identity.pin(), (*name).to_owned())).collect()
}

/// A server, and the key of a home that it knows as "attic".
struct Arena {
    address: SocketAddr,
    server: Arc<Identity>,
    attic: Arc<Identity>,
    uplinks: Uplinks,
    serving: JoinHandle<()>,
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Arena {
    async fn new() -> Self {
        let (server, attic) = (identity(), identity());
        let known = homes(&[("attic", &attic)]);
        let bound = Listener::bind("127.0.0.1:0".parse().unwrap(), &server, known).await.unwrap();
        let (address, uplinks) = (bound.address(), bound.uplinks());
        Self { address, server, attic, uplinks, serving: tokio::spawn(bound.run()) }
    }

    /// A home that gives back what it is sent, reached through `address`.
    fn echo(&self, address: SocketAddr) -> (Abort, watch::Receiver<Standing>) {
        let config = home::Config {
            server: address.to_string(),
            pin: self.server.pin(),
            identity: Arc::clone(&self.attic),
        };
        let deliver: Deliver = Arc::new(|mut stream, _| {
            drop(tokio::spawn(async move {
                let mut buf = vec![0; 10_000];
                while let Ok(n @ 1..) = stream.read(&mut buf).await {
                    stream.write_all(&buf[..n]).await?;
                    stream.flush().await?;
                }
                Ok::<_, io::Error>(())
            }));
        });
        let (tell, standing) = watch::channel(Standing::default());
        (Abort(tokio::spawn(home::keep(config, deliver, tell))), standing)
    }

    /// A connection of whoever has this key, which believes in that of the server.
    async fn call(&self, identity: &Identity, server: Pin) -> io::Result<Stream> {
        let socket = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("uplink.invalid").unwrap();
        let tls = identity.at_home(server).unwrap();
        Stream::secure(socket, ClientConnection::new(tls, name).unwrap().into()).await
    }

    async fn call_and_say(&self, message: &Message) -> Stream {
        let mut stream = self.call(&self.attic, self.server.pin()).await.unwrap();
        stream.write_all(&message.encode()).await.unwrap();
        stream.flush().await.unwrap();
        stream
    }

    async fn until(&self, is_so: impl Fn(Presence) -> bool) {
        let waiting = async {
            while !is_so(self.uplinks.presence("attic")) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, waiting).await.expect("it does not come or go");
    }

    async fn dial(&self) -> io::Result<Stream> {
        let portal = "192.0.2.1:3260".parse().unwrap(); // nobody's: it is not looked at
        self.uplinks.dialer("attic").dial(&portal).await
    }
}

/// A task that ends with its test.
struct Abort(JoinHandle<()>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn is_up(presence: Presence) -> bool {
    matches!(presence, Presence::Up { .. })
}

fn is_gone(presence: Presence) -> bool {
    matches!(presence, Presence::Gone { .. })
}

/// The server closes it, and has said nothing else.
async fn is_closed(mut stream: Stream) {
    let mut reader = Reader::default();
    let next = timeout(SOON, reader.next(&mut stream)).await.expect("it stays open");
    assert!(matches!(next, Ok(None) | Err(_)), "{next:?}");
}

async fn echoes(stream: &mut Stream, len: usize) {
    let sent: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
    for chunk in sent.chunks(30_000) {
        stream.write_all(chunk).await.unwrap();
        stream.flush().await.unwrap();
        let mut back = vec![0; chunk.len()];
        stream.read_exact(&mut back).await.unwrap();
        assert!(back == chunk, "other bytes came back");
    }
}

#[tokio::test]
async fn whoever_wants_connections_to_a_home_has_them() {
    let arena = Arena::new().await;
    assert_eq!(arena.uplinks.presence("attic"), Presence::Never);
    assert_eq!(arena.dial().await.unwrap_err().kind(), io::ErrorKind::NotConnected);
    let (_home, standing) = arena.echo(arena.address);
    arena.until(is_up).await;
    let mut wanted = JoinSet::new();
    for _ in 0..OPEN_MAX / 2 {
        let dialer = arena.uplinks.dialer("attic");
        wanted.spawn(async move {
            let portal = "192.0.2.1:3260".parse().unwrap();
            let mut stream = dialer.dial(&portal).await.unwrap();
            echoes(&mut stream, 100_000).await;
        });
    }
    while let Some(ended) = wanted.join_next().await {
        ended.unwrap();
    }
    let known = standing.borrow().clone();
    assert_eq!((known.known_as.as_deref(), known.welcomes), (Some("attic"), 1));
    assert!(arena.uplinks.0.lock().waiting.is_empty());
}

#[tokio::test]
async fn a_token_lets_one_connection_in() {
    let arena = Arena::new().await;
    let mut control = arena.call_and_say(&Message::Hello { version: VERSION }).await;
    let mut reader = Reader::default();
    let mut next = async || loop {
        match reader.next(&mut control).await.unwrap().unwrap() {
            Message::Alive => {}
            other => return other,
        }
    };
    assert_eq!(next().await, Message::Welcome { name: "attic".into() });
    let uplinks = arena.uplinks.clone();
    let dialled = tokio::spawn(async move { uplinks.connect("attic").await });
    let Message::Dial { token, .. } = next().await else { panic!("it asks for nothing") };
    let guessed = arena.call_and_say(&Message::Token(Token([0; 16]))).await;
    is_closed(guessed).await;
    let mut data = arena.call_and_say(&Message::Token(token)).await;
    let mut there = timeout(SOON, dialled).await.unwrap().unwrap().unwrap();
    is_closed(arena.call_and_say(&Message::Token(token)).await).await;
    // The first one is not disturbed by it.
    there.write_all(b"login").await.unwrap();
    there.flush().await.unwrap();
    let mut login = [0; 5];
    data.read_exact(&mut login).await.unwrap();
    assert_eq!(&login, b"login");
    // What the home says behind its token was meant for nobody.
    let uplinks = arena.uplinks.clone();
    let dialled = tokio::spawn(async move { uplinks.connect("attic").await });
    let Message::Dial { token, .. } = next().await else { panic!("it asks for nothing") };
    let mut data = arena.call(&arena.attic, arena.server.pin()).await.unwrap();
    let both = [Message::Token(token).encode(), b"more".to_vec()].concat();
    data.write_all(&both).await.unwrap();
    data.flush().await.unwrap();
    is_closed(data).await;
    dialled.abort();
}

#[tokio::test]
async fn only_keys_that_are_known_come_in_and_only_to_a_server_that_has_its_own() {
    let arena = Arena::new().await;
    let stranger = identity();
    // TLS 1.3 lets a client believe that it is in until the server's answer is there.
    if let Ok(mut stream) = arena.call(&stranger, arena.server.pin()).await {
        let _ = stream.write_all(&Message::Hello { version: VERSION }.encode()).await;
        let _ = stream.flush().await;
        is_closed(stream).await;
    }
    assert_eq!(arena.uplinks.presence("attic"), Presence::Never);
    let error = told(arena.call(&arena.attic, stranger.pin()).await.unwrap_err());
    assert!(error.to_string().contains("not known here"), "{error}");
    // A home says so once, and tries again.
    let config = home::Config {
        server: arena.address.to_string(),
        pin: stranger.pin(),
        identity: Arc::clone(&arena.attic),
    };
    let (tell, mut standing) = watch::channel(Standing::default());
    let delivered = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&delivered);
    let deliver: Deliver = Arc::new(move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let _home = Abort(tokio::spawn(home::keep(config, deliver, tell)));
    let told = standing.wait_for(|standing| standing.problem.is_some());
    let told = timeout(SOON, told).await.unwrap().unwrap().problem.clone().unwrap();
    assert!(told.contains(&arena.server.pin().to_string()), "{told}");
    assert_eq!((delivered.load(Ordering::Relaxed), standing.borrow().welcomes), (0, 0));
}

#[tokio::test]
async fn who_does_not_say_who_he_is_is_shown_out() {
    let arena = Arena::new().await;
    let begun = Instant::now();
    let mut silent = TcpStream::connect(arena.address).await.unwrap();
    let mut shouting = TcpStream::connect(arena.address).await.unwrap();
    shouting.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    timeout(SOON, shouting.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(rest.len() < 16, "an alert of TLS, and no more: {rest:?}");
    // A home that is known, and says nothing or what is no beginning.
    let quiet = arena.call(&arena.attic, arena.server.pin()).await.unwrap();
    is_closed(arena.call_and_say(&Message::Alive).await).await;
    is_closed(quiet).await;
    timeout(SOON, silent.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(begun.elapsed() >= FIRST_TIMEOUT, "it was given time");
    let mut old = arena.call_and_say(&Message::Hello { version: 77 }).await;
    let told = Reader::default().next(&mut old).await.unwrap();
    let Some(Message::Refused { why }) = told else { panic!("{told:?}") };
    assert!(why.contains("version 77"), "{why}");
    is_closed(old).await;
}

#[tokio::test]
async fn a_home_that_goes_is_known_to_be_gone_at_once_and_who_waits_is_told() {
    let arena = Arena::new().await;
    let control = arena.call_and_say(&Message::Hello { version: VERSION }).await;
    arena.until(is_up).await;
    let uplinks = arena.uplinks.clone();
    let dialled = tokio::spawn(async move { uplinks.connect("attic").await });
    let asked = async {
        while arena.uplinks.0.lock().waiting.is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, asked).await.unwrap();
    drop(control);
    arena.until(is_gone).await;
    let error = timeout(SOON, dialled).await.unwrap().unwrap().unwrap_err();
    assert!(error.to_string().contains("gone"), "{error}");
    let (_home, _) = arena.echo(arena.address);
    arena.until(is_up).await;
    echoes(&mut arena.dial().await.unwrap(), 1000).await;
}

#[tokio::test]
async fn the_last_call_of_a_home_is_the_one_that_counts() {
    let arena = Arena::new().await;
    let mut old = arena.call_and_say(&Message::Hello { version: VERSION }).await;
    arena.until(is_up).await;
    let (_home, mut standing) = arena.echo(arena.address);
    let welcomed = standing.wait_for(|standing| standing.welcomes == 1);
    timeout(SOON, welcomed).await.unwrap().unwrap();
    let mut reader = Reader::default();
    let why = loop {
        match timeout(SOON, reader.next(&mut old)).await.unwrap().unwrap() {
            Some(Message::Refused { why }) => break why,
            Some(_) => {}
            None => panic!("it was not told why"),
        }
    };
    assert!(why.contains("called again"), "{why}");
    assert!(is_up(arena.uplinks.presence("attic")), "the end of the old one changes nothing");
    echoes(&mut arena.dial().await.unwrap(), 1000).await;
}

#[tokio::test]
async fn a_home_that_is_removed_goes_and_does_not_come_back() {
    let arena = Arena::new().await;
    let (_home, mut standing) = arena.echo(arena.address);
    arena.until(is_up).await;
    arena.uplinks.set_homes(homes(&[("shed", &identity())]));
    arena.until(is_gone).await;
    let refused = |standing: &Standing| standing.known_as.is_none() && standing.problem.is_some();
    timeout(SOON, standing.wait_for(refused)).await.unwrap().unwrap();
    let unknown = "the other end does not know our key";
    let told = |standing: &Standing| standing.problem.as_deref() == Some(unknown);
    timeout(SOON, standing.wait_for(told)).await.unwrap().unwrap();
    assert!(arena.dial().await.is_err());
    sleep(Duration::from_millis(500)).await; // it tries some times meanwhile
    assert!(is_gone(arena.uplinks.presence("attic")));
    arena.uplinks.set_homes(homes(&[("attic", &arena.attic)]));
    arena.until(is_up).await;
}

/// A way that can be cut: connections through it end, or hang for ever.
struct Cable {
    address: SocketAddr,
    cut: watch::Sender<u64>,
    _carrying: Abort,
}

impl Cable {
    async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (cut, cuts) = watch::channel(0);
        let carrying = tokio::spawn(async move {
            let mut pairs = JoinSet::new();
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let mut cuts = cuts.clone();
                cuts.mark_unchanged();
                pairs.spawn(async move {
                    let mut far = TcpStream::connect(target).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = cuts.changed() => {}
                    }
                    // An odd cut is a line that is dead and says nothing.
                    if *cuts.borrow() % 2 == 1 {
                        std::future::pending::<()>().await;
                    }
                });
            }
        });
        Self { address, cut, _carrying: Abort(carrying) }
    }

    fn cut(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
    }
}

#[tokio::test]
async fn a_line_that_is_cut_is_back_within_five_seconds() {
    let arena = Arena::new().await;
    let cable = Cable::to(arena.address).await;
    let (_home, mut standing) = arena.echo(cable.address);
    arena.until(is_up).await;
    for welcomes in 2..4 {
        // First it goes silent, then it is closed.
        let cut_at = Instant::now();
        cable.cut();
        let back = standing.wait_for(|standing| standing.welcomes == welcomes);
        timeout(SOON, back).await.unwrap().unwrap();
        // Half a second is this machine's, which others use.
        let took = cut_at.elapsed();
        assert!(took <= BACK_WITHIN + Duration::from_millis(500), "back after {took:?}");
        arena.until(is_up).await;
        echoes(&mut arena.dial().await.unwrap(), 1000).await;
    }
}
