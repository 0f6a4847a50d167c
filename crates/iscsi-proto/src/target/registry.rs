//! Which sessions a target has: joining, reinstatement and TSIHs (RFC 7143 §6.3, §11.12.5–7).

use std::collections::BTreeMap;

use crate::ids::{Isid, Tsih};
use crate::login::Outcome;
use crate::pdu::LoginStatus;

/// Half of the 65535 handles, so that a free one is found at once and none is reused soon.
const SESSIONS_LIMIT: usize = 32_767;

/// Sessions of one target, discovery sessions included.
#[derive(Debug)]
pub struct Registry {
    sessions: BTreeMap<Tsih, Name>,
    next_tsih: u16,
    sessions_max: usize,
}

/// What a session is known by: the initiator port and the target it talks to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    initiator_name: String,
    isid: Isid,
    target_name: Option<String>,
}

/// What a login that has succeeded amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// A new session. `reinstates` is an older one of the same initiator port, which has to be
    /// ended, and its commands awaited, before the login is answered.
    New {
        /// Handle of the new session.
        tsih: Tsih,
        /// Session to be ended first.
        reinstates: Option<Tsih>,
    },
    /// Another connection for a session.
    Join {
        /// Its handle.
        tsih: Tsih,
    },
}

impl Registry {
    /// No sessions yet, and room for `sessions_max`, or as many as there are handles to spare.
    pub fn new(sessions_max: usize) -> Self {
        let sessions_max = sessions_max.min(SESSIONS_LIMIT);
        Self { sessions: BTreeMap::new(), next_tsih: 1, sessions_max }
    }

    /// Finds or makes the session that a login is for. A new one exists from here on; if its login
    /// fails later, [`remove`](Self::remove) it.
    ///
    /// # Errors
    /// The status to refuse the login with.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.15
    //# A target MUST also be prepared to handle a session reinstatement request from the initiator
    //# that may be addressing session errors.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.6
    //# The target MUST check the value presented with the first Login Request and act as specified
    //# in Section 6.3.1.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.4.2.2
    //# Since all the four elements of the 4-tuple are known, the ISID RULE MUST be enforced by
    //# targets with no changes from Section 4.4.3 semantics.
    pub fn attach(&mut self, login: &Outcome) -> Result<Attach, LoginStatus> {
        let name = Name {
            initiator_name: login.initiator_name.clone(),
            isid: login.isid,
            target_name: login.target_name.clone(),
        };
        if login.tsih != Tsih(0) {
            return match self.sessions.get(&login.tsih) {
                Some(known) if *known == name => Ok(Attach::Join { tsih: login.tsih }),
                _ => Err(LoginStatus::SESSION_DOES_NOT_EXIST),
            };
        }
        // Discovery sessions of one port may live side by side: ending one when the next begins
        // would let two discoveries that race fail each other.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-7.4.2.1
        //# Each of the concurrent Discovery sessions, if established by the same initiator port to
        //# other Network Portals, MUST be treated as independent sessions -- i.e., one session MUST
        //# NOT reinstate the other.
        let reinstates = (name.target_name.is_some())
            .then(|| self.sessions.iter().find(|(_, known)| **known == name).map(|(t, _)| *t))
            .flatten();
        if reinstates.is_none() && self.sessions.len() >= self.sessions_max {
            return Err(LoginStatus::OUT_OF_RESOURCES);
        }
        if let Some(old) = reinstates {
            self.sessions.remove(&old);
        }
        let tsih = self.free_tsih();
        self.sessions.insert(tsih, name);
        Ok(Attach::New { tsih, reinstates })
    }

    /// The session is over.
    pub fn remove(&mut self, tsih: Tsih) {
        self.sessions.remove(&tsih);
    }

