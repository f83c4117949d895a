//! Connections to servers inside.

use crate::guest::{Guest, request};
use fumehood_backend::Event;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

#[test]
fn a_server_inside_is_reached_and_both_ends_are_told() {
    let mut guest = Guest::new();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        let mut asked = Vec::new();
        stream.read_to_end(&mut asked).unwrap();
        stream.write_all(&asked.repeat(3)).unwrap();
    });
    let call = guest.host.dial(port).unwrap();
    let connection = match guest.event() {
        (0, Event::Dialled { call: answered, result }) => {
            assert_eq!(answered, call);
            result.unwrap()
        }
        other => panic!("{other:?}"),
    };
    let mut connection = UnixStream::from(connection);
    let asking = std::thread::spawn(move || {
        connection.write_all(&[b'q'; 400_000]).unwrap();
        connection.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).unwrap();
        answer.len()
    });
    while !asking.is_finished() {
        let some = Some(std::time::Duration::from_millis(20));
        fumehood_sys::poll::wait(&[(guest.host.events(), fumehood_sys::poll::Interest::Read)], some).unwrap();
        guest.host.pump();
    }
    assert_eq!(asking.join().unwrap(), 1_200_000);
    answering.join().unwrap();
    assert_eq!(guest.shell("echo goes on"), "goes on\n");
}

#[test]
fn a_port_that_nobody_listens_on_is_refused() {
    let mut guest = Guest::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let call = guest.host.dial(free).unwrap();
    match guest.event() {
        (0, Event::Dialled { call: answered, result: Err(error) }) => {
            assert_eq!(answered, call);
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_caller_that_goes_away_leaves_nothing_open() {
    let mut guest = Guest::new();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let call = guest.host.dial(server.local_addr().unwrap().port()).unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    match guest.event() {
        (0, Event::Dialled { result, .. }) => drop(result.unwrap()),
        other => panic!("{other:?}"),
    }
    let flood = std::thread::spawn(move || while accepted.write_all(&[1; 10_000]).is_ok() {});
    while guest.host.session().is_open(call) {
        guest.turn();
    }
    flood.join().unwrap();
    assert!(guest.run(&request(&["true"]), false).is_ok());
}
