//! Builds `attack`, the static program that the self-test runs behind a wall and beside it, and `attack.wasm`, which does
//! the same where only modules run, for `attack.rs` to include.
//!
//! The compiler is called directly, as for `init`: a package of its own could not be named as an artifact of
//! this one in stable Cargo. Unlike `init` it has the standard library, which is linked in whole.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

const FLAGS: &[&str] = &[
    "--crate-name=attack",
    "--crate-type=bin",
    "--edition=2024",
    "-Copt-level=s",
    "-Ccodegen-units=1",
    "-Cpanic=abort",
    "-Cdebuginfo=0",
    "-Cstrip=symbols",
    "-Clto=fat",
    "-Cembed-bitcode=yes",
    "-Ctarget-feature=+crt-static",
    "-Crelocation-model=static",
];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=attack");
    println!("cargo::rerun-if-changed=build.rs");
    let (Some(compiler), Some(target), Some(out)) = (var("RUSTC"), var("TARGET"), var("OUT_DIR")) else {
        println!("cargo::error=the build script must be run by Cargo");
        return ExitCode::FAILURE;
    };
    if let Err(error) = module(Path::new(&out)) {
        println!("cargo::error=the module was not built: {error}");
        return ExitCode::FAILURE;
    }
    let mut command = Command::new(compiler);
    command.args(FLAGS).arg("--target").arg(target);
    if let Some(linker) = var("RUSTC_LINKER") {
        let mut flag = OsString::from("-Clinker=");
        flag.push(linker);
        command.arg(flag);
    }
    command.arg("-o").arg(Path::new(&out).join("attack")).arg("attack/main.rs");
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            println!("cargo::error=the compiler did not build `attack`: {status}");
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("cargo::error=the compiler could not be run: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The module is written as text, which needs no compiler for another target.
fn module(out: &Path) -> Result<(), Box<dyn std::error::Error>> {
    Ok(std::fs::write(out.join("attack.wasm"), wat::parse_file("attack/module.wat")?)?)
}

fn var(name: &str) -> Option<OsString> {
    env::var_os(name)
}
