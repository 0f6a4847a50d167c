//! The control socket of a mirror that runs: one JSON object a line, one answer to each request.
//!
//! | request | answer |
//! |---|---|
//! | `{"do":"status"}` | `{"ok":true,"status":{…}}` |
//! | `{"do":"pause","leg":"1"}`, `resume` | `{"ok":true}` |
//! | `{"do":"resync","leg":"1","whole":false}` | `{"ok":true}` |
//! | `{"do":"rate","rate":"80%"}` | `{"ok":true}` |
//! | `{"do":"resolve","discard":"1"}` | `{"ok":true}` |
//! | `{"do":"verify","leg":"1","heal":false}` | `{"ok":true,"verify":{…}}`, once it is done |
//! | `{"do":"add_leg","leg":"[[mirror.remote]]\n…","force":false}` | `{"ok":true,"done":"leg 2"}` |
//! | `{"do":"remove_leg","leg":"1","force":false}` | `{"ok":true,"removed":{…}}` |
//! | `{"do":"grow"}` | `{"ok":true,"size":…,"done":"when its user sees it"}` |
//!
//! What fails is answered `{"ok":false,"errors":["…"]}`. The socket is its owner's and root's; a
//! client that goes away ends what it has asked for, as far as that is not done yet; a change of
//! the mirror's shape (`add_leg`, `remove_leg`, `grow`) comes to its end.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use block::mirror::Removed;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tracing::warn;

use super::files::own_uid;
use super::report::{Report, VerifyReport};
use crate::clients::Clients;

/// Longest request taken, in bytes.
const REQUEST_LEN_MAX: u64 = 4096;

/// Clients at once: some people who look at one mirror, and a verification that takes a night.
const CLIENTS_MAX: usize = 32;

/// How long a client may take for a request, and the mirror for an answer that is no work.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an operator asks for. A leg is its number, its name, or the end of its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// How it is.
    Status,
    /// Send nothing to a leg until it is resumed.
    Pause {
        /// Which; the only one unless given.
        leg: Option<String>,
    },
    /// Go on with a leg that was paused.
    Resume {
        /// Which; the only one unless given.
        leg: Option<String>,
    },
    /// Copy to a leg what differs or may differ.
    Resync {
        /// Which; the only one unless given.
        leg: Option<String>,
        /// Copy all of it, whatever is known.
        whole: bool,
    },
    /// How fast copies may go until the mirror is started anew.
    Rate {
        /// As in the configuration: `200mbit`, `80%` or `max`.
        rate: String,
    },
    /// Take back a leg that somebody else has written to: it gets the local content.
    Resolve {
        /// Which: what it has of its own is given up.
        discard: String,
    },
    /// Compare a leg with the local device, block by block.
    Verify {
        /// Which; the only one unless given.
        leg: Option<String>,
        /// Bytes a second at most.
        bytes_per_s: Option<u64>,
        /// Write to the leg again what differs.
        heal: bool,
    },
    /// Make a device the last leg.
    AddLeg {
        /// Its table in the configuration, `[[mirror.remote]]`.
        leg: String,
        /// Overwrite what there is of another mirror.
        force: bool,
    },
    /// Remove a leg, whose image stays.
    RemoveLeg {
        /// Which.
        leg: String,
        /// Also one out of reach.
        force: bool,
    },
    /// Take the size that the local device has by now.
    Grow,
}

impl Request {
    /// The mirror is closed and opened again for it.
    pub(crate) fn is_change_of_shape(&self) -> bool {
        matches!(self, Self::AddLeg { .. } | Self::RemoveLeg { .. } | Self::Grow)
    }
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// It was done.
    pub ok: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    /// The mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Report>,
    /// What a verification found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifyReport>,
    /// What was done, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<String>,
    /// The leg that was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed: Option<Removed>,
    /// Bytes of the mirror that has grown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

impl Answer {
    /// Done.
    pub fn ok() -> Self {
        Self { ok: true, ..Self::default() }
    }

    /// Not done.
    pub fn failed(error: impl std::fmt::Display) -> Self {
        Self { errors: vec![error.to_string()], ..Self::default() }
    }
}

/// An answer, once it is there.
pub type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Somebody who has answers.
pub trait Answers: Send + Sync + 'static {
    /// Does what is asked. Dropping the future ends it.
    fn answer(&self, request: Request) -> Answering;
}

