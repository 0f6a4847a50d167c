//! [`Etcd`], a cluster that we are connected to, and [`Key`], one value in it.

use std::error::Error as _;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use prost::Message;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use zeroize::Zeroizing;

use crate::url::Url;
use crate::wire::{
    AuthenticateRequest, AuthenticateResponse, Compare, PutRequest, RangeRequest, RangeResponse,
    RequestOp, TxnRequest, TxnResponse,
};

/// Longest value, in bytes; etcd takes requests of 1.5 MiB, unless it is configured.
pub const VALUE_LEN_MAX: usize = 1 << 20;

/// Longest answer that is read: a value and what is around it.
const ANSWER_LEN_MAX: usize = VALUE_LEN_MAX + (64 << 10);

/// How long a member may take for a question, its connection included; then another one is asked.
const QUESTION_TIME: Duration = Duration::from_millis(500);

/// How long it may take for a change, which is not given to another one: it may be carried out yet.
const CHANGE_TIME: Duration = Duration::from_secs(3);

/// How long it may take to log in: it compares passwords slowly on purpose, and whoever gives up
/// and asks again gives it more of that to do.
const LOGIN_TIME: Duration = Duration::from_secs(3);

/// How long we wait for the first answer: machines that have just started are busy.
const FIRST_TIME: Duration = Duration::from_secs(10);

/// A connection on which nothing comes is asked for life so often: etcd ends those that ask more
/// often than every 5 s.
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBE_TIME: Duration = Duration::from_secs(3);

const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";
const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

/// Why a cluster cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A file with certificates or a key.
    #[error("{path}: {why}")]
    File {
        /// Which one.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// Neither with these certificates.
    #[error("TLS with the certificates of {url}: {why}")]
    Tls {
        /// Whose.
        url: String,
        /// What is wrong with them.
        why: String,
    },
    /// No member answers, or they refuse us.
    #[error("{url}: {source}")]
    Unusable {
        /// Which cluster.
        url: String,
        /// What the last member that was asked said.
        source: io::Error,
    },
}

/// A cluster. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Etcd {
    cluster: Arc<Cluster>,
    thread: Arc<Thread>,
}

struct Cluster {
    url: Url,
    members: Vec<Member>,
    /// Which member is asked first: one that answered last time.
    current: AtomicUsize,
    login: Option<Login>,
}

/// What drives the connections: a thread of its own, so that whoever waits for an answer may be
/// one that all others wait for, and nobody's work delays what a lease is counted from.
#[derive(Debug)]
struct Thread(Option<Runtime>);

impl Thread {
    fn new() -> io::Result<Self> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(1).thread_name("etcd").enable_all().build().map(Some).map(Self)
    }

    fn runtime(&self) -> io::Result<&Runtime> {
        self.0.as_ref().ok_or_else(ended)
    }

    /// Blocks until it is done, wherever it is called from.
    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        let (done, waiting) = mpsc::channel();
        self.runtime()?.spawn(async move { done.send(work.await) });
        waiting.recv().map_err(|_| ended())?
    }
}

/// A runtime may not be waited for where tasks run.
impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn ended() -> io::Error {
    io::Error::other("the thread that speaks with etcd has ended")
}

struct Member {
    address: String,
    channel: Channel,
}

struct Login {
    user: String,
    password: Zeroizing<String>,
    /// Held while we log in: members compare passwords slowly on purpose, and once is enough.
    token: Mutex<Option<MetadataValue<Ascii>>>,
}

/// One value. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Key {
    etcd: Etcd,
    name: Vec<u8>,
}

impl Etcd {
    /// Connects, and asks until there is an answer. May block, for some 10 s. `password` is that of
    /// the URL's user, if it names one.
    ///
    /// # Errors
    /// A file cannot be used, no member answers, or they refuse us.
    pub fn connect(url: &Url, password: Option<Zeroizing<String>>) -> Result<Self, ConnectError> {
        let unusable = |source| ConnectError::Unusable { url: url.to_string(), source };
        let tls = tls_of(url)?;
        let thread = Thread::new().map_err(unusable)?;
        let within = thread.runtime().map_err(unusable)?.enter();
        let members = url.members.iter().map(|address| member(url, address, tls.as_ref()));
        let members = members.collect::<Result<_, _>>()?;
        drop(within);
        let login = url.user.as_ref().map(|user| Login {
            user: user.name.clone(),
            password: password.unwrap_or_default(),
            token: Mutex::new(None),
        });
        let current = AtomicUsize::new(0);
        let cluster = Arc::new(Cluster { url: url.clone(), members, current, login });
        let etcd = Self { cluster, thread: Arc::new(thread) };
        let begin = Instant::now();
        loop {
            match etcd.key("").load() {
                Ok(_) => return Ok(etcd),
                Err(error) if is_late(&error) && begin.elapsed() < FIRST_TIME => {}
                Err(error) => return Err(unusable(error)),
            }
        }
    }