    /// Sessions there are.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// A handle that no session has. Not reused at once, so that a late login for a session that
    /// is gone finds nothing instead of a stranger's session.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.3
    //# For a new session, the target MUST generate a non-zero TSIH and ONLY return it in the Login
    //# Final-Response (see Section 6.3).
    fn free_tsih(&mut self) -> Tsih {
        loop {
            let tsih = Tsih(self.next_tsih);
            self.next_tsih = self.next_tsih.checked_add(1).unwrap_or(1);
            if !self.sessions.contains_key(&tsih) {
                return tsih;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Cid;
    use crate::keys::{ConnectionParams, SessionParams};
    use crate::serial::{CmdSn, StatSn};

    fn login(isid: u32, tsih: u16, target: Option<&str>) -> Outcome {
        Outcome {
            initiator_name: "iqn.2026-11.test:initiator".into(),
            target_name: target.map(str::to_owned),
            isid: Isid::random(isid, 0),
            tsih: Tsih(tsih),
            cid: Cid(1),
            session: SessionParams::default(),
            connection: ConnectionParams::default(),
            cmd_sn: CmdSn(1),
            discovery: target.is_none(),
            authenticated_as: None,
            chap: None,
            next_stat_sn: StatSn(1),
            exp_cmd_sn: CmdSn(1),
            max_cmd_sn: CmdSn(1),
            peer_alias: None,
            portal_group_tag: None,
            protocol_level: 1,
        }
    }

    const DISK: Option<&str> = Some("iqn.2026-11.test:disk");

    fn new(registry: &mut Registry, login: &Outcome) -> (u16, Option<u16>) {
        match registry.attach(login) {
            Ok(Attach::New { tsih, reinstates }) => (tsih.0, reinstates.map(|tsih| tsih.0)),
            other => panic!("expected a new session, got {other:?}"),
        }
    }

    /// The table of §6.3.1.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.15
    //= type=test
    //# A target MUST also be prepared to handle a session reinstatement request from the initiator
    //# that may be addressing session errors.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.6
    //= type=test
    //# The target MUST check the value presented with the first Login Request and act as specified
    //# in Section 6.3.1.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.3
    //= type=test
    //# For a new session, the target MUST generate a non-zero TSIH and ONLY return it in the Login
    //# Final-Response (see Section 6.3).
    #[test]
    fn logins_open_join_and_reinstate_sessions() {
        let mut registry = Registry::new(10);
        let (first, reinstates) = new(&mut registry, &login(1, 0, DISK));
        assert!(first != 0 && reinstates.is_none());
        let (other, reinstates) = new(&mut registry, &login(2, 0, DISK));
        assert!(other != 0 && other != first && reinstates.is_none());
        assert_eq!(registry.attach(&login(1, first, DISK)), Ok(Attach::Join { tsih: Tsih(first) }));
        let none = Err(LoginStatus::SESSION_DOES_NOT_EXIST);
        assert_eq!(registry.attach(&login(3, first, DISK)), none, "not its session");
        assert_eq!(registry.attach(&login(1, 77, DISK)), none, "nobody's session");
        let (again, reinstates) = new(&mut registry, &login(1, 0, DISK));
        assert!(again != 0 && again != first);
        assert_eq!(reinstates, Some(first));
        assert_eq!(registry.attach(&login(1, first, DISK)), none, "it was reinstated");
        assert_eq!(registry.len(), 2);
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.4.2.2
    //= type=test
    //# Since all the four elements of the 4-tuple are known, the ISID RULE MUST be enforced by
    //# targets with no changes from Section 4.4.3 semantics.
    #[test]
    fn a_discovery_session_that_names_a_target_is_like_any_other() {
        let mut registry = Registry::new(10);
        let named = Outcome { discovery: true, ..login(1, 0, DISK) };
        let (first, _) = new(&mut registry, &named);
        assert_eq!(new(&mut registry, &named).1, Some(first));
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.4.2.1
    //= type=test
    //# Each of the concurrent Discovery sessions, if established by the same initiator port to
    //# other Network Portals, MUST be treated as independent sessions -- i.e., one session MUST NOT
    //# reinstate the other.
    #[test]
    fn discovery_sessions_do_not_reinstate_each_other() {
        let mut registry = Registry::new(10);
        let (first, _) = new(&mut registry, &login(1, 0, None));
        let (second, reinstates) = new(&mut registry, &login(1, 0, None));
        assert!(first != second && reinstates.is_none());
    }
}
