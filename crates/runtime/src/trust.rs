//! Which `fumehood.toml` files their owner has trusted, pinned by hash.
