//! Connections of the initiator's session coming: the leading login, others joining.

use iscsi_proto::ids::{Cid, Tsih};
use iscsi_proto::initiator::{MembershipError, Session};
use iscsi_proto::login::Outcome;
use iscsi_proto::login::initiator::{LoginError, Step};
use iscsi_proto::pdu::LoginRequest;
use iscsi_proto::serial::CmdSn;

use bytes::Bytes;
use iscsi_proto::connection::{Placement, Transmit};

use super::{Host, HostLink, Stage, Verdict};
use crate::env::{Env, Event};
use crate::logins::{Identity, established, initiator, next_response};
use crate::net::{Link, Side};
use crate::server::LOGIN_TIMEOUT;
use crate::stream::Stream;
use crate::workload::OpId;

impl Host {
    /// Logs in anew. Returns the connection for the target to accept.
    pub(crate) fn dial(&mut self, env: &mut Env) -> Result<Option<Link>, String> {
        if self.core.is_some() || self.finished {
            return Ok(None);
        }
        let offer = env.scenario.offer(&mut env.rng);
        // Near the wrap now and then.
        let cmd_sn = if env.rng.coin() { u32::MAX - env.rng.below(40) as u32 } else { 1 };
        let identity = Identity {
            tsih: Tsih(0),
            cid: Cid(env.rng.below(3) as u16), // below 3
            cmd_sn: CmdSn(cmd_sn),
            offer,
            joining: None,
        };
        self.next_cid = identity.cid.0 + 1;
        self.begin_login(env, identity).map(Some)
    }

    /// Logs in with another connection of the session.
    pub(super) fn join(&mut self, env: &mut Env) -> Result<Option<Link>, String> {
        let Some(core) = self.core.as_ref().filter(|core| core.is_open()) else { return Ok(None) };
        let taken: Vec<Cid> = core.connections().map(|(_, cid, _)| cid).collect();
        let alive = |cid: Cid| core.connections().any(|(_, c, state)| c == cid && state.is_open());
        let lost: Vec<Cid> = core.recovering().filter(|cid| !alive(*cid)).collect();
        // Small numbers come again soon: a CID may be used again after its logout.
        let mut free = (0..).map(Cid).filter(|cid| !taken.contains(cid));
        let cid = match !lost.is_empty() && env.rng.coin() {
            true => Some(env.rng.pick(&lost)),
            false => free.find(|cid| cid.0 >= self.next_cid || env.rng.coin()),
        };
        let Some(cid) = cid else { return Ok(None) };
        if lost.contains(&cid) {
            env.coverage.hit("lost connection taken over by its CID");
        }
        let (tsih, cmd_sn, params) = (core.tsih(), core.next_cmd_sn(), *core.params());
        if !self.joining.is_empty() {
            return Ok(None); // one at a time, so that no CID is used twice
        }
        let offer = env.scenario.offer(&mut env.rng);
        let link =
            self.begin_login(env, Identity { tsih, cid, cmd_sn, offer, joining: Some(params) })?;
        self.joining.insert(link, self.generation);
        Ok(Some(link))
    }

    /// A session without connections waits for one: plans the login.
    pub(super) fn plan_reinstatement(&mut self, env: &mut Env) {
        let Some(wanted) = self.core.as_ref().and_then(Session::reinstatement) else { return };
        if self.joining.is_empty() && !std::mem::replace(&mut self.reinstating, true) {
            let delay = std::time::Duration::from_micros(env.rng.skewed(3_000_000));
            env.clock.at(wanted.not_before.max(env.now()) + delay, Event::Reinstate);
        }
    }

    /// Logs in with a connection that takes the place of a lost one.
    pub(crate) fn reinstate(&mut self, env: &mut Env) -> Result<Option<Link>, String> {
        self.reinstating = false;
        let Some(core) = &self.core else { return Ok(None) };
        let Some(wanted) = core.reinstatement() else { return Ok(None) };
        if !self.joining.is_empty() {
            return Ok(None);
        }
        let (tsih, cmd_sn, params) = (core.tsih(), core.next_cmd_sn(), *core.params());
        let offer = env.scenario.offer(&mut env.rng);
        let identity = Identity { tsih, cid: wanted.cid, cmd_sn, offer, joining: Some(params) };
        env.coverage.hit("session without connections logs in again");
        let link = self.begin_login(env, identity)?;
        self.joining.insert(link, self.generation);
        Ok(Some(link))
    }

