//! Reinstatement (RFC 7143 §6.3.4, §6.3.5, §6.3.6): a login that takes another's place.

use iscsi_proto::ids::Cid;

use super::{Check, check, session_of};
use crate::context::Context;
use crate::login::Login;
use crate::offer::Offer;
use crate::session::Session;
use crate::verdict::{Verdict, ensure, failed};

pub(super) const CHECKS: &[Check] = &[
    check("reinstatement.session", "6.3.5", session),
    check("reinstatement.session-of-two-connections", "6.3.5", session_of_two_connections),
    check("reinstatement.other-isid-is-another-session", "6.3.5", other_isid),
    check("reinstatement.connection", "6.3.4", connection),
    check("reinstatement.ends-tasks", "6.3.5", ends_tasks),
];

fn session(context: &Context) -> Verdict {
    let mut old = Session::open(context, Offer::leading())?;
    let mut new = Session::open_as(context, old.isid, Offer::leading())?;
    old.ensure_closed(0)?;
    new.read_all(0, context.scratch(0), context.unit_blocks())?;
    new.close()?;
    Ok("the old session ended, the new one works".into())
}

fn session_of_two_connections(context: &Context) -> Verdict {
    let mut old = session_of(context, 2, Offer::leading())?;
    let new = Session::open_as(context, old.isid, Offer::leading())?;
    old.ensure_closed(0)?;
    old.ensure_closed(1)?;
    new.close()?;
    Ok("both connections of the old session ended".into())
}

fn other_isid(context: &Context) -> Verdict {
    let mut one = Session::open(context, Offer::leading())?;
    let mut other = Session::open(context, Offer::leading())?;
    one.test_unit_ready(0)?.good()?;
    other.test_unit_ready(0)?.good()?;
    ensure(one.tsih != other.tsih, || format!("both sessions have TSIH {}", one.tsih))?;
    one.close()?;
    other.test_unit_ready(0)?.good()?;
    other.close()?;
    Ok("two sessions side by side".into())
}

/// A login with the CID of a connection that is alive ends that one.
fn connection(context: &Context) -> Verdict {
    let mut session = session_of(context, 2, Offer::leading())?;
    let logged_in = match session.join(Cid(1), &Offer::later())? {
        Login::In(logged_in) => *logged_in,
        Login::Out(answer) => return failed(format!("the login with CID 1 again got {answer}")),
    };
    let again = session.attach(Cid(1), logged_in);
    session.ensure_closed(1)?;
    for link in [0, again] {
        session.read_all(link, context.scratch(0), context.unit_blocks())?;
    }
    session.close()?;
    Ok("the old connection ended, the new one works".into())
}

/// The new session does not see the tasks of the old one; its own tags may be the same.
fn ends_tasks(context: &Context) -> Verdict {
    let mut old = Session::open(context, Offer::leading())?;
    for _ in 0..4 {
        old.read(0, context.scratch(0), 8 * context.unit_blocks())?;
    }
    let mut new = Session::open_as(context, old.isid, Offer::leading())?;
    let blocks = context.unit_blocks();
    let data = new.read_all(0, context.scratch(0), blocks)?;
    ensure(data.len() == context.unit() as usize, || "another read's data".into())?;
    ensure(new.links[0].stash.is_empty(), || "answers to tasks of the old session".into())?;
    new.close()?;
    Ok("no answer of the old session".into())
}
