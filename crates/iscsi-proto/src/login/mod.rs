//! Login of both roles (RFC 7143 §6.3).
/// stub
#[derive(Clone, Debug)]
pub struct Outcome {
    pub initiator_name: String, pub target_name: Option<String>, pub isid: crate::ids::Isid, pub tsih: crate::ids::Tsih, pub cid: crate::ids::Cid,
    pub session: crate::keys::SessionParams, pub connection: crate::keys::ConnectionParams, pub cmd_sn: crate::serial::CmdSn,
}
