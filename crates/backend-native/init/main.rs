//! The first process of a sandbox, PID 1 where that has a PID namespace: starts commands for the keeper, reaps everything, and says what became of it.
//!
//! A program of its own, without a library under it, so that it is small enough to be copied into
//! memory for every sandbox. It runs within all the walls of the sandbox and holds no power that the
//! guest has not: no capability, no descriptor but a socket to the keeper. It must not know what a
//! limit, an envelope or a record is.
//!
//! On entry: descriptor 3 is the keeper's socket, 0 to 2 are open (and of no use), the arguments and
//! the environment are empty.
//!
//! ```text
//!            ┌────────────── poll ◄─────────────┐
//!   request  ▼                                  ▼  a child ended
//!   start / signal / kill / dial ► report    reap all ──► report, and after a "once" exec: end the rest, exit
//!            │
//!            └─ end of the socket, or bytes that are not ours ──► kill all, exit
//! ```
//!
//! **Invariant:** for one exec the reports are `[Terminal] Started Ended` or `NotStarted`, in that order.
//! **Invariant:** for one call there is one report, `Dialled` or `NotDialled`.
//! **Invariant:** a received descriptor is closed here whatever becomes of its request.
//! **Invariant:** without a PID namespace nothing is begun unless signals were seen not to leave the sandbox,
//! and commands stand behind a wall of their own, so that they can not end this process.
//! **Invariant:** the guest can not trace this process nor open its descriptors (it is not dumpable).

#![no_std]
#![no_main]
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(unused_qualifications)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("`init` speaks to the kernel directly and knows only Linux on x86_64");

mod call;
mod channel;
mod descriptors;
mod dial;
mod launch;
mod memory;
mod person;
mod table;
#[expect(dead_code, reason = "the keeper's half of the protocol")]
mod wire;

use call::{Fd, Pollfd};
use channel::{Channel, Incoming};
use core::panic::PanicInfo;
use descriptors::Descriptors;
use launch::{Ground, Launched};
use person::Person;
use table::{Entry, Table};
use wire::{Exec, REQUEST_BYTES, Report, Stage};

/// The keeper's socket.
const CONTROL: i32 = 3;

/// What the exit code says when the start itself went wrong, or this program is at fault.
const BROKEN: u8 = 70;

core::arch::global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call {main}",
    "ud2",
    main = sym main,
);

/// Where requests arrive. Static, so that its pages are touched only as far as requests reach.
static mut PACKET: [u8; REQUEST_BYTES] = [0; REQUEST_BYTES];

extern "C" fn main() -> ! {
    // SAFETY: `_start` calls this once, no thread exists, and nothing else names `PACKET`.
    let packet = unsafe { &mut *(&raw mut PACKET) };
    let Ok(mut init) = Init::begin() else { call::exit(BROKEN) };
    loop {
        init.turn(packet);
    }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    call::exit(BROKEN)
}

/// The precompiled core library names it; nothing ever unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() -> ! {
    call::exit(BROKEN)
}

/// Everything this program holds.
struct Init {
    channel: Channel,
    signals: Fd,
    table: Table,
    ground: Ground,
    /// Whether the PID namespace is the sandbox's own, and ends with this process.
    alone: bool,
}

// === impl Init ===

impl Init {
    fn begin() -> Result<Self, call::Errno> {
        let alone = call::own_pid() == 1;
        if !(0..=CONTROL).all(call::is_open) {
            return Err(call::EPERM);
        }
        if !alone {
            // "Kill all" would mean the host's processes if our signals reached them. What can not reach the
            // process that started us, which has our uid or a greater one's power, reaches nobody.
            if !call::parent_is_out_of_reach() {
                return Err(call::EPERM);
            }
            call::adopt_orphans()?;
        }
        call::forbid_tracing()?;
        call::set_name(c"init");
        call::default_dispositions();
        call::block_signals(u64::MAX)?;
        call::set_umask(0o022);
        let signals = call::child_signals()?;
        Ok(Self {
            channel: Channel::new(Fd::own(CONTROL)),
            signals,
            table: Table::new(),
            ground: Ground::new(alone),
            alone,
        })
    }

    /// Waits for one thing to happen, and deals with it.
    fn turn(&mut self, packet: &mut [u8]) {
        let mut entries = [Pollfd::reading(self.channel.socket()), Pollfd::reading(&self.signals)];
        match call::poll(&mut entries) {
            Ok(()) | Err(call::EINTR) => {}
            Err(_) => self.finish(),
        }
        let [control, signals] = entries;
        if signals.found != 0 {
            call::drain(&self.signals);
            let _ = self.reap();
        }
        if control.found != 0 {
            self.obey(packet);
        }
    }

