//! Single PDUs for the login phase: exact reads, so that nothing of the full-feature phase is
//! consumed too early.

use std::io;

use bytes::Bytes;
use iscsi_proto::connection::Transmit;
use iscsi_proto::frame::{FrameError, Framing, Limits, parse_header};
use iscsi_proto::pdu::Header;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Bytes of a basic header segment (RFC 7143 §11.2.1).
const BHS_LEN: usize = 48;

/// A PDU could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The socket failed or ended.
    #[error("socket: {0}")]
    Io(#[from] io::Error),
    /// What came is no PDU that is allowed here.
    #[error("framing: {0}")]
    Frame(#[from] FrameError),
}

/// Reads one PDU without digests, as login PDUs are (§6.1).
///
/// # Errors
/// The socket's, or what is wrong with the bytes.
pub async fn read_pdu(stream: &mut TcpStream, limits: Limits) -> Result<(Header, Bytes), ReadError> {
    let mut head = vec![0; BHS_LEN];
    stream.read_exact(&mut head).await?;
    let frame = loop {
        if let Some(frame) = parse_header(&head, Framing::default(), limits)? {
            break frame;
        }
        // Additional header segments: the length is checked against the limits by parse_header.
        let ahs_len = usize::from(head[4]) * 4;
        let read = head.len();
        head.resize(BHS_LEN + ahs_len, 0);
        stream.read_exact(&mut head[read..]).await?;
    };
    let mut data = vec![0; frame.data_len + frame.pad_len];
    stream.read_exact(&mut data).await?;
    data.truncate(frame.data_len);
    Ok((frame.header, Bytes::from(data)))
}

/// Writes one PDU without digests.
///
/// # Errors
/// The socket's.
pub async fn write_pdu(stream: &mut TcpStream, pdu: &Transmit) -> io::Result<()> {
    let framing = Framing::default();
    let mut bytes = Vec::with_capacity(BHS_LEN + pdu.payload.len() + 4);
    bytes.extend_from_slice(framing.header_bytes(&pdu.header).as_bytes());
    bytes.extend_from_slice(&pdu.payload);
    bytes.extend_from_slice(framing.trailer(&pdu.payload).as_bytes());
    stream.write_all(&bytes).await
}
