//! What a connection of the target receives: bytes from the network, headers and data segments for
//! the session's core. Logins are in `sessions`, what the core makes of a PDU is in `mod.rs`.

use bytes::Bytes;
use iscsi_proto::connection::Placement;
use iscsi_proto::frame::FrameError;
use iscsi_proto::target::{ConnId, Received};

use super::{Outcomes, Server, Stage, TargetLink, TargetSession};
use crate::env::Env;
use crate::net::{Arrival, Link, Side};
use crate::sabotage::Sabotage;
use crate::wire_check::SessionKey;

/// Answers that may wait on one connection; beyond, its input is not read.
const REPLY_BACKLOG_MAX: usize = 64;

impl Server {
    /// Bytes, or an end, are there.
    pub(crate) fn arrive(&mut self, env: &mut Env, link: Link) -> Outcomes {
        let Some(target_link) = self.links.get_mut(&link) else { return Ok(()) };
        if matches!(target_link.stage, Stage::Over) {
            return Ok(());
        }
        match env.receive(link, Side::Target) {
            Arrival::Nothing => return Ok(()),
            Arrival::End => return self.lost(env, link),
            Arrival::Bytes(bytes) => {
                target_link.stream.push(&bytes);
                target_link.owed += bytes.len();
                if let Stage::Member(key, conn) = target_link.stage
                    && let Some(session) = self.sessions.get_mut(&key)
                {
                    session.core.note_progress(conn, env.clock.now());
                    if target_link.stream.needs_more()
                        && session.core.reply_backlog(conn) < REPLY_BACKLOG_MAX
                    {
                        let owed = std::mem::take(&mut target_link.owed);
                        env.consumed(link, Side::Target, owed);
                        return Ok(());
                    }
                }
            }
        }
        self.process(env, link)
    }

    /// Handles what has been received, as far as it goes.
    pub(crate) fn process(&mut self, env: &mut Env, link: Link) -> Outcomes {
        loop {
            let Some(target_link) = self.links.get_mut(&link) else { return Ok(()) };
            let went_on = match &target_link.stage {
                Stage::Login(_) => self.process_login(env, link)?,
                Stage::Member(session, conn) => {
                    let (session, conn) = (*session, *conn);
                    self.process_member(env, link, session, conn)?
                }
                Stage::Waiting | Stage::Over => false,
            };
            if !went_on {
                return Ok(());
            }
        }
    }

    /// Handles the next PDU of a session, or as much of it as is there. True if there may be more.
    fn process_member(
        &mut self,
        env: &mut Env,
        link: Link,
        key: SessionKey,
        conn: ConnId,
    ) -> Result<bool, String> {
        let Some(target_link) = self.links.get_mut(&link) else { return Ok(false) };
        let Some(session) = self.sessions.get_mut(&key) else { return Ok(false) };
        let backlog = session.core.reply_backlog(conn);
        if backlog >= REPLY_BACKLOG_MAX {
            env.coverage.hit("target: input held back");
            return Ok(false);
        }
        let owed = std::mem::take(&mut target_link.owed);
        env.consumed(link, Side::Target, owed);
        if !take_header(env, link, target_link, session, conn)? {
            self.close(env, link)?;
            return Ok(false);
        }
        let Some((data, digest_ok)) = target_link.stream.next_data() else {
            self.drain(env, key, Some(conn))?;
            return Ok(false);
        };
        let received = place(target_link.placement, session, conn, data)?;
        if !take_data(env, link, session, conn, received, digest_ok)? {
            self.close(env, link)?;
            return Ok(false);
        }
        self.drain(env, key, Some(conn))?;
        Ok(true)
    }
}

/// Hands the next header to the core, if it is there. False if it ends the connection.
fn take_header(
    env: &mut Env,
    link: Link,
    target_link: &mut TargetLink,
    session: &mut TargetSession,
    conn: ConnId,
) -> Result<bool, String> {
    let header = match target_link.stream.next_header() {
        Ok(Some(header)) => header,
        Ok(None) => return Ok(true),
        // The length of the PDU is unknown, and with it where the next one begins (§7.8).
        Err(FrameError::HeaderDigest { .. }) if env.wire.is_damaged(link, Side::Initiator) => {
            env.coverage.hit("target: header digest error");
            return Ok(false);
        }
        Err(error) => return Err(format!("target {link}: {error}")),
    };
    let over = session.core.is_connection_over(conn);
    match session.core.handle_header(conn, env.clock.now(), &header) {
        Ok(placement) => target_link.placement = placement,
        // Whatever was under way when the session ended comes too late.
        Err(_) if over => {
            env.coverage.hit("target: PDU on a connection that is over");
            return Ok(false);
        }
        Err(error) => return Err(format!("target {link}: {error}")),
    }
    if let Placement::Task { itt, .. } = target_link.placement {
        let len = session.core.write_length(itt) as usize;
        session.buffers.entry((conn, itt)).or_insert_with(|| vec![0; len]);
    }
    Ok(true)
}

/// Puts a data segment where the core wants it.
fn place(
    placement: Placement,
    session: &mut TargetSession,
    conn: ConnId,
    data: Bytes,
) -> Result<Received, String> {
    Ok(match placement {
        Placement::Scratch => Received::Scratch(data),
        Placement::Task { itt, offset } => {
            if let Some(buffer) = session.buffers.get_mut(&(conn, itt)) {
                let offset = offset as usize;
                let place = buffer.get_mut(offset..offset + data.len());
                place.ok_or("data beyond the task's buffer")?.copy_from_slice(&data);
            }
            Received::Placed
        }
        Placement::None | Placement::Discard => Received::Placed,
    })
}

/// Tells the core of a data segment. False if it ends the connection.
fn take_data(
    env: &mut Env,
    link: Link,
    session: &mut TargetSession,
    conn: ConnId,
    received: Received,
    digest_ok: bool,
) -> Result<bool, String> {
    let digest_ok = digest_ok || env.sabotage == Some(Sabotage::CorruptedData);
    if !digest_ok {
        env.coverage.hit("target: data digest error");
        if !env.wire.is_damaged(link, Side::Initiator) {
            return Err(format!("target {link}: data digest error that nobody caused"));
        }
    }
    let over = session.core.is_connection_over(conn);
    match session.core.handle_data(conn, received, digest_ok) {
        // A request that is no command cannot be asked for again.
        Err(_) if !digest_ok => Ok(false),
        Err(error) if !over => Err(format!("target {link}: {error}")),
        _ => Ok(true),
    }
}
