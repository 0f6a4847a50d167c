//! The table of keys against the RFC, and every key in both roles (RFC 7143 §6.2, §13).

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use iscsi_proto::keys::table::{Key, Rule, Scope, Sender, TABLE, When};
use iscsi_proto::keys::text::{Pair, TextWriter, parse};
use iscsi_proto::keys::{
    ConnectionParams, DigestKind, DigestPreference, Negotiation, NegotiationError, Offer, Role,
    SessionParams, TaskReporting,
};
use iscsi_proto::pdu::Stage;
use proptest::prelude::*;

const SECURITY: Stage = Stage::SECURITY_NEGOTIATION;
const OPERATIONAL: Stage = Stage::LOGIN_OPERATIONAL_NEGOTIATION;
const FULL_FEATURE: Stage = Stage::FULL_FEATURE_PHASE;

fn handle(
    negotiation: &mut Negotiation,
    stage: Stage,
    text: &str,
) -> Result<String, NegotiationError> {
    let mut out = TextWriter::default();
    negotiation.handle(&parse(text.as_bytes()).unwrap(), stage, &mut out)?;
    Ok(String::from_utf8(out.finish().to_vec()).unwrap())
}

/// What a target with this offer answers to one key.
fn answer(offer: Offer, text: &str) -> Result<String, NegotiationError> {
    handle(&mut Negotiation::new(Role::Target, offer, None), OPERATIONAL, text)
}

/// What an initiator with this offer takes from one answer.
fn take(offer: Offer, text: &str) -> Result<SessionParams, NegotiationError> {
    let mut negotiation = Negotiation::new(Role::Initiator, offer, None);
    negotiation.write_offers(&mut TextWriter::default());
    handle(&mut negotiation, OPERATIONAL, text)?;
    Ok(negotiation.finish()?.0)
}

