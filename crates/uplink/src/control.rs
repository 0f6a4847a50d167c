//! Both ends of a control connection, without its socket: what a message that came means, what is
//! to be said when, and when the other end is dead. The caller passes the time, takes what is to
//! be sent ([`poll_transmit`](Home::poll_transmit)) and what has happened
//! ([`poll_event`](Home::poll_event)), and calls again when the time has come
//! ([`poll_timeout`](Home::poll_timeout)).

use std::collections::VecDeque;
use std::time::Duration;

use crate::tokens::{OPEN_MAX, Time};
use crate::wire::{Message, Token, VERSION};

/// How often each end says that it is there: the connection is idle otherwise, and NAT forgets
/// those. Some 60 bytes each.
pub const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// After so long without a word, the other end is dead. Long enough for a line whose queue is full
/// (two seconds are much) or a packet that is lost twice; short enough to be back within five.
pub const DEAD_AFTER: Duration = Duration::from_secs(4);

/// Answers that may wait to be sent: each is about a request, of which there are so many at most.
const ANSWERS_MAX: usize = OPEN_MAX * 2;

/// Why a control connection is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// Nothing has come for too long.
    #[error("nothing was heard of the other end for {} s", DEAD_AFTER.as_secs())]
    Dead,
    /// A message at a time when it has no meaning.
    #[error("{0} is not allowed now")]
    Unexpected(&'static str),
    /// It speaks another version.
    #[error("the other end speaks version {0} of the protocol; here it is {VERSION}")]
    Version(u16),
    /// The server wants no more of us.
    #[error("refused by the server: {0}")]
    Refused(String),
    /// More than is allowed at once.
    #[error("the other end asks for more than {OPEN_MAX} connections at once")]
    TooMuch,
}

/// Signs of life of both ends, and what this one has to say.
#[derive(Debug)]
struct Life {
    heard: Time,
    said: Time,
    messages: VecDeque<Message>,
}

impl Life {
    fn new(now: Time, first: Message) -> Self {
        Self { heard: now, said: now, messages: VecDeque::from([first]) }
    }

    fn next(&self) -> Time {
        (self.heard + DEAD_AFTER).min(self.said + ALIVE_EVERY)
    }

    fn handle_timeout(&mut self, now: Time) -> Result<(), Ended> {
        if now >= self.heard + DEAD_AFTER {
            return Err(Ended::Dead);
        }
        if now >= self.said + ALIVE_EVERY {
            self.said = now;
            self.messages.push_back(Message::Alive);
        }
        Ok(())
    }
}

/// What a home has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HomeEvent {
    /// The server knows us, by this name.
    Up {
        /// The name.
        name: String,
    },
    /// It wants a data connection.
    Dial {
        /// What that has to show.
        token: Token,
        /// How long it is good.
        valid: Duration,
    },
}

/// The home's end.
#[derive(Debug)]
pub struct Home {
    life: Life,
    is_up: bool,
    /// Data connections that are being made.
    dialling: usize,
    events: VecDeque<HomeEvent>,
}

impl Home {
    /// The connection has been made.
    pub fn new(now: Time) -> Self {
        let life = Life::new(now, Message::Hello { version: VERSION });
        Self { life, is_up: false, dialling: 0, events: VecDeque::new() }
    }

    /// A message has come.
    ///
    /// # Errors
    /// The connection is over.
    pub fn handle(&mut self, now: Time, message: Message) -> Result<(), Ended> {
        self.life.heard = now;
        match message {
            Message::Welcome { name } if !self.is_up => {
                self.is_up = true;
                self.events.push_back(HomeEvent::Up { name });
            }
            Message::Refused { why } => return Err(Ended::Refused(why)),
            Message::Alive if self.is_up => {}
            Message::Dial { token, valid_ms } if self.is_up => {
                if self.dialling >= OPEN_MAX {
                    return Err(Ended::TooMuch);
                }
                self.dialling += 1;
                let valid = Duration::from_millis(u64::from(valid_ms));
                self.events.push_back(HomeEvent::Dial { token, valid });
            }
            other => return Err(Ended::Unexpected(other.name())),
        }
        Ok(())
    }

