//! [`Daemon`]: from start to stop, with reloads in between.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use iscsi::target::{Catalog, Limits, Server};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

use crate::admin::{self, Answer, Request, Status};
use crate::check::{everything, make_folders};
use crate::config::sources::Sources;
use crate::config::{Config, ConfigError, Problem, ServerSection};
use crate::http;
use crate::isns::Registration;
use crate::life::{Refused, access, groups, luns, portals};
use crate::logging::LogLevel;
use crate::lun::Opening;
use crate::socket;
use crate::state::{Changes, Plan, State};
use crate::uplink::Uplinks;

/// How often the storage is asked for the space it has left.
const SPACE_EVERY: Duration = Duration::from_secs(10);

/// A target daemon.
pub(crate) struct Daemon {
    pub(crate) server: Arc<Server>,
    pub(crate) started: Instant,
    pub(crate) isns: Registration,
    pub(crate) uplinks: Uplinks,
    config_path: PathBuf,
    /// What cannot change while it runs.
    fixed: ServerSection,
    /// What is in force.
    config: Mutex<Arc<Config>>,
    state: Mutex<State>,
    /// One change at a time.
    reloading: tokio::sync::Mutex<()>,
    stopping: AtomicBool,
    log: Option<LogLevel>,
}

/// A daemon that did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Something outside targets and portals is not to be had.
    #[error("{what}: {source}")]
    Io {
        /// What.
        what: String,
        /// Why.
        source: std::io::Error,
    },
    /// Data is not known to be stable.
    #[error("{0}")]
    Flush(String),
}

/// What a signal asks for.
enum Wish {
    Stop,
    Reload,
}

/// Runs a daemon until it is told to stop. `announce` is called with each address that it listens
/// on, once clients are answered.
///
/// # Errors
/// [`DaemonError`]: it did not start, or its LUNs could not be flushed at the end.
pub async fn run(path: &Path, mut announce: impl FnMut(&str)) -> Result<(), DaemonError> {
    let config = Arc::new(Config::load(path).map_err(|error| everything(path, error.0))?);
    if let Err(error) = iscsi::target::raise_descriptor_limit() {
        warn!(%error, "cannot raise the limit of open files");
    }
    let daemon = Arc::new(Daemon::new(path, Arc::clone(&config)));
    config.warnings.iter().for_each(|warning| warn!("{warning}"));
    let mut signals = Signals::new()?;
    let plan = daemon.lock().prepare(&config, Opening::ToServe);
    let plan = plan.map_err(|problems| everything(path, problems))?;
    plan.warnings.iter().for_each(|warning| warn!("{warning}"));
    let admin_path = config.server.admin_socket.clone();
    let failed = |what: &Path| {
        let what = what.display().to_string();
        move |source| DaemonError::Io { what, source }
    };
    make_folders(&config.server)?;
    let socket = socket::listen(&admin_path, socket::OWNER_AND_GROUP);
    let socket = socket.map_err(failed(&admin_path))?;
    let guard = RemoveAtEnd(admin_path);
    let http = match config.server.metrics {
        Some(address) => {
            Some(http::MetricsListener::bind(address).await.map_err(|source| DaemonError::Io {
                what: format!("metrics on {address}"),
                source,
            })?)
        }
        None => None,
    };
    daemon.lock().commit(plan, &daemon.server);
    daemon.isns.set(&config, &daemon.server);
    daemon.uplinks.set(&config, &daemon.server);
    let mut helpers = tokio::task::JoinSet::new();
    helpers.spawn(admin::serve(Arc::clone(&daemon), socket));
    for (_, address) in daemon.server.portals() {
        announce(&format!("listening on {address}"));
    }
    if let Some(http) = http {
        announce(&format!("metrics on http://{}/metrics", http.address()));
        helpers.spawn(http.serve(daemon.clone()));
    }
    helpers.spawn(watch_space(Arc::clone(&daemon)));
    helpers.spawn(crate::pair::watch(Arc::clone(&daemon)));
    notify(&[NotifyState::Ready]);
    info!(config = %path.display(), "serving");
    while let Wish::Reload = signals.next().await {
        // What is wrong is in the log; there is nobody else to tell.
        let _ = daemon.reload().await;
    }
    let stopped = daemon.stop(&mut signals).await;
    drop((helpers, guard));
    stopped
}

