#!/bin/sh
# Installs what the tests need, then runs every test. The one command for a fresh machine.
set -eu
cd "$(dirname "$0")/.."

# --- what the tests need ---
missing=
want() { # PROGRAM PACKAGE
    command -v "$1" > /dev/null 2>&1 || missing="$missing $2"
}
want bwrap bubblewrap
want gcc gcc
want make make
want git git
want python3 python3
want node nodejs
want perl perl
want setpriv util-linux
want mount mount
want ps procps
for place in /usr/lib/x86_64-linux-gnu/libc.a /usr/lib64/libc.a /usr/lib/libc.a; do
    if [ -e "$place" ]; then libc=$place; fi
done
if [ -z "${libc-}" ]; then missing="$missing libc6-dev"; fi
if [ -n "$missing" ]; then
    echo "test: installing$missing"
    if [ "$(id -u)" -ne 0 ]; then
        echo "test: not root; install by hand and start again: apt-get install$missing" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    # shellcheck disable=SC2086
    apt-get install --yes --no-install-recommends $missing
fi

# --- checks, then tests ---
cargo fmt --all --check
cargo clippy --workspace --all-targets --locked -- -D warnings
cargo xtask tidy
cargo test --workspace --locked
# A smoke of each fuzz target; `fuzz/run TARGET 60` looks longer.
sed -n '/^\[\[bin\]\]/,/^$/s/^name = "\(.*\)"/\1/p' fuzz/Cargo.toml | while read -r target; do
    fuzz/run "$target" "${FUZZ_SECONDS:-5}"
done
echo "test: all tests passed"
