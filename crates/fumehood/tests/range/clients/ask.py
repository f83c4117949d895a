"""A client that asks for one thing after another, by hand, and says what came of each.

The argument is a JSON list of `{"id": ..., "ask": ...}`. One line out for each: `{"id", "from", "to", "reached",
"detail"}`, the times in seconds since the epoch. `reached` is whether a server of the range answered; the judge
believes it only together with what the range saw.
"""

import json
import os
import socket
import ssl
import struct
import sys
import time
import urllib.parse

TIMEOUT = 5
_TYPES = {"A": 1, "NULL": 10, "PTR": 12, "TXT": 16, "AAAA": 28, "SRV": 33, "SVCB": 64, "HTTPS": 65, "ANY": 255}


class Stopped(Exception):
    """Something said no, in so many words."""


def main():
    for one in json.loads(sys.argv[1]):
        began = time.time()
        reached, detail = False, ""
        for way in ways(one["ask"]):
            try:
                reached, told = way()
            except (OSError, Stopped, UnicodeError, ValueError) as problem:
                told = f"{type(problem).__name__}: {problem}"
            detail += f"{told}; "
            if reached:
                break
        print(json.dumps({"id": one["id"], "from": began, "to": time.time(), "reached": reached, "detail": detail[:600]}),
              flush=True)


def ways(ask):
    """The ways to try it, each a call. What a proxy is told by variable is tried through it as well."""
    if "dns" in ask:
        return [lambda: lookup(ask["dns"], ask.get("qtype", "A"))]
    if "redirect_from" in ask:
        return [lambda: redirected(ask)]
    if ask.get("proxy") == "absolute-form":
        return [lambda: absolute_form(ask)]
    if ask.get("proxy") == "connect":
        return [lambda: connect_proxy(ask)]
    if "url" in ask:
        # A library that reads a backslash away sends nothing odd: then the spelling itself has to reach the wall.
        reads = by_url_as_host if "\\" in ask["url"] else by_url
        return [lambda: reads(ask["url"]), lambda: by_url_literally(ask["url"])]
    if ask.get("scheme") == "tcp":
        return [lambda: echo(ask["host"], ask["port"])]
    if ask.get("scheme") == "udp":
        return [lambda: datagram(ask["host"], ask["port"])]
    plain = ask.get("scheme") == "http"
    direct = [lambda: http(ask) if plain else https(ask)]
    # The first line through a tunnel is the same ask by another door.
    if "host" in ask and os.environ.get("HTTPS_PROXY") and not plain:
        direct.append(lambda: connect_proxy({"target": f"{ask['host']}:{ask['port']}", "sni": ask["host"], **ask}))
    return direct


def http(ask):
    """One plain request."""
    target = ask.get("dial_ip") or ask["host"]
    with dial(target, ask["port"]) as stream:
        return request(stream, ask, [target if ask["port"] == 80 else f"{target}:{ask['port']}"])


def https(ask):
    """One request inside TLS, or as much of it as the ask describes."""
    target = ask.get("dial_ip") or ask.get("dial") or ask["host"]
    with dial(target, ask["port"]) as stream:
        return inside_tls(stream, ask, target)


def inside_tls(stream, ask, target):
    name = ask["sni"] if "sni" in ask else ask["host"]
    name = name and name.rstrip(".")
    with secure(stream, name, pinned="pinned" in ask.get("note", ""), h2=ask.get("protocol") == "h2") as inner:
        if ask.get("protocol") == "h2":
            return request_h2(inner, ask)
        own = name or target
        hosts = ask.get("host_headers") or [ask.get("host_header") or (own if ask.get("port", 443) == 443 else f"{own}:{ask['port']}")]
        return request(inner, ask, hosts)


def secure(stream, name, pinned=False, h2=False):
    """TLS that verifies as every client does; pinned, it believes the range's own authority alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if pinned:
        context.load_verify_locations(os.path.join(os.path.dirname(os.path.abspath(__file__)), "authority.pem"))
    else:
        context.load_default_certs()
        if os.environ.get("SSL_CERT_FILE"):
            context.load_verify_locations(os.environ["SSL_CERT_FILE"])
    context.set_alpn_protocols(["h2"] if h2 else ["http/1.1"])
    if name is None:
        context.check_hostname = False
    return context.wrap_socket(stream, server_hostname=name)


def dial(host, port):
    """The way every program takes: the system's resolver, then each address in turn."""
    if "%00" in host:
        query(host.replace("%00", "\0"), 1)
    if not host.isascii():
        host = host.encode("idna").decode()
    return socket.create_connection((host, port), timeout=TIMEOUT)


def request(stream, ask, hosts):
    """One HTTP/1 request; reached if the answer is one of the range's servers."""
    lines = [f"{ask.get('method', 'GET')} {ask.get('path', '/')} HTTP/1.1"]
    lines += [f"Host: {host}" for host in hosts] + ["Connection: close", "", ""]
    stream.sendall("\r\n".join(lines).encode("latin-1", "replace"))
    return judged(read_all(stream))


def read_all(stream):
    whole = b""
    while data := stream.recv(65536):
        whole += data
    return whole


def judged(answer):
    """Whether a server of the range wrote it."""
    return b'"served_by"' in answer, answer[:300].decode("latin-1").replace("\r\n", " | ") or "closed"


