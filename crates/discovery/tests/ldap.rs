//! Servers that answer in whole messages what nobody has asked: each is told of as an error, and
//! nothing ends with a panic, neither in a task of ours nor in one of ldap3's.

#![allow(clippy::unwrap_used)] // helpers of tests fail as tests do

use std::sync::atomic::{AtomicUsize, Ordering};

use discovery::ldap::{Bind, Change, Client, Directory, Filter, LdapError, Search, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// What is asked of a server, each as the first thing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Question {
    Login,
    Find,
    Add,
    Replace,
    Remove,
}

use Question::{Add, Find, Login, Remove, Replace};

const QUESTIONS: [(Question, u8); 5] =
    [(Login, 0x61), (Find, 0x65), (Replace, 0x67), (Add, 0x69), (Remove, 0x6b)];

/// A result of that kind, which says that all is well.
fn result(id: u8, kind: u8) -> Vec<u8> {
    [&[0x30, 0x0c, 0x02, 0x01, id, kind][..], b"\x07\x0a\x01\x00\x04\x00\x04\x00"].concat()
}

/// An entry `cn=a`, without attributes.
fn entry(id: u8) -> Vec<u8> {
    [&[0x30, 0x0d, 0x02, 0x01, id][..], b"\x64\x08\x04\x04cn=a\x30\x00"].concat()
}

/// Asks a server that says this to whatever it is asked.
async fn ask(question: Question, answer: Vec<u8>) -> Result<(), LdapError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ldap://{}/dc=a", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 1024]).await;
        stream.write_all(&answer).await.unwrap();
        // The client goes, or asks for more, of which there is none.
        let _ = stream.read(&mut [0; 1024]).await;
    });
    let bind = (question == Login)
        .then(|| Bind { dn: "cn=me,dc=a".into(), password: "secret".to_owned().into() });
    let address = url.parse().unwrap();
    let client = Client::new(Settings { address, is_starttls: false, ca: None, bind }).unwrap();
    let dn = String::from("cn=a,dc=a");
    let attributes = vec![("cn", vec![b"a".to_vec()])];
    let change = match question {
        Login | Find => None,
        Add => Some(Change::Add { dn, attributes }),
        Replace => Some(Change::Replace { dn, attributes }),
        Remove => Some(Change::Remove { dn }),
    };
    let done = match change {
        Some(change) => client.apply(vec![change]).await.map(|refused| assert!(refused.is_empty())),
        None => {
            let filter = Filter::Is("objectClass", "x".into());
            let wanted = Search { filter, attributes: vec!["*"], entries_max: 9 };
            client.search(&wanted, &mut |_| ()).await
        }
    };
    serving.abort();
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_another_kind_is_refused_before_anything_is_made_of_it() {
    std::panic::set_hook(Box::new(|info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        eprintln!("{info}");
    }));
    for (question, own) in QUESTIONS {
        for kind in [0x61, 0x65, 0x67, 0x69, 0x6b, 0x6d, 0x6f, 0x78] {
            let answered = ask(question, result(1, kind)).await;
            let told = answered.map_or_else(|error| error.to_string(), |()| "done".into());
            let expected = match kind == own {
                true if question == Login => "closed", // when it asks for more
                true => "done",
                false => "something else than was asked for",
            };
            assert!(told.contains(expected), "{question:?}, {kind:x}: {told}");
        }
        let both = [entry(1), result(1, own)].concat();
        let answered = ask(question, both).await;
        assert_eq!(answered.is_ok(), question == Find, "{question:?}: {answered:?}");
        for answer in [entry(9), result(9, own)] {
            let told = ask(question, answer).await.unwrap_err().to_string();
            assert!(told.contains("what was not asked"), "{question:?}: {told}");
        }
    }
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "tasks that have ended with a panic");
}
