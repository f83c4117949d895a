//! One run of a compiled module.

use super::{artifact, config, end};
use crate::wasi::{Host, walk};
use crate::words::{ARTIFACT_AT, Run, bytes};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::ExitCode;
use wasmtime::Store;

pub(super) fn run(order: Run) -> Result<ExitCode, String> {
    let told = |error: wasmtime::Error| format!("start the engine: {error:#}");
    let engine = match config::engine() {
        Ok(engine) => engine,
        Err(error) => return Ok(end::starved(&error)),
    };
    let file = File::open(ARTIFACT_AT).map_err(|error| format!("open the compiled module: {error}"))?;
    let module = artifact::open(&engine, file, &order.digest)?;
    let linker = config::linker(&engine).map_err(told)?;
    // Taking everything apart would only take time: the kernel does it.
    let mut store = ManuallyDrop::new(Store::new(&engine, host(order)?));
    store.limiter(|host| &mut host.limits);
    let outcome = linker
        .instantiate(&mut *store, &module)
        .and_then(|instance| instance.get_typed_func::<(), ()>(&mut *store, "_start")?.call(&mut *store, ()));
    Ok(end::of(outcome))
}

/// What the module holds: its streams, the folders of the envelope, its words.
fn host(order: Run) -> Result<Host, String> {
    let Run { memory_bytes, open_files, cwd, folders, arguments, .. } = order;
    let streams = [
        duplicate(&io::stdin()).map_err(|error| format!("take the streams: {error}"))?,
        duplicate(&io::stdout()).map_err(|error| format!("take the streams: {error}"))?,
        duplicate(&io::stderr()).map_err(|error| format!("take the streams: {error}"))?,
    ];
    let limits = config::limits(memory_bytes);
    let refused = |path: &Path| format!("give the module `{}`", path.display());
    let host = Host::new(streams, limits, usize::try_from(open_files).unwrap_or(usize::MAX));
    let mut host = host.map_err(|_| refused(Path::new("its streams")))?;
    // First, as is usual: libraries look relative paths up under this name.
    give(&mut host, &cwd, b".".to_vec()).map_err(|why| format!("{}: {why}", refused(&cwd)))?;
    for folder in &folders {
        give(&mut host, folder, bytes(folder.as_os_str()))
            .map_err(|why| format!("{}: {why}", refused(folder)))?;
    }
    host.arguments = arguments.into_iter().map(OsStringExt::into_vec).collect();
    host.environment = environment(&cwd);
    Ok(host)
}

fn duplicate(stream: &impl AsFd) -> io::Result<OwnedFd> {
    stream.as_fd().try_clone_to_owned()
}

fn give(host: &mut Host, folder: &Path, name: Vec<u8>) -> Result<(), String> {
    let opened = walk::open_given(folder).map_err(|error| error.to_string())?;
    host.give(opened, name).map_err(|errno| format!("{errno:?}"))
}

/// Ours is the module's: the keeper made it for nobody else. A module knows its folder by `PWD` alone.
fn environment(cwd: &Path) -> Vec<Vec<u8>> {
    let pair = |name: std::ffi::OsString, value: std::ffi::OsString| {
        [name.into_vec(), b"=".to_vec(), value.into_vec()].concat()
    };
    std::env::vars_os()
        .filter(|(name, _)| name != "PWD")
        .chain([("PWD".into(), cwd.into())])
        .map(|(name, value)| pair(name, value))
        .collect()
}
