//! What happens to credentials: bytes in, bytes out.

pub mod inject;
pub mod mask;
pub mod placeholder;
pub mod secret;

mod encode;
mod forms;
mod search;
#[cfg(test)]
mod testing;