    /// Reaps whatever has ended, and reports those that the keeper knows of. Says whether anybody is left.
    fn reap(&mut self) -> bool {
        loop {
            let reaped = match call::reap(None, call::Wait::Look) {
                Ok(Some(reaped)) => reaped,
                Ok(None) => return true,
                Err(error) => return error != call::ECHILD,
            };
            let Some(entry) = self.table.remove(reaped.pid) else { continue };
            let how = table::how(reaped.status);
            if entry.once {
                self.close(entry.exec, how);
            }
            self.report(Report::Ended { exec: entry.exec, how, leftovers: 0, cpu_ms: call::children_cpu_ms() });
        }
    }

    /// Ends what outlived the exec that was the guest's purpose, and the guest with it.
    fn close(&mut self, exec: u32, how: wire::End) -> ! {
        // What has already ended by itself outlived nothing.
        let mut anybody = self.reap();
        let mut leftovers = 0_u32;
        // All processes here descend from this one, so without a child there is nobody to end. To ask the kernel
        // all the same would have it look at every process of the host.
        while anybody {
            let _ = call::kill_all();
            match call::reap(None, call::Wait::Block) {
                Ok(Some(reaped)) => self.bury(&reaped, &mut leftovers),
                Ok(None) | Err(call::EINTR) => continue,
                Err(_) => anybody = false,
            }
            while let Ok(Some(reaped)) = call::reap(None, call::Wait::Look) {
                self.bury(&reaped, &mut leftovers);
            }
        }
        self.report(Report::Ended { exec, how, leftovers, cpu_ms: call::children_cpu_ms() });
        call::exit(0)
    }

    /// Counts one process that had to be ended, or reports it if the keeper knows of it.
    fn bury(&mut self, reaped: &call::Reaped, leftovers: &mut u32) {
        let how = table::how(reaped.status);
        if let Some(entry) = self.table.remove(reaped.pid) {
            self.report(Report::Ended { exec: entry.exec, how, leftovers: 0, cpu_ms: call::children_cpu_ms() });
        } else if how == wire::End::Signalled(call::SIGKILL) {
            // One that ended otherwise was on its way out when the signal came.
            *leftovers = leftovers.saturating_add(1);
        }
    }

    /// Takes one request.
    fn obey(&mut self, packet: &mut [u8]) {
        match self.channel.receive(packet) {
            Incoming::Exec(exec, descriptors) => self.start(&exec, descriptors),
            Incoming::Signal { exec, signal } => {
                if let Some(pid) = self.table.pid(exec) {
                    let _ = call::kill_group(pid, signal);
                }
            }
            Incoming::KillAll => {
                let _ = call::kill_all();
            }
            Incoming::Dial { call, port } => self.dial(call, port),
            Incoming::Refused { exec } => self.refuse(exec, Stage::Spawn, call::EINVAL),
            Incoming::End => self.finish(),
        }
    }

    /// Starts one command and says so, or why not.
    fn start(&mut self, exec: &Exec<'_>, descriptors: Descriptors) {
        let (once, exec_number) = (exec.once, exec.exec);
        if self.table.pid(exec_number).is_some() {
            return self.refuse(exec_number, Stage::Spawn, call::EEXIST);
        }
        let Some(vacancy) = self.table.vacancy() else {
            return self.refuse(exec_number, Stage::Spawn, call::EAGAIN);
        };
        match self.ground.launch(exec, descriptors, &Person::OURS) {
            Ok(Launched { pid, terminal }) => {
                *vacancy = Some(Entry { exec: exec_number, pid, once });
                if let Some(master) = terminal
                    && self.channel.send(&Report::Terminal { exec: exec_number }, Some(&master)).is_err()
                {
                    self.finish();
                }
                self.report(Report::Started { exec: exec_number, pid });
            }
            Err((stage, errno)) => self.refuse(exec_number, stage, errno),
        }
    }

    /// Connects to a port of the guest's loopback, for the keeper to use, or says why not.
    fn dial(&self, call: u32, port: u16) {
        match dial::loopback(port, 0) {
            Ok(connection) => {
                if self.channel.send(&Report::Dialled { call }, Some(&connection)).is_err() {
                    self.finish();
                }
            }
            Err(errno) => self.report(Report::NotDialled { call, errno: errno.0 }),
        }
    }

    fn refuse(&self, exec: u32, stage: Stage, errno: call::Errno) {
        self.report(Report::NotStarted { exec, stage, errno: errno.0 });
    }

    /// Says something to the keeper. A keeper that can not be told is gone.
    fn report(&self, report: Report) {
        if self.channel.send(&report, None).is_err() {
            self.finish();
        }
    }

    /// Ends the guest because nobody is there to hear of it.
    fn finish(&self) -> ! {
        // Nobody else ends those that are left where there is no PID namespace.
        loop {
            let _ = call::kill_all();
            if self.alone {
                call::exit(0)
            }
            match call::reap(None, call::Wait::Block) {
                Ok(_) | Err(call::EINTR) => {}
                Err(_) => call::exit(0),
            }
        }
    }
}
