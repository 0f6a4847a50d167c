//! One end's view of a connection's two byte streams: PDUs out as bytes, bytes in as headers and
//! data segments. The header is handed on as soon as it is there, as a real driver does it, so
//! that the world can change between a PDU's header and its data.

use bytes::{Buf, Bytes, BytesMut};
use iscsi_proto::connection::Transmit;
use iscsi_proto::frame::{
    DIGEST_LEN, DataDigest, Frame, FrameError, Framing, Limits, parse_header,
};
use iscsi_proto::keys::ConnectionParams;
use iscsi_proto::pdu::{BHS_LEN, Header};

/// Send and receive buffers of one end. Starts in the login phase.
#[derive(Debug)]
pub(crate) struct Stream {
    framing: Framing,
    limits: Limits,
    received: BytesMut,
    sending: BytesMut,
    /// The PDU whose header was handed on and whose data is not all there.
    frame: Option<Frame>,
}

impl Stream {
    pub(crate) fn new() -> Self {
        Self {
            framing: Framing::default(),
            limits: Limits::LOGIN,
            received: BytesMut::new(),
            sending: BytesMut::new(),
            frame: None,
        }
    }

    /// Login is over.
    pub(crate) fn switch(&mut self, params: &ConnectionParams) {
        self.framing = params.framing();
        self.limits = params.limits();
    }

    pub(crate) fn framing(&self) -> Framing {
        self.framing
    }

    /// Turns a PDU into bytes to be sent, and returns them.
    pub(crate) fn encode(&mut self, transmit: &Transmit) -> Vec<u8> {
        self.framing.pdu_bytes(&transmit.header, &transmit.payload)
    }

    pub(crate) fn queue(&mut self, bytes: &[u8]) {
        self.sending.extend_from_slice(bytes);
    }

    /// Up to `room` bytes for the network.
    pub(crate) fn take(&mut self, room: usize) -> Bytes {
        let len = room.min(self.sending.len());
        self.sending.split_to(len).freeze()
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.sending.is_empty()
    }

    /// What has not left yet will not leave.
    pub(crate) fn discard_unsent(&mut self) {
        self.sending.clear();
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// Nothing can be made yet of what has been received.
    pub(crate) fn needs_more(&self) -> bool {
        let needed = match &self.frame {
            Some(frame) => frame.data_len + frame.trailer_len(),
            None => BHS_LEN,
        };
        self.received.len() < needed
    }

    /// The next PDU's header, unless one is waiting for its data.
    pub(crate) fn next_header(&mut self) -> Result<Option<Header>, FrameError> {
        if self.frame.is_some() {
            return Ok(None);
        }
        let Some(frame) = parse_header(&self.received, self.framing, self.limits)? else {
            return Ok(None);
        };
        self.received.advance(frame.header_len);
        let header = frame.header.clone();
        self.frame = Some(frame);
        Ok(Some(header))
    }

    /// The last header with its data segment, once that is complete: for login.
    pub(crate) fn next_whole(&mut self) -> Option<(Header, Bytes)> {
        let header = self.frame.as_ref()?.header.clone();
        let (data, _) = self.next_data()?;
        Some((header, data))
    }

    /// The data segment of the last header once it is complete, and whether its digest is right.
    pub(crate) fn next_data(&mut self) -> Option<(Bytes, bool)> {
        let frame = self.frame.as_ref()?;
        if self.received.len() < frame.data_len + frame.trailer_len() {
            return None;
        }
        let data = self.received.split_to(frame.data_len).freeze();
        let trailer = self.received.split_to(frame.trailer_len());
        let (padding, digest) = trailer.split_at(frame.pad_len);
        self.frame = None;
        let mut computed = DataDigest::new();
        let digest_ok = digest.first_chunk::<DIGEST_LEN>().is_none_or(|received| {
            computed.update(&data);
            computed.update(padding);
            computed.verify(*received).is_ok()
        });
        Some((data, digest_ok))
    }
}