def request_h2(stream, ask):
    """One HTTP/2 request in its plainest spelling: no table, no compression."""
    if stream.selected_alpn_protocol() != "h2":
        raise Stopped("the other side speaks no HTTP/2")
    literal = lambda name, value: b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    block = literal(":method", ask["method"]) + literal(":scheme", "https") + literal(":path", ask["path"])
    block += literal(":authority", ask["authority"])
    frame = lambda kind, flags, number, data: struct.pack("!I", len(data))[1:] + bytes([kind, flags]) + struct.pack("!I", number) + data
    stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 5, 1, block))
    whole, seen = b"", b""
    while data := stream.recv(65536):
        whole += data
        while len(whole) >= 9 and len(whole) >= 9 + int.from_bytes(whole[:3], "big"):
            size = int.from_bytes(whole[:3], "big")
            kind, flags, body, whole = whole[3], whole[4], whole[9 : 9 + size], whole[9 + size :]
            if kind == 0:
                seen += body
            if kind in (3, 7) or kind in (0, 1) and flags & 1:
                return judged(seen)
    return judged(seen)


def proxy():
    """Where the variables say the proxy is."""
    told = os.environ.get("HTTP_PROXY") or os.environ.get("http_proxy")
    if not told:
        raise Stopped("no proxy is told")
    place = urllib.parse.urlsplit(told)
    return socket.create_connection((place.hostname, place.port), timeout=TIMEOUT)


def absolute_form(ask):
    with proxy() as stream:
        lines = [f"GET {ask['target']} HTTP/1.1", f"Host: {ask['host_header']}", "Connection: close", "", ""]
        stream.sendall("\r\n".join(lines).encode())
        return judged(read_all(stream))


def connect_proxy(ask):
    with proxy() as stream:
        stream.sendall(f"CONNECT {ask['target']} HTTP/1.1\r\nHost: {ask['target']}\r\n\r\n".encode("utf-8"))
        head = b""
        while b"\r\n\r\n" not in head:
            data = stream.recv(4096)
            if not data:
                raise Stopped("closed after CONNECT")
            head += data
        if b" 200" not in head.split(b"\r\n")[0]:
            raise Stopped(head[:300].decode("latin-1"))
        return inside_tls(stream, {"port": 443, **ask}, ask["target"].rpartition(":")[0])


def by_url(url):
    """As a library reads a URL."""
    parts = urllib.parse.urlsplit(url)
    if not parts.hostname:
        raise Stopped("no host in it")
    return http({"host": parts.hostname, "port": parts.port or 80, "path": parts.path or "/"})


def by_url_as_host(url):
    """As a client that dials the host it reads, and names the authority as it was written."""
    authority = url.split("//", 1)[1].split("/")[0]
    with dial(urllib.parse.urlsplit(url).hostname, 80) as stream:
        return request(stream, {}, [authority])


def by_url_literally(url):
    """As the bluntest client reads it: all up to the first slash is the host, whatever stands there."""
    if os.environ.get("HTTP_PROXY"):
        return absolute_form({"target": url, "host_header": url.split("//", 1)[1].split("/")[0]})
    authority = url.split("//", 1)[1].split("/")[0].split("#")[0]
    return http({"host": authority.replace("\\", "/").split("/")[0].rpartition("@")[2].strip("[]"), "port": 80})


def echo(host, port):
    with dial(host, port) as stream:
        stream.sendall(b"ping of ask.py")
        told = stream.recv(100)
        return told == b"ping of ask.py", repr(told)


def datagram(host, port):
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as out:
            out.settimeout(0.3)
            out.connect(address)
            out.send(b"datagram of ask.py")
            out.send(b"datagram of ask.py")
    return False, "sent"


def lookup(name, kind):
    """Reached if an answer came that says more than 'no such name'."""
    told = query(name, _TYPES[kind])
    code, count = told[3] & 15, struct.unpack_from("!H", told, 6)[0]
    return code == 0 and count > 0, f"rcode {code}, {count} records, {told[-4:].hex()}"


def query(name, kind):
    """One query to the resolver that `/etc/resolv.conf` names."""
    with open("/etc/resolv.conf") as file:
        servers = [line.split()[1] for line in file if line.startswith("nameserver")]
    if not servers:
        raise Stopped("no resolver is told")
    labels = b"".join(bytes([len(part)]) + part.encode("latin-1") for part in name.rstrip(".").split("."))
    message = struct.pack("!HHHHHH", 4660, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)
    family = socket.AF_INET6 if ":" in servers[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as out:
        out.settimeout(2)
        out.connect((servers[0], 53))
        out.send(message)
        return out.recv(4096)


def redirected(ask):
    """Follows a redirect as a client does that checks nothing."""
    first = urllib.parse.urlsplit(ask["redirect_from"])
    path = "/redirect?to=" + urllib.parse.quote(ask["to"], safe="")
    with dial(first.hostname, 443) as stream, secure(stream, first.hostname) as inner:
        inner.sendall(f"GET {path} HTTP/1.1\r\nHost: {first.hostname}\r\nConnection: close\r\n\r\n".encode())
        answer = read_all(inner).decode("latin-1")
    place = next((line.split(": ", 1)[1] for line in answer.split("\r\n") if line.lower().startswith("location: ")), None)
    if place is None:
        raise Stopped(f"no redirect came: {answer[:200]}")
    return by_url(place)


main()
