//! Connections of the initiator's session coming: the leading login, others joining, one that
//! continues a session that has lost them all.

use bytes::Bytes;
use iscsi_proto::connection::{Placement, Transmit};
use iscsi_proto::ids::{Cid, Tsih};
use iscsi_proto::initiator::{Config, Session};
use iscsi_proto::login::Outcome;
use iscsi_proto::login::initiator::{LoginError, Step};
use iscsi_proto::pdu::LoginRequest;
use iscsi_proto::serial::CmdSn;

use super::*;
use crate::durability::logins::{Identity, TIMEOUT, initiator};
use crate::logins::{established, next_response};

/// Longest pause before the next attempt to log in.
const REDIAL_MAX_US: u64 = 3_000_000;

impl Shell {
    /// Logs in (again) after a while.
    pub(super) fn redial(&mut self, env: &mut Env) {
        let delay = Duration::from_micros(env.rng.skewed(REDIAL_MAX_US));
        env.clock.after(delay, Event::Dial);
    }

    /// Logs in anew. Returns the connection for the target to accept.
    pub(crate) fn dial(&mut self, env: &mut Env) -> Result<Option<Link>, String> {
        if self.core.is_some() || env.stage != Stage::Down || self.app.finished {
            return Ok(None);
        }
        if !env.powered {
            env.coverage.hit("nobody answers");
            self.redial(env);
            return Ok(None);
        }
        env.stage = Stage::LoggingIn;
        self.app.boot = env.boot;
        let offer = env.scenario.offer(&mut env.rng);
        // Near the wrap now and then.
        let cmd_sn = if env.rng.coin() { u32::MAX - env.rng.below(40) as u32 } else { 1 };
        let (cid, cmd_sn) = (Cid(0), CmdSn(cmd_sn));
        let identity = Identity { tsih: Tsih(0), cid, cmd_sn, offer, joining: None };
        self.begin_login(env, identity).map(Some)
    }

    /// Plans the login of a connection that is missing.
    pub(super) fn plan_joins(&mut self, env: &mut Env) {
        let Some(core) = &self.core else { return };
        if !core.is_open() || self.join_planned || !self.joining.is_empty() {
            return;
        }
        let resumes = core.reinstatement();
        if self.members.len() >= self.wanted(env) && resumes.is_none() {
            return;
        }
        let pause = match env.stage {
            Stage::LoggingIn => 0,
            Stage::Up => REDIAL_MAX_US / 3,
            _ => return,
        };
        let not_before = resumes.map_or(env.now(), |wanted| wanted.not_before.max(env.now()));
        let delay = Duration::from_micros(env.rng.skewed(pause));
        self.join_planned = true;
        env.clock.at(not_before + delay, Event::Join);
    }

    pub(super) fn wanted(&self, env: &Env) -> usize {
        let limit = self.core.as_ref().map_or(1, |core| core.params().max_connections);
        usize::from(limit.min(env.scenario.connections))
    }

    /// Logs in with another connection of the session.
    pub(crate) fn join(&mut self, env: &mut Env) -> Result<Option<Link>, String> {
        self.join_planned = false;
        let Some(core) = self.core.as_ref().filter(|core| core.is_open()) else { return Ok(None) };
        if !self.joining.is_empty() {
            return Ok(None);
        }
        if !env.powered {
            env.coverage.hit("nobody answers");
            match env.stage {
                Stage::LoggingIn => self.end(env)?,
                _ => self.plan_joins(env),
            }
            return Ok(None);
        }
        let taken: Vec<Cid> = core.connections().map(|(_, cid, _)| cid).collect();
        let lost: Option<Cid> = core.recovering().find(|cid| !taken.contains(cid));
        let free = (0..).map(Cid).find(|cid| !taken.contains(cid));
        let resumed = core.reinstatement().map(|wanted| wanted.cid);
        let Some(cid) = resumed.or(lost).or(free) else { return Ok(None) };
        let (tsih, cmd_sn, params) = (core.tsih(), core.next_cmd_sn(), *core.params());
        let offer = env.scenario.offer(&mut env.rng);
        let identity = Identity { tsih, cid, cmd_sn, offer, joining: Some(params) };
        let link = self.begin_login(env, identity)?;
        self.joining.insert(link);
        Ok(Some(link))
    }

