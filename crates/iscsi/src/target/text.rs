//! Text requests of the full-feature phase (RFC 7143 §11.10): SendTargets, and keys that come too
//! late.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use iscsi_proto::keys::Key;
use iscsi_proto::keys::send_targets::{self, SendTargets, TargetRecord};
use iscsi_proto::keys::text::{TextWriter, parse};

use super::catalog::TargetSpec;
use super::session::SharedSession;
use super::shared::Shared;

/// Answers a text request: SendTargets. Everything else was settled at login.
pub(super) fn answer(
    shared: &Shared,
    session: &SharedSession,
    local: Option<SocketAddr>,
    text: &[u8],
) -> Bytes {
    let Ok(pairs) = parse(text) else { return Bytes::new() };
    let mut out = TextWriter::default();
    for pair in pairs {
        if pair.key != "SendTargets" {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.12
            //# The operational parameters of the session or the connection MUST continue to be the
            //# values agreed upon during an earlier successful negotiation (i.e., any partial
            //# results of this unsuccessful negotiation MUST NOT take effect and MUST be
            //# discarded).
            if let Some(refusal) = refusal_of(pair.key) {
                out.push(pair.key, refusal);
            }
            continue;
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
        //# This value MUST be supported on a Discovery session and MUST NOT be supported on an
        //# operational session.
        if pair.value == "All" && !session.with(|core| core.is_discovery()) {
            out.push(pair.key, "Reject");
            continue;
        }
        if let Ok(wanted) = SendTargets::from_value(pair.value) {
            let records = targets_for(shared, session, local, &wanted);
            //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
            //# A SendTargets response MUST NOT contain target names if there are no targets for the
            //# requesting initiator to access.
            if !records.is_empty() {
                return send_targets::encode(&records);
            }
        }
    }
    out.finish()
}

/// The answer to a key of the full-feature phase other than SendTargets: what was agreed at login
/// stays. What is only declared needs no answer.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//# If used as specified, these keys MUST NOT be answered with NotUnderstood.
fn refusal_of(key: &str) -> Option<&'static str> {
    match Key::from_name(key) {
        Some(Key::InitiatorAlias | Key::NodeArchitecture) => None,
        Some(_) => Some("Reject"),
        None => Some("NotUnderstood"),
    }
}

/// What an initiator may know of: the targets that have a rule for it, and a portal.
//= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
//# A SendTargets response MUST NOT contain target names if there are no targets for the
//# requesting initiator to access.
fn targets_for(
    shared: &Shared,
    session: &SharedSession,
    local: Option<SocketAddr>,
    wanted: &SendTargets,
) -> Vec<TargetRecord> {
    let own = session.about.target_name.as_ref();
    let is_wanted = |target: &&Arc<TargetSpec>| match wanted {
        // In a normal session there is nothing to be learnt of other targets.
        SendTargets::All => own.is_none_or(|own| *own == target.name),
        //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
        //# This value MUST be supported on Discovery sessions.
        //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
        //# A Discovery session MUST be capable of returning addresses for those targets that would
        //# have been returned had value=All been designated.
        SendTargets::Named(name) => *name == target.name,
        //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
        //# A target MUST support the SendTargets command on operational sessions; these will only
        //# return path information about the target to which the session is connected and do not
        //# need to return information about other target names that may be defined in the
        //# responding system.
        //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
        //# This MUST be supported on operational sessions and MUST NOT return targets other than
        //# the one to which the session is logged in.
        SendTargets::This => own == Some(&target.name),
    };
    let catalog = shared.catalog();
    let admitted =
        |target: &&Arc<TargetSpec>| target.access.rule(&session.initiator_name).is_some();
    let record = |target: &Arc<TargetSpec>| TargetRecord {
        name: target.name.clone(),
        portals: shared.portals_for(target, &session.about.portal, local),
    };
    let records = catalog.targets.values().filter(is_wanted).filter(admitted).map(record);
    // A target without an address that the initiator could use is none to it.
    records.filter(|record| !record.portals.is_empty()).collect()
}
