//! Login as the initiator sees it (RFC 7143 §6.3, §11.12, §11.13).
//!
//! [`Login::first`] is what to send first; [`Login::handle`] takes each Login Response and says
//! what comes next, until the login is [`Step::Established`], redirected or failed.
//!
//! It starts in the security stage even without CHAP, as every initiator in the field does. The
//! RFC allows to begin with the operational stage, which saves a round trip, but tgt 1.0.85 looks
//! for the session of a TSIH only when a connection leaves the security stage: a second connection
//! that skips it gets a session of its own.

mod security;

use bytes::Bytes;

use self::security::{Chap, Expected, Proved};
use super::chap::{Algorithm, ChapCredentials, ChapError, ChapRandom, check_secrets_differ};
use super::security::SecurityKeys;
use super::{LOGIN_PDUS_MAX, Outcome};
use crate::ids::{Cid, Isid, Itt, Tsih};
use crate::keys::text::{LOGIN_TEXT_MAX, TextError, TextReader, TextSender, TextWriter, parse};
use crate::keys::{Negotiation, NegotiationError, Offer, Role, SessionParams};
use crate::names::{NameError, TargetAddress, check_name};
use crate::pdu::{LoginRequest, LoginResponse, LoginStatus, Stage, VERSION};
use crate::serial::{CmdSn, StatSn};

/// What an initiator needs to log in.
#[derive(Clone, Debug)]
pub struct InitiatorConfig {
    /// Our name.
    pub initiator_name: String,
    /// Our alias, if we have one.
    pub initiator_alias: Option<String>,
    /// The target; `None` for discovery.
    pub target_name: Option<String>,
    /// Our part of the session's name.
    pub isid: Isid,
    /// 0 for a new session.
    pub tsih: Tsih,
    /// Connection ID, unique within the session; that of a lost connection reinstates it.
    pub cid: Cid,
    /// Tag of the login.
    pub itt: Itt,
    /// First CmdSN of a new session, next CmdSN of an existing one.
    pub cmd_sn: CmdSn,
    /// 0, or for a connection that is reinstated the next StatSN we expect.
    pub exp_stat_sn: StatSn,
    /// What we offer.
    pub offer: Offer,
    /// Parameters of the session that this connection joins; `None` for its leading connection.
    pub joining: Option<SessionParams>,
    /// How we prove ourselves; `None`: not at all.
    pub chap: Option<ChapCredentials>,
    /// Whom the target has to prove to be; needs `chap`.
    pub mutual: Option<ChapCredentials>,
    /// With `chap` and without `mutual`: a target that wants no proof is taken, too.
    pub chap_optional: bool,
    /// CHAP algorithms we offer, the best first.
    pub algorithms: Vec<Algorithm>,
    /// For mutual CHAP, fresh for each login.
    pub random: ChapRandom,
}

impl InitiatorConfig {
    /// A leading login with default values, without authentication.
    pub fn new(
        initiator_name: impl Into<String>,
        target_name: Option<String>,
        isid: Isid,
        random: ChapRandom,
    ) -> Self {
        Self {
            initiator_name: initiator_name.into(),
            initiator_alias: None,
            target_name,
            isid,
            //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.5
            //# Therefore, the TSIH in the Login PDU MUST be zero to signal session reinstatement.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.6
            //# The reserved value 0 MUST be used on the first connection for a new session.
            tsih: Tsih(0),
            cid: Cid(0),
            itt: Itt(0),
            cmd_sn: CmdSn(1),
            exp_stat_sn: StatSn(0),
            offer: Offer::default(),
            joining: None,
            chap: None,
            mutual: None,
            chap_optional: false,
            algorithms: Algorithm::OFFERED.to_vec(),
            random,
        }
    }
}

/// What to do after a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send it and wait for the next response.
    Send(LoginRequest, Bytes),
    /// Full-feature phase.
    Established(Box<Outcome>),
    /// Log in elsewhere.
    Redirected {
        /// Where.
        address: TargetAddress,
        /// From now on, not just this time.
        permanent: bool,
    },
}

