//! Another shape for a mirror in use: a leg more, a leg less, a larger size.
//!
//! Its user waits at the gate for a moment. The mirror is closed in order (everything that was
//! written is stable here, and noted), gets its shape as one that does not run, and is opened again
//! from what its metadata say. So whatever is cut off leaves what it would leave with a mirror that
//! does not run: the old shape or the new one. The gate opens when the legs that were in sync are
//! in sync again, so that in sync mode nothing is told complete in between that is only here.

use std::sync::Arc;
use std::time::Duration;

use block::mirror::{LegState, Mirror, Status};
use tracing::{error, info, warn};

use super::control::{Answer, Request, which_leg};
use super::running::Running;
use super::shape::{NewLeg, Shape, said};

/// How much longer than a leg may take what is under way may take to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is to change.
enum Change {
    Add { leg: Box<NewLeg>, force: bool },
    Remove { place: usize, force: bool },
    Grow,
}

/// What has changed.
enum Changed {
    Added(usize),
    Removed(Box<block::mirror::Removed>),
    Grown(u64),
}

/// Gives the mirror the shape that is asked for, or leaves it as it is. Whoever asks may go away
/// meanwhile.
///
/// # Errors
/// Why it has not changed, for people.
pub(crate) async fn reshape(running: Arc<Running>, asked: Request) -> Result<Answer, String> {
    let mut shape = running.shape.lock().await;
    let change = match asked {
        Request::AddLeg { leg, force } => {
            let leg = Box::new(shape.new_leg(&leg).await.map_err(said)?);
            Change::Add { leg, force }
        }
        Request::RemoveLeg { leg, force } => {
            let names = shape.leg_names();
            let place = which_leg(Some(&leg), &names)?;
            if names.len() == 1 {
                return Err("it is the last leg, and a mirror has 1 to 3".into());
            }
            Change::Remove { place, force }
        }
        Request::Grow => {
            shape.metadata_bytes().map_err(said)?;
            Change::Grow
        }
        _ => return Err("that is no change of its shape".into()),
    };
    let changed = while_held(&running, &mut shape, change).await?;
    Ok(answer(&running, &shape, changed))
}

fn answer(running: &Running, shape: &Shape, changed: Changed) -> Answer {
    match changed {
        Changed::Added(number) => {
            let name = shape.leg_names().pop().unwrap_or_default();
            info!("{name} is leg {number} now");
            Answer { done: Some(format!("leg {number}")), ..Answer::ok() }
        }
        Changed::Removed(removed) => {
            info!("{} is no leg any more", removed.name);
            Answer { removed: Some(*removed), ..Answer::ok() }
        }
        Changed::Grown(size) => {
            info!("it has {size} bytes now");
            let seen = running.grown(size);
            Answer { size: Some(size), done: Some(seen), ..Answer::ok() }
        }
    }
}

/// Makes the change while nobody uses the mirror.
async fn while_held(
    running: &Arc<Running>,
    shape: &mut Shape,
    change: Change,
) -> Result<Changed, String> {
    // What takes a night ends, since it would be waited for.
    running.interrupt();
    let mut held = running.mirror.write().await;
    let Some(mirror) = &*held else { return Err("it is being closed".into()) };
    let before = mirror.status();
    if let Change::Remove { place, .. } = &change {
        // Where writes wait for it, they go on.
        mirror.pause(*place).await.map_err(|error| error.to_string())?;
    }
    running.gate.hold();
    let patience = shape.config().behaviour.remote_timeout + PATIENCE;
    if tokio::time::timeout(patience, running.gate.idle()).await.is_err() {
        if let Change::Remove { place, .. } = &change
            && before.legs[*place].state != LegState::Paused
        {
            let _in_use_by_itself = mirror.resume(*place).await;
        }
        running.gate.open(None);
        return Err(format!(
            "what its user has under way did not end within {:.0} s (does it wait for a leg that is \
             lost? `enkaku mirror pause` has it go on); nothing was changed",
            patience.as_secs_f64()
        ));
    }
    running.remember(&mirror.status());
    if let Some(mirror) = held.take()
        && let Err(error) = mirror.close().await
    {
        warn!("before the change: {error}");
    }
    let changed = match change {
        Change::Add { leg, force } => shape.add_leg(*leg, force).await.map(Changed::Added),
        Change::Remove { place, force } => {
            let removed = shape.remove_leg(place, force).await;
            removed.map(|removed| Changed::Removed(Box::new(removed)))
        }
        Change::Grow => shape.grow().await.map(Changed::Grown),
    };
    let opened = Mirror::open(shape.parts(), shape.config().behaviour).await;
    let mirror = opened.map_err(|failure| {
        running.gate.open(None);
        error!("the mirror cannot be opened again: {failure}");
        let asked = changed.as_ref().err().map_or_else(String::new, |error| format!("{error}; "));
        format!("{asked}the mirror cannot be opened again, and its user gets errors: {failure}")
    })?;
    take_up(&mirror, &before, shape.config().behaviour.remote_timeout).await;
    running.gate.open(Some(mirror.device()));
    *held = Some(mirror);
    changed.map_err(said)
}

/// Legs that were paused are again, and those that were in sync get there, if they do soon.
async fn take_up(mirror: &Mirror, before: &Status, patience: Duration) {
    let was = |name: &str, state: LegState| {
        before.legs.iter().any(|leg| leg.name == name && leg.state == state)
    };
    for (place, leg) in mirror.status().legs.iter().enumerate() {
        if was(&leg.name, LegState::Paused) {
            let _there_is_one = mirror.pause(place).await;
        }
    }
    let back = async {
        loop {
            let changed = mirror.changed();
            let status = mirror.status();
            // What is new has to be copied first, which takes its time.
            let grown = status.size != before.size;
            let on_its_way = |state: LegState| match state {
                LegState::Connecting => true,
                LegState::CatchingUp => !grown,
                _ => false,
            };
            let mut legs = status.legs.iter();
            if !legs.any(|leg| was(&leg.name, LegState::InSync) && on_its_way(leg.state)) {
                return;
            }
            changed.await;
        }
    };
    if tokio::time::timeout(patience, back).await.is_err() {
        warn!("not all legs that were in sync are again; writes go on without them");
    }
}
