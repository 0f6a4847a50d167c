//! Security negotiation as the target sees it: AuthMethod, then CHAP_A, then the proof (RFC 7143
//! §12.1).

use super::super::chap::{
    Algorithm, ChapCredentials, ChapError, ChapRandom, Secret, check_secrets_differ,
    parse_challenge, parse_identifier, parse_response,
};
use super::super::security::{SecurityKeys, required};
use super::{FailureReason, LoginFailure};
use crate::keys::text::TextWriter;
use crate::keys::value::format_binary;

/// What an initiator has to prove.
#[derive(Clone, Debug, Default)]
pub enum Authentication {
    /// Nothing.
    #[default]
    None,
    /// A secret, by CHAP.
    Chap {
        /// Algorithms allowed.
        algorithms: Vec<Algorithm>,
        /// How we prove ourselves, if an initiator asks us to.
        mutual: Option<ChapCredentials>,
    },
}

/// The message that is expected next.
#[derive(Clone, Debug)]
enum Expected {
    /// AuthMethod.
    Method,
    /// CHAP_A.
    Algorithms,
    /// CHAP_N and CHAP_R, and CHAP_I and CHAP_C if it wants a proof of ours.
    Response(Algorithm),
    /// Nothing more; the user who proved its identity, if any.
    Nothing(Option<String>),
}

/// Security negotiation of one login.
#[derive(Clone, Debug)]
pub(super) struct Security {
    expected: Expected,
    random: ChapRandom,
}

impl Security {
    pub(super) fn new(random: ChapRandom) -> Self {
        Self { expected: Expected::Method, random }
    }

    /// All that is demanded was proved.
    pub(super) fn is_satisfied(&self, demanded: &Authentication) -> bool {
        match self.expected {
            Expected::Nothing(_) => true,
            Expected::Method => matches!(demanded, Authentication::None),
            Expected::Algorithms | Expected::Response(_) => false,
        }
    }

    /// Nothing was said yet of how to authenticate.
    pub(super) fn is_untouched(&self) -> bool {
        matches!(self.expected, Expected::Method)
    }

    /// Who proved its identity.
    pub(super) fn user(&self) -> Option<&str> {
        match &self.expected {
            Expected::Nothing(user) => user.as_deref(),
            _ => None,
        }
    }

    /// Handles the security keys of one text and writes the answers. `secret` looks a user up.
    pub(super) fn handle(
        &mut self,
        keys: SecurityKeys<'_>,
        demanded: &Authentication,
        secret: impl FnOnce(&str) -> Option<Secret>,
        out: &mut TextWriter,
    ) -> Result<(), LoginFailure> {
        if let Some(offered) = keys.auth_method {
            self.choose_method(offered, demanded, out)?;
        }
        let (Authentication::Chap { algorithms, mutual }, true) = (demanded, keys.has_chap())
        else {
            // CHAP keys that nobody asked for.
            return if keys.has_chap() { Err(invalid("CHAP_A")) } else { Ok(()) };
        };
        match self.expected {
            Expected::Algorithms => self.send_challenge(keys, algorithms, out),
            Expected::Response(algorithm) => {
                self.check_response(keys, algorithm, mutual.as_ref(), secret, out)
            }
            Expected::Method => Err(missing("AuthMethod")),
            Expected::Nothing(_) => Err(invalid("CHAP_A")),
        }
    }

    fn choose_method(
        &mut self,
        offered: &str,
        demanded: &Authentication,
        out: &mut TextWriter,
    ) -> Result<(), LoginFailure> {
        if !self.is_untouched() {
            return Err(invalid("AuthMethod"));
        }
        let (method, next) = match demanded {
            Authentication::None => ("None", Expected::Nothing(None)),
            Authentication::Chap { .. } => ("CHAP", Expected::Algorithms),
        };
        if !offered.split(',').any(|item| item == method) {
            let reason = FailureReason::AuthMethod { offered: offered.to_owned(), method };
            return Err(reason.into());
        }
        out.push("AuthMethod", method);
        self.expected = next;
        Ok(())
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-12.1.3
    //# The target MUST answer with a Login reject with the "Authentication Failure" status or reply
    //# with:
    fn send_challenge(
        &mut self,
        keys: SecurityKeys<'_>,
        algorithms: &[Algorithm],
        out: &mut TextWriter,
    ) -> Result<(), LoginFailure> {
        let offered = required(keys.chap_a, "CHAP_A")?;
        if keys.chap_n.is_some() || keys.chap_r.is_some() {
            // A response before the challenge was sent was not computed from it.
            return Err(invalid("CHAP_R"));
        }
        let algorithm = Algorithm::choose(offered, algorithms)
            .ok_or_else(|| ChapError::Algorithm { offered: offered.to_owned() })?;
        out.push("CHAP_A", algorithm.number());
        out.push("CHAP_I", self.random.identifier);
        out.push("CHAP_C", format_binary(&self.random.challenge));
        self.expected = Expected::Response(algorithm);
        Ok(())
    }

    fn check_response(
        &mut self,
        keys: SecurityKeys<'_>,
        algorithm: Algorithm,
        mutual: Option<&ChapCredentials>,
        secret: impl FnOnce(&str) -> Option<Secret>,
        out: &mut TextWriter,
    ) -> Result<(), LoginFailure> {
        if keys.chap_a.is_some() {
            return Err(invalid("CHAP_A"));
        }
        let user = required(keys.chap_n, "CHAP_N")?;
        let response = parse_response(required(keys.chap_r, "CHAP_R")?, algorithm)?;
        let ChapRandom { identifier, challenge } = &self.random;
        let secret = secret(user);
        if !algorithm.verify(*identifier, secret.as_ref(), challenge, &response) {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-12.1.3
            //# If the initiator authentication fails, the target MUST answer with a Login reject
            //# with "Authentication Failure" status.
            return Err(ChapError::Failed { user: user.to_owned() }.into());
        }
        if keys.chap_i.is_some() || keys.chap_c.is_some() {
            let theirs = parse_identifier(required(keys.chap_i, "CHAP_I")?)?;
            let their_challenge = parse_challenge(required(keys.chap_c, "CHAP_C")?, challenge)?;
            //= https://www.rfc-editor.org/rfc/rfc7143#section-12.1.3
            //# Otherwise, if the initiator required target authentication, the target MUST either
            //# answer with a Login reject with "Authentication Failure" or reply with:
            let ours = mutual.ok_or(ChapError::NotMutual)?;
            if let Some(secret) = &secret {
                check_secrets_differ(secret, &ours.secret)?;
            }
            let proof = algorithm.respond(theirs, &ours.secret, &their_challenge);
            out.push("CHAP_N", &ours.user);
            out.push("CHAP_R", format_binary(&proof));
        }
        self.expected = Expected::Nothing(Some(user.to_owned()));
        Ok(())
    }
}

/// Answers an AuthMethod that came in the operational stage, where authentication is over or was
/// not needed: what is none is agreed to, where none is demanded. Nothing changes by it.
pub(super) fn answer_late_method(
    keys: SecurityKeys<'_>,
    demanded: &Authentication,
    out: &mut TextWriter,
) {
    let Some(offered) = keys.auth_method else { return };
    let none = offered.split(',').any(|item| item == "None");
    let agreed = none && matches!(demanded, Authentication::None);
    out.push("AuthMethod", if agreed { "None" } else { "Reject" });
}

fn invalid(key: &'static str) -> LoginFailure {
    ChapError::Invalid { key }.into()
}

fn missing(key: &'static str) -> LoginFailure {
    ChapError::Missing { key }.into()
}