/// Why a login failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoginError {
    /// The target refused it.
    #[error("the target refused the login: {status}")]
    Refused {
        /// Its status; see [`LoginStatus::may_retry`].
        status: LoginStatus,
    },
    /// Our own name, or the target's, is none.
    #[error("{key}: {source}")]
    Name {
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        source: NameError,
    },
    /// Mutual authentication without a secret of ours, or a connection without its session.
    #[error("{0}")]
    Config(&'static str),
    /// The login goes on and on.
    #[error("no end of login after {max} requests")]
    TooManyPdus {
        /// The limit.
        max: u32,
    },
    /// A response after the end, or before the beginning.
    #[error("login response out of place")]
    OutOfPlace,
    /// The response is not the one to our request.
    #[error("{field} of the login response does not fit the request")]
    Mismatch {
        /// The field.
        field: &'static str,
    },
    /// The target goes on to a stage that we did not ask for.
    #[error("CSG {csg}, NSG {nsg} (T {transit}) in the login response, in stage {expected}")]
    Stage {
        /// Current stage as answered.
        csg: Stage,
        /// Next stage as answered.
        nsg: Stage,
        /// T bit.
        transit: bool,
        /// The stage we are in.
        expected: Stage,
    },
    /// The text is none.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A key is wrong.
    #[error(transparent)]
    Negotiation(#[from] NegotiationError),
    /// The target opens a negotiation in the response that ends the login.
    #[error("the target offers keys in its last response")]
    LateOffer,
    /// The target does not authenticate as we demand.
    #[error("AuthMethod={answer:?} is not what we need")]
    AuthMethod {
        /// Its answer.
        answer: String,
    },
    /// CHAP failed.
    #[error(transparent)]
    Chap(#[from] ChapError),
}

/// Where the login stands.
#[derive(Clone, Debug)]
enum State {
    /// In the security stage.
    Security(Expected),
    /// In the operational stage; what was proved before.
    Operational(Proved),
    /// Over, one way or the other.
    Over,
}

impl State {
    const fn stage(&self) -> Stage {
        match self {
            Self::Security(_) => Stage::SECURITY_NEGOTIATION,
            _ => Stage::LOGIN_OPERATIONAL_NEGOTIATION,
        }
    }
}

/// Login of one connection.
#[derive(Clone, Debug)]
pub struct Login {
    config: InitiatorConfig,
    state: State,
    negotiation: Negotiation,
    reader: TextReader,
    sender: TextSender,
    requests: u32,
    exp_stat_sn: StatSn,
    /// T bit of the request that is being answered.
    asked_for_transit: bool,
}

impl Login {
    /// A login that was not started.
    ///
    /// # Errors
    /// [`LoginError`] if the configuration cannot lead to a login.
    pub fn new(mut config: InitiatorConfig) -> Result<Self, LoginError> {
        let checked =
            |key, name: &str| check_name(name).map_err(|source| LoginError::Name { key, source });
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.7.1
        //# Each iSCSI node, whether it is an initiator, a target, or both, MUST have an iSCSI name.
        config.initiator_name = checked("InitiatorName", &config.initiator_name)?;
        if let Some(name) = &config.target_name {
            config.target_name = Some(checked("TargetName", name)?);
        }
        if (config.tsih == Tsih(0)) != config.joining.is_none() {
            return Err(LoginError::Config("a TSIH and the session's parameters go together"));
        }
        match (&config.chap, &config.mutual) {
            (None, Some(_)) => {
                return Err(LoginError::Config("mutual CHAP needs a secret of ours"));
            }
            (Some(ours), Some(theirs)) => check_secrets_differ(&ours.secret, &theirs.secret)?,
            _ => {}
        }
        let mut negotiation = Negotiation::new(Role::Initiator, config.offer, config.joining);
        if config.target_name.is_none() {
            negotiation.set_discovery();
        }
        Ok(Self {
            state: State::Over,
            negotiation,
            reader: TextReader::new(LOGIN_TEXT_MAX),
            sender: TextSender::default(),
            requests: 0,
            exp_stat_sn: config.exp_stat_sn,
            asked_for_transit: false,
            config,
        })
    }

    /// The first request: who we are, and the first keys of the stage we start in.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.7.1
    //# The initiator MUST present both its iSCSI Initiator Name and the iSCSI Target Name to which
    //# it wishes to connect in the first Login Request of a new session or connection.
    pub fn first(&mut self) -> (LoginRequest, Bytes) {
        let mut out = TextWriter::default();
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
        //# The initial Login Request of any connection MUST include the InitiatorName key=value
        //# pair.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-13.5
        //# The initiator of the TCP connection MUST provide this key to the remote endpoint at the
        //# first login of the Login Phase for every connection.
        out.push("InitiatorName", &self.config.initiator_name);
        if let Some(alias) = &self.config.initiator_alias {
            out.push("InitiatorAlias", alias);
        }
        match &self.config.target_name {
            Some(name) => {
                // Leading-only (§13.21).
                if self.config.joining.is_none() {
                    out.push("SessionType", "Normal");
                }
                //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
                //# For any connection within a session whose type is not "Discovery", the first
                //# Login Request MUST also include the TargetName key=value pair.
                //= https://www.rfc-editor.org/rfc/rfc7143#section-13.4
                //# The initiator of the TCP connection MUST provide this key to the remote endpoint
                //# in the first Login Request if the initiator is not establishing a Discovery
                //# session.
                out.push("TargetName", name);
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.10
            //# The initiator MUST provide some basic parameters in order to enable the target to
            //# determine if the initiator may use the target's resources and the initial text
            //# parameters for the security exchange.
            None => out.push("SessionType", "Discovery"),
        }
        let chap = self.config.chap.clone().map(|ours| Chap {
            ours,
            theirs: self.config.mutual.clone(),
            optional: self.config.chap_optional && self.config.mutual.is_none(),
            algorithms: self.config.algorithms.clone(),
            random: self.config.random.clone(),
        });
        self.state = State::Security(Expected::start(chap, &mut out));
        self.sender.start(out.finish());
        self.next_request()
    }

    /// Handles a Login Response and its text.
    ///
    /// # Errors
    /// [`LoginError`]: close the connection.
    pub fn handle(&mut self, response: &LoginResponse, text: &[u8]) -> Result<Step, LoginError> {
        let step = self.try_handle(response, text);
        //= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.4
        //# The use of within-connection and within-command recovery classes MUST NOT be attempted
        //# before the connection is in the Full Feature Phase.
        // Whatever goes wrong ends the login.
        if !matches!(step, Ok(Step::Send(..))) {
            self.state = State::Over;
        }
        step
    }

    fn try_handle(&mut self, response: &LoginResponse, text: &[u8]) -> Result<Step, LoginError> {
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
        //# There MUST NOT be more than one outstanding Login Request or Login Response on an iSCSI
        //# connection.
        if matches!(self.state, State::Over) {
            return Err(LoginError::OutOfPlace);
        }
        if response.itt != self.config.itt {
            return Err(LoginError::Mismatch { field: "InitiatorTaskTag" });
        }
        if !response.status.is_success() {
            return self.handle_refusal(response, text);
        }
        self.check(response)?;
        self.exp_stat_sn = response.stat_sn.next();
        if self.requests >= LOGIN_PDUS_MAX {
            return Err(LoginError::TooManyPdus { max: LOGIN_PDUS_MAX });
        }
        if self.sender.is_pending() {
            // The target may not answer a text it has not seen to the end (§6.2).
            if !text.is_empty() || response.transit {
                return Err(LoginError::OutOfPlace);
            }
            return Ok(self.send());
        }
        let Some(text) = self.reader.push(text, response.continues)? else {
            return Ok(self.send());
        };
        self.handle_text(response, &text)
    }

    /// A status other than success.
    fn handle_refusal(&self, response: &LoginResponse, text: &[u8]) -> Result<Step, LoginError> {
        let status = response.status;
        let moved = [LoginStatus::TARGET_MOVED_TEMPORARILY, LoginStatus::TARGET_MOVED_PERMANENTLY];
        if !moved.contains(&status) {
            return Err(LoginError::Refused { status });
        }
        let pairs = parse(text)?;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.5
        //# All of the redirection Status-Class responses MUST return one or more text key
        //# parameters of the type "TargetAddress", which indicates the target's new address.
        let address = pairs
            .iter()
            .find(|pair| pair.key == "TargetAddress")
            .ok_or(LoginError::Refused { status })?
            .value
            .parse()
            .map_err(|source| LoginError::Name { key: "TargetAddress", source })?;
        let permanent = status == LoginStatus::TARGET_MOVED_PERMANENTLY;
        Ok(Step::Redirected { address, permanent })
    }

    /// Whether a successful response fits the request.
    fn check(&self, response: &LoginResponse) -> Result<(), LoginError> {
        let LoginResponse { transit, continues, csg, nsg, .. } = *response;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.1
        //# The initiator MUST use the value presented as a response to the first Login Request.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.2
        //# The initiator MUST use the value presented as a response to the first Login Request.
        if response.version_active != VERSION {
            return Err(LoginError::Mismatch { field: "Version-active" });
        }
        if response.isid != self.config.isid {
            return Err(LoginError::Mismatch { field: "ISID" });
        }
        let expected = self.state.stage();
        let next = self.next_stage();
        if csg != expected || transit && (nsg != next || !self.asked_for_transit || continues) {
            return Err(LoginError::Stage { csg, nsg, transit, expected });
        }
        if self.config.tsih != Tsih(0) && response.tsih != self.config.tsih {
            return Err(LoginError::Mismatch { field: "TSIH" });
        }
        Ok(())
    }

    fn handle_text(&mut self, response: &LoginResponse, text: &[u8]) -> Result<Step, LoginError> {
        let pairs = parse(text)?;
        let mut out = TextWriter::default();
        let security = self.negotiation.handle(&pairs, self.state.stage(), &mut out)?;
        match std::mem::replace(&mut self.state, State::Over) {
            State::Security(expected) => {
                let expected = expected.handle(SecurityKeys::collect(security)?, &mut out)?;
                self.state = match (expected, response.transit) {
                    (Expected::Nothing(proved), true) => {
                        self.negotiation.write_offers(&mut out);
                        State::Operational(proved)
                    }
                    // It would have us go on without its proof.
                    (_, true) => return Err(ChapError::Missing { key: "CHAP_R" }.into()),
                    (expected, false) => State::Security(expected),
                };
            }
            State::Operational(proved) if response.transit => {
                return self.establish(response, proved, &out.finish());
            }
            state => self.state = state,
        }
        self.sender.start(out.finish());
        Ok(self.send())
    }

    /// The target has agreed to full-feature phase.
    fn establish(
        &self,
        response: &LoginResponse,
        proved: Proved,
        unanswered: &[u8],
    ) -> Result<Step, LoginError> {
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.6
        //# A Login Response with the T bit set to 1 MUST NOT contain key=value pairs that may
        //# require additional answers from the initiator within the same stage.
        // That we do not understand a key needs not be said any more; all else needed an answer.
        if parse(unanswered)?.iter().any(|pair| pair.value != "NotUnderstood") {
            return Err(LoginError::LateOffer);
        }
        let discovery = self.config.target_name.is_none();
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.3
        //# For a new session, the target MUST generate a non-zero TSIH and ONLY return it in the
        //# Login Final-Response (see Section 6.3).
        if response.tsih == Tsih(0) && !discovery {
            return Err(LoginError::Mismatch { field: "TSIH" });
        }
        let (session, connection) = self.negotiation.finish()?;
        let declared = self.negotiation.declared();
        Ok(Step::Established(Box::new(Outcome {
            initiator_name: self.config.initiator_name.clone(),
            target_name: self.config.target_name.clone(),
            discovery,
            isid: self.config.isid,
            tsih: response.tsih,
            cid: self.config.cid,
            session,
            connection,
            authenticated_as: proved.user,
            chap: proved.algorithm,
            cmd_sn: self.config.cmd_sn,
            next_stat_sn: self.exp_stat_sn,
            exp_cmd_sn: response.exp_cmd_sn,
            max_cmd_sn: response.max_cmd_sn,
            peer_alias: declared.alias.clone(),
            portal_group_tag: declared.portal_group_tag,
            protocol_level: self.negotiation.protocol_level(),
        })))
    }

    /// Stage we ask for.
    const fn next_stage(&self) -> Stage {
        match self.state {
            State::Security(_) => Stage::LOGIN_OPERATIONAL_NEGOTIATION,
            _ => Stage::FULL_FEATURE_PHASE,
        }
    }

    fn send(&mut self) -> Step {
        let (request, text) = self.next_request();
        Step::Send(request, text)
    }

    fn next_request(&mut self) -> (LoginRequest, Bytes) {
        self.requests += 1;
        let (text, continues) = self.sender.next_segment(self.negotiation.login_segment_max());
        let ready = match &self.state {
            State::Security(expected) => expected.may_ask_for_transit(),
            _ => true,
        };
        // While the target is still sending we only ask for more.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.3
        //# The initiator MUST indicate its intent to terminate the negotiation by setting the T bit
        //# to 1; the target sets the T bit to 1 on the last response.
        let transit = ready && !continues && !self.reader.is_partial();
        self.asked_for_transit = transit;
        let request = LoginRequest {
            transit,
            continues,
            csg: self.state.stage(),
            nsg: if transit { self.next_stage() } else { Stage(0) },
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.4
            //# Therefore, both Version-min and Version-max MUST be set to 0x00.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.4.1
            //# All Login Requests within the Login Phase MUST carry the same Version-max.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.4.2
            //# All Login Requests within the Login Phase MUST carry the same Version-min.
            version_max: VERSION,
            version_min: VERSION,
            isid: self.config.isid,
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.6
            //# Otherwise, the TSIH sent by the target at the conclusion of the successful login of
            //# the first connection for this session MUST be used.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.6
            //# All Login Requests within a Login Phase MUST carry the same TSIH.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.7
            //# All Login Requests within the Login Phase MUST carry the same CID.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.4
            //# Thus, the TSIH in the Login Request PDU MUST be non-zero, and the CID does not
            //# change during a connection reinstatement.
            tsih: self.config.tsih,
            itt: self.config.itt,
            cid: self.config.cid,
            cmd_sn: self.config.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        };
        (request, text)
    }
}
