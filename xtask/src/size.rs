//! The size of what is shipped, and that it needs nothing else.

use crate::run::{self, Done};

const BINARY: u64 = 15 << 20;
const INIT: usize = 300 << 10;

/// The release binary: at most 15 MiB, and without an interpreter. `init`, which is inside it: at most
/// 300 KiB, since every sandbox has its own.
pub(crate) fn check() -> Done {
    let binary = run::release()?;
    let bytes = std::fs::read(&binary)?;
    let size = u64::try_from(bytes.len())?;
    let init = fumehood_backend_native::init_image::BYTES.len();
    let interpreted =
        bytes.get(64..4096).is_some_and(|head| head.windows(8).any(|window| window == b"/ld-linu"));
    let line = serde_json::json!({"bench": "size", "binary_bytes": size, "static": !interpreted, "init_bytes": init});
    run::say(&line.to_string());
    if interpreted {
        return Err("size: the binary names an interpreter: it is not static".into());
    }
    if size > BINARY {
        return Err(format!("size: {size} bytes, of {BINARY}").into());
    }
    if init > INIT {
        return Err(format!("size: init has {init} bytes, of {INIT}").into());
    }
    Ok(())
}
