//! Login as the target sees it (RFC 7143 §6.3, §11.12, §11.13).
//!
//! [`Login::handle`] takes each Login Request and says what to send, until the initiator asks for
//! full-feature phase and may have it. Then it returns [`Step::Ready`] *before* the last response:
//! the caller attaches the connection to a session, which may fail, and gets the response from
//! [`Login::accept`] or [`Login::reject`].

mod failure;
mod security;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

pub use failure::{FailureReason, LoginFailure};
pub use security::Authentication;

use self::security::Security;
use super::chap::{ChapRandom, Secret};
use super::security::SecurityKeys;
use super::{LOGIN_PDUS_MAX, Outcome};
use crate::ids::{Cid, Isid, Itt, Tsih};
use crate::keys::text::{LOGIN_TEXT_MAX, TextReader, TextSender, TextWriter, parse};
use crate::keys::{Negotiation, Offer, Role, SessionParams};
use crate::names::{TargetAddress, check_name};
use crate::pdu::{LoginRequest, LoginResponse, LoginStatus, Stage, VERSION};
use crate::serial::{CmdSn, StatSn};

/// Who may log in to what, and with which secret. Asked during login, so it must not block.
pub trait Authenticator {
    /// May this initiator log in to this target (`None`: for discovery)? Both names are checked
    /// and in lower case; the initiator's is not proved.
    fn admit(&self, initiator_name: &str, target_name: Option<&str>) -> Admission;

    /// The secret of a CHAP user of this target, if there is one.
    fn secret(&self, target_name: Option<&str>, user: &str) -> Option<Secret>;

    /// What the session that this connection wants to join has agreed on, if there is one. Who asks
    /// is not proved yet; the answer goes to those who have proved what they have to.
    fn joins(&self, joining: &Joining<'_>) -> Option<SessionParams> {
        let _ = joining;
        None
    }
}

/// Which session a connection wants to join.
#[derive(Clone, Copy, Debug)]
pub struct Joining<'a> {
    /// Checked and in lower case, not proved.
    pub initiator_name: &'a str,
    /// Checked and in lower case; `None`: discovery.
    pub target_name: Option<&'a str>,
    /// The initiator's part of the session's name.
    pub isid: Isid,
    /// The target's.
    pub tsih: Tsih,
}

/// The answer to [`Authenticator::admit`].
#[derive(Clone, Debug)]
pub enum Admission {
    /// Yes, on these conditions.
    Granted(Grant),
    /// Not here.
    Moved {
        /// Where else.
        address: TargetAddress,
        /// For good.
        permanent: bool,
    },
    /// No: NOT_FOUND, AUTHORIZATION_FAILURE, SERVICE_UNAVAILABLE …
    Refused(LoginStatus),
}

/// On which conditions an initiator may log in.
#[derive(Clone, Debug, Default)]
pub struct Grant {
    /// What it has to prove.
    pub authentication: Authentication,
    /// Tag of the portal group that the connection came in on.
    pub portal_group_tag: u16,
    /// TargetAlias, if the target has one.
    pub target_alias: Option<String>,
}

/// What a login needs to know beforehand.
#[derive(Clone)]
pub struct TargetConfig {
    /// What we accept.
    pub offer: Offer,
    /// Who may log in.
    pub authenticator: Arc<dyn Authenticator + Send + Sync>,
    /// For CHAP, fresh for each login.
    pub random: ChapRandom,
}

impl fmt::Debug for TargetConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetConfig").field("offer", &self.offer).finish_non_exhaustive()
    }
}

/// What to do after a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send it and wait for the next request.
    Send(LoginResponse, Bytes),
    /// Attach the connection to a session, then [`Login::accept`] or [`Login::reject`].
    Ready(Box<Outcome>),
}

/// What must stay the same in every request of a login.
#[derive(Clone, Copy, Debug)]
struct Identity {
    isid: Isid,
    tsih: Tsih,
    cid: Cid,
    itt: Itt,
    cmd_sn: CmdSn,
}

/// Who the initiator says it is, and what that entitles it to.
#[derive(Clone, Debug)]
struct Peer {
    initiator_name: String,
    target_name: Option<String>,
    grant: Grant,
}

/// The last response, kept until the connection has a session.
#[derive(Clone, Debug)]
struct LastResponse {
    csg: Stage,
    text: Bytes,
}

