//! One login as a conversation that a check can lead astray at any point, and the ordinary one.

use bytes::Bytes;
use iscsi_proto::ids::{Cid, Isid, Itt, Tsih};
use iscsi_proto::keys::text::parse;
use iscsi_proto::keys::value::{format_binary, parse_binary, parse_number};
use iscsi_proto::login::chap::{Algorithm, CHALLENGE_MAX, ChapCredentials};
use iscsi_proto::pdu::{Header, LoginRequest, LoginResponse, LoginStatus, Pdu, Stage, VERSION};
use iscsi_proto::serial::{CmdSn, StatSn};

use crate::context::Context;
use crate::offer::{Agreed, Offer, find};
use crate::verdict::{Stop, ensure, failed};
use crate::wire::{Received, Wire};

/// Requests after which a login that gets nowhere is given up.
const REQUESTS_MAX: usize = 20;

/// Keys and values.
pub(crate) type Pairs = Vec<(String, String)>;

/// What came as an answer.
#[derive(Debug)]
pub(crate) enum Answer {
    Response(LoginResponse, Pairs),
    Other(Header),
    Closed,
    Nothing,
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Response(response, _) if response.status.is_success() => {
                write!(f, "a Login Response with success")
            }
            Self::Response(response, _) => {
                write!(f, "a Login Response with status {:#06x}", response.status.0)
            }
            Self::Other(header) => write!(f, "{}", header.opcode()),
            Self::Closed => f.write_str("a closed connection"),
            Self::Nothing => f.write_str("nothing"),
        }
    }
}

/// A login under way.
pub(crate) struct Dialogue<'a> {
    context: &'a Context,
    pub(crate) wire: Wire,
    pub(crate) isid: Isid,
    pub(crate) tsih: Tsih,
    pub(crate) cid: Cid,
    pub(crate) itt: Itt,
    pub(crate) cmd_sn: CmdSn,
    /// What ExpStatSN is sent: 0 before the first response.
    pub(crate) exp_stat_sn: StatSn,
    /// Every response, for checks of their fields.
    pub(crate) responses: Vec<(LoginResponse, Pairs)>,
}

/// A connection in full-feature phase.
pub(crate) struct LoggedIn {
    pub(crate) wire: Wire,
    pub(crate) agreed: Agreed,
    pub(crate) exp_stat_sn: StatSn,
    /// Every response, the last one final.
    pub(crate) responses: Vec<(LoginResponse, Pairs)>,
}

impl LoggedIn {
    /// The answer to a key, in whichever response it came.
    pub(crate) fn answer(&self, key: &str) -> Option<&str> {
        self.responses.iter().find_map(|(_, pairs)| find(pairs, key))
    }

    /// The final response.
    pub(crate) fn last(&self) -> Result<&LoginResponse, Stop> {
        match self.responses.last() {
            Some((response, _)) => Ok(response),
            None => failed("no Login Response"),
        }
    }
}

/// How a login ended.
pub(crate) enum Login {
    In(Box<LoggedIn>),
    Out(Answer),
}

impl Login {
    /// It must have succeeded.
    pub(crate) fn established(self) -> Result<LoggedIn, Stop> {
        match self {
            Self::In(logged_in) => Ok(*logged_in),
            Self::Out(answer) => failed(format!("an ordinary login was answered with {answer}")),
        }
    }
}

impl<'a> Dialogue<'a> {
    /// A connection for a new session.
    pub(crate) fn new(context: &'a Context) -> Result<Self, Stop> {
        Self::with(context, context.new_isid(), Tsih(0), Cid(0), CmdSn(1))
    }

    /// A connection with these names.
    pub(crate) fn with(
        context: &'a Context,
        isid: Isid,
        tsih: Tsih,
        cid: Cid,
        cmd_sn: CmdSn,
    ) -> Result<Self, Stop> {
        let wire = Wire::connect(&context.config.addresses, context.timeout())?;
        let (itt, exp_stat_sn, responses) = (Itt(0x1091), StatSn(0), Vec::new());
        Ok(Self { context, wire, isid, tsih, cid, itt, cmd_sn, exp_stat_sn, responses })
    }

    /// A request that stays in its stage, or asks for the next one.
    pub(crate) fn request(&self, csg: Stage, nsg: Option<Stage>) -> LoginRequest {
        LoginRequest {
            transit: nsg.is_some(),
            continues: false,
            csg,
            nsg: nsg.unwrap_or(Stage(0)),
            version_max: VERSION,
            version_min: VERSION,
            isid: self.isid,
            tsih: self.tsih,
            itt: self.itt,
            cid: self.cid,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        }
    }

    /// From the operational stage to full-feature phase.
    pub(crate) fn final_request(&self) -> LoginRequest {
        self.request(Stage::LOGIN_OPERATIONAL_NEGOTIATION, Some(Stage::FULL_FEATURE_PHASE))
    }

