//! How the binary is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Eleven thousand places hold an address that the program sorts out at each start, before anything else. As a
    // table of 24 bytes each they are a quarter of a megabyte to read; as a bitmap, two kilobytes (docs/adr/0090).
    println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    // The pages that those addresses are written to are brought in by one call: `crates/sys/src/entry.rs`.
    println!("cargo:rustc-link-arg-bins=-Wl,-e,fumehood_entry");
}