/// Opens the control socket, for its owner alone.
///
/// # Errors
/// The system's; `AddrInUse` when the mirror runs already.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    super::files::make_folder_of(path)?;
    crate::socket::listen(path, crate::socket::OWNER)
}

/// Answers until it is dropped.
pub async fn serve(answers: Arc<dyn Answers>, listener: UnixListener) {
    let mut clients = Clients::new(CLIENTS_MAX);
    let mut complained = false;
    loop {
        match listener.accept().await {
            // Between the socket's birth and its mode, anybody could have connected.
            Ok((stream, _)) if !may_ask(&stream) => drop(stream),
            Ok((stream, _)) => {
                complained = false;
                let answers = Arc::clone(&answers);
                clients.enter(async move {
                    let _gone_in_the_middle = talk(&*answers, stream).await;
                });
            }
            Err(error) => {
                if !complained {
                    warn!(%error, "control socket");
                    complained = true;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn may_ask(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || Some(peer.uid()) == own_uid())
}

async fn talk(answers: &dyn Answers, stream: UnixStream) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    loop {
        let mut line = String::new();
        let mut limited = (&mut read).take(REQUEST_LEN_MAX);
        let asked = tokio::time::timeout(PATIENCE, limited.read_line(&mut line)).await;
        match asked {
            Ok(Ok(read)) if read > 0 => {}
            _ => return Ok(()), // gone, or it has nothing to ask
        }
        let answer = match serde_json::from_str(&line) {
            Ok(request) => tokio::select! {
                answer = answers.answer(request) => answer,
                () = gone(&mut read) => return Ok(()),
            },
            Err(error) => Answer::failed(format!("not a request: {error}")),
        };
        let mut text = serde_json::to_string(&answer).map_err(io::Error::other)?;
        text.push('\n');
        let written = tokio::time::timeout(PATIENCE, write.write_all(text.as_bytes())).await;
        written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    }
}

/// Returns when the client has closed its end; never if it has asked for more meanwhile.
async fn gone(read: &mut (impl tokio::io::AsyncBufRead + Unpin)) {
    match read.fill_buf().await {
        Ok(more) if !more.is_empty() => std::future::pending().await,
        Ok(_) | Err(_) => {}
    }
}

/// Asks a mirror, as its clients do. Waits as long as the mirror lives.
///
/// # Errors
/// Nobody is there (`NotFound`, `ConnectionRefused`), or who is there does not answer with an
/// [`Answer`].
pub async fn ask(socket: &Path, request: &Request) -> io::Result<Answer> {
    let stream = UnixStream::connect(socket).await?;
    let (read, mut write) = stream.into_split();
    let mut text = serde_json::to_string(request).map_err(io::Error::other)?;
    text.push('\n');
    write.write_all(text.as_bytes()).await?;
    let mut line = String::new();
    if BufReader::new(read).read_line(&mut line).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_str(&line).map_err(io::Error::other)
}

/// The leg that is meant, by its position.
///
/// # Errors
/// There is none like that, or there are several; the message lists them.
pub fn which_leg(asked: Option<&str>, names: &[String]) -> Result<usize, String> {
    let list = || {
        let lines = names.iter().enumerate().map(|(at, name)| format!("{} is {name}", at + 1));
        lines.collect::<Vec<_>>().join(", ")
    };
    let Some(asked) = asked else {
        return match names {
            [_] => Ok(0),
            _ => Err(format!("there are {} legs; which one? ({})", names.len(), list())),
        };
    };
    if let Ok(number) = asked.parse::<usize>() {
        let index = number.checked_sub(1).filter(|index| *index < names.len());
        return index.ok_or_else(|| format!("there is no leg {number} ({})", list()));
    }
    if let Some(index) = names.iter().position(|name| name == asked) {
        return Ok(index);
    }
    let mut ends = names.iter().enumerate().filter(|(_, name)| name.ends_with(asked));
    match (ends.next(), ends.next()) {
        (Some((index, _)), None) => Ok(index),
        (None, _) => Err(format!("there is no leg {asked:?} ({})", list())),
        (Some(_), Some(_)) => Err(format!("{asked:?} is the end of several names ({})", list())),
    }
}

#[cfg(test)]
mod tests;