    pub(crate) fn send(&mut self, request: &LoginRequest, pairs: &[(String, String)]) -> Sent {
        self.send_text(request, &text(pairs))
    }

    pub(crate) fn send_text(&mut self, request: &LoginRequest, text: &[u8]) -> Sent {
        self.wire.send(&request.encode(text.len() as u32), text)
    }

    /// The answer to a request.
    pub(crate) fn answer(&mut self) -> Result<Answer, Stop> {
        let (header, data) = match self.wire.receive(self.context.timeout())? {
            Received::Pdu(header, data) => (header, data),
            Received::Closed => return Ok(Answer::Closed),
            Received::Nothing => return Ok(Answer::Nothing),
        };
        match Pdu::parse(&header) {
            Ok(Pdu::LoginResponse(response)) => {
                let pairs = pairs(&data)?;
                self.exp_stat_sn = response.stat_sn.next();
                self.responses.push((response.clone(), pairs.clone()));
                Ok(Answer::Response(response, pairs))
            }
            Ok(_) => Ok(Answer::Other(header)),
            Err(error) => failed(format!("during login: {error}")),
        }
    }

    /// A request and the response to it, which must not refuse.
    pub(crate) fn exchange(
        &mut self,
        request: &LoginRequest,
        pairs: &[(String, String)],
    ) -> Result<Result<(LoginResponse, Pairs), Answer>, Stop> {
        self.send(request, pairs)?;
        Ok(match self.answer()? {
            Answer::Response(response, pairs) if response.status.is_success() => {
                Ok((response, pairs))
            }
            answer => Err(answer),
        })
    }

    /// Who we are and whom we want, for the first request.
    pub(crate) fn names(&self, discovery: bool) -> Pairs {
        let config = &self.context.config;
        let mut pairs = vec![("InitiatorName".into(), config.initiator_name.clone())];
        if discovery {
            pairs.push(("SessionType".into(), "Discovery".into()));
        } else {
            pairs.push(("SessionType".into(), "Normal".into()));
            pairs.push(("TargetName".into(), config.target.clone()));
        }
        pairs
    }

    /// Goes through the security stage, as initiators do: there are targets (tgt) that know no
    /// other place to look a session up.
    pub(crate) fn leave_security(&mut self, discovery: bool) -> Result<Result<(), Answer>, Stop> {
        let names = self.names(discovery);
        self.leave_security_as(names)
    }

    /// Goes through the security stage under other names.
    pub(crate) fn leave_security_as(
        &mut self,
        mut names: Pairs,
    ) -> Result<Result<(), Answer>, Stop> {
        if let Some(credentials) = self.context.config.credentials.clone() {
            return self.prove(&credentials, names);
        }
        names.push(("AuthMethod".into(), "None".into()));
        let next = Some(Stage::LOGIN_OPERATIONAL_NEGOTIATION);
        let request = self.request(Stage::SECURITY_NEGOTIATION, next);
        match self.exchange(&request, &names)? {
            Ok((response, _)) if response.transit => Ok(Ok(())),
            Ok(_) => failed("the target does not leave the security stage with AuthMethod=None"),
            Err(answer) => Ok(Err(answer)),
        }
    }

    /// The same for a check that cannot go on without.
    pub(crate) fn must_leave_security(&mut self) -> Result<(), Stop> {
        match self.leave_security(false)? {
            Ok(()) => Ok(()),
            Err(answer) => failed(format!("the security stage got {answer}")),
        }
    }

    fn prove(&mut self, who: &ChapCredentials, names: Pairs) -> Result<Result<(), Answer>, Stop> {
        let stage = Stage::SECURITY_NEGOTIATION;
        // Discovery may be open where the targets are not.
        let is_discovery = find(&names, "SessionType") == Some("Discovery");
        let methods = if is_discovery { "CHAP,None" } else { "CHAP" };
        let mut first = names;
        first.push(("AuthMethod".into(), methods.into()));
        let answer = self.exchange(&self.request(stage, None), &first)?;
        let pairs = match answer {
            Ok((_, pairs)) => pairs,
            Err(answer) => return Ok(Err(answer)),
        };
        let mut proof = Vec::new();
        if find(&pairs, "AuthMethod") == Some("CHAP") {
            let list = Algorithm::list(&Algorithm::OFFERED);
            let request = self.request(stage, None);
            match self.exchange(&request, &[("CHAP_A".into(), list)])? {
                Ok((_, pairs)) => proof = chap_response(who, &pairs)?,
                Err(answer) => return Ok(Err(answer)),
            }
        }
        let next = Some(Stage::LOGIN_OPERATIONAL_NEGOTIATION);
        match self.exchange(&self.request(stage, next), &proof)? {
            Ok((response, _)) if response.transit => Ok(Ok(())),
            Ok(_) => failed("the target stays in the security stage after the proof"),
            Err(answer) => Ok(Err(answer)),
        }
    }

