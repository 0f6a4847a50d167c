//! [`Client`]: a server that is asked. Each search and each lot of changes has a connection of its
//! own, so that nothing has to be mended when a server was away.
//!
//! ldap3 does the protocol, at the far end of a pair of sockets; between it and the server, a task
//! lets pass what [`gate`](super::gate) takes for an answer.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use futures_util::{StreamExt, stream};
use ldap3::controls::PagedResults;
use ldap3::{
    Ldap, LdapConnAsync, LdapConnSettings, LdapResult, Mod, Scope, SearchEntry, StdStream,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::UnixStream;
use tokio::net::unix::{ReadHalf as UnixReadHalf, WriteHalf as UnixWriteHalf};
use tokio::task::JoinSet;
use tracing::warn;
use zeroize::Zeroizing;

use super::connect::{Stream, connect};
use super::gate::{self, Asked, MESSAGE_BYTES_MAX, Message, PAGE_BYTES_MAX};
use super::{Address, Change, Directory, Entry, LdapError, Search};

/// How long a server may take to let us in, for a page, or for a change.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);
/// Entries of a page (RFC 2696).
const PAGE_ENTRIES: i32 = 100;
/// Changes that are asked for at once. OpenLDAP has room for 100 that wait (`olcConnMaxPending`).
const CHANGES_AT_ONCE: usize = 32;
/// Free space that a read is offered.
const READ_LEN: usize = 64 << 10;
/// RFC 2696 §2.
const PAGED_RESULTS: &str = "1.2.840.113556.1.4.319";

/// Who we are.
#[derive(Clone, Debug)]
pub struct Bind {
    /// Name of an entry.
    pub dn: String,
    /// Its password.
    pub password: Zeroizing<String>,
}

/// How a server is spoken to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it is, and which entry of it is meant.
    pub address: Address,
    /// TLS is asked for in the clear, and nothing else is.
    pub is_starttls: bool,
    /// Certificates in PEM, of which one has to vouch for the server's; else those of the system.
    pub ca: Option<PathBuf>,
    /// Who we are; else nobody.
    pub bind: Option<Bind>,
}

/// A server that is asked.
#[derive(Clone, Debug)]
pub struct Client {
    settings: Arc<Settings>,
}

impl Client {
    /// Nothing is opened yet.
    ///
    /// # Errors
    /// The settings say what must not be.
    pub fn new(settings: Settings) -> Result<Self, LdapError> {
        let wrong = |problem: &str| {
            let (place, problem) = (settings.address.to_string(), problem.to_owned());
            Err(LdapError::Settings { place, problem })
        };
        let (address, bind) = (&settings.address, &settings.bind);
        if address.is_tls && settings.is_starttls {
            return wrong("StartTLS is for ldap://; ldaps:// is TLS already");
        }
        // A server takes that for nobody (RFC 4513 §5.1.2), and it seems as if all were well.
        if bind.as_ref().is_some_and(|bind| bind.password.is_empty() || bind.dn.is_empty()) {
            return wrong("a user and a password that are not empty are allowed, or neither");
        }
        if bind.is_some() && !address.is_tls && !settings.is_starttls && !address.is_near() {
            return wrong(
                "the password would cross the network for everybody to read: ldaps://, or \
                 StartTLS (--directory-starttls), is allowed",
            );
        }
        Ok(Self { settings: Arc::new(settings) })
    }

    /// Does work in a session. If ldap3 should end with a panic at something that the gate lets
    /// pass, that ends no more than the session.
    async fn with_session<T: Send + 'static, F>(
        &self,
        work: impl FnOnce(Session) -> F + Send + 'static,
    ) -> Result<T, LdapError>
    where
        F: Future<Output = Result<T, LdapError>> + Send + 'static,
    {
        let settings = Arc::clone(&self.settings);
        let working = AbortOnDrop(tokio::spawn(async move {
            let mut session = Session::open(&settings).await?;
            let fault = Arc::clone(&session.fault);
            let done = match session.log_in(settings.bind.as_ref()).await {
                Ok(()) => work(session).await,
                Err(error) => Err(error),
            };
            // What the gate saw is why ldap3 has no answer; an answer is one all the same.
            done.map_err(|error| match error {
                LdapError::Connection { .. } => lock(&fault).take().unwrap_or(error),
                answered => answered,
            })
        }));
        let server = || self.settings.address.server();
        working.join().await.unwrap_or_else(|_| {
            let why = "its answers cannot be understood".to_owned();
            Err(LdapError::Nonsense { server: server(), why })
        })
    }
}

