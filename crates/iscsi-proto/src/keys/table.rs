//! Every key of RFC 7143 §12 and §13 as one row: who sends it, when, how it is negotiated, within
//! which limits and from which default. Nothing else in the crate knows these facts.

/// Defines [`Key`] and the table.
macro_rules! keys {
    ($($key:ident $name:literal: $rule:expr, $sender:ident, $stage:ident, $scope:ident,
       $discovery:ident, $default:literal;)*) => {
        /// A key that this implementation knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "named as on the wire; the table below describes them")]
        pub enum Key { $($key,)* }

        /// All rows, in the order of the RFC.
        pub const TABLE: &[Spec] = {
            use Rule::*;
            &[$(Spec {
                key: Key::$key,
                name: $name,
                rule: $rule,
                sender: Sender::$sender,
                stage: When::$stage,
                scope: Scope::$scope,
                relevant_in_discovery: Relevance::$discovery.in_discovery(),
                default: $default,
            },)*]
        };
    };
}

/// How a key gets its value (§6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The responder picks the first value offered that it supports.
    List,
    /// The smaller one of both numbers, within limits.
    Min(u32, u32),
    /// The larger one of both numbers, within limits.
    Max(u32, u32),
    /// Yes if both say Yes.
    And,
    /// Yes if either says Yes.
    Or,
    /// A number, said and not answered.
    DeclareNumber(u32, u32),
    /// Text of at most 255 bytes, said and not answered.
    DeclareText,
    /// One of the security keys: [`crate::login`] answers it.
    Security,
    /// A marker key of RFC 3720: answered No (§13.25).
    Marker,
    /// A marker interval of RFC 3720: answered Reject (§13.25).
    MarkerInterval,
}

/// Who may send the key first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The initiator only.
    Initiator,
    /// The target only.
    Target,
    /// Both.
    Both,
}

/// In which stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Security negotiation only.
    Security,
    /// Operational negotiation only.
    Operational,
    /// Either stage of the login.
    Login,
    /// Login and full-feature phase ("ALL").
    Always,
    /// Full-feature phase only ("FFPO").
    FullFeature,
}

/// What the value holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The session, agreed on its leading connection only ("LO", "SW").
    Leading,
    /// The session, but sent on every connection's login ("IO", "SW").
    Session,
    /// The connection ("CO").
    Connection,
}

/// Whether the key means something in a discovery session.
enum Relevance {
    Any,
    Normal,
}

impl Relevance {
    const fn in_discovery(self) -> bool {
        matches!(self, Self::Any)
    }
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// The key.
    pub key: Key,
    /// Its name on the wire.
    pub name: &'static str,
    /// How it gets its value.
    pub rule: Rule,
    /// Who may send it first.
    pub sender: Sender,
    /// In which stages.
    pub stage: When,
    /// What the value holds for.
    pub scope: Scope,
    /// `false`: irrelevant when SessionType is Discovery.
    pub relevant_in_discovery: bool,
    /// The RFC's default, empty if there is none.
    pub default: &'static str,
}

