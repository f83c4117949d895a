"""The place: a network in which every address is local, and the files that make it the host's own.

Called inside a fresh network and mount namespace, with the capabilities over both.
"""

import ctypes
import fcntl
import os
import socket
import struct

RESOLVER = ("192.0.2.53", "2001:db8::53")

_libc = ctypes.CDLL(None, use_errno=True)
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18


def enter(folder, trust):
    """Raises loopback, takes every address, and lays resolver, hosts file and trust store."""
    _raise_loopback()
    # No more specific list would do: a probe may dial anything, and must be seen doing it.
    _take_all(socket.AF_INET)
    _take_all(socket.AF_INET6)
    # A host with none but loopback's addresses makes resolvers think that it has no network (AI_ADDRCONFIG).
    for address, family, length in (("192.0.2.1", socket.AF_INET, 32), ("2001:db8::1", socket.AF_INET6, 128)):
        _add_address(family, socket.inet_pton(family, address), length)
    _mount(None, "/", _MS_REC | _MS_PRIVATE)
    lay("/etc/resolv.conf", f"nameserver {RESOLVER[0]}\noptions timeout:2 attempts:1\n", folder)
    lay("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n", folder)
    _mount(trust, "/etc/ssl/certs", _MS_BIND)


def lay(path, text, folder):
    """Puts a file with `text` in the place of `path`, for this namespace alone."""
    own = os.path.join(folder, os.path.basename(path))
    with open(own, "w") as file:
        file.write(text)
    os.chmod(own, 0o644)
    _mount(own, path, _MS_BIND)


def small(path, size, owner):
    """Lays an empty file system of `size` bytes over a folder."""
    options = f"size={size},mode=700,uid={owner},gid={owner}".encode()
    if _libc.mount(b"tmpfs", path.encode(), b"tmpfs", 0, options) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount on {path}: {os.strerror(code)}")


def fill(path):
    """Takes what room there is, to the last byte."""
    with open(os.path.join(path, "filler"), "wb", buffering=0) as out:
        for size in (1 << 16, 4096, 1):
            try:
                while True:
                    out.write(bytes(size))
            except OSError:
                pass


def _mount(source, target, flags):
    encode = lambda text: text.encode() if text else None
    if _libc.mount(encode(source), encode(target), None, flags, None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {source} on {target}: {os.strerror(code)}")


def _raise_loopback():
    up_and_running = 0x1 | 0x40
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, 0x8914, struct.pack("16sH14x", b"lo", up_and_running))


def _take_all(family):
    """`ip route add local default dev lo table local`, as one netlink message."""
    scope = 254 if family == socket.AF_INET else 0
    body = struct.pack("=BBBBBBBBI", family, 0, 0, 0, 255, 4, scope, 2, 0)
    body += struct.pack("=HHI", 8, 4, socket.if_nametoindex("lo"))
    _ask_kernel(24, body)


def _add_address(family, packed, length):
    """`ip address add ADDRESS dev lo`."""
    body = struct.pack("=BBBBI", family, length, 0x80, 0, socket.if_nametoindex("lo"))
    for kind in (1, 2):
        body += struct.pack("=HH", 4 + len(packed), kind) + packed
    _ask_kernel(20, body)


def _ask_kernel(kind, body):
    flags = 0x1 | 0x4 | 0x400  # REQUEST, ACK, CREATE
    message = struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.sendto(message, (0, 0))
        code = struct.unpack_from("=i", netlink.recv(4096), 16)[0]
    if code != 0:
        raise OSError(-code, f"request {kind} to the kernel: {os.strerror(-code)}")