/// A task that ends with whoever waits for it.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> AbortOnDrop<T> {
    async fn join(mut self) -> Result<T, tokio::task::JoinError> {
        (&mut self.0).await
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Directory for Client {
    fn name(&self) -> String {
        self.settings.address.to_string()
    }

    fn base(&self) -> String {
        self.settings.address.base.clone()
    }

    async fn search(
        &self,
        wanted: &Search,
        each: &mut (dyn FnMut(Entry) + Send),
    ) -> Result<(), LdapError> {
        let (tell, mut told) = tokio::sync::mpsc::channel(1);
        let wanted = wanted.clone();
        let pages = self.with_session(|session| session.pages(wanted, tell));
        tokio::pin!(pages);
        loop {
            tokio::select! {
                biased;
                Some(page) = told.recv() => page.into_iter().for_each(&mut *each),
                done = &mut pages => {
                    while let Ok(page) = told.try_recv() {
                        Vec::into_iter(page).for_each(&mut *each);
                    }
                    return done;
                }
            }
        }
    }

    async fn apply(&self, changes: Vec<Change>) -> Result<Vec<(String, LdapError)>, LdapError> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        self.with_session(|session| session.changes(changes)).await
    }
}

/// A connection over which somebody has said who he is.
struct Session {
    server: String,
    base: String,
    ldap: Ldap,
    /// Why the gate closed.
    fault: Arc<Mutex<Option<LdapError>>>,
    /// End with it.
    _tasks: JoinSet<()>,
}

impl Session {
    async fn open(settings: &Settings) -> Result<Self, LdapError> {
        let server = settings.address.server();
        let opened = tokio::time::timeout(ANSWER_TIME_MAX, connect(settings)).await;
        let stream = opened.unwrap_or_else(|_| Err(silent(&server)))?;
        let broken = |source| LdapError::Connection { server: server.clone(), source };
        let (near, far) = UnixStream::pair().map_err(broken)?;
        let far = StdStream::Unix(far.into_std().map_err(broken)?);
        let pair = LdapConnSettings::new().set_std_stream(far);
        let made = LdapConnAsync::with_settings(pair, "ldapi:///").await;
        let (connection, ldap) = made.map_err(|error| broken(io::Error::other(error)))?;
        let (mut tasks, fault) = (JoinSet::new(), Arc::<Mutex<_>>::default());
        tasks.spawn(async move {
            let _ = connection.drive().await; // who waits for an answer is told
        });
        let (noted, name) = (Arc::clone(&fault), server.clone());
        tasks.spawn(async move {
            let mut near = near; // open until it is noted why it is not
            if let Err(error) = relay(&name, stream, &mut near).await {
                *lock(&noted) = Some(error);
            }
        });
        let base = settings.address.base.clone();
        Ok(Self { server, base, ldap, fault, _tasks: tasks })
    }

    /// Says who we are, if we are anybody.
    async fn log_in(&mut self, bind: Option<&Bind>) -> Result<(), LdapError> {
        let Some(bind) = bind else { return Ok(()) };
        let bound = in_time(&self.server, self.ldap.simple_bind(&bind.dn, &bind.password)).await?;
        accepted(&self.server, &format!("to let in {:?}", bind.dn), bound).map(drop)
    }

    /// Hands over one page after the other.
    async fn pages(
        mut self,
        wanted: Search,
        tell: tokio::sync::mpsc::Sender<Vec<Entry>>,
    ) -> Result<(), LdapError> {
        let filter = wanted.filter.to_string();
        let (mut count, mut cookie) = (0, Vec::new());
        loop {
            let control = PagedResults { size: PAGE_ENTRIES, cookie };
            let attributes = wanted.attributes.clone();
            let page = async {
                self.ldap.with_controls(control);
                self.ldap.search(&self.base, Scope::Subtree, &filter, attributes).await
            };
            let page = in_time(&self.server, page).await?;
            let result = accepted(&self.server, &format!("to search {:?}", self.base), page.1)?;
            count += page.0.len();
            if count > wanted.entries_max {
                let max = wanted.entries_max;
                let why =
                    format!("more than {max} entries below {:?}; that is the most", self.base);
                return Err(LdapError::Nonsense { server: self.server.clone(), why });
            }
            let entries = page.0.into_iter().filter(|one| !one.is_ref() && !one.is_intermediate());
            let entries = entries.map(|one| entry(SearchEntry::construct(one))).collect();
            if tell.send(entries).await.is_err() {
                return Ok(()); // nobody waits for it
            }
            let control = result.ctrls.iter().find(|control| control.1.ctype == PAGED_RESULTS);
            let value = control.and_then(|control| control.1.val.as_deref());
            let next = value.map(gate::cookie).transpose().map_err(|why| LdapError::Nonsense {
                server: self.server.clone(),
                why: why.to_owned(),
            })?;
            match next {
                Some(next) if !next.is_empty() => cookie = next.to_vec(),
                _ => break,
            }
        }
        let _ = self.ldap.unbind().await; // there is nothing to be lost any more
        Ok(())
    }

