//! The kernel's table as it is: connections of this process over loopback, found by port, by
//! address, one by one, and with the process that has them.

#![allow(clippy::unwrap_used, reason = "a helper of tests")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use tcpmon::diag::{Filter, Owners, SockDiag, sockets_of};
use tcpmon::sample::State;

fn pair(address: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    (near, far)
}

fn port_filter(address: SocketAddr) -> Filter {
    Filter { port: Some(address.port()), ..Filter::default() }
}

#[test]
fn both_ends_of_a_connection_and_what_they_carried() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (mut near, mut far) = pair(address);
        let (_other, _far) = pair(address);
        near.write_all(&[7; 100_000]).unwrap();
        far.read_exact(&mut vec![0; 100_000]).unwrap();
        let mut diag = SockDiag::open().unwrap();
        let far_address = far.local_addr().unwrap();
        let look = diag.look(&port_filter(far_address)).unwrap();
        assert_eq!((look.samples.len(), look.left_out), (2, 0), "{address}: {look:?}");
        let is_near = |local: SocketAddr| local == near.local_addr().unwrap();
        let at_near = look.samples.iter().find(|s| is_near(s.connection.local)).unwrap();
        let at_far = look.samples.iter().find(|s| !is_near(s.connection.local)).unwrap();
        assert!(at_near.connection.is_other_end_of(&at_far.connection));
        assert_eq!(at_near.connection.remote, far_address);
        assert_eq!(at_near.state, State::ESTABLISHED);
        assert_eq!(at_far.tcp.received_bytes, Some(100_000));
        assert!(at_near.tcp.sent_bytes >= Some(100_000));
        assert!(!at_near.congestion_control.is_empty());
        assert!(at_near.memory.unwrap().send_buffer_bytes > 0);
    }
}

#[test]
fn an_address_that_is_no_end_finds_nothing() {
    let (near, _far) = pair("127.0.0.1:0");
    let mut diag = SockDiag::open().unwrap();
    let port = near.local_addr().unwrap().port();
    let count = |diag: &mut SockDiag, address: &str| {
        let address = Some(address.parse().unwrap());
        let filter = Filter { port: Some(port), address, ..Filter::default() };
        diag.look(&filter).unwrap().samples.len()
    };
    assert_eq!(count(&mut diag, "127.0.0.1"), 2);
    assert_eq!(count(&mut diag, "127.0.0.2"), 0);
    assert_eq!(count(&mut diag, "::1"), 0);
    let listening = Filter { port: Some(port), states: vec![State::LISTEN], address: None };
    assert_eq!(diag.look(&listening).unwrap().samples.len(), 0, "the listener is closed");
}

#[test]
fn one_connection_until_it_is_gone() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (near, far) = pair(address);
        let mut diag = SockDiag::open().unwrap();
        let look = diag.look(&port_filter(near.local_addr().unwrap())).unwrap();
        let connection = look.samples[0].connection;
        let one = diag.one(&connection).unwrap().unwrap();
        assert_eq!(one.connection, connection);
        assert_eq!(one.inode, look.samples[0].inode);
        drop((near, far));
        let left = diag.one(&connection).unwrap();
        assert!(left.is_none_or(|sample| sample.state != State::ESTABLISHED));
    }
}

#[test]
fn the_process_of_a_connection_is_this_one() {
    let (near, _far) = pair("127.0.0.1:0");
    let mut diag = SockDiag::open().unwrap();
    let look = diag.look(&port_filter(near.local_addr().unwrap())).unwrap();
    let mut owners = Owners::default();
    owners.find(look.samples.iter().map(|sample| sample.inode));
    let own = sockets_of(std::process::id()).unwrap();
    for sample in &look.samples {
        assert_eq!(owners.of(sample.inode).unwrap().pid, std::process::id());
        assert!(own.contains(&sample.inode));
    }
    assert!(sockets_of(u32::MAX).is_err());
}
