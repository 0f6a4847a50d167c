//! Keys of the operational stage: what is offered, and what that comes to with the answers.

use iscsi_proto::frame::Framing;

/// MaxRecvDataSegmentLength that we declare unless a check wants another.
const RECEIVE_MAX: &str = "65536";

/// Keys in the order they are sent.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pairs: Vec<(String, String)>,
}

impl Offer {
    /// Everything a leading connection can offer, so that the target need not begin a negotiation
    /// of its own: the defaults of RFC 7143 §13 but for a few connections and long bursts.
    pub(crate) fn leading() -> Self {
        Self::of(&[
            ("HeaderDigest", "None"),
            ("DataDigest", "None"),
            ("MaxConnections", "1"),
            ("InitialR2T", "Yes"),
            ("ImmediateData", "Yes"),
            ("MaxRecvDataSegmentLength", RECEIVE_MAX),
            ("MaxBurstLength", "262144"),
            ("FirstBurstLength", "65536"),
            ("DefaultTime2Wait", "0"),
            ("DefaultTime2Retain", "20"),
            ("MaxOutstandingR2T", "1"),
            ("DataPDUInOrder", "Yes"),
            ("DataSequenceInOrder", "Yes"),
            ("ErrorRecoveryLevel", "0"),
        ])
    }

    /// What may be negotiated for each connection.
    pub(crate) fn later() -> Self {
        Self::of(&[
            ("HeaderDigest", "None"),
            ("DataDigest", "None"),
            ("MaxRecvDataSegmentLength", RECEIVE_MAX),
        ])
    }

    /// These pairs.
    pub(crate) fn of(pairs: &[(&str, &str)]) -> Self {
        let own = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        Self { pairs: pairs.iter().map(own).collect() }
    }

    /// With another value for a key, or a key more.
    #[must_use]
    pub(crate) fn with(mut self, key: &str, value: impl ToString) -> Self {
        match self.pairs.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value.to_string(),
            None => self.pairs.push((key.to_owned(), value.to_string())),
        }
        self
    }

    pub(crate) fn pairs(&self) -> &[(String, String)] {
        &self.pairs
    }

    fn get(&self, key: &str) -> Option<&str> {
        find(&self.pairs, key)
    }
}

/// The value of a key.
pub(crate) fn find<'a>(pairs: &'a [(String, String)], key: &str) -> Option<&'a str> {
    pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

/// What holds after login, by the rules of §13. A key without a proper answer has its default.
#[derive(Clone, Debug)]
pub(crate) struct Agreed {
    pub(crate) max_connections: u32,
    pub(crate) initial_r2t: bool,
    pub(crate) immediate_data: bool,
    pub(crate) max_burst: u32,
    pub(crate) first_burst: u32,
    pub(crate) max_outstanding_r2t: u32,
    pub(crate) time2wait: u32,
    pub(crate) time2retain: u32,
    pub(crate) level: u32,
    pub(crate) fast_abort: bool,
    /// MaxRecvDataSegmentLength of the target.
    pub(crate) send_max: u32,
    /// Ours.
    pub(crate) receive_max: u32,
    pub(crate) framing: Framing,
}

impl Agreed {
    pub(crate) fn new(offer: &Offer, answers: &[(String, String)]) -> Self {
        let number = |key: &str, default: u32| {
            find(answers, key).and_then(|value| value.parse().ok()).unwrap_or(default)
        };
        let yes = |key: &str, default: bool| match find(answers, key) {
            Some("Yes") => true,
            Some("No") => false,
            _ => default,
        };
        let is = |key: &str, value: &str| find(answers, key) == Some(value);
        let ours = |key: &str, default: u32| {
            offer.get(key).and_then(|value| value.parse().ok()).unwrap_or(default)
        };
        Self {
            max_connections: number("MaxConnections", 1),
            initial_r2t: yes("InitialR2T", true),
            immediate_data: yes("ImmediateData", true),
            max_burst: number("MaxBurstLength", 262_144),
            first_burst: number("FirstBurstLength", 65_536),
            max_outstanding_r2t: number("MaxOutstandingR2T", 1),
            time2wait: number("DefaultTime2Wait", 2),
            time2retain: number("DefaultTime2Retain", 20),
            level: number("ErrorRecoveryLevel", 0),
            fast_abort: is("TaskReporting", "FastAbort"),
            send_max: number("MaxRecvDataSegmentLength", 8192),
            receive_max: ours("MaxRecvDataSegmentLength", 8192),
            framing: Framing {
                header_digest: is("HeaderDigest", "CRC32C"),
                data_digest: is("DataDigest", "CRC32C"),
            },
        }
    }
}