    async fn changes(
        mut self,
        changes: Vec<Change>,
    ) -> Result<Vec<(String, LdapError)>, LdapError> {
        let (ldap, server) = (self.ldap.clone(), self.server.clone());
        let made = stream::iter(changes).map(move |change| {
            let (ldap, server) = (ldap.clone(), server.clone());
            async move {
                let dn = change.dn().to_owned();
                let result = in_time(&server, make(ldap, change)).await?;
                Ok(accepted(&server, &format!("to change {dn:?}"), result).err().map(|no| (dn, no)))
            }
        });
        let mut made = made.buffer_unordered(CHANGES_AT_ONCE);
        let mut refused = Vec::new();
        while let Some(one) = made.next().await {
            refused.extend(one?);
        }
        let _ = self.ldap.unbind().await; // there is nothing to be lost any more
        Ok(refused)
    }
}

/// Asks for a change.
async fn make(mut ldap: Ldap, change: Change) -> ldap3::result::Result<LdapResult> {
    let name = |name: &str| name.as_bytes().to_vec();
    match change {
        Change::Add { dn, attributes } => {
            let all = attributes.into_iter().filter(|(_, values)| !values.is_empty());
            let all = all.map(|(key, values)| (name(key), values.into_iter().collect()));
            ldap.add(&dn, all.collect::<Vec<(Vec<u8>, HashSet<Vec<u8>>)>>()).await
        }
        Change::Replace { dn, attributes } => {
            let all = attributes.into_iter();
            let all =
                all.map(|(key, values)| Mod::Replace(name(key), values.into_iter().collect()));
            ldap.modify(&dn, all.collect()).await
        }
        Change::Remove { dn } => ldap.delete(&dn).await,
    }
}

/// As it is handed on: names in small letters, without options.
fn entry(found: SearchEntry) -> Entry {
    let texts = found.attrs.into_iter().map(|(name, values)| {
        (name, values.into_iter().map(String::into_bytes).collect::<Vec<Vec<u8>>>())
    });
    let mut entry = Entry { dn: found.dn, ..Entry::default() };
    for (name, values) in texts.chain(found.bin_attrs) {
        let plain = name.split(';').next().unwrap_or_default().to_ascii_lowercase();
        entry.attributes.entry(plain).or_default().extend(values);
    }
    entry
}

async fn in_time<T>(
    server: &str,
    answer: impl Future<Output = ldap3::result::Result<T>>,
) -> Result<T, LdapError> {
    match tokio::time::timeout(ANSWER_TIME_MAX, answer).await {
        Ok(answer) => answer.map_err(|error| LdapError::Connection {
            server: server.to_owned(),
            source: match error {
                ldap3::LdapError::Io { source } => source,
                other => io::Error::new(io::ErrorKind::ConnectionAborted, other.to_string()),
            },
        }),
        Err(_) => Err(silent(server)),
    }
}

fn silent(server: &str) -> LdapError {
    LdapError::Silent { server: server.to_owned(), seconds: ANSWER_TIME_MAX.as_secs() }
}

/// A result that says yes.
fn accepted(server: &str, what: &str, result: LdapResult) -> Result<LdapResult, LdapError> {
    if result.rc == 0 {
        return Ok(result);
    }
    let text = gate::shown(&result.text);
    let why = match result.rc {
        4 | 11 => {
            "it hands out fewer entries than there are: raise its limit for us (olcSizeLimit)"
        }
        8 | 13 => "it wants TLS: ldaps://, or --directory-starttls",
        17 | 21 | 65 => "it does not know or fit the schema: is contrib/ldap/enkaku.ldif loaded?",
        32 => "there is no such entry: the base has to be made first",
        49 => "wrong user or password",
        50 => "we may not: give the user the right to, in its access rules",
        68 => "there is an entry of this name that is another one",
        _ => "",
    };
    let code = result.rc;
    let why = match (why, text.as_str()) {
        ("", text) => format!("result {code}: {text}"),
        (why, "") => format!("{why} (result {code})"),
        (why, text) => format!("{why} (result {code}: {text})"),
    };
    Err(LdapError::Refused { server: server.to_owned(), what: what.to_owned(), why })
}

/// Moves messages both ways until one side has no more.
async fn relay(
    server: &str,
    stream: Box<dyn Stream>,
    near: &mut UnixStream,
) -> Result<(), LdapError> {
    let (from_server, to_server) = tokio::io::split(stream);
    let (from_us, to_us) = near.split();
    let asked = Mutex::default();
    tokio::select! {
        ended = answers(server, from_server, to_us, &asked) => ended,
        ended = requests(from_us, to_server, &asked) => {
            ended.map_err(|source| LdapError::Connection { server: server.to_owned(), source })
        }
    }
}

