//! Text requests and responses over several PDUs (RFC 7143 §11.10, §11.11).

use bytes::{Bytes, BytesMut};

use super::event::{ConnId, Event};
use super::session::Session;
use super::transmit::Reply;
use crate::ids::{Itt, Lun, Ttt};
use crate::pdu::TextRequest;

/// An exchange under way: text still coming in, or a long answer going out piece by piece.
#[derive(Debug)]
pub(super) struct TextExchange {
    itt: Itt,
    lun: Lun,
    /// Names the exchange while it is unfinished.
    ttt: Ttt,
    request: BytesMut,
    /// What is left of the answer.
    response: Bytes,
}

impl TextExchange {
    /// Its requests carry this tag.
    pub(super) fn is_of(&self, itt: Itt) -> bool {
        self.itt == itt
    }
}

impl Session {
    pub(super) fn text_request(&mut self, conn: ConnId, request: &TextRequest, data: &Bytes) {
        let limit = self.config.text_length_max;
        let ttt = self.take_ttt();
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let exchange = match connection.text.take() {
            Some(exchange) if exchange.ttt == request.ttt && exchange.itt == request.itt => {
                exchange
            }
            // §11.10.4: a request with the reserved tag starts anew and ends what was before.
            _ => TextExchange {
                itt: request.itt,
                lun: request.lun,
                ttt,
                request: BytesMut::new(),
                response: Bytes::new(),
            },
        };
        let exchange = connection.text.insert(exchange);
        if !exchange.response.is_empty() {
            return self.send_text(conn); // the initiator asks for the next piece
        }
        if exchange.request.len() + data.len() > limit {
            connection.text = None;
            return self.close_event(conn, "text request longer than allowed");
        }
        exchange.request.extend_from_slice(data);
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
        //# A target receiving a Text or Login Request with the C bit set to 1 MUST answer with a
        //# Text or Login Response with no data segment (DataSegmentLength 0).
        if request.continues {
            let (itt, lun, ttt) = (exchange.itt, exchange.lun, exchange.ttt);
            let reply = Reply::Text { itt, lun, ttt, text: Bytes::new(), continues: false };
            return self.push_reply(conn, reply);
        }
        let text = std::mem::take(&mut exchange.request).freeze();
        self.push_event(conn, Event::Text { itt: request.itt, text });
    }

    /// The answer to [`Event::Text`], of any length.
    pub fn text_reply(&mut self, conn: ConnId, itt: Itt, text: Bytes) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let Some(exchange) = connection.text.as_mut().filter(|exchange| exchange.itt == itt) else {
            return;
        };
        exchange.response = text;
        self.send_text(conn);
    }

    fn send_text(&mut self, conn: ConnId) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let limit = connection.params.max_send_data_segment_length as usize;
        let Some(exchange) = connection.text.as_mut() else { return };
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.6
        //# The data lengths of a Text Response MUST NOT exceed the iSCSI initiator
        //# MaxRecvDataSegmentLength (a parameter that is negotiated per connection and per
        //# direction).
        let piece = exchange.response.split_to(exchange.response.len().min(limit));
        let continues = !exchange.response.is_empty();
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.10.4
        //# If the Target Transfer Tag is not 0xffffffff, the LUN field MUST be sent by the target
        //# in the Text Response.
        let (itt, lun) = (exchange.itt, exchange.lun);
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.4
        //# Whenever the target responds with the F bit set to 0, it MUST set the Target Transfer
        //# Tag to a value other than the default 0xffffffff.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.10.4
        //# It MUST do so whenever it sets the F bit to 0 in the response.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.1
        //# A Text Response with the F bit set to 1 MUST have a Target Transfer Tag field set to the
        //# reserved value 0xffffffff.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.1
        //# A Text Response with the F bit set to 0 MUST have a Target Transfer Tag field set to a
        //# value other than the reserved value 0xffffffff.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.4
        //# When a target has more work to do (e.g., cannot transfer all the remaining text data in
        //# a single Text Response or has to continue the negotiation) and has enough resources to
        //# proceed, it MUST set the Target Transfer Tag to a value other than the reserved value
        //# 0xffffffff.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.4
        //# Otherwise, the Target Transfer Tag MUST be set to 0xffffffff.
        let ttt = if continues { exchange.ttt } else { Ttt::NONE };
        if !continues {
            connection.text = None;
        }
        self.push_reply(conn, Reply::Text { itt, lun, ttt, text: piece, continues });
    }
}
