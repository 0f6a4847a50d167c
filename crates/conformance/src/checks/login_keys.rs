//! Negotiation during login (RFC 7143 §6.2, §13): answers to keys, results, text over PDUs.

use iscsi_proto::pdu::Stage;

use super::{Check, check};
use crate::context::Context;
use crate::login::{Answer, Dialogue, LoggedIn, Login, expect_refusal, text};
use crate::offer::Offer;
use crate::verdict::{Stop, Verdict, ensure, failed, require, skipped};

pub(super) const CHECKS: &[Check] = &[
    check("keys.unknown-key", "6.1", unknown_key),
    check("keys.irrelevant-in-discovery", "6.2", irrelevant_in_discovery),
    check("keys.obsolete-markers", "13.25", obsolete_markers),
    check("keys.obsolete-marker-intervals", "13.25", obsolete_marker_intervals),
    check("keys.value-out-of-range", "6.2", value_out_of_range),
    check("keys.value-malformed", "6.2", value_malformed),
    check("keys.reserved-session-type", "13.21", reserved_session_type),
    check("keys.offered-twice", "6.3", offered_twice),
    check("keys.text-over-pdus", "6.2", text_over_pdus),
    check("keys.numeric-results", "13", numeric_results),
    check("keys.boolean-results", "13", boolean_results),
    check("keys.digest-list-order", "6.2.1", digest_list_order),
    check("keys.portal-group-tag", "13.9", portal_group_tag),
    check("keys.maximum-name", "4.2.7.1", maximum_name),
];

fn log_in(context: &Context, discovery: bool, offer: &Offer) -> Result<Login, Stop> {
    Dialogue::new(context)?.log_in(discovery, offer)
}

/// The answer to one key more than usual.
fn answer_to(context: &Context, key: &str, value: &str) -> Result<(LoggedIn, String), Stop> {
    let offer = Offer::leading().with(key, value);
    let logged_in = match log_in(context, false, &offer)? {
        Login::In(logged_in) => *logged_in,
        Login::Out(answer) => return failed(format!("a login with {key}={value} got {answer}")),
    };
    match logged_in.answer(key).map(str::to_owned) {
        Some(answer) => Ok((logged_in, answer)),
        None => failed(format!("{key}={value} was not answered")),
    }
}

fn unknown_key(context: &Context) -> Verdict {
    for key in ["X-org.example.conformance", "NoSuchKey"] {
        let (_, answer) = answer_to(context, key, "1")?;
        ensure(answer == "NotUnderstood", || format!("{key}=1 was answered with {answer}"))?;
    }
    Ok("NotUnderstood".into())
}

/// MaxBurstLength means nothing in a discovery session; it is known nevertheless.
fn irrelevant_in_discovery(context: &Context) -> Verdict {
    let offer = Offer::of(&[("MaxRecvDataSegmentLength", "65536"), ("MaxBurstLength", "262144")]);
    let logged_in = match log_in(context, true, &offer)? {
        Login::In(logged_in) => *logged_in,
        Login::Out(answer) => return failed(format!("MaxBurstLength in discovery got {answer}")),
    };
    match logged_in.answer("MaxBurstLength") {
        Some("NotUnderstood") => failed("a key that is irrelevant here was not understood"),
        Some(answer) => Ok(answer.into()),
        None => failed("MaxBurstLength was not answered"),
    }
}

fn obsolete_markers(context: &Context) -> Verdict {
    let mut said = Vec::new();
    for key in ["IFMarker", "OFMarker"] {
        let (_, answer) = answer_to(context, key, "No")?;
        ensure(answer == "Reject" || answer == "No", || {
            format!("{key}=No was answered with {answer}, not Reject or No")
        })?;
        said.push(format!("{key}={answer}"));
    }
    Ok(said.join(", "))
}

fn obsolete_marker_intervals(context: &Context) -> Verdict {
    for key in ["IFMarkInt", "OFMarkInt"] {
        let (_, answer) = answer_to(context, key, "2048")?;
        ensure(answer == "Reject", || {
            let old = " (a target of RFC 3720, which had intervals and no such rule)";
            let note = if answer.parse::<u32>().is_ok() { old } else { "" };
            format!("{key}=2048 was answered with {answer}, not Reject{note}")
        })?;
    }
    Ok("Reject".into())
}

