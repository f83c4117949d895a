//! Builds `restore`, the freestanding program at the head of every image, for `lib.rs` to include. See the build
//! script of `backend-native` for why the compiler is called directly.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Position-independent code at one address, far from where the kernel puts anything by itself: what is restored can
/// lie anywhere else.
const FLAGS: &[&str] = &[
    "--crate-name=restore",
    "--crate-type=bin",
    "--edition=2024",
    "-Copt-level=s",
    "-Ccodegen-units=1",
    "-Cpanic=abort",
    "-Cdebuginfo=0",
    "-Cstrip=symbols",
    "-Coverflow-checks=no",
    "-Cforce-unwind-tables=no",
    "-Crelocation-model=pic",
    "-Clink-arg=-nostartfiles",
    "-Clink-arg=-nostdlib",
    "-Clink-arg=-static",
    "-Clink-arg=-no-pie",
    "-Clink-arg=-Wl,--gc-sections,--build-id=none,-z,noexecstack,-z,norelro",
];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=restore");
    println!("cargo::rerun-if-changed=build.rs");
    let found = [var("RUSTC"), var("TARGET"), var("OUT_DIR"), var("CARGO_MANIFEST_DIR")];
    let [Some(compiler), Some(target), Some(out), Some(here)] = found else {
        println!("cargo::error=the build script must be run by Cargo");
        return ExitCode::FAILURE;
    };
    let mut command = Command::new(compiler);
    command.args(FLAGS).arg("--target").arg(target);
    let mut script = OsString::from("-Clink-arg=-Wl,-T,");
    script.push(Path::new(&here).join("restore/place.ld"));
    command.arg(script);
    if let Some(linker) = var("RUSTC_LINKER") {
        let mut flag = OsString::from("-Clinker=");
        flag.push(linker);
        command.arg(flag);
    }
    command.arg("-o").arg(Path::new(&out).join("restore")).arg("restore/main.rs");
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            println!("cargo::error=the compiler did not build `restore`: {status}");
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("cargo::error=the compiler could not be run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn var(name: &str) -> Option<OsString> {
    env::var_os(name)
}
