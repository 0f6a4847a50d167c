//! The target's sessions: logins becoming members of them, reinstatement, and their ends
//! (RFC 7143 §6.3).

use super::*;

impl Server {
    pub(super) fn process_login(&mut self, env: &mut Env, link: Link) -> Result<bool, String> {
        let Some(target_link) = self.links.get_mut(&link) else { return Ok(false) };
        let TargetLink { stream, stage: Stage::Login(login), .. } = target_link else {
            return Ok(false);
        };
        let Some((request, text)) = crate::logins::next_request(stream)? else { return Ok(false) };
        use iscsi_proto::login::target::Step;
        match login.handle(&request, &text) {
            Ok(Step::Send(response, text)) => {
                send(env, link, stream, &response, text)?;
                Ok(true)
            }
            Ok(Step::Ready(outcome)) => {
                let Stage::Login(login) = std::mem::replace(&mut target_link.stage, Stage::Waiting)
                else {
                    return Ok(false);
                };
                self.attach(env, link, login, outcome)?;
                Ok(true)
            }
            Err(failure) => Err(format!("target {link}: {failure}")),
        }
    }

    fn attach(
        &mut self,
        env: &mut Env,
        link: Link,
        login: Box<Login>,
        outcome: Box<Outcome>,
    ) -> Outcomes {
        match self.registry.attach(&outcome) {
            Err(status) => self.refuse(env, link, login, status),
            Ok(Attach::Join { tsih }) => {
                let key = self.live.get(&tsih).copied();
                let session = key.and_then(|key| self.sessions.get(&key));
                let status = match session.map(|session| &session.core) {
                    None => LoginStatus::SESSION_DOES_NOT_EXIST,
                    Some(core) if core.is_closed() => LoginStatus::SESSION_DOES_NOT_EXIST,
                    Some(core) if !core.admits(outcome.cid) => LoginStatus::TOO_MANY_CONNECTIONS,
                    Some(_) => {
                        let key = key.unwrap_or(SessionKey(0));
                        return self.become_member(env, link, key, login, &outcome);
                    }
                };
                self.refuse(env, link, login, status)
            }
            Ok(Attach::New { tsih, reinstates }) => {
                let session = SessionKey(self.next_session);
                self.next_session += 1;
                let mut core = Session::new(env.scenario.target.clone(), &outcome);
                core.set_holding(env.scenario.holding.is_some());
                let state = TargetSession {
                    core,
                    tsih,
                    links: BTreeMap::new(),
                    buffers: BTreeMap::new(),
                    orphans: Orphans::default(),
                    running: BTreeMap::new(),
                    superseded: false,
                    unadmitted: BTreeSet::new(),
                    held: None,
                };
                self.sessions.insert(session, state);
                self.live.insert(tsih, session);
                let older = match reinstates {
                    Some(old) => self.end_older(env, old)?,
                    None => Vec::new(),
                };
                self.waiting.push(Waiting { link, session, login, outcome, older });
                self.look_at_waiting(env)
            }
        }
    }