/// Login of one connection.
#[derive(Clone, Debug)]
pub struct Login {
    config: TargetConfig,
    /// Set by the first request.
    identity: Option<Identity>,
    stage: Stage,
    requests: u32,
    stat_sn: StatSn,
    reader: TextReader,
    sender: TextSender,
    negotiation: Negotiation,
    security: Security,
    /// Set by the first complete text.
    peer: Option<Peer>,
    last_response: Option<LastResponse>,
}

impl Login {
    /// A connection that has just been accepted.
    pub fn new(config: TargetConfig) -> Self {
        Self {
            identity: None,
            stage: Stage::SECURITY_NEGOTIATION,
            requests: 0,
            stat_sn: StatSn::default(),
            reader: TextReader::new(LOGIN_TEXT_MAX),
            sender: TextSender::default(),
            negotiation: Negotiation::new(Role::Target, config.offer, None),
            security: Security::new(config.random.clone()),
            peer: None,
            last_response: None,
            config,
        }
    }

    /// Handles a Login Request and its text.
    ///
    /// # Errors
    /// [`LoginFailure`]: send [`Self::failure_response`] and close the connection.
    pub fn handle(&mut self, request: &LoginRequest, text: &[u8]) -> Result<Step, LoginFailure> {
        self.requests += 1;
        if self.requests > LOGIN_PDUS_MAX {
            return Err(FailureReason::TooManyPdus { max: LOGIN_PDUS_MAX }.into());
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
        //# There MUST NOT be more than one outstanding Login Request or Login Response on an iSCSI
        //# connection.
        if self.last_response.is_some() {
            return Err(FailureReason::Over.into());
        }
        match self.identity {
            Some(identity) => check_same(&identity, request)?,
            None => self.begin(request)?,
        }
        self.check_stage(request)?;
        if self.sender.is_pending() {
            // The initiator fetches the rest of our text with requests that carry none (§6.2).
            if !text.is_empty() || request.continues {
                return Err(FailureReason::UnexpectedText.into());
            }
            return self.respond(request);
        }
        if let Some(text) =
            self.reader.push(text, request.continues).map_err(FailureReason::from)?
        {
            self.handle_text(&text)?;
        }
        self.respond(request)
    }

    /// The last response, once the connection is attached to session `tsih`, whose command window
    /// is given.
    pub fn accept(
        &mut self,
        tsih: Tsih,
        exp_cmd_sn: CmdSn,
        max_cmd_sn: CmdSn,
    ) -> (LoginResponse, Bytes) {
        let LastResponse { csg, text } = self
            .last_response
            .clone()
            .unwrap_or(LastResponse { csg: self.stage, text: Bytes::new() });
        let mut response = self.response(csg);
        response.transit = true;
        response.nsg = Stage::FULL_FEATURE_PHASE;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.2
        //# If the next stage is FullFeaturePhase, the target MUST reply with a Login Response with
        //# the TSIH value.
        response.tsih = tsih;
        response.exp_cmd_sn = exp_cmd_sn;
        response.max_cmd_sn = max_cmd_sn;
        (response, text)
    }

    /// A response that ends the login.
    pub fn reject(&mut self, status: LoginStatus) -> LoginResponse {
        let mut response = self.response(self.stage);
        response.status = status;
        response
    }

    /// The response for a failure, with the new address if the target has moved.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.2
    //# If the security negotiation fails at the target, then the target MUST send the appropriate
    //# Login Response PDU.
    pub fn failure_response(&mut self, failure: &LoginFailure) -> (LoginResponse, Bytes) {
        let mut out = TextWriter::default();
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.5
        //# All of the redirection Status-Class responses MUST return one or more text key
        //# parameters of the type "TargetAddress", which indicates the target's new address.
        if let FailureReason::Moved { address } = &failure.reason {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-13.8
            //# If the TargetAddress is returned as the result of a redirect status in a Login
            //# Response, the comma and portal-group-tag MUST be omitted.
            out.push("TargetAddress", TargetAddress { group: None, ..address.clone() });
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.2
        //# The target MUST reply with the first option in the list it supports and is allowed to
        //# use for the specific initiator, unless it does not support any, in which case it MUST
        //# answer with "Reject" (see Section 6.2).
        if let FailureReason::AuthMethod { .. } = &failure.reason {
            out.push("AuthMethod", "Reject");
        }
        (self.reject(failure.status), out.finish())
    }

    /// The target asked for, once known: for the log.
    pub fn target_name(&self) -> Option<&str> {
        self.peer.as_ref()?.target_name.as_deref()
    }

    /// The initiator's name, once known: for the log.
    pub fn initiator_name(&self) -> Option<&str> {
        Some(&self.peer.as_ref()?.initiator_name)
    }

    /// The initiator has proved who it is. Never so where nothing is demanded.
    pub fn has_authenticated(&self) -> bool {
        self.security.user().is_some()
    }

    fn begin(&mut self, request: &LoginRequest) -> Result<(), LoginFailure> {
        let LoginRequest { isid, tsih, cid, itt, cmd_sn, .. } = *request;
        self.identity = Some(Identity { isid, tsih, cid, itt, cmd_sn });
        self.stage = request.csg;
        // Any start will do (§11.13.4); with the initiator's, a connection that is reinstated
        // goes on where the old one ended.
        self.stat_sn = request.exp_stat_sn;
        if tsih != Tsih(0) {
            self.negotiation.set_later();
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.4.1
        //# The target MUST use the value presented with the first Login Request.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.4.2
        //# The target MUST use the value presented with the first Login Request.
        let (min, max) = (request.version_min, request.version_max);
        if !(min..=max).contains(&VERSION) {
            return Err(FailureReason::Version { min, max }.into());
        }
        Ok(())
    }

    /// Stages only go forward, one side at a time, and not to the reserved one.
    fn check_stage(&self, request: &LoginRequest) -> Result<(), LoginFailure> {
        let LoginRequest { csg, nsg, transit, continues, .. } = *request;
        if transit && continues {
            return Err(FailureReason::TransitAndContinue.into());
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
        //# The Login Phase MAY include a SecurityNegotiation stage and a
        //# LoginOperationalNegotiation stage and MUST include at least one of them, but the
        //# included stage MAY be empty except for the mandatory names.
        let in_stage = csg == self.stage
            && matches!(csg, Stage::SECURITY_NEGOTIATION | Stage::LOGIN_OPERATIONAL_NEGOTIATION);
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
        //# If both stages are used, the SecurityNegotiation MUST precede the
        //# LoginOperationalNegotiation.
        let forward =
            matches!(nsg, Stage::LOGIN_OPERATIONAL_NEGOTIATION | Stage::FULL_FEATURE_PHASE)
                && nsg.0 > csg.0;
        if !in_stage || transit && !forward {
            let expected = self.stage;
            return Err(FailureReason::Stage { csg, nsg, transit, expected }.into());
        }
        Ok(())
    }

    fn handle_text(&mut self, text: &[u8]) -> Result<(), LoginFailure> {
        let pairs = parse(text).map_err(FailureReason::from)?;
        let mut out = TextWriter::default();
        self.negotiation.declare(&pairs, self.stage).map_err(FailureReason::from)?;
        let peer = match self.peer.take() {
            Some(peer) => peer,
            None => {
                let peer = self.identify(&mut out)?;
                self.join(&peer);
                peer
            }
        };
        let security =
            self.negotiation.handle(&pairs, self.stage, &mut out).map_err(FailureReason::from)?;
        let Peer { target_name, grant, .. } = &peer;
        let keys = SecurityKeys::collect(security)?;
        let was_satisfied = self.security.is_satisfied(&grant.authentication);
        if self.stage == Stage::SECURITY_NEGOTIATION {
            let authenticator = &self.config.authenticator;
            let secret = |user: &str| authenticator.secret(target_name.as_deref(), user);
            self.security.handle(keys, &grant.authentication, secret, &mut out)?;
        } else {
            if !self.security.is_satisfied(&grant.authentication) {
                return Err(FailureReason::AuthenticationRequired.into());
            }
            security::answer_late_method(keys, &grant.authentication, &mut out);
            //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
            //# Targets MUST NOT submit parameters that require an additional initiator Login
            //# Request in a Login Response with the T bit set to 1.
            self.negotiation.write_declaration(&mut out);
        }
        if !was_satisfied && self.security.is_satisfied(&grant.authentication) {
            write_alias(grant, &mut out);
        }
        self.peer = Some(peer);
        self.sender.start(out.finish());
        Ok(())
    }

    /// Finds out from the first text who wants to log in to what, and whether it may.
    fn identify(&self, out: &mut TextWriter) -> Result<Peer, LoginFailure> {
        let declared = self.negotiation.declared();
        let name = |key, name: &Option<String>| {
            let name = name.as_deref().ok_or(FailureReason::Missing { key })?;
            check_name(name).map_err(|source| FailureReason::Name { key, source })
        };
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
        //# The initial Login Request of any connection MUST include the InitiatorName key=value
        //# pair.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-13.5
        //# The initiator of the TCP connection MUST provide this key to the remote endpoint at the
        //# first login of the Login Phase for every connection.
        let initiator_name = name("InitiatorName", &declared.initiator_name)?;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
        //# For any connection within a session whose type is not "Discovery", the first Login
        //# Request MUST also include the TargetName key=value pair.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-13.4
        //# The initiator of the TCP connection MUST provide this key to the remote endpoint in the
        //# first Login Request if the initiator is not establishing a Discovery session.
        let target_name = match (&declared.target_name, self.negotiation.is_discovery()) {
            (None, true) => None,
            (target_name, _) => Some(name("TargetName", target_name)?),
        };
        let authenticator = &self.config.authenticator;
        let grant = match authenticator.admit(&initiator_name, target_name.as_deref()) {
            Admission::Granted(grant) => grant,
            Admission::Refused(status) => {
                return Err(LoginFailure { status, reason: FailureReason::NotAdmitted });
            }
            Admission::Moved { address, permanent } => {
                let status = match permanent {
                    true => LoginStatus::TARGET_MOVED_PERMANENTLY,
                    false => LoginStatus::TARGET_MOVED_TEMPORARILY,
                };
                return Err(LoginFailure { status, reason: FailureReason::Moved { address } });
            }
        };
        if target_name.is_some() {
            // The alias waits for the proof, where one is demanded: it would tell that the target
            // is there.
            if self.security.is_satisfied(&grant.authentication) {
                write_alias(&grant, out);
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-13.9
            //# The iSCSI target returns this key to the initiator in the Login Response PDU to the
            //# first Login Request PDU that has the C bit set to 0 when TargetName is given by the
            //# initiator.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.8
            //# The target MUST provide some basic parameters in order to enable the initiator to
            //# determine if it is connected to the correct port and the initial text parameters for
            //# the security exchange.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.1
            //# During the Login Phase, the iSCSI target MUST return the TargetPortalGroupTag key
            //# with the first Login Response PDU with which it is allowed to do so (i.e., the first
            //# Login Response issued after the first Login Request with the C bit set to 0) for all
            //# session types.
            // It is allowed where a target was named (§13.9).
            out.push("TargetPortalGroupTag", grant.portal_group_tag);
        }
        Ok(Peer { initiator_name, target_name, grant })
    }

    /// Finds the session of a later connection.
    fn join(&mut self, peer: &Peer) {
        let Some(Identity { isid, tsih, .. }) = self.identity.filter(|own| own.tsih != Tsih(0))
        else {
            return;
        };
        let (initiator_name, target_name) = (&*peer.initiator_name, peer.target_name.as_deref());
        let joining = Joining { initiator_name, target_name, isid, tsih };
        if let Some(session) = self.config.authenticator.joins(&joining) {
            self.negotiation.join(session);
        }
    }

    /// Sends what there is to send, and goes on to the next stage if that was all.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
    //# A target receiving a Text or Login Request with the C bit set to 1 MUST answer with a Text
    //# or Login Response with no data segment (DataSegmentLength 0).
    fn respond(&mut self, request: &LoginRequest) -> Result<Step, LoginFailure> {
        let (text, continues) = self.sender.next_segment(self.negotiation.login_segment_max());
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.6
        //# A Login Response with the T bit set to 1 MUST NOT contain key=value pairs that may
        //# require additional answers from the initiator within the same stage.
        let complete = !continues && !request.continues && !self.reader.is_partial();
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.6
        //# If the Status-Class is 0, the T bit MUST NOT be set to 1 if the T bit in the request was
        //# set to 0.
        let transit = request.transit && complete && self.may_leave_stage()?;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
        //# The Login Final-Response that accepts a Login Request can only come as a response to a
        //# Login Request with the T bit set to 1, and both the request and response MUST indicate
        //# FullFeaturePhase as the next phase via the NSG field.
        if transit && request.nsg == Stage::FULL_FEATURE_PHASE {
            let outcome = self.outcome()?;
            self.last_response = Some(LastResponse { csg: request.csg, text });
            return Ok(Step::Ready(Box::new(outcome)));
        }
        let mut response = self.response(request.csg);
        response.continues = continues;
        response.transit = transit;
        if transit {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
            //# The selected NSG MUST NOT exceed the value stated by the initiator.
            response.nsg = request.nsg;
            self.stage = request.nsg;
        }
        Ok(Step::Send(response, text))
    }

    /// Whether the initiator may leave the stage it is in.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
    //# Authentication-related security keys (Section 12) MUST be completely negotiated within the
    //# Login Phase.
    fn may_leave_stage(&self) -> Result<bool, LoginFailure> {
        let Some(peer) = &self.peer else {
            return Ok(false);
        };
        let satisfied = self.security.is_satisfied(&peer.grant.authentication);
        if !satisfied && self.security.is_untouched() {
            return Err(FailureReason::AuthenticationRequired.into());
        }
        Ok(satisfied)
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
    //# An iSCSI target MUST perform integrity checking before the new parameters take effect.
    fn outcome(&self) -> Result<Outcome, LoginFailure> {
        let (session, connection) = self.negotiation.finish().map_err(FailureReason::from)?;
        let missing = FailureReason::Missing { key: "InitiatorName" };
        let (Some(identity), Some(peer)) = (&self.identity, &self.peer) else {
            return Err(missing.into());
        };
        Ok(Outcome {
            initiator_name: peer.initiator_name.clone(),
            target_name: peer.target_name.clone(),
            discovery: self.negotiation.is_discovery(),
            isid: identity.isid,
            tsih: identity.tsih,
            cid: identity.cid,
            session,
            connection,
            authenticated_as: self.security.user().map(str::to_owned),
            chap: None,
            cmd_sn: identity.cmd_sn,
            // The last response takes one.
            next_stat_sn: self.stat_sn.next(),
            exp_cmd_sn: identity.cmd_sn,
            max_cmd_sn: identity.cmd_sn,
            peer_alias: self.negotiation.declared().alias.clone(),
            portal_group_tag: peer.target_name.as_ref().map(|_| peer.grant.portal_group_tag),
            protocol_level: self.negotiation.protocol_level(),
        })
    }

    /// A response without text, without T bit.
    fn response(&mut self, csg: Stage) -> LoginResponse {
        let identity = self.identity.unwrap_or(Identity {
            isid: Isid::default(),
            tsih: Tsih(0),
            cid: Cid(0),
            itt: Itt::NONE,
            cmd_sn: CmdSn(0),
        });
        LoginResponse {
            transit: false,
            continues: false,
            csg,
            nsg: Stage(0),
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.1
            //# All Login Responses within the Login Phase MUST carry the same Version-max.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.2
            //# All Login Responses within the Login Phase MUST carry the same Version-active.
            version_max: VERSION,
            version_active: VERSION,
            isid: identity.isid,
            tsih: identity.tsih,
            itt: identity.itt,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn: identity.cmd_sn,
            max_cmd_sn: identity.cmd_sn,
            status: LoginStatus::SUCCESS,
        }
    }
}

/// TargetAlias (§13.6).
fn write_alias(grant: &Grant, out: &mut TextWriter) {
    if let Some(alias) = &grant.target_alias {
        out.push("TargetAlias", alias);
    }
}

/// §11.12.5–§11.12.8: what identifies a login does not change while it lasts.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.7
//# The target MUST use the value presented with the first Login Request.
fn check_same(identity: &Identity, request: &LoginRequest) -> Result<(), LoginFailure> {
    for (field, same) in [
        ("ISID", identity.isid == request.isid),
        ("TSIH", identity.tsih == request.tsih),
        ("CID", identity.cid == request.cid),
        ("InitiatorTaskTag", identity.itt == request.itt),
    ] {
        if !same {
            return Err(FailureReason::Changed { field }.into());
        }
    }
    Ok(())
}