impl Daemon {
    fn new(path: &Path, config: Arc<Config>) -> Self {
        Self {
            server: Arc::new(Server::new(Catalog::new(Limits::default()))),
            started: Instant::now(),
            isns: Registration::new(),
            uplinks: Uplinks::default(),
            config_path: path.to_owned(),
            fixed: config.server.clone(),
            log: LogLevel::init(&config.server.log),
            config: Mutex::new(config),
            state: Mutex::default(),
            reloading: tokio::sync::Mutex::default(),
            stopping: AtomicBool::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration that is in force.
    pub(crate) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The file that it is in.
    pub(crate) fn config_path(&self) -> &Path {
        &self.config_path
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Reads the configuration again and makes it so, or changes nothing.
    pub(crate) async fn reload(&self) -> Result<Changes, Vec<Problem>> {
        let _turn = self.reloading.lock().await;
        notify_reloading();
        // Opening files may wait for a disk; sessions of this thread are served elsewhere.
        let result = tokio::task::block_in_place(|| self.try_reload());
        match &result {
            Ok(changes) => info!(changes = changes.lines.len(), "reloaded"),
            Err(problems) => {
                for problem in problems {
                    error!("{problem}");
                }
                error!(errors = problems.len(), "not reloaded, nothing has changed");
            }
        }
        notify(&[NotifyState::Ready]);
        result
    }

    fn try_reload(&self) -> Result<Changes, Vec<Problem>> {
        let (config, plan) = self.prepare(&Sources::read(&self.config_path)?)?;
        config.warnings.iter().for_each(|warning| warn!("{warning}"));
        Ok(self.commit(config, plan))
    }

    /// Opens everything that is new in what the files say. Nothing has changed by that; only one
    /// whose turn it is may ask.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub(crate) fn prepare(&self, sources: &Sources) -> Result<(Config, Plan), Vec<Problem>> {
        let config = Config::of(sources).map_err(|ConfigError(problems)| problems)?;
        let mut problems = self.fixed_problems(&config.server);
        // A copy, so that nobody who asks how things are waits for a disk.
        let before = self.lock().clone();
        match before.prepare(&config, Opening::ToServe) {
            Ok(plan) if problems.is_empty() => Ok((config, plan)),
            Ok(_) => Err(problems),
            Err(more) => {
                problems.extend(more);
                Err(problems)
            }
        }
    }

    /// Makes what has been prepared so.
    pub(crate) fn commit(&self, config: Config, plan: Plan) -> Changes {
        if let Some(log) = &self.log {
            log.set(&config.server.log);
        }
        let changes = self.lock().commit(plan, &self.server);
        self.isns.set(&config, &self.server);
        self.uplinks.set(&config, &self.server);
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        changes
    }

    /// Makes a change when nobody else makes one.
    async fn in_turn(&self, change: impl FnOnce() -> Result<Answer, Refused>) -> Answer {
        let _turn = self.reloading.lock().await;
        if self.is_stopping() {
            return Answer::failed(vec!["the daemon is stopping".to_owned()]);
        }
        // Opening files may wait for a disk; sessions of this thread are served elsewhere.
        tokio::task::block_in_place(change).unwrap_or_else(Answer::from)
    }

    /// What would need a restart.
    fn fixed_problems(&self, now: &ServerSection) -> Vec<Problem> {
        let then = &self.fixed;
        let changed = [
            ("server.state_directory", then.state_directory != now.state_directory),
            ("server.mirror_directory", then.mirror_directory != now.mirror_directory),
            ("server.admin_socket", then.admin_socket != now.admin_socket),
            ("metrics.listen", then.metrics != now.metrics),
        ];
        let changed = changed.into_iter().filter(|(_, changed)| *changed);
        changed
            .map(|(key, _)| Problem {
                file: self.config_path.clone(),
                line: 0,
                key: key.to_owned(),
                what: "cannot change while the daemon runs; restart it".to_owned(),
            })
            .collect()
    }

    /// Initiators log out, commands end, LUNs are flushed. A second signal ends the process.
    async fn stop(&self, signals: &mut Signals) -> Result<(), DaemonError> {
        self.stopping.store(true, Ordering::Release);
        notify(&[NotifyState::Stopping]);
        info!(sessions = self.server.sessions().len(), "stopping");
        let orderly = async {
            self.uplinks.stop();
            self.isns.leave().await;
            self.server.drain(self.fixed.shutdown_timeout).await;
            self.server.stop().await;
            let (targets, mirrors, volumes) = {
                let state = self.lock();
                (state.targets.clone(), state.mirrors(), state.volumes())
            };
            let mut flushed = crate::state::flush(&targets).await;
            for mirror in mirrors {
                let closed = mirror.close().await.map_err(|error| format!("a mirror: {error}"));
                flushed = flushed.and(closed);
            }
            for volume in volumes {
                let closed = volume.close().await.map_err(|error| format!("a volume: {error}"));
                flushed = flushed.and(closed);
            }
            flushed.map_err(DaemonError::Flush)
        };
        let impatient = async { while let Wish::Reload = signals.next().await {} };
        tokio::select! {
            flushed = orderly => flushed.inspect(|()| info!("stopped")),
            () = impatient => {
                Err(DaemonError::Flush("second signal: stopped without waiting".to_owned()))
            }
        }
    }

    pub(crate) async fn answer(&self, request: Request) -> Answer {
        match request {
            Request::Status {} => Answer { status: Some(self.status()), ..Answer::ok() },
            Request::Sessions {} => {
                let sessions = self.server.sessions().into_iter().map(Into::into).collect();
                Answer { sessions: Some(sessions), ..Answer::ok() }
            }
            Request::Drop { id } if self.server.drop_session(id) => Answer::ok(),
            Request::Drop { id } => Answer::failed(vec![format!("there is no session {id}")]),
            Request::Reload {} => match self.reload().await {
                Ok(changes) => Answer { changes: Some(changes.lines), ..Answer::ok() },
                Err(problems) => Answer::failed(problems.iter().map(ToString::to_string).collect()),
            },
            Request::LunAdd(asked) => self.in_turn(|| luns::add(self, &asked)).await,
            Request::LunResize(asked) => self.in_turn(|| luns::resize(self, &asked)).await,
            Request::LunRemove(asked) => self.in_turn(|| luns::remove(self, &asked)).await,
            Request::LunSnapshot(asked) => self.in_turn(|| luns::snapshot(self, &asked)).await,
            Request::LunList {} => luns::list(self),
            Request::InitiatorAllow(asked) => self.in_turn(|| access::allow(self, &asked)).await,
            Request::InitiatorDeny(asked) => self.in_turn(|| access::deny(self, &asked)).await,
            Request::InitiatorList {} => access::list(self),
            Request::PortalAdd(asked) => self.in_turn(|| portals::add(self, &asked)).await,
            Request::PortalRemove(asked) => self.in_turn(|| portals::remove(self, &asked)).await,
            Request::PortalList {} => portals::list(self),
            Request::AccessSet(asked) => self.in_turn(|| groups::set(self, &asked)).await,
            Request::AccessList {} => self.in_turn(|| groups::list(self)).await,
        }
    }

    fn status(&self) -> Status {
        let portals = self.server.portals();
        let (failures, targets) = {
            let state = self.lock();
            (state.failures(), state.targets.keys().cloned().collect())
        };
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            config: self.config_path.clone(),
            uptime_s: self.started.elapsed().as_secs(),
            state: if self.is_stopping() { "stopping" } else { "serving" }.to_owned(),
            failures,
            portals: portals.iter().map(|(_, address)| address.to_string()).collect(),
            targets,
            sessions: self.server.sessions().len(),
            memory_bytes: self.server.memory().0,
            limits: self.server.limit_views().into_iter().map(Into::into).collect(),
            isns: self.isns.view().map(Into::into),
            uplinks: self.uplinks.views().into_iter().map(Into::into).collect(),
        }
    }
}

struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self, DaemonError> {
        let listen = |kind| {
            signal(kind).map_err(|source| DaemonError::Io { what: "signals".to_owned(), source })
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.interrupt.recv() => Wish::Stop,
            _ = self.terminate.recv() => Wish::Stop,
            _ = self.hang_up.recv() => Wish::Reload,
        }
    }
}

/// Looks at the space behind LUNs now and then.
async fn watch_space(daemon: Arc<Daemon>) {
    let mut ticks = tokio::time::interval(SPACE_EVERY);
    loop {
        ticks.tick().await;
        daemon.lock().report_space();
    }
}

/// Tells systemd, if it wants to be told.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "systemd was not told");
    }
}

fn notify_reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => warn!(%error, "systemd was not told of the reload"),
    }
}

/// A file of ours that shall not stay behind.
struct RemoveAtEnd(PathBuf);

impl Drop for RemoveAtEnd {
    fn drop(&mut self) {
        let _gone_already = std::fs::remove_file(&self.0);
    }
}