/// Upper limit of every length key.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.4
//# For any read or bidirectional command, a target MUST issue less than 2**32 combined R2T and
//# Data-In PDUs.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.4
//# Any output data sequence MUST contain less than 2**32 Data-Out PDUs.
const LENGTH_MAX: u32 = (1 << 24) - 1;

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//# An iSCSI implementation MUST comprehend all text keys defined in this document.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//# All keys in this document MUST be supported by iSCSI initiators and targets when used as
//# specified here.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.10
//# All keys listed in Section 13, except for the X extension formats, MUST be supported by iSCSI
//# initiators and targets.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.8
//# All keys listed in Section 13, except for the X extension formats, MUST be supported by iSCSI
//# initiators and targets.
keys! {
    AuthMethod "AuthMethod": Security, Both, Security, Connection, Any, "None";
    ChapA "CHAP_A": Security, Both, Security, Connection, Any, "";
    ChapI "CHAP_I": Security, Both, Security, Connection, Any, "";
    ChapC "CHAP_C": Security, Both, Security, Connection, Any, "";
    ChapN "CHAP_N": Security, Both, Security, Connection, Any, "";
    ChapR "CHAP_R": Security, Both, Security, Connection, Any, "";
    HeaderDigest "HeaderDigest": List, Both, Operational, Connection, Any, "None";
    DataDigest "DataDigest": List, Both, Operational, Connection, Any, "None";
    MaxConnections "MaxConnections": Min(1, 65535), Both, Operational, Leading, Normal, "1";
    SendTargets "SendTargets": DeclareText, Initiator, FullFeature, Session, Any, "";
    TargetName "TargetName": DeclareText, Both, Login, Session, Any, "";
    InitiatorName "InitiatorName": DeclareText, Initiator, Login, Session, Any, "";
    TargetAlias "TargetAlias": DeclareText, Target, Always, Session, Any, "";
    InitiatorAlias "InitiatorAlias": DeclareText, Initiator, Always, Session, Any, "";
    TargetAddress "TargetAddress": DeclareText, Target, Always, Session, Any, "";
    TargetPortalGroupTag "TargetPortalGroupTag":
        DeclareNumber(0, 65535), Target, Login, Session, Any, "";
    InitialR2T "InitialR2T": Or, Both, Operational, Leading, Normal, "Yes";
    ImmediateData "ImmediateData": And, Both, Operational, Leading, Normal, "Yes";
    MaxRecvDataSegmentLength "MaxRecvDataSegmentLength":
        DeclareNumber(512, LENGTH_MAX), Both, Always, Connection, Any, "8192";
    MaxBurstLength "MaxBurstLength":
        Min(512, LENGTH_MAX), Both, Operational, Leading, Normal, "262144";
    FirstBurstLength "FirstBurstLength":
        Min(512, LENGTH_MAX), Both, Operational, Leading, Normal, "65536";
    DefaultTime2Wait "DefaultTime2Wait": Max(0, 3600), Both, Operational, Leading, Any, "2";
    DefaultTime2Retain "DefaultTime2Retain": Min(0, 3600), Both, Operational, Leading, Any, "20";
    MaxOutstandingR2T "MaxOutstandingR2T": Min(1, 65535), Both, Operational, Leading, Normal, "1";
    DataPDUInOrder "DataPDUInOrder": Or, Both, Operational, Leading, Normal, "Yes";
    DataSequenceInOrder "DataSequenceInOrder": Or, Both, Operational, Leading, Normal, "Yes";
    ErrorRecoveryLevel "ErrorRecoveryLevel": Min(0, 2), Both, Operational, Leading, Any, "0";
    SessionType "SessionType": DeclareText, Initiator, Login, Leading, Any, "Normal";
    TaskReporting "TaskReporting": List, Both, Operational, Leading, Normal, "RFC3720";
    ProtocolLevel "iSCSIProtocolLevel": Min(0, 31), Both, Operational, Leading, Normal, "1";
    OFMarker "OFMarker": Marker, Both, Operational, Connection, Any, "No";
    IFMarker "IFMarker": Marker, Both, Operational, Connection, Any, "No";
    OFMarkInt "OFMarkInt": MarkerInterval, Both, Operational, Connection, Any, "2048";
    IFMarkInt "IFMarkInt": MarkerInterval, Both, Operational, Connection, Any, "2048";
    NodeArchitecture "X#NodeArchitecture": DeclareText, Both, Always, Session, Any, "";
}

impl Key {
    /// The key of that name; names are case sensitive.
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|spec| spec.name == name).map(|spec| spec.key)
    }

    /// Its row.
    pub const fn spec(self) -> &'static Spec {
        // Rows are in the order of the enum: both come from one macro.
        &TABLE[self as usize]
    }

    /// Its name on the wire.
    pub const fn name(self) -> &'static str {
        self.spec().name
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
