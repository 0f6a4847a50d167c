//! [`Running`]: a mirror that is open, with the answers to what operators ask and monitors scrape.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use block::Device;
use block::layer::FailuresLayer;
use block::mirror::{Discard, LegState, Mirror, MirrorError, Status, VerifyOptions};
use tokio::net::UnixListener;
use tokio::sync::{RwLock, watch};
use tracing::{info, warn};

use super::control::{self, Answer, Answering, Answers, Request, which_leg};
use super::pace::Pace;
use super::report::{Beside, Report, VerifyReport, state_words};
use crate::http::{Listening, Pages};
use crate::metrics::render;

/// Time between two looks at how far copies are.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A mirror in use by this process.
pub struct Running {
    name: String,
    started: Instant,
    /// `None` once it is being closed.
    mirror: RwLock<Option<Mirror>>,
    /// What its user has.
    watched: Arc<FailuresLayer>,
    front: Mutex<String>,
    paces: Mutex<Vec<Pace>>,
    closing: watch::Sender<bool>,
}

impl Running {
    /// `mirror` under its name.
    pub fn new(name: &str, mirror: Mirror) -> Arc<Self> {
        let watched = Arc::new(FailuresLayer::new(mirror.device()));
        Arc::new(Self {
            name: name.to_owned(),
            started: Instant::now(),
            mirror: RwLock::new(Some(mirror)),
            watched,
            front: Mutex::default(),
            paces: Mutex::default(),
            closing: watch::Sender::new(false),
        })
    }

    /// What its user reads and writes.
    pub fn device(&self) -> Device {
        Arc::clone(&self.watched) as Device
    }

    /// The first operation of its user that failed, and how many have.
    pub fn failures(&self) -> block::layer::Failures {
        self.watched.failures()
    }

    /// Where it can be used, for the report.
    pub fn set_front(&self, front: impl fmt::Display) {
        *lock(&self.front) = front.to_string();
    }

    /// Answers on the control socket, and tells the log what becomes of legs, until it is dropped.
    pub async fn serve(self: Arc<Self>, socket: UnixListener) {
        let answers: Arc<dyn Answers> = Arc::new(Handle(Arc::clone(&self)));
        tokio::join!(control::serve(answers, socket), self.watch());
    }

    /// Serves metrics and health over HTTP until it is dropped.
    pub async fn serve_metrics(self: Arc<Self>, listening: MetricsListener) {
        listening.0.serve(self).await;
    }

    /// Ends it: what it has is stable here then, and nothing is under way. What was asked for and
    /// is not done is given up.
    ///
    /// # Errors
    /// What the devices say.
    pub async fn close(&self) -> Result<(), MirrorError> {
        self.closing.send_replace(true);
        let mirror = self.mirror.write().await.take();
        match mirror {
            Some(mirror) => mirror.close().await,
            None => Ok(()),
        }
    }

    async fn watch(&self) {
        let mut told: Vec<LegState> = Vec::new();
        loop {
            let changed = {
                let mirror = self.mirror.read().await;
                let Some(mirror) = &*mirror else { return };
                let changed = mirror.changed();
                let status = mirror.status();
                tell(&status, &mut told);
                self.note(&status);
                changed
            };
            // A copy that goes on changes no state.
            let _still_the_same = tokio::time::timeout(LOOK_EVERY, changed).await;
        }
    }

    fn note(&self, status: &Status) {
        let mut paces = lock(&self.paces);
        paces.resize_with(status.legs.len(), Pace::default);
        let now = self.started.elapsed();
        for (pace, leg) in paces.iter_mut().zip(&status.legs) {
            match leg.state {
                LegState::Copying | LegState::CatchingUp => pace.note(now, leg.copied_bytes),
                _ => *pace = Pace::default(),
            }
        }
    }

    fn report(&self, status: &Status) -> Report {
        self.note(status);
        let (front, paces) = (lock(&self.front), lock(&self.paces));
        let beside = Beside {
            name: &self.name,
            front: &front,
            uptime: self.started.elapsed(),
            now: SystemTime::now(),
            failed_operations: self.failures().count,
            paces: &paces,
        };
        Report::new(status, &beside)
    }

    /// As of now; `None` while it is being closed.
    fn report_now(&self) -> Option<Report> {
        let mirror = self.mirror.try_read().ok()?;
        Some(self.report(&mirror.as_ref()?.status()))
    }