async fn requests(
    mut from_us: UnixReadHalf<'_>,
    mut to_server: WriteHalf<Box<dyn Stream>>,
    asked: &Mutex<Asked>,
) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        let mut whole = 0;
        while let Some(len) = gate::length(&buffer[whole..]).map_err(io::Error::other)? {
            let Some(request) = buffer.get(whole..whole + len) else { break };
            lock(asked).ask(request).map_err(io::Error::other)?;
            whole += len;
        }
        to_server.write_all(&buffer.split_to(whole)).await?;
        to_server.flush().await?;
        buffer.reserve(READ_LEN);
        if from_us.read_buf(&mut buffer).await? == 0 {
            return to_server.shutdown().await;
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answers(
    server: &str,
    mut from_server: ReadHalf<Box<dyn Stream>>,
    mut to_us: UnixWriteHalf<'_>,
    asked: &Mutex<Asked>,
) -> Result<(), LdapError> {
    let nonsense = |why: &str| LdapError::Nonsense { server: server.into(), why: why.into() };
    let broken = |source| LdapError::Connection { server: server.into(), source };
    let (mut buffer, mut left_out, mut page) = (BytesMut::new(), 0, 0);
    loop {
        let skipped = left_out.min(buffer.len());
        buffer.advance(skipped);
        left_out -= skipped;
        match gate::length(&buffer).map_err(nonsense)? {
            Some(len) if len > MESSAGE_BYTES_MAX => {
                warn!(server, len, max = MESSAGE_BYTES_MAX, "too large an entry is left out");
                left_out = len;
                continue;
            }
            Some(len) if buffer.len() >= len => {
                let message = buffer.split_to(len);
                page += len;
                let checked = gate::check(&message).map_err(nonsense)?;
                match checked {
                    Message::Other => continue,
                    Message::Entry { .. } if page > PAGE_BYTES_MAX => {
                        return Err(nonsense("a page of entries without an end"));
                    }
                    Message::Entry { .. } => {}
                    Message::Result { id: 0, text, .. } => {
                        let text = gate::shown(text);
                        return Err(nonsense(&format!("it ends the connection: {text}")));
                    }
                    Message::Result { .. } => page = 0,
                }
                lock(asked).answer(&checked).map_err(nonsense)?;
                to_us.write_all(&message).await.map_err(broken)?;
                continue;
            }
            _ => {}
        }
        buffer.reserve(READ_LEN);
        if from_server.read_buf(&mut buffer).await.map_err(broken)? == 0 {
            let early =
                io::Error::new(io::ErrorKind::UnexpectedEof, "it has closed the connection");
            return Err(broken(early));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::super::Filter;
    use super::*;

    fn settings(url: &str) -> Settings {
        Settings { address: url.parse().unwrap(), is_starttls: false, ca: None, bind: None }
    }

    /// What is made of a server that says this to whatever it is asked.
    async fn told(answer: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ldap://{}/dc=a", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(answer).await;
        });
        let client = Client::new(settings(&url)).unwrap();
        let filter = Filter::Is("objectClass", "x".into());
        let wanted = Search { filter, attributes: vec!["*"], entries_max: 9 };
        let error = client.search(&wanted, &mut |_| ()).await.unwrap_err();
        serving.abort();
        error.to_string()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_that_is_none_ends_nothing_but_the_session() {
        for (answer, why) in [
            (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "no LDAP"),
            (b"\x30\x84\xff\xff\xff\xff", "longer than any"),
            (b"\x30\x05\x02\x01\x01\x64\x00", "ends in the middle"),
            (b"\x30\x0c\x02\x01\x00\x78\x07\x0a\x01\x34\x04\x00\x04\x00", "ends the connection"),
            (b"\x30\x0c\x02\x01\x01\x65\x07\x0a\x01\x04\x04\x00\x04\x00", "olcSizeLimit"),
            (b"", "closed"),
        ] {
            let told = told(answer).await;
            assert!(told.contains(why), "{answer:?}: {told}");
        }
    }

    #[test]
    fn a_password_is_not_sent_for_everybody_to_read() {
        let bind =
            |password: &str| Some(Bind { dn: "cn=a".into(), password: password.to_owned().into() });
        let made = |url: &str, password: &str| {
            Client::new(Settings { bind: bind(password), ..settings(url) })
        };
        assert!(made("ldap://127.0.0.1/dc=a", "x").is_ok());
        assert!(made("ldaps://d.example/dc=a", "x").is_ok());
        assert!(made("ldap://d.example/dc=a", "x").is_err());
        assert!(made("ldaps://d.example/dc=a", "").is_err(), "it would be nobody");
    }
}
