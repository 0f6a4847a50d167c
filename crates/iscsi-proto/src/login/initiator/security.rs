//! Security negotiation as the initiator sees it (RFC 7143 §12.1): one struct per message that is
//! expected.

use super::super::chap::{
    Algorithm, ChapCredentials, ChapError, ChapRandom, parse_challenge, parse_identifier,
    parse_response,
};
use super::super::security::{SecurityKeys, required};
use super::LoginError;
use crate::keys::text::TextWriter;
use crate::keys::value::{format_binary, parse_number};

/// What we prove, and what we want proved.
#[derive(Clone, Debug)]
pub(super) struct Chap {
    pub(super) ours: ChapCredentials,
    pub(super) theirs: Option<ChapCredentials>,
    /// Who wants no proof of ours may have it its way.
    pub(super) optional: bool,
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) random: ChapRandom,
}

/// The message that is expected next.
#[derive(Clone, Debug)]
pub(super) enum Expected {
    /// AuthMethod=None: we have nothing to prove and want no proof.
    NoProof,
    /// AuthMethod.
    Method(Chap),
    /// CHAP_A, CHAP_I and CHAP_C.
    Challenge(Chap),
    /// CHAP_N and CHAP_R: the target's proof.
    Proof(Chap, Algorithm),
    /// Nothing more.
    Nothing(Proved),
}

/// What the exchange came to.
#[derive(Clone, Debug, Default)]
pub(super) struct Proved {
    /// The algorithm of our proof; `None` if the target wanted none.
    pub(super) algorithm: Option<Algorithm>,
    /// The target's user name, if it has proved who it is.
    pub(super) user: Option<String>,
}

impl Expected {
    /// Writes AuthMethod.
    pub(super) fn start(chap: Option<Chap>, out: &mut TextWriter) -> Self {
        let Some(chap) = chap else {
            out.push("AuthMethod", "None");
            return Self::NoProof;
        };
        // Whoever answers in the target's place would choose "None" and have our data.
        out.push("AuthMethod", if chap.optional { "CHAP,None" } else { "CHAP" });
        Self::Method(chap)
    }

    /// Handles the target's keys and writes what follows.
    pub(super) fn handle(
        self,
        keys: SecurityKeys<'_>,
        out: &mut TextWriter,
    ) -> Result<Self, LoginError> {
        match self {
            // "None" is the default: a target that does not mention it has agreed (§12.1).
            Self::NoProof if !keys.has_chap() => match keys.auth_method {
                None | Some("None") => Ok(Self::Nothing(Proved::default())),
                Some(answer) => Err(LoginError::AuthMethod { answer: answer.to_owned() }),
            },
            Self::NoProof => Err(ChapError::Invalid { key: "CHAP_A" }.into()),
            Self::Method(chap) => handle_method(chap, keys, out),
            Self::Challenge(chap) => Ok(handle_challenge(chap, keys, out)?),
            Self::Proof(chap, algorithm) => Ok(handle_proof(chap, algorithm, keys)?),
            Self::Nothing(_) if keys.has_chap() || keys.auth_method.is_some() => {
                Err(ChapError::Invalid { key: "CHAP_R" }.into())
            }
            this @ Self::Nothing(_) => Ok(this),
        }
    }

    /// We are ready to leave the stage: the target's proof, if any, may come with its agreement.
    pub(super) fn may_ask_for_transit(&self) -> bool {
        matches!(self, Self::NoProof | Self::Proof(..) | Self::Nothing(_))
    }
}

fn handle_method(
    chap: Chap,
    keys: SecurityKeys<'_>,
    out: &mut TextWriter,
) -> Result<Expected, LoginError> {
    if keys.has_chap() {
        return Err(ChapError::Invalid { key: "CHAP_A" }.into());
    }
    match keys.auth_method {
        Some("CHAP") => {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-12.1
            //# However, the initiator MUST make the first step specific to the selected
            //# authentication method as soon as it is selected.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-12.1.3
            //# For CHAP [RFC1994], the initiator MUST use:
            out.push("CHAP_A", Algorithm::list(&chap.algorithms));
            Ok(Expected::Challenge(chap))
        }
        Some("None") if chap.optional => Ok(Expected::Nothing(Proved::default())),
        //= https://www.rfc-editor.org/rfc/rfc7143#section-9.2
        //# Whenever an iSCSI initiator gets a response whose keys, or their values, are not
        //# according to the step definition, it MUST abort the connection.
        answer => Err(LoginError::AuthMethod { answer: answer.unwrap_or_default().to_owned() }),
    }
}

fn handle_challenge(
    chap: Chap,
    keys: SecurityKeys<'_>,
    out: &mut TextWriter,
) -> Result<Expected, ChapError> {
    let chosen = required(keys.chap_a, "CHAP_A")?;
    // One of ours, and only one.
    let algorithm = parse_number(chosen)
        .and_then(|number| {
            chap.algorithms.iter().copied().find(|a| u64::from(a.number()) == number)
        })
        .ok_or_else(|| ChapError::Algorithm { offered: chosen.to_owned() })?;
    let identifier = parse_identifier(required(keys.chap_i, "CHAP_I")?)?;
    let challenge = parse_challenge(required(keys.chap_c, "CHAP_C")?, &chap.random.challenge)?;
    if keys.chap_n.is_some() || keys.chap_r.is_some() {
        return Err(ChapError::Invalid { key: "CHAP_R" });
    }
    //= https://www.rfc-editor.org/rfc/rfc7143#section-12.1.3
    //# The initiator MUST continue with:
    out.push("CHAP_N", &chap.ours.user);
    out.push(
        "CHAP_R",
        format_binary(&algorithm.respond(identifier, &chap.ours.secret, &challenge)),
    );
    if chap.theirs.is_none() {
        return Ok(Expected::Nothing(Proved { algorithm: Some(algorithm), user: None }));
    }
    out.push("CHAP_I", chap.random.identifier);
    out.push("CHAP_C", format_binary(&chap.random.challenge));
    Ok(Expected::Proof(chap, algorithm))
}

fn handle_proof(
    chap: Chap,
    algorithm: Algorithm,
    keys: SecurityKeys<'_>,
) -> Result<Expected, ChapError> {
    let user = required(keys.chap_n, "CHAP_N")?;
    let proof = parse_response(required(keys.chap_r, "CHAP_R")?, algorithm)?;
    // `theirs` is set in this state; without it nothing can be proved.
    let secret = chap.theirs.as_ref().filter(|theirs| theirs.user == user);
    let ChapRandom { identifier, challenge } = &chap.random;
    if !algorithm.verify(*identifier, secret.map(|theirs| &theirs.secret), challenge, &proof) {
        //= https://www.rfc-editor.org/rfc/rfc7143#section-12.1.3
        //# If the target authentication fails, the initiator MUST close the connection:
        return Err(ChapError::Failed { user: user.to_owned() });
    }
    Ok(Expected::Nothing(Proved { algorithm: Some(algorithm), user: Some(user.to_owned()) }))
}
