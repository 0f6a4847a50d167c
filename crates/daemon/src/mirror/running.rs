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

use super::config::parse_rate;
use super::control::{self, Answer, Answering, Answers, Request, which_leg};
use super::gate::Gate;
use super::pace::Pace;
use super::report::{Beside, Report, VerifyReport, state_words};
use super::reshape::reshape;
use super::shape::Shape;
use crate::http::{MetricsListener, Pages};
use crate::metrics::render;

/// Time between two looks at how far copies are.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A mirror in use by this process.
pub struct Running {
    name: String,
    started: Instant,
    /// `None` once it is being closed. Locked for writing while it gets another shape.
    pub(super) mirror: RwLock<Option<Mirror>>,
    /// What it is made of; one change of that at a time.
    pub(super) shape: tokio::sync::Mutex<Shape>,
    /// In front of the mirror, whichever it is.
    pub(super) gate: Arc<Gate>,
    /// What its user has.
    watched: Arc<FailuresLayer>,
    front: Mutex<Front>,
    paces: Mutex<Vec<Pace>>,
    known: Mutex<Known>,
    closing: watch::Sender<bool>,
    /// Counts the times that work of hours had to end.
    interrupts: watch::Sender<u64>,
    /// Bytes that it has grown to.
    grown: watch::Sender<u64>,
}

/// Where the mirror can be used.
#[derive(Default)]
struct Front {
    /// For people.
    name: String,
    /// When its user sees another size.
    sees_growth: &'static str,
}

/// What outlives a mirror that was opened again.
#[derive(Default)]
struct Known {
    /// As it was last.
    status: Option<Status>,
    /// Of the mirrors before: bytes written, waits for legs and for the lag.
    before: (u64, Duration, Duration),
}

impl Running {
    /// Opens the mirror of this shape.
    ///
    /// # Errors
    /// As [`Mirror::open`].
    pub async fn open(shape: Shape) -> Result<Arc<Self>, MirrorError> {
        let mirror = Mirror::open(shape.parts(), shape.config().behaviour).await?;
        let gate = Arc::new(Gate::new(mirror.device()));
        Ok(Arc::new(Self {
            name: shape.files().name().to_owned(),
            started: Instant::now(),
            mirror: RwLock::new(Some(mirror)),
            shape: tokio::sync::Mutex::new(shape),
            watched: Arc::new(FailuresLayer::new(Arc::clone(&gate) as Device)),
            gate,
            front: Mutex::default(),
            paces: Mutex::default(),
            known: Mutex::default(),
            closing: watch::Sender::new(false),
            interrupts: watch::Sender::new(0),
            grown: watch::Sender::new(0),
        }))
    }

    /// What its user reads and writes.
    pub fn device(&self) -> Device {
        Arc::clone(&self.watched) as Device
    }

    /// The first operation of its user that failed, and how many have.
    pub fn failures(&self) -> block::layer::Failures {
        self.watched.failures()
    }

    /// Where it can be used, for the report, and when its user sees there that it has grown.
    pub fn set_front(&self, front: impl fmt::Display, sees_growth: &'static str) {
        *lock(&self.front) = Front { name: front.to_string(), sees_growth };
    }

    /// Changes when the mirror has grown, for whoever has to tell its user.
    pub fn growth(&self) -> watch::Receiver<u64> {
        self.grown.subscribe()
    }

    /// It has grown; says when its user sees that.
    pub(super) fn grown(&self, size: u64) -> String {
        self.grown.send_replace(size);
        lock(&self.front).sees_growth.to_owned()
    }

    /// What takes hours is given up.
    pub(super) fn interrupt(&self) {
        self.interrupts.send_modify(|times| *times += 1);
    }

    /// The mirror is about to be closed and opened again: what it has counted goes on.
    pub(super) fn remember(&self, status: &Status) {
        let mut known = lock(&self.known);
        let (written, guest, lag) = known.before;
        known.before =
            (written + status.written_bytes, guest + status.guest_wait, lag + status.lag_wait);
    }

    /// How it stands, counted from when it was started.
    fn status_of(&self, mirror: &Mirror) -> Status {
        let mut status = mirror.status();
        let mut known = lock(&self.known);
        let (written, guest, lag) = known.before;
        status.written_bytes += written;
        status.guest_wait += guest;
        status.lag_wait += lag;
        known.status = Some(status.clone());
        status
    }