    fn begin_login(&mut self, env: &mut Env, identity: Identity) -> Result<Link, String> {
        let mut login = initiator(identity)?;
        let profile = env.scenario.profile(&mut env.rng);
        let link = env.net.connect(profile, env.clock.now());
        env.log(|| format!("{link}: login as {:?} of {}", identity.cid, identity.tsih));
        let (request, text) = login.first();
        let mut stream = Stream::new();
        send(env, link, &mut stream, &request, text);
        let stage = LinkStage::Login(Box::new(login));
        let placement = Placement::None;
        self.links.insert(link, ShellLink { stream, stage, placement, filling: None });
        env.clock.after(TIMEOUT, Event::LoginTimeout(link, Side::Initiator));
        Ok(link)
    }

    pub(super) fn process_login(&mut self, env: &mut Env, link: Link) -> Outcomes {
        loop {
            let Some(ShellLink { stream, stage: LinkStage::Login(login), .. }) =
                self.links.get_mut(&link)
            else {
                return Ok(());
            };
            let Some((response, text)) = next_response(stream)? else { return Ok(()) };
            match login.handle(&response, &text) {
                Ok(Step::Send(request, text)) => send(env, link, stream, &request, text),
                Ok(Step::Established(outcome)) => {
                    stream.switch(&outcome.connection);
                    return self.logged_in(env, link, &outcome);
                }
                // The session it wants to join is full, or has ended meanwhile.
                Err(LoginError::Refused { .. }) if self.joining.contains(&link) => {
                    self.close_link(env, link);
                    if self.core.as_ref().is_some_and(|core| core.reinstatement().is_some()) {
                        self.abandon(env);
                    }
                    return Ok(());
                }
                other => return Err(format!("initiator {link}: {other:?}")),
            }
        }
    }

    fn logged_in(&mut self, env: &mut Env, link: Link, outcome: &Outcome) -> Outcomes {
        let now = env.now();
        let established = established(outcome);
        let joins = self.joining.remove(&link);
        let id = match (joins, &mut self.core) {
            (false, None) => {
                let (core, id) = Session::new(Config::default(), &established, now);
                self.core = Some(core);
                id
            }
            (true, Some(core)) => match core.add_connection(&established, now) {
                Ok(id) => id,
                Err(_) => return self.too_late(env, link),
            },
            _ => return self.too_late(env, link),
        };
        self.members.insert(id, link);
        if let Some(shell_link) = self.links.get_mut(&link) {
            shell_link.stage = LinkStage::Member(id);
        }
        if env.stage == Stage::LoggingIn && self.members.len() >= self.wanted(env) {
            self.settle(env);
        }
        self.go_on(env);
        self.drain(env)
    }

    fn too_late(&mut self, env: &mut Env, link: Link) -> Outcomes {
        if let Some(shell_link) = self.links.get_mut(&link) {
            shell_link.stage = LinkStage::Over;
        }
        env.close(link, Side::Initiator);
        Ok(())
    }

    pub(crate) fn login_timeout(&mut self, env: &mut Env, link: Link) -> Outcomes {
        let login =
            self.links.get(&link).is_some_and(|link| matches!(link.stage, LinkStage::Login(_)));
        if login {
            env.coverage.hit("login timeout");
            self.close_link(env, link);
        }
        self.drain(env)
    }
}

fn send(env: &mut Env, link: Link, stream: &mut Stream, request: &LoginRequest, text: Bytes) {
    let header = request.encode(text.len() as u32); // at most a login segment
    env.transmit(link, Side::Initiator, stream, &Transmit { header, payload: text });
    env.flush(link, Side::Initiator, stream);
}
