#!/bin/sh
# Builds Fumehood and runs a real script in a sandbox: a table goes in, a report comes out.
#
# What the build needs beyond Rust is installed where this is root on a system with apt; elsewhere it is named.
set -eu
cd "$(dirname "$0")/.."

has() { command -v "$1" >/dev/null 2>&1; }

has cargo || PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
if ! has cargo; then
    echo 'try.sh: there is no cargo here; install Rust 1.95 or later (https://rustup.rs), then run this again' >&2
    exit 1
fi

missing=''
has cc || missing='gcc'
[ -e /usr/lib/x86_64-linux-gnu/libc.a ] || [ -e /usr/lib64/libc.a ] || missing="$missing libc6-dev"
has python3 || missing="$missing python3"
if [ -n "$missing" ]; then
    if [ "$(id -u)" -ne 0 ] || ! has apt-get; then
        echo "try.sh: this is missing here: $missing (a C linker, the static C library, Python 3); install it, then run this again" >&2
        exit 1
    fi
    apt-get update -qq
    # shellcheck disable=SC2086 # a list of package names
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

echo 'try.sh: building; the first time takes some minutes' >&2
cargo build --release --quiet --locked --package fumehood

set -- "${CARGO_TARGET_DIR:-target}/x86_64-unknown-linux-gnu/release/fumehood" \
    run --in examples/report.py --in examples/sales.csv --out target/report -- python3 report.py sales.csv
echo "\$ $*"
"$@"
echo '$ cat target/report/report.md'
cat target/report/report.md
