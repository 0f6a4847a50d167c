//! TransportID of iSCSI initiator ports (SPC-4 §7.6.4.6): how PERSISTENT RESERVE OUT names other
//! nexuses and READ FULL STATUS reports them.

/// PROTOCOL IDENTIFIER of iSCSI.
const ISCSI: u8 = 0x5;

/// TPID FORMAT 01b: port name, `NAME,i,0xISID`.
const PORT: u8 = 0b01 << 6;

/// Length of everything before the name.
const HEADER_LEN: usize = 4;

/// SPC-4 wants a whole TransportID to have 24 bytes at least.
const NAME_LEN_MIN: usize = 20;

/// Longest name: an iSCSI name of 223 bytes, `,i,0x` and 12 digits, padded.
const NAME_LEN_MAX: usize = 244;

/// Whom a TransportID means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TransportId {
    /// One initiator port.
    Port(String),
    /// All ports of an initiator device that are known (TPID FORMAT 00b).
    Device(String),
}

impl TransportId {
    /// Reads one from the front; also tells its length. `None`: not an iSCSI TransportID.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let header: [u8; HEADER_LEN] = bytes.get(..HEADER_LEN)?.try_into().ok()?;
        if header[0] & 0x0f != ISCSI {
            return None;
        }
        let name_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let fits = (NAME_LEN_MIN..=NAME_LEN_MAX).contains(&name_len) && name_len.is_multiple_of(4);
        let name = bytes.get(HEADER_LEN..HEADER_LEN + name_len).filter(|_| fits)?;
        let end = name.iter().position(|byte| *byte == 0)?;
        let name = std::str::from_utf8(&name[..end]).ok()?.to_ascii_lowercase();
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return None;
        }
        let id = match header[0] >> 6 {
            0b00 if !name.contains(',') => Self::Device(name),
            0b01 => Self::Port(port_name(&name)?),
            _ => return None,
        };
        Some((id, HEADER_LEN + name_len))
    }
}

/// The name with its ISID as RFC 7143 §4.2.7 wants port names: `NAME,i,0x` and 12 digits.
fn port_name(text: &str) -> Option<String> {
    let (name, isid) = text.split_once(",i,0x")?;
    let isid = u64::from_str_radix(isid, 16).ok().filter(|isid| isid >> 48 == 0)?;
    (!name.is_empty()).then(|| format!("{name},i,0x{isid:012x}"))
}

/// The TransportID of an initiator port.
pub(crate) fn encode(port: &str) -> Vec<u8> {
    let len = (port.len() + 1).next_multiple_of(4).max(NAME_LEN_MIN);
    let [high, low] = (len as u16).to_be_bytes();
    let mut out = vec![PORT | ISCSI, 0, high, low];
    out.extend(port.as_bytes());
    out.resize(HEADER_LEN + len, 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "iqn.2026-11.org.example:host,i,0x0123456789ab";

    #[test]
    fn survives_the_round_trip() {
        for port in [NAME, "a,i,0x000000000001"] {
            let bytes = encode(port);
            let id = TransportId::Port(port.to_owned());
            assert_eq!(TransportId::parse(&bytes), Some((id, bytes.len())));
            assert!(bytes.len() >= 24 && bytes.len().is_multiple_of(4));
        }
    }

    #[test]
    fn spellings_of_one_port_are_one() {
        let upper = encode("IQN.2026-11.org.example:host,i,0x123456789AB");
        let Some((TransportId::Port(port), _)) = TransportId::parse(&upper) else {
            panic!("not parsed");
        };
        assert_eq!(port, NAME);
    }

    #[test]
    fn others_are_refused() {
        let good = encode(NAME);
        for (at, byte) in [(0, 0x40), (0, 0x85), (0, 0x05), (3, 3), (3, 0xf8), (2, 1), (4, 0x20)] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            assert_eq!(TransportId::parse(&bytes), None, "byte {at} = {byte:#x}");
        }
        assert_eq!(TransportId::parse(&good[..good.len() - 1]), None);
        assert_eq!(TransportId::parse(&[]), None);
        let mut device = encode("iqn.2026-11.org.example:host");
        device[0] = 0x05;
        let id = TransportId::Device("iqn.2026-11.org.example:host".into());
        assert_eq!(TransportId::parse(&device), Some((id, device.len())));
    }
}
