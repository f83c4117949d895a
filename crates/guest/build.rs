//! Builds `guestd`, the freestanding first program of a guest, for `image.rs` to include.
//!
//! The compiler is called directly: a package of its own would be given this workspace's flags and
//! a standard library, and could not be named as an artifact of this one in stable Cargo.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

/// What makes the program free of everything that it does not bring itself.
const FLAGS: &[&str] = &[
    "--crate-name=guestd",
    "--crate-type=bin",
    "--edition=2024",
    "-Copt-level=s",
    "-Ccodegen-units=1",
    "-Cpanic=abort",
    "-Cdebuginfo=0",
    "-Cstrip=symbols",
    "-Coverflow-checks=no",
    "-Cforce-unwind-tables=no",
    "-Crelocation-model=static",
    "-Clink-arg=-nostartfiles",
    "-Clink-arg=-nostdlib",
    "-Clink-arg=-static",
    "-Clink-arg=-no-pie",
    "-Clink-arg=-Wl,--gc-sections,--build-id=none,-z,noexecstack,-z,norelro",
];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=guestd");
    println!("cargo::rerun-if-changed=wire");
    println!("cargo::rerun-if-changed=../backend-native/init");
    println!("cargo::rerun-if-changed=../backend/src/answer.rs");
    println!("cargo::rerun-if-changed=build.rs");
    let Some((compiler, target, out)) = var("RUSTC").zip(var("TARGET")).zip(var("OUT_DIR")).map(flat) else {
        println!("cargo::error=the build script must be run by Cargo");
        return ExitCode::FAILURE;
    };
    let mut command = Command::new(compiler);
    command.args(FLAGS).arg("--target").arg(target);
    if let Some(linker) = var("RUSTC_LINKER") {
        let mut flag = OsString::from("-Clinker=");
        flag.push(linker);
        command.arg(flag);
    }
    command.arg("-o").arg(Path::new(&out).join("guestd")).arg("guestd/main.rs");
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            println!("cargo::error=the compiler did not build `guestd`: {status}");
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

fn flat<A, B, C>(((a, b), c): ((A, B), C)) -> (A, B, C) {
    (a, b, c)
}
