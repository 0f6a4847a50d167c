//! Negotiation of operational keys, either role (RFC 7143 §6.2, §6.3.3): what comes in against
//! what we want, by the rules of the table. Security keys are handed back to the login.

mod later;

use later::Place;

use super::error::NegotiationError;
use super::offer::{DigestPreference, Offer};
use super::params::{ConnectionParams, Declared, DigestKind, SessionParams, TaskReporting};
use super::table::{Key, Rule, Scope, Sender, TABLE, When};
use super::text::{Pair, TextWriter};
use super::value::{NOT_UNDERSTOOD, REJECT, bool_str, is_refusal, parse_bool, parse_in_range};
use crate::pdu::Stage;

/// Longest text or number value (§6.1).
const TEXT_VALUE_MAX: usize = 255;

/// Which end of the connection we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The one that logs in.
    Initiator,
    /// The one that is logged in to.
    Target,
}

/// Where a key stands in this negotiation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    #[default]
    Untouched,
    /// We sent it and wait for the answer.
    Offered,
    /// Settled.
    Done,
}

/// The negotiation of one login.
#[derive(Clone, Debug)]
pub struct Negotiation {
    role: Role,
    offer: Offer,
    place: Place,
    discovery: bool,
    progress: [Progress; TABLE.len()],
    session: SessionParams,
    connection: ConnectionParams,
    /// Our MaxRecvDataSegmentLength was sent.
    declared_length: bool,
    declared: Declared,
}

impl Negotiation {
    /// A negotiation in which nothing was said. `joining` is the session that a later connection
    /// joins; leading-only keys are not negotiated then.
    pub fn new(role: Role, offer: Offer, joining: Option<SessionParams>) -> Self {
        Self {
            role,
            offer,
            place: if joining.is_some() { Place::Joining } else { Place::Leading },
            discovery: false,
            progress: [Progress::Untouched; TABLE.len()],
            session: joining.unwrap_or_default(),
            connection: ConnectionParams::default(),
            declared_length: false,
            declared: Declared::default(),
        }
    }

    /// Says that this is a discovery session.
    pub fn set_discovery(&mut self) {
        self.discovery = true;
    }

    /// Longest login segment the peer takes: 8192 holds until login has ended (§13.12), and less
    /// if it has declared less.
    pub fn login_segment_max(&self) -> usize {
        self.connection.max_send_data_segment_length.min(8192) as usize
    }

    /// This is a discovery session: so said, or SessionType was declared.
    pub fn is_discovery(&self) -> bool {
        self.discovery
    }

    /// What the peer declared so far.
    pub fn declared(&self) -> &Declared {
        &self.declared
    }

    /// The level agreed (§13.24).
    pub fn protocol_level(&self) -> u8 {
        self.session.protocol_level
    }

    /// Writes our offers and declarations, as an initiator does at the start of the operational
    /// stage.
    pub fn write_offers(&mut self, out: &mut TextWriter) {
        self.write_digest_offer(Key::HeaderDigest, self.offer.header_digest, out);
        self.write_digest_offer(Key::DataDigest, self.offer.data_digest, out);
        self.write_declaration(out);
        for spec in TABLE.iter().filter(|spec| spec.scope == Scope::Leading) {
            let leading = self.place == Place::Leading;
            if !leading || self.discovery && !spec.relevant_in_discovery {
                continue;
            }
            let value = match spec.rule {
                // Level 1 is the default, and older targets answer it with NotUnderstood.
                Rule::Min(..) if spec.key == Key::ProtocolLevel && self.want(spec.key) <= 1 => {
                    continue;
                }
                Rule::Min(..) | Rule::Max(..) => self.want(spec.key).to_string(),
                Rule::And | Rule::Or => bool_str(self.offer.session.flag(spec.key)).to_owned(),
                Rule::List if self.offer.session.task_reporting > TaskReporting::Rfc3720 => {
                    self.offer.session.task_reporting.offer()
                }
                _ => continue,
            };
            out.push(spec.name, value);
            self.progress[spec.key as usize] = Progress::Offered;
        }
    }

    /// Declares our MaxRecvDataSegmentLength, once. The peer's declaration is independent of it.
    pub fn write_declaration(&mut self, out: &mut TextWriter) {
        if !std::mem::replace(&mut self.declared_length, true) {
            let length = self.offer.max_recv_data_segment_length;
            self.connection.max_recv_data_segment_length = length;
            out.push(Key::MaxRecvDataSegmentLength.name(), length);
        }
    }

