//! What comes in at the target: bytes into PDUs, PDUs into the session core.

use iscsi_proto::connection::Placement;
use iscsi_proto::target::{ConnId, Received};

use super::{Outcomes, SessionKey, Stage, Target, TargetLink};
use crate::durability::env::Env;
use crate::net::{Arrival, Link, Side};

/// PDUs to be sent that make a driver stop reading.
const REPLY_BACKLOG_MAX: usize = 8;

impl Target {
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
                Stage::Login(_) => {
                    let owed = std::mem::take(&mut target_link.owed);
                    env.consumed(link, Side::Target, owed);
                    self.process_login(env, link)?
                }
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
        if session.core.reply_backlog(conn) >= REPLY_BACKLOG_MAX {
            return Ok(false);
        }
        let owed = std::mem::take(&mut target_link.owed);
        env.consumed(link, Side::Target, owed);
        let TargetLink { stream, placement, .. } = target_link;
        let over = session.core.is_connection_over(conn);
        let fails = |error: String| format!("target {link}: {error}");
        if let Some(header) = stream.next_header().map_err(|error| fails(error.to_string()))? {
            match session.core.handle_header(conn, env.clock.now(), &header) {
                Ok(place) => *placement = place,
                // Whatever was under way when the session ended comes too late.
                Err(_) if over => {
                    self.close(env, link)?;
                    return Ok(false);
                }
                Err(error) => return Err(fails(error.to_string())),
            }
            if let Placement::Task { itt, .. } = *placement {
                let len = session.core.write_length(itt) as usize;
                session.buffers.entry((conn, itt)).or_insert_with(|| vec![0; len]);
            }
        }
        let Some((data, digest_ok)) = stream.next_data() else {
            self.drain(env, key, Some(conn))?;
            return Ok(false);
        };
        let received = match *placement {
            Placement::Scratch => Received::Scratch(data),
            Placement::Task { itt, offset } => {
                if let Some(buffer) = session.buffers.get_mut(&(conn, itt)) {
                    let place = buffer.get_mut(offset as usize..offset as usize + data.len());
                    place.ok_or("data beyond the task's buffer")?.copy_from_slice(&data);
                }
                Received::Placed
            }
            Placement::None | Placement::Discard => Received::Placed,
        };
        let over = session.core.is_connection_over(conn);
        if let Err(error) = session.core.handle_data(conn, received, digest_ok)
            && !over
        {
            return Err(fails(error.to_string()));
        }
        self.drain(env, key, Some(conn))?;
        Ok(true)
    }
}
