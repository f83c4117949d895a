#!/bin/sh
# Installs what the tests need, then runs every test. The one command for a fresh machine.
set -eu
cd "$(dirname "$0")/.."

# --- what the tests need ---
command -v cargo > /dev/null 2>&1 || PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
if ! command -v cargo > /dev/null 2>&1; then
    echo "test: there is no cargo here; install Rust 1.95 or later (https://rustup.rs) and start again" >&2
    exit 1
fi
missing=
want() { # PROGRAM PACKAGE
    command -v "$1" > /dev/null 2>&1 || missing="$missing $2"
}
want bwrap bubblewrap
want gcc gcc
want c++ g++
want make make
want git git
want python3 python3
want node nodejs
want perl perl
want setpriv util-linux
want mount mount
want ps procps
want openssl openssl
want curl curl
want ssh openssh-client
want psql postgresql-client
want npm npm
want wget wget
want skopeo skopeo
want docker-registry docker-registry
want busybox busybox-static
want mkfs.erofs erofs-utils
want zstd zstd
want gzip gzip
want tar tar
want javac default-jdk-headless
want keytool default-jre-headless
want go golang-go
want qemu-system-x86_64 qemu-system-x86
[ -x /usr/sbin/sshd ] || missing="$missing openssh-server"
ls /usr/lib/postgresql/*/bin/postgres > /dev/null 2>&1 || missing="$missing postgresql"
/usr/bin/python3 -m pip --version > /dev/null 2>&1 || missing="$missing python3-pip"
/usr/bin/python3 -c "import venv, ensurepip" 2> /dev/null || missing="$missing python3-venv"
/usr/bin/python3 -c "import setuptools" 2> /dev/null || missing="$missing python3-setuptools"
libc=
for place in /usr/lib/x86_64-linux-gnu/libc.a /usr/lib64/libc.a /usr/lib/libc.a; do
    if [ -e "$place" ]; then libc=$place; fi
done
if [ -z "$libc" ]; then missing="$missing libc6-dev"; fi
if [ -n "$missing" ]; then
    echo "test: installing$missing"
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get > /dev/null 2>&1; then
        echo "test: not root on Debian or Ubuntu; install by hand and start again: apt-get install$missing" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    # shellcheck disable=SC2086
    apt-get install --yes --no-install-recommends $missing
fi

# gVisor. The release that Debian 12 itself has is too old for us; its backports have another.
gvisor_is_there() {
    command -v runsc > /dev/null 2>&1 && ! runsc --version | grep -q 'version .*20[01][0-9]\|version .*202[012]'
}
if ! gvisor_is_there; then
    . /etc/os-release
    if [ "$(id -u)" -ne 0 ] || [ "${VERSION_CODENAME:-}" != bookworm ]; then
        echo "test: there is no runsc of 2023 or later here; install one and start again" >&2
        exit 1
    fi
    echo "test: installing runsc from bookworm-backports"
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm-backports main" \
        > /etc/apt/sources.list.d/fumehood-test-backports.list
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends runsc/bookworm-backports
fi

# A kernel for machines. Only its files are taken: to install the package would make an initramfs of this host.
if ! ls /boot/vmlinuz-* > /dev/null 2>&1; then
    apt-get update
    kernel=$(apt-cache depends linux-image-cloud-amd64 | awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2; exit }')
    echo "test: unpacking $kernel into /boot and /lib/modules, for machines to boot"
    folder=$(mktemp -d)
    (cd "$folder" && apt-get download "$kernel")
    dpkg-deb --fsys-tarfile "$folder"/*.deb | tar -x --keep-directory-symlink -C / ./boot ./lib/modules
    rm -r "$folder"
fi

# The pinned clients of the network's tests.
sh crates/fumehood/tests/range/kit/install.sh

# --- checks, then tests ---
stage() { # WHAT COMMAND...
    what=$1
    shift
    began=$(date +%s)
    "$@"
    echo "test: $what took $(($(date +%s) - began)) s"
}
log=$(mktemp)
trap 'rm -f "$log" "$log.failed"' EXIT
# Every test, also after one that failed; the sum is the last word.
tests() {
    { cargo test --workspace --locked --no-fail-fast 2>&1 || : > "$log.failed"; } | tee "$log"
}
# The official E2B packages at the pinned versions, from PyPI and npm, kept in `target/e2b`: they count as tests.
e2b() {
    { cargo test -p fumehood --test e2b --locked -- --ignored --nocapture --test-threads=1 2>&1 || : > "$log.failed"; } | tee -a "$log"
}
# One line for all of them: N passed, M failed.
sum() {
    awk '/^test result:/ { passed += $4; failed += $6 }
         END { printf "test: %d passed, %d failed\n", passed, failed }' "$log"
}
stage format cargo fmt --all --check
stage lints cargo clippy --workspace --all-targets --locked -- -D warnings
stage tidy cargo xtask tidy
stage tests tests
stage e2b e2b
if [ -e "$log.failed" ]; then
    sum
    exit 1
fi
# Load on the daemon with kills in the middle; `cargo xtask soak 30` looks longer.
stage soak cargo xtask soak "${SOAK_MINUTES:-2}" target/x86_64-unknown-linux-gnu/debug/fumehood
# A smoke of each fuzz target; `fuzz/run TARGET 60` looks longer.
stage fuzz cargo xtask fuzz "${FUZZ_SECONDS:-10}"
sum