    /// Answers on the control socket, and tells the log what becomes of legs, until it is dropped.
    pub async fn serve(self: Arc<Self>, socket: UnixListener) {
        let answers: Arc<dyn Answers> = Arc::new(Handle(Arc::clone(&self)));
        tokio::join!(control::serve(answers, socket), self.watch());
    }

    /// Serves metrics and health over HTTP until it is dropped.
    pub async fn serve_metrics(self: Arc<Self>, listening: MetricsListener) {
        listening.serve(self).await;
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
                let status = self.status_of(mirror);
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
                LegState::Copying | LegState::CatchingUp => pace.note(now, leg.done_bytes()),
                _ => *pace = Pace::default(),
            }
        }
    }

    fn report(&self, status: &Status) -> Report {
        self.note(status);
        let (front, paces) = (lock(&self.front), lock(&self.paces));
        let beside = Beside {
            name: &self.name,
            front: &front.name,
            uptime: self.started.elapsed(),
            now: SystemTime::now(),
            failed_operations: self.failures().count,
            paces: &paces,
        };
        Report::new(status, &beside)
    }

    /// As of now, or as it was last while it gets another shape; `None` while it is being closed.
    pub(crate) fn report_now(&self) -> Option<Report> {
        if *self.closing.borrow() {
            return None;
        }
        let status = match self.mirror.try_read() {
            Ok(mirror) => self.status_of(mirror.as_ref()?),
            Err(_) => lock(&self.known).status.clone()?,
        };
        Some(self.report(&status))
    }

    /// Copies may go so fast, also when the mirror gets another shape.
    async fn set_resync_rate(&self, rate: &str) -> Result<Answer, String> {
        let rate = parse_rate(rate)?;
        // The shape first, as where it changes.
        self.shape.lock().await.set_resync_rate(rate);
        let mirror = self.mirror.read().await;
        mirror.as_ref().ok_or("it is being closed")?.set_resync_rate(rate);
        Ok(Answer::ok())
    }

    /// What an operator has to look at.
    pub(crate) fn troubles(&self) -> Vec<String> {
        self.report_now().as_ref().map(troubles).unwrap_or_default()
    }

    async fn answer(self: &Arc<Self>, request: Request) -> Result<Answer, String> {
        if request.is_change_of_shape() {
            // Begun, it comes to an end, whoever has asked for it.
            let changing = tokio::spawn(reshape(Arc::clone(self), request));
            return changing.await.unwrap_or_else(|error| Err(error.to_string()));
        }
        if let Request::Rate { rate } = &request {
            return self.set_resync_rate(rate).await;
        }
        let mut interrupts = self.interrupts.subscribe();
        let mirror = self.mirror.read().await;
        let mirror = mirror.as_ref().ok_or("it is being closed")?;
        let status = self.status_of(mirror);
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
                let found = tokio::select! {
                    found = mirror.verify(index, options) => found.map_err(said)?,
                    _ = interrupts.changed() => {
                        return Err("given up: the mirror gets another shape".into());
                    }
                };
                let found = VerifyReport::new(index, &names[index], found);
                return Ok(Answer { verify: Some(found), ..Answer::ok() });
            }
            Request::AddLeg { .. }
            | Request::RemoveLeg { .. }
            | Request::Grow
            | Request::Rate { .. } => {}
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

impl Pages for Running {
    fn metrics(&self) -> Result<String, fmt::Error> {
        render(self.report_now().ok_or(fmt::Error)?)
    }

    fn health(&self) -> (bool, serde_json::Value) {
        let report = self.report_now();
        let failures = report.as_ref().map(troubles).unwrap_or_default();
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

/// What an operator has to look at: all is well while every leg follows, or is on its way there, or
/// has been paused.
fn troubles(report: &Report) -> Vec<String> {
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
    let local = report.local_failure.as_ref();
    let local = local.map(|failure| format!("the local disk: {failure}"));
    let legs = report.legs.iter().filter(|leg| bad(leg.state));
    let legs =
        legs.map(|leg| format!("leg {}, {}: {}", leg.number, leg.name, state_words(leg.state)));
    let differ = report.legs.iter().filter_map(|leg| {
        let blocks = leg.verified.map(|verdict| verdict.mismatches).filter(|blocks| *blocks > 0)?;
        Some(format!("leg {}, {}: {blocks} blocks differ", leg.number, leg.name))
    });
    local.into_iter().chain(legs).chain(differ).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
