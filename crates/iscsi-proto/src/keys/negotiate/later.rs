//! Later connections of a session (RFC 7143 §13): what the leading one agreed on holds for them,
//! and is the answer to whoever offers it again.

use super::Negotiation;
use crate::keys::params::SessionParams;
use crate::keys::table::{Key, Rule};
use crate::keys::text::TextWriter;
use crate::keys::value::{IRRELEVANT, REJECT, bool_str};

/// Which connection of its session this one is, and what is known of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The first: the session's values are negotiated on it.
    Leading,
    /// A later one of a session that nobody has told us of.
    Later,
    /// A later one; the session's values are known.
    Joining,
}

impl Negotiation {
    /// Says that this is a later connection of a session, before any key was handled.
    pub fn set_later(&mut self) {
        self.place = Place::Later;
    }

    /// Says what the session that this later connection joins has agreed on.
    pub fn join(&mut self, session: SessionParams) {
        (self.place, self.session) = (Place::Joining, session);
    }

    /// Some peers offer leading-only keys again on later connections, which they must not. Whatever
    /// they offer, the session's values hold, and that is the answer: "Irrelevant" makes initiators
    /// give up the connection.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-13
    //# Some session-specific parameters MUST only be carried on the leading connection and cannot
    //# be changed after the leading connection login (e.g., MaxConnections -- the maximum number of
    //# connections).
    pub(super) fn answer_on_later_connection(&self, key: Key, out: &mut TextWriter) {
        match key.spec().rule {
            // Nobody will let it in, but the reason is not among the keys.
            _ if self.place == Place::Later => out.push(key.name(), IRRELEVANT),
            Rule::Min(..) | Rule::Max(..) => out.push(key.name(), self.session.number(key)),
            Rule::And | Rule::Or => out.push(key.name(), bool_str(self.session.flag(key))),
            Rule::List => out.push(key.name(), self.session.task_reporting.as_str()),
            _ => out.push(key.name(), REJECT),
        }
    }
}
