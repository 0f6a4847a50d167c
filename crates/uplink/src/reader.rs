//! [`Reader`]: messages out of a stream, whatever they come cut into.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::wire::{MESSAGE_MAX, Message};

/// What has come of the next message, and no more than the longest.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    bytes: Vec<u8>,
}

impl Reader {
    /// The next message; `None` at the end. Whoever stops to wait loses nothing.
    ///
    /// # Errors
    /// The stream's, or `InvalidData` with what is wrong with a message.
    pub(crate) async fn next(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<Option<Message>> {
        loop {
            let parsed = Message::parse(&self.bytes);
            if let Some((message, len)) =
                parsed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?
            {
                self.bytes.drain(..len);
                return Ok(Some(message));
            }
            let mut chunk = [0; MESSAGE_MAX];
            let room = MESSAGE_MAX - self.bytes.len();
            match stream.read(&mut chunk[..room]).await? {
                0 if self.bytes.is_empty() => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => self.bytes.extend_from_slice(&chunk[..n]),
            }
        }
    }

    /// Has nothing come behind the last message?
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Token;

    #[tokio::test]
    async fn messages_come_out_as_they_went_in() {
        let messages = [
            Message::Hello { version: 1 },
            Message::Alive,
            Message::Failed { token: Token([1; 16]), why: "x".repeat(256) },
            Message::Alive,
        ];
        let bytes: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
        for size in [1, 2, 7, 100, 1000] {
            let (mut near, mut far) = tokio::io::duplex(size);
            let sent = bytes.clone();
            tokio::spawn(async move {
                tokio::io::AsyncWriteExt::write_all(&mut near, &sent).await.unwrap();
            });
            let mut reader = Reader::default();
            for message in &messages {
                assert_eq!(reader.next(&mut far).await.unwrap().as_ref(), Some(message));
            }
            assert_eq!(reader.next(&mut far).await.unwrap(), None);
        }
        let mut reader = Reader::default();
        let error = reader.next(&mut &b"GET / HTTP/1.1"[..]).await.unwrap_err();
        assert!(error.to_string().contains("kind 0x47"), "{error}");
        let error = reader.next(&mut &bytes[..3]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let error = Reader::default().next(&mut &bytes[..3]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
