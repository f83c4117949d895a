"""What a path makes the server do. Everything is asked for by the request itself, so that a test reads alone.

Plain: `/echo` (the request's head; `as=plain|gzip|deflate|br|zstd|base64|hex|percent|json|reversed`, `split=N` bytes a chunk,
`trailers=1` for the key once more after the body), `/aws/...` (whether the signature is right),
`/status/N`, `/redirect?to=URL&status=302`, `/drip?n=10&ms=100`, `/stream/N`, `/sse?n=3&ms=100`, `/body`
(digest and length of what was sent), `/dns-query` (DNS over HTTPS), `/bomb/N` (N bytes of zeros; `as=gzip|br|zstd`),
`/hops/N?to=URL` (N redirects, the last to there), `/endless`, `/files/...` (a mirror's files); any other path says who answered.

Over HTTP/1 alone, below `/raw/`: `endless-headers`, `big-header/N`, `bad-chunk`, `lying-length`, `no-length`, `no-notice`
(the same, and over TLS without a word that it is the end),
`reset/N`, `half-close`, `garbage`, `two-lengths`, `both-lengths`, `early`, `hang`, `switch` (101 to no known protocol).
"""

import base64
import hashlib
import json
import os
import socket
import time
import urllib.parse
import zlib

import git_http
import sigv4
import zone

files = None
keys = {}


def path_of(request):
    """The path of the target, whatever its form."""
    target = request.target
    if "://" in target.split("?")[0]:
        target = "/" + target.split("://", 1)[1].partition("/")[2]
    return target.partition("?")[0]


def arguments_of(request):
    """The query's arguments, the last of each."""
    query = request.target.partition("?")[2]
    return {name: values[-1] for name, values in urllib.parse.parse_qs(query).items()}


def refused(request):
    """A 401 where a key is set for the path and the request does not carry it."""
    path = path_of(request)
    for place, expected in keys.items():
        if path.startswith(place) and request.field("authorization") != expected:
            return 401, [("www-authenticate", 'Basic realm="range"')], b"no, or another, key\n"
    return None


def trailers(request):
    """What follows the body, if it was asked for."""
    if path_of(request) == "/echo" and "trailers" in arguments_of(request):
        return [("x-echo-late", request.field("authorization"))]
    return []


def answer(request):
    """Status, fields and body (bytes, or an iterator of parts)."""
    if told := refused(request):
        return told
    if git_http.wanted(request):
        return git_http.answer(request)
    path, asked = path_of(request), arguments_of(request)
    word, _, rest = path.lstrip("/").partition("/")
    if word == "echo":
        return _echo(request, asked)
    if word == "aws":
        return sigv4.answer(request)
    if word == "status":
        return int(rest), [], b"as asked\n"
    if word == "redirect":
        return int(asked.get("status", "302")), [("location", asked["to"])], b""
    if word == "drip":
        return 200, [], _paced(int(asked.get("n", 10)), int(asked.get("ms", 100)), lambda _: b".")
    if word == "sse":
        events = _paced(int(asked.get("n", 3)), int(asked.get("ms", 100)), lambda turn: b"data: %d\n\n" % turn)
        return 200, [("content-type", "text/event-stream")], events
    if word == "stream":
        return 200, [("content-type", "application/octet-stream")], _stream(int(rest))
    if word == "bomb":
        kind = asked.get("as", "gzip")
        return 200, [("content-encoding", kind)], _bomb(kind, int(rest))
    if word == "hops":
        left = int(rest)
        there = f"/hops/{left - 1}?to={asked['to']}" if left > 1 else asked["to"]
        return 302, [("location", there)], b""
    if word == "endless":
        return 200, [("content-type", "text/plain")], _stream(1 << 60)
    if word == "body":
        told = {"bytes": len(request.body), "sha256": hashlib.sha256(request.body).hexdigest()}
        return 200, [("content-type", "application/json")], json.dumps(told).encode()
    if word == "dns-query":
        return 200, [("content-type", "application/dns-message")], zone.answer(_dns_message(request, asked), "doh")
    if word == "files":
        return _file(rest)
    told = {"served_by": request.connection.address, "port": request.connection.port, "host": request.field("host"),
            "method": request.method, "target": request.target, "protocol": request.protocol}
    return 200, [("content-type", "application/json")], json.dumps(told).encode()


