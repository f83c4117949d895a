"""What was seen, in order: the evidence that tests judge by."""

import threading
import time

_lock = threading.Lock()
_entries = []


def add(kind, at=None, **facts):
    """Appends one fact; `at` is seconds since the epoch, now unless it is told."""
    with _lock:
        _entries.append({"at": time.time() if at is None else at, "kind": kind, **facts})


def since(place):
    """The facts from `place` on, and the place after them."""
    with _lock:
        return _entries[place:], len(_entries)


def text(data, most=65536):
    """Bytes as text of the same length, one character a byte."""
    return bytes(data[:most]).decode("latin-1")