    /// The key `PREFIX/name`.
    #[must_use]
    pub fn key(&self, name: &str) -> Key {
        let name = format!("{}/{name}", self.cluster.url.prefix).into_bytes();
        Key { etcd: self.clone(), name }
    }
}

impl Key {
    /// The value, and the revision that changed it last, which grows with every change; `None` if
    /// the key is not there. May block, for half a second by member, and for 3 s
    /// more where it has to log in.
    ///
    /// # Errors
    /// No member answers, or they refuse us.
    pub fn load(&self) -> io::Result<Option<(u64, Vec<u8>)>> {
        let (cluster, question) =
            (self.etcd.cluster.clone(), RangeRequest { key: self.name.clone() });
        let asking = async move { cluster.ask(RANGE, &question).await };
        let answer: RangeResponse = self.etcd.thread.wait(asking)?;
        let Some(found) = answer.kvs.into_iter().next() else { return Ok(None) };
        match u64::try_from(found.mod_revision) {
            Ok(revision) if revision > 0 => Ok(Some((revision, found.value))),
            _ => Err(nonsense("a revision that is none")),
        }
    }

    /// Replaces what was changed last in this revision (0: is not there), and tells the revision
    /// of that; `None` if it was changed by somebody else. May block, for 3 s, and for 3 s
    /// more where it has to log in.
    ///
    /// # Errors
    /// It is not known whether it was replaced; or the value is longer than [`VALUE_LEN_MAX`].
    pub fn replace(&self, revision: u64, value: &[u8]) -> io::Result<Option<u64>> {
        if value.len() > VALUE_LEN_MAX {
            let what = format!("{} bytes; etcd is given {VALUE_LEN_MAX} at most", value.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let Ok(revision) = i64::try_from(revision) else { return Ok(None) };
        let put = PutRequest { key: self.name.clone(), value: value.to_vec() };
        let request = TxnRequest {
            compare: vec![Compare::changed_in(&self.name, revision)],
            success: vec![RequestOp { put: Some(put) }],
        };
        let cluster = self.etcd.cluster.clone();
        let changing = async move { cluster.change(TXN, &request).await };
        let answer: TxnResponse = self.etcd.thread.wait(changing)?;
        if !answer.succeeded {
            return Ok(None);
        }
        let revision = answer.header.and_then(|header| u64::try_from(header.revision).ok());
        revision.map(Some).ok_or_else(|| nonsense("no revision"))
    }
}

impl Cluster {
    /// Asks a member, and the others if it does not answer.
    async fn ask<Q, A>(&self, method: &'static str, question: &Q) -> io::Result<A>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let mut failure = None;
        for _ in 0..self.members.len() {
            let at = self.current.load(Ordering::Relaxed);
            match self.authorized(&self.members[at], method, question, QUESTION_TIME).await {
                Ok(answer) => return Ok(answer),
                Err(status) => failure = Some(self.failed(at, &status)),
            }
        }
        Err(failure.unwrap_or_else(|| nonsense("no members")))
    }

    /// Has one member change something.
    async fn change<Q, A>(&self, method: &'static str, request: &Q) -> io::Result<A>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let at = self.current.load(Ordering::Relaxed);
        let answer = self.authorized(&self.members[at], method, request, CHANGE_TIME).await;
        answer.map_err(|status| self.failed(at, &status))
    }

    /// The next question is for another member. Several may fail together: that is one step.
    fn failed(&self, at: usize, status: &Status) -> io::Error {
        let next = (at + 1) % self.members.len();
        let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
        let kind = match status.code() {
            Code::PermissionDenied | Code::Unauthenticated => io::ErrorKind::PermissionDenied,
            Code::DeadlineExceeded => io::ErrorKind::TimedOut,
            _ => io::ErrorKind::Other,
        };
        let why = format!("etcd at {}: {}", self.members[at].address, told(status));
        io::Error::new(kind, why)
    }

    /// A call with our token, if we have to have one. A member that was started anew, or whose
    /// users have changed, does not know it any more, and has done nothing then.
    async fn authorized<Q, A>(
        &self,
        member: &Member,
        method: &'static str,
        message: &Q,
        limit: Duration,
    ) -> Result<A, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let call = |token| within(limit, member.call(method, message.clone(), token));
        let Some(login) = &self.login else { return call(None).await };
        let token = within(LOGIN_TIME, login.token(member, None)).await?;
        match call(Some(token.clone())).await {
            Err(status) if is_about_token(&status) => {
                let token = within(LOGIN_TIME, login.token(member, Some(token))).await?;
                call(Some(token)).await
            }
            answer => answer,
        }
    }
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let late = |_| Err(Status::deadline_exceeded(format!("no answer within {limit:?}")));
    tokio::time::timeout(limit, work).await.unwrap_or_else(late)
}

impl Member {
    async fn call<Q, A>(
        &self,
        method: &'static str,
        message: Q,
        token: Option<MetadataValue<Ascii>>,
    ) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let grpc = tonic::client::Grpc::new(self.channel.clone());
        let mut grpc = grpc.max_decoding_message_size(ANSWER_LEN_MAX);
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let mut request = Request::new(message);
        if let Some(token) = token {
            request.metadata_mut().insert("token", token);
        }
        let codec = tonic_prost::ProstCodec::default();
        let answer = grpc.unary(request, PathAndQuery::from_static(method), codec).await?;
        Ok(answer.into_inner())
    }
}

