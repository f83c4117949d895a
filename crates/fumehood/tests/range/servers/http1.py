"""HTTP/1 as a sink: it reads leniently, like the worst of servers, and notes each request that it sees."""

import hashlib

import behaviours
import journal
import upgrades


class Request:
    """What came: the head as it was, and the body."""

    def __init__(self, connection, head, body, protocol="http/1.1"):
        self.connection = connection
        self.head = head
        self.body = body
        self.protocol = protocol
        lines = head.split("\r\n")
        self.line = lines[0]
        self.method, _, rest = lines[0].partition(" ")
        self.target = rest.rpartition(" ")[0] or rest
        self.fields = [tuple(part.strip() for part in line.split(":", 1)) for line in lines[1:] if ":" in line]

    def field(self, name, default=""):
        """The first field of that name."""
        return next((value for key, value in self.fields if key.lower() == name), default)

    def note(self):
        """Writes it down."""
        self.connection.note(
            "request", to=self.connection.address, port=self.connection.port, sni=self.connection.sni,
            protocol=self.protocol, method=self.method, target=self.target, host=self.field("host"), head=self.head,
            body_bytes=len(self.body), body_sha256=hashlib.sha256(self.body).hexdigest(),
            body=journal.text(self.body, 4096))


def serve(connection):
    """Request after request, until one side has enough."""
    reader = connection.stream.makefile("rb")
    while head := _head(reader):
        if "expect" in head.lower() and "100-continue" in head.lower():
            connection.stream.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        request = Request(connection, head, _body(reader, head))
        request.note()
        if not respond(connection, request, reader):
            return


def respond(connection, request, reader):
    """Answers; whether the connection goes on."""
    if upgrades.wanted(request):
        upgrades.serve(connection, request, reader)
        return False
    if behaviours.path_of(request).startswith("/raw/"):
        return behaviours.raw(connection, request)
    status, fields, body = behaviours.answer(request)
    _write(connection.stream, request, status, fields, body)
    return request.field("connection").lower() != "close" and " HTTP/1.0" not in request.line


def _write(stream, request, status, fields, body):
    """`body` is bytes, or an iterator whose parts go out as chunks the moment they are there."""
    lines = [f"HTTP/1.1 {status} -"] + [f"{name}: {value}" for name, value in fields]
    late = behaviours.trailers(request)
    if late and isinstance(body, bytes):
        body = [body]
    whole = isinstance(body, bytes)
    if whole:
        lines.append(f"content-length: {len(body)}")
    else:
        lines.append("transfer-encoding: chunked")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    if request.method == "HEAD":
        stream.sendall(head)
        return
    if whole:
        stream.sendall(head + body)
        return
    stream.sendall(head)
    for part in body:
        if part:
            stream.sendall(b"%x\r\n" % len(part) + part + b"\r\n")
    stream.sendall(b"0\r\n" + b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in late) + b"\r\n")


def _head(reader):
    """Bytes up to the empty line; a bare LF ends a line too."""
    lines = []
    while line := reader.readline(1 << 21):
        if line in (b"\r\n", b"\n"):
            if lines:
                break
            continue
        lines.append(line.rstrip(b"\r\n").decode("latin-1"))
    return "\r\n".join(lines)


def _body(reader, head):
    # The first of two, as some servers take it; others take the last, and that is how requests are smuggled.
    fields = [line.split(":", 1) for line in reversed(head.split("\r\n")[1:]) if ":" in line]
    values = {name.strip().lower(): value.strip() for name, value in fields}
    if "chunked" in values.get("transfer-encoding", "").lower():
        return _chunks(reader)
    length = values.get("content-length", "0").split(",")[0]
    return reader.read(int(length)) if length.isdigit() else b""


def _chunks(reader):
    whole = b""
    while size := int(reader.readline().split(b";")[0].strip() or b"0", 16):
        whole += reader.read(size)
        reader.readline()
    while reader.readline().strip():
        pass
    return whole