    /// The rest of an ordinary login.
    pub(crate) fn log_in(mut self, discovery: bool, offer: &Offer) -> Result<Login, Stop> {
        match self.leave_security(discovery)? {
            Ok(()) => self.negotiate(offer.pairs().to_vec(), offer),
            Err(answer) => Ok(Login::Out(answer)),
        }
    }

    /// The operational stage, beginning with these pairs.
    pub(crate) fn negotiate(mut self, mut say: Pairs, offer: &Offer) -> Result<Login, Stop> {
        for _ in 0..REQUESTS_MAX {
            let (response, pairs) = match self.exchange(&self.final_request(), &say)? {
                Ok(response) => response,
                Err(answer) => return Ok(Login::Out(answer)),
            };
            if response.transit {
                return Ok(Login::In(Box::new(self.established(offer))));
            }
            say = unasked(&pairs, offer);
        }
        failed(format!("login goes on after {REQUESTS_MAX} requests"))
    }

    /// The final response has come.
    pub(crate) fn established(self, offer: &Offer) -> LoggedIn {
        let answers: Pairs = self.responses.iter().flat_map(|(_, pairs)| pairs.clone()).collect();
        let agreed = Agreed::new(offer, &answers);
        let Self { mut wire, exp_stat_sn, responses, .. } = self;
        wire.full_feature(agreed.framing, agreed.receive_max);
        LoggedIn { wire, agreed, exp_stat_sn, responses }
    }
}

type Sent = Result<(), Stop>;

/// What a login that breaks a rule must get: a Login Response of the initiator-error class, with
/// one of these statuses if there are any.
pub(crate) fn expect_refusal(answer: &Answer, allowed: &[LoginStatus]) -> Result<String, Stop> {
    let Answer::Response(response, _) = answer else {
        return failed(format!("answered with {answer}, not with a Login Response that refuses"));
    };
    let status = response.status;
    ensure(status.class() == 2, || format!("answered with {answer}, not with an initiator error"))?;
    ensure(allowed.is_empty() || allowed.contains(&status), || {
        let names: Vec<_> = allowed.iter().map(|s| format!("{:#06x}", s.0)).collect();
        format!("refused with status {:#06x}, not with {}", status.0, names.join(" or "))
    })?;
    Ok(format!("refused with status {:#06x}", status.0))
}

/// Pairs as text.
pub(crate) fn text(pairs: &[(String, String)]) -> Bytes {
    let lines: Vec<_> = pairs.iter().map(|(key, value)| format!("{key}={value}\0")).collect();
    lines.concat().into()
}

/// Text as pairs.
pub(crate) fn pairs(text: &[u8]) -> Result<Pairs, Stop> {
    match parse(text) {
        Ok(pairs) => Ok(pairs.iter().map(|p| (p.key.to_owned(), p.value.to_owned())).collect()),
        Err(error) => failed(format!("text of the target: {error}")),
    }
}

/// Answers to keys that the target offers of its own accord: what it says, or the default of
/// digests. Declarations get none.
fn unasked(pairs: &[(String, String)], offer: &Offer) -> Pairs {
    const DECLARED: &[&str] = &[
        "TargetAlias",
        "TargetAddress",
        "TargetPortalGroupTag",
        "MaxRecvDataSegmentLength",
        "InitiatorAlias",
    ];
    let ours = |key: &str| find(offer.pairs(), key).is_some() || DECLARED.contains(&key);
    let reserved = |value: &str| matches!(value, "NotUnderstood" | "Reject" | "Irrelevant");
    let open = pairs.iter().filter(|(key, value)| !ours(key) && !reserved(value));
    open.filter(|(key, _)| !matches!(key.as_str(), "AuthMethod" | "SessionType"))
        .map(|(key, value)| match key.as_str() {
            "HeaderDigest" | "DataDigest" => (key.clone(), "None".into()),
            _ => (key.clone(), value.clone()),
        })
        .collect()
}

fn chap_response(who: &ChapCredentials, pairs: &[(String, String)]) -> Result<Pairs, Stop> {
    let number = find(pairs, "CHAP_A").and_then(parse_number);
    let algorithm =
        Algorithm::ALL.into_iter().find(|algorithm| Some(algorithm.number().into()) == number);
    let identifier = find(pairs, "CHAP_I").and_then(parse_number);
    let identifier = identifier.and_then(|number| u8::try_from(number).ok());
    let challenge = find(pairs, "CHAP_C").and_then(|value| parse_binary(value, CHALLENGE_MAX));
    let (Some(algorithm), Some(identifier), Some(challenge)) = (algorithm, identifier, challenge)
    else {
        return failed("no usable CHAP_A, CHAP_I and CHAP_C came as challenge");
    };
    let response = algorithm.respond(identifier, &who.secret, &challenge);
    Ok(vec![("CHAP_N".into(), who.user.clone()), ("CHAP_R".into(), format_binary(&response))])
}
