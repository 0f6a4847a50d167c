//! The target daemon, asked over its admin socket: which of its units are our volumes, and who may
//! use them. What it answers is all that a controller knows.

use std::path::PathBuf;

use daemon::admin::{
    Answer, InitiatorAllow, InitiatorDeny, InitiatorView, LunAdd, LunRemove, LunResize,
    LunSnapshot, LunView, Request, ask,
};
use tonic::Status;

use super::pool;
use crate::ids::{VOLUME, is_id};

/// Each volume is unit 0 of a target of its own, so that a node can be let to one and no other.
pub(crate) const LUN: u16 = 0;

/// Where the daemon is, and what its targets are called.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) socket: PathBuf,
    /// How the names of the targets of volumes begin.
    pub(super) base: String,
}

/// A unit that is one of our volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Volume {
    pub(super) id: String,
    pub(super) size: u64,
    /// The snapshot or volume that it was made of.
    pub(super) source: Option<String>,
    /// The name of its target.
    pub(super) target: String,
    /// Sessions that have used it.
    pub(super) sessions: usize,
}

/// A node that a volume is published to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Published {
    pub(super) initiator: String,
    pub(super) read_only: bool,
}

impl Target {
    /// The target of a volume.
    pub(super) fn name(&self, id: &str) -> String {
        format!("{}:{id}", self.base)
    }

    async fn ask(&self, request: Request) -> Result<Answer, Status> {
        let answer = ask(&self.socket, request).await.map_err(|error| {
            Status::unavailable(format!(
                "no answer from a target daemon at {}: {error}",
                self.socket.display()
            ))
        })?;
        match answer.ok {
            true => Ok(answer),
            false => Err(Status::internal(answer.errors.join("; "))),
        }
    }

    /// Our volumes, by their ids.
    pub(super) async fn volumes(&self) -> Result<Vec<Volume>, Status> {
        let answer = self.ask(Request::LunList {}).await?;
        let units = answer.luns.unwrap_or_default().into_iter();
        let mut volumes: Vec<Volume> = units.filter_map(|unit| self.volume_of(unit)).collect();
        volumes.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(volumes)
    }

    /// What somebody added by hand is none, whatever it is called.
    fn volume_of(&self, unit: LunView) -> Option<Volume> {
        let id = unit.name.filter(|name| is_id(VOLUME, name))?;
        if unit.target != self.name(&id) || unit.lun != LUN {
            return None;
        }
        let source = pool::source_of(unit.backing.as_ref());
        let size = unit.size_bytes.unwrap_or(0);
        Some(Volume { id, size, source, target: unit.target, sessions: unit.sessions })
    }

    /// Is there a unit of that name, whoever added it?
    pub(super) async fn is_there(&self, id: &str) -> Result<bool, Status> {
        let answer = self.ask(Request::LunList {}).await?;
        let is_it = |unit: &LunView| unit.name.as_deref() == Some(id);
        Ok(answer.luns.unwrap_or_default().iter().any(is_it))
    }

    /// One of them, if it is there.
    pub(super) async fn find(&self, id: &str) -> Result<Option<Volume>, Status> {
        if !is_id(VOLUME, id) {
            return Ok(None);
        }
        Ok(self.volumes().await?.into_iter().find(|volume| volume.id == id))
    }

    /// One that has to be there.
    pub(super) async fn volume(&self, id: &str) -> Result<Volume, Status> {
        let found = self.find(id).await?;
        found.ok_or_else(|| Status::not_found(format!("there is no volume {id:?}")))
    }

    /// Serves a file as a volume that nobody may use yet. `create` makes it, of so many bytes.
    pub(super) async fn add(
        &self,
        id: &str,
        file: String,
        create: Option<u64>,
    ) -> Result<Volume, Status> {
        let request = LunAdd {
            name: id.to_owned(),
            path: file,
            create,
            target: Some(self.name(id)),
            new_target: true,
            lun: Some(LUN),
            ..LunAdd::default()
        };
        let answer = self.ask(Request::LunAdd(request)).await?;
        let added = answer.luns.into_iter().flatten().next();
        added.and_then(|unit| self.volume_of(unit)).ok_or_else(|| {
            Status::internal(format!("{id}: the target daemon did not say what it added"))
        })
    }

    pub(super) async fn remove(&self, id: &str) -> Result<(), Status> {
        let request = LunRemove { name: id.to_owned(), force: false };
        self.ask(Request::LunRemove(request)).await.map(drop)
    }

    pub(super) async fn resize(&self, id: &str, size: u64) -> Result<(), Status> {
        let request = LunResize { name: id.to_owned(), size, shrink: false };
        self.ask(Request::LunResize(request)).await.map(drop)
    }

    /// Keeps what a volume holds now in another file.
    pub(super) async fn keep(&self, id: &str, file: String) -> Result<(), Status> {
        let request = LunSnapshot { name: id.to_owned(), file };
        self.ask(Request::LunSnapshot(request)).await.map(drop)
    }

    /// Nodes that may use volumes: the target's name, and who.
    pub(super) async fn all_published(&self) -> Result<Vec<(String, Published)>, Status> {
        let answer = self.ask(Request::InitiatorList {}).await?;
        let published = |view: InitiatorView| {
            let read_only = view.read_only_luns.is_none_or(|units| units.contains(&LUN));
            let initiator = view.initiator?;
            Some((view.target, Published { initiator, read_only }))
        };
        Ok(answer.initiators.unwrap_or_default().into_iter().filter_map(published).collect())
    }

    /// Nodes that may use one volume.
    pub(super) async fn published(&self, volume: &Volume) -> Result<Vec<Published>, Status> {
        let all = self.all_published().await?.into_iter();
        Ok(all.filter(|(target, _)| *target == volume.target).map(|(_, who)| who).collect())
    }

    pub(super) async fn allow(
        &self,
        volume: &Volume,
        who: Published,
        chap: Option<&String>,
    ) -> Result<(), Status> {
        let request = InitiatorAllow {
            initiator: who.initiator,
            target: Some(volume.target.clone()),
            read_only: who.read_only,
            chap: chap.cloned(),
        };
        self.ask(Request::InitiatorAllow(request)).await.map(drop)
    }

    pub(super) async fn deny(&self, volume: &Volume, initiator: String) -> Result<(), Status> {
        let request = InitiatorDeny { initiator, target: Some(volume.target.clone()) };
        self.ask(Request::InitiatorDeny(request)).await.map(drop)
    }

    /// It answers.
    pub(super) async fn status(&self) -> Result<(), Status> {
        self.ask(Request::Status {}).await.map(drop)
    }
}
