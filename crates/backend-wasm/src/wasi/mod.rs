//! What a module may call: WASI preview 1, by functions of ours, on the folders that the envelope names.
//!
//! One file a family: [`files`] what is done with an open descriptor, [`paths`] what is named by a path,
//! [`process`] arguments, clocks, randomness, waiting and the end. They check what the module says ([`memory`]),
//! find what it means ([`table`], [`walk`]) and call the kernel, which has walls of its own around them.
//!
//! **Invariant:** no function opens anything but beneath a folder that was given, and none makes a socket.

mod errno;
mod files;
mod layout;
mod listing;
mod memory;
mod paths;
mod process;
mod table;
mod wait;
pub(crate) mod walk;

pub(crate) use process::Exit;

use errno::Errno;
use memory::Memory;
use std::os::fd::OwnedFd;
use table::{Entry, Table};
use wasmtime::{Caller, Extern, Linker, StoreLimits};

/// The name that modules import these functions from.
const MODULE: &str = "wasi_snapshot_preview1";

/// What one module holds.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) arguments: Vec<Vec<u8>>,
    /// `NAME=VALUE` each.
    pub(crate) environment: Vec<Vec<u8>>,
    pub(crate) table: Table,
    pub(crate) limits: StoreLimits,
}

/// One call: the module's memory, and what it holds.
struct Call<'a> {
    memory: Memory<'a>,
    host: &'a mut Host,
}

// === impl Host ===

impl Host {
    /// With the three streams. `most_files` is what it may hold open.
    pub(crate) fn new(streams: [OwnedFd; 3], limits: StoreLimits, most_files: usize) -> Result<Self, Errno> {
        let mut table = Table::new(most_files.max(64));
        for file in streams {
            table.add(Entry { file, given_as: None })?;
        }
        Ok(Self { arguments: Vec::new(), environment: Vec::new(), table, limits })
    }

    /// Gives a folder, under a name that the module's paths are looked up by.
    pub(crate) fn give(&mut self, folder: OwnedFd, name: Vec<u8>) -> Result<(), Errno> {
        self.table.add(Entry { file: folder, given_as: Some(name) }).map(drop)
    }
}

/// Runs one function on the memory of the module that calls it.
fn call(mut caller: Caller<'_, Host>, function: impl FnOnce(&mut Call<'_>) -> Result<(), Errno>) -> i32 {
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
        return Errno::FAULT.0.into();
    };
    let (bytes, host) = memory.data_and_store_mut(&mut caller);
    let mut call = Call { memory: Memory(bytes), host };
    function(&mut call).map_or_else(|errno| errno.0.into(), |()| 0)
}

/// Adds each function under its own name. Numbers of a module are unsigned, whatever their wire form is.
macro_rules! functions {
    ($linker:ident, $($name:ident($($argument:ident: $wire:ty => $type:ty),*) = $function:path;)*) => {
        $($linker.func_wrap(
            MODULE,
            stringify!($name),
            |caller: Caller<'_, Host>, $($argument: $wire),*| {
                call(caller, |call| $function(call, $($argument as $type),*))
            },
        )?;)*
    };
}

/// Adds everything that a module may import.
pub(crate) fn add_to(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    add_process(linker)?;
    add_files(linker)?;
    add_paths(linker)
}

#[expect(clippy::cast_sign_loss, reason = "the wire form of an unsigned number is signed")]
fn add_process(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    functions! { linker,
        args_get(list: i32 => u32, bytes: i32 => u32) = process::arguments;
        args_sizes_get(count: i32 => u32, bytes: i32 => u32) = process::arguments_sizes;
        environ_get(list: i32 => u32, bytes: i32 => u32) = process::environment;
        environ_sizes_get(count: i32 => u32, bytes: i32 => u32) = process::environment_sizes;
        clock_res_get(id: i32 => u32, to: i32 => u32) = process::clock_resolution;
        clock_time_get(id: i32 => u32, precision: i64 => u64, to: i32 => u32) = process::clock_time;
        random_get(at: i32 => u32, length: i32 => u32) = process::random;
        sched_yield() = process::give_way;
        proc_raise(signal: i32 => u32) = process::raise;
        poll_oneoff(asked: i32 => u32, answers: i32 => u32, count: i32 => u32, to: i32 => u32) = wait::poll;
        sock_accept(fd: i32 => u32, flags: i32 => u32, to: i32 => u32) = process::no_accept;
        sock_recv(fd: i32 => u32, list: i32 => u32, count: i32 => u32, flags: i32 => u32, read: i32 => u32, to: i32 => u32) = process::no_receive;
        sock_send(fd: i32 => u32, list: i32 => u32, count: i32 => u32, flags: i32 => u32, to: i32 => u32) = process::no_send;
        sock_shutdown(fd: i32 => u32, how: i32 => u32) = process::no_shutdown;
    }
    linker.func_wrap(MODULE, "proc_exit", |code: i32| -> wasmtime::Result<()> {
        Err(wasmtime::Error::new(Exit(code as u32)))
    })?;
    Ok(())
}