    /// A data connection was made, or could not be.
    pub fn note_dialled(&mut self, token: Token, result: Result<(), String>) {
        self.dialling = self.dialling.saturating_sub(1);
        if let Err(why) = result
            && self.life.messages.len() < ANSWERS_MAX
        {
            self.life.messages.push_back(Message::Failed { token, why });
        }
    }

    /// The time has come.
    ///
    /// # Errors
    /// The connection is over.
    pub fn handle_timeout(&mut self, now: Time) -> Result<(), Ended> {
        self.life.handle_timeout(now)
    }

    /// When it has come.
    pub fn poll_timeout(&self) -> Time {
        self.life.next()
    }

    /// What is to be sent next.
    pub fn poll_transmit(&mut self) -> Option<Message> {
        self.life.messages.pop_front()
    }

    /// What is to be done next.
    pub fn poll_event(&mut self) -> Option<HomeEvent> {
        self.events.pop_front()
    }
}

/// What a server has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// The home cannot make the connection of this token.
    Failed {
        /// Which.
        token: Token,
        /// Why not, in its words.
        why: String,
    },
}

/// The server's end, from the home's first word on.
#[derive(Debug)]
pub struct Server {
    life: Life,
    events: VecDeque<ServerEvent>,
}

impl Server {
    /// The home of this name has said its first word, which was this version.
    ///
    /// # Errors
    /// It is not ours.
    pub fn new(now: Time, name: &str, version: u16) -> Result<Self, Ended> {
        if version != VERSION {
            return Err(Ended::Version(version));
        }
        let life = Life::new(now, Message::Welcome { name: name.to_owned() });
        Ok(Self { life, events: VecDeque::new() })
    }

    /// A data connection is wanted, which shall show this token within so long.
    pub fn ask(&mut self, token: Token, valid: Duration) {
        let valid_ms = u32::try_from(valid.as_millis()).unwrap_or(u32::MAX);
        self.life.messages.push_back(Message::Dial { token, valid_ms });
    }

    /// A message has come.
    ///
    /// # Errors
    /// The connection is over.
    pub fn handle(&mut self, now: Time, message: Message) -> Result<(), Ended> {
        self.life.heard = now;
        match message {
            Message::Alive => {}
            Message::Failed { token, why } => {
                self.events.push_back(ServerEvent::Failed { token, why });
            }
            other => return Err(Ended::Unexpected(other.name())),
        }
        Ok(())
    }

    /// As [`Home::handle_timeout`].
    ///
    /// # Errors
    /// The connection is over.
    pub fn handle_timeout(&mut self, now: Time) -> Result<(), Ended> {
        self.life.handle_timeout(now)
    }

    /// As [`Home::poll_timeout`].
    pub fn poll_timeout(&self) -> Time {
        self.life.next()
    }

    /// What is to be sent next.
    pub fn poll_transmit(&mut self) -> Option<Message> {
        self.life.messages.pop_front()
    }

