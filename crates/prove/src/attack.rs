//! The attacker, as built beside this crate: a program, and a module for where only modules run.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The program. Static: it needs nothing of the place where it runs.
pub const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/attack"));

/// The module: the same words, for WASI preview 1.
pub(crate) const MODULE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/attack.wasm"));

/// Writes both into a folder; the program's path.
pub(crate) fn place(folder: &Path) -> io::Result<PathBuf> {
    write(&folder.join("attack.wasm"), MODULE)?;
    let path = folder.join("attack");
    write(&path, BYTES)?;
    Ok(path)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o755).open(path)?;
    file.write_all(bytes)?;
    // Whatever the umask is: a sandbox's user is another one.
    file.set_permissions(Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_is_one() {
        assert_eq!(&MODULE[..8], b"\0asm\x01\0\0\0");
    }

    #[test]
    fn the_program_is_static_and_64_bit() {
        assert_eq!(&BYTES[..5], b"\x7fELF\x02");
        assert!(BYTES.len() <= 2 << 20, "the attacker has grown to {} bytes", BYTES.len());
        let interpreter = b"/lib64/ld-linux";
        assert!(!BYTES.windows(interpreter.len()).any(|part| part == interpreter), "not static");
    }
}