    fn write_digest_offer(&mut self, key: Key, preference: DigestPreference, out: &mut TextWriter) {
        let kinds: Vec<_> = preference.kinds().iter().map(|kind| kind.as_str()).collect();
        out.push(key.name(), kinds.join(","));
        self.progress[key as usize] = Progress::Offered;
    }

    /// Takes what the pairs of one complete text declare as text: who it is, and what it wants. All
    /// that [`Self::handle`] says depends on it, wherever it stands in the text.
    ///
    /// # Errors
    /// [`NegotiationError`]: the login has failed.
    pub fn declare(&mut self, pairs: &[Pair<'_>], stage: Stage) -> Result<(), NegotiationError> {
        for Pair { key: name, value } in pairs {
            let Some(key) = Key::from_name(name) else { continue };
            // The peer may have no use for what we declared. LIO says so of SessionType.
            let refused = self.is_ours(key) && is_refusal(value);
            if key.spec().rule == Rule::DeclareText && !refused {
                self.check_admissible(key, stage)?;
                self.declare_text(key, value)?;
            }
        }
        Ok(())
    }

    /// Handles the pairs of one complete text and writes the answers. Security keys are returned
    /// in the order they came; in the operational stage there may be an AuthMethod among them.
    ///
    /// # Errors
    /// [`NegotiationError`]: the login has failed.
    pub fn handle<'a>(
        &mut self,
        pairs: &[Pair<'a>],
        stage: Stage,
        out: &mut TextWriter,
    ) -> Result<Vec<(Key, &'a str)>, NegotiationError> {
        self.declare(pairs, stage)?;
        let mut security = Vec::new();
        // FirstBurstLength depends on three other keys: it is looked at last.
        let mut ordered = pairs.to_vec();
        ordered.sort_by_key(|pair| Key::from_name(pair.key) == Some(Key::FirstBurstLength));
        for Pair { key: name, value } in ordered {
            let Some(key) = Key::from_name(name) else {
                //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
                //# However, the answer for a key that is not understood MUST be key=NotUnderstood.
                // An answer of that kind to a key we never sent needs no answer.
                if value != NOT_UNDERSTOOD {
                    out.push(name, NOT_UNDERSTOOD);
                }
                continue;
            };
            if self.is_ours(key) && is_refusal(value) {
                continue; // the peer has no use for what we declared
            }
            self.check_admissible(key, stage)?;
            match key.spec().rule {
                Rule::Security => security.push((key, value)),
                Rule::DeclareText => {} // taken
                Rule::DeclareNumber(min, max) => {
                    self.declare_number(key, value, (min, max), out)?;
                }
                _ => self.negotiate(key, value, out)?,
            }
        }
        Ok(security)
    }

    /// Ends the negotiation with what was agreed on.
    ///
    /// # Errors
    /// [`NegotiationError::NoCommonValue`] if a digest we insist on was never negotiated.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
    //# Negotiations MUST be handled as atomic operations.
    pub fn finish(&self) -> Result<(SessionParams, ConnectionParams), NegotiationError> {
        for (key, preference, agreed) in [
            (Key::HeaderDigest, self.offer.header_digest, self.connection.header_digest),
            (Key::DataDigest, self.offer.data_digest, self.connection.data_digest),
        ] {
            if !preference.kinds().contains(&agreed) {
                return Err(NegotiationError::NoCommonValue { key });
            }
        }
        let mut session = self.session;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-13.14
        //# FirstBurstLength MUST NOT exceed MaxBurstLength.
        // The default of one may exceed the agreed value of the other.
        session.first_burst_length = session.first_burst_length.min(session.max_burst_length);
        //= https://www.rfc-editor.org/rfc/rfc7143#section-13.19
        //# For this reason, if ErrorRecoveryLevel is not 0 and DataSequenceInOrder is set to Yes,
        //# then MaxOutstandingR2T MUST be set to 1.
        // Both sides know all three values, whatever order they were said in.
        if session.error_recovery_level > 0 && session.data_sequence_in_order {
            session.max_outstanding_r2t = 1;
        }
        Ok((session, self.connection))
    }

    /// A key that only our role sends.
    fn is_ours(&self, key: Key) -> bool {
        matches!(
            (key.spec().sender, self.role),
            (Sender::Initiator, Role::Initiator) | (Sender::Target, Role::Target)
        )
    }

    /// Whether the peer may send this key now.
    fn check_admissible(&self, key: Key, stage: Stage) -> Result<(), NegotiationError> {
        if self.is_ours(key) {
            return Err(NegotiationError::WrongSender { key });
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-12
        //# Other keys MUST NOT be used.
        let admissible = match key.spec().stage {
            // Some initiators skip the security stage and say AuthMethod=None in the next, which
            // they must not. It changes nothing there, so a target answers it and goes on.
            _ if key == Key::AuthMethod && self.role == Role::Target => {
                stage != Stage::FULL_FEATURE_PHASE
            }
            When::Security => stage == Stage::SECURITY_NEGOTIATION,
            When::Operational => stage == Stage::LOGIN_OPERATIONAL_NEGOTIATION,
            When::Login => stage != Stage::FULL_FEATURE_PHASE,
            When::Always => true,
            When::FullFeature => stage == Stage::FULL_FEATURE_PHASE,
        };
        if admissible { Ok(()) } else { Err(NegotiationError::WrongStage { key, stage }) }
    }

    fn declare_text(&mut self, key: Key, value: &str) -> Result<(), NegotiationError> {
        if value.len() > TEXT_VALUE_MAX {
            return Err(NegotiationError::InvalidValue { key, value: value.to_owned() });
        }
        let place = match key {
            Key::InitiatorName => &mut self.declared.initiator_name,
            Key::TargetName => &mut self.declared.target_name,
            Key::InitiatorAlias | Key::TargetAlias => &mut self.declared.alias,
            Key::TargetAddress => &mut self.declared.target_address,
            Key::SessionType => {
                self.discovery = match value {
                    "Discovery" => true,
                    "Normal" => false,
                    _ => {
                        return Err(NegotiationError::InvalidValue {
                            key,
                            value: value.to_owned(),
                        });
                    }
                };
                &mut self.declared.session_type
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-13.26.2
            //# Functional behavior of the iSCSI node (this includes the iSCSI protocol logic -- the
            //# SCSI, iSCSI, and TCP/IP protocols) MUST NOT depend on the presence, absence, or
            //# content of the X#NodeArchitecture key.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-13.26.2
            //# The key MUST NOT be used by iSCSI nodes for interoperability or for exclusion of
            //# other nodes.
            // SendTargets has its own place (`keys::send_targets`), the rest is of no use to us.
            _ => return Ok(()),
        };
        //= https://www.rfc-editor.org/rfc/rfc7143#section-13.4
        //# The TargetName MUST NOT be redeclared within the Login Phase.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-13.5
        //# The InitiatorName MUST NOT be redeclared within the Login Phase.
        // Initiators repeat their names at the start of each stage; a change is an error.
        if place.as_deref().is_some_and(|before| before != value) {
            return Err(NegotiationError::Repeated { key });
        }
        *place = Some(value.to_owned());
        Ok(())
    }

    fn declare_number(
        &mut self,
        key: Key,
        value: &str,
        range: (u32, u32),
        out: &mut TextWriter,
    ) -> Result<(), NegotiationError> {
        if is_refusal(value) {
            // The peer does not take our declaration: it will send less than we could take.
            return Ok(());
        }
        let invalid = NegotiationError::InvalidValue { key, value: value.to_owned() };
        let Some(number) = parse_in_range(value, range) else {
            if key == Key::MaxRecvDataSegmentLength {
                out.push(key.name(), REJECT);
                return Ok(());
            }
            return Err(invalid);
        };
        if key == Key::TargetPortalGroupTag {
            let tag = u16::try_from(number).map_err(|_| invalid)?;
            if self.declared.portal_group_tag.is_some_and(|before| before != tag) {
                return Err(NegotiationError::Repeated { key });
            }
            self.declared.portal_group_tag = Some(tag);
            return Ok(());
        }
        let place = &mut self.progress[key as usize];
        if *place == Progress::Done && self.connection.max_send_data_segment_length != number {
            return Err(NegotiationError::Repeated { key });
        }
        *place = Progress::Done;
        self.connection.max_send_data_segment_length = number;
        Ok(())
    }

    /// Handles a key that both sides have a say in.
    fn negotiate(
        &mut self,
        key: Key,
        value: &str,
        out: &mut TextWriter,
    ) -> Result<(), NegotiationError> {
        let spec = key.spec();
        match self.progress[key as usize] {
            Progress::Offered => {
                self.progress[key as usize] = Progress::Done;
                return self.take_answer(key, value);
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
            //# An attempt to renegotiate/redeclare parameters not specifically allowed MUST be
            //# detected by the initiator and target.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
            //# Neither the initiator nor the target should attempt to declare or negotiate a
            //# parameter more than once during login, except for responses to specific keys that
            //# explicitly allow repeated key declarations (e.g., TargetAddress).
            Progress::Done => return Err(NegotiationError::Repeated { key }),
            Progress::Untouched => {}
        }
        self.progress[key as usize] = Progress::Done;
        // Keys that mean nothing in a discovery session are answered as in any other. "Irrelevant"
        // would be right, too (§6.2), but there are initiators that end the login over it.
        match (spec.scope, self.place) {
            (Scope::Leading, Place::Later | Place::Joining) => {
                self.answer_on_later_connection(key, out);
                Ok(())
            }
            _ => self.answer(key, value, out),
        }
    }

    /// Answers an offer of the peer.
    fn answer(
        &mut self,
        key: Key,
        value: &str,
        out: &mut TextWriter,
    ) -> Result<(), NegotiationError> {
        let name = key.name();
        match key.spec().rule {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.2
            //# For simple-value negotiations, the accepting party MUST answer with the same key.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.2
            //# Proposing a value not admissible (e.g., not within the specified bounds) MAY be
            //# answered with the constant "Reject"; otherwise, the acceptor MUST select an
            //# admissible value.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.2
            //# For a numerical range, the value selected MUST be an integer within the proposed
            //# range or "Reject" (if the range is unacceptable).
            Rule::Min(min, max) | Rule::Max(min, max) => {
                let Some(theirs) = parse_in_range(value, (min, max)) else {
                    out.push(name, REJECT);
                    return Ok(());
                };
                let ours = self.want(key);
                let agreed = match key.spec().rule {
                    Rule::Max(..) => theirs.max(ours),
                    _ => theirs.min(ours),
                };
                self.agree(key, agreed);
                out.push(name, agreed);
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.2
            //# For Boolean negotiations (i.e., keys taking the values "Yes" or "No"), the accepting
            //# party MUST answer with the same key and the result of the negotiation when the
            //# received value does not determine that result by itself.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.2
            //# Responses are REQUIRED in all other cases, and the value chosen and sent by the
            //# acceptor becomes the outcome of the negotiation.
            rule @ (Rule::And | Rule::Or) => {
                let Some(theirs) = parse_bool(value) else {
                    out.push(name, REJECT);
                    return Ok(());
                };
                let ours = self.offer.session.flag(key);
                let agreed = if rule == Rule::And { theirs && ours } else { theirs || ours };
                self.session.set_flag(key, agreed);
                out.push(name, bool_str(agreed));
            }
            Rule::List => self.answer_list(key, value, out)?,
            //= https://www.rfc-editor.org/rfc/rfc7143#section-13.25
            //# However, the implementation MUST NOT respond with a "NotUnderstood" value for either
            //# of these keys.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-13.25
            //# When an IFMarkInt or OFMarkInt key is received, a compliant iSCSI implementation
            //# MUST respond with the constant "Reject" value.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-13.25
            //# The implementation MUST NOT respond with a "NotUnderstood" value for either of these
            //# keys.
            Rule::Marker => out.push(name, "No"),
            _ => out.push(name, REJECT),
        }
        Ok(())
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.1
    //# The responding party MUST respond with the same key and the first value that it supports
    //# (and is allowed to use for the specific originator) selected from the originator list.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.1
    //# If an acceptor does not understand any particular value in a list, it MUST ignore it.
    fn answer_list(
        &mut self,
        key: Key,
        value: &str,
        out: &mut TextWriter,
    ) -> Result<(), NegotiationError> {
        let mut values = value.split(',');
        let Some(preference) = self.digest_preference(key) else {
            let best = self.offer.session.task_reporting;
            let agreed = values.find_map(|v| TaskReporting::from_wire(v).filter(|v| *v <= best));
            self.session.task_reporting = agreed.unwrap_or_default();
            out.push(key.name(), agreed.map_or(REJECT, TaskReporting::as_str));
            return Ok(());
        };
        let kinds = preference.kinds();
        let agreed = values
            .find_map(|value| kinds.iter().copied().find(|kind| kind.as_str() == value))
            .ok_or(NegotiationError::NoCommonValue { key })?;
        self.agree_digest(key, agreed);
        out.push(key.name(), agreed.as_str());
        Ok(())
    }

    /// Takes the peer's answer to our offer; anything but a value the offer allows is an error.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
    //# All negotiations are explicit (i.e., the result MUST only be based on newly exchanged or
    //# declared values).
    //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.1
    //# The selection of a value not proposed MUST be handled by the originator as a protocol error.
    fn take_answer(&mut self, key: Key, value: &str) -> Result<(), NegotiationError> {
        if is_refusal(value) {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
            //# A proposer of an iSCSI key, negotiated or declarative, in a text key exchange MUST
            //# thus be able to properly handle a NotUnderstood response.
            // The default holds; `finish` fails if that is a digest we cannot live with.
            return Ok(());
        }
        let illegal = NegotiationError::IllegalAnswer { key, value: value.to_owned() };
        match key.spec().rule {
            Rule::Min(min, max) => {
                let max = max.min(self.want(key));
                let agreed = parse_in_range(value, (min, max)).ok_or(illegal)?;
                self.agree(key, agreed);
            }
            Rule::Max(min, max) => {
                let min = min.max(self.want(key));
                let agreed = parse_in_range(value, (min, max)).ok_or(illegal)?;
                self.agree(key, agreed);
            }
            rule @ (Rule::And | Rule::Or) => {
                let agreed = parse_bool(value).ok_or(illegal.clone())?;
                let ours = self.offer.session.flag(key);
                // Who said No to AND, or Yes to OR, has decided it.
                if ours == (rule == Rule::Or) && agreed != ours {
                    return Err(illegal);
                }
                self.session.set_flag(key, agreed);
            }
            Rule::List if key == Key::TaskReporting => {
                let best = self.offer.session.task_reporting;
                let agreed = TaskReporting::from_wire(value).filter(|agreed| *agreed <= best);
                self.session.task_reporting = agreed.ok_or(illegal)?;
            }
            _ => {
                let kinds = self.digest_preference(key).map_or(&[][..], DigestPreference::kinds);
                let agreed =
                    kinds.iter().copied().find(|kind| kind.as_str() == value).ok_or(illegal)?;
                self.agree_digest(key, agreed);
            }
        }
        Ok(())
    }

    fn digest_preference(&self, key: Key) -> Option<DigestPreference> {
        match key {
            Key::HeaderDigest => Some(self.offer.header_digest),
            Key::DataDigest => Some(self.offer.data_digest),
            _ => None,
        }
    }

    fn agree_digest(&mut self, key: Key, kind: DigestKind) {
        if key == Key::HeaderDigest {
            self.connection.header_digest = kind;
        } else {
            self.connection.data_digest = kind;
        }
    }

    /// Our value for a number.
    fn want(&self, key: Key) -> u32 {
        match key {
            // There is nothing to recover in a session that only asks for targets.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.4.1
            //# When such a negotiation attempt is made by the remote side, a compliant iSCSI
            //# implementation MUST propose a value of 0 (zero) in response.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.4.1
            //# The operational ErrorRecoveryLevel for Discovery sessions thus MUST be 0.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-13.21
            //# As Section 7.4.1 states, ErrorRecoveryLevel MUST be 0 (zero) for Discovery sessions.
            Key::ErrorRecoveryLevel if self.discovery => 0,
            Key::MaxConnections if self.discovery => 1, // one is enough to ask on
            // Never more than one burst: what we would say of MaxBurstLength, or have agreed on.
            Key::FirstBurstLength => {
                let burst = self.offer.session.max_burst_length;
                let agreed = self.progress[Key::MaxBurstLength as usize] == Progress::Done;
                let burst = if agreed { burst.min(self.session.max_burst_length) } else { burst };
                self.offer.session.first_burst_length.min(burst)
            }
            _ => self.offer.session.number(key),
        }
    }

    fn agree(&mut self, key: Key, value: u32) {
        self.session.set_number(key, value);
    }
}