    /// What has happened next.
    pub fn poll_event(&mut self) -> Option<ServerEvent> {
        self.events.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = Token([7; 16]);

    fn at(ms: u64) -> Time {
        Duration::from_millis(ms)
    }

    fn up() -> Home {
        let mut home = Home::new(at(0));
        assert_eq!(home.poll_transmit(), Some(Message::Hello { version: VERSION }));
        home.handle(at(10), Message::Welcome { name: "attic".into() }).unwrap();
        assert_eq!(home.poll_event(), Some(HomeEvent::Up { name: "attic".into() }));
        home
    }

    fn dial() -> Message {
        Message::Dial { token: TOKEN, valid_ms: 10_000 }
    }

    #[test]
    fn both_ends_meet_and_one_asks_the_other() {
        let mut home = up();
        let mut server = Server::new(at(5), "attic", VERSION).unwrap();
        assert_eq!(server.poll_transmit(), Some(Message::Welcome { name: "attic".into() }));
        server.ask(TOKEN, at(10_000));
        let asked = server.poll_transmit().unwrap();
        assert_eq!(asked, dial());
        home.handle(at(20), asked).unwrap();
        assert_eq!(home.poll_event(), Some(HomeEvent::Dial { token: TOKEN, valid: at(10_000) }));
        home.note_dialled(TOKEN, Ok(()));
        assert_eq!(home.poll_transmit(), None);
        home.note_dialled(TOKEN, Err("no route".into()));
        let failed = home.poll_transmit().unwrap();
        server.handle(at(30), failed).unwrap();
        let why = "no route".into();
        assert_eq!(server.poll_event(), Some(ServerEvent::Failed { token: TOKEN, why }));
        assert_eq!(Server::new(at(0), "attic", 2).unwrap_err(), Ended::Version(2));
    }

    #[test]
    fn each_end_says_that_it_is_there_and_hears_whether_the_other_is() {
        let mut home = up();
        let mut server = Server::new(at(0), "attic", VERSION).unwrap();
        server.poll_transmit();
        for second in 1..100 {
            let now = at(second * 1000);
            assert!(home.poll_timeout() <= now && server.poll_timeout() <= now);
            home.handle_timeout(now).unwrap();
            server.handle_timeout(now).unwrap();
            home.handle(now, server.poll_transmit().unwrap()).unwrap();
            server.handle(now, home.poll_transmit().unwrap()).unwrap();
        }
        // The server is heard no more.
        let (last, mut said) = (99_000, 0);
        loop {
            let now = home.poll_timeout();
            match home.handle_timeout(now) {
                Ok(()) => said += 1,
                Err(error) => {
                    assert_eq!((error, now), (Ended::Dead, at(last) + DEAD_AFTER));
                    break;
                }
            }
        }
        assert_eq!(said, 3, "it called as long as there was hope");
        assert_eq!(server.handle_timeout(at(200_000)), Err(Ended::Dead));
    }

    #[test]
    fn every_message_at_a_wrong_time_ends_it() {
        let token = TOKEN;
        let messages = || {
            [
                Message::Hello { version: VERSION },
                Message::Token(token),
                Message::Failed { token, why: String::new() },
                Message::Alive,
                Message::Welcome { name: "attic".into() },
                dial(),
                Message::Refused { why: "removed".into() },
            ]
        };
        let told = |result: Result<(), Ended>| match result {
            Ok(()) => "taken",
            Err(Ended::Unexpected(_)) => "wrong",
            Err(Ended::Refused(_)) => "refused",
            Err(_) => "another error",
        };
        let of = |mut handle: Box<dyn FnMut(Message) -> Result<(), Ended>>| {
            messages().map(|message| told(handle(message)))
        };
        let wrong = "wrong";
        let new = of(Box::new(|message| Home::new(at(0)).handle(at(1), message)));
        assert_eq!(new, [wrong, wrong, wrong, wrong, "taken", wrong, "refused"]);
        let later = of(Box::new(|message| up().handle(at(20), message)));
        assert_eq!(later, [wrong, wrong, wrong, "taken", wrong, "taken", "refused"]);
        let server = of(Box::new(|message| {
            Server::new(at(0), "attic", VERSION).unwrap().handle(at(1), message)
        }));
        assert_eq!(server, [wrong, wrong, "taken", "taken", wrong, wrong, wrong]);
    }

    #[test]
    fn a_server_that_asks_for_too_much_is_left() {
        let mut home = up();
        for _ in 0..OPEN_MAX {
            home.handle(at(20), dial()).unwrap();
        }
        assert_eq!(home.handle(at(20), dial()), Err(Ended::TooMuch));
        home.note_dialled(TOKEN, Err("late".into()));
        assert_eq!(home.handle(at(20), dial()), Ok(()));
        for _ in 0..ANSWERS_MAX * 2 {
            home.note_dialled(TOKEN, Err("late".into()));
        }
        assert_eq!(home.life.messages.len(), ANSWERS_MAX);
    }
}
