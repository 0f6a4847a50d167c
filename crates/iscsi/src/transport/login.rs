//! Single PDUs for the login phase: exact reads, so that nothing of the full-feature phase is
//! consumed too early.

use std::io;

use bytes::Bytes;
use iscsi_proto::connection::Transmit;
use iscsi_proto::frame::{FrameError, Framing, Limits, parse_header};
use iscsi_proto::pdu::{BHS_LEN, Header};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

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
pub async fn read_pdu(
    stream: &mut (impl AsyncRead + Unpin),
    limits: Limits,
) -> Result<(Header, Bytes), ReadError> {
    let mut head = vec![0; BHS_LEN];
    stream.read_exact(&mut head).await?;
    let mut frame = parse_header(&head, Framing::default(), limits)?;
    if frame.is_none() {
        // Additional header segments follow; their length has been checked against the limits.
        head.resize(BHS_LEN + usize::from(head[4]) * 4, 0);
        stream.read_exact(&mut head[BHS_LEN..]).await?;
        frame = parse_header(&head, Framing::default(), limits)?;
    }
    let Some(frame) = frame else {
        return Err(io::Error::from(io::ErrorKind::InvalidData).into());
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
pub async fn write_pdu(stream: &mut (impl AsyncWrite + Unpin), pdu: &Transmit) -> io::Result<()> {
    let bytes = Framing::default().pdu_bytes(&pdu.header, &pdu.payload);
    stream.write_all(&bytes).await?;
    stream.flush().await
}