/// Reject, or an end of the login: anything but agreement.
fn bad_value(context: &Context, key: &str, value: &str) -> Verdict {
    match log_in(context, false, &Offer::leading().with(key, value))? {
        Login::Out(answer @ Answer::Response(..)) => expect_refusal(&answer, &[]),
        Login::Out(Answer::Closed) => Ok("the connection was closed".into()),
        Login::Out(answer) => failed(format!("{key}={value} got {answer}")),
        Login::In(logged_in) => match logged_in.answer(key) {
            Some("Reject") => Ok("Reject".into()),
            answer => failed(format!("{key}={value} was answered with {answer:?}")),
        },
    }
}

fn value_out_of_range(context: &Context) -> Verdict {
    bad_value(context, "MaxBurstLength", "100")?;
    bad_value(context, "ErrorRecoveryLevel", "7")?;
    bad_value(context, "MaxConnections", "70000")
}

fn value_malformed(context: &Context) -> Verdict {
    bad_value(context, "MaxBurstLength", "many")?;
    bad_value(context, "InitialR2T", "Perhaps")
}

fn reserved_session_type(context: &Context) -> Verdict {
    let mut dialogue = Dialogue::new(context)?;
    let mut names = dialogue.names(false);
    for (key, value) in &mut names {
        if key == "SessionType" {
            *value = "Unheard-Of".into();
        }
    }
    let request = dialogue.request(Stage::SECURITY_NEGOTIATION, None);
    dialogue.send(&request, &names)?;
    match dialogue.answer()? {
        Answer::Closed => Ok("the connection was closed".into()),
        answer => expect_refusal(&answer, &[]),
    }
}

/// "Neither the initiator nor the target should attempt to declare or negotiate a parameter more
/// than once during login": an attempt to do so is a protocol error.
fn offered_twice(context: &Context) -> Verdict {
    let mut dialogue = Dialogue::new(context)?;
    dialogue.must_leave_security()?;
    let stage = Stage::LOGIN_OPERATIONAL_NEGOTIATION;
    let pair = |value: &str| [("MaxBurstLength".to_owned(), value.to_owned())];
    let request = dialogue.request(stage, None);
    if let Err(answer) = dialogue.exchange(&request, &pair("65536"))? {
        return failed(format!("the operational stage got {answer}"));
    }
    let request = dialogue.request(stage, None);
    dialogue.send(&request, &pair("32768"))?;
    match dialogue.answer()? {
        Answer::Closed => Ok("the connection was closed".into()),
        answer => expect_refusal(&answer, &[]),
    }
}

/// A pair cut in two by the C bit; what comes in between must be empty.
fn text_over_pdus(context: &Context) -> Verdict {
    let mut dialogue = Dialogue::new(context)?;
    dialogue.must_leave_security()?;
    let whole = text(Offer::leading().with("MaxBurstLength", "131072").pairs());
    let cut = whole.windows(14).position(|w| w == b"MaxBurstLength").unwrap_or(0) + 18;
    let mut request = dialogue.request(Stage::LOGIN_OPERATIONAL_NEGOTIATION, None);
    request.continues = true;
    dialogue.send_text(&request, &whole[..cut])?;
    match dialogue.answer()? {
        Answer::Response(response, pairs) if response.status.is_success() => {
            ensure(!response.transit && pairs.is_empty(), || {
                format!("half a pair with C set was answered with T or keys: {pairs:?}")
            })?;
        }
        answer => return failed(format!("half a pair with C set got {answer}")),
    }
    let request = dialogue.final_request();
    dialogue.send_text(&request, &whole[cut..])?;
    match dialogue.answer()? {
        Answer::Response(response, pairs) if response.status.is_success() => {
            let value = pairs.iter().find(|(key, _)| key == "MaxBurstLength");
            let number = value.and_then(|(_, value)| value.parse::<u32>().ok());
            ensure(number.is_some_and(|n| n <= 131_072), || {
                format!("MaxBurstLength=131072 over two PDUs was answered with {value:?}")
            })?;
            Ok("put together again".into())
        }
        answer => failed(format!("the second half got {answer}")),
    }
}