    fn begin_login(&mut self, env: &mut Env, identity: Identity) -> Result<Link, String> {
        let mut login = initiator(env, identity)?;
        let profile = env.scenario.profile(&mut env.rng);
        let link = env.net.connect(profile, env.clock.now());
        env.wire.connect(link);
        let (request, text) = login.first();
        let mut stream = Stream::new();
        send(env, link, &mut stream, &request, text)?;
        let stage = Stage::Login(Box::new(login));
        let placement = Placement::None;
        self.links.insert(link, HostLink { stream, stage, placement, filling: None });
        env.clock.after(LOGIN_TIMEOUT, Event::LoginTimeout(link, Side::Initiator));
        env.log(|| format!("{link}: login as {identity:?}"));
        Ok(link)
    }

    pub(super) fn process_login(&mut self, env: &mut Env, link: Link) -> Verdict {
        loop {
            let Some(HostLink { stream, stage: Stage::Login(login), .. }) =
                self.links.get_mut(&link)
            else {
                return Ok(());
            };
            let Some((response, text)) = next_response(stream)? else { return Ok(()) };
            match login.handle(&response, &text) {
                Ok(Step::Send(request, text)) => send(env, link, stream, &request, text)?,
                Ok(Step::Established(outcome)) => {
                    stream.switch(&outcome.connection);
                    return self.logged_in(env, link, &outcome);
                }
                // The session it wants to join is full, or has ended meanwhile.
                Err(LoginError::Refused { .. }) if self.joining.contains_key(&link) => {
                    self.close_link(env, link);
                    let waits = |core: &&mut Session<OpId>| core.reinstatement().is_some();
                    if let Some(core) = self.core.as_mut().filter(waits) {
                        env.coverage.hit("session recovery as the last resort");
                        core.abandon();
                    }
                    return Ok(());
                }
                other => return Err(format!("initiator {link}: {other:?}")),
            }
        }
    }

    fn logged_in(&mut self, env: &mut Env, link: Link, outcome: &Outcome) -> Verdict {
        let now = env.now();
        let established = established(outcome);
        let id = match (self.joining.remove(&link), &mut self.core) {
            (None, None) => {
                let (core, id) = Session::new(env.scenario.initiator, &established, now);
                self.core = Some(core);
                self.session = env.wire.session(link).ok_or("a session that nobody answered")?;
                self.generation += 1;
                env.progress = now;
                env.coverage.hit("session established");
                id
            }
            (Some(generation), Some(core)) if generation == self.generation => {
                match core.add_connection(&established, now) {
                    Ok(id) => {
                        env.coverage.hit("connection joined");
                        if self.members.is_empty() {
                            env.coverage.hit("session resumed after all connections were lost");
                        }
                        id
                    }
                    Err(MembershipError::Ended) => return self.too_late(env, link),
                    Err(error) => return Err(format!("initiator {link}: {error}")),
                }
            }
            _ => return self.too_late(env, link),
        };
        self.members.insert(id, link);
        if let Some(host_link) = self.links.get_mut(&link) {
            host_link.stage = Stage::Member(id);
        }
        self.submit(env)?;
        self.drain(env)
    }

    fn too_late(&mut self, env: &mut Env, link: Link) -> Verdict {
        env.coverage.hit("connection joined too late");
        if let Some(host_link) = self.links.get_mut(&link) {
            host_link.stage = Stage::Over;
        }
        env.close(link, Side::Initiator);
        Ok(())
    }

    pub(crate) fn login_timeout(&mut self, env: &mut Env, link: Link) -> Verdict {
        if matches!(self.links.get(&link), Some(HostLink { stage: Stage::Login(_), .. })) {
            env.coverage.hit("login timeout");
            self.close_link(env, link);
        }
        Ok(())
    }

    /// The application changes its mind about the number of connections. Returns one for the
    /// target to accept, if it wants more.
    pub(crate) fn change_membership(&mut self, env: &mut Env) -> Result<Option<Link>, String> {
        let Some(core) = self.core.as_mut().filter(|core| core.is_open()) else { return Ok(None) };
        let limit = core.params().max_connections.min(env.scenario.connections_max);
        self.wanted = env.rng.range(1, u64::from(limit.max(1))) as u16; // at most `limit`
        let members: Vec<_> = self.members.keys().copied().collect();
        if members.len() > usize::from(self.wanted) {
            let leaving = env.rng.pick(&members);
            if core.remove_connection(leaving).is_ok() {
                env.coverage.hit("connection asked to leave");
            }
            self.drain(env)?;
            return Ok(None);
        }
        if members.len() < usize::from(self.wanted) {
            return self.join(env);
        }
        Ok(None)
    }
}

fn send(
    env: &mut Env,
    link: Link,
    stream: &mut Stream,
    request: &LoginRequest,
    text: Bytes,
) -> Verdict {
    let header = request.encode(text.len() as u32); // at most a login segment
    env.transmit(link, Side::Initiator, stream, &Transmit { header, payload: text })?;
    env.flush(link, Side::Initiator, stream);
    Ok(())
}
