//! A live engine: a sandbox of the container level whose command is always the engine.

use crate::cache::Entry;
use crate::words::{BROKEN, ENGINE_AT, Order, Run, STARVED};
use fumehood_backend::gateway::Gateway;
use fumehood_backend::{Event, ExecError, GuestStdio, Instance, Meters, WaitStatus};
use fumehood_model::exec::ExecRequest;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

/// A sandbox that runs the module, and nothing else, whatever it is asked to run.
#[derive(Debug)]
pub(crate) struct WasmInstance {
    pub(crate) walls: Box<dyn Instance>,
    pub(crate) entry: Entry,
    /// But for the folder and the arguments, which come with the request.
    pub(crate) run: Run,
}

impl Instance for WasmInstance {
    fn exec(&mut self, request: &ExecRequest, stdio: GuestStdio) -> Result<(), ExecError> {
        let run = Run { cwd: request.cwd.clone(), arguments: request.argv.clone(), ..self.run.clone() };
        let argv = Order::Run(run).words();
        debug_assert_eq!(argv.first().map(Path::new), Some(Path::new(ENGINE_AT)));
        self.walls.exec(&ExecRequest { argv, ..request.clone() }, stdio)
    }

    fn events(&self) -> BorrowedFd<'_> {
        self.walls.events()
    }

    fn next_event(&mut self) -> Option<Event> {
        let event = self.walls.next_event()?;
        if let Event::Ended { status: WaitStatus::Signalled(BROKEN), .. } = event {
            // Whatever was wrong with the code: the next run makes it again.
            self.entry.forget();
            return Some(Event::NotStarted(ExecError::NotExecutable(io::ErrorKind::InvalidData)));
        }
        if let Event::Ended { status: WaitStatus::Signalled(STARVED), .. } = event {
            return Some(Event::NotStarted(ExecError::Exhausted));
        }
        Some(event)
    }

    fn signal(&mut self, signal: i32) -> Result<(), ExecError> {
        self.walls.signal(signal)
    }

    fn kill(&mut self) {
        self.walls.kill();
    }

    fn wait_gone(&mut self, limit: Duration) -> bool {
        self.walls.wait_gone(limit)
    }

    fn meters(&mut self) -> Meters {
        self.walls.meters()
    }

    fn take_gateway(&mut self) -> Option<Gateway> {
        self.walls.take_gateway()
    }

    fn dial(&mut self, port: u16) -> Result<u32, ExecError> {
        self.walls.dial(port)
    }

    fn output(&self) -> Option<BorrowedFd<'_>> {
        self.walls.output()
    }
}