fn session(change: impl FnOnce(&mut SessionParams)) -> Offer {
    let mut offer = Offer::default();
    change(&mut offer.session);
    offer
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//= type=test
//# An iSCSI implementation MUST comprehend all text keys defined in this document.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//= type=test
//# All keys in this document MUST be supported by iSCSI initiators and targets when used as
//# specified here.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.10
//= type=test
//# All keys listed in Section 13, except for the X extension formats, MUST be supported by iSCSI
//# initiators and targets.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.8
//= type=test
//# All keys listed in Section 13, except for the X extension formats, MUST be supported by iSCSI
//# initiators and targets.
#[test]
fn the_table_is_the_rfcs() {
    // Name, rule, leading only, irrelevant in discovery, default: §13.1 to §13.25.
    let expected = [
        ("HeaderDigest", Rule::List, false, false, "None"),
        ("DataDigest", Rule::List, false, false, "None"),
        ("MaxConnections", Rule::Min(1, 65535), true, true, "1"),
        ("InitialR2T", Rule::Or, true, true, "Yes"),
        ("ImmediateData", Rule::And, true, true, "Yes"),
        ("MaxRecvDataSegmentLength", Rule::DeclareNumber(512, 16_777_215), false, false, "8192"),
        ("MaxBurstLength", Rule::Min(512, 16_777_215), true, true, "262144"),
        ("FirstBurstLength", Rule::Min(512, 16_777_215), true, true, "65536"),
        ("DefaultTime2Wait", Rule::Max(0, 3600), true, false, "2"),
        ("DefaultTime2Retain", Rule::Min(0, 3600), true, false, "20"),
        ("MaxOutstandingR2T", Rule::Min(1, 65535), true, true, "1"),
        ("DataPDUInOrder", Rule::Or, true, true, "Yes"),
        ("DataSequenceInOrder", Rule::Or, true, true, "Yes"),
        ("ErrorRecoveryLevel", Rule::Min(0, 2), true, false, "0"),
        ("TaskReporting", Rule::List, true, true, "RFC3720"),
        ("iSCSIProtocolLevel", Rule::Min(0, 31), true, true, "1"),
    ];
    for (name, rule, leading, normal_only, default) in expected {
        let spec = Key::from_name(name).unwrap().spec();
        assert_eq!(spec.name, name);
        assert_eq!(spec.rule, rule, "{name}");
        assert_eq!(spec.scope == Scope::Leading, leading, "{name}");
        assert_eq!(!spec.relevant_in_discovery, normal_only, "{name}");
        assert_eq!(spec.default, default, "{name}");
        assert_eq!(spec.sender, Sender::Both, "{name}");
    }
    for (i, spec) in TABLE.iter().enumerate() {
        assert_eq!(spec.key as usize, i);
        assert_eq!(Key::from_name(spec.name), Some(spec.key), "{} twice", spec.name);
        assert!(spec.name.len() <= 63);
    }
}

#[test]
fn the_defaults_are_the_tables() {
    let session = SessionParams::default();
    let yes = |value| if value { "Yes" } else { "No" }.to_owned();
    let connection = ConnectionParams::default();
    for (name, value) in [
        ("MaxConnections", session.max_connections.to_string()),
        ("InitialR2T", yes(session.initial_r2t)),
        ("ImmediateData", yes(session.immediate_data)),
        ("MaxBurstLength", session.max_burst_length.to_string()),
        ("FirstBurstLength", session.first_burst_length.to_string()),
        ("DefaultTime2Wait", session.default_time2wait.to_string()),
        ("DefaultTime2Retain", session.default_time2retain.to_string()),
        ("MaxOutstandingR2T", session.max_outstanding_r2t.to_string()),
        ("DataPDUInOrder", yes(session.data_pdu_in_order)),
        ("DataSequenceInOrder", yes(session.data_sequence_in_order)),
        ("ErrorRecoveryLevel", session.error_recovery_level.to_string()),
        ("HeaderDigest", connection.header_digest.as_str().to_owned()),
        ("DataDigest", connection.data_digest.as_str().to_owned()),
        ("MaxRecvDataSegmentLength", connection.max_recv_data_segment_length.to_string()),
        ("MaxRecvDataSegmentLength", connection.max_send_data_segment_length.to_string()),
    ] {
        assert_eq!(Key::from_name(name).unwrap().spec().default, value, "{name}");
    }
    let nothing_said = Negotiation::new(Role::Target, Offer::default(), None).finish();
    assert_eq!(nothing_said, Ok((session, connection)));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//= type=test
//# However, the answer for a key that is not understood MUST be key=NotUnderstood.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//= type=test
//# The constants "None", "Reject", "Irrelevant", and "NotUnderstood" are reserved and MUST ONLY be
//# used as described here.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.1
//= type=test
//# The responding party MUST respond with the same key and the first value that it supports (and is
//# allowed to use for the specific originator) selected from the originator list.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.1
//= type=test
//# If an acceptor does not understand any particular value in a list, it MUST ignore it.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.2
//= type=test
//# For simple-value negotiations, the accepting party MUST answer with the same key.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.2
//= type=test
//# Proposing a value not admissible (e.g., not within the specified bounds) MAY be answered with
//# the constant "Reject"; otherwise, the acceptor MUST select an admissible value.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.2
//= type=test
//# For a numerical range, the value selected MUST be an integer within the proposed range or
//# "Reject" (if the range is unacceptable).
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.2
//= type=test
//# For Boolean negotiations (i.e., keys taking the values "Yes" or "No"), the accepting party MUST
//# answer with the same key and the result of the negotiation when the received value does not
//# determine that result by itself.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.2
//= type=test
//# Responses are REQUIRED in all other cases, and the value chosen and sent by the acceptor becomes
//# the outcome of the negotiation.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.24
//= type=test
//# As a responder or an originator in a negotiation of this key, an iSCSI implementation compliant
//# to this document alone, without any future protocol extensions, MUST use this value as defined
//# by [RFC7144].
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.26.2
//= type=test
//# Functional behavior of the iSCSI node (this includes the iSCSI protocol logic -- the SCSI,
//# iSCSI, and TCP/IP protocols) MUST NOT depend on the presence, absence, or content of the
//# X#NodeArchitecture key.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.26.2
//= type=test
//# The key MUST NOT be used by iSCSI nodes for interoperability or for exclusion of other nodes.
#[test]
fn a_target_answers_by_the_rule() {
    let offer = session(|s| {
        s.max_connections = 4;
        s.default_time2wait = 5;
        s.error_recovery_level = 1;
        s.initial_r2t = false;
        s.immediate_data = true;
    });
    let no = session(|s| {
        s.initial_r2t = true;
        s.immediate_data = false;
        s.protocol_level = 1;
        s.task_reporting = TaskReporting::Rfc3720;
    });
    for (offer, text, expected) in [
        // Smaller one.
        (offer, "MaxConnections=9", "MaxConnections=4"),
        (offer, "MaxConnections=3", "MaxConnections=3"),
        (offer, "MaxConnections=0x2", "MaxConnections=2"),
        (offer, "MaxConnections=0", "MaxConnections=Reject"),
        (offer, "MaxConnections=65536", "MaxConnections=Reject"),
        (offer, "MaxConnections=many", "MaxConnections=Reject"),
        (offer, "MaxBurstLength=512", "MaxBurstLength=512"),
        (offer, "MaxBurstLength=511", "MaxBurstLength=Reject"),
        (offer, "MaxBurstLength=16777216", "MaxBurstLength=Reject"),
        (offer, "FirstBurstLength=65536", "FirstBurstLength=65536"),
        (offer, "MaxOutstandingR2T=65535", "MaxOutstandingR2T=16"),
        (offer, "DefaultTime2Retain=0", "DefaultTime2Retain=0"),
        (offer, "DefaultTime2Retain=3601", "DefaultTime2Retain=Reject"),
        (offer, "ErrorRecoveryLevel=2", "ErrorRecoveryLevel=1"),
        (offer, "ErrorRecoveryLevel=3", "ErrorRecoveryLevel=Reject"),
        (offer, "iSCSIProtocolLevel=2", "iSCSIProtocolLevel=2"),
        (offer, "iSCSIProtocolLevel=31", "iSCSIProtocolLevel=2"),
        (no, "iSCSIProtocolLevel=2", "iSCSIProtocolLevel=1"),
        (offer, "iSCSIProtocolLevel=0", "iSCSIProtocolLevel=0"),
        (offer, "iSCSIProtocolLevel=32", "iSCSIProtocolLevel=Reject"),
        // Larger one.
        (offer, "DefaultTime2Wait=2", "DefaultTime2Wait=5"),
        (offer, "DefaultTime2Wait=9", "DefaultTime2Wait=9"),
        // OR and AND.
        (offer, "InitialR2T=No", "InitialR2T=No"),
        (offer, "InitialR2T=Yes", "InitialR2T=Yes"),
        (no, "InitialR2T=No", "InitialR2T=Yes"),
        (offer, "ImmediateData=No", "ImmediateData=No"),
        (offer, "ImmediateData=Yes", "ImmediateData=Yes"),
        (no, "ImmediateData=Yes", "ImmediateData=No"),
        (offer, "ImmediateData=yes", "ImmediateData=Reject"),
        (offer, "DataPDUInOrder=No", "DataPDUInOrder=Yes"),
        (offer, "DataSequenceInOrder=No", "DataSequenceInOrder=Yes"),
        // Lists.
        (offer, "HeaderDigest=CRC32C,None", "HeaderDigest=CRC32C"),
        (offer, "HeaderDigest=None,CRC32C", "HeaderDigest=None"),
        (offer, "DataDigest=Y-com.example,CRC32C", "DataDigest=CRC32C"),
        (offer, "TaskReporting=RFC3720,FastAbort", "TaskReporting=RFC3720"),
        (offer, "TaskReporting=FastAbort,ResponseFence,RFC3720", "TaskReporting=FastAbort"),
        (offer, "TaskReporting=X-com.example,ResponseFence", "TaskReporting=ResponseFence"),
        (offer, "TaskReporting=fastabort", "TaskReporting=Reject"),
        (no, "TaskReporting=FastAbort,ResponseFence,RFC3720", "TaskReporting=RFC3720"),
        (no, "TaskReporting=FastAbort", "TaskReporting=Reject"),
        // Of RFC 3720 only.
        (offer, "OFMarker=Yes", "OFMarker=No"),
        (offer, "IFMarker=No", "IFMarker=No"),
        (offer, "OFMarkInt=2048~8192", "OFMarkInt=Reject"),
        (offer, "IFMarkInt=Irrelevant", "IFMarkInt=Reject"),
        // Unknown.
        (offer, "X-com.example.Key=1", "X-com.example.Key=NotUnderstood"),
        (offer, "RDMAExtensions=Yes", "RDMAExtensions=NotUnderstood"),
        (offer, "maxburstlength=512", "maxburstlength=NotUnderstood"),
        // Declarations are not answered, unless they are not valid.
        (offer, "MaxRecvDataSegmentLength=512", ""),
        (offer, "MaxRecvDataSegmentLength=511", "MaxRecvDataSegmentLength=Reject"),
        (offer, "InitiatorAlias=Größe", ""),
        (offer, "X#NodeArchitecture=x86", ""),
    ] {
        let expected = if expected.is_empty() { String::new() } else { format!("{expected}\0") };
        assert_eq!(answer(offer, &format!("{text}\0")), Ok(expected), "{text}");
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//= type=test
//# All negotiations are explicit (i.e., the result MUST only be based on newly exchanged or
//# declared values).
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//= type=test
//# A proposer of an iSCSI key, negotiated or declarative, in a text key exchange MUST thus be able
//# to properly handle a NotUnderstood response.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.1
//= type=test
//# The selection of a value not proposed MUST be handled by the originator as a protocol error.
#[test]
fn an_initiator_takes_what_its_offer_allows() {
    let offer = session(|s| {
        s.max_connections = 4;
        s.default_time2wait = 5;
        s.error_recovery_level = 1;
    });
    type Check = fn(&SessionParams) -> bool;
    let cases: [(&str, Option<Check>); 26] = [
        ("MaxConnections=2", Some(|s| s.max_connections == 2)),
        ("MaxConnections=5", None),
        ("MaxConnections=0", None),
        ("MaxConnections=NotUnderstood", Some(|s| s.max_connections == 1)),
        ("MaxConnections=Irrelevant", Some(|s| s.max_connections == 1)),
        ("MaxConnections=Reject", Some(|s| s.max_connections == 1)),
        ("MaxConnections=None", None),
        ("MaxBurstLength=65536", Some(|s| s.max_burst_length == 65536)),
        ("MaxBurstLength=16777215", None),
        ("FirstBurstLength=512", Some(|s| s.first_burst_length == 512)),
        ("FirstBurstLength=262145", None),
        ("MaxOutstandingR2T=1", Some(|s| s.max_outstanding_r2t == 1)),
        ("MaxOutstandingR2T=17", None),
        ("DefaultTime2Wait=9", Some(|s| s.default_time2wait == 9)),
        ("DefaultTime2Wait=4", None),
        ("DefaultTime2Retain=0", Some(|s| s.default_time2retain == 0)),
        ("ErrorRecoveryLevel=2", None),
        ("ErrorRecoveryLevel=0", Some(|s| s.error_recovery_level == 0)),
        // We said No to OR and Yes to AND: the target decides.
        ("InitialR2T=No", Some(|s| !s.initial_r2t)),
        ("InitialR2T=Yes", Some(|s| s.initial_r2t)),
        ("ImmediateData=No", Some(|s| !s.immediate_data)),
        // We said Yes to OR: nothing to decide.
        ("DataPDUInOrder=No", None),
        ("DataSequenceInOrder=Yes", Some(|s| s.data_sequence_in_order)),
        ("DataPDUInOrder=maybe", None),
        ("HeaderDigest=MD5", None),
        ("HeaderDigest=CRC32C,None", None),
    ];
    for (text, check) in cases {
        match (take(offer, &format!("{text}\0")), check) {
            (Ok(params), Some(check)) => assert!(check(&params), "{text}: {params:?}"),
            (Err(NegotiationError::IllegalAnswer { .. }), None) => {}
            (result, _) => panic!("{text}: {result:?}"),
        }
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-12
//= type=test
//# Other keys MUST NOT be used.
#[test]
fn what_may_be_sent_by_whom_and_when() {
    for spec in TABLE {
        for (role, us) in [(Role::Initiator, Sender::Initiator), (Role::Target, Sender::Target)] {
            for stage in [SECURITY, OPERATIONAL, FULL_FEATURE] {
                let admissible = match spec.stage {
                    // A target lets it be said in the operational stage, too, where it means
                    // nothing.
                    _ if spec.key == Key::AuthMethod && role == Role::Target => {
                        stage != FULL_FEATURE
                    }
                    When::Security => stage == SECURITY,
                    When::Operational => stage == OPERATIONAL,
                    When::Login => stage != FULL_FEATURE,
                    When::Always => true,
                    When::FullFeature => stage == FULL_FEATURE,
                };
                let value = if spec.default.is_empty() { "1" } else { spec.default };
                let mut negotiation = Negotiation::new(role, Offer::default(), None);
                let text = format!("{}={value}\0", spec.name);
                let result = handle(&mut negotiation, stage, &text);
                if spec.sender == us {
                    let key = spec.key;
                    assert_eq!(result, Err(NegotiationError::WrongSender { key }));
                } else if !admissible {
                    let key = spec.key;
                    assert_eq!(result, Err(NegotiationError::WrongStage { key, stage }));
                } else {
                    assert!(result.is_ok(), "{text} to {role:?} in {stage}: {result:?}");
                }
            }
        }
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
//= type=test
//# An attempt to renegotiate/redeclare parameters not specifically allowed MUST be detected by the
//# initiator and target.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
//= type=test
//# Neither the initiator nor the target should attempt to declare or negotiate a parameter more
//# than once during login, except for responses to specific keys that explicitly allow repeated key
//# declarations (e.g., TargetAddress).
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.4
//= type=test
//# The TargetName MUST NOT be redeclared within the Login Phase.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.5
//= type=test
//# The InitiatorName MUST NOT be redeclared within the Login Phase.
#[test]
fn a_key_is_negotiated_once() {
    for spec in TABLE {
        if matches!(spec.rule, Rule::Security) || spec.sender != Sender::Both {
            continue;
        }
        let value = spec.default;
        let text = format!("{0}={value}\0{0}={value}\0", spec.name);
        let stage = if spec.stage == When::Operational { OPERATIONAL } else { SECURITY };
        let result =
            handle(&mut Negotiation::new(Role::Target, Offer::default(), None), stage, &text);
        // Declarations may come again as they were: initiators repeat their names in each stage.
        let negotiable = !matches!(spec.rule, Rule::DeclareText | Rule::DeclareNumber(..));
        let repeated = matches!(result, Err(NegotiationError::Repeated { .. }));
        assert_eq!(repeated, negotiable, "{text}: {result:?}");
    }
    for text in [
        "InitiatorName=a\0InitiatorName=b\0",
        "SessionType=Normal\0SessionType=Discovery\0",
        "MaxRecvDataSegmentLength=512\0MaxRecvDataSegmentLength=1024\0",
    ] {
        assert!(matches!(answer(Offer::default(), text), Err(NegotiationError::Repeated { .. })));
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//= type=test
//# An iSCSI target MUST perform integrity checking before the new parameters take effect.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.14
//= type=test
//# FirstBurstLength MUST NOT exceed MaxBurstLength.
#[test]
fn first_burst_is_never_longer_than_max_burst() {
    // Whatever the order in the text.
    for text in [
        "FirstBurstLength=262144\0MaxBurstLength=4096\0",
        "MaxBurstLength=4096\0FirstBurstLength=262144\0",
    ] {
        let answer = answer(Offer::default(), text).unwrap();
        assert_eq!(answer, "MaxBurstLength=4096\0FirstBurstLength=4096\0");
    }
    // The default of one against the value of the other, in both roles.
    let mut negotiation = Negotiation::new(Role::Target, Offer::default(), None);
    handle(&mut negotiation, OPERATIONAL, "MaxBurstLength=1024\0").unwrap();
    assert_eq!(negotiation.finish().unwrap().0.first_burst_length, 1024);
    let params =
        take(Offer::default(), "MaxBurstLength=1024\0FirstBurstLength=NotUnderstood\0").unwrap();
    assert_eq!((params.max_burst_length, params.first_burst_length), (1024, 1024));
    // And in what we offer.
    let offer = session(|s| s.max_burst_length = 8192);
    let mut out = TextWriter::default();
    Negotiation::new(Role::Initiator, offer, None).write_offers(&mut out);
    let text = String::from_utf8(out.finish().to_vec()).unwrap();
    assert!(text.contains("FirstBurstLength=8192\0"), "{text}");
}

/// An initiator offers only what is relevant; a target answers whatever comes with a value.
#[test]
fn discovery_leaves_out_what_is_irrelevant() {
    let mut negotiation = Negotiation::new(Role::Target, Offer::default(), None);
    let text = "MaxConnections=4\0InitialR2T=No\0MaxBurstLength=65536\0DefaultTime2Wait=2\0\
                HeaderDigest=None\0SessionType=Discovery\0";
    let expected = "MaxConnections=1\0InitialR2T=No\0\
                    MaxBurstLength=65536\0DefaultTime2Wait=2\0HeaderDigest=None\0";
    assert_eq!(handle(&mut negotiation, OPERATIONAL, text).as_deref(), Ok(expected));
    let mut negotiation = Negotiation::new(Role::Initiator, Offer::default(), None);
    negotiation.set_discovery();
    let mut out = TextWriter::default();
    negotiation.write_offers(&mut out);
    for Pair { key, .. } in parse(&out.finish()).unwrap() {
        assert!(Key::from_name(key).unwrap().spec().relevant_in_discovery, "{key}");
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.4.1
//= type=test
//# When such a negotiation attempt is made by the remote side, a compliant iSCSI implementation
//# MUST propose a value of 0 (zero) in response.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.4.1
//= type=test
//# The operational ErrorRecoveryLevel for Discovery sessions thus MUST be 0.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.21
//= type=test
//# As Section 7.4.1 states, ErrorRecoveryLevel MUST be 0 (zero) for Discovery sessions.
#[test]
fn discovery_has_no_error_recovery() {
    let offer = session(|s| s.error_recovery_level = 2);
    let mut target = Negotiation::new(Role::Target, offer, None);
    let text = "SessionType=Discovery\0ErrorRecoveryLevel=2\0";
    assert_eq!(handle(&mut target, OPERATIONAL, text).as_deref(), Ok("ErrorRecoveryLevel=0\0"));
    assert_eq!(target.finish().unwrap().0.error_recovery_level, 0);
    let mut initiator = Negotiation::new(Role::Initiator, offer, None);
    initiator.set_discovery();
    let mut out = TextWriter::default();
    initiator.write_offers(&mut out);
    let text = String::from_utf8(out.finish().to_vec()).unwrap();
    assert!(text.contains("ErrorRecoveryLevel=0\0"), "{text}");
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//= type=test
//# A proposer of an iSCSI key, negotiated or declarative, in a text key exchange MUST thus be able
//# to properly handle a NotUnderstood response.
#[test]
fn a_declaration_may_be_refused() {
    let mut initiator = Negotiation::new(Role::Initiator, Offer::default(), None);
    // LIO's answer on a later connection.
    let text = "SessionType=NotUnderstood\0InitiatorAlias=Irrelevant\0TargetPortalGroupTag=1\0";
    assert_eq!(handle(&mut initiator, SECURITY, text).as_deref(), Ok(""));
    let mut target = Negotiation::new(Role::Target, Offer::default(), None);
    let text = "TargetAlias=NotUnderstood\0MaxRecvDataSegmentLength=Reject\0";
    assert_eq!(handle(&mut target, OPERATIONAL, text).as_deref(), Ok(""));
    assert_eq!(target.finish().unwrap().1, ConnectionParams::default());
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-13
//= type=test
//# Some session-specific parameters MUST only be carried on the leading connection and cannot be
//# changed after the leading connection login (e.g., MaxConnections -- the maximum number of
//# connections).
#[test]
fn later_connections_keep_the_sessions_values() {
    let joined = SessionParams { max_connections: 3, initial_r2t: false, ..Default::default() };
    let mut initiator = Negotiation::new(Role::Initiator, Offer::default(), Some(joined));
    let mut out = TextWriter::default();
    initiator.write_offers(&mut out);
    for Pair { key, .. } in parse(&out.finish()).unwrap() {
        assert_ne!(Key::from_name(key).unwrap().spec().scope, Scope::Leading, "{key}");
    }
    // A target that offers leading-only keys again.
    let answer = handle(&mut initiator, OPERATIONAL, "MaxConnections=8\0InitialR2T=Yes\0");
    assert_eq!(answer.as_deref(), Ok("MaxConnections=3\0InitialR2T=No\0"));
    assert_eq!(initiator.finish().unwrap().0, joined);
    // An initiator that does.
    let mut target = Negotiation::new(Role::Target, Offer::default(), None);
    target.set_later();
    let text = "MaxConnections=8\0TaskReporting=FastAbort\0HeaderDigest=None\0";
    let answer = handle(&mut target.clone(), OPERATIONAL, text);
    let unknown = "MaxConnections=Irrelevant\0TaskReporting=Irrelevant\0HeaderDigest=None\0";
    assert_eq!(answer.as_deref(), Ok(unknown), "nobody has told of the session");
    target.join(joined);
    let answer = handle(&mut target, OPERATIONAL, text);
    let known = "MaxConnections=3\0TaskReporting=RFC3720\0HeaderDigest=None\0";
    assert_eq!(answer.as_deref(), Ok(known));
    assert_eq!(target.finish().unwrap().0, joined);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//= type=test
//# Negotiations MUST be handled as atomic operations.
#[test]
fn a_digest_that_is_required_is_not_forgotten() {
    let offer = Offer { data_digest: DigestPreference::Require, ..Offer::default() };
    let error = NegotiationError::NoCommonValue { key: Key::DataDigest };
    // Not offered, refused, answered.
    assert_eq!(Negotiation::new(Role::Target, offer, None).finish(), Err(error.clone()));
    assert_eq!(answer(offer, "DataDigest=None\0"), Err(error.clone()));
    assert_eq!(take(offer, "DataDigest=Reject\0"), Err(error));
    let mut negotiation = Negotiation::new(Role::Target, offer, None);
    handle(&mut negotiation, OPERATIONAL, "DataDigest=None,CRC32C\0").unwrap();
    assert_eq!(negotiation.finish().unwrap().1.data_digest, DigestKind::Crc32c);
}

#[test]
fn our_length_counts_once_it_was_declared() {
    let mut target = Negotiation::new(Role::Target, Offer::default(), None);
    handle(&mut target, OPERATIONAL, "MaxRecvDataSegmentLength=65536\0").unwrap();
    let params = target.finish().unwrap().1;
    assert_eq!(
        (params.max_recv_data_segment_length, params.max_send_data_segment_length),
        (8192, 65536)
    );
    let mut out = TextWriter::default();
    target.write_declaration(&mut out);
    target.write_declaration(&mut out);
    assert_eq!(&out.finish()[..], b"MaxRecvDataSegmentLength=262144\0");
    assert_eq!(target.finish().unwrap().1.max_recv_data_segment_length, 262_144);
}

proptest! {
    /// Both ends of any two offers agree, and on values within both offers.
    #[test]
    fn both_sides_agree(ours in offers(), theirs in offers()) {
        let mut initiator = Negotiation::new(Role::Initiator, ours, None);
        let mut target = Negotiation::new(Role::Target, theirs, None);
        let mut request = TextWriter::default();
        initiator.write_offers(&mut request);
        let mut response = TextWriter::default();
        let request = request.finish();
        target.handle(&parse(&request).unwrap(), OPERATIONAL, &mut response).unwrap();
        target.write_declaration(&mut response);
        let mut rest = TextWriter::default();
        let response = response.finish();
        initiator.handle(&parse(&response).unwrap(), OPERATIONAL, &mut rest).unwrap();
        prop_assert!(rest.is_empty());
        let (session, connection) = initiator.finish().unwrap();
        let (their_session, their_connection) = target.finish().unwrap();
        prop_assert_eq!(session, their_session);
        prop_assert_eq!(connection.header_digest, their_connection.header_digest);
        prop_assert_eq!(
            connection.max_send_data_segment_length,
            their_connection.max_recv_data_segment_length
        );
        prop_assert!(session.first_burst_length <= session.max_burst_length);
        let min = |a: u32, b: u32| a.min(b);
        prop_assert_eq!(
            session.max_burst_length,
            min(ours.session.max_burst_length, theirs.session.max_burst_length)
        );
        prop_assert_eq!(
            session.immediate_data,
            ours.session.immediate_data && theirs.session.immediate_data
        );
        prop_assert_eq!(
            session.initial_r2t,
            ours.session.initial_r2t || theirs.session.initial_r2t
        );
    }

    /// Any value of any key, to either role: no panic, and parameters stay within their ranges.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.4
    //= type=test
    //# For any read or bidirectional command, a target MUST issue less than 2**32 combined R2T and
    //# Data-In PDUs.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.4
    //= type=test
    //# Any output data sequence MUST contain less than 2**32 Data-Out PDUs.
    #[test]
    fn any_value_of_any_key(
        pairs in proptest::collection::vec(
            (proptest::sample::select(TABLE), "[0-9a-zA-Z,~-]{0,12}|0|1|Yes|No|Reject|[0-9]{1,20}"),
            0..20,
        ),
        is_target in any::<bool>(),
    ) {
        let role = if is_target { Role::Target } else { Role::Initiator };
        let mut negotiation = Negotiation::new(role, Offer::default(), None);
        if !is_target {
            negotiation.write_offers(&mut TextWriter::default());
        }
        for (spec, value) in pairs {
            if handle(&mut negotiation, OPERATIONAL, &format!("{}={value}\0", spec.name)).is_err() {
                break;
            }
        }
        let (session, connection) = negotiation.finish().unwrap();
        prop_assert!((512..=16_777_215).contains(&session.max_burst_length));
        prop_assert!((512..=16_777_215).contains(&session.first_burst_length));
        prop_assert!((512..=16_777_215).contains(&connection.max_send_data_segment_length));
        prop_assert!(session.max_connections >= 1 && session.max_outstanding_r2t >= 1);
        prop_assert!(session.error_recovery_level <= 2);
    }
}

fn offers() -> impl Strategy<Value = Offer> {
    use DigestPreference::{Avoid, Never, Prefer};
    (
        (1u16.., any::<bool>(), any::<bool>(), 512u32..=0xff_ffff, 512u32..=0xff_ffff),
        (0u16..=3600, 0u16..=3600, 1u16.., any::<bool>(), any::<bool>(), 0u8..=2),
        (proptest::sample::select(vec![Never, Avoid, Prefer]), 512u32..=0xff_ffff),
    )
        .prop_map(|(a, b, c)| Offer {
            session: SessionParams {
                max_connections: a.0,
                initial_r2t: a.1,
                immediate_data: a.2,
                max_burst_length: a.3,
                first_burst_length: a.4,
                default_time2wait: b.0,
                default_time2retain: b.1,
                max_outstanding_r2t: b.2,
                data_pdu_in_order: b.3,
                data_sequence_in_order: b.4,
                error_recovery_level: b.5,
                ..SessionParams::default()
            },
            header_digest: c.0,
            data_digest: c.0,
            max_recv_data_segment_length: c.1,
        })
}
