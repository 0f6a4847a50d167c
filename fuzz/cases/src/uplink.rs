//! A control connection of a host that nobody can call: whatever comes is a message that reads the
//! same when it is written again, or ends the connection; nothing grows.

use std::time::Duration;

use uplink::control::{Home, HomeEvent, Server, ServerEvent};
use uplink::tokens::{OPEN_MAX, Tokens};
use uplink::wire::{MESSAGE_MAX, Message, Token, VERSION};

/// Whom it is said to, and to whom it is nobody's business.
const HOME: &str = "attic";

/// What comes in one of two ends (the first byte says which), with the time that passes between
/// two messages (the second, in units of 40 ms).
pub fn uplink(data: &[u8]) {
    let Some((&[end, pause], stream)) = data.split_first_chunk::<2>() else { return };
    let pause = Duration::from_millis(u64::from(pause) * 40);
    match end & 1 {
        0 => at_home(stream, pause),
        _ => at_server(stream, pause),
    }
}

/// Each message, until there is no more or one is wrong.
fn messages(mut stream: &[u8]) -> impl Iterator<Item = Message> {
    std::iter::from_fn(move || {
        let (message, len) = Message::parse(stream).ok().flatten()?;
        assert!(len <= MESSAGE_MAX, "{len} bytes of {message:?}");
        assert_eq!(message.encode(), &stream[..len], "{message:?} reads otherwise than it is");
        stream = &stream[len..];
        Some(message)
    })
}

fn at_home(stream: &[u8], pause: Duration) {
    let mut now = Duration::ZERO;
    let mut home = Home::new(now);
    assert_eq!(home.poll_transmit(), Some(Message::Hello { version: VERSION }));
    let mut asked: Vec<Token> = Vec::new();
    for message in messages(stream) {
        now += pause;
        if home.handle_timeout(now).is_err() || home.handle(now, message).is_err() {
            return;
        }
        assert!(home.poll_timeout() > now, "a time that has come already");
        match home.poll_event() {
            Some(HomeEvent::Dial { token, .. }) => asked.push(token),
            Some(HomeEvent::Up { .. }) | None => {}
        }
        assert_eq!(home.poll_event(), None, "a message means one thing");
        assert!(asked.len() <= OPEN_MAX, "{} connections at once", asked.len());
        if asked.len() == OPEN_MAX / 2 {
            asked.drain(..).for_each(|token| home.note_dialled(token, Err("no way".into())));
        }
        let said = std::iter::from_fn(|| home.poll_transmit()).count();
        assert!(said <= OPEN_MAX / 2 + 1, "{said} messages");
    }
}

fn at_server(stream: &[u8], pause: Duration) {
    let mut now = Duration::ZERO;
    let Ok(mut server) = Server::new(now, HOME, VERSION) else { return };
    assert_eq!(server.poll_transmit(), Some(Message::Welcome { name: HOME.to_owned() }));
    let mut tokens = Tokens::default();
    for message in messages(stream) {
        now += pause;
        if let Message::Token(token) = &message {
            // What nobody was given lets nobody in, and what one was given one alone.
            assert!(tokens.redeem(now, HOME, *token).is_err(), "a token of nobody's");
            if tokens.issue(now, HOME, token.0).is_ok() {
                assert!(tokens.redeem(now, "shed", *token).is_err(), "another home's token");
                assert!(tokens.redeem(now, HOME, *token).is_ok());
                assert!(tokens.redeem(now, HOME, *token).is_err(), "a token that was used");
            }
            continue;
        }
        let failed = matches!(&message, Message::Failed { .. });
        if server.handle_timeout(now).is_err() || server.handle(now, message).is_err() {
            return;
        }
        assert!(server.poll_timeout() > now, "a time that has come already");
        let event = server.poll_event();
        assert_eq!(matches!(event, Some(ServerEvent::Failed { .. })), failed);
        assert_eq!(server.poll_event(), None, "a message means one thing");
        let said = std::iter::from_fn(|| server.poll_transmit()).count();
        assert!(said <= 1, "{said} messages");
    }
}

/// What both ends say to each other.
pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let token = Token(std::array::from_fn(|at| at as u8));
    let stream = |end: u8, messages: &[Message]| {
        let bytes = messages.iter().flat_map(Message::encode);
        [end, 20].into_iter().chain(bytes).collect::<Vec<u8>>()
    };
    let dial = Message::Dial { token, valid_ms: 10_000 };
    let welcome = Message::Welcome { name: HOME.to_owned() };
    let refused = Message::Refused { why: "this home was removed".to_owned() };
    let failed = Message::Failed { token, why: "no route to the server".to_owned() };
    vec![
        ("home", stream(0, &[welcome, Message::Alive, dial, Message::Alive, refused])),
        ("server", stream(1, &[Message::Alive, failed, Message::Alive])),
        ("token", stream(1, &[Message::Token(token), Message::Alive])),
        ("hello", stream(1, &[Message::Hello { version: VERSION }])),
    ]
}