#[expect(clippy::cast_sign_loss, reason = "the wire form of an unsigned number is signed")]
fn add_files(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    functions! { linker,
        fd_advise(fd: i32 => u32, at: i64 => u64, length: i64 => u64, advice: i32 => u32) = files::advise;
        fd_allocate(fd: i32 => u32, at: i64 => u64, length: i64 => u64) = files::allocate;
        fd_close(fd: i32 => u32) = files::close;
        fd_datasync(fd: i32 => u32) = files::data_sync;
        fd_fdstat_get(fd: i32 => u32, to: i32 => u32) = files::status;
        fd_fdstat_set_flags(fd: i32 => u32, flags: i32 => u32) = files::set_flags;
        fd_fdstat_set_rights(fd: i32 => u32, base: i64 => u64, inherited: i64 => u64) = files::set_rights;
        fd_filestat_get(fd: i32 => u32, to: i32 => u32) = files::look;
        fd_filestat_set_size(fd: i32 => u32, length: i64 => u64) = files::set_length;
        fd_filestat_set_times(fd: i32 => u32, read: i64 => u64, written: i64 => u64, which: i32 => u32) = files::set_times;
        fd_pread(fd: i32 => u32, list: i32 => u32, count: i32 => u32, at: i64 => u64, to: i32 => u32) = files::read_at;
        fd_prestat_get(fd: i32 => u32, to: i32 => u32) = files::given;
        fd_prestat_dir_name(fd: i32 => u32, at: i32 => u32, length: i32 => u32) = files::given_name;
        fd_pwrite(fd: i32 => u32, list: i32 => u32, count: i32 => u32, at: i64 => u64, to: i32 => u32) = files::write_at;
        fd_read(fd: i32 => u32, list: i32 => u32, count: i32 => u32, to: i32 => u32) = files::read;
        fd_readdir(fd: i32 => u32, at: i32 => u32, length: i32 => u32, cookie: i64 => u64, to: i32 => u32) = listing::read;
        fd_renumber(fd: i32 => u32, onto: i32 => u32) = files::renumber;
        fd_seek(fd: i32 => u32, by: i64 => u64, whence: i32 => u32, to: i32 => u32) = files::seek;
        fd_sync(fd: i32 => u32) = files::sync;
        fd_tell(fd: i32 => u32, to: i32 => u32) = files::tell;
        fd_write(fd: i32 => u32, list: i32 => u32, count: i32 => u32, to: i32 => u32) = files::write;
    }
    Ok(())
}

#[expect(clippy::cast_sign_loss, reason = "the wire form of an unsigned number is signed")]
fn add_paths(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    functions! { linker,
        path_create_directory(fd: i32 => u32, path: i32 => u32, length: i32 => u32) = paths::make_folder;
        path_filestat_get(fd: i32 => u32, flags: i32 => u32, path: i32 => u32, length: i32 => u32, to: i32 => u32) = paths::look;
        path_filestat_set_times(fd: i32 => u32, flags: i32 => u32, path: i32 => u32, length: i32 => u32, read: i64 => u64, written: i64 => u64, which: i32 => u32) = paths::set_times;
        path_link(fd: i32 => u32, flags: i32 => u32, path: i32 => u32, length: i32 => u32, new_fd: i32 => u32, new_path: i32 => u32, new_length: i32 => u32) = paths::link;
        path_open(fd: i32 => u32, flags: i32 => u32, path: i32 => u32, length: i32 => u32, making: i32 => u32, rights: i64 => u64, inherited: i64 => u64, mode: i32 => u32, to: i32 => u32) = paths::open;
        path_readlink(fd: i32 => u32, path: i32 => u32, length: i32 => u32, at: i32 => u32, room: i32 => u32, to: i32 => u32) = paths::read_link;
        path_remove_directory(fd: i32 => u32, path: i32 => u32, length: i32 => u32) = paths::remove_folder;
        path_rename(fd: i32 => u32, path: i32 => u32, length: i32 => u32, new_fd: i32 => u32, new_path: i32 => u32, new_length: i32 => u32) = paths::rename;
        path_symlink(target: i32 => u32, target_length: i32 => u32, fd: i32 => u32, path: i32 => u32, length: i32 => u32) = paths::symlink;
        path_unlink_file(fd: i32 => u32, path: i32 => u32, length: i32 => u32) = paths::remove_file;
    }
    Ok(())
}
