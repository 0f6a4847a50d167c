//! A discovery session: asks a portal which targets it has (RFC 7143 §4.3, Appendix C), and ends.

use bytes::Bytes;
use iscsi_proto::connection::Placement;
use iscsi_proto::frame::Framing;
use iscsi_proto::ids::{Cid, Isid};
use iscsi_proto::initiator::{self as core, Established, Event, Session};
use iscsi_proto::keys::DigestPreference;
use iscsi_proto::keys::send_targets::{TargetRecord, decode};
use iscsi_proto::serial::StatSn;
use iscsi_proto::time::Instant;

use super::Config;
use super::connect::{ConnectError, Identity, Link, connect_again};
use super::url::Portal;
use crate::transport::login::{read_pdu, write_pdu};

/// Asks a portal for all targets that it shows to us. Names and addresses are checked: who
/// answers is not authenticated unless mutual CHAP is configured.
///
/// # Errors
/// [`ConnectError`].
pub async fn discover(portal: &Portal, config: &Config) -> Result<Vec<TargetRecord>, ConnectError> {
    let seconds = config.login_timeout.as_secs();
    let timed_out = || ConnectError::TimedOut { portal: portal.clone(), seconds };
    tokio::time::timeout(config.login_timeout, ask(portal, config))
        .await
        .map_err(|_| timed_out())?
}

async fn ask(portal: &Portal, config: &Config) -> Result<Vec<TargetRecord>, ConnectError> {
    let mut bits = [0; 4];
    getrandom::fill(&mut bits).map_err(ConnectError::Random)?;
    let isid = Isid::random(u32::from_be_bytes(bits), 0);
    let identity =
        Identity { target: None, isid, cid: Cid(1), joining: None, exp_stat_sn: StatSn(0) };
    // A few kilobytes of text need no digest, and plain PDUs can be read one by one.
    let config = config.clone().digests(DigestPreference::Never, DigestPreference::Never);
    let mut config = config.error_recovery_level(0); // one question, one answer
    // Discovery may be open where the targets are not. Nothing is lost by it: a target that is
    // asked to prove itself (mutual CHAP) still has to.
    config.chap_optional = true;
    let mut link = connect_again(portal, &config, config.chap.as_ref(), &identity).await?;
    let established = Established::from(&link.outcome);
    let now = Instant::default(); // no timer of the session is ever asked
    let (mut session, id) = Session::<()>::new(core::Config::default(), &established, now);
    let failed = |reason: String| ConnectError::Discovery { portal: portal.clone(), reason };
    //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
    //# The text key MUST be SendTargets.
    if session.text(Bytes::from_static(b"SendTargets=All\0")).is_none() {
        return Err(failed("session takes no request".into()));
    }
    loop {
        exchange(&mut link, &mut session, id, portal, &mut []).await?;
        while let Some(event) = session.poll_event() {
            match event {
                Event::TextDone { text, .. } => {
                    let records = decode(&text).map_err(|error| failed(error.to_string()))?;
                    log_out(&mut link, &mut session, id, portal).await;
                    return Ok(records);
                }
                Event::SessionEnded { error } => {
                    let reason = error.map_or("target logged us out".into(), |e| e.to_string());
                    return Err(failed(reason));
                }
                _ => {}
            }
        }
    }
}

/// Sends everything the session has to say, then takes one PDU. `data` is the buffer of the command
/// under way. For sessions that ask one thing after the other: no timer of theirs is ever asked.
pub(super) async fn exchange(
    link: &mut Link,
    session: &mut Session<()>,
    id: core::ConnectionId,
    portal: &Portal,
    data: &mut [u8],
) -> Result<(), ConnectError> {
    let now = Instant::default();
    let read_error = |source| ConnectError::Read { portal: portal.clone(), source };
    while let Some(pdu) = session.poll_transmit(id, now) {
        write_pdu(&mut link.stream, &pdu).await.map_err(|error| read_error(error.into()))?;
    }
    debug_assert_eq!(link.outcome.connection.framing(), Framing::default());
    let limits = link.outcome.connection.limits();
    let (header, segment) = read_pdu(&mut link.stream, limits).await.map_err(read_error)?;
    let failed = |error: core::ConnectionError| ConnectError::Discovery {
        portal: portal.clone(),
        reason: error.to_string(),
    };
    match session.handle_header(id, now, &header).map_err(failed)? {
        Placement::None => return Ok(()),
        // The core has checked that it fits what the command asked for.
        Placement::Task { offset, .. } => {
            let place = data.iter_mut().skip(offset as usize);
            place.zip(segment.iter()).for_each(|(place, byte)| *place = *byte);
        }
        Placement::Scratch | Placement::Discard => {}
    }
    session.handle_data(id, now, &segment, true).map_err(failed)
}

/// The list is here; a target that does not answer the logout changes nothing.
pub(super) async fn log_out(
    link: &mut Link,
    session: &mut Session<()>,
    id: core::ConnectionId,
    portal: &Portal,
) {
    session.close();
    let _ = exchange(link, session, id, portal, &mut []).await;
}
