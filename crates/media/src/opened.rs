//! [`Opened`]: a volume in use: its session, its file system, and the line to it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use backends::{Location, Volume as Remote};
use block::{BlockError, Device};
use files::{Partition, Table, Volume as FileSystem};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::catalogue::{HomeSpec, Place};
use crate::home::{Absence, Opening};
use crate::line::Line;
use crate::view::View;
use crate::writers::{Asked, Marks, Unit};

/// How long a logout may take.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);

/// A volume in use.
pub(crate) struct Opened {
    pub(crate) view: View,
    /// Its identity, for tags.
    pub(crate) id: String,
    pub(crate) used: Mutex<Instant>,
    pub(crate) line: Line,
    session: Option<Session>,
    /// Since when it has had no connection.
    down: Mutex<Option<SystemTime>>,
}

impl Opened {
    /// What went wrong, and in which way it cannot be used.
    pub(crate) async fn open(spec: HomeSpec, opening: Opening) -> Result<Self, (String, Absence)> {
        let (device, session) = match &spec.place {
            Place::Url(location) => {
                let location = with_password(location, &spec, &opening)
                    .map_err(|why| (why, Absence::Damaged))?;
                let volumes = volumes(&spec, opening).map_err(|why| (why, Absence::Off))?;
                let opened = Remote::open(&location, volumes).await;
                let session = Session(opened.map_err(|error| (error.to_string(), Absence::Off))?);
                (session.0.device(), Some(session))
            }
            Place::Path(path) => ((opening.path)(path).map_err(|why| (why, Absence::Off))?, None),
        };
        let unit = session.as_ref().and_then(|session| session.0.iscsi());
        let asked = unit.map(|disk| Box::new(Unit::new(disk.clone())) as Box<dyn Asked>);
        let view = match look(device, Marks::new(asked), &spec).await {
            Ok(view) => view,
            Err(why) => {
                if let Some(session) = &session {
                    close(&session.0).await; // before this process may end
                }
                return Err(why);
            }
        };
        Ok(Self {
            id: view.identity().await.id,
            view,
            used: Mutex::new(Instant::now()),
            line: Line::new(),
            session,
            down: Mutex::default(),
        })
    }

    /// Logs out, whoever uses it.
    pub(crate) async fn close(&self) {
        if let Some(session) = &self.session {
            close(&session.0).await;
        }
    }

    pub(crate) fn last_used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when no connection has been up.
    pub(crate) fn down_since(&self) -> Option<SystemTime> {
        let session = self.session.as_ref()?;
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        if session.0.connection_count() > 0 {
            *down = None;
        } else if down.is_none() {
            *down = Some(SystemTime::now());
        }
        *down
    }
}

/// The file system of a home's volume as of now, or what is wrong as [`Opened::open`] tells it.
async fn look(device: Device, marks: Marks, spec: &HomeSpec) -> Result<View, (String, Absence)> {
    // First: what is read behind it holds as long as nobody writes.
    let before = marks.fresh().await.map_err(|why| (why, Absence::Off))?;
    Ok(View::new(read(device, spec).await?, marks, before))
}

/// The file system of a home's volume, or what is wrong with it as [`Opened::open`] tells.
async fn read(device: Device, spec: &HomeSpec) -> Result<FileSystem, (String, Absence)> {
    let told = |error: files::Error| {
        let is_off = matches!(error, files::Error::Device { .. });
        (error.to_string(), if is_off { Absence::Off } else { Absence::Damaged })
    };
    let table = Table::read(device).await.map_err(told)?;
    let partition = choose(&table, spec.partition).map_err(|why| (why, Absence::Damaged))?;
    let files = table.open(partition).await.map_err(told)?;
    for warning in table.warnings().iter().cloned().chain(files.warnings()) {
        warn!(home = spec.name, warning);
    }
    Ok(files)
}

/// Logs out when it is dropped.
struct Session(Remote);

impl Drop for Session {
    fn drop(&mut self) {
        let remote = self.0.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { close(&remote).await });
        }
    }
}

async fn close(remote: &Remote) {
    match tokio::time::timeout(CLOSE_TIME_MAX, remote.close()).await {
        // There is nothing to flush, which a unit that is reserved for somebody else refuses.
        Ok(Ok(()) | Err(BlockError::Fenced)) => {}
        Ok(Err(error)) => debug!(%error, "logout"),
        Err(_) => debug!("no answer to the logout"),
    }
}

/// How volumes are opened, and by whose connections.
fn volumes(spec: &HomeSpec, opening: Opening) -> Result<backends::Config, String> {
    let mut volumes = opening.volumes;
    if let Some(name) = &spec.uplink {
        let uplinks = opening.uplinks.ok_or("nobody can call this server: serve --uplink")?;
        volumes.iscsi.dialer = Some(uplinks.dialer(name));
    }
    Ok(volumes)
}

fn with_password(
    location: &Location,
    spec: &HomeSpec,
    opening: &Opening,
) -> Result<Location, String> {
    let mut location = location.clone();
    if let (Location::Iscsi(url), Some(file)) = (&mut location, &spec.password_file) {
        url.password = Some((opening.secret)(file)?);
    }
    Ok(location)
}

/// The partition that is meant.
fn choose(table: &Table, number: Option<u32>) -> Result<&Partition, String> {
    if let Some(number) = number {
        let found = table.partitions().iter().find(|partition| partition.number == number);
        return found.ok_or_else(|| format!("it has no partition {number}"));
    }
    let readable: Vec<&Partition> = table.readable().collect();
    match (&readable[..], table.partitions()) {
        ([one], _) => Ok(one),
        // The error of its opening says what is there instead.
        ([], [one]) => Ok(one),
        ([], _) => Err("none of its partitions has a file system that can be read".into()),
        (several, _) => {
            let numbers: Vec<String> =
                several.iter().take(8).map(|one| one.number.to_string()).collect();
            let numbers = numbers.join(", ");
            Err(format!("several partitions have a file system ({numbers}): name one, partition ="))
        }
    }
}
