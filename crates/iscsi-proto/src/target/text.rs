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
        let piece = exchange.response.split_to(exchange.response.len().min(limit));
        let continues = !exchange.response.is_empty();
        let (itt, lun) = (exchange.itt, exchange.lun);
        let ttt = if continues { exchange.ttt } else { Ttt::NONE };
        if !continues {
            connection.text = None;
        }
        self.push_reply(conn, Reply::Text { itt, lun, ttt, text: piece, continues });
    }
}
