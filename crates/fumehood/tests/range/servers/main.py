"""The range: servers in a network of their own, told what to do over standard input, one JSON object a line.

Started inside a fresh network and mount namespace. Each line in gets one line back, `{"ok": ...}` or
`{"error": "..."}`. The end of standard input is the end of the range.
"""

import json
import os
import signal
import subprocess
import sys
from typing import NamedTuple

import behaviours
import certificates
import database
import git_http
import git_ssh
import journal
import namespace
import sigv4
import streams
import wire
import zone



class Arguments(NamedTuple):
    """What is this range's own, what all of a build share, and where the kit's Python packages are."""

    folder: str
    cache: str
    kit: str


_arguments = None


def _zone(order):
    zone.put(order["name"], order["record"])


def _log(order):
    wire.drain()
    facts, place = journal.since(order["since"])
    return {"facts": facts, "place": place}


def _certificate(order):
    if order["flaw"] not in (None, *certificates.FLAWS):
        raise ValueError(f"no such flaw: {order['flaw']}")
    streams.flaws[order["name"]] = order["flaw"]


def _protocols(order):
    streams.protocols[order["name"]] = order["protocols"]


def _key(order):
    behaviours.keys[order["path"]] = order["value"]


def _aws(order):
    sigv4.key = (order["access"], order["secret"], order["token"])


def _files(order):
    behaviours.files = order["folder"]


def _small(order):
    """A file system of its own for a folder, so that it can be full."""
    namespace.small(order["path"], order["bytes"], order["owner"])


def _fill(order):
    namespace.fill(order["path"])


def _hosts(order):
    """Written in place: the name of the file is a mount."""
    with open("/etc/hosts", "w") as file:
        file.write(order["text"])


def _repository(order):
    git_http.root = os.path.join(_arguments.folder, "repositories")
    os.makedirs(git_http.root, exist_ok=True)
    return {"commit": git_http.create(order["name"]), "folder": os.path.join(git_http.root, order["name"])}


def _ssh(_):
    git_ssh.folder = os.path.join(_arguments.folder, "ssh")
    os.makedirs(git_ssh.folder, exist_ok=True)
    if os.getuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)
    return git_ssh.prepare()


def _database(_):
    streams.release(5432)
    database.start(_arguments.folder, _arguments.cache)


_ORDERS = {"zone": _zone, "log": _log, "certificate": _certificate, "protocols": _protocols, "key": _key, "aws": _aws,
           "files": _files, "hosts": _hosts, "repository": _repository, "ssh": _ssh, "small": _small, "fill": _fill, "database": _database}


def _obey(line):
    try:
        order = json.loads(line)
        return {"ok": _ORDERS[order["do"]](order)}
    except (OSError, ValueError, KeyError, subprocess.CalledProcessError) as problem:
        return {"error": f"{type(problem).__name__}: {problem}"}


def main():
    """Sets the place up, says so, and obeys."""
    global _arguments
    _arguments = Arguments(*sys.argv[1:])
    sys.path.append(_arguments.kit)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    trust = certificates.prepare(os.path.join(_arguments.cache, "certificates"))
    namespace.enter(_arguments.folder, trust)
    wire.start()
    zone.start()
    streams.start()
    print(json.dumps({"ok": {"authority": certificates.authority()}}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_obey(line)), flush=True)
    database.stop()


main()