    async fn answer(&self, request: Request) -> Result<Answer, String> {
        let mirror = self.mirror.read().await;
        let mirror = mirror.as_ref().ok_or("it is being closed")?;
        let status = mirror.status();
        let names: Vec<String> = status.legs.iter().map(|leg| leg.name.clone()).collect();
        let which = |leg: &Option<String>| which_leg(leg.as_deref(), &names);
        let said = |error: MirrorError| error.to_string();
        match &request {
            Request::Status => {
                return Ok(Answer { status: Some(self.report(&status)), ..Answer::ok() });
            }
            Request::Pause { leg } => mirror.pause(which(leg)?).await.map_err(said)?,
            Request::Resume { leg } => mirror.resume(which(leg)?).await.map_err(said)?,
            Request::Resync { leg, whole } => {
                mirror.resync(which(leg)?, *whole).await.map_err(said)?;
            }
            Request::Resolve { discard } => {
                let discard = Discard::Leg(which_leg(Some(discard), &names)?);
                mirror.resolve(discard).await.map_err(said)?;
            }
            Request::Verify { leg, bytes_per_s, heal } => {
                let index = which(leg)?;
                let options = VerifyOptions { bytes_per_s: *bytes_per_s, heal: *heal };
                let found = mirror.verify(index, options).await.map_err(said)?;
                let found = VerifyReport::new(index, &names[index], found);
                return Ok(Answer { verify: Some(found), ..Answer::ok() });
            }
        }
        Ok(Answer::ok())
    }
}

/// What has become of legs, for the log.
fn tell(status: &Status, told: &mut Vec<LegState>) {
    for (index, leg) in status.legs.iter().enumerate() {
        if told.get(index) == Some(&leg.state) {
            continue;
        }
        let (number, name, state) = (index + 1, &leg.name, state_words(leg.state));
        let why = leg.message.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        match leg.state {
            LegState::Connecting
            | LegState::Copying
            | LegState::CatchingUp
            | LegState::InSync
            | LegState::Paused => info!("leg {number}, {name}: {state}{why}"),
            _ => warn!("leg {number}, {name}: {state}{why}"),
        }
    }
    *told = status.legs.iter().map(|leg| leg.state).collect();
}

/// For answers that outlive the borrow of whoever asks.
struct Handle(Arc<Running>);

impl Answers for Handle {
    fn answer(&self, request: Request) -> Answering {
        let running = Arc::clone(&self.0);
        Box::pin(async move {
            let mut closing = running.closing.subscribe();
            tokio::select! {
                answer = running.answer(request) => answer.unwrap_or_else(Answer::failed),
                _ = closing.wait_for(|closing| *closing) => {
                    Answer::failed("given up: the mirror is being closed")
                }
            }
        })
    }
}

/// An address on which metrics will be served.
pub struct MetricsListener(Listening);

impl MetricsListener {
    /// Binds it.
    ///
    /// # Errors
    /// The system's.
    pub async fn bind(address: std::net::SocketAddr) -> std::io::Result<Self> {
        Listening::bind(address).await.map(Self)
    }

    /// The address it has.
    pub fn address(&self) -> std::net::SocketAddr {
        self.0.address()
    }
}

impl Pages for Running {
    fn metrics(&self) -> Result<String, fmt::Error> {
        render(self.report_now().ok_or(fmt::Error)?)
    }

    /// All is well while every leg follows, or is on its way there, or an operator has paused it.
    fn health(&self) -> (bool, serde_json::Value) {
        let report = self.report_now();
        let legs = report.as_ref().map_or(&[][..], |report| &report.legs);
        let bad = |state| {
            !matches!(
                state,
                LegState::InSync
                    | LegState::Copying
                    | LegState::CatchingUp
                    | LegState::Connecting
                    | LegState::Paused
            )
        };
        let local = report.as_ref().and_then(|report| report.local_failure.as_ref());
        let local = local.map(|failure| format!("the local disk: {failure}"));
        let legs = legs
            .iter()
            .filter(|leg| bad(leg.state))
            .map(|leg| format!("leg {}, {}: {}", leg.number, leg.name, state_words(leg.state)));
        let failures: Vec<String> = local.into_iter().chain(legs).collect();
        let state = match (&report, failures.is_empty()) {
            (None, _) => "stopping",
            (Some(_), true) => "healthy",
            (Some(_), false) => "failed",
        };
        let uptime_s = self.started.elapsed().as_secs();
        let body =
            serde_json::json!({ "status": state, "failures": failures, "uptime_s": uptime_s });
        (state == "healthy", body)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