fn numeric_results(context: &Context) -> Verdict {
    let offered: &[(&str, u32)] = &[
        ("MaxConnections", 3),
        ("MaxBurstLength", 77_824),
        ("FirstBurstLength", 12_288),
        ("DefaultTime2Retain", 7),
        ("MaxOutstandingR2T", 2),
        ("ErrorRecoveryLevel", 1),
    ];
    let mut offer = Offer::leading().with("InitialR2T", "No").with("DefaultTime2Wait", 5);
    for (key, value) in offered {
        offer = offer.with(key, value);
    }
    let logged_in = log_in(context, false, &offer)?.established()?;
    let number = |key: &str| match logged_in.answer(key).map(|value| (value, value.parse::<u32>()))
    {
        Some((_, Ok(number))) => Ok(number),
        Some((value, Err(_))) => failed(format!("{key} was answered with {value}")),
        None => failed(format!("{key} was not answered")),
    };
    for (key, value) in offered {
        let answer = number(key)?;
        ensure(answer <= *value, || format!("{key}={value} became {answer}: not the minimum"))?;
    }
    let wait = number("DefaultTime2Wait")?;
    ensure(wait >= 5, || format!("DefaultTime2Wait=5 became {wait}: not the maximum"))?;
    let (first, max) = (number("FirstBurstLength")?, number("MaxBurstLength")?);
    ensure(first <= max, || format!("FirstBurstLength {first} exceeds MaxBurstLength {max}"))?;
    Ok("minima and maxima".into())
}

/// InitialR2T and the order keys are ORed, ImmediateData is ANDed. These values decide the result,
/// so that an answer may be left out (§6.2.2).
fn boolean_results(context: &Context) -> Verdict {
    let offer = Offer::leading().with("InitialR2T", "Yes").with("ImmediateData", "No");
    let logged_in = log_in(context, false, &offer)?.established()?;
    for (key, wanted) in [
        ("InitialR2T", "Yes"),
        ("ImmediateData", "No"),
        ("DataPDUInOrder", "Yes"),
        ("DataSequenceInOrder", "Yes"),
    ] {
        let answer = logged_in.answer(key);
        ensure(answer.is_none_or(|answer| answer == wanted), || {
            format!("{key}={wanted} was answered with {answer:?}, which cannot be the result")
        })?;
    }
    Ok("OR and AND".into())
}

/// The responder takes the first value of the list that it supports.
fn digest_list_order(context: &Context) -> Verdict {
    let offer = Offer::leading().with("HeaderDigest", "CRC32C,None");
    let one = log_in(context, false, &offer)?.established()?;
    let first = one.answer("HeaderDigest").unwrap_or("no answer").to_owned();
    require(first != "None", || "the target does not support CRC32C".into())?;
    ensure(first == "CRC32C", || format!("HeaderDigest=CRC32C,None became {first}"))?;
    let offer = Offer::leading().with("HeaderDigest", "None,CRC32C");
    let other = log_in(context, false, &offer)?.established()?;
    let second = other.answer("HeaderDigest");
    ensure(second == Some("None"), || {
        format!("HeaderDigest=None,CRC32C became {second:?}, though None is supported")
    })?;
    Ok("the first of the list".into())
}

fn portal_group_tag(context: &Context) -> Verdict {
    let logged_in = log_in(context, false, &Offer::leading())?.established()?;
    let first = logged_in.responses.first();
    let in_first = first.and_then(|(_, pairs)| crate::offer::find(pairs, "TargetPortalGroupTag"));
    match in_first {
        Some(tag) if tag.parse::<u16>().is_ok() => Ok(format!("group {tag}")),
        Some(tag) => failed(format!("TargetPortalGroupTag={tag} is no 16-bit number")),
        None => failed("no TargetPortalGroupTag in the first Login Response"),
    }
}

/// Names of 223 bytes must be received; whoever does not know one says so.
fn maximum_name(context: &Context) -> Verdict {
    if context.config.credentials.is_some() {
        return skipped("the target knows its initiators by name");
    }
    let mut dialogue = Dialogue::new(context)?;
    let name = format!("{:x<223}", "iqn.2026-11.org.example:");
    let mut pairs = dialogue.names(true);
    pairs.retain(|(key, _)| key != "InitiatorName");
    pairs.insert(0, ("InitiatorName".into(), name));
    match dialogue.exchange(&dialogue.final_request(), &pairs)? {
        Ok(_) => Ok("taken".into()),
        Err(Answer::Response(response, _)) if matches!(response.status.0, 0x0201 | 0x0202) => {
            skipped("the target knows its initiators by name")
        }
        Err(answer) => failed(format!("an InitiatorName of 223 bytes got {answer}")),
    }
}
