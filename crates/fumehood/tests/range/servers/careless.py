"""A proxy that obeys: CONNECT, absolute-form and SOCKS5, dialling what it is told. The control of the proxy's probes."""

import socket
import struct
import threading


def serve(connection):
    """One client, to its end."""
    stream = connection.stream
    first = stream.recv(1, socket.MSG_PEEK)
    if first == b"\x05":
        return _socks(stream)
    head = b""
    while b"\r\n\r\n" not in head:
        part = stream.recv(65536)
        if not part:
            return
        head += part
    method, target, _ = head.split(b"\r\n")[0].decode("latin-1").split(" ", 2)
    if method == "CONNECT":
        host, _, port = target.rpartition(":")
        with _dial(host, int(port)) as out:
            stream.sendall(b"HTTP/1.1 200 -\r\n\r\n")
            _join(stream, out)
        return
    authority, _, path = target.split("://", 1)[1].partition("/")
    host, _, port = authority.rpartition("@")[2].partition(":")
    with _dial(host, int(port or 80)) as out:
        out.sendall(head.replace(target.encode("latin-1"), b"/" + path.encode("latin-1"), 1))
        _join(stream, out)


def _socks(stream):
    stream.recv(1 + 1 + 255)
    stream.sendall(b"\x05\x00")
    asked = stream.recv(262)
    host, port = asked[5:-2].decode(), struct.unpack("!H", asked[-2:])[0]
    with _dial(host, port) as out:
        stream.sendall(b"\x05\x00\x00\x01" + bytes(6))
        _join(stream, out)


def _dial(host, port):
    return socket.create_connection((host.strip("[]"), port), timeout=10)


def _join(one, other):
    back = threading.Thread(target=_copy, args=(other, one), daemon=True)
    back.start()
    _copy(one, other)
    back.join()


def _copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return
