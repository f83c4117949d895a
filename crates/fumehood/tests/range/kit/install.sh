#!/bin/sh
# Installs the real clients that the tests of the network use, into the build folder: once for each state of the lists.
set -eu
lists=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$lists/../../../../.." && pwd)
kit=${CARGO_TARGET_DIR:-$root/target}/range-kit
state=$(cat "$lists/requirements.txt" "$lists/package-lock.json" "$0" | sha256sum | cut -c1-64)
if [ -e "$kit/state" ] && [ "$(cat "$kit/state")" = "$state" ]; then exit 0; fi
echo "range kit: installing the pinned clients into $kit"
rm -rf "$kit"
mkdir -p "$kit/node"
# For the system's Python: the one that a sandbox sees.
/usr/bin/python3 -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --root-user-action=ignore \
    --target "$kit/python" --requirement "$lists/requirements.txt"
cp "$lists/package.json" "$lists/package-lock.json" "$kit/node/"
npm ci --prefix "$kit/node" --ignore-scripts --no-audit --no-fund --loglevel=error
chmod -R a+rX "$kit"
echo "$state" > "$kit/state"
