//! Questions in, answers out, each recorded before it is answered.

use super::{Answer, Question, Subject, Unread, respond};
use crate::gate::Gate;
use crate::line;
use crate::record::{Durability, Recorder, Refusal, Unrecorded};
use crate::sockets::packets;
use fumehood_model::event::{EgressName, Event};
use fumehood_sys::datagram;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Questions are short, also with all that EDNS adds.
const MOST_QUESTION_BYTES: usize = 4096;
/// Failures in a row, without a question in between.
const MOST_FAILURES: usize = 1024;
/// A connection on which nothing is asked is closed.
const IDLE: Duration = Duration::from_secs(10);

/// Answers every datagram until the record fails.
pub(crate) async fn serve_udp<R: Recorder>(gate: Gate<R>, socket: OwnedFd) -> io::Result<()> {
    let socket = packets(socket)?;
    let mut buffer = vec![0; MOST_QUESTION_BYTES];
    let mut failed = 0;
    loop {
        let taken = socket.async_io(Interest::READABLE, || datagram::receive(socket.as_fd(), &mut buffer));
        // Errors tell of earlier answers that could not be delivered; one that stays is the socket's own.
        let datagram = match taken.await {
            Ok(datagram) => datagram,
            Err(error) if failed >= MOST_FAILURES => return Err(error),
            Err(_) => {
                failed += 1;
                continue;
            }
        };
        failed = 0;
        let bytes = buffer.get(..datagram.length).unwrap_or_default();
        if datagram.truncated {
            continue;
        }
        match reply(&gate, bytes).await {
            Err(Unrecorded) => return Ok(()),
            Ok(None) => {}
            Ok(Some(answer)) => {
                // One that can not be sent is as one that is lost: the client asks again.
                let _ = datagram::send(socket.as_fd(), &answer, datagram.to, datagram.from);
            }
        }
    }
}

/// Answers one connection.
pub(crate) async fn serve_tcp<R: Recorder>(gate: Gate<R>, mut stream: TcpStream) {
    // A client that breaks off has nothing to be told.
    let _ = answer_all(&gate, &mut stream).await;
}

async fn answer_all<R: Recorder>(gate: &Gate<R>, stream: &mut TcpStream) -> io::Result<()> {
    loop {
        let length = usize::from(timeout(IDLE, stream.read_u16()).await??);
        if length > MOST_QUESTION_BYTES {
            return Ok(());
        }
        let mut bytes = vec![0; length];
        timeout(IDLE, stream.read_exact(&mut bytes)).await??;
        let Ok(Some(answer)) = reply(gate, &bytes).await else { return Ok(()) };
        let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
        let framed = [&length.to_be_bytes(), answer.as_slice()].concat();
        timeout(IDLE, stream.write_all(&framed)).await??;
    }
}

/// The answer to some bytes, once it is recorded. `None`: none.
async fn reply<R: Recorder>(gate: &Gate<R>, bytes: &[u8]) -> Result<Option<Vec<u8>>, Unrecorded> {
    let question = match Question::parse(bytes) {
        Ok(question) => question,
        Err(Unread::Dropped) => return Ok(None),
        Err(Unread::Wrong(answer)) => return Ok(Some(answer)),
    };
    let (answer, line) = judge(gate, &question);
    match line {
        None => {}
        Some(line) if line.answered => {
            gate.journal().write(Event::EgressName(line), Durability::Written).await?;
        }
        Some(line) => gate.journal().refused(Refusal::Name(line)).await?,
    }
    Ok(Some(answer))
}

/// The answer, and the line about it, if one is due.
fn judge<R: Recorder>(gate: &Gate<R>, question: &Question) -> (Vec<u8>, Option<EgressName>) {
    let mut names = gate.names().borrow_mut();
    let known = matches!(&question.subject, Subject::Name(name) if names.knows(name));
    let answer = respond(&gate.table(), &mut names, question);
    let answered = match answer {
        Answer::Addresses { .. } if known => None,
        Answer::Addresses { .. } => Some(true),
        Answer::Pointer(_) | Answer::Nothing => None,
        Answer::NoSuchName | Answer::Failure => Some(false),
    };
    let subject = match &question.subject {
        Subject::Root => ".",
        Subject::Name(name) => name.as_str(),
        Subject::Odd(text) => text,
    };
    let line = answered.map(|yes| line::name(subject, &question.kind.name(), yes));
    (question.answer(&answer), line)
}
