//! The messages of etcd's API, as far as they are used: `etcdserverpb/rpc.proto` and
//! `mvccpb/kv.proto` of etcd 3.4, whose field numbers these are. What is not here is left out when
//! it is sent, which means the default, and skipped when it comes.

/// Which key is asked for (`RangeRequest`). `serializable` is left out: the majority is asked.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct KeyValue {
    /// Revision of the whole store by the last change of this key.
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) value: Vec<u8>,
}

/// If all of `compare` hold, `success` is done, in one step; else nothing.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<RequestOp>,
}

/// `Compare.CompareTarget.MOD`.
const MOD: i32 = 2;

/// `result` (1) is left out: EQUAL.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Compare {
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    /// A member of `target_union`, a `oneof`: zero is a value there, and has to be sent.
    #[prost(int64, optional, tag = "6")]
    mod_revision: Option<i64>,
}

impl Compare {
    /// The key was changed last in this revision; in none (0) if it is not there.
    pub(crate) fn changed_in(key: &[u8], revision: i64) -> Self {
        Self { target: MOD, key: key.to_vec(), mod_revision: Some(revision) }
    }
}

/// One operation of a transaction; of the kinds there are, only `request_put`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RequestOp {
    #[prost(message, optional, tag = "2")]
    pub(crate) put: Option<PutRequest>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResponseHeader {
    /// The revision of the whole store at the time of the answer.
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
}

/// No `Debug` of its fields: it has a password.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub(crate) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

impl std::fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthenticateRequest").finish_non_exhaustive()
    }
}

/// No `Debug` of its field: whoever has the token is the user.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub(crate) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(crate) token: String,
}

impl std::fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthenticateResponse").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// By hand, from the field numbers.
    #[test]
    fn a_replacement_is_what_etcd_expects() {
        let put = PutRequest { key: b"k".to_vec(), value: b"v".to_vec() };
        let request = TxnRequest {
            compare: vec![Compare::changed_in(b"k", 0)],
            success: vec![RequestOp { put: Some(put) }],
        };
        let compare = [0x0A, 7, 0x10, 2, 0x1A, 1, b'k', 0x30, 0];
        let success = [0x12, 8, 0x12, 6, 0x0A, 1, b'k', 0x12, 1, b'v'];
        assert_eq!(request.encode_to_vec(), [&compare[..], &success[..]].concat());
    }

    #[test]
    fn secrets_are_not_in_debug_output() {
        let request = AuthenticateRequest { name: "a".into(), password: "secret".into() };
        let response = AuthenticateResponse { token: "secret".into() };
        assert!(!format!("{request:?} {response:?}").contains("secret"));
    }
}