    /// Ends a session that is reinstated. Returns what has to be quiet before its successor may be
    /// told: that session, and whatever it was waiting for itself.
    fn end_older(&mut self, env: &mut Env, tsih: Tsih) -> Result<Vec<SessionKey>, String> {
        let Some(key) = self.live.remove(&tsih) else { return Ok(Vec::new()) };
        env.coverage.hit("session reinstated");
        let mut older = vec![key];
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.session == key) {
            env.coverage.hit("session reinstated before its login was answered");
            let waiting = self.waiting.remove(at);
            older.extend(waiting.older);
            self.close(env, waiting.link)?;
        }
        if let Some(session) = self.sessions.get_mut(&key) {
            session.core.close("session reinstated");
            session.orphans.bury(&session.core);
        }
        self.drain(env, key, None)?;
        Ok(older)
    }

    /// Answers logins whose older sessions cannot reach the medium any more.
    pub(super) fn look_at_waiting(&mut self, env: &mut Env) -> Outcomes {
        let sessions = &self.sessions;
        let quiet =
            |key: &SessionKey| sessions.get(key).is_none_or(|session| session.core.is_quiet());
        let ready = self.waiting.iter().position(|waiting| waiting.older.iter().all(quiet));
        let Some(at) = ready else { return Ok(()) };
        let Waiting { link, session, login, outcome, older } = self.waiting.remove(at);
        for key in older {
            if let Some(session) = self.sessions.get_mut(&key) {
                session.superseded = true;
            }
        }
        match self.links.get(&link).map(|link| &link.stage) {
            Some(Stage::Waiting) => self.become_member(env, link, session, login, &outcome)?,
            _ => {
                env.coverage.hit("login given up while it waited");
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.core.close("login given up");
                }
                self.reap(env, session)?;
            }
        }
        self.look_at_waiting(env)
    }

    fn become_member(
        &mut self,
        env: &mut Env,
        link: Link,
        key: SessionKey,
        mut login: Box<Login>,
        outcome: &Outcome,
    ) -> Outcomes {
        let Some(session) = self.sessions.get_mut(&key) else { return Ok(()) };
        let Some(target_link) = self.links.get_mut(&link) else { return Ok(()) };
        let window = session.core.command_window();
        let (response, text) = login.accept(session.tsih, window.0, window.1);
        let now = env.clock.now();
        let conn = session.core.add_connection(outcome, outcome.next_stat_sn, now);
        let promises = Promises {
            command_window: env.scenario.target.command_window,
            solicited_bytes_max: env.scenario.target.buffered_bytes_max,
            data_timeout: env.scenario.target.data_timeout,
        };
        // The last response is the last PDU of the login phase: it goes out as such.
        send(env, link, &mut target_link.stream, &response, text)?;
        env.wire.attach(link, key, outcome, window, promises)?;
        target_link.stream.switch(&outcome.connection);
        target_link.stage = Stage::Member(key, conn);
        session.links.insert(conn, link);
        env.coverage.hit("connection logged in");
        self.drain(env, key, Some(conn))?;
        self.process(env, link)
    }

    fn refuse(
        &mut self,
        env: &mut Env,
        link: Link,
        mut login: Box<Login>,
        status: LoginStatus,
    ) -> Outcomes {
        env.coverage.hit("login refused");
        env.log(|| format!("{link}: refused with {status}"));
        let response = login.reject(status);
        if let Some(target_link) = self.links.get_mut(&link) {
            send(env, link, &mut target_link.stream, &response, Bytes::new())?;
            env.flush(link, Side::Target, &mut target_link.stream);
        }
        let deadline = env.now() + LINGER;
        env.clock.at(env.now(), Event::TargetCloses(link, deadline));
        Ok(())
    }

    /// Forgets a session that is over, and checks that nothing of it is left.
    pub(super) fn reap(&mut self, env: &mut Env, key: SessionKey) -> Outcomes {
        let Some(session) = self.sessions.get(&key) else { return Ok(()) };
        let waited_for = self.waiting.iter().any(|waiting| waiting.session == key);
        let core = &session.core;
        let alive = !session.links.is_empty() || !core.is_quiet() || core.awaits_recovery();
        if waited_for || alive {
            return Ok(());
        }
        if session.core.task_count() > 0 {
            return Err(format!(
                "session {key:?} is over with {} tasks",
                session.core.task_count()
            ));
        }
        if !session.buffers.is_empty() || !session.orphans.is_empty() {
            let left: Vec<Itt> = session.buffers.keys().map(|(_, itt)| *itt).collect();
            let left: Vec<Itt> = left.into_iter().chain(session.orphans.tasks()).collect();
            return Err(format!("session {key:?} is over, buffers are left: {left:?}"));
        }
        let tsih = session.tsih;
        if self.live.get(&tsih) == Some(&key) {
            self.live.remove(&tsih);
            self.registry.remove(tsih);
        }
        self.sessions.remove(&key);
        env.coverage.hit("session over at the target");
        Ok(())
    }
}

fn send(
    env: &mut Env,
    link: Link,
    stream: &mut Stream,
    response: &LoginResponse,
    text: Bytes,
) -> Outcomes {
    let header = response.encode(text.len() as u32); // at most a login segment
    env.transmit(link, Side::Target, stream, &Transmit { header, payload: text })?;
    env.flush(link, Side::Target, stream);
    Ok(())
}