def _echo(request, asked):
    body = request.head.encode("latin-1") + b"\r\n\r\n" + request.body
    kind = asked.get("as", "plain")
    fields = [("content-type", "text/plain"), ("x-echo", request.field("authorization"))]
    if kind == "base64":
        body = base64.b64encode(body)
    elif kind == "hex":
        body = body.hex().encode()
    elif kind == "json":
        body = json.dumps({"head": body.decode("latin-1")}).encode()
    elif kind == "reversed":
        body = body[::-1]
    elif kind == "percent":
        body = urllib.parse.quote_from_bytes(body, safe="").encode()
    elif kind != "plain":
        body = _packed(kind, body)
        fields.append(("content-encoding", kind))
    size = int(asked.get("split", 0))
    if size:
        return 200, fields, (body[at : at + size] for at in range(0, len(body), size))
    return 200, fields, body


def _packed(kind, body):
    if kind in ("gzip", "deflate"):
        packer = zlib.compressobj(wbits=31 if kind == "gzip" else 15)
        return packer.compress(body) + packer.flush()
    if kind == "br":
        import brotli

        return brotli.compress(body)
    import zstandard

    return zstandard.compress(body)


def _paced(count, milliseconds, part):
    for turn in range(count):
        if turn:
            time.sleep(milliseconds / 1000)
        yield part(turn)


def _stream(count):
    block = bytes(range(256)) * 1024
    for at in range(0, count, len(block)):
        yield block[: min(len(block), count - at)]


def _bomb(kind, count):
    pack, flush = _packer(kind)
    for _ in range(0, count, 1 << 20):
        yield pack(bytes(1 << 20))
    yield flush()


def _packer(kind):
    if kind == "br":
        import brotli

        packer = brotli.Compressor(quality=1)
        return packer.process, packer.finish
    if kind == "zstd":
        import zstandard

        packer = zstandard.ZstdCompressor().compressobj()
        return packer.compress, packer.flush
    packer = zlib.compressobj(9, wbits=31)
    return packer.compress, packer.flush


def _dns_message(request, asked):
    if request.method == "POST":
        return request.body
    text = asked.get("dns", "")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _file(rest):
    path = os.path.normpath(os.path.join(files or "/nonexistent", urllib.parse.unquote(rest)))
    if os.path.isdir(path):
        path = os.path.join(path, "index.html")
    if files is None or not path.startswith(files + "/") or not os.path.isfile(path):
        return 404, [], b"no such file\n"
    kinds = {".html": "text/html", ".json": "application/json"}
    with open(path, "rb") as file:
        return 200, [("content-type", kinds.get(os.path.splitext(path)[1], "application/octet-stream"))], file.read()


def raw(connection, request):
    """Answers that no proper server gives; whether the connection goes on."""
    stream = connection.stream
    _, _, kind, *rest = path_of(request).split("/")
    many = int(rest[0]) if rest else 1 << 20
    ok = b"HTTP/1.1 200 -\r\n"
    if kind == "endless-headers":
        while True:
            stream.sendall(ok + b"".join(b"x-%d: y\r\n" % turn for turn in range(1000)) if many else b"")
            ok = b""
    if kind == "big-header":
        stream.sendall(ok + b"x-big: " + b"a" * many + b"\r\ncontent-length: 2\r\n\r\nok")
        return True
    if kind == "hang":
        time.sleep(600)
    if kind == "reset":
        stream.sendall(ok + b"content-length: 1000000\r\n\r\n" + b"a" * many)
        time.sleep(0.05)
        connection.reset()
        return False
    if kind == "half-close":
        stream.sendall(ok + b"content-length: 5\r\nconnection: close\r\n\r\nwhole")
        stream.shutdown(socket.SHUT_WR)
        time.sleep(0.5)
        return False
    if kind == "no-length":
        stream.sendall(ok + b"connection: close\r\n\r\nto the end")
        if hasattr(stream, "unwrap"):
            stream.unwrap()
        return False
    if kind == "no-notice":
        secret = hasattr(stream, "unwrap")
        stream.sendall(ok + b"connection: close\r\n\r\n" + (b"to no end" if secret else b"in the clear"))
        return False
    if kind == "switch":
        stream.sendall(b"HTTP/1.1 101 -\r\nupgrade: unheard-of\r\nconnection: upgrade\r\n\r\nbytes after the switch")
        while data := stream.recv(65536):
            connection.note("after-switch", data=data.decode("latin-1"))
        return False
    stream.sendall({
        "bad-chunk": ok + b"transfer-encoding: chunked\r\n\r\nzz\r\nnot a chunk\r\n",
        "lying-length": ok + b"content-length: 1000\r\n\r\nshort",
        "garbage": b"\x00\xff this is no HTTP\r\n\r\n" * 10,
        "two-lengths": ok + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        "both-lengths": ok + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nwhole\r\n0\r\n\r\n",
        "early": b"HTTP/1.1 103 -\r\nlink: </a>\r\n\r\n" + ok + b"content-length: 2\r\n\r\nok",
    }[kind])
    return kind == "early"
