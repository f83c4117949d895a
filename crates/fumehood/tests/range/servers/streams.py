"""Every TCP port of every address: what the first bytes say decides what is spoken."""

import contextlib
import socket
import ssl
import struct
import threading
import time

import careless
import certificates
import git_ssh
import http1
import http2
import journal
import zone

# Served everywhere; a port that is not here is refused by the kernel, and seen on the wire all the same.
PORTS = [7, 22, 25, 80, 443, 853, 2525, 3000, 3128, 5000, 5432, 5433, 6379, 8000, 8001, 8005, 8010, 8011, 8080, 8443, 8888, 9000, 9999]
BANNERS = {25: b"220 range ready\r\n", 2525: b"220 range ready\r\n", 9000: b"banner of the range\r\n"}
flaws = {}
protocols = {}
_listeners = {}
_this = threading.local()
_numbers = iter(range(1, 1 << 62))
_METHODS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"PATC", b"OPTI", b"CONN", b"get ", b"Get ", b"TRAC", b"PROP")


def start():
    """Listens on all ports, over IPv4 and IPv6."""
    for port in PORTS:
        listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", port))
        listener.listen(1024)
        _listeners[port] = listener
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()


def release(port):
    """Gives a port to another server."""
    listener = _listeners.pop(port, None)
    if listener is not None:
        # Wakes the thread that waits in it, which a close alone does not.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


class Connection:
    """One accepted stream; facts about it carry its number."""

    def __init__(self, stream):
        self.stream = stream
        self.number = next(_numbers)
        own, peer = stream.getsockname(), stream.getpeername()
        self.address, self.port = own[0].removeprefix("::ffff:"), own[1]
        self.sni = None
        self.alpn = None
        self.note("open", to=self.address, port=self.port, **{"from": peer[0].removeprefix("::ffff:")})

    def note(self, kind, **facts):
        """Writes a fact down."""
        journal.add(kind, connection=self.number, **facts)

    def reset(self):
        """Ends it with a RST."""
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.stream.close()


def _accept(listener):
    while True:
        try:
            stream, _ = listener.accept()
        except OSError:
            return  # Released.
        threading.Thread(target=_serve, args=(stream,), daemon=True).start()


def _serve(stream):
    with contextlib.suppress(ConnectionError, TimeoutError, BrokenPipeError), contextlib.ExitStack() as stack:
        connection = Connection(stream)
        stack.callback(lambda: connection.stream.close())
        stack.callback(lambda: connection.note("close"))
        try:
            _speak(connection)
        except (OSError, ValueError, LookupError) as problem:
            connection.note("problem", text=str(problem))


def _speak(connection):
    stream = connection.stream
    if connection.port == 22:
        return git_ssh.serve(connection)
    if connection.port == 3128:
        return careless.serve(connection)
    if connection.port in BANNERS:
        connection.note("banner")
        stream.sendall(BANNERS[connection.port])
        return _echo(connection)
    stream.settimeout(60)
    first = stream.recv(4, socket.MSG_PEEK)
    if first[:2] == b"\x16\x03":
        if not _secure(connection):
            return None
        if connection.alpn == "h2":
            return http2.serve(connection)
        if connection.port == 853:
            return zone.serve(connection.stream)
        return http1.serve(connection)
    if first == b"PRI ":
        return http2.serve(connection)
    if first.startswith(_METHODS):
        return http1.serve(connection)
    return _echo(connection)


def _secure(connection):
    name = _name_in_hello(connection.stream)
    flaw = flaws.get((name or "").lower())
    context = certificates.context((name or connection.address).lower(), flaw, protocols.get(name, ("h2", "http/1.1")))
    # What the library read is the truth; the look before is only for choosing the context.
    context.sni_callback = _heard
    _this.name = None
    try:
        connection.stream = context.wrap_socket(connection.stream, server_side=True)
    except (ssl.SSLError, OSError) as problem:
        connection.note("tls", sni=_this.name, problem=str(problem))
        return False
    connection.sni = _this.name
    connection.alpn = connection.stream.selected_alpn_protocol()
    connection.note("tls", sni=connection.sni, alpn=connection.alpn, version=connection.stream.version())
    return True


def _heard(_, name, __):
    _this.name = name


def _name_in_hello(stream):
    """The name that a ClientHello asks for, looked at without being taken; None where there is none."""
    size, hello = 5, b""
    for _ in range(1000):
        hello = stream.recv(size, socket.MSG_PEEK)
        if len(hello) >= 5:
            size = 5 + int.from_bytes(hello[3:5], "big")
        if len(hello) >= size > 5:
            break
        time.sleep(0.002)
    try:
        place = 43 + 1 + hello[43]
        place += 2 + int.from_bytes(hello[place : place + 2], "big")
        place += 1 + hello[place] + 2
        while place + 4 <= len(hello):
            kind, length = struct.unpack_from("!HH", hello, place)
            if kind == 0:
                return hello[place + 9 : place + 4 + length].decode("ascii", "replace")
            place += 4 + length
    except (IndexError, struct.error):
        pass
    return None


def _echo(connection):
    """Sends back what comes, to the end of it; the first of it is written down."""
    told = False
    while data := connection.stream.recv(65536):
        if not told:
            connection.note("bytes", data=journal.text(data, 4096))
            told = True
        connection.stream.sendall(data)
    with contextlib.suppress(OSError):
        connection.stream.shutdown(socket.SHUT_WR)