impl Login {
    /// One that is not `refused`. Of many calls whose token has become old at once, the first logs
    /// in and the others take what it was given.
    async fn token(
        &self,
        member: &Member,
        refused: Option<MetadataValue<Ascii>>,
    ) -> Result<MetadataValue<Ascii>, Status> {
        let mut known = self.token.lock().await;
        if let Some(token) = known.as_ref().filter(|&token| refused.as_ref() != Some(token)) {
            return Ok(token.clone());
        }
        let request =
            AuthenticateRequest { name: self.user.clone(), password: self.password.to_string() };
        let answer: AuthenticateResponse = member.call(AUTHENTICATE, request, None).await?;
        let token = MetadataValue::try_from(answer.token);
        let token = token.map_err(|_| Status::internal("a token that is none"))?;
        *known = Some(token.clone());
        Ok(token)
    }
}

fn is_late(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

/// Does the member not know the token? Its words are those of `rpctypes/error.go`, whose codes
/// mean other things as well.
fn is_about_token(status: &Status) -> bool {
    ["invalid auth token", "revision of auth store is old"]
        .iter()
        .any(|words| status.message().contains(words))
}

fn member(url: &Url, address: &str, tls: Option<&ClientTlsConfig>) -> Result<Member, ConnectError> {
    let wrong = |error: tonic::transport::Error| ConnectError::Tls {
        url: url.to_string(),
        why: causes(&error),
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(wrong)?;
    let mut endpoint = endpoint
        .connect_timeout(QUESTION_TIME)
        .http2_keep_alive_interval(PROBE_EVERY)
        .keep_alive_timeout(PROBE_TIME)
        .keep_alive_while_idle(true);
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls.clone()).map_err(wrong)?;
    }
    Ok(Member { address: address.to_owned(), channel: endpoint.connect_lazy() })
}

fn tls_of(url: &Url) -> Result<Option<ClientTlsConfig>, ConnectError> {
    let Some(ca) = &url.ca else { return Ok(None) };
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?));
    if let Some(identity) = &url.identity {
        let key = Zeroizing::new(read(&identity.key)?);
        tls = tls.identity(Identity::from_pem(read(&identity.cert)?, &*key));
    }
    Ok(Some(tls))
}

fn read(path: &Path) -> Result<Vec<u8>, ConnectError> {
    let wrong = |error: io::Error| ConnectError::File {
        path: path.display().to_string(),
        why: error.to_string(),
    };
    std::fs::read(path).map_err(wrong)
}

/// What a member said, or why it said nothing.
fn told(status: &Status) -> String {
    match status.source() {
        Some(source) => causes(source),
        None => status.message().to_owned(),
    }
}

fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let all = std::iter::successors(Some(error), |&error| error.source());
    let mut texts: Vec<String> = all.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("etcd answers with {what}"))
}

/// Neither the password nor the token.
impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("url", &self.url).finish_non_exhaustive()
    }
}
