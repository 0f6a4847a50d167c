//! Keeps a disk connected: notices that its connections are gone, makes new ones, and writes again
//! what the server may have forgotten, before anything else goes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{debug, info, warn};

use super::error::ConnectError;
use super::geometry::device_info;
use super::replay::replay;
use super::session::{Session, Source};
use super::shared::Shared;
use super::state::{Outgoing, Phase};

/// First and longest pause between two attempts to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Connections that were up for so long count as a success although nobody asked for anything.
const PROVEN: Duration = Duration::from_secs(10);

/// How long writing again may take in any case.
const REPLAY_TIME: Duration = Duration::from_secs(30);

/// How long the last requests may take to leave at an orderly end.
const DISCONNECT_TIME_MAX: Duration = Duration::from_secs(2);

/// How one set of connections ended.
enum End {
    Lost(String),
    Closed,
}

/// Runs until `closing` is true. `session` is the first set of connections.
pub(super) async fn supervise(
    shared: Arc<Shared>,
    session: Session,
    mut closing: watch::Receiver<bool>,
) {
    let mut session = Some(session);
    let mut since = Instant::now();
    while let Some(next) = session.take() {
        let began = Instant::now();
        let deadline = (since + shared.config.replacement_timeout).max(began + REPLAY_TIME);
        let why = match run(&shared, next, deadline, &mut closing).await {
            End::Closed => break,
            End::Lost(why) => why,
        };
        {
            let mut state = shared.lock();
            // Otherwise a server that falls over each request would be tried for ever.
            if state.progress || began.elapsed() >= PROVEN {
                since = Instant::now();
            }
            state.progress = false;
            state.lost(&why);
            let limit = shared.config.replacement_timeout;
            let waiting = state.requests_len();
            warn!(waiting, ?limit, "NBD server {}: {why}; connecting again", shared.source);
        }
        session = tokio::select! {
            session = reconnect(&shared, since) => Some(session),
            () = closed(&mut closing) => None,
        };
    }
    if let Source::Command(command) = &shared.source {
        command.stop().await;
    }
}

/// Waits until the disk is closed, or its last handle has gone.
async fn closed(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|closing| *closing).await; // an error is the latter
}

/// One set of connections, until it ends.
async fn run(
    shared: &Arc<Shared>,
    session: Session,
    deadline: Instant,
    closing: &mut watch::Receiver<bool>,
) -> End {
    let mut tasks = JoinSet::new();
    let generation = shared.lock().generation;
    let agreed = session.agreed;
    let count = session.len();
    let links = session.start(shared, generation, &mut tasks);
    {
        let mut state = shared.lock();
        state.links = links;
        state.agreed = agreed;
    }
    let mut replay = std::pin::pin!(replay(shared));
    let mut is_open = false;
    loop {
        tokio::select! {
            biased;
            () = closed(closing) => {
                disconnect(shared, &mut tasks).await;
                return End::Closed;
            }
            Some(ended) = tasks.join_next() => {
                return End::Lost(ended.unwrap_or_else(|error| error.to_string()));
            }
            replayed = &mut replay, if !is_open => {
                if !replayed {
                    return End::Lost("lost while unflushed data was written again".into());
                }
                is_open = true;
                let mut state = shared.lock();
                let is_back = state.generation > 0;
                state.phase = Phase::Up;
                state.pump();
                shared.up.notify_one();
                if is_back {
                    info!(connections = count, "NBD server {} is back", shared.source);
                }
            }
            () = sleep_until(deadline), if !is_open && generation > 0 => {
                return End::Lost("no answer while unflushed data was written again".into());
            }
        }
    }
}

/// Says goodbye on every connection.
async fn disconnect(shared: &Shared, tasks: &mut JoinSet<String>) {
    let links = std::mem::take(&mut shared.lock().links);
    for link in &links {
        let _ = link.queue.send(Outgoing::Disconnect); // or the connection has ended already
    }
    // Writers end when that is sent, readers when the server closes.
    let ended = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(DISCONNECT_TIME_MAX, ended).await.is_err() {
        debug!("the server does not close its connections");
    }
}

/// Tries until there are connections again. What waits fails once the outage has lasted too long.
async fn reconnect(shared: &Shared, since: Instant) -> Session {
    let deadline = since + shared.config.replacement_timeout;
    let mut pause = PAUSE.0;
    let mut last = String::from("no attempt was made");
    loop {
        let gone = matches!(shared.lock().phase, Phase::Unreachable(_));
        if !gone && Instant::now() >= deadline {
            let limit = shared.config.replacement_timeout;
            let why = format!("NBD server {} was gone for {limit:?}: {last}", shared.source);
            warn!("{why}; requests fail until it is back");
            shared.lock().give_up(Phase::Unreachable(why.clone()), &why);
            continue;
        }
        let connecting = Session::connect(&shared.source, shared.config.connections);
        let connected = match gone {
            true => connecting.await,
            false => match timeout_at(deadline, connecting).await {
                Ok(connected) => connected,
                Err(_) => continue,
            },
        };
        match connected.and_then(|session| accept(shared, &session).map(|()| session)) {
            Ok(session) => return session,
            Err(error) => {
                last = error.to_string();
                debug!(%error, "not connected");
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Is it still the export that it was, as far as one can see?
fn accept(shared: &Shared, session: &Session) -> Result<(), ConnectError> {
    let info = device_info(&session.agreed, &shared.config)?;
    let mut state = shared.lock();
    if info.size < state.info.size {
        let (before, now) = (state.info.size, info.size);
        return Err(ConnectError::Changed(format!("it had {before} bytes, and has {now}")));
    }
    if info.read_only && !state.info.read_only {
        return Err(ConnectError::Changed("it is read-only now".into()));
    }
    if info.block_size != state.info.block_size {
        let (before, now) = (state.info.block_size, info.block_size);
        return Err(ConnectError::Changed(format!("its blocks had {before} bytes, now {now}")));
    }
    let size = info.size;
    state.info = info;
    drop(state);
    shared.growth.send_if_modified(|known| std::mem::replace(known, size) != size);
    Ok(())
}
