//! The files wall: what crosses between the sandbox and the host, and how.
