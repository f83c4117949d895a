//! Both ends of the socket between gate and keeper.

use super::*;
use crate::stop::{Stop, StopCause};
use fumehood_model::event::EgressName;
use fumehood_sys::socket::{self, Wait, wait};
use std::os::fd::AsFd as _;
use std::time::Duration;
use tokio::task::spawn_local;

fn name(number: usize) -> Event {
    let name = format!("n{number}.example.com");
    Event::EgressName(EgressName { name, kind: "A".into(), count: 1, answered: true })
}

/// A keeper on a thread of its own, which gives back what it wrote and in how many frames.
fn keeper(
    socket: std::os::fd::OwnedFd,
    mut answer: impl FnMut(&[Event], bool) -> bool + Send + 'static,
) -> std::thread::JoinHandle<(Vec<Event>, usize)> {
    std::thread::spawn(move || {
        let mut intake = Intake::new(socket);
        let (mut all, mut frames) = (Vec::new(), 0);
        loop {
            assert!(wait(intake.as_fd(), Wait::Packet, Duration::from_secs(20)).unwrap());
            match intake.take().unwrap() {
                Taken::Events { id, synced, events } => {
                    frames += 1;
                    let written = answer(&events, synced);
                    all.extend(events);
                    intake.reply(id, written).unwrap();
                }
                Taken::Nothing | Taken::Applied(_) => {}
                Taken::End => return (all, frames),
            }
        }
    })
}

fn run(test: impl AsyncFnOnce(SocketRecorder, Stop, std::os::fd::OwnedFd)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let (near, far) = socket::pair().unwrap();
        let stop = Stop::new();
        let recorder = SocketRecorder::new(near, stop.clone()).unwrap();
        spawn_local(recorder.clone().carry());
        tokio::time::timeout(Duration::from_secs(30), test(recorder, stop, far)).await.unwrap();
    });
}

#[test]
fn what_comes_together_travels_together_and_in_order() {
    let (events, frames) = {
        let (sender, receiver) = std::sync::mpsc::channel();
        run(async move |recorder, _, far| {
            let keeper = keeper(far, |_, _| true);
            let writes: Vec<_> = (0..500)
                .map(|number| {
                    let recorder = recorder.clone();
                    spawn_local(async move { recorder.write(vec![name(number)], Durability::Written).await })
                })
                .collect();
            for write in writes {
                write.await.unwrap().unwrap();
            }
            sender.send(keeper).unwrap();
        });
        receiver.recv().unwrap().join().unwrap()
    };
    assert_eq!(events, (0..500).map(name).collect::<Vec<_>>());
    assert!(frames < 50, "{frames} frames");
}

#[test]
fn one_that_must_be_synced_makes_its_frame_so() {
    run(async |recorder, _, far| {
        let (sender, synced) = std::sync::mpsc::channel();
        let _keeper = keeper(far, move |_, asked| sender.send(asked).is_ok());
        recorder.write(vec![name(1)], Durability::Synced).await.unwrap();
        recorder.write(vec![name(2)], Durability::Written).await.unwrap();
        assert_eq!(synced.iter().take(2).collect::<Vec<_>>(), [true, false]);
    });
}

#[test]
fn a_no_stops_everything() {
    run(async |recorder, stop, far| {
        let _keeper = keeper(far, |events, _| events.iter().all(|event| *event != name(1)));
        recorder.write(vec![name(0)], Durability::Written).await.unwrap();
        assert_eq!(recorder.write(vec![name(1)], Durability::Written).await, Err(Unrecorded));
        assert_eq!(stop.stopped().await, StopCause::Unrecorded);
        assert_eq!(recorder.write(vec![name(2)], Durability::Written).await, Err(Unrecorded));
    });
}

#[test]
fn a_keeper_that_is_gone_stops_everything() {
    run(async |recorder, stop, far| {
        let waiting = {
            let recorder = recorder.clone();
            spawn_local(async move { recorder.write(vec![name(0)], Durability::Written).await })
        };
        tokio::task::yield_now().await;
        drop(far);
        assert_eq!(waiting.await.unwrap(), Err(Unrecorded));
        assert_eq!(stop.stopped().await, StopCause::Unrecorded);
    });
    run(async |_recorder, stop, far| {
        drop(far);
        assert_eq!(stop.stopped().await, StopCause::Unrecorded);
    });
}

#[test]
fn a_keeper_that_ends_the_run_still_listens() {
    run(async |recorder, stop, far| {
        let intake = Intake::new(far.try_clone().unwrap());
        intake.stop().unwrap();
        assert_eq!(stop.stopped().await, StopCause::Asked);
        let _keeper = keeper(far, |_, _| true);
        recorder.write(vec![name(0)], Durability::Written).await.unwrap();
    });
}

#[test]
fn only_what_is_the_gates_to_tell_is_taken() {
    let (near, far) = socket::pair().unwrap();
    let mut intake = Intake::new(far);
    assert_eq!(intake.take().unwrap(), Taken::Nothing);
    let frame = Frame { id: 1, synced: false, events: vec![name(1), Event::Closed {}], applied: None };
    socket::send(near.as_fd(), &serde_json::to_vec(&frame).unwrap(), &[]).unwrap();
    assert!(matches!(intake.take(), Err(IntakeError::Foreign("task.closed"))));
    for packet in [&b"{}"[..], b"\xff\xff", &vec![b' '; MOST_FRAME_BYTES + 1]] {
        socket::send(near.as_fd(), packet, &[]).unwrap();
        assert!(intake.take().is_err());
    }
    socket::send(near.as_fd(), b"{}", &[near.as_fd()]).unwrap();
    assert!(matches!(intake.take(), Err(IntakeError::Packet)));
    drop(near);
    assert_eq!(intake.take().unwrap(), Taken::End);
}
